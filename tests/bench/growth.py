"""How time and memory of a training step, and of preparing and opening a corpus, grow with their sizes.

    make bench BENCH=growth                                        # what is not measured yet; then docs/growth
    python tests/bench/growth.py --sweeps batch depth --again      # some sweeps anew
    python tests/bench/growth.py --sweeps                          # the page again

Each point is a process of its own on one core (tests/bench/growth_points.py), kept in runs/bench/growth.jsonl: points
there of the same settings and the same jax are not run again, and a point that fails costs itself alone. Fits and what
they are expected to be: tests/bench/growth_laws.py. On CPUs times are of CPU, which a busy machine stretches less than
the wall's. About twelve minutes on an idle core, and 3 GiB of memory at the most.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contestant import ENVIRONMENT, KEPT, ROOT, Failed, record, result_of, versions

MODEL = {
    "vocab_size": 512, "embed_dim": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "head_dim": 32,
    "mlp_dim": 256, "max_positions": 8192, "tie_embeddings": True, "scan": True, "attention_kernel": "xla",
}  # fmt: skip
WIDE = MODEL | {"embed_dim": 128, "head_dim": 64, "mlp_dim": 512}
PROGRAM = Path(__file__).with_name("growth_points.py")


@dataclass(frozen=True)
class Point:
    """One measurement: settings of tests/bench/growth_points.py, and the x of its sweep."""

    sweep: str
    x: float
    settings: dict[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        return f"{self.sweep}, {self.x:,}"

    def identity(self, jax: str | None) -> str:
        """Equal where a measurement of one is a measurement of the other."""
        return json.dumps([self.sweep, self.x, self.settings, jax], sort_keys=True)


def step(batch: int, length: int, model: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "step", "batch": batch, "length": length, "model": model, **more}


# Of each sweep: what is held still, the values of x, and x -> settings. Sizes are such that the term that grows is most
# of the whole in the upper half, where the fit is.
SWEEPS: dict[str, tuple[str, tuple[int, ...], Callable[[int], dict[str, Any]]]] = {
    "length, materialised": (
        "B 1, L 2, D 64, V 512; kernel xla, scores [T, T] kept",
        (512, 1024, 1536, 2048, 3072, 4096, 6144),
        lambda x: step(1, x, MODEL),
    ),
    "length, blockwise": (
        "the same with kernel blockwise",
        (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
        lambda x: step(1, x, MODEL | {"attention_kernel": "blockwise"}),
    ),
    "batch": (
        "T 128, L 2, D 128, V 512",
        (2, 4, 8, 16, 32, 64, 128),
        lambda x: step(x, 128, WIDE),
    ),
    "depth, all kept": (
        "B 16, T 256, D 64, V 512",
        (1, 2, 4, 6, 8, 12, 16),
        lambda x: step(16, 256, MODEL | {"num_layers": x}),
    ),
    "depth, remat": (
        'the same with remat "full"',
        (1, 2, 4, 6, 8, 12, 16),
        lambda x: step(16, 256, MODEL | {"num_layers": x, "remat": "full"}),
    ),
    "vocabulary": (
        "B 8, T 128, L 1, D 64; logits in chunks of 16 MiB",
        (1024, 2048, 4096, 8192, 16384, 32768, 65536),
        lambda x: step(8, 128, MODEL | {"num_layers": 1, "vocab_size": x}, activations=True),
    ),
    "devices, fsdp": (
        "B 16, T 64, L 4, D 128, V 512; parameters over all devices",
        (1, 2, 4, 8, 16),
        lambda x: step(16, 64, WIDE | {"num_layers": 4}, devices=x, mesh=f"fsdp={x}", count=True),
    ),
    "devices, data": (
        "the same, parameters whole on each",
        (1, 2, 4, 8, 16),
        lambda x: step(16, 64, WIDE | {"num_layers": 4}, devices=x, mesh=f"data={x}", count=True),
    ),
    "corpus": (
        "made-up words by Zipf's law in a .jsonl, a vocabulary of 4,096 pieces",
        tuple(2**power * 1_000_000 for power in range(7)),
        lambda x: {"kind": "corpus", "bytes": x},
    ),
    "opening": (
        "documents of 512 ids on average, rows of 129, 8 a batch",
        tuple(2**power * 1_000_000 for power in range(7)),
        lambda x: {"kind": "opening", "ids": x, "row": 129, "batch": 8},
    ),
}


def points(sweeps: Sequence[str] = tuple(SWEEPS)) -> Iterator[Point]:
    """All points of these sweeps, in their order."""
    for name in sweeps:
        _, xs, settings = SWEEPS[name]
        yield from (Point(name, x, settings(x)) for x in xs)


def read(kept: Path) -> dict[str, dict[str, Any]]:
    """What was measured, the newest of each point: identity -> record; a line that is none is passed over."""
    found = {}
    for text in kept.read_text("utf-8").splitlines() if kept.is_file() else []:
        try:
            line = json.loads(text)
            values = line["values"]
            point = Point(values["sweep"], values["x"], values["settings"])
            found[point.identity(line["versions"].get("jax"))] = line
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def measured_by_process(point: Point) -> dict[str, Any]:
    """Runs a point in a process of its own.

    Raises:
        Failed: it ended with an error.
    """
    environment = ENVIRONMENT | {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    return result_of([sys.executable, str(PROGRAM), json.dumps(point.settings)], environment)


def measure(
    wanted: Sequence[Point],
    kept: Path,
    *,
    again: bool = False,
    run: Callable[[Point], dict[str, Any]] = measured_by_process,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Measures those of `wanted` that `kept` has not, adding a line each.

    Args:
        wanted: points.
        kept: a .jsonl.
        again: all of them.
        run: point -> values.
        say: told of each point.

    Returns:
        A line for each that failed.
    """
    have = set() if again else set(read(kept))
    jax = versions().get("jax")
    todo = [point for point in wanted if point.identity(jax) not in have]
    say(f"{len(wanted) - len(todo)} points of {len(wanted)} are measured; {len(todo)} to go")
    failed = []
    for number, point in enumerate(todo, 1):
        began = time.monotonic()
        try:
            values = run(point)
        except Failed as error:
            words = [line for line in str(error).splitlines() if line.strip()]
            failed.append(f"{point.name}: failed: {words[-1].strip() if words else 'killed, without a word'}")
            say(failed[-1])
            continue
        values |= {"sweep": point.sweep, "x": point.x, "settings": point.settings}
        record("growth", point.name, "ours", 1, values, kept=kept)
        say(f"{number} of {len(todo)}: {point.name}: {told(values)} ({time.monotonic() - began:.0f} s in all)")
    return failed


def told(values: dict[str, Any]) -> str:
    """A few words on what was measured."""
    seconds = values.get("seconds", values.get("again_seconds"))
    memory = values.get("program", values.get("process", values.get("again_memory")))
    return ", ".join(
        [f"{seconds * 1e3:,.3g} ms" if seconds is not None else "", f"{memory / 1e6:,.4g} MB" if memory else ""]
    )


def facts_of(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the page says of the circumstances."""
    newest = max(lines, key=lambda line: line["time"])
    where, loads = newest["machine"], [line["load"] for line in lines]
    shown = {name: newest["versions"][name] for name in ("python", "jax", "numpy") if name in newest["versions"]}
    clocks = {line["values"].get("clock") for line in lines}
    busy = f"load before a point {min(loads):.1f} to {max(loads):.1f}"
    return {
        "machine": f"{where['cpu']}, one of its cores a point; {busy}",
        "versions": ", ".join(f"{name} {version}" for name, version in shown.items()),
        "clock": "seconds of the wall" if clocks == {"wall"} else "seconds of CPU",
        "settings": {name: text for name, (text, _, _) in SWEEPS.items()},
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", nargs="*", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--again", action="store_true", help="also what is measured already")
    parser.add_argument("--kept", type=Path, default=KEPT / "growth.jsonl", help="where measurements are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/growth", help="the page's folder")
    parser.add_argument("--rounds", help=argparse.SUPPRESS)  # what `make bench` tells all benches; a point is run once
    given = parser.parse_args(words)
    wanted = list(points(given.sweeps))
    failed = measure(wanted, given.kept, again=given.again, say=lambda line: print(line, flush=True))
    known, jax = read(given.kept), versions().get("jax")
    lines = [known[point.identity(jax)] for point in points() if point.identity(jax) in known]
    if not lines:
        sys.exit("error: nothing is measured")
    os.environ["JAX_PLATFORMS"] = "cpu"  # formulas alone
    sys.path.append(str(ROOT))
    from growth_page import write

    found = write(given.out, [line["values"] for line in lines], facts_of(lines))
    for one in found:
        if one.fitted is not None:
            mark = "   departs" if one.departs else ""
            told = f"{one.fitted.exponent:6.2f} ± {one.fitted.error:.2f}, expected {one.expected:.2f}"
            print(f"{one.law.sweep:22} {one.law.name:42} {told}{mark}")
    print(f"written: {given.out / 'GROWTH.md'}")
    for text in failed:
        print(f"error: {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
