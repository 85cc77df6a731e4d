"""Makes the tables of tests/bench/RESULTS.md of what the benches kept in runs/bench/*.jsonl.

    python tests/bench/results.py                  # `make bench` ends with it

A section a machine, in it one a bench; those of which nothing is kept here stay as they are, and so do the notes under
"# Notes". Of each contestant of a row the newest run of the bench counts, with all its rounds. Ratios are of medians,
to the fastest contestant that is not this project's in the same precision, above 1 where this project is faster; on a
busy machine read those "by CPU", of CPU time. FLOPs are set against the best product of matrices that
tests/bench/peak.py measured in that precision, in any framework.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contestant import KEPT, ROOT, machine

RESULTS = ROOT / "tests/bench/RESULTS.md"
HEAD = """# What the benches measured

Tables by `make bench` (tests/bench/results.py), a section a machine: medians, and the least and the most of the rounds.
"""
NOTES = "# Notes\n"
FIELDS = {"bench": str, "row": str, "contestant": str, "round": int, "values": dict, "machine": dict}
# Benches in the order of the page, with what they are about; one that is not named here comes after them.
BENCHES = {
    "training": "Training steps",
    "finetuning": "Fine-tuning and prediction",
    "decoding": "Decoding",
    "startup": "Imports, and the time to the first step",
    "feeding": "Text to shards, shards to batches",
    "peak": "Products of matrices",
}
ELSEWHERE = ("growth",)  # has a page of its own
# Versions worth a line.
NAMED = (
    "python", "jax", "torch", "transformers", "keras", "keras-hub", "litgpt", "x-transformers", "sentence-transformers",
    "tokenizers", "sentencepiece", "datasets", "grain", "xllamacpp",
)  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A value that contestants are set against each other by: what it is, and which way is better."""

    key: str
    title: str
    higher: bool


MEASURES = (
    Measure("rate", "{unit} a second", True),
    Measure("seconds", "seconds", False),
    Measure("prediction", "seconds of prediction", False),
    Measure("first", "seconds to the first token", False),
)


def read(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of all files in `folder`, and one line for each line that is none."""
    records, faults = [], []
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem in ELSEWHERE:
            continue
        counts: dict[tuple[str, str], int] = {}
        for number, text in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
            try:
                line = json.loads(text)
                found = decoded(line, counts) if "cases" in line else [checked(line)]
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                faults.append(f"{path} line {number} is no record of a bench ({_told(error)}): left out")
            else:
                records += found
    return records, faults


def checked(line: dict[str, Any]) -> dict[str, Any]:
    """A record, with all that `contestant.record` writes; what may be missing gets its default."""
    if not isinstance(line, dict):
        raise ValueError("not an object")
    for name, kind in FIELDS.items():
        if not isinstance(line.get(name), kind):
            raise ValueError(f'"{name}" is {json.dumps(line.get(name))}')
    for measure in MEASURES:
        value = line["values"].get(measure.key)
        if value is not None and not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise ValueError(f'"{measure.key}" is {json.dumps(value)}')
    usual = {"ours": line["contestant"].startswith("ours"), "precision": "float32", "versions": {}, "load": None}
    return usual | {"commit": None, "time": "", "run": ""} | line


def decoded(line: dict[str, Any], counts: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """The records in a line of tests/bench/decoding.py, which holds several rows; `counts` numbers the rounds."""
    found, name = [], line["name"]
    for case, measured in line["cases"].items():
        counts[name, case] = counts.get((name, case), 0) + 1
        rows = int(case.split("x")[0])
        floor = line["bandwidth"][1] / line["bytes"] * rows
        values = {
            "rate": measured["rate"][0], "rate_cpu": measured["rate"][1], "first": measured["first"][0],
            "floor": measured["rate"][1] / floor,
        }  # fmt: skip
        kind = next((kind for kind in ("bf16", "int8") if kind in name), "4-bit" if name == "llama.cpp" else "float32")
        found.append(
            checked(
                {
                    "bench": "decoding", "row": case, "contestant": name, "round": counts[name, case],
                    "ours": name.startswith("ours"), "precision": kind, "values": values, "load": line["load"],
                    "versions": _pairs(line["versions"]), "machine": machine() | {"cores": line["cores"]},
                }
            )  # fmt: skip
        )
    return found


def _pairs(text: str) -> dict[str, str]:
    return {name.lower(): version for name, version in (part.rsplit(" ", 1) for part in text.split(", "))}


def page(records: list[dict[str, Any]], old: str) -> str:
    """The text of RESULTS.md: tables of `records`, and what `old` has of other machines, of other benches and notes."""
    sections, notes = parted(old)
    for name in dict.fromkeys(machine_line(record) for record in records):
        own = [record for record in records if machine_line(record) == name]
        peaks = best_products(own)
        section = sections.setdefault(name, {})
        for bench in dict.fromkeys(record["bench"] for record in own):
            section[bench] = bench_text([record for record in own if record["bench"] == bench], peaks)
    text = HEAD
    for name, section in sections.items():
        text += f"\n## {name}\n"
        for bench in [*(b for b in BENCHES if b in section), *sorted(b for b in section if b not in BENCHES)]:
            text += f"\n### {BENCHES.get(bench, bench)} (`tests/bench/{bench}.py`)\n\n{section[bench]}\n"
    return text + (f"\n{NOTES}{notes}" if notes else "")


def parted(text: str) -> tuple[dict[str, dict[str, str]], str]:
    """What a page holds: machine -> bench -> text, and the notes."""
    body, _, notes = ("\n" + text).partition("\n" + NOTES)
    sections = {}
    for part in re.split(r"^## ", body, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        found = re.split(r"^### .*\(`tests/bench/(\w+)\.py`\)\n", rest, flags=re.MULTILINE)
        sections[name] = {bench: told.strip() for bench, told in zip(found[1::2], found[2::2], strict=True)}
    return sections, notes


def machine_line(record: dict[str, Any]) -> str:
    """The machine in words, by which sections are told apart."""
    facts = record["machine"]
    cores = facts.get("cores")
    parts = [facts.get("device") or facts.get("cpu", "?"), f"{cores} core{'' if cores == 1 else 's'}" if cores else ""]
    parts += [f"{facts['memory'] / 2**30:.0f} GiB"] if facts.get("memory") else []
    return ", ".join(filter(None, parts))


def best_products(records: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Precision -> FLOP/s of the fastest product that was measured, as the median of its rounds."""
    found: dict[str, float] = {}
    for row in _rows(record for record in records if record["bench"] == "peak"):
        for runs in row.values():
            rate = statistics.median(run["values"]["rate"] * run["values"].get("flops", 1) for run in runs)
            kind = runs[0]["precision"]
            found[kind] = max(found.get(kind, 0), rate)
    return found


def bench_text(records: list[dict[str, Any]], peaks: dict[str, float]) -> str:
    """Tables of one bench on one machine, and the circumstances."""
    rows = list(_rows(records))
    tables: dict[str, tuple[Measure, list[Any]]] = {}
    for measure in MEASURES:
        for row in rows:
            parts: dict[str, dict[str, list[dict[str, Any]]]] = {}
            for name, runs in row.items():
                if middle(runs, measure.key) is not None:
                    title = measure.title.format(unit=runs[0]["values"].get("unit", "tokens"))
                    parts.setdefault(title, {})[name] = runs
            for title, part in parts.items():
                tables.setdefault(title, (measure, []))[1].append(part)
    used = [run for row in rows for runs in row.values() for run in runs]
    texts = [table(found, measure, title, peaks) for title, (measure, found) in tables.items()]
    return "\n\n".join([*texts, circumstances(used)])


def _rows(records: Iterable[dict[str, Any]]) -> Iterable[dict[str, list[dict[str, Any]]]]:
    """For each row of a bench: contestant -> its records in the newest run of the bench."""
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for record in records:
        rows.setdefault(record["row"], {}).setdefault(record["contestant"], []).append(record)
    for row in rows.values():
        for name, runs in row.items():
            newest = max(runs, key=lambda run: run["time"])["run"]
            row[name] = [run for run in runs if run["run"] == newest]
    return rows.values()


def middle(runs: list[dict[str, Any]], key: str) -> float | None:
    """The median of a value over rounds; None where none has it."""
    values = [run["values"][key] for run in runs if run["values"].get(key) is not None]
    return statistics.median(values) if values else None


def times(row: dict[str, list[dict[str, Any]]], name: str, key: str, higher: bool) -> str:
    """How many times as fast as the fastest peer a contestant of this project is; "" for a peer, or without one.

    Peers of the same precision count; where there is none, those of float32, which is said.
    """
    first, mine = row[name][0], middle(row[name], key)
    if not first["ours"] or mine is None:
        return ""
    for kind in dict.fromkeys((first["precision"], "float32")):
        peers = [runs for runs in row.values() if not runs[0]["ours"] and runs[0]["precision"] == kind]
        values = [value for value in (middle(runs, key) for runs in peers) if value is not None]
        if values:
            found = mine / max(values) if higher else min(values) / mine
            text = f"{found:.2f}" + (f" (of {kind})" if kind != first["precision"] else "")
            return f"**{text}**" if found > 1 else text
    return ""


def table(rows: list[dict[str, list[dict[str, Any]]]], measure: Measure, title: str, peaks: dict[str, float]) -> str:
    """Markdown: a line a contestant, the fastest of each precision first; columns that would be empty are left out."""
    lines = []
    for row in rows:

        def place(name: str, row=row) -> tuple[bool, float]:
            value = middle(row[name], measure.key)
            return row[name][0]["precision"] != "float32", -value if measure.higher else value

        for number, name in enumerate(sorted(row, key=place)):
            runs = row[name]
            values = [run["values"][measure.key] for run in runs if run["values"].get(measure.key) is not None]
            spread = f" ({number_text(min(values))} to {number_text(max(values))})" if len(values) > 1 else ""
            lines.append(
                {
                    "row": "" if number else runs[0]["row"],
                    "contestant": name,
                    title: number_text(statistics.median(values)) + spread,
                    "rounds": str(len(values)),
                    "times the fastest peer": times(row, name, measure.key, measure.higher),
                    "by CPU": times(row, name, OF_CPU.get(measure.key, ""), measure.higher),
                    **{head: told(runs, peaks) for head, (told, keys) in EXTRAS.items() if measure.key in keys},
                }
            )
    heads = [head for head in lines[0] if any(line[head] for line in lines)]
    text = [heads, ["---"] * len(heads), *([line[head] or "-" * (head != "row") for head in heads] for line in lines)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in text)


def number_text(value: float) -> str:
    """Three digits or more, with thousands set apart."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def _plain(key: str, form: Callable[[float], str]) -> Callable[..., str]:
    def told(runs, _):
        value = middle(runs, key)
        return "" if value is None else form(value)

    return told


def _share(runs: list[dict[str, Any]], peaks: dict[str, float]) -> str:
    rate, flops, peak = middle(runs, "rate"), middle(runs, "flops"), peaks.get(runs[0]["precision"])
    return f"{rate * flops / peak:.0%}" if rate and flops and peak and runs[0]["bench"] != "peak" else ""


def _losses(runs: list[dict[str, Any]], _) -> str:
    both = [run["values"]["losses"] for run in runs if run["values"].get("losses")]
    return " to ".join(f"{statistics.median(values):.3f}" for values in zip(*both, strict=True)) if both else ""


# Where a measure has its counterpart of CPU time, which a busy machine is to be read by.
OF_CPU = {"rate": "rate_cpu", "seconds": "cpu"}
# Further columns: what to write of a contestant's records, and beside which measures.
EXTRAS = {
    "share of the peak": (_share, ("rate",)),
    "a second of CPU": (_plain("rate_cpu", number_text), ("rate",)),
    "seconds of CPU": (_plain("cpu", number_text), ("rate", "seconds")),
    "share of the floor": (_plain("floor", "{:.0%}".format), ("rate",)),
    "peak memory, GiB": (_plain("peak", lambda value: f"{value / 2**30:.2f}"), ("rate", "seconds")),
    "losses": (_losses, ("rate", "seconds")),
    "accuracy": (_plain("accuracy", "{:.3f}".format), ("rate", "seconds")),
}


def circumstances(runs: list[dict[str, Any]]) -> str:
    """When, at which load, with which versions."""
    days = sorted({run["time"][:10] for run in runs if run["time"]})
    loads = [run["load"] for run in runs if run["load"] is not None]
    commits = list(dict.fromkeys(run["commit"] for run in runs if run["commit"]))
    parts = [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else []
    parts += [f"commit {', '.join(commits)}"] if commits else []
    parts += [f"load just before {min(loads):.1f} to {max(loads):.1f}"] if loads else []
    versions: dict[str, list[str]] = {}
    for run in runs:
        told = ", ".join(f"{name} {run['versions'][name]}" for name in NAMED if name in run["versions"])
        if told and run["contestant"] not in versions.setdefault(told, []):
            versions[told].append(run["contestant"])
    lines = [f"{'; '.join(parts)}." if parts else ""]
    lines += [f"{', '.join(names)}: {told}." for told, names in versions.items()]
    text = " ".join(filter(None, lines))
    return text[:1].upper() + text[1:]


def _told(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=KEPT, help="the folder of what was measured")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    records, faults = read(given.kept)
    for fault in faults:
        print(fault, file=sys.stderr)
    if not records:
        print(f"nothing measured in {given.kept}; {given.out} stays as it is", file=sys.stderr)
        return
    old = given.out.read_text("utf-8") if given.out.is_file() else ""
    given.out.write_text(page(records, old), encoding="utf-8")
    benches = sorted({record["bench"] for record in records})
    print(f"{given.out}: {len(records)} measurements of {', '.join(benches)}")


if __name__ == "__main__":
    main()
