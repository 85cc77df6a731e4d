"""The subcommands of `python -m eval`, and the `oneblock` command: all three command lines from any folder."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

# name -> "module:function"; imported when called, so that --help is quick
SUBCOMMANDS: dict[str, str] = {
    "demo": "eval.demo:demo",
    "tasks": "eval.task_list:show",
    "finetune": "eval.commands:finetune",
    "merge": "eval.ways.adapter_folder:merge",
    "midtrain": "eval.ways.midtrain:midtrain",
    "transfer": "eval.experiment.transfer_command:transfer",
    "compare": "eval.experiment.compare:compare",
    "perplexity": "eval.language.language_commands:perplexity",
    "exposure": "eval.language.language_commands:exposure",
    "fewshot": "eval.language.fewshot_command:fewshot",
    "choose": "eval.language.choice_command:choose",
    "harness": "eval.language.harness_command:harness",
    "glue": "eval.scores.glue_command:show",
    "submit": "eval.scores.submission:submit",
    "export-texts": "eval.export_texts:export_texts",
}

EVAL_EXAMPLES = ("python -m eval demo", "python -m eval finetune --help")
PACKAGES = {"zoo": "zoo.__main__:main", "train": "train.__main__:main", "eval": "eval.cli:evaluate"}
ONEBLOCK_EXAMPLES = ("oneblock zoo list", "oneblock train pretrain --help", "oneblock eval demo")


def refuse_shadows(*packages: str) -> None:
    """Exits with one line if a package would be imported from elsewhere than beside this one: a local train.py, say."""
    home = Path(__file__).resolve().parents[1]
    for package in packages:
        spec = importlib.util.find_spec(package)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found is not None and found != home / package / "__init__.py":
            line = f'{found} hides the package "{package}": rename it, or run from another folder'
            print(f"error: {line}", file=sys.stderr)
            sys.exit(2)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """How good a model is, and what its pre-training bought: tasks, fine-tuning, reports."""
    refuse_shadows("zoo", "train")
    from zoo.command_line import run

    return run("eval", SUBCOMMANDS, argv, about=evaluate.__doc__, examples=EVAL_EXAMPLES)


def main(argv: Sequence[str] | None = None) -> int:
    """The `oneblock` command. Returns the exit code."""
    try:
        return _oneblock(argv)
    except KeyboardInterrupt:  # while its parts were being imported
        return 130


def _oneblock(argv: Sequence[str] | None) -> int:
    refuse_shadows("zoo", "train")
    from zoo.command_line import load, run

    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words and words[0] in PACKAGES:
        return load(PACKAGES[words[0]])(words[1:])
    if words == ["--version"]:
        from importlib.metadata import version

        print(f"oneblock {version('oneblock')}")
        return 0
    return run("oneblock", PACKAGES, words, about="One Transformer block, set differently.", examples=ONEBLOCK_EXAMPLES)
