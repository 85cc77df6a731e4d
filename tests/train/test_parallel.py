"""Mesh shapes x families x drivers x stacks x remat, pairwise: each gives one device's loss and parameters."""

import functools

import pytest

from tests.train.parallel import FAMILIES, MESHES, REMATS, assert_equal_runs, trained

# Each mesh once; each family, remat, stack and number of micro-batches several times, with different company.
CASES = [
    # family, driver, mesh, micro-batches, scan, remat
    ("llama", "mesh", "fsdp=8", 2, True, "full"),
    ("llama", "mesh", "fsdp=2,tensor=4", 1, True, "minimal"),
    ("bert", "mesh", "slice=2,data=2,fsdp=2", 2, True, "dots"),
    ("bert", "mesh", "fsdp=2,sequence=4", 1, False, "full"),
    ("gpt2", "mesh", "data=8", 1, True, "offload"),
    ("gpt2", "mesh", "fsdp=2,tensor=2,sequence=2", 4, True, "none"),
    ("mixtral", "mesh", "slice=2,fsdp=2,tensor=2", 2, False, "minimal"),
    ("vit", "mesh", "data=2,fsdp=2,tensor=2", 1, True, "none"),
    ("llama", "mesh", "data=2,tensor=2,sequence=2", 2, False, "dots"),
    ("mixtral", "pmap", "", 2, True, "full"),
    ("vit", "pmap", "", 1, False, "dots"),
]


@functools.cache
def one_device(family):
    return trained(family)


def test_the_list_reaches_everything():
    assert {mesh for _, _, mesh, *_ in CASES if mesh} == set(MESHES)
    assert {case[0] for case in CASES} == set(FAMILIES)
    assert {case[5] for case in CASES} == set(REMATS)
    assert {(case[4], case[3] > 1) for case in CASES} == {(a, b) for a in (True, False) for b in (True, False)}


@pytest.mark.parametrize("family,driver,mesh,accumulate,scan,remat", CASES)
def test_a_mesh_changes_no_number(family, driver, mesh, accumulate, scan, remat):
    found = trained(family, driver, mesh, accumulate, scan=scan, remat=remat)
    assert_equal_runs(found, one_device(family))
