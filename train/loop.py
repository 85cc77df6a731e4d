"""A training run from its config to its end: made, continued, logged, evaluated, saved.

    run(RunConfig(model, train), "runs/mine")

Run again after a kill, it goes on from the last complete checkpoint and, on the same program and backend, gives the
numbers that an uninterrupted run gives, bit for bit: batches, masks and dropout are functions of (seed, step, row),
and what was summed but not yet logged is part of the checkpoint.

In several processes (train/distributed.py) all run this same page, and whatever decides what comes next, such as a
signal or a loss that is not finite, is looked at by all at the same step.
"""

import contextlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from train.checkpoint import Checkpoints, make_folder
from train.config import RunConfig
from train.data.pipeline import Batches
from train.distributed import first_then_others, from_first, together
from train.ledger import Ledger
from train.logs import MetricsLog, read
from train.lost_process import Watch, is_shared
from train.matmul import settled
from train.mesh import Driver
from train.metrics import Pair, add, divide
from train.opening import Opened, compile_ahead, flops_per_token, open_run
from train.peer_lost import raise_lost
from train.plots import plot_loss
from train.progress import Display
from train.run_folder import open_run_folder, require_mounted
from train.signals import Signals, Vote
from train.start import parameters_of, start_from
from train.step import make_eval_step
from train.tracing import Trace, parse_steps
from zoo.checkpoints.run_folder import steps_of
from zoo.errors import InputError
from zoo.output_folder import require_folder

# How many steps the host runs ahead of the numbers it looks at.
LAG = 2


@dataclass(frozen=True)
class RunResult:
    """How a run stands when `run` returns.

    Attributes:
        folder: the run folder.
        step: updates done.
        train, valid, watch: the last logged line of each split; empty where there is none.
    """

    folder: Path
    step: int
    train: dict[str, Any]
    valid: dict[str, Any]
    watch: dict[str, Any]


class Diverged(InputError):
    """A loss or gradient that is not finite; every process sees the same one."""

    same_everywhere = True


def run(
    config: RunConfig,
    folder: str | Path,
    *,
    quiet: bool = False,
    stop_at: int | None = None,
    profile: str = "",
    stalled_after: float = 1800,
    terminal: TextIO | None = None,
) -> RunResult:
    """Trains, from the start or from where the folder's last checkpoint stands.

    SIGTERM and Ctrl-C finish the step at work, save, and raise SystemExit(143) and SystemExit(130).

    Args:
        config: model and training.
        folder: the run folder; one that all processes share.
        quiet: show nothing.
        stop_at: end after this step, saved, as an interruption would; None for the whole run.
        profile: steps to trace into folder/profile, "first:last"; see train/tracing.py.
        stalled_after: seconds without progress after which one of several processes ends; see train/lost_process.py.
        terminal: where progress is shown; standard error by default.

    Raises:
        InputError: what cannot be trained, a folder of another run, no disk space.
        Diverged: the loss or the gradient is not finite; the last good checkpoint stays.
        PeerLost: another process is gone.
    """
    train, first = config.train, is_first_process()
    last = train.steps if stop_at is None else min(stop_at, train.steps)
    display = Display(train.steps, quiet=quiet or not first, stream=terminal)

    with Watch(stalled_after) as watch, contextlib.ExitStack() as held:
        # ---- What is trained, and on what: all that can be wrong is said before anything is written -----------------
        with watch.working("opening what is trained"):
            together(lambda: (require_mounted(folder), require_folder(folder)))
            traced = parse_steps(profile, last)
            config = settled(config, folder)
            run = open_run(config)
            model, driver, batches, step_fn = run.model, run.driver, run.batches, run.step
            eval_step = driver.compile_eval(make_eval_step(model, run.objective, train.seed))
            loaded, begun = None, from_first("begun" if steps_of(folder) else "")
            if train.start_from and not begun:
                loaded = parameters_of(train.start_from, model, driver)

        place = held.enter_context(open_run_folder(folder, config, writes=first))
        signals = held.enter_context(Signals())
        held.enter_context(display)
        compiled = compile_ahead(run) if max(steps_of(place.path), default=0) < last else None

        # ---- Where it goes on ---------------------------------------------------------------------------------------
        with watch.working("finding where it goes on"):
            together(lambda: run.tokenizer.save(place.path / "tokenizer") if first else None)
            first_then_others(lambda: make_folder(place.checkpoints))
            keep = {"keep_last": train.keep_last, "keep_best": train.keep_best, "keep_every": train.keep_every}
            checkpoints = Checkpoints(place.checkpoints, **keep)
            newest = json.loads(from_first(json.dumps(checkpoints.latest(), allow_nan=False)))
            together(lambda: checkpoints.settle(newest))
            if newest is None:
                state, done, meta = driver.init(run.make), 0, {}
                if train.start_from:
                    state = start_from(state, loaded or parameters_of(train.start_from, model, driver))
                loaded = None
            else:
                state, meta = together(lambda: checkpoints.restore(driver.abstract(run.make)))
                done = int(state.step)
                together(lambda: require_data(meta, run, place.path))
                display.say(f"going on from step {done:,} of {train.steps:,}")
            if traced and done >= traced[0]:
                left = "nothing" if done >= traced[1] else f"steps {done + 1} to {traced[1]} alone"
                display.say(f"profile {profile}: the run goes on from step {done:,}; {left} will be traced")
        board = place.path / "tensorboard" if train.tensorboard else None
        log = MetricsLog(place.metrics, done, board, writes=first)
        ledger = Ledger(
            log,
            display,
            every=train.log_every,
            total=train.steps,
            flops_per_token=flops_per_token(config),
            devices=driver.devices,
            saved=meta.get("ledger"),
        )
        vote, trace = Vote(signals), Trace(place.path / "profile", traced)
        pending: deque[tuple[int, Any, Any]] = deque()
        begun_at, saved_at, valid_loss = done, done, None
        began_from = train.start_from if newest is None else str(checkpoints.folder / str(newest))
        owed = bool(from_first("owed" if meta.get("owed") and not log.has(done, "valid") else ""))

        def catch_up(most: int) -> None:
            """Looks at the numbers of all but the last `most` steps; alone, also at those that are there already."""
            while pending and (len(pending) > most or (jax.process_count() == 1 and is_ready(pending[0][1]))):
                step, metrics, cast = pending.popleft()
                if not ledger.take(step, metrics):
                    with watch.working("writing the last checkpoint"):
                        checkpoints.wait()
                    origin = began_from if step == begun_at + 1 else ""
                    raise Diverged(diverged_line(step, metrics, batches, checkpoints, origin))
                vote.count(cast)
                watch.beat(step)

        def save() -> None:
            about = {"config": config.to_dict(), "tokenizer": run.tokenizer.fingerprint, "owed": owed}
            about |= data_of(run) | {"step": done, "ledger": ledger.plain(), "jax": jax.__version__}
            with watch.working("writing the checkpoint before this one"):
                checkpoints.wait()
            with watch.working("a checkpoint"):
                checkpoints.save(state, about, run.tokenizer.files(), valid_loss)

        def look() -> tuple[float | None, bool]:
            """Evaluates on the valid split and on the watched text: the loss of the first, and whether it is still owed
            since a signal broke it off."""
            found = {}
            for split, rows in (("valid", run.valid), ("watch", run.watched)):
                if len(rows):
                    values = evaluate(eval_step, state.params, driver, rows, vote, lambda: watch.beat(done))
                    if values is None:
                        return None, True
                    found[split] = values
            for split, values in found.items():
                log.write(done, split, values | {"tokens": ledger.tokens})
                shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
                display.say(f"step {done:,}: {'validation' if split == 'valid' else 'watched text'} {shown}")
            return found.get("valid", {}).get("loss"), False

        # ---- Steps --------------------------------------------------------------------------------------------------
        feed, orderly = iter(()), True
        try:
            vote.count(vote.cast())  # before minutes of compiling
            if owed or (train.watch and not done):
                _, owed = look()
            feed = batches.iterate(done, last - done) if done < last else feed
            upcoming = driver.put(next(feed), train.batch_size) if done < last else None
            while done < last and not vote.stop:
                compiles = watch.working("compiling") if done == begun_at else contextlib.nullcontext()
                with trace.step(done + 1), compiles:
                    if compiled is not None:
                        compiled()
                    state, metrics = step_fn(state, upcoming)
                done += 1
                pending.append((done, metrics, vote.cast()))
                upcoming = driver.put(next(feed), train.batch_size) if done < last else None
                if trace.after(done, metrics):
                    display.say(f"steps {profile} are traced in {trace.folder}")
                catch_up(LAG if done > begun_at + 1 else 0)  # the clock starts at the end of the step that compiles
                evaluates = done == train.steps or due(done, train.eval_every)
                saves = done == train.steps or due(done, train.checkpoint_every)
                if evaluates or saves:
                    catch_up(0)  # no checkpoint of a step that is not known to be finite
                    ledger.pause()
                    valid_loss, owed = look() if evaluates else (None, False)
                    if saves and not owed:
                        save()
                        saved_at = done
                    ledger.resume()
            catch_up(0)

            # ---- The end --------------------------------------------------------------------------------------------
            if saved_at != done:
                valid_loss = None
                save()
            with watch.working("writing the last checkpoint"):
                checkpoints.wait()
        except BaseException as error:
            orderly = is_shared(error)
            raise_lost(error)
            raise
        finally:
            if hasattr(feed, "close"):
                feed.close()
            trace.close()
            try:
                log.close()
            finally:  # also where the disk is full
                if orderly:  # a save that is under way waits for the others
                    with watch.working("writing the last checkpoint"):
                        checkpoints.close()
        if vote.stop:
            display.say(f"stopped at step {done:,} of {train.steps:,}, saved; the same command goes on from there")
            raise SystemExit(128 + vote.stop)
        if first:
            plot_loss(place.path)
        lines = read(place.metrics)
        splits = ("train", "valid", "watch")
        final = {split: next((x for x in reversed(lines) if x["split"] == split), {}) for split in splits}
        return RunResult(place.path, done, **final)


def is_first_process() -> bool:
    """Of several processes in one run, the first alone shows progress and writes files; checkpoints are by all."""
    return jax.process_index() == 0


def evaluate(
    eval_step: Any,
    params: Any,
    driver: Driver,
    batches: Batches,
    vote: Vote | None = None,
    beat: Callable[[], None] = lambda: None,
) -> dict[str, float] | None:
    """Means over every row of a split, the last partial batch included: sums are added up and divided once.

    Args:
        eval_step: from driver.compile_eval(make_eval_step(...)).
        params: placed by the driver.
        driver: who runs it.
        batches: the split.
        vote: whether to stop, asked with every batch.
        beat: called after every batch.

    Returns:
        {"loss": ..., "accuracy": ...}; a loss of several terms is the sum of their means. None where a signal broke it
        off, in every process.
    """
    sums: dict[str, Pair] = {}
    waiting = deque()

    def take() -> None:
        nonlocal sums
        result, cast = waiting.popleft()
        sums = add(sums, _floats(result))
        beat()
        if vote is not None:
            vote.count(cast)

    for number, batch in enumerate(batches.all_rows()):
        if vote is not None and vote.stop:
            return None
        # Row ids go on over the batches, so that each row draws masks of its own.
        batch["row_ids"] = batch["row_ids"] + np.int32(number * batches.batch_size)
        result = eval_step(params, driver.put(batch, batches.batch_size))
        waiting.append((result, None if vote is None else vote.cast()))
        if len(waiting) > LAG:
            take()
    while waiting:
        take()
    values = divide(sums)
    if "loss" not in values:
        values = {"loss": sum(value for name, value in values.items() if name.endswith("_loss"))} | values
    return values


def diverged_line(
    step: int, metrics: dict[str, Any], batches: Batches, checkpoints: Checkpoints, origin: str = ""
) -> str:
    """What happened, on which rows and documents, and where to go back to.

    Args:
        step: its number, from 1.
        metrics: from the train step.
        batches: what it was trained on.
        checkpoints: the run's.
        origin: whence the parameters were read that this step began from; "" where an earlier one made them.
    """
    loss = float(metrics["loss"][0]) / (float(metrics["loss"][1]) or 1.0)
    rows = batches.rows_at(step - 1, everywhere=True)
    documents = sorted({document for row in rows for document, _, _ in batches.rows.index.slices(int(row))})
    steps = [one for one in checkpoints.steps() if str(checkpoints.folder / str(one)) != origin]
    last = checkpoints.folder / str(steps[-1]) if steps else None
    if origin:
        good = f"the parameters that it began from, {origin}, may be damaged; "
        good += f"the checkpoint before is {last}" if last else "there is no checkpoint before"
    else:
        good = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
    return (
        f"step {step} is not finite: loss {loss:g}, gradient norm {float(metrics['grad_norm']):g}; {good}; "
        f"its rows are {_short(rows.tolist())} of documents {_short(documents)}; "
        "lower learning_rate or clip_norm, or look at these"
    )


def data_of(run: Opened) -> dict[str, str]:
    """What a checkpoint keeps of its data: names of the documents of both splits, and of the packing into rows."""
    return {"data": run.shards.train.digest, "valid": run.shards.valid.digest, "rows": run.batches.rows.index.key}


def require_data(meta: dict[str, Any], run: Opened, folder: Path) -> None:
    """Raises InputError where a checkpoint was trained on other data, or other rows of it, than are given now."""
    now = data_of(run)
    for name in ("data", "valid"):
        if meta.get(name, now[name]) != now[name]:
            raise InputError(f"{folder} was trained on other data than {run.shards.folder} holds; take another folder")
    if meta.get("rows", now["rows"]) != now["rows"]:
        raise InputError(
            f"{folder} was trained on rows that were packed in another way than this version packs them, and would see "
            "some twice and others never; go on with the version that began it, or take another folder (start_from "
            "goes on from this one's parameters)"
        )


def is_ready(metrics: dict[str, Any]) -> bool:
    """Whether a step's numbers can be looked at without waiting."""
    return metrics["finite"].is_ready()


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps is done after this one; 0 is never."""
    return bool(every) and step % every == 0


def _floats(pairs):
    return {name: (float(total), float(weight)) for name, (total, weight) in jax.device_get(pairs).items()}


def _short(numbers: list[int], shown: int = 8) -> str:
    return ", ".join(map(str, numbers[:shown])) + (f" and {len(numbers) - shown} more" if len(numbers) > shown else "")
