"""Mesh shapes x families x drivers x stacks x remat x micro-batches, pairwise: one device's loss and parameters."""

import functools
import itertools

import pytest

from tests.train.parallel import FAMILIES, MESHES, PLACES, REMATS, assert_equal_runs, cases, trained

CASES = cases(PLACES)


@functools.cache
def one_device(family):
    return trained(family)


def test_each_value_meets_each_value_of_the_other_factors():
    values = [set(column) for column in zip(*CASES, strict=True)]
    assert len(values[0]) == len(FAMILIES) and values[2] == {"", *MESHES} and values[5] == set(REMATS)
    for a, b in itertools.combinations(range(6), 2):
        if {a, b} != {1, 2}:  # pmap has no mesh
            assert {(case[a], case[b]) for case in CASES} == set(itertools.product(values[a], values[b]))


@pytest.mark.parametrize("family,driver,mesh,accumulate,scan,remat", CASES)
def test_a_mesh_changes_no_number(family, driver, mesh, accumulate, scan, remat):
    found = trained(family, driver, mesh, accumulate, scan=scan, remat=remat)
    assert_equal_runs(found, one_device(family))
