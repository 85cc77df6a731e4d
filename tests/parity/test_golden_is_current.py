"""The golden files are what the reference library gives today."""

import json

import numpy as np
import pytest

from tests.golden.recipe import HERE, error
from tests.parity.regenerate import GOLDEN, golden


def test_every_golden_file_has_a_case():
    assert sorted(path.stem for path in HERE.glob("*.json")) == sorted(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_file(name):
    described, expected = golden(name)
    assert json.loads((HERE / f"{name}.json").read_text()) == json.loads(json.dumps(described))
    with np.load(HERE / f"{name}.npz") as stored:
        assert sorted(stored) == sorted(expected)
        assert max(error(stored[key], expected[key]) for key in expected) < 1e-6
