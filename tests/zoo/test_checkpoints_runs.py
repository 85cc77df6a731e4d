"""Run folders: read without training's code; imported and exported by the commands."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType

import zoo
from zoo.checkpoints import export, load, load_config
from zoo.checkpoints.commands import export_checkpoint, import_checkpoint
from zoo.checkpoints.orbax_quiet import quiet_restore
from zoo.errors import InputError
from zoo.partition import shardings
from zoo.tokenizer import load_tokenizer

MODEL = zoo.create(
    "llama-tiny", vocab_size=11, embed_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, mlp_dim=24, scan=True
)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "is", "eat", "##ing", "."]


def parameters(seed: int):
    draw = np.random.RandomState(seed)
    return jax.tree.map(lambda leaf: jax.numpy.asarray(draw.randn(*leaf.shape), leaf.dtype), MODEL.init_shapes())


def save_step(run: Path, step: int, params) -> None:
    """As training saves: one composite checkpoint a step, of which parameters are one item."""
    with ocp.CheckpointManager(run / "checkpoints") as manager:
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params), meta=ocp.args.JsonSave({"step": step, "rows": 8})
        )
        manager.save(step, args=items)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with steps 3 and 12, the later one with other parameters, and one save that was killed."""
    run = tmp_path_factory.mktemp("runs") / "demo"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"model": MODEL.config.to_dict(), "train": {"steps": 12}}))
    save_step(run, 3, parameters(3))
    save_step(run, 12, parameters(12))
    (run / "checkpoints" / "15.orbax-checkpoint-tmp").mkdir()
    return run


def same(one, other) -> bool:
    return jax.tree.structure(one) == jax.tree.structure(other) and jax.tree.all(
        jax.tree.map(lambda a, b: a.dtype == b.dtype and bool((np.asarray(a) == np.asarray(b)).all()), one, other)
    )


def refusal(path) -> str:
    with pytest.raises(InputError) as error:
        load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def copy_settings(run, to, **changes):
    (to / "checkpoints").mkdir(parents=True)
    config = {"model": MODEL.config.replace(**changes).to_dict()}
    (to / "config.json").write_text(json.dumps(config))
    (to / "checkpoints" / "12").symlink_to(run / "checkpoints" / "12")
    return to


def test_the_last_complete_step_or_the_one_that_is_named(run):
    model, params = load(run)
    assert model == MODEL and same(params, parameters(12)) and load_config(run) == MODEL.config
    assert load_config(run / "checkpoints" / "3") == MODEL.config
    assert same(load(run / "checkpoints" / "3")[1], parameters(3))


def test_on_a_mesh_and_in_another_number_type(run):
    mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    model, params = load(run, mesh=mesh)
    wanted = shardings(mesh, MODEL.init_shapes())
    assert jax.tree.all(jax.tree.map(lambda leaf, to: leaf.sharding == to, params, wanted))
    assert same(params, parameters(12))
    model, params = load(run, dtype="bfloat16")
    assert model.config.dtype == "bfloat16"
    assert same(params, jax.tree.map(lambda leaf: leaf.astype("bfloat16"), parameters(12)))


def test_a_run_that_does_not_fit_its_config(run, tmp_path):
    said = refusal(copy_settings(run, tmp_path / "wide", mlp_dim=25, qk_norm=True))
    assert "missing: blocks/attention/key_norm/scale, blocks/attention/query_norm/scale" in said
    assert "3 wrong shape: blocks/mlp/down/kernel [2, 24, 16] for [2, 25, 16]" in said
    assert "1 unexpected: lm_head/kernel" in refusal(copy_settings(run, tmp_path / "tied", tie_embeddings=True))


def test_runs_that_are_not_whole(run, tmp_path):
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    assert "holds no complete checkpoint yet" in refusal(tmp_path / "new")
    (tmp_path / "new" / "checkpoints" / "1").mkdir()
    assert "config.json: no such file" in refusal(tmp_path / "new")
    (tmp_path / "new" / "config.json").write_text("{")
    assert 'no JSON object with a "model"' in refusal(tmp_path / "new")
    plain = MODEL.config.to_dict()
    plain["embed_dmi"] = plain.pop("embed_dim")
    (tmp_path / "new" / "config.json").write_text(json.dumps({"model": plain}))
    assert 'did you mean "embed_dim"' in refusal(tmp_path / "new")
    (tmp_path / "new" / "config.json").write_text(json.dumps({"model": MODEL.config.to_dict()}))
    assert "holds no parameters" in refusal(tmp_path / "new")


def test_what_fails_beside_an_error_is_not_printed(monkeypatch):
    """Reads that a damaged file stops are many; one is raised, and Python would print the others."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    reads = {}
    for place in ("/lib/orbax/checkpoint/serialization.py", "/lib/mine/serialization.py"):
        exec(compile("async def read(): pass", place, "exec"), found := {})
        reads[place] = found["read"]()
        reads[place].close()
    with pytest.raises(InputError), quiet_restore():
        raise InputError("one line")
    for read in reads.values():
        sys.unraisablehook(SimpleNamespace(exc_value=ValueError("OUT_OF_RANGE"), object=read))
    assert [one.object for one in told] == [reads["/lib/mine/serialization.py"]]


def test_the_commands(run, tmp_path):
    """A run out to a published folder, and that folder in as a run: same parameters, same model."""
    export_checkpoint(str(run), tmp_path / "out")
    import_checkpoint(str(tmp_path / "out"), tmp_path / "back")
    model, params = load(tmp_path / "back")
    assert model.config == MODEL.config.replace(scan=False)
    assert same(params, zoo.unstack_layers(parameters(12), MODEL.config))
    assert sorted(entry.name for entry in (tmp_path / "back").iterdir()) == ["checkpoints", "config.json"]
    with pytest.raises(InputError, match="is not empty"):
        import_checkpoint(str(tmp_path / "out"), tmp_path / "back")
    with pytest.raises(InputError, match="did you mean"):
        import_checkpoint(str(tmp_path / "outt"), tmp_path / "other")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["back", "out"]


def test_the_tokenizer_goes_along(tmp_path):
    model = zoo.create("bert-tiny", vocab_size=11, embed_dim=8, num_layers=1, num_heads=2, mlp_dim=8, max_positions=8)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = load_tokenizer(tmp_path / "words")
    export(model, model.init(jax.random.key(0)), tmp_path / "out", tokenizer=tokenizer)
    assert load_tokenizer(tmp_path / "out") == tokenizer
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] == 0
    import_checkpoint(str(tmp_path / "out"), tmp_path / "run")
    assert load_tokenizer(tmp_path / "run") == tokenizer
    export_checkpoint(str(tmp_path / "run" / "checkpoints" / "0"), tmp_path / "again")
    assert load_tokenizer(tmp_path / "again") == tokenizer
