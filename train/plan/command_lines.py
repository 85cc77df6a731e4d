"""Command lines: the one that plans a job again, and the one that runs it. Each, read again, gives the job."""

import json
import shlex
from pathlib import Path
from typing import Any

from train.config import RunConfig
from train.objectives import fit_model
from train.plan.job import Job, is_run, make_job
from zoo.config import ModelConfig
from zoo.errors import InputError

UNSAID = {"attention_kernel": "auto", "dtype": "bfloat16"}  # as options of `train plan`


def plan_command(job: Job, model: str, compiler: str = "") -> str:
    """The command line that plans `job`.

    Args:
        job: what was planned.
        model: how the command line named the model.
        compiler: that stood in for libtpu's; "" and "tpu" are not said.
    """
    config, train = job.model, job.train
    words = ["python -m train plan", f"--model {shlex.quote(model)}", f"--slice {job.slice}"]
    words += [f"--batch {train.batch_size}", f"--seq {train.seq_len}", f"--mesh {train.mesh}"]
    words += [f"--remat {config.remat}"]
    words += [f"--accumulate {train.accumulate}"] if train.accumulate > 1 or is_run(Path(model)) else []
    words += [f"--attention {config.attention_kernel}"] if config.attention_kernel != UNSAID["attention_kernel"] else []
    words += [f"--dtype {config.dtype}"] if config.dtype != UNSAID["dtype"] else []
    said = {"remat": config.remat, "attention_kernel": config.attention_kernel, "dtype": config.dtype}
    said = {name: value for name, value in said.items() if value != UNSAID.get(name)}
    asked = {"batch": train.batch_size, "seq": train.seq_len, "accumulate": train.accumulate, "mesh": train.mesh}
    try:
        words += _model_set(make_job(model, job.slice, **asked, changes=said).model, config)
    except InputError:  # a model that is no name: one made in Python
        pass
    return " ".join(words + ([f"--compiler {compiler}"] if compiler == "cpu" else []))


def run_command(job: Job, model: str) -> str:
    """The command line that trains `job`, with RUN_FOLDER and SHARDS to be put in; "" for a model made in Python.

    The vocabulary is that of the shards; steps and learning rate are the run's own or the defaults.
    """
    config, train = job.model, job.train
    words = ["python -m train pretrain RUN_FOLDER --data SHARDS"]
    try:
        if is_run(Path(model)):
            base = RunConfig.load(model)
            own, words = base.model, [*words, f"--config {shlex.quote(model)}"]
        else:
            from train.cli import _preset, _usual_objective

            own, words = fit_model(_preset(model), train, config.vocab_size), [*words, f"--model {shlex.quote(model)}"]
            words += [f"--objective {train.objective}"] if train.objective != _usual_objective(model) else []
    except InputError:
        return ""
    words += _model_set(own, config)
    words += [f"--driver mesh --mesh {train.mesh}", f"--batch-size {train.batch_size}", f"--seq-len {train.seq_len}"]
    return " ".join(words + [f"--accumulate {train.accumulate}"])


def _model_set(base: ModelConfig, config: ModelConfig) -> list[str]:
    """The words that change `base` into `config`."""
    old, new = base.to_dict(), config.to_dict()
    changed = [f"{name}={shlex.quote(_text(value))}" for name, value in new.items() if value != old[name]]
    return [f"--model-set {' '.join(changed)}"] if changed else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), allow_nan=False)
