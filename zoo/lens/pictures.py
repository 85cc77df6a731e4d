"""Views as PNG: each function draws one and returns its bytes, by Agg, without a display and pyplot's global state."""

import contextlib
import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zoo.lens.token_texts import short
from zoo.lens.view import CAVEAT, AttentionMaps, Bars, HeatMap, LensTable, Norms, View

INK, FAINT, GRID = "#222222", "#666666", "#E3E3E3"
BLUE, RED = "#0072B2", "#D55E00"
MOST_COLUMNS = 24  # of the table of pieces
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 110,
}


def draw(view: View) -> bytes:
    """The picture of any view."""
    return DRAWN[type(view)](view)


def logit_lens(table: LensTable) -> bytes:
    """Layers upward, positions to the right: in each cell the likeliest piece, darker the likelier it is."""
    layers, whole = table.probabilities.shape[:2]
    length = min(whole, MOST_COLUMNS)
    chances, best = table.probabilities[:, -length:, 0], table.ids[:, -length:, 0]
    title = "Logit lens: the likeliest piece when each layer's stream is read out, and its probability"
    if length < whole:
        title += f" (the last {length} of {whole} positions)"
    with _figure(max(6.5, 1.6 + 0.82 * length), 1.5 + 0.24 * layers) as (figure, axes):
        image = axes.imshow(chances, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
        for layer in range(layers):
            for t in range(length):
                chance, piece = chances[layer, t], short(table.texts[int(best[layer, t])], 9)
                style = {"fontsize": 6.5, "color": "white" if chance > 0.6 else INK, "parse_math": False}
                axes.text(t, layer, f"{piece} {chance:.2f}", ha="center", va="center", **style)
        _ticks(axes, "x", table.tokens[-length:])
        _ticks(axes, "y", table.layers)
        axes.set_title("\n".join(textwrap.wrap(title, int(12 * (figure.get_figwidth() - 1)))))
        figure.colorbar(image, label="probability", fraction=0.02)
        return _png(figure)


def attention(maps: AttentionMaps) -> bytes:
    """All heads, a row a layer, and beside them what zeroing each one changes."""
    layers, heads, length = maps.weights.shape[:3]
    wide, tall = min(40.0, max(8.5, 3.6 + 0.98 * heads)), min(26.0, max(3.8, 1.9 + 0.6 * layers))
    with _figure(wide, tall, panels=2, widths=(1.7, 1)) as (figure, (left, right)):
        mosaic = np.full((layers * (length + 1), heads * (length + 1)), np.nan)
        for layer in range(layers):
            for head in range(heads):
                row, column = layer * (length + 1), head * (length + 1)
                mosaic[row : row + length, column : column + length] = maps.weights[layer, head]
        left.imshow(mosaic, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        middle = (length - 1) / 2
        left.set_xticks([head * (length + 1) + middle for head in range(heads)], range(heads))
        left.set_yticks([layer * (length + 1) + middle for layer in range(layers)], range(layers))
        left.set(xlabel="head", ylabel="layer")
        left.set_title("Attention weights (rows query, columns key)")
        _signed(figure, right, maps.effects, maps.effect)
        right.set(xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
        right.set_title("Ablation: each head zeroed")
        _caption(figure, CAVEAT)
        return _png(figure)


def attention_head(maps: AttentionMaps, layer: int, head: int) -> bytes:
    """One head, with its tokens, and beside it what zeroing each head of its layer changes."""
    length = len(maps.tokens)
    side = 2.2 + 0.24 * length
    with _figure(side + 3.2, side + 0.6, panels=2, widths=(side, 2.4)) as (figure, (left, right)):
        image = left.imshow(maps.weights[layer, head], cmap="Blues", vmin=0, vmax=1)
        _ticks(left, "x", maps.tokens)
        _ticks(left, "y", maps.tokens)
        left.set(xlabel="key", ylabel="query")
        left.set_title(f"Attention weights of layer {layer}, head {head}")
        figure.colorbar(image, ax=left, fraction=0.04)
        effects = maps.effects[layer]
        colours = [BLUE if effect >= 0 else RED for effect in effects]
        right.barh(range(len(effects)), effects, color=colours, alpha=0.45)
        right.barh([head], [effects[head]], color=colours[head])
        right.axvline(0, color=INK, linewidth=0.8)
        right.set(yticks=range(len(effects)), ylabel="head", ylim=(len(effects) - 0.5, -0.5))
        right.set_xlabel("\n".join(textwrap.wrap(maps.effect, 34)), parse_math=False)
        right.set_title(f"Ablation: {effects[head]:+.3g} without it")
        _caption(figure, CAVEAT)
        return _png(figure)


def norms(view: Norms) -> bytes:
    """The stream's length by layer: a line a position, and their median."""
    with _figure(6.4, 3.6) as (figure, axes):
        steps = range(len(view.layers))
        axes.plot(steps, view.values, color=BLUE, alpha=0.3, linewidth=1)
        axes.plot(steps, np.median(view.values, axis=1), color=INK, linewidth=2, label="median position")
        axes.plot(steps, view.values[:, 0], color=RED, linewidth=1.5, label=f"first position: {short(view.tokens[0])}")
        axes.set_yscale("log")
        axes.set(xlabel="layers passed", ylabel="length of the residual stream")
        axes.grid(color=GRID)
        legend = axes.legend()
        for text in legend.get_texts():
            text.set_parse_math(False)
        axes.set_title("Residual norms")
        return _png(figure)


def attribution(bars: Bars) -> bytes:
    """The components of a logit, largest first."""
    count = len(bars.names)
    with _figure(6.4, 1.3 + 0.2 * count) as (figure, axes):
        axes.barh(range(count), bars.values, color=[BLUE if value >= 0 else RED for value in bars.values])
        axes.axvline(0, color=INK, linewidth=0.8)
        _ticks(axes, "y", bars.names)
        axes.set(ylim=(count - 0.5, -0.7), xlabel="added to the logit")
        axes.set_title("\n".join(textwrap.wrap(f"Attribution: {bars.what} = {bars.total:.2f}", 78)), parse_math=False)
        return _png(figure)


def patching(view: HeatMap) -> bytes:
    """Layers upward, positions to the right: the share of the difference that each place brings back."""
    layers, length = view.values.shape
    with _figure(max(6.5, 2.6 + 0.42 * length), 2.3 + 0.17 * layers) as (figure, axes):
        _signed(figure, axes, view.values, "share restored (0 corrupted, 1 clean)", least=1.0, origin="lower")
        _ticks(axes, "x", view.columns)
        _ticks(axes, "y", view.layers)
        said = f"{view.what}: {view.clean:.2f} clean, {view.corrupted:.2f} corrupted"
        lines = ["Patching the clean stream into the corrupted run", *textwrap.wrap(said, 72)]
        axes.set_title("\n".join(lines), parse_math=False)
        return _png(figure)


DRAWN = {
    LensTable: logit_lens,
    AttentionMaps: attention,
    Norms: norms,
    Bars: attribution,
    HeatMap: patching,
}


def _signed(figure: Any, axes: Any, values: np.ndarray, label: str, least: float = 1e-9, origin: str = "upper") -> None:
    """A heat map whose middle colour is zero; blue is more, red less."""
    limit = max(least, float(np.abs(values).max()))
    image = axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", origin=origin)
    bar = figure.colorbar(image, ax=axes, fraction=0.05)
    bar.set_label("\n".join(textwrap.wrap(label, 36)), parse_math=False)


def _ticks(axes: Any, side: str, names: Sequence[str]) -> None:
    """Names along an axis, taken as they are: a $ in a token begins no formula."""
    shown = [short(name, 22) for name in names]
    if side == "x":
        axes.set_xticks(range(len(names)), shown, rotation=60, ha="right", rotation_mode="anchor", parse_math=False)
    else:
        axes.set_yticks(range(len(names)), shown, parse_math=False)


def _caption(figure: Any, text: str) -> None:
    width = max(40, math.floor(figure.get_figwidth() * 15))
    figure.supxlabel("\n".join(textwrap.wrap(text, width)), fontsize=8, color=FAINT, x=0.01, ha="left")


@contextlib.contextmanager
def _figure(
    width: float, height: float, panels: int = 1, widths: Sequence[float] | None = None
) -> Iterator[tuple[Any, Any]]:
    """A blank figure, in inches, and its axes, in the house style. Glyphs that the font lacks are boxes, unsaid."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(1, panels, width_ratios=widths)


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
