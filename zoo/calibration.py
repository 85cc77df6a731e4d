"""zoo.quantize: weights to int8, the columns that stay float chosen by what the model's activations are on texts."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.call_checks import as_array
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.int8 import require_float, rounded
from zoo.layer_config import Int8
from zoo.model import Model
from zoo.parameter_checks import check_parameters
from zoo.stack import stack_layers, unstack_layers
from zoo.text_rows import batches
from zoo.tokenizer import Tokenizer, whole_ids

# Which activations each kernel multiplies, by the kind that zoo.layer_config.Int8 counts.
SITES = {"attention": "attention.in", "out": "attention.mixed", "mlp": "mlp.in", "down": "mlp.act"}
KINDS = {"query": "attention", "key": "attention", "value": "attention", "out": "out", "up": "mlp", "gate": "mlp"}
KINDS |= {"down": "down"}
# What is read where a tokenizer is there and no texts are given: prose, a list, code, numbers.
SAMPLE = (
    "The river had risen in the night. By morning the lower meadow was under water, and the two men who had come to "
    "mend the fence stood at the gate and talked about the price of hay, which had doubled since the spring.",
    "Water boils at 100 degrees Celsius at sea level. On a mountain of 3,000 metres it boils at about 90, so potatoes "
    "take longer to cook there; a lid helps, and so does salt, though less than people believe.",
    "def mean(values):\n    if not values:\n        return None\n    return sum(values) / len(values)\n",
    "What to bring: 1. a warm coat; 2. good shoes; 3. something to read. Doors open at 19:30, tickets cost 12.50.",
)
# Rows and tokens of the ids that are drawn where no texts are given.
DRAWN = (4, 64)


def quantize(
    model: Model,
    params: dict[str, Any],
    *,
    calibration: Sequence[Sequence[int]] | jax.Array | None = None,
    threshold: float = 6.0,
    table: bool = True,
) -> tuple[Model, dict[str, Any]]:
    """The model with int8 weights but for its outlier columns: a quarter of the memory; see zoo.int8.

    A column of a kernel's input is an outlier where some token of the calibration has an activation above the threshold
    there, in magnitude. Kernels of a scanned stack have the same number of float columns in all layers, the largest
    that one of them needs: those with the largest activations.

    Args:
        model, params: a model of texts with float weights.
        calibration: rows of ids such as the model will meet, a few hundred tokens: lists of ids, or int [B, T]. None
            draws ids at random, which finds the columns that are large for every token, as most outliers are.
        threshold: 6.0 is the paper's; infinity keeps no column in float, 0 all of them.
        table: whether the token table and the read-out are int8 too (never under head "masked_lm").

    Returns:
        the model, whose config.int8 says how many columns stay float, and its parameters: int8 arrays with float32
        scales in the place of float kernels. They run wherever the old ones did; they are not trained or exported.

    Raises:
        InputError: a model of images or with cross-attention, weights that are int8 already or not finite, ids outside
            the vocabulary, a threshold below 0.
    """
    config = model.config
    require_float(config, "quantize")
    if config.image_size or config.cross_attention:
        raise InputError("quantize: int8 is for models of texts without cross-attention")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not threshold >= 0:
        raise InputError(f"threshold is {threshold}; it must be 0 or more, such as 6.0")
    check_parameters(config, params)
    peaks = largest_activations(model, params, calibration)
    if config.scan:
        params = unstack_layers(params, config)
    counts = {kind: [int((peak > threshold).sum()) for peak in found] for kind, found in peaks.items()}
    counts = {kind: [max(own)] if config.scan else own for kind, own in counts.items()}
    counts |= {"table": counts["table"][0] if table and config.head != "masked_lm" else None}
    changed = Model(config.replace(int8=Int8(**counts)))
    out = dict(params)
    layers = [(name, 0 if config.shared_layers else int(name.removeprefix("layer_"))) for name in params["blocks"]]
    out["blocks"] = {name: _layer(params["blocks"][name], peaks, counts, number) for name, number in layers}
    if counts["table"] is not None:
        columns = _columns(peaks["table"][0], counts["table"])
        out["embed"] = params["embed"] | {"token": _table(params["embed"]["token"], columns)}
        if config.head == "lm" and not config.tie_embeddings:
            out["lm_head"] = _kernel(params["lm_head"], columns, 1)
    return changed, stack_layers(out, changed.config) if config.scan else out


def sample_rows(tokenizer: Tokenizer) -> list[list[int]]:
    """A few short texts as a tokenizer's ids, with BOS where its settings say so: calibration for want of better."""
    head = [tokenizer.bos_id] if tokenizer.adds_bos else []
    return [head + ids for ids in tokenizer.encode_batch(SAMPLE)]


def largest_activations(model: Model, params: dict[str, Any], calibration: Any) -> dict[str, list[np.ndarray]]:
    """For each kind of kernel (and "table") the largest magnitude of each input column: an array [in] a layer."""
    config = model.config
    found: dict[str, list[np.ndarray]] = {}
    for batch in batches(_rows(config, calibration), 1, config.max_positions):  # a row's activations of all layers
        peaks = jax.tree.map(np.asarray, _peaks(params, batch.tokens, batch.mask, model=model))
        if not all(np.isfinite(peak).all() for peak in jax.tree.leaves(peaks)):
            raise InputError("quantize: the model's activations are not finite: its weights are not sound")
        found = peaks if not found else jax.tree.map(np.maximum, found, peaks)
    if config.num_experts:  # what their down projections read is not seen from outside
        found["down"] = [np.zeros(config.mlp_dim, np.float32)] * config.num_layers
    if config.shared_layers:
        found = {kind: [np.max(peaks, axis=0)] for kind, peaks in found.items()}
    if config.head != "lm":
        found["table"] = [np.zeros(config.embed_width, np.float32)]
    return found


@functools.partial(jax.jit, static_argnames=("model",))
def _peaks(params: Any, tokens: jax.Array, mask: jax.Array, *, model: Model) -> dict[str, list[jax.Array]]:
    config = model.config
    sites = {kind: site for kind, site in SITES.items() if kind != "down" or not config.num_experts}
    want = [f"blocks.*.{site}" for site in sites.values()]
    out = model.apply(params, tokens, padding_mask=mask, logits_at=False, want=want)

    def peak(x):  # [L, B, T, ...] -> L arrays [in]
        x = jnp.abs(x.reshape(*x.shape[:3], -1).astype(jnp.float32))
        return list(jnp.max(jnp.where(mask[..., None] != 0, x, 0), axis=(1, 2)))

    peaks = {kind: peak(out.sites[f"blocks.*.{site}"]) for kind, site in sites.items()}
    return peaks | {"table": peak(out.hidden[None])}


def _rows(config: ModelConfig, calibration: Any) -> list[list[int]]:
    if calibration is None:
        rows, length = DRAWN[0], min(DRAWN[1], config.max_positions)
        return np.random.default_rng(0).integers(0, config.vocab_size, (rows, length)).tolist()
    if hasattr(calibration, "ndim"):
        calibration = np.asarray(as_array("calibration", calibration))
        if calibration.ndim != 2:
            raise InputError(f"calibration has shape {calibration.shape}; give ids [B, T], or lists of ids")
    if isinstance(calibration, str | bytes | dict) or not hasattr(calibration, "__iter__"):
        raise InputError(f"calibration is a {type(calibration).__name__}; give lists of ids, as tokenizer.encode does")
    rows = [whole_ids(row)[: config.max_positions] for row in calibration]
    if not all(rows) or not rows:
        raise InputError("calibration has no tokens, or a row without any")
    worst = max((token for row in rows for token in row), key=lambda token: (token < 0, token))
    if not 0 <= worst < config.vocab_size:
        raise InputError(f"calibration holds id {worst}, outside the vocabulary: 0 to {config.vocab_size - 1}")
    return rows


def _columns(peak: np.ndarray, count: int) -> np.ndarray:
    """The `count` columns of the largest activations, ascending."""
    return np.sort(np.argsort(-peak, kind="stable")[:count]).astype(np.int32)


def _layer(layer: dict[str, Any], peaks: dict[str, list[np.ndarray]], counts: dict[str, Any], number: int) -> dict:
    def changed(tree: dict[str, Any]) -> dict[str, Any]:
        out = {}
        for name, below in tree.items():
            kind = KINDS.get(name) if isinstance(below, dict) and "kernel" in below else None
            if kind is not None:
                columns = _columns(peaks[kind][number], counts[kind][number % len(counts[kind])])
                out[name] = _kernel(below, columns, 2 if kind == "out" else 1)
            else:
                out[name] = changed(below) if isinstance(below, dict) and name.startswith("expert_") else below
        return out

    return layer | {name: changed(layer[name]) for name in ("attention", "mlp")}


def _kernel(dense: dict[str, Any], columns: np.ndarray, met: int) -> dict[str, Any]:
    kernel = np.asarray(dense["kernel"], np.float32)
    inputs, out = int(np.prod(kernel.shape[:met])), kernel.shape[met:]
    q, scale, rows = rounded(kernel.reshape(inputs, -1), columns)
    made = {"kernel": q.reshape(kernel.shape), "kernel_scale": scale.reshape(out), "outlier_columns": columns}
    made["outlier_kernel"] = rows.reshape(len(columns), *out)
    return dense | {name: jnp.asarray(array) for name, array in made.items()}


def _table(token: dict[str, Any], columns: np.ndarray) -> dict[str, Any]:
    q, scale, rows = rounded(np.asarray(token["embedding"], np.float32).T, columns)
    made = {"embedding": np.ascontiguousarray(q.T), "embedding_scale": scale, "outlier_columns": columns}
    made["outlier_embedding"] = np.ascontiguousarray(rows.T)
    return {name: jnp.asarray(array) for name, array in made.items()}
