"""A run goes on over any mesh from a checkpoint of any other: the same numbers, every row once."""

import jax
import numpy as np
import pytest

import zoo
from tests import made_up
from train import loop
from train.config import RunConfig, TrainConfig
from train.data.shards import write_shards
from train.logs import read

MODEL = zoo.ModelConfig(vocab_size=360, embed_dim=16, num_layers=1, num_heads=4, max_positions=24, dropout=0.1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    root = tmp_path_factory.mktemp("elastic")
    write_shards(made_up.documents(), made_up.tokenizer(), root / "data", valid_fraction=0.1, progress=False)
    train = TrainConfig(
        data=str(root / "data"), steps=9, batch_size=8, seq_len=24, learning_rate=1e-2, optimizer="sgd", log_every=3
    )
    loop.run(RunConfig(MODEL, train), root / "alone", quiet=True)
    return train, root


def test_each_part_of_a_run_may_have_a_mesh_of_its_own(alone, tmp_path, monkeypatch):
    train, root = alone
    asked, batch = [], loop.Batches.batch

    def noted(self, step):
        asked.append(step)
        return batch(self, step)

    monkeypatch.setattr(loop.Batches, "batch", noted)
    for last, driver, mesh in ((3, "mesh", "fsdp=8"), (6, "mesh", "data=4,tensor=2"), (7, "jit", ""), (9, "pmap", "")):
        part = RunConfig(MODEL, train.replace(driver=driver, mesh=mesh))
        assert loop.run(part, tmp_path / "run", quiet=True, stop_at=last).step == last
    assert sorted(asked) == list(range(9))  # no row twice, none lost
    ours, theirs = (read(folder / "metrics.jsonl") for folder in (tmp_path / "run", root / "alone"))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == [3, 6, 9, 9]
    for line, other in zip(ours, theirs, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-6) and line["tokens"] == other["tokens"]
    ours, theirs = (zoo.load(str(folder))[1] for folder in (tmp_path / "run", root / "alone"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)
