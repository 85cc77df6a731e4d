"""Claims about what lies beside the weights: the tokenizer, and the way out to a folder and back."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from zoo.check.claims import Measured, NotApplicable
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import ROLES, Tokenizer

SENTENCE = "The quick brown fox jumps over the lazy dog, and the old man watches it from 12 metres away."


def ids_in_range(tokenizer: Tokenizer | None, config: ModelConfig) -> Measured:
    """Every id that the tokenizer can give has a row in the token table."""
    size = _present(tokenizer).vocab_size
    rows = config.vocab_size
    return Measured(size <= rows, f"{size:,} pieces", f"{rows:,} rows", size, rows)


def special_pieces(
    tokenizer: Tokenizer | None, config: ModelConfig, special_ids: dict[str, tuple[int, ...]]
) -> Measured:
    """The pieces that the model's use needs, and the ids that its settings name, are the tokenizer's."""
    tokenizer = _present(tokenizer)
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    faults = []
    if config.visibility == "full":
        wanted = ("cls", "sep", *(("mask",) if config.head == "masked_lm" else ()))
        faults += [f"no {role.upper()}" for role in wanted if ids[role] is None]
        if ids["cls"] is None and ids["bos"] is not None:  # RoBERTa's <s> and </s> under their other names
            faults = [fault for fault in faults if fault not in ("no CLS", "no SEP")]
    elif ids["bos"] is None and ids["eos"] is None:
        faults.append("neither BOS nor EOS")
    for role, named in special_ids.items():
        if ids.get(role) is not None and ids[role] not in named:
            faults.append(f"{role.upper()} is {ids[role]} but the settings say {', '.join(map(str, named))}")
    there = ", ".join(f"{role.upper()} {at}" for role, at in ids.items() if at is not None)
    bound = "as the settings say" if special_ids else "those its use needs"
    return Measured(not faults, "; ".join(faults) or there, bound)


def same_tokenizer(tokenizer: Tokenizer | None, fingerprint: str) -> Measured:
    """The tokenizer in the folder is the one whose ids the weights have learnt."""
    found = _present(tokenizer).fingerprint
    return Measured(found == fingerprint, f"fingerprint {found[:12]}", fingerprint[:12])


def round_trip(tokenizer: Tokenizer | None) -> Measured:
    """Encoded and decoded, a text is itself, but for case and spaces, which some vocabularies drop on purpose.

    English, or what the vocabulary's own pieces spell where it cannot write that (molecules, another script).
    """
    tokenizer = _present(tokenizer)
    text, ids = SENTENCE, tokenizer.encode(SENTENCE)
    if not ids or tokenizer.unk_id in ids:
        plain = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
        text = tokenizer.decode(plain[:: max(1, len(plain) // 12)][:12])
        ids = tokenizer.encode(text)
    back = tokenizer.decode(ids)
    same = _bare(back) == _bare(text) and bool(ids)
    return Measured(same, f"{len(ids)} ids" if same else f"{text[:40]!r} became {back[:40]!r}", "the same text")


def there_and_back(model: Model, params: dict[str, Any]) -> Measured:
    """Exported, and read again tensor by tensor: every parameter has the same bits."""
    from zoo.checkpoints import export, hugging_face
    from zoo.checkpoints.placing import flatten
    from zoo.stack import unstack_layers

    try:
        hugging_face.published_config(model.config)
    except InputError as reason:
        raise NotApplicable(f"has no published folder: {reason}") from None
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    with tempfile.TemporaryDirectory(prefix="oneblock-check-") as temporary:
        if shutil.disk_usage(temporary).free < size * 1.1:
            raise NotApplicable(f"needs {size / 1e9:.1f} GB of free disk in {tempfile.gettempdir()} (TMPDIR)")
        folder = Path(temporary) / "out"
        export(model, params, folder)
        ours = flatten(unstack_layers(params, model.config) if model.config.scan else params)
        left, differ = set(ours), []
        for path, array in hugging_face.stored_parameters(folder):
            left.discard(path)
            if np.asarray(ours[path]).tobytes() != np.ascontiguousarray(array).tobytes():
                differ.append(path)
    differ = sorted(left) + differ
    text = f"{differ[0]} and {len(differ) - 1} more differ" if differ else f"{len(ours)} tensors with the same bits"
    return Measured(not differ, text, "every bit", len(differ), 0)


def _present(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise NotApplicable("comes with no tokenizer")
    return tokenizer


def _bare(text: str) -> str:
    return "".join(text.split()).casefold()
