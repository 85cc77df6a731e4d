"""loss.png of a run folder."""

from pathlib import Path

from train.logs import read
from zoo.atomic_file import replacing


def plot_loss(run: str | Path) -> Path | None:
    """Draws training and validation loss, and that of watched text, by tokens seen, from metrics.jsonl.

    Args:
        run: the run folder.

    Returns:
        run/loss.png, or None where nothing is logged yet.
    """
    run = Path(run)
    lines = read(run / "metrics.jsonl")
    lines = [line for line in lines if line["loss"] is not None]  # one that was not finite
    curves = {
        split: [(line["tokens"], line["loss"]) for line in lines if line["split"] == split]
        for split in ("train", "valid", "watch")
    }
    if not curves["train"]:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (split, points), colour in zip(curves.items(), ("#8fa8c8", "#c0392b", "#2e7d4f"), strict=True):
        if points:
            mark = None if split == "train" else "o"
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=mark,
                markersize=4,
                label=f"{split}: {points[-1][1]:.3f} at the end",
            )
    axes.set(xlabel="tokens seen", ylabel="loss (nats a predicted token)", title=run.name)
    axes.grid(alpha=0.3)
    axes.legend()
    path = run / "loss.png"
    with replacing(path) as hidden:
        figure.savefig(hidden)
    return path
