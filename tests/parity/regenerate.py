"""Writes tests/golden/*.json and *.npz: what the reference library gives for weights by seed.

    .venv-parity/bin/python -m tests.parity.regenerate

A golden file holds settings, tensor names and shapes, a seed and expected numbers; tests/golden/recipe.py makes the
weights again wherever `make test` runs, without the reference library.
"""

import json
from typing import Any

import numpy as np

from tests.golden.recipe import HERE, batch
from tests.parity import reference

GOLDEN = ("bert-pretraining", "gpt1", "gpt2", "llama2-grouped", "llama3-factor-8", "llama3-factor-32-tied")
BATCH = dict(seed=21, vocab_size=97, rows=2, length=70, shortest=45, left=False)
FIELDS = ("logits", "prediction_logits", "seq_relationship_logits")


def golden(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and the expected arrays of one case."""
    case = reference.CASES[name]
    model = case.model()
    config = model.config.to_dict() | {"architectures": [case.architecture]}
    described = {
        "case": name,
        "seed": case.seed,
        "batch": BATCH,
        # The plain settings only: what a published config.json holds.
        "config": {key: config[key] for key in sorted(config) if not key.startswith("_") and config[key] is not None},
        "shapes": {key: list(parameter.shape) for key, parameter in model.named_parameters()},
    }
    out = reference.run(model, batch(**BATCH))
    expected = {"hidden": out.hidden_states[-1].numpy()}
    for field in FIELDS:
        if getattr(out, field, None) is not None:
            expected[field.replace("prediction_", "")] = getattr(out, field).numpy()
    return described, expected


def main() -> None:
    for name in GOLDEN:
        described, expected = golden(name)
        (HERE / f"{name}.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        np.savez_compressed(HERE / f"{name}.npz", **expected)
        print(f"{name}: {', '.join(f'{key} {list(value.shape)}' for key, value in expected.items())}")


if __name__ == "__main__":
    main()
