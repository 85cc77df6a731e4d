"""The search of `train plan`: by formula first, the best few compiled; and the page of plans, from what is kept."""

import dataclasses
import json

import jax
import pytest

from train.plan import page, search
from train.plan.compile import OutOfMemory, compile_on
from train.plan.job import make_job
from train.plan.report import make_plan
from train.plan.search import candidates, search_plan, shortlist
from train.plan.slices import parse_slice
from zoo.errors import InputError

TINY = {"embed_dim": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "mlp_dim": 128,
        "vocab_size": 256}  # fmt: skip


def test_candidates_fit_and_come_in_order():
    job = make_job("llama-7b", parse_slice("v5e:8x8"), batch=256, seq=2048)
    ranked = candidates(job)
    times = [candidate.seconds for candidate in ranked]
    assert times == sorted(times) and len(ranked) > 10
    assert all(candidate.formula.total_memory < job.slice.chip.hbm_bytes for candidate in ranked)
    assert {candidate.job.train.batch_size for candidate in ranked} == {256}
    assert all(candidate.job.slice.chips == 64 for candidate in ranked)
    assert len({str(candidate) for candidate in ranked}) == len(ranked)
    kept = candidates(job, mesh=True, remat=True, accumulate=1)
    assert [(c.job.train.mesh, c.job.model.remat, c.job.train.accumulate) for c in kept] == [("fsdp=64", "full", 1)]


def test_the_shortlist_differs_in_memory():
    ranked = candidates(make_job("llama-7b", parse_slice("v5e:8x8"), batch=256, seq=2048))
    chosen = shortlist(ranked)
    assert chosen[0] is ranked[0] and len(chosen) == 3
    assert len({(c.job.model.remat, c.job.train.accumulate) for c in chosen}) == 3


def test_long_rows_are_split():
    """Fewer rows than chips: the rest of the chips goes to tensor or sequence."""
    ranked = candidates(make_job("llama-7b", parse_slice("v5p:4x4x4"), batch=8, seq=32768, mesh="fsdp=8,sequence=8"))
    assert ranked and all(c.job.mesh_shape.keys() & {"tensor", "sequence"} for c in ranked)


@pytest.fixture(scope="module")
def compiled():
    from train.mesh import MeshDriver, make_mesh

    job = make_job("llama-tiny", parse_slice("v5e:2x4"), batch=8, seq=32, changes=TINY)
    return job, compile_on(job, MeshDriver(make_mesh(job.mesh_shape, jax.devices())))


def test_the_search_compiles_the_best_and_passes_over_what_does_not_fit(monkeypatch, capsys, compiled):
    job, step = compiled
    asked = []

    def compile_step(job, compiler, say):
        say("compiling")
        asked.append(job)
        if len(asked) == 1:
            raise OutOfMemory("does not fit", 2e10)
        return step

    monkeypatch.setattr(search, "compile_step", compile_step)
    said = []
    plan = search_plan(job, "llama-tiny", "cpu", said.append)
    assert len(asked) == 3 and "3 of 3" in said[-1]
    assert [str(a.train.mesh) for a in asked] == [str(c.job.train.mesh) for c in shortlist(candidates(job))]
    shown = capsys.readouterr().out
    assert "ways fit by formula" in shown and "needs 18.6 GiB" in shown
    assert plan.fits and plan.command.startswith("python -m train plan --model llama-tiny --slice v5e:2x4")
    monkeypatch.setattr(search, "candidates", lambda *_, **__: [])
    with pytest.raises(InputError, match="no mesh, remat and micro-batches"):
        search_plan(job, "llama-tiny", "cpu", said.append)


def test_the_page_is_written_from_what_is_kept(tmp_path, monkeypatch, compiled):
    job, step = compiled
    plan = dataclasses.replace(make_plan(job, step), model="llama-7b", slice="v5e:16x16")
    ran = []

    def run(command, **_):
        ran.append(command)
        path = command[command.index("--json") + 1]
        number = 1 if "v5p:4x4x8" in command else 0
        if not number:
            with open(path, "w") as file:
                json.dump(plan.to_dict(1e12), file)
        return page.subprocess.CompletedProcess(command, number, "", "error: too large\n")

    monkeypatch.setattr(page.subprocess, "run", run)
    with pytest.raises(InputError, match="holds no plan"):
        page.plans(out=tmp_path, draw_only=True)
    page.plans(out=tmp_path, models=("llama-7b",), slices=("v5e:16x16", "v5p:4x4x8"))
    assert len(ran) == 1 + search.COMPILED  # the second slice is refused as often as it is tried
    page.plans(out=tmp_path, models=("llama-7b",), slices=("v5e:16x16",))
    assert len(ran) == 1 + search.COMPILED  # what is kept is not compiled again
    text = (tmp_path / "plans.md").read_text()
    assert "| llama-7b | v5e:16x16 | 8 |" in text and plan.command in text
    kept = tmp_path / "plans" / "llama-7b-v5e-16x16.json"
    kept.write_text(json.dumps(dataclasses.replace(plan, sums="bfloat16").to_dict()))
    page.plans(out=tmp_path, draw_only=True)
    assert "| llama-7b* |" in (tmp_path / "plans.md").read_text() and len(ran) == 1 + search.COMPILED
    page.plans(out=tmp_path, models=("llama-7b",), slices=("v5e:16x16",))  # of a step that summed otherwise: again
    assert page.load(kept) == plan and len(ran) == 2 + search.COMPILED
    assert (tmp_path / "plans.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "plans").iterdir()] == ["llama-7b-v5e-16x16.json"]
    with pytest.raises(InputError, match='did you mean "llama-7b"'):
        page.plans(out=tmp_path, models=("llama-7c",))
