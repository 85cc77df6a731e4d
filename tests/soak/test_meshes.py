"""All mesh shapes x families x drivers against one device; stack, micro-batches and remat take turns: `make soak`.

About a quarter of an hour on 2 quiet cores. ONEBLOCK_SOAK_MESHES=n tries n of them, drawn evenly.
"""

import functools
import os

import pytest

from tests.train.parallel import PLACES, assert_equal_runs, cases, trained

MORE = (
    "fsdp=4,tensor=2", "data=4,tensor=2", "data=2,fsdp=4", "data=2,sequence=4", "slice=2,tensor=2,sequence=2",
    "data=2,tensor=4", "auto",
)  # fmt: skip
CASES = cases([*PLACES, *(("mesh", mesh) for mesh in MORE)])
WANTED = int(os.environ.get("ONEBLOCK_SOAK_MESHES", len(CASES)))


@functools.cache
def one_device(family):
    return trained(family)


@pytest.mark.parametrize("family,driver,mesh,accumulate,scan,remat", CASES[:: max(1, len(CASES) // WANTED)])
def test_a_mesh_changes_no_number(family, driver, mesh, accumulate, scan, remat):
    found = trained(family, driver, mesh, accumulate, scan=scan, remat=remat)
    assert_equal_runs(found, one_device(family))
