"""Checkpoints of a run: one atomic Orbax composite a step, written while training goes on.

    checkpoints/<step>/params      the model's nested dict, float32           all that zoo.load reads
                       state       step, opt_state, key                       the rest of the TrainState
                       meta        JSON: format, config, position in the data, fingerprint of the tokenizer, open sums
                       tokenizer   JSON: file name -> base64 of its bytes
                       metrics     JSON: valid_loss, by which the best are kept

A step's folder is written under a temporary name and renamed when whole, so a kill leaves the last complete step to be
found; what it left is cleared away when the run is continued. Arrays keep global shapes: any driver and any mesh reads
what another wrote.
"""

import base64
import contextlib
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

from train.peer_lost import raise_lost
from train.state import TrainState
from train.step_records import FORMAT, read_meta, remedy, require_records
from zoo.checkpoints.orbax_quiet import is_full, quiet_logs, quiet_restore
from zoo.checkpoints.run_folder import check_shapes, restore_arrays, step_folders, stored_shapes
from zoo.checkpoints.unreadable import unreadable
from zoo.errors import InputError, TryAgain, passes

# Seconds in which all processes have to have written a step. Whoever is lost meanwhile is missed by the heartbeats, so
# this only bounds a store that is too slow; Orbax's own 20 minutes would end large saves again and again.
SAVE_WITHIN = 6 * 3600


class Checkpoints:
    """The checkpoints in one folder.

    Args:
        folder: made if missing; by custom `checkpoints` in a run folder.
        keep_last: the newest n are kept (and the one being written).
        keep_best: and the n of the lowest validation loss.
        keep_every: and every step that k divides; 0 for none.
    """

    def __init__(self, folder: str | Path, *, keep_last: int = 2, keep_best: int = 1, keep_every: int = 0):
        import orbax.checkpoint as ocp
        from orbax.checkpoint import checkpoint_managers as managers

        quiet_logs()
        self._quiet = contextlib.ExitStack()
        self._quiet.enter_context(quiet_restore())  # its writers work on between two calls
        policies = [managers.LatestN(keep_last)]
        if keep_best:
            policies.append(managers.BestN(get_metric_fn=_valid_loss, reverse=True, n=keep_best))
        if keep_every:
            policies.append(managers.EveryNSteps(keep_every))
        self.folder = Path(folder).absolute()
        self._ocp, self._disk = ocp, _disk(self.folder)
        options = ocp.CheckpointManagerOptions(
            best_fn=_valid_loss,
            best_mode="min",
            save_decision_policy=managers.FixedIntervalPolicy(1),
            preservation_policy=managers.AnyPreservationPolicy(policies),
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            async_options=ocp.AsyncOptions(timeout_secs=SAVE_WITHIN),
            create=False,
        )
        make_folder(self.folder)
        try:
            self._manager = ocp.CheckpointManager(self.folder, options=options)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        except ValueError as error:
            raise_lost(error)
            mend = "move the newest step out of it to go on from the one before"
            raise unreadable(self.folder, error, mend) from error

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """All complete steps, ascending."""
        return sorted(self._manager.all_steps())

    def settle(self, step: int | None, seconds: float = 60.0) -> None:
        """Returns when the newest step here is that of the first process: a share shows new files late.

        Raises:
            TryAgain: it does not become so.
        """
        until = time.monotonic() + seconds
        while self.latest() != step:
            if time.monotonic() > until:
                raise TryAgain(
                    f"the newest checkpoint in {self.folder} is that of step {self.latest()} here and {step} on "
                    "process 0: see whether all processes share the folder"
                )
            time.sleep(0.2)
            self._manager.reload()

    def save(
        self,
        state: TrainState,
        meta: dict[str, Any],
        tokenizer_files: dict[str, bytes],
        valid_loss: float | None = None,
    ) -> int:
        """Starts a save and returns once the arrays are copied; their buffers may be given away then.

        Args:
            state: its `step` names the checkpoint.
            meta: JSON; "format" is added.
            tokenizer_files: as Tokenizer.files() gives them.
            valid_loss: what the best are chosen by; None ranks last.

        Returns:
            The step.

        Raises:
            InputError: no disk space, also where it ran out in a save begun earlier.
        """
        args, step = self._ocp.args, int(state.step)
        files = {name: base64.b64encode(data).decode() for name, data in tokenizer_files.items()}
        rest = {"step": state.step, "opt_state": state.opt_state, "key": state.key}
        with self._disk:
            self._manager.save(
                step,
                args=args.Composite(
                    params=args.StandardSave(state.params),
                    state=args.StandardSave(rest),
                    meta=args.JsonSave({"format": FORMAT, **meta}),
                    tokenizer=args.JsonSave(files),
                ),
                metrics={"valid_loss": math.inf if valid_loss is None else float(valid_loss)},
            )
        return step

    def restore(self, abstract: TrainState, step: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        """The state of a step, placed as `abstract` says.

        Args:
            abstract: ShapeDtypeStructs with shardings, from a driver's `abstract`.
            step: None for the newest.

        Returns:
            (state, meta).

        Raises:
            InputError: no checkpoint, one of parameters alone, or arrays of other shapes; files that are damaged, or
                cannot be read now.
        """
        step = self.latest() if step is None else step
        if step is None:
            raise InputError(f"no complete checkpoint in {self.folder}")
        where = self.folder / str(step)
        meta, mend = read_meta(where), remedy(where)
        check_shapes(where / "params", abstract.params, "the model of config.json", mend)
        if not (where / "state").exists() and len(self.steps()) == 1:
            raise InputError(f"{where} holds parameters but no training state; start a new run with start_from")
        stored_shapes(where / "state", mend)
        rest = {"step": abstract.step, "opt_state": abstract.opt_state, "key": abstract.key}
        found = {}
        try:
            with quiet_restore():
                found["params"] = restore_arrays(where / "params", abstract.params)
                found["state"] = restore_arrays(where / "state", rest)
        except Exception as error:  # Orbax and its array store raise many kinds
            raise_lost(error)
            raise unreadable(where, error, mend) from error
        return TrainState(params=found["params"], **found["state"]), meta

    def wait(self) -> None:
        """Returns when saves begun are on disk.

        Raises:
            InputError: there was no space for one.
        """
        with self._disk:
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and ends the manager's threads. A save that a full disk broke off is cleared away."""
        try:
            with self._disk:
                self._manager.close()
        finally:
            if self._disk.full:
                clear_halves(self.folder)
            else:
                self._quiet.close()


def make_folder(folder: Path) -> None:
    """Makes the folder of checkpoints, before Orbax looks into it, and sees that the records of each step can be used.

    What a save that was broken off left under a temporary name is not looked at: Orbax clears it away.

    Raises:
        InputError: it cannot be written, or a record is damaged.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        what = "is a file" if folder.is_file() else "is no folder"
        raise InputError(f"{folder} {what}, where the folder of checkpoints must lie; move it elsewhere")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    for step in step_folders(folder):
        require_records(step)


def _unwritable(folder: Path, error: OSError) -> InputError:
    if is_full(error):
        return InputError(f"no space left on the disk at {folder}; free some and run it again")
    kind = TryAgain if passes(error) else InputError
    return kind(f"cannot keep checkpoints in {folder} ({error.strerror or error})")


class _disk:
    """Turns a full disk, and one that is too slow, however the layers below report it, into one line."""

    def __init__(self, folder: Path):
        self.folder, self.full = folder, False

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        del kind, trace
        if is_full(error):
            self.full = True
            raise InputError(
                f"no space left on the disk at {self.folder} for a checkpoint; free some and run the same command "
                "again: it goes on from the last complete one"
            ) from error
        if isinstance(error, TimeoutError):  # Orbax's, also where its barrier broke since a process is gone
            if "DEADLINE_EXCEEDED" not in str(error.__cause__):
                raise_lost(error)
            raise InputError(
                f"a checkpoint in {self.folder} was not written within {SAVE_WITHIN / 3600:g} hours; the run goes on "
                "from the last complete one: give it a faster disk or share"
            ) from error
        return False


def clear_halves(folder: Path, tries: int = 10) -> None:
    """Removes saves that were broken off, and what Orbax's threads, which cannot be waited for, still add to them."""
    for _ in range(tries):
        for half in folder.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(half, ignore_errors=True)
        time.sleep(0.1)


def _valid_loss(metrics: dict[str, Any]) -> float:
    return metrics["valid_loss"]

