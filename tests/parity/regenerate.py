"""Writes tests/golden/*.json and *.npz: what the reference library gives for weights by seed.

    .venv-parity/bin/python -m tests.parity.regenerate

A golden file holds settings, tensor names and shapes, a seed and expected numbers; tests/golden/recipe.py makes the
weights again wherever `make test` runs, without the reference library.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.golden.recipe import HERE, batch, images, write_folder
from tests.parity import decoders, encoders, reference, test_vision

TEXT = (
    "bert-pretraining",
    "gpt1",
    "gpt2",
    "llama2-grouped",
    "llama3-factor-8",
    "llama3-factor-32-tied",
    "roberta-masked-lm",
    "distilbert-classifier",
    "albert-pretraining",
    "electra-discriminator",
    "modernbert-token",
)
VISION = ("vit-classifier", "deit-teacher", "dinov2-registers")
DECODERS = (
    "mistral",
    "mixtral",
    "qwen2-window",
    "qwen3",
    "smollm3",
    "yarn",
    "gemma",
    "gemma2",
    "gemma3-scaled",
    "neox",
    "opt",
    "opt-350m",
    "phi3",
    "olmo2",
    "stablelm",
    "stablelm-2-12b",
)
GOLDEN = (*TEXT, *DECODERS, *VISION)
OTHER_NAMES = (*VISION, "mixtral")  # in memory than in their files
CASES = reference.CASES | encoders.CASES | decoders.CASES | test_vision.CASES
BATCH = dict(seed=21, vocab_size=97, rows=2, length=70, shortest=45, left=False)
IMAGES = dict(seed=21, rows=2, side=40, channels=3)
FIELDS = ("logits", "prediction_logits", "seq_relationship_logits", "sop_logits")


def golden(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and the expected arrays of one case."""
    case = CASES[name]
    model, shapes = under_saved_names(case) if name in OTHER_NAMES else in_memory(case)
    config = model.config.to_dict() | {"architectures": [case.architecture]}
    described = {
        "case": name,
        "seed": case.seed,
        "images" if name in VISION else "batch": IMAGES if name in VISION else BATCH,
        # The plain settings only: what a published config.json holds.
        "config": {key: config[key] for key in sorted(config) if not key.startswith("_") and config[key] is not None},
        "shapes": shapes,
    }
    if name in VISION:
        out = test_vision.run(model, images(**IMAGES))
    else:
        out = (encoders if name in encoders.CASES else reference).run(model, batch(**BATCH))
    expected = {"hidden": out.hidden_states[-1].numpy()}
    for field in FIELDS:
        if getattr(out, field, None) is not None:
            short = "seq_relationship_logits" if field == "sop_logits" else field.replace("prediction_", "")
            expected[short] = getattr(out, field).numpy()
    return described, expected


def in_memory(case: reference.Case) -> tuple[Any, dict[str, list[int]]]:
    """The model with weights seeded by their names, which its file has too."""
    model = case.model()
    return model, {key: list(parameter.shape) for key, parameter in model.named_parameters()}


def under_saved_names(case: reference.Case) -> tuple[Any, dict[str, list[int]]]:
    """The same for models whose tensors have other names in memory than in their file: seeded by the file's."""
    with tempfile.TemporaryDirectory() as made:
        model = case.model()
        reference.save(model, Path(made) / "first")
        stored = load_file(Path(made) / "first" / "model.safetensors")
        shapes = {key: list(tensor.shape) for key, tensor in sorted(stored.items())}
        settings = json.loads((Path(made) / "first" / "config.json").read_text())
        write_folder(Path(made) / "second", settings, shapes, case.seed)
        return type(model).from_pretrained(Path(made) / "second", attn_implementation="eager").eval(), shapes


def main() -> None:
    for name in GOLDEN:
        described, expected = golden(name)
        (HERE / f"{name}.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        np.savez_compressed(HERE / f"{name}.npz", **expected)
        print(f"{name}: {', '.join(f'{key} {list(value.shape)}' for key, value in expected.items())}")


if __name__ == "__main__":
    main()
