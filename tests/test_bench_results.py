"""The tables of tests/bench/RESULTS.md, of made-up measurements: exact medians and ratios, and what stays as it was."""

import json
import re
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent / "bench"
MACHINE = {"cpu": "Abacus", "cores": 2, "memory": 8 * 2**30}


@pytest.fixture
def bench(monkeypatch):
    """tests/bench/results.py and contestant.py, imported as its scripts import each other."""
    monkeypatch.syspath_prepend(str(BENCH))
    import contestant
    import results

    yield results, contestant
    for name in ("results", "contestant"):
        sys.modules.pop(name, None)


@pytest.fixture
def keep(bench, tmp_path):
    """Records values of a round: keep("training", "bert", "ours", 1, rate=3.0)."""

    def add(name, row, contestant, number, run="1", **values):
        path = tmp_path / "kept" / f"{name}.jsonl"
        facts = {"machine": MACHINE, "versions": {"python": "3.13.0", "jax": "1.2"}, "load": 0.25}
        line = bench[1].record(name, row, contestant, number, values | facts, kept=path)
        lines = path.read_text().splitlines()
        lines[-1] = json.dumps(line | {"run": run, "time": f"2031-02-0{run}T00:00:00Z", "commit": "abc"})
        path.write_text("\n".join(lines) + "\n")
        return path

    return add


def table_of(text, title):
    """The cells of the table whose third column is `title`, by row and contestant."""
    found, row = {}, ""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| row | contestant | {title} |"))
    heads = [cell.strip() for cell in lines[start].split("|")[1:-1]]
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return found
        cells = dict(zip(heads, (cell.strip() for cell in line.split("|")[1:-1]), strict=True))
        row = cells["row"] or row
        found[row, cells["contestant"]] = cells
    return found


def page_of(bench, path, old=""):
    records, faults = bench[0].read(path.parent)
    assert faults == []
    return bench[0].page(records, old)


def test_medians_spread_and_ratios_are_exact(bench, keep):
    rates = [(300, 90, 110, 40), (900, 100, 130, 50), (600, 80, 120, 60)]
    for number, (ours, eager, compiled, half) in enumerate(rates, 1):
        keep("training", "bert", "ours", number, rate=ours, peak=3 * 2**30, losses=[10.0, 9.0])
        keep("training", "bert", "theirs", number, rate=eager, peak=2**30, losses=[10.5, 9.5])
        keep("training", "bert", "theirs-compiled", number, rate=compiled)
        path = keep("training", "bert", "theirs-bf16", number, rate=half)
    keep("training", "bert", "ours-bf16", 1, rate=25)
    cells = table_of(page_of(bench, path), "tokens a second")
    assert cells["bert", "ours"]["tokens a second"] == "600 (300 to 900)"
    # 600 against the faster of the peers in float32, 120; those in bfloat16 do not count.
    assert cells["bert", "ours"]["times the fastest peer"] == "**5.00**"
    assert cells["bert", "ours-bf16"]["times the fastest peer"] == "0.50"
    assert cells["bert", "theirs-compiled"]["times the fastest peer"] == "-"
    assert (cells["bert", "ours"]["peak memory, GiB"], cells["bert", "ours"]["losses"]) == ("3.00", "10.000 to 9.000")
    assert (cells["bert", "theirs"]["peak memory, GiB"], cells["bert", "theirs-bf16"]["losses"]) == ("1.00", "-")
    assert cells["bert", "ours-bf16"]["rounds"] == "1" and cells["bert", "ours-bf16"]["tokens a second"] == "25.0"
    assert list(cells) == [
        ("bert", name) for name in ("ours", "theirs-compiled", "theirs", "theirs-bf16", "ours-bf16")
    ]  # the fastest first, float32 before the rest


def test_fewer_seconds_are_better_and_each_value_has_a_table(bench, keep):
    keep("finetuning", "minilm", "packed", 1, seconds=2.0, prediction=8.0)
    path = keep("finetuning", "minilm", "Trainer", 1, seconds=6.0, prediction=4.0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(x | {"ours": x["contestant"] == "packed"}) + "\n" for x in lines))
    text = page_of(bench, path)
    assert table_of(text, "seconds")["minilm", "packed"]["times the fastest peer"] == "**3.00**"
    assert table_of(text, "seconds of prediction")["minilm", "packed"]["times the fastest peer"] == "0.50"


def test_rows_without_peers_without_ours_and_of_other_units(bench, keep):
    keep("feeding", "alone", "ours", 1, rate=7.0)
    keep("feeding", "theirs alone", "theirs", 1, rate=7.0)
    keep("feeding", "int8", "ours-int8", 1, rate=6.0, rate_cpu=5.0)
    keep("feeding", "int8", "theirs", 1, rate=4.0, rate_cpu=2.0)
    path = keep("feeding", "shards", "ours", 1, rate=2.5, unit="MB")
    text = page_of(bench, path)
    cells = table_of(text, "tokens a second")
    assert cells["alone", "ours"]["times the fastest peer"] == "-"
    assert cells["theirs alone", "theirs"]["times the fastest peer"] == "-"
    assert cells["int8", "ours-int8"]["times the fastest peer"] == "**1.50 (of float32)**"  # no peer has int8
    assert cells["int8", "ours-int8"]["by CPU"] == "**2.50 (of float32)**"
    assert cells["alone", "ours"]["by CPU"] == "-"
    assert ("shards", "ours") not in cells and table_of(text, "MB a second")["shards", "ours"]["MB a second"] == "2.50"


def test_shares_of_the_best_product_in_the_same_precision(bench, keep):
    for number, rate in enumerate((90e9, 110e9, 100e9), 1):
        keep("peak", "float32", "ours", number, rate=rate, unit="FLOP")
    keep("peak", "float32", "theirs", 1, rate=80e9, unit="FLOP")
    keep("peak", "bfloat16", "ours-bf16", 1, rate=400e9, unit="FLOP")
    keep("training", "bert", "ours", 1, rate=50.0, flops=1e9)
    keep("training", "bert", "ours-bf16", 1, rate=50.0, flops=1e9)
    path = keep("training", "bert", "theirs", 1, rate=40.0)
    cells = table_of(page_of(bench, path), "tokens a second")
    assert [cells["bert", name]["share of the peak"] for name in ("ours", "ours-bf16", "theirs")] == ["50%", "12%", "-"]


def test_the_newest_run_of_a_contestant_counts(bench, keep):
    keep("training", "bert", "ours", 1, run="1", rate=100.0)
    keep("training", "bert", "ours", 2, run="1", rate=100.0)
    keep("training", "bert", "ours", 1, run="2", rate=300.0)
    path = keep("training", "bert", "theirs", 1, run="1", rate=100.0)
    cells = table_of(page_of(bench, path), "tokens a second")
    assert cells["bert", "ours"]["tokens a second"] == "300" and cells["bert", "ours"]["rounds"] == "1"
    assert cells["bert", "ours"]["times the fastest peer"] == "**3.00**"


@pytest.mark.parametrize(
    "line, told",
    [
        ('{"bench": "trai', "Unterminated string starting at at column 11"),
        ("[1]", "not an object"),
        ('{"bench": "training", "row": "bert", "contestant": "ours", "round": 1}', '"values" is null'),
        (
            '{"bench": "b", "row": "r", "contestant": "ours", "round": 1, "machine": {}, "values": {"rate": NaN}}',
            '"rate" is NaN',
        ),
        ('{"cases": {"1x32": {"rate": [1, 1]}}, "bandwidth": [1, 1], "bytes": 1}', "no 'name'"),
    ],
)
def test_a_damaged_line_is_told_in_one_line_and_left_out(bench, keep, line, told):
    path = keep("training", "bert", "ours", 1, rate=100.0)
    with path.open("a") as file:
        file.write(line + "\n")
    keep("training", "bert", "theirs", 1, rate=100.0)
    records, faults = bench[0].read(path.parent)
    assert [record["contestant"] for record in records] == ["ours", "theirs"]
    assert faults == [f"{path} line 2 is no record of a bench ({told}): left out"]


def test_lines_of_the_decoding_bench_are_records(bench, tmp_path):
    line = {
        "name": "ours-bf16", "load": 1.0, "cores": 1, "bytes": 200, "bandwidth": [1000.0, 800.0],
        "cases": {"16x32": {"first": [0.5, 0.25], "rate": [48.0, 32.0], "tokens": []}},
        "versions": "Python 3.13.0, jax 0.12.0.1",
    }  # fmt: skip
    (tmp_path / "decoding.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line) + "\n")
    records, faults = bench[0].read(tmp_path)
    assert faults == [] and [record["round"] for record in records] == [1, 2]
    one = records[0]
    # Weights read 800/200 = 4 times a second for 16 rows: 64 tokens a second would be the floor.
    assert one["values"] == {"rate": 48.0, "rate_cpu": 32.0, "first": 0.5, "floor": 0.5}
    assert (one["row"], one["precision"], one["ours"]) == ("16x32", "bf16", True)
    assert one["versions"] == {"python": "3.13.0", "jax": "0.12.0.1"} and one["machine"]["cores"] == 1


def test_other_machines_other_benches_and_notes_stay(bench, keep):
    path = keep("training", "bert", "ours", 1, rate=100.0)
    old = page_of(bench, path).replace("Abacus", "Slide rule").replace("| 100 |", "| 17 |")
    text = page_of(bench, path, old + "\n# Notes\n\n## By hand\n")
    heads = ["## Slide rule, 2 cores, 8 GiB", "## Abacus, 2 cores, 8 GiB", "## By hand"]
    assert re.findall("^## .*", text, re.M) == heads
    assert text.count("| 17 |") == 1 and text.count("| 100 |") == 1 and text.endswith("\n# Notes\n\n## By hand\n")
    path.unlink()
    path = keep("startup", "import zoo", "ours", 1, seconds=0.5)
    again = page_of(bench, path, text)
    assert again.count("### Training steps (`tests/bench/training.py`)") == 2 and "| 0.500 |" in again
    assert page_of(bench, path, again) == again
    assert "load just before 0.2 to 0.2" in again and "ours: python 3.13.0, jax 1.2." in again


def test_the_command(bench, keep, tmp_path, capsys, monkeypatch):
    out = tmp_path / "RESULTS.md"
    path = keep("training", "bert", "ours", 1, rate=100.0)
    monkeypatch.setattr(sys, "argv", ["results.py", "--kept", str(path.parent), "--out", str(out)])
    bench[0].main()
    assert "### Training steps" in out.read_text()
    path.unlink()
    bench[0].main()
    assert "nothing measured in" in capsys.readouterr().err and "### Training steps" in out.read_text()


def test_a_record_names_machine_versions_and_load(bench, tmp_path):
    line = bench[1].record("b", "r", "theirs-bf16", 2, {"rate": 1.0}, kept=tmp_path / "b.jsonl")
    assert json.loads((tmp_path / "b.jsonl").read_text()) == line
    assert (line["ours"], line["precision"], line["round"]) == (False, "bf16", 2)
    assert line["machine"]["cores"] >= 1 and line["versions"]["python"] and "jax" in line["versions"]
    assert line["load"] >= 0 and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"])
    assert line["values"] == {"rate": 1.0} and not {"machine", "versions", "load"} & line["values"].keys()
