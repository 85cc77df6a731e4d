"""`python -m zoo import` and `python -m zoo export` as plain functions; zoo/cli.py puts them on the command line."""

from pathlib import Path
from typing import Literal

from zoo.checkpoints import export as export_folder
from zoo.checkpoints import load, run_folder
from zoo.checkpoints.whole_folder import whole_folder
from zoo.packages import CHECKPOINTS, fetch
from zoo.tokenizer import Tokenizer, load_tokenizer
from zoo.tokenizer_files import SENTENCEPIECE_NAMES


def import_checkpoint(path: str, out: Path, overwrite: bool = False) -> None:
    """Turn a published checkpoint into a run folder, from which training and evaluation start.

    Args:
        path: a Hugging Face folder, or the name of an embedded checkpoint package.
        out: the run folder to make: config.json, checkpoints/0, tokenizer/.
        overwrite: replace a folder that is not empty.
    """
    with whole_folder(Path(out).absolute(), overwrite) as work:
        model, params = load(path)
        run_folder.save(model, params, work, _tokenizer(path))


def export_checkpoint(
    run: str, out: Path, dtype: Literal["float32", "bfloat16", "float16"] | None = None, overwrite: bool = False
) -> None:
    """Turn a run (or any checkpoint that loads) into a folder that transformers opens.

    Args:
        run: a run folder, or one step of it (run/checkpoints/<step>).
        out: the folder to make: config.json, model.safetensors, tokenizer files.
        dtype: number type of the weights; by default that of the run.
        overwrite: replace a folder that is not empty.
    """
    model, params = load(run)
    export_folder(model, params, out, tokenizer=_tokenizer(run), dtype=dtype, overwrite=overwrite)


def _tokenizer(path: str) -> Tokenizer | None:
    """The tokenizer that comes with a checkpoint, or None where it has none."""
    place = Path(path)
    if not place.exists() and path in CHECKPOINTS:
        place = fetch(path)
    for folder in (place, place.parent.parent if place.parent.name == run_folder.CHECKPOINTS else place):
        for name in ("tokenizer.json", *SENTENCEPIECE_NAMES, "vocab.txt", "vocab.json"):
            if (folder / name).is_file() or (folder / "tokenizer" / name).is_file():
                return load_tokenizer(folder)
    return None
