"""`python -m train`: from text to a run folder, and one line for each mistake."""

import json

import jax
import pytest

from tests import made_up
from train import cli
from train.__main__ import main
from train.config import RunConfig, TrainConfig
from train.recipes import RECIPES
from zoo.command_line import captured_help
from zoo.registry import PRESETS

SMALL = ["--model-set", "embed_dim=16", "num_layers=1", "--batch-size", "4", "--seq-len", "16", "--warmup-steps", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in made_up.documents()))
    words = ["prepare", str(folder / "texts.jsonl"), "--out", str(folder / "data"), "--vocab-size", "360"]
    assert main([*words, "--valid-fraction", "0.1"]) == 0
    return folder / "data"


KEEP_COMPILED = cli.keep_compiled


@pytest.fixture(autouse=True)
def keep_cache_setting(monkeypatch):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)


def test_a_recipe_from_text_to_run_folder_and_again_from_its_config(data, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["pretrain", run, "--recipe", "demo-gpt", "--data", str(data), *SMALL, "--steps", "3", "--quiet"]) == 0
    assert f"run folder: {run} (step 3)" in capsys.readouterr().out
    config = RunConfig.load(run)
    assert config.model.vocab_size == 360 and config.model.embed_dim == 16 and config.model.head == "lm"
    assert config.train == RECIPES["demo-gpt"].train.replace(
        data=str(data), steps=3, batch_size=4, seq_len=16, warmup_steps=1
    )
    # The folder alone says how it goes on; another one starts from its config.
    assert main(["pretrain", run, "--quiet"]) == 0
    assert "(step 3)" in capsys.readouterr().out
    other = str(tmp_path / "other")
    words = ["pretrain", other, "--config", f"{run}/config.json", "--seed", "1", "--show-config"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["train"]["seed"] == 1
    assert not (tmp_path / "other").exists()
    assert main(["pretrain", run, "--steps", "4"]) == 2
    assert "train.steps was 3, now 4" in capsys.readouterr().err


GPT = ["pretrain", "r", "--model", "gpt-tiny", "--data", "D"]
MISTAKES = [
    (["pretrain", "r"], "r is no run yet: say --model, --recipe or --config"),
    (["pretrain", "r", "--model", "bert-tiny"], "no data to train on: add --data FOLDER, as python -m train prepare"),
    (["pretrain", "r", "--model", "bert-tny"], 'nor a folder; did you mean "bert-tiny"?'),
    (["pretrain", "r", "--model", "bert-tiny", "--model-set", "num_layer=1"], 'did you mean "num_layers"?'),
    (["pretrain", "TEXT", "--model", "bert-tiny", "--data", "D"], "is a file, where a folder is needed"),
    (["pretrain", "TEXT/r", "--recipe", "demo-gpt"], "is a file, where a folder is needed for "),
    (["pretrain"], 'missing RUN_FOLDER for "train pretrain"; see "python -m train pretrain --help"'),
    (["pretrain", "r", "--model", "bert-tny", "--data", "D"], 'nor a folder; did you mean "bert-tiny"?'),
    (["pretrain", "r", "--recipe", "demo-brt"], 'there is no recipe "demo-brt"; did you mean "demo-bert"?'),
    (["pretrain", "r", "--model", "gpt-tiny", "--data", "nowhere"], "no finished shards in "),
    ([*GPT, "--model-set", "num_layer=1"], 'ModelConfig has no field "num_layer"; did you mean "num_layers"?'),
    ([*GPT, "--model-set", "layers"], '--model-set "layers" is not of the form field=value'),
    ([*GPT, "--objective", "masked_lm"], 'head "masked_lm" needs visibility "full", not "causal"'),
    ([*GPT, "--steps", "0"], "steps is 0; it must be 1 or more"),
    ([*GPT, "--warmup-steps", "9999"], "--warmup-steps is 9999 but the run has 1000 steps"),
    ([*GPT, "--seq-len", "4096"], "position table ends at 512"),
    ([*GPT, "--driver", "mesh", "--mesh", "dta=8"], 'mesh has no axis "dta"; did you mean "data"?'),
    (
        [*GPT, "--driver", "mesh", "--mesh", "fsdp=2,sequence=4", "--seq-len", "30"],
        "mesh axis sequence=4 does not divide --seq-len 30; the nearest sizes that do: 1, 2; the nearest lengths for "
        "4: 28, 32\n",
    ),
    (
        ["pretrain", "gs://bucket/runs/a", "--model", "gpt-tiny", "--data", "D"],
        "gs://bucket/runs/a is a URL, and a run folder must lie in a folder that all hosts share: NFS (such as",
    ),
    ([*GPT[:-1], "gs://bucket/data"], "gs://bucket/data is a URL, and token shards must lie in a folder"),
    (["prepare", "TEXT", "--out", "gs://b/x"], "gs://b/x is a URL, and token shards must lie in a folder"),
    ([*GPT, "--batch-size", "100000"], "--batch-size 100000 is more than the "),
    (
        ["pretrain", "r", "--model", "bert-tiny", "--data", "D", "--objective", "next_token"],
        'did you mean objective "masked_lm"?',
    ),
    (["pretrain", "r", "--model", "gpt-tiny", "--data", "TEXT"], "is a file, not a folder of shards; make"),
    ([*GPT, "--next-sentence", "True"], "--next-sentence is a part of"),
    (["pretrain", "D", "--model", "gpt-tiny", "--data", "D"], "holds token shards, and no run; take another folder"),
    (["pretrain", "r", "--config", "no.json"], "no config at no.json"),
    (["pretrain", "r", "--config", "no.json", "--recipe", "demo-gpt"], "--config and --recipe are both given"),
    (["pretrain", "r", "--lerning-rate", "1"], 'unknown option --lerning-rate for "train pretrain"; did you mean'),
    (["prepare", "nowhere.txt"], '"nowhere.txt" is neither a corpus nor a file or folder'),
    (["prepare"], "no text is given: name a corpus (encyclopedia, shakespeare), or the path of a file or folder"),
    (["prepare", "TEXT"], 'missing --out for "train prepare": the shard folder to make, such as --out data/mine'),
    (["prepare", "TEXT", "--out", "TEXT"], "is a file, where a folder is needed"),
    (["prepare", "TEXT", "--out", "TEXT/x"], "is a file, where a folder is needed for "),
    (["prepare", "TEXT", "--out", "x"], " characters teaches fewer than 8,192 pieces; pass --vocab-size "),
    (["prepare", "TEXT", "--out", "x", "--vocab-size", "9"], "a vocabulary of 9 pieces cannot hold"),
    (["prepare", "TEXT", "--out", "x", "--vocab-size", "0"], "--vocab-size is 0; it must be 1 or more"),
    (["prepare", "TEXT", "--out", "x", "--valid-fraction", "1"], "--valid-fraction is 1.0; it must be from 0 to"),
    (["prepare", "TEXT", "--out", "x", "--min-valid", "-1"], "--min-valid is -1; it must be 0, to set none aside, or"),
    (["prepare", "TEXT", "--out", "x", "--text-field", "txt"], 'field "txt" (--text-field); did you mean "text"?'),
    (["prepare", "TEXT", "--out", "x", "--tokenizer", "D", "--min-valid", "999"], "or pass --min-valid 0 to set none"),
    (["prepare", "nowhere.txt", "--out", "x"], '"nowhere.txt" is neither a corpus nor a file or folder'),
    ([*GPT, "--driver", "gpu"], '--driver of "train pretrain" cannot be "gpu"; one of jit, mesh, pmap\n'),
    (["pretain"], 'unknown subcommand "pretain" for "train"; did you mean "pretrain"?'),
]


@pytest.mark.parametrize("words,line", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(data, tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    text = str(data.parent / "texts.jsonl")
    meant = {"D": str(data), "TEXT": text, "TEXT/r": f"{text}/r", "TEXT/x": f"{text}/x"}
    assert main([meant.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert line in error and error.startswith("error: ") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_objective_follows_the_model(data, tmp_path, capsys):
    for preset, objective, head in (("bert-tiny", "masked_lm", "masked_lm"), ("llama-tiny", "next_token", "lm")):
        assert main(["pretrain", str(tmp_path), "--model", preset, "--data", str(data), "--show-config"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["train"]["objective"], shown["model"]["head"]) == (objective, head)

    words = ["pretrain", str(tmp_path), "--model", "bert-tiny", "--data", str(data), "--show-config"]
    assert main([*words, "--next-sentence", "True", "--whole-words", "True"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["train"]["next_sentence"] and shown["model"]["next_sentence"]
    assert "by the model: masked_lm where it sees both ways" in " ".join(captured_help(cli.Pretrain, "").split())


FOREIGN = {
    "published": ({"config.json": '{"model_type": "gpt2"}', "tokenizer/vocab.txt": "a"}, "a published checkpoint"),
    "imported": ({"config.json": '{"model": {}}', "checkpoints/0/params/x": ""}, "an imported checkpoint"),
    "trained": ({"config.json": '{"model": {}, "train": {}}', "tokenizer/vocab.txt": "a"}, "a training run"),
    "both": ({"config.json": '{"model_type": "gpt2"}', "checkpoints/1/params/x": ""}, ""),
    "mine": ({"thesis.txt": ""}, "thesis.txt"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_folders_of_other_things_stay_as_they_are(name, data, tmp_path, capsys):
    files, what = FOREIGN[name]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    commands = []
    if name != "trained":
        commands.append(["pretrain", str(tmp_path), "--model", "gpt-tiny", "--data", str(data), *SMALL])
    if name != "mine":
        prepare = ["prepare", str(data.parent / "texts.jsonl"), "--out", str(tmp_path), "--vocab-size", "360"]
        commands += [prepare, [*prepare, "--overwrite"]]
    for words in commands:
        assert main(words) == 2
        said = capsys.readouterr()
        assert (f"holds {what}" in said.err or not what) and said.err.count("\n") == 1 and said.out == ""
        assert sorted(tmp_path.rglob("*")) == before
        assert all((tmp_path / file).read_text() == text for file, text in files.items())


def test_prepare_says_nothing_before_its_error(data, tmp_path, capsys):
    words = ["prepare", str(data.parent / "texts.jsonl"), "--out", str(tmp_path / "x"), "--vocab-size", "-1"]
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: --vocab-size is -1; it must be 1 or more")


def test_words_become_fields():
    found = cli.model_fields(("num_layers=4", "dropout=0.1", "scan=True", "positions=rotary", "rotary_dim=None"))
    assert found == {"num_layers": 4, "dropout": 0.1, "scan": True, "positions": "rotary", "rotary_dim": None}


def test_the_help_explains_every_field_and_gives_defaults():
    text = captured_help(cli.Pretrain, "")
    for name in TrainConfig.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
    assert "{None}" not in text and "(default: 0.001)" in text


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_say_their_command_cost_and_number(name):
    recipe = RECIPES[name]
    assert recipe.name == name and recipe.preset in PRESETS and recipe.cost and recipe.expected
    assert f"--recipe {name}" in recipe.command
    PRESETS[recipe.preset].replace(**recipe.model)


def test_doctor(capsys):
    assert main(["doctor", "--bench"]) == 0
    out = capsys.readouterr().out
    assert "\nbench: LLaMA of " in out and "\nmeasured: " in out
    assert "planned: nothing, for cpu is not in the table" in out
    assert f"jax {jax.__version__}" in out and "test training on 8 devices: loss 4." in out


def test_compiled_programs_are_kept_small_ones_too_unless_jax_was_told_otherwise(monkeypatch, tmp_path):
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("ONEBLOCK_CACHE", str(tmp_path))
    try:
        jax.config.update(names[0], None)
        jax.config.update(names[1], 1.0)
        monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")
        KEEP_COMPILED()
        assert [getattr(jax.config, name) for name in names] == [str(tmp_path / "jax"), 1.0]
        monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
        jax.config.update(names[0], str(tmp_path / "mine"))
        KEEP_COMPILED()
        assert [getattr(jax.config, name) for name in names] == [str(tmp_path / "mine"), 0.0]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
