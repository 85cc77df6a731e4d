"""The laws that tests/bench/growth.py looks for: which quantity goes with which power of what, by theory and as fitted.

    y = c x^p        log y = log c + p log x, by least squares over the upper half of a sweep

`limit` is p where the swept term alone is left. At the sizes of a bench other terms are left beside it, so where a
formula of the project counts them all, `expected` is the fit to that formula's values at the same points: FLOPs by
train.plan.formulas, bytes by train.plan.memory. A fit departs where it is more than 0.1 and twice its standard error
away from `expected`; then NOTES says why.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from growth_points import settings_of

FEWEST = 3  # points of a fit
NEAR = 0.1


@dataclass(frozen=True)
class Fit:
    """y = scale x^exponent, and the standard error of the exponent.

    Attributes:
        first, last: of the points that were fitted.
        points: how many.
    """

    exponent: float
    error: float
    scale: float
    first: float
    last: float
    points: int

    def at(self, x: float) -> float:
        return self.scale * x**self.exponent


def upper_half(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The half of the points with the largest x, rounded up, and at least FEWEST."""
    points = sorted(points)
    return points[-max(FEWEST, -(-len(points) // 2)) :]


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """The power law nearest to points (x, y) by least squares of logarithms, each point counting alike.

    The standard error is sqrt(sum r^2 / (n - 2) / sum (log x - mean)^2) for residuals r.

    Raises:
        ValueError: fewer than three points, one that is not above 0, or a single x.
    """
    if len(points) < FEWEST:
        raise ValueError(f"{len(points)} points are too few to fit a power law with its error; {FEWEST} will do")
    if not all(0 < x < math.inf and 0 < y < math.inf for x, y in points):
        raise ValueError("a power law is fitted to finite numbers above 0")
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
    spread = sum((x - middle[0]) ** 2 for x, _ in logs)
    if spread < 1e-12:
        raise ValueError("a power law is fitted to more than one x")
    exponent = sum((x - middle[0]) * (y - middle[1]) for x, y in logs) / spread
    constant = middle[1] - exponent * middle[0]
    rest = sum((y - constant - exponent * x) ** 2 for x, y in logs)
    error = math.sqrt(rest / (len(logs) - 2) / spread)
    xs = [x for x, _ in points]
    return Fit(exponent, error, math.exp(constant), min(xs), max(xs), len(points))


def work_of(settings: dict[str, Any]) -> Any:
    """The step as the formulas of train.plan take it."""
    from train.plan.formulas import Work

    return Work(*settings_of(settings), {})


def flops(settings: dict[str, Any]) -> float:
    """Of a step as it runs. train.plan.formulas has blockwise attention make every score; ours passes over those blocks
    that nobody sees, and computes 3.5 times two products: forward, anew, and backward."""
    from train.plan.formulas import hardware_flops
    from zoo.blockwise import BLOCK

    work = work_of(settings)
    total, config, length = hardware_flops(work), work.config, work.train.seq_len
    if work.kernel == "blockwise":
        blocks = -(-length // BLOCK)
        scores = 4.0 * config.num_layers * config.num_heads * config.head_dim * length
        total -= 3.5 * scores * (1 - (blocks + 1) / (2 * blocks)) * settings["batch"] * length
    return total


def flops_a_token(settings: dict[str, Any]) -> float:
    return flops(settings) / (settings["batch"] * settings["length"])


def program_bytes(settings: dict[str, Any]) -> float:
    """Of a step."""
    from train.plan.memory import memory

    return sum(memory(work_of(settings)).values())


@dataclass(frozen=True)
class Law:
    """One quantity of one sweep.

    Attributes:
        figure, panel: where it is drawn: a file, and the label of an axis in it.
        sweep: whose points.
        value: key of what was measured.
        name: in the table and the legend.
        limit: see the module's text.
        formula: settings of a point -> what theory says is in proportion to the value; None: the limit is expected.
    """

    figure: str
    panel: str
    sweep: str
    value: str
    name: str
    limit: float
    formula: Callable[[dict[str, Any]], float] | None = None

    @property
    def key(self) -> str:
        return f"{self.sweep}: {self.value}"


def _laws() -> tuple[Law, ...]:
    laws: list[Law] = []
    for sweep, memory in (("length, materialised", 2), ("length, blockwise", 1)):
        kind = sweep.split(", ")[1]
        laws += [
            Law("length", "seconds", sweep, "seconds", f"time of a step, {kind}", 2, flops),
            Law("length", "", sweep, "token_seconds", f"time a token, {kind}", 1, flops_a_token),
            Law("length", "bytes", sweep, "program", f"memory of the program, {kind}", memory, program_bytes),
            Law("length", "bytes", sweep, "process", f"memory of the process, {kind}", memory, program_bytes),
        ]
    for figure, sweep, kind in (
        ("batch", "batch", ""),
        ("depth", "depth, all kept", ", all kept"),
        ("depth", "depth, remat", ", remat full"),
        ("vocabulary", "vocabulary", ""),
    ):
        laws += [
            Law(figure, "seconds", sweep, "seconds", f"time of a step{kind}", 1, flops),
            Law(figure, "bytes", sweep, "program", f"memory of the program{kind}", 1, program_bytes),
            Law(figure, "bytes", sweep, "process", f"memory of the process{kind}", 1, program_bytes),
        ]
    laws.append(Law("vocabulary", "bytes", "vocabulary", "activations", "temporaries of 1,024 tokens more", 0))
    for sweep in ("devices, fsdp", "devices, data"):
        kind = sweep.split(", ")[1]
        laws += [
            Law("devices", "seconds of CPU, all devices together", sweep, "seconds", f"time of a step, {kind}", 0),
            Law("devices", "bytes a device sends / (4 P (1 - 1/n))", sweep, "share", f"bytes sent, {kind}", 0),
        ]
    laws += [
        Law("corpus", "seconds", "corpus", "seconds", "time to prepare", 1),
        Law("corpus", "bytes", "corpus", "process", "memory to prepare", 0),
        Law("opening", "seconds", "opening", "open_seconds", "time to open shards", 0),
        Law("opening", "seconds", "opening", "index_seconds", "time to index rows, once", 1),
        Law("opening", "seconds", "opening", "again_seconds", "time to open rows, indexed", 0),
        Law("opening", "seconds", "opening", "batch_seconds", "time to the first batch", 0),
        Law("opening", "bytes", "opening", "open_memory", "memory to open shards", 0),
        Law("opening", "bytes", "opening", "index_memory", "memory to index rows, once", 1),
        Law("opening", "bytes", "opening", "again_memory", "memory to open rows, indexed", 0),
        Law("opening", "bytes", "opening", "batch_memory", "memory to the first batch", 0),
    ]
    return tuple(laws)


LAWS = _laws()


@dataclass(frozen=True)
class Found:
    """A law and what was measured of it.

    Attributes:
        law: what was looked for.
        points: (x, y), ascending.
        fitted: over their upper half; None where there are too few points.
        expected: exponent by the law's formula at the same points, or its limit.
    """

    law: Law
    points: tuple[tuple[float, float], ...]
    fitted: Fit | None
    expected: float

    @property
    def departs(self) -> bool:
        if self.fitted is None:
            return False
        return abs(self.fitted.exponent - self.expected) > max(NEAR, 2 * self.fitted.error)


def find(law: Law, records: Sequence[dict[str, Any]]) -> Found:
    """A law among the points of its sweep.

    Args:
        law: one of LAWS.
        records: values of all points, with "sweep", "x" and "settings".
    """
    own = sorted((r for r in records if r["sweep"] == law.sweep and law.value in r), key=lambda record: record["x"])
    points = tuple((float(r["x"]), float(r[law.value])) for r in own)
    if len(points) < FEWEST:
        return Found(law, points, None, law.limit)
    fitted = fit(upper_half(points))
    expected = law.limit
    if law.formula is not None:
        theory = [(float(r["x"]), law.formula(r["settings"])) for r in own if r["x"] >= fitted.first]
        expected = fit(theory).exponent
    return Found(law, points, fitted, expected)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """dy / dx of the straight line by least squares."""
    middle = [sum(values) / len(points) for values in zip(*points, strict=True)]
    return sum((x - middle[0]) * (y - middle[1]) for x, y in points) / sum((x - middle[0]) ** 2 for x, _ in points)


def levels(records: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What is known not by its power alone: (quantity, measured, expected)."""
    from zoo import remat

    rows = []
    for sweep, told in (("depth, all kept", "all kept"), ("depth, remat", "remat full")):
        measured = [r for r in _ascending(records, sweep) if "temporaries" in r]
        own = upper_half([(r["x"], r["temporaries"]) for r in measured])
        if len(own) < FEWEST:
            continue
        settings = measured[-1]["settings"]
        config = settings_of(settings)[0]
        layer, kept = 4e-6 * _layer_parameters(config), remat.kept_numbers(config)
        if kept is None:
            whole = slope([(r["x"], program_bytes(r["settings"])) for r in measured]) / 1e6
            expected = f"{whole - 3 * layer:.2f} MB, by train/plan/memory.py"
        else:
            stream = 4e-6 * settings["batch"] * settings["length"] * kept
            expected = f"{stream + layer:.2f} MB: the stream, {stream:.2f}, and a gradient, {layer:.2f}"
        rows.append((f"temporaries a layer, {told}", f"{slope(own) / 1e6:.2f} MB", expected))
    for sweep, expected in (
        ("devices, fsdp", "3: gathered twice, scattered once"),
        ("devices, data", "2, and V D / P more: the tied table's gradient is summed for look-up and read-out apart"),
    ):
        kind = sweep.split(", ")[1]
        shares = [f"{r['share']:.2f} at {r['x']}" for r in _ascending(records, sweep) if "share" in r]
        if shares:
            rows.append((f"bytes a device sends, {kind}, / 4 P (1 - 1/n)", ", ".join(shares), expected))
        times = [(r["x"], r["seconds"]) for r in _ascending(records, sweep)]
        if len(times) > 1 and times[0][0] == 1:
            more = ", ".join(f"{seconds / times[0][1]:.2f} at {x}" for x, seconds in times[1:])
            rows.append((f"time of n devices / time of one, {kind}", more, "1, and what they say to each other"))
    for record in _ascending(records, "opening")[-1:]:
        memory = record.get("again_memory")
        if memory:
            rows.append(("memory to open a row", f"{memory / record['rows']:.0f} bytes", "-"))
    for record in _ascending([record for record in records if "tokens" in record], "corpus")[-1:]:
        rows.append(("prepared a second of CPU", f"{record['bytes'] / record['seconds'] / 1e6:.2f} MB of text", "-"))
    return rows


def _layer_parameters(config: Any) -> int:
    from zoo.summary import count_parameters

    more, fewer = (sum(count_parameters(config.replace(num_layers=count)).values()) for count in (2, 1))
    return more - fewer


def _ascending(records: Sequence[dict[str, Any]], sweep: str) -> list[dict[str, Any]]:
    return sorted((record for record in records if record["sweep"] == sweep), key=lambda record: record["x"])
