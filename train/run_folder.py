"""The folder of a run: one run at a time in it, and always the same one.

config.json      {"model": ..., "train": ...}; the run can be started again from it
metrics.jsonl    see train.logs
checkpoints/     see train.checkpoint
tokenizer/       what zoo.load_tokenizer reads
loss.png         drawn at the end
"""

import errno
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from train.config import RunConfig
from train.distributed import first_then_others, from_first, together
from train.step_records import read_meta, remedy
from zoo.checkpoints.orbax_quiet import is_full
from zoo.checkpoints.run_folder import steps_of
from zoo.checkpoints.unreadable import Damaged, unreadable
from zoo.errors import InputError
from zoo.output_folder import held

HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)  # what flock says of a lock that another process has
LEASE = 120.0  # seconds that a restart waits for one: NFS keeps that of a host that is gone for the length of its lease
PARTS = ("config.json", "metrics.jsonl", "checkpoints", "tokenizer", "tensorboard", "loss.png")


def require_own(path: Path) -> None:
    """Raises InputError for a URL, and for a folder of anything but a run, so that none is begun on top of it."""
    require_mounted(path)
    what = held(path)
    if what == "an imported checkpoint":
        raise InputError(f"{path} holds {what}, and no run; take another folder, with --start-from {path}")
    if what and what != "a training run":
        raise InputError(f"{path} holds {what}, and no run; take another folder")
    if what and (path / "config.json").exists() and "train" not in _json(path / "config.json"):
        raise InputError(f"{path / 'config.json'} is not that of a training run; take another folder")
    if not what and path.is_dir():
        other = sorted(entry.name for entry in path.iterdir() if entry.name[0] != "." and entry.name not in PARTS)
        if other:
            raise InputError(f"{path} holds {other[0]}, and no run; take another folder")


def require_mounted(path: str | os.PathLike[str], what: str = "a run folder") -> None:
    """Refuses a URL, such as gs://bucket/run: in a run folder files are locked and appended to, and folders renamed.

    Raises:
        InputError: naming what to give in its place.
    """
    found = re.match(r"([a-z][a-z0-9+]+):/+(.*)", os.fspath(path))  # a Path of gs://a/b has lost a slash
    if found:
        raise InputError(
            f"{found[1]}://{found[2]} is a URL, and {what} must lie in a folder that all hosts share: NFS (such as "
            "Filestore), or the bucket mounted on each host (gcsfuse; with hierarchical namespace, so that folders can "
            "be renamed)"
        )


def open_run_folder(path: str | Path, config: RunConfig, *, writes: bool = True) -> "RunFolder":
    """The run folder in every process: the first makes and locks it, the others find it.

    Raises:
        InputError: as RunFolder, in every process; also where they do not share the folder.
    """
    import jax

    several = jax.process_count() > 1
    place = first_then_others(lambda: RunFolder(path, config, writes=writes, waits=several))
    try:
        mark = from_first(place.mark)
        together(lambda: place.require_mark(mark))
    except BaseException:
        place.close()
        raise
    return place


class RunFolder:
    """A run folder, made or continued, and held against a second process until it is closed.

    Args:
        path: where.
        config: the run's. Where the folder has one already, and a step or a number of it, it must be the same in all
            that matters for the numbers.
        writes: whether this process makes, locks and fills the folder; of several in one run the first alone does.
        waits: whether to wait for a lock in the folder of a run that has begun: a job that is started again may come
            before the locks of a host that was lost are given up.

    Raises:
        InputError: a folder of other things; other settings than the folder's, naming them; another process at work in
            it; a folder that cannot be written.
    """

    def __init__(self, path: str | Path, config: RunConfig, *, writes: bool = True, waits: bool = False):
        self.path, self.writes, self._lock, self.mark = Path(path).absolute(), writes, None, ""
        require_own(self.path)
        try:
            if writes:
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = open(self.path / ".lock", "a")  # noqa: SIM115
        except OSError as error:
            raise InputError(f"cannot write to {self.path} ({error.strerror or error})") from error
        try:
            self._hold(waits)
            self._settle(config)
        except BaseException as error:
            self.close()
            if is_full(error) and not isinstance(error, InputError):
                raise InputError(f"no space left on the disk for {self.path}; free some and run it again") from error
            raise

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def require_mark(self, mark: str, seconds: float = 20.0) -> None:
        """Raises InputError where the first process's mark, which lies in the lock's file, is not seen here."""
        until = time.monotonic() + seconds  # a network's file system shows new files late
        while not self.writes and mark:
            try:
                if (self.path / ".lock").read_text("utf-8") == mark:
                    return
            except OSError:
                pass
            if time.monotonic() > until:
                raise InputError(
                    f"{self.path} is not the folder that process 0 writes to; all processes need one that they share"
                )
            time.sleep(0.2)

    def close(self) -> None:
        """Lets others in."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def has_begun(self) -> bool:
        """Whether a step was saved or a number logged: until then the settings may still be changed."""
        logged = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return logged or bool(steps_of(self.path))

    def _hold(self, waits: bool):
        if self._lock is None:
            return
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            return
        until, told = time.monotonic() + (LEASE if waits and self.has_begun() else 0.0), False
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in HELD:  # a file system without locks, such as Lustre mounted without -o flock
                    _say(f"{self.path} lies where no file can be locked ({error.strerror}): let one run alone use it")
                    break
            if time.monotonic() > until:
                raise InputError(f"another process is training in {self.path}; wait for it, or take another folder")
            if not told:
                _say(f"{self.path} is still locked, maybe by a process that is gone: waiting up to {LEASE:g} s for it")
                told = True
            time.sleep(1.0)
        self.mark = uuid.uuid4().hex
        self._lock.truncate(0)
        self._lock.write(self.mark)
        self._lock.flush()
        os.fsync(self._lock.fileno())

    def _settle(self, config: RunConfig):
        path = self.path / "config.json"
        if self.has_begun():
            begun = RunConfig.load(path) if path.exists() and "train" in _json(path) else self._saved()
            changes = begun.changes(config) if begun else []
            if changes:
                told = "; ".join(changes)
                raise InputError(
                    f"{self.path} was started with other settings: {told}; undo them, or take another folder "
                    "(start_from goes on from this one's parameters)"
                )
        if self.writes:
            config.save(path)

    def _saved(self) -> RunConfig | None:
        """The settings that the newest checkpoint was made with, where config.json is gone; None without any."""
        steps = steps_of(self.path)
        if not steps:
            return None
        step = self.checkpoints / str(steps[-1])
        plain = read_meta(step)["config"]
        try:
            return RunConfig.from_dict(plain)
        except InputError as error:
            raise InputError(f"{step / 'meta' / 'metadata'}: {error}") from None
        except (TypeError, AttributeError, LookupError, ValueError) as error:
            raise unreadable(step, Damaged(f"config in meta/metadata: {error}"), remedy(step)) from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}
