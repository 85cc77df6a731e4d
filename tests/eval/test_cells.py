"""A cell comes back as it was written, is found only for its own config, and is never half there."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.experiment.cells import Cell, CellKey, by_key, find, read, read_all, save
from zoo.errors import InputError

KEY = CellKey("movie-sentences", "org/net: small", "pretrained", 400, 2)
CELL = Cell(KEY, {"accuracy": 0.75}, 3.5, (0, 1, 1), {"learning_rate": 1e-3, "length": 64})
LORA = CellKey("movie-sentences", "org/net: small", "pretrained", 400, 2, "lora")


def test_written_and_read(tmp_path):
    path = save(tmp_path / "cells", CELL)
    assert read(path) == CELL
    assert read_all(tmp_path / "cells") == (CELL,)
    assert os.listdir(tmp_path / "cells") == [path.name], "no temporary file stays"
    numpy_cell = Cell(KEY, {"accuracy": np.float32(0.75)}, np.float64(3.5), np.array([0, 1, 1], np.int32), CELL.config)
    assert numpy_cell == CELL
    without = Cell(KEY, {"accuracy": 0.75}, 3.5)
    assert read(save(tmp_path / "cells", without)) == without


@pytest.mark.parametrize(
    "changes",
    [
        {"key": LORA, "cost": {"training_flops": 1.5e12, "training_seconds": 3}, "details": {"c": 10.0}},
        {"predictions": (0.25, -1.0, 3.5), "metrics": {"pearson": 0.5, "mismatched/pearson": 0.25}},
        {"predictions": ((0, 2), (), (1,)), "metrics": {"entity_f1": 0.0}},
        {"predictions": None, "metrics": {}, "failure": "the loss is not finite at step 3 of 9"},
    ],
)
def test_every_kind_of_cell_comes_back(changes, tmp_path):
    cell = Cell(**{**vars(CELL), **changes})
    assert read(save(tmp_path, cell)) == cell
    if cell.predictions is not None:
        ragged = isinstance(cell.predictions[0], tuple)
        arrays = [np.array(row, np.int32) for row in cell.predictions] if ragged else np.array(cell.predictions)
        assert Cell(**{**vars(cell), "predictions": arrays}) == cell


def test_a_file_of_before_there_were_ways_is_read(tmp_path):
    plain = {"key": {"task": "t", "network": "tf-idf", "arm": "tf-idf", "labels": 9, "seed": 1}}
    plain |= {"metrics": {"accuracy": 0.5}, "seconds": 1.0, "predictions": [1, 0], "config": {}}
    (tmp_path / "old.json").write_text(json.dumps(plain))
    assert read_all(tmp_path) == (Cell(CellKey("t", "tf-idf", "baseline", 9, 1), {"accuracy": 0.5}, 1.0, (1, 0)),)


def test_ways_have_files_of_their_own_and_full_has_the_name_it_always_had():
    assert KEY.file_name != LORA.file_name and "_lora_" in LORA.file_name and str(LORA).count("lora") == 1
    assert KEY.file_name == "movie-sentences_org-net-small_pretrained_400_s2_" + KEY.file_name[-13:]


def test_found_for_its_own_config_alone(tmp_path):
    assert find(tmp_path, KEY, CELL.config) is None
    save(tmp_path, CELL)
    assert find(tmp_path, KEY, {"length": 64, "learning_rate": 1e-3}) == CELL
    assert find(tmp_path, KEY, {"length": 128, "learning_rate": 1e-3}) is None
    assert find(tmp_path, CellKey("movie-sentences", "org/net: small", "random", 400, 2), CELL.config) is None


@given(st.tuples(*[st.text(min_size=1, max_size=80)] * 2), st.tuples(*[st.text(min_size=1, max_size=80)] * 2))
def test_file_names_are_safe_and_distinct(one, other):
    names = [CellKey(*pair, "random", 100, 0).file_name for pair in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    for name in names:
        assert name.isascii() and not set(name) & set('/\\: "*?<>|\n') and len(name) < 200


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 100_000, '{"key": {}}', '{"key": {"task": "t"}, "metrics": {}}']
)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json: not a cell's file .*; delete it"):
        read(tmp_path / "a.json")


def test_bad_cells_are_refused():
    with pytest.raises(InputError, match='did you mean "pretrained"'):
        CellKey("t", "n", "pre-trained", 1, 0)
    with pytest.raises(InputError, match="accuracy is nan"):
        Cell(KEY, {"accuracy": float("nan")}, 1.0)
    with pytest.raises(InputError, match="two cells for task movie-sentences"):
        by_key([CELL, CELL])
