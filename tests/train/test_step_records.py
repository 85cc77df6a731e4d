"""Steps of which a part is missing, empty or of another shape: one line says which, and on what the run goes on."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from tests.train.test_checkpoint import FILES, MAKE, meta
from train import step_records
from train.checkpoint import Checkpoints, make_folder
from train.mesh import make_driver
from zoo.errors import InputError

GONE, EMPTY = object(), b""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two whole steps, 1 and 2: (folder, shapes)."""
    folder, driver = tmp_path_factory.mktemp("saved"), make_driver("jit")
    checkpoints, state = Checkpoints(folder), driver.init(MAKE)
    for step in (1, 2):
        checkpoints.save(state.replace(step=jnp.int32(step)), meta(step), FILES, 1.0)
    checkpoints.close()
    return folder, driver.abstract(MAKE)


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved[0], tmp_path / "checkpoints"))


def change(path, value):
    if value is GONE:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


def refusal(folder, abstract):
    """What opening the folder, or else restoring its newest step, says."""
    with pytest.raises(InputError) as caught:
        checkpoints = Checkpoints(folder)
        try:
            checkpoints.restore(abstract)
        finally:
            checkpoints.close()
    line = str(caught.value)
    assert "\n" not in line and "Error:" not in line.replace("KeyError:", "")
    return line


TABLES = ("params/_METADATA", "state/_METADATA", "meta/metadata")


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in TABLES for value in (GONE, EMPTY, b"{", [], "x", {}, b"[" * 100_000)]
    + [(name, {"tree_metadata": tree}) for name in TABLES[:2] for tree in ([], {"a": 5})]
    + [("metrics/metrics", value) for value in (EMPTY, [], {}, None, {"valid_loss": "x"}, {"valid_loss": True})]
    + [("_CHECKPOINT_METADATA", value) for value in ([], None)]
    + [(name, GONE) for name in ("params", "state", "meta")],
)  # fmt: skip
def test_a_record_that_cannot_be_used_is_damage_with_a_way_on(saved, folder, name, value):
    """Of a wrong shape it gave tracebacks, "not known", or no checkpoint any more after hours."""
    change(folder / "2" / name, value)
    line = refusal(folder, saved[1])
    assert f": its files are damaged or missing; move {folder / '2'} elsewhere, and the run goes on from step 1" in line
    assert line.startswith(str(folder / "2")) and "start_from" not in line and not line.endswith("(0)"), line
    if value not in (GONE, {}):
        return
    (folder / "2").rename(folder.parent / "2")
    checkpoints = Checkpoints(folder)
    state, _ = checkpoints.restore(saved[1])
    checkpoints.save(state.replace(step=jnp.int32(3)), meta(3), FILES)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 3]
    checkpoints.close()


@pytest.mark.parametrize(
    "changes",
    [{name: GONE} for name in ("format", "config", "data", "step", "ledger")]
    + [{"format": 1}, {"config": []}, {"data": 1}, {"step": "2"}, {"step": 1}, {"step": True}, {"ledger": "x"}]
    + [{"ledger": {}}, {"ledger": {"tokens": "1", "sums": {}}}, {"ledger": {"tokens": 1, "sums": []}}]
    + [{"ledger": {"tokens": 1, "sums": {"loss": pair}}} for pair in (1.0, [1.0], ["a", 1.0])]
    + [{"valid": 1}, {"rows": {}}, {"owed": "no"}],
)
def test_a_field_that_is_missing_or_of_another_kind_is_damage(folder, changes):
    path = folder / "2" / "meta" / "metadata"
    about = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in about.items() if value is not GONE}))
    with pytest.raises(InputError, match="2: its files are damaged or missing; move .*/2 elsewhere, .* from step 1"):
        step_records.read_meta(folder / "2")


def test_what_later_versions_added_may_be_missing_and_another_format_is_no_damage(folder):
    path = folder / "2" / "meta" / "metadata"
    about = json.loads(path.read_text())
    assert not {"valid", "rows", "owed"} & set(about) and step_records.read_meta(folder / "2") == about
    path.write_text(json.dumps(about | {"valid": "v", "rows": "r", "owed": True, "more": 1}))
    assert step_records.read_meta(folder / "2")["owed"] is True
    path.write_text(json.dumps(about | {"format": "oneblock-run-2"}))
    with pytest.raises(InputError, match='is of the format "oneblock-run-2", and this version reads') as caught:
        step_records.read_meta(folder / "2")
    assert "damaged" not in str(caught.value)


def test_parameters_alone_are_a_start_only_where_they_are_whole_and_nothing_else_is_there(saved, folder):
    change(folder / "2" / "state", GONE)
    assert "goes on from step 1 " in refusal(folder, saved[1])
    change(folder / "1", GONE)
    line = refusal(folder, saved[1])
    assert line == f"{folder / '2'} holds parameters but no training state; start a new run with start_from"
    change(folder / "2" / "params" / "_METADATA", GONE)
    assert f"move {folder / '2'} elsewhere, and the run begins anew" in refusal(folder, saved[1])


def test_an_empty_folder_of_a_step_is_not_one_of_parameters(saved, folder):
    (folder / "7").mkdir()
    assert f"move {folder / '7'} elsewhere, and the run goes on from step 2 " in refusal(folder, saved[1])


def test_what_a_kill_left_under_a_temporary_name_stops_no_restart(saved, folder):
    half = folder / "3.orbax-checkpoint-tmp"
    (half / "metrics").mkdir(parents=True)
    (half / "metrics" / "metrics").write_text("{")
    make_folder(folder)
    checkpoints = Checkpoints(folder)
    assert int(checkpoints.restore(saved[1])[0].step) == 2 and not half.exists()
    checkpoints.close()


def test_what_orbax_makes_do_without_is_no_damage(saved, folder):
    for name, value in (("_CHECKPOINT_METADATA", b"{"), ("_CHECKPOINT_METADATA", EMPTY), ("metrics", GONE)):
        change(folder / "2" / name, value)
    checkpoints = Checkpoints(folder)
    assert int(checkpoints.restore(saved[1])[0].step) == 2
    checkpoints.close()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(InputError, match="checkpoints is a file, where the folder of checkpoints must lie"):
        make_folder(tmp_path / "checkpoints")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="link is no folder, where"):
        make_folder(tmp_path / "link")
