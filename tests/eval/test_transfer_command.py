"""`python -m eval transfer` and `compare` from the shell: what they make and say, one line for whatever is wrong."""

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from eval.cli import evaluate
from eval.experiment import plan as planning
from eval.experiment import report_files
from eval.experiment.live import Live
from eval.experiment.transfer_command import cut_notes
from eval.experiment.trial import Trial, limited
from eval.finetune import FinetuneConfig

SHORT = ["--max-length", "16", "--learning-rate", "0.003", "--epochs", "1", "--test-limit", "20"]


def words_for(source, table, out, *more, beside="scratch,bow"):
    mine = ["--data", table, "--text", "review", "--label", "topic", "--labels", "16", "--seeds", "2"]
    return ["transfer", f"{source},{beside}" if beside else source, *mine, *SHORT, "--out", str(out), *more]


@pytest.fixture(scope="module")
def made(source, table, tmp_path_factory):
    """A finished experiment's folder."""
    out = tmp_path_factory.mktemp("made") / "t"
    assert evaluate(words_for(source, table, out)) == 0
    return out


def test_it_tells_the_time_runs_reports_and_reuses_its_cells(made, source, table, capsys):
    plain = json.loads((made / "report.json").read_text())
    assert plain["schema"] == report_files.SCHEMA and "tiny on mine" in plain["protocol"]
    assert [cell["arm"] for cell in plain["cells"]] == ["pretrained"] * 2 + ["random"] * 2 + ["baseline"] * 2
    assert all(cell["cost"]["training_flops"] > 0 for cell in plain["cells"][:4]) and plain["flops"] > 0
    assert evaluate(words_for(source, table, made)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("plan: 6 cells, 6 of them finished: nothing to run on this machine") for line in lines)
    assert sum(line.endswith("(finished before)") for line in lines) == 6
    assert lines[-1] == f"report: {made / 'report.html'}"
    said = "tiny on mine: all parameters; learning rate 0.003 for both arms; 1 epoch of AdamW"
    assert any(line.startswith(said) for line in lines)


def test_most_texts_cut_is_a_note_of_the_report():
    said = cut_notes({("mine", "tiny"): 0.51, ("mine", "large"): 0.5}, 64)
    assert said == ["tiny on mine: 51% of the test texts have more than 64 tokens: they lose their end"]


@pytest.mark.parametrize("command", ["finetune", "transfer", "fewshot", "choose"])
def test_every_command_reads_the_encoding_of_a_file(command, source, tmp_path, capsys):
    """Each goes as far as the next fault, which needs the file to have been read."""
    rows = "".join(f"caf\xe9 harbor tide {n}\t{'ab'[n % 2]}\n" for n in range(60))
    asked = "".join(f'{{"context": "caf\xe9 {n}", "options": ["x", "y"], "label": 0}}\n' for n in range(60))
    text = asked if command == "choose" else "text\tlabel\n" + rows
    path = tmp_path / ("mine.jsonl" if command == "choose" else "mine.tsv")
    path.write_bytes(text.encode("latin-1"))
    fault, line = {
        "finetune": (["--labels", "9000"], "a budget of 9,000 labels from"),
        "transfer": (["--labels", "9000"], "9,000 labels from task mine"),
        "fewshot": (["--shots", "9000"], "--shots 9000 exceed the 43 training examples"),
        "choose": (["--template", "x"], "the template needs {context}, once"),
    }[command]
    words = [command, source, "--data", str(path), *fault]
    assert evaluate(words) == 2 and "byte 0xe9 is not utf-8" in capsys.readouterr().err
    assert evaluate([*words, "--encoding", "latin-1"]) == 2
    assert line in capsys.readouterr().err


def test_plan_says_what_would_be_run_and_runs_nothing(source, table, tmp_path, capsys):
    out = tmp_path / "t"
    more = ["--ways", "full,probe", "--control", "--plan"]
    assert evaluate(words_for(source, table, out, *more)) == 0
    shown = capsys.readouterr().out
    assert "plan: 12 cells: about " in shown and "measured for" in shown
    for row in ("pre-trained", "pre-trained, linear probe", "random start", "shuffled labels", "TF-IDF"):
        assert row in shown
    assert not list(tmp_path.iterdir())


def test_a_plan_counts_what_is_finished_and_adds_up(made, source, topics, tmp_path):
    """Two budgets, of which none is finished in an empty folder: seconds go by FLOPs, and the total is their sum."""
    config = FinetuneConfig(learning_rate=3e-3, epochs=1, max_length=16)
    trial = Trial("tiny", source, limited(topics, test=20), config, (16, 64), (0, 1), scratch=False)
    found = planning.plan([trial], tmp_path, devices=jax.devices()[:1], live=Live(lambda line: None))
    few, many = (line for line in found.lines if line.row == "tiny, pre-trained")
    assert (few.cells, few.finished, found.cells, found.finished) == (2, 0, 8, 0)
    assert many.flops > few.flops > 0 and many.seconds > few.seconds > 0
    assert found.seconds == pytest.approx(sum(2 * line.seconds for line in found.lines) + found.compiling)


def test_a_network_is_measured_once_for_all_tasks_of_a_kind(source, topics, tmp_path, monkeypatch):
    config = FinetuneConfig(learning_rate=3e-3, epochs=1, max_length=16)
    splits = limited(topics, test=20)
    other = replace(splits, task=replace(splits.task, name="other"))
    trials = [Trial("tiny", source, part, config, (16,), (0, 1), ways=("full", "head")) for part in (splits, other)]
    asked = []
    speed = planning.Speed(1e9, 2e9, 5.0)
    monkeypatch.setattr(planning, "measure", lambda bench, key, *_: asked.append(key.way) or speed)
    found = planning.plan(trials, tmp_path, with_baseline=False, devices=jax.devices()[:1], live=Live(str))
    assert asked == ["full", "head"] and found.cells == 2 * 3 * 2
    for line in found.lines:
        assert line.seconds > 0
    # One shape to train and one to predict. The first task's three are compiled by measuring (its second way predicts
    # as the first does), and not its second way's predictions.
    assert found.compiling == 5.0 * (0 + 1 + 2 + 2)


def test_measured_examples_are_of_one_length(topics, tokenizer, bert):
    from eval.encode import encode

    encoded = encode(topics.train, tokenizer, bert[0].config, 32)
    chosen = planning._commonest(encoded, 10)
    assert len(chosen) == 10 and len(set(np.searchsorted(encoded.buckets, chosen.lengths))) == 1
    picked = planning.select(encoded, [3, 1])
    assert [ids.tolist() for ids in picked.ids] == [encoded.ids[3].tolist(), encoded.ids[1].tolist()]
    assert picked.labels.tolist() == [encoded.labels[3], encoded.labels[1]]


def test_compare_finds_no_difference_between_a_report_and_itself(made, tmp_path, capsys):
    out = tmp_path / "compared.json"
    assert evaluate(["compare", str(made / "report.json"), str(made), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "A: tiny, pre-trained" in shown and "0 / 0" in shown and "below 0.05" in shown
    pairs = json.loads(out.read_text())["pairs"]
    assert [pair["row_a"] == pair["row_b"] for pair in pairs] == [True] * 3
    assert all(pair["difference"]["interval"]["mean"] == 0 and pair["labels"] == 16 for pair in pairs)


def test_compare_takes_rows_by_name(made, tmp_path, capsys):
    out, name = tmp_path / "compared.json", json.loads((made / "report.json").read_text())["cells"][0]["network"]
    rows = ["--row-a", f"{name}, pre-trained", "--row-b", "TF-IDF"]
    assert evaluate(["compare", str(made), str(made), *rows, "--out", str(out)]) == 0
    (pair,) = json.loads(out.read_text())["pairs"]
    report = json.loads((made / "report.json").read_text())
    (same,) = [c for c in report["comparisons"] if c["against"] == "baseline"]
    assert pair["difference"] == same["difference"] and pair["test_interval"] == same["test_interval"]
    assert pair["seeds"] == [0, 1] and len(pair["mcnemar"]) == 2
    capsys.readouterr()
    assert evaluate(["compare", str(made), str(made), "--row-a", "TFIDF"]) == 2
    assert 'no row "TFIDF"; did you mean "TF-IDF"?' in capsys.readouterr().err


def test_compare_shows_how_both_sides_were_made_where_that_differs(made, tmp_path, capsys):
    plain = json.loads((made / "report.json").read_text())
    plain["protocol"]["tiny on mine"] = "another way"
    (tmp_path / "report.json").write_text(json.dumps(plain))
    assert evaluate(["compare", str(made), str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("A, tiny on mine: all parameters; learning rate") for line in lines)
    assert lines[-1] == "B, tiny on mine: another way"


def test_compare_reads_reports_of_format_1(made, tmp_path):
    """What they did not have is taken out; the baseline was an arm of its own name."""
    plain = json.loads((made / "report.json").read_text())
    plain["schema"] = "oneblock.report/1"
    for cell in plain["cells"]:
        cell["arm"] = "tf-idf" if cell["arm"] == "baseline" else cell["arm"]
        for name in ("way", "cost", "details", "failure"):
            del cell[name]
    for task in plain["tasks"]:
        for name in ("kind", "near", "warnings", "sizes", "digests", "benchmark"):
            del task[name]
    (tmp_path / "report.json").write_text(json.dumps(plain))
    shutil.copy(made / "predictions.npz", tmp_path)
    assert evaluate(["compare", str(tmp_path), str(made)]) == 0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda p: [part.update(name="x", task="x") for part in p["tasks"] + p["cells"]], "the tasks differ: mine in "),
        (lambda p: p["tasks"][0].update(main_metric="macro_f1"), "another main metric on either side: accuracy in "),
        (lambda p: p["tasks"][0].update(labels=["sea", "kitchen"]), "another set of labels on either side: kitchen, s"),
        (lambda p: p["tasks"][0]["digests"].update(test="0123"), "the test sets differ: 20 examples on both sides"),
        (lambda p: p["tasks"][0]["sizes"].update(test=21), "another test set on either side: 20 examples in "),
        (lambda p: [c.update(labels=32) for c in p["cells"]], "have no label budget and seed in common"),
        (lambda p: p.update(schema="oneblock.report/9"), "format oneblock.report/9 is not known here"),
        (lambda p: p.pop("tasks"), "not a report of transfer (KeyError: 'tasks')"),
    ],
)
def test_compare_refuses_what_differs_and_names_it(change, line, made, tmp_path, capsys):
    plain = json.loads((made / "report.json").read_text())
    change(plain)
    (tmp_path / "report.json").write_text(json.dumps(plain))
    assert evaluate(["compare", str(made), str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1


def test_compare_holds_fine_tuned_folders_against_each_other(source, table, tmp_path, capsys):
    for name, more in (("a", []), ("b", ["--seed", "1"]), ("c", ["--random-start"])):
        words = ["finetune", source, "--data", table, "--text", "review", "--label", "topic", "--labels", "32", *more]
        assert evaluate([*words, "--epochs", "2", *SHORT[:4], "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    out = tmp_path / "compared.json"
    assert evaluate(["compare", str(tmp_path / "a"), str(tmp_path / "c"), "--out", str(out)]) == 0
    (pair,) = json.loads(out.read_text())["pairs"]
    said = "32 labels, seed 0: all parameters; learning rate 0.003; 2 epochs of AdamW with batches of 16, linear rate "
    assert f"tiny, pre-trained, {said}" in capsys.readouterr().out
    answers = {}
    for name in ("a", "c"):
        lines = [line.split("\t") for line in (tmp_path / name / "predictions.tsv").read_text().splitlines()[1:]]
        answers[name] = np.array([label == prediction for label, prediction, *_ in lines])
    assert pair["mean_a"] - pair["mean_b"] == pytest.approx(answers["a"].mean() - answers["c"].mean())
    assert pair["mcnemar"][0]["only_a"] == np.sum(answers["a"] & ~answers["c"])
    assert pair["difference"]["interval"]["low"] is None and pair["test_interval"]["n"] == len(answers["a"])
    assert evaluate(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    path = tmp_path / "b" / "predictions.tsv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    assert evaluate(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "the first that differs is example 1)" in capsys.readouterr().err
    assert evaluate(["compare", str(tmp_path / "a"), table]) == 2
    assert f"{table}: not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, line",
    [
        (["X", "MINE", "--labels", "ten"], '--labels holds "ten"'),
        (["X", "MINE", "--rates", "1e-3,x"], '--rates holds "x"; numbers above 0, with commas between'),
        (["X", "MINE", "--rates", "0"], '--rates holds "0"; numbers above 0'),
        (["X", "MINE", "--labels", "9000"], "9,000 labels from task mine, which has "),
        (["X", "MINE", "--labels", "9000"], 'or "all"'),
        (["X,X", "MINE", "--labels", "16"], "stands twice"),
        (["X", "--tasks", "twets,"], 'no task "twets"; did you mean "tweets"?'),
        (["X,nowhere", "MINE", "--labels", "16"], 'no folder "nowhere"'),
        (["X,scrach", "MINE", "--labels", "16"], 'no folder "scrach"'),
        (["scratch,bow", "MINE"], "scratch and bow stand beside a checkpoint"),
        (["X", "--tasks", "tweets", "--out", "D"], "is a file, where a folder is needed"),
        (["X", "MINE", "--seed", "3"], "say how many with --seeds"),
        (["X", "MINE", "--way", "lora"], "name them with --ways"),
        (["X", "MINE", "--ways", "full,lroa"], '--ways holds "lroa"; did you mean "lora"?'),
        (["X", "MINE", "--ways", "full,full", "--labels", "16"], "ways are full, full; give each once"),
        (["X"], "give one of --tasks NAMES ("),
        (["X", "MINE", "--seeds", "0"], "--seeds is 0; it must be 1 or more"),
        (["X", "MINE", "--labels", "16", "--test-limit", "-1"], "--test-limit is -1; it must be 0, for"),
        (["X", "--tasks", "cola"], "task cola is not fetched: say in which folder its files are"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words, line, source, table, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = ["--data", table, "--text", "review", "--label", "topic"]
    meant = {"X": [source], "D": [table], "MINE": mine}
    meant |= {f"X,{word}": [f"{source},{word}"] for word in ("nowhere", "scrach")} | {"X,X": [f"{source},{source}"]}
    assert evaluate(["transfer", *(part for word in words for part in meant.get(word, [word]))]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and line in captured.err
    assert list(tmp_path.iterdir()) == []
