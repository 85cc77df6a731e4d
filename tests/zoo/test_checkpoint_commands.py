"""import, export and show say what they did; what is empty or impossible is refused in one line."""

import signal

import jax
import pytest

import zoo
from tests import made_up
from zoo import cli
from zoo.checkpoints import export, load, load_config
from zoo.checkpoints.belongings import tokenizer_of, trained_with
from zoo.checkpoints.commands import export_checkpoint, import_checkpoint
from zoo.checkpoints.run_folder import save
from zoo.command_line import run
from zoo.errors import InputError
from zoo.tokenizer import load_tokenizer

MODEL = zoo.create(
    "llama-tiny", vocab_size=360, embed_dim=8, num_layers=1, num_heads=2, num_kv_heads=1, mlp_dim=8, max_positions=16
)


@pytest.fixture
def folder(tmp_path):
    export(MODEL, MODEL.init(jax.random.key(0)), tmp_path / "model", tokenizer=made_up.tokenizer())
    return tmp_path / "model"


def zoo_command(*words) -> int:
    return run("zoo", cli.SUBCOMMANDS, [str(word) for word in words])


def test_they_tell_what_they_made(folder, tmp_path, capsys):
    count = sum(leaf.size for leaf in jax.tree.leaves(MODEL.init_shapes()))
    assert zoo_command("import", folder, tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert said.startswith(
        f"imported {folder} -> {tmp_path / 'run'}\nllama, {count:,} parameters, tokenizer of 360 pieces"
    )
    assert zoo_command("export", tmp_path / "run", tmp_path / "out", "--max-shard-size", "20KB") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"exported {tmp_path / 'run'} -> {tmp_path / 'out'}\n") and " files, 0.6 MB" in said
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    assert tokenizer_of(tmp_path / "run" / "checkpoints" / "0") == made_up.tokenizer()
    assert trained_with(tmp_path / "run") is None
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), load(folder)[1], load(tmp_path / "out")[1]))


def test_a_gguf_file_goes_in_and_out(tmp_path, capsys):
    made_up.gguf(tmp_path / "x.gguf", "Q8_0")
    import_checkpoint(str(tmp_path / "x.gguf"), tmp_path / "run")
    export_checkpoint(str(tmp_path / "run"), tmp_path / "out", dtype="float16")
    assert load_config(tmp_path / "out") == load_config(tmp_path / "x.gguf")
    assert load_tokenizer(tmp_path / "out").chat_template == made_up.TEMPLATE
    assert zoo_command("show", tmp_path / "x.gguf") == 0
    assert "parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, said",
    [
        (("show", ""), "the name is empty"),
        (("show", " "), "the name is empty"),
        (("show", "gpt2", "--seq-len", "1025"), "the model has learned 1024 positions"),
        (("show", "llama3-8b", "--seq-len", "0"), "it must be 1 or more"),
        (("import", "", "out"), "the path is empty"),
        (("import", "gpt2", ""), "the folder to make has no name"),
        (("export", "", "out"), "the path is empty"),
        (("export", "x", "out", "--max-shard-size", "5 gallons"), "give bytes, or a size such as 5GB"),
        (("check", ""), "the path is empty"),
        (("generate", "", "x"), "the path is empty"),
    ],
)
def test_what_cannot_be(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert zoo_command(*words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_rotary_models_are_shown_at_any_length(capsys):
    assert zoo_command("show", "llama3-8b", "--seq-len", "200000") == 0


def test_help_has_examples(capsys):
    for name in ("import", "export", "check"):
        assert zoo_command(name, "--help") == 0
        assert f"python -m zoo {name} " in capsys.readouterr().out


def test_an_empty_path_of_a_tokenizer():
    with pytest.raises(InputError, match="is empty"):
        load_tokenizer("")


def test_a_tokenizer_of_another_program_is_left_out_and_told(folder, tmp_path, capsys):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    (folder / "vocab.txt").write_text("[UNK]\nC\nO\n(\n")
    for words in (("import", folder, tmp_path / "run"), ("export", folder, tmp_path / "out")):
        assert zoo_command(*words) == 0
        told = capsys.readouterr()
        assert "parameters, no tokenizer; " in told.out
        assert told.err.startswith("without its tokenizer: ") and told.err.count("\n") == 1
    assert tokenizer_of(tmp_path / "run") is None


@pytest.mark.parametrize(
    "name, changes, said",
    [
        ("bert-tiny", {}, 'have no read-out of the bare token table: this one comes back with head "none"'),
        ("llama-tiny", dict(head="classifier", num_labels=2, pooling="last", classifier_bias=False, pad=False),
         "no pad_token_id: transformers classifies single rows alone until config.pad_token_id is set"),
        ("llama-tiny", dict(head="classifier", num_labels=2, pooling="last", classifier_bias=False), ""),
        ("llama-tiny", {}, ""),
    ],
    ids=["bert", "classifier", "classifier-with-padding", "llama"],
)  # fmt: skip
def test_export_says_what_its_folder_cannot(name, changes, said, tmp_path, capsys):
    padded = changes.pop("pad", True)
    model = zoo.create(name, vocab_size=360, embed_dim=8, num_heads=2, num_kv_heads=2, mlp_dim=8, **changes)
    tokenizer = made_up.tokenizer() if padded and name != "bert-tiny" else None
    (tmp_path / "run").mkdir()
    save(model, model.init(jax.random.key(0)), tmp_path / "run", tokenizer)
    assert zoo_command("export", tmp_path / "run", tmp_path / "out") == 0
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == bool(said), told


def test_export_looks_at_its_folder_before_it_reads_weights(folder, tmp_path, monkeypatch, capsys):
    def never(path):
        raise AssertionError("weights were read")

    monkeypatch.setattr("zoo.checkpoints.commands.load", never)
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("")
    for place, more, said in (
        ("file", (), "is a file"),
        ("file/out", (), "is a file, where a folder is needed"),
        ("full", (), "is not empty; name another folder"),
        ("full", ("--overwrite",), "holds no config.json"),
    ):
        assert zoo_command("export", folder, tmp_path / place, *more) == 2
        assert said in capsys.readouterr().err


def files_of(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words, said",
    [
        (("export", "run", "run"), "is the source itself"),
        (("import", "model", "model"), "is the source itself"),
        (("import", "model", "link"), "is the source itself"),
        (("export", "run/checkpoints/0", "run"), "is the source itself"),
        (("export", "run/checkpoints/0", "run/checkpoints/1"), "lies in the source"),
        (("export", "run", "run/out"), "lies in the source"),
        (("export", "run", "PARENT"), "holds the source"),
        (("import", "x.gguf", "PARENT"), "holds the source"),
        (("export", "model", "run"), "holds an imported checkpoint, not one that export wrote"),
        (("export", "model", "trained"), "holds a training run"),
        (("import", "model", "trained"), "holds a training run"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_no_source_and_no_run_is_written_over(words, said, more, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    import_checkpoint("model", tmp_path / "run")
    (tmp_path / "link").symlink_to("model")
    (tmp_path / "x.gguf").write_text("")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "config.json").write_text('{"model": {}, "train": {}}')
    (tmp_path / "trained" / "metrics.jsonl").write_text("")
    before = files_of(tmp_path)
    capsys.readouterr()
    assert zoo_command(*(tmp_path if word == "PARENT" else word for word in words), *more) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and (said in error or (not more and "is not empty" in error))
    assert files_of(tmp_path) == before


def test_an_imported_checkpoint_is_imported_anew(folder, tmp_path):
    import_checkpoint(str(folder), tmp_path / "run")
    (tmp_path / "run" / "tokenizer" / "old").write_text("")
    import_checkpoint(str(folder), tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "tokenizer" / "old").exists()


def test_a_step_that_is_not_there_names_those_that_are(folder, tmp_path, capsys):
    import_checkpoint(str(folder), tmp_path / "run")
    capsys.readouterr()
    assert zoo_command("export", tmp_path / "run" / "checkpoints" / "7", tmp_path / "out") == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'run'} has no checkpoint of step 7; it has those of 0\n"


def test_show_says_nothing_before_its_error(capsys):
    assert zoo_command("show", "gpt2", "--seq-len", "-5") == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "number, code, said", [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_stop_while_orbax_writes_leaves_nothing(number, code, said, folder, tmp_path, monkeypatch, capsys):
    import orbax.checkpoint as ocp

    begin = ocp.StandardCheckpointer.save

    def save(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        signal.raise_signal(number)  # its writer is at work in other threads

    monkeypatch.setattr(ocp.StandardCheckpointer, "save", save)
    before = signal.getsignal(number)
    assert zoo_command("import", folder, tmp_path / "run") == code
    assert capsys.readouterr() == ("", f"{said}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and signal.getsignal(number) == before


def test_a_full_disk_under_orbax_is_one_line(folder, tmp_path, monkeypatch, capsys):
    import orbax.checkpoint as ocp

    def fail(self, *args, **kwargs):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing local file: No space left on device [source locations]")

    monkeypatch.setattr(ocp.StandardCheckpointer, "save", fail)
    assert zoo_command("import", folder, tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: no space left on the disk at {tmp_path / 'run'}") and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
