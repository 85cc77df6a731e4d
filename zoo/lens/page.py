"""Views as one interactive page: a file that needs no network, with every picture inside for readers without scripts.

Hovering shows values; layer and head can be chosen. Texts of tokens reach the page as JSON and as text nodes alone, so
that a token "<script>" is five letters and two brackets; a content policy in the page forbids any connection.
"""

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from zoo.atomic_file import write_together
from zoo.errors import InputError
from zoo.lens import pictures
from zoo.lens.view import CAVEAT, AttentionMaps, Bars, HeatMap, LensTable, Norms, View
from zoo.output_folder import held, require_folder

MOST_WEIGHTS = 1 << 24  # attention weights in a page, of which each takes 2.7 bytes: 45 MB
TEMPLATE = Path(__file__).with_name("page.html.jinja")
NAMES = {
    LensTable: "logit-lens",
    AttentionMaps: "attention",
    Norms: "residual-norms",
    Bars: "attribution",
    HeatMap: "patching",
}
KINDS = {LensTable: "lens", AttentionMaps: "attention", Norms: "norms", Bars: "bars", HeatMap: "heat"}


def page(
    title: str, views: Sequence[View], notes: Sequence[str] = (), text: str = "", drawn: Sequence[bytes] = ()
) -> str:
    """The whole page as HTML.

    Args:
        title: of the page, or "".
        views: what it shows, in this order.
        notes: what the reader should know, a line each.
        text: the passage that was read.
        drawn: the PNG of each view, where it is drawn already.

    Raises:
        InputError: no view, or more attention weights than a page holds.
    """
    import jinja2

    if not views:
        raise InputError("a page needs at least one picture")
    weights = sum(view.weights.size for view in views if isinstance(view, AttentionMaps))
    if weights > MOST_WEIGHTS:
        raise InputError(
            f"a page of {weights:,} attention weights would be {weights * 8 / 3 / 1e6:,.0f} MB, more than browsers "
            "show; take a shorter passage, or draw the heads that matter as PNG"
        )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    sections = [
        {
            "heading": _heading(view),
            "words": _words(view),
            "caveat": CAVEAT if isinstance(view, AttentionMaps) else "",
            "png": base64.b64encode(png).decode(),
        }
        for view, png in zip(views, drawn or map(pictures.draw, views), strict=True)
    ]
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    data = as_json([as_dict(view) for view in views])
    return template.render(title=title, text=text, notes=list(notes), sections=sections, data=data)


def frame(*views: View, title: str = "", height: int = 640) -> str:
    """The page inside a frame of its own, to be shown in a notebook: IPython.display.HTML(frame(view))."""
    inside = html.escape(page(title, views), quote=True)
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<div><iframe sandbox="allow-scripts" srcdoc="{inside}" style="{style}"></iframe></div>'


def write(folder: str | Path, title: str, views: Sequence[View], notes: Sequence[str] = (), text: str = "") -> Path:
    """Writes index.html and a PNG a view, all or none of them, and returns the page's path.

    Raises:
        InputError: the folder cannot be written, or holds a run, a checkpoint or shards.
    """
    require_place(folder)
    folder = Path(folder)
    files: dict[Path, str | bytes] = {}
    drawn = [pictures.draw(view) for view in views]
    for view, png in zip(views, drawn, strict=True):
        files[folder / f"{NAMES[type(view)]}.png"] = png
        if isinstance(view, AttentionMaps):
            files[folder / "attention-strongest-head.png"] = pictures.attention_head(view, *view.strongest)
    files[folder / "index.html"] = page(title, views, notes, text, drawn)
    write_together(files)
    return folder / "index.html"


def require_place(folder: str | Path) -> None:
    """Raises InputError where the pictures must not or cannot be written; asked before the work."""
    require_folder(folder)
    what = held(folder)
    if what:
        raise InputError(f"{folder} holds {what}; give the pictures a folder of their own")


def as_dict(view: View) -> dict[str, Any]:
    """Plain types for JSON; attention weights are 16-bit shares of 65,535, little-endian, in base64."""
    plain = {"kind": KINDS[type(view)]} | asdict(view)
    for name, value in plain.items():
        if isinstance(value, np.ndarray):
            plain[name] = value.tolist() if value.dtype.kind in "iu" else np.round(value.astype(float), 6).tolist()
    if isinstance(view, AttentionMaps):
        shares = np.rint(np.clip(view.weights, 0, 1) * 65535).astype("<u2")
        plain |= {"weights": base64.b64encode(shares.tobytes()).decode(), "shape": view.weights.shape[:3]}
        plain["strongest"] = view.strongest
    return plain


def as_json(value: Any) -> str:
    """JSON that may stand in a script element: no character that HTML reads is left in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII alone
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _heading(view: View) -> str:
    return {
        "lens": "Logit lens",
        "attention": "Attention, and ablation beside it",
        "norms": "Residual norms",
        "bars": "Attribution",
        "heat": "Patching",
    }[KINDS[type(view)]]


def _words(view: View) -> str:
    if isinstance(view, LensTable):
        return "The likeliest piece when each layer's stream is read out as the last one is, and its probability."
    if isinstance(view, AttentionMaps):
        layer, head = view.strongest
        words = f"{view.effect[0].upper()}{view.effect[1:]}"
        return f"{words}: most at layer {layer}, head {head}, {view.effects[layer, head]:+.3g}."
    if isinstance(view, Norms):
        return "The length of the residual stream at each position, by layers passed."
    if isinstance(view, Bars):
        return f"The {view.what}, {view.total:.3f}, as the sum of what each component adds."
    return (
        f"The corrupted prompt is run with one place of the clean one's stream put in. {view.what}: {view.clean:.3f} "
        f"clean, {view.corrupted:.3f} corrupted; 1 restores all of the difference, 0 nothing."
    )
