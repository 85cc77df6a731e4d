"""A vector a text: the final stream pooled over the text's tokens, so that near meanings have near vectors.

    mean    of all real tokens, special pieces included     encoders, unless their folder says otherwise
    cls     the first real token
    last    the last real token                             decoders: it alone has seen the whole text

Normalised to length 1, their product is the cosine of two texts (Reimers and Gurevych 2019, arXiv:1908.10084).
"""

import functools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.generation.text_batch import longest_text
from zoo.heads import pool, pool_segments
from zoo.model import Model
from zoo.shared_rows import SharedRows, can_share, rows_a_batch, shared_batches
from zoo.text_rows import Batch, batches, framed, in_blocks, rows_within, texts_given
from zoo.tokenizer import Tokenizer

POOLINGS = ("auto", "mean", "cls", "last")
POOLING_FILE, MODULES_FILE = "1_Pooling/config.json", "modules.json"
# As sentence-transformers' folders say it, in the older spelling (one flag each) and the newer (one word).
_STATED = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
    "lasttoken": "last",
}
# Below this a vector has no direction (as torch.nn.functional.normalize has it).
SMALLEST = 1e-12


def embed(
    model: Model,
    params: dict[str, Any],
    texts: Sequence[str] | Sequence[Sequence[int]] | str,
    *,
    tokenizer: Tokenizer,
    pooling: Literal["auto", "mean", "cls", "last"] = "auto",
    normalize: bool = True,
    batch_size: int = 32,
    max_length: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """A vector for each text.

    Texts are framed as the model's family expects (zoo.text_rows), and go through the model in batches of few shapes:
    of like length, or, where they are more than one batch, in rows that they share (zoo.shared_rows). A text's vector
    does not depend on the others, nor on batch_size, beyond rounding.

    Args:
        model, params: of any model of texts; its head is not read.
        texts: E texts, or E lists of ids without special pieces; a single text is one of one.
        tokenizer: the model's.
        pooling: "mean", "cls" or "last" over the real tokens; "auto" is what the checkpoint's folder states
            (1_Pooling/config.json), else the mean for models that see both ways and the last token for causal ones.
        normalize: to length 1.
        batch_size: rows at a time, at most: of long texts fewer, so that memory stays bounded. 1 for one text a time.
        max_length: most tokens a text, special pieces included; what is longer loses its end, with a warning that says
            how many did. None for the model's positions.
        watch: called with (texts done, all texts) after each batch.

    Returns:
        float32 [E, D], in the order of the texts.

    Raises:
        InputError: no texts, one without a token, ids outside the vocabulary, another model's tokenizer, settings out
            of range, vectors that are not finite.
    """
    given = texts_given(texts)
    how = pooling_of(model.config, tokenizer, pooling)
    rows, cut = framed(given, tokenizer, model.config, max_length)
    if cut:
        most = longest_text(model.config) if max_length is None else max_length
        line = f"{cut} of {len(rows)} texts are longer than {most} tokens: their ends are left out"
        warnings.warn(line, stacklevel=2)
    found = np.zeros((len(rows), model.config.hidden_width), np.float32)
    done, waiting = 0, []

    def store(order: np.ndarray, vectors: jax.Array) -> None:
        nonlocal done
        there = order >= 0
        found[order[there]] = np.asarray(vectors)[: len(order)][there]
        done += int(there.sum())
        if watch is not None:
            watch(done, len(rows))

    for batch in _batches(rows, batch_size, tokenizer.pad_id, model.config):
        of_batch = shared_vectors_of if isinstance(batch, SharedRows) else vectors_of
        waiting.append((batch.order, of_batch(model, params, batch, how, normalize)))
        if len(waiting) > 2:  # the next batch is prepared while these are computed
            store(*waiting.pop(0))
    for order, vectors in waiting:
        store(order, vectors)
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(bad):
        raise InputError(f"{len(bad)} of {len(rows)} vectors are not finite, text {bad[0]}'s first: check the model")
    return found


def _batches(
    rows: list[list[int]], batch_size: int, pad_id: int | None, config: ModelConfig
) -> Iterator[Batch | SharedRows]:
    """Batches of like length where all texts make one, or one text is one; else of rows that texts share."""
    longest = longest_text(config)
    if batch_size > 1 and len(rows) > batch_size and can_share(config):
        return shared_batches(
            rows, lambda width: rows_a_batch(width, rows_within(config, width, batch_size)), pad_id, longest
        )
    return batches(rows, batch_size, longest, pad_id, config)


def pooling_of(config: ModelConfig, tokenizer: Tokenizer, pooling: str = "auto") -> str:
    """"mean", "cls" or "last": what `pooling` stands for with this model and this tokenizer's folder.

    Raises:
        InputError: an unknown one, or a folder that states one that is not known here.
    """
    if pooling not in POOLINGS:
        raise InputError(f'pooling "{pooling}" is unknown{nearest(str(pooling), POOLINGS)}')
    if pooling != "auto":
        return pooling
    more = [kind for kind in _modules(tokenizer) if kind not in ("Transformer", "Pooling", "Normalize")]
    if more:
        warnings.warn(f"the checkpoint's own vectors go on through {', '.join(more)}, not read here", stacklevel=3)
    stated = _stated(tokenizer)
    return stated or ("mean" if config.visibility == "full" else "last")


def _stated(tokenizer: Tokenizer) -> str | None:
    said = _json(tokenizer, POOLING_FILE)
    if not isinstance(said, dict):
        return None
    modes = said.get("pooling_mode")
    modes = [modes] if isinstance(modes, str) else modes if isinstance(modes, list) else []
    modes = modes or [name for name, value in said.items() if name.startswith("pooling_mode") and value is True]
    if not modes:
        return None
    if len(modes) > 1 or modes[0] not in _STATED:
        named = " and ".join(str(mode) for mode in modes)
        raise InputError(f"the checkpoint pools by {named:.80}, which is not known here; name mean, cls or last")
    return _STATED[modes[0]]


def _modules(tokenizer: Tokenizer) -> list[str]:
    said = _json(tokenizer, MODULES_FILE)
    kinds = [entry.get("type") for entry in said if isinstance(entry, dict)] if isinstance(said, list) else []
    return [kind.rsplit(".", 1)[-1] for kind in kinds if isinstance(kind, str)]


def _json(tokenizer: Tokenizer, name: str) -> Any:
    try:
        return json.loads(tokenizer.files().get(name, b"null"))
    except (ValueError, RecursionError):
        return None


def vectors_of(model: Model, params: Any, batch: Batch, pooling: str, normalize: bool = True) -> jax.Array:
    """float32 [B, D]: the vectors of one batch, `pooling` being "mean", "cls" or "last"."""
    model = Model(in_blocks(model.config, batch.tokens.shape[1]))
    return vectors_program(params, batch.tokens, batch.mask, model=model, pooling=pooling, normalize=normalize)


@functools.partial(jax.jit, static_argnames=("model", "pooling", "normalize"))
def vectors_program(
    params: Any, tokens: jax.Array, mask: jax.Array, *, model: Model, pooling: str, normalize: bool
) -> jax.Array:
    hidden = model.apply(params, tokens, padding_mask=mask, logits_at=False).hidden
    pooled = pool(hidden.astype(jnp.float32), mask, pooling)
    return normalized(pooled) if normalize else pooled


def shared_vectors_of(
    model: Model, params: Any, batch: SharedRows, pooling: str, normalize: bool = True
) -> jax.Array:
    """float32 [B, S, D]: `vectors_of` of rows that texts share; zeros in places without a text."""
    model = Model(in_blocks(model.config, batch.tokens.shape[1]))
    return shared_program(
        params, batch.tokens, batch.segment_ids, model=model, pooling=pooling, places=batch.order.shape[1],
        normalize=normalize,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("model", "pooling", "places", "normalize"))
def shared_program(
    params: Any, tokens: jax.Array, segment_ids: jax.Array, *, model: Model, pooling: str, places: int, normalize: bool
) -> jax.Array:
    given = {"padding_mask": segment_ids, "segment_ids": segment_ids}
    hidden = model.apply(params, tokens, **given, logits_at=False).hidden
    pooled = pool_segments(hidden.astype(jnp.float32), segment_ids, pooling, places)
    return normalized(pooled) if normalize else pooled


def normalized(vectors: jax.Array) -> jax.Array:
    """[..., D] to length 1."""
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)
