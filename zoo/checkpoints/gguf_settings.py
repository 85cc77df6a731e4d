"""The metadata of a GGUF file as the settings that a Hugging Face folder's config.json would hold.

What is not metadata there is found again: llama3's rotary scaling and longrope's two lists of divisors are tensors, and
whether biases or experts are there is told by tensors too. What the format leaves unsaid is as in the published models.
"""

import math
from typing import Any

import numpy as np

from zoo.checkpoints.gguf_spellings import DISTILBERT, MIXTRAL, SPELLINGS, Spelling
from zoo.checkpoints.rotary_settings import published_partial
from zoo.errors import InputError
from zoo.gguf_file import GgufFile, GgufTensor
from zoo.layer_config import RotaryScaling
from zoo.positions import rotary_frequencies

# Read below, or said by other settings too.
READ_APART = {
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",
}
MUST = {
    "context_length",
    "feed_forward_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
}
# What the format means where a key is not there; a family's folders may mean something else.
UNSET = {"rope.freq_base": 10000.0}
ALSO = {
    "bert": {"attention.causal", "attention.layer_norm_epsilon", "pooling_type"},
    "gemma3": {"attention.sliding_window_pattern"},
    "modern-bert": {"attention.causal", "attention.sliding_window_pattern", "pooling_type"},
    "llama": {"expert_count", "expert_used_count"},
    "phi3": {"rope.scaling.attn_factor"},
    "stablelm": {"attention.head_count_kv"},
}
ROTARY_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Layers of the largest Gemma of each generation, which alone scales scores by the width over the heads.
LARGEST = {"gemma2": 46, "gemma3": 62}


def read_settings(file: GgufFile, kind: str) -> tuple[Spelling, dict[str, Any], int, int]:
    """What config.json would say of a file of architecture `kind`.

    Returns:
        its spelling, the settings, and how many query and key heads there are.

    Raises:
        InputError: a setting that nobody here knows, a size that is missing, or settings that do not fit together.
    """
    prefix = f"{kind}."
    said = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    spelling = SPELLINGS[kind]
    if kind == "llama" and said.get("expert_count"):
        spelling = MIXTRAL
    if kind == "bert" and "token_types.weight" not in file.tensors:
        spelling = DISTILBERT
    strange = sorted(set(said) - set(spelling.settings) - READ_APART - ALSO.get(kind, set()))
    if strange:
        raise InputError(
            f"{file.path}: {len(strange)} settings are unknown to {kind} and may change the numbers: "
            f"{', '.join(f'{prefix}{name}={said[name]!r}'[:60] for name in strange[:10])}"
        )
    width, layers, heads = (
        _whole(file, said, prefix, name) for name in ("embedding_length", "block_count", "attention.head_count")
    )
    kv_heads = said.get("attention.head_count_kv", heads)
    kv_heads = _whole(file, said, prefix, "attention.head_count_kv") if kv_heads != heads else heads
    values = {"model_type": spelling.model_type, "architectures": [spelling.architecture], **spelling.fixed}
    for name, setting in spelling.settings.items():
        if name in said:
            values[setting] = said[name]
        elif name in MUST:
            raise InputError(f"{file.path}: {prefix}{name} is not set; a model needs it")
        elif name in UNSET:
            values[setting] = UNSET[name]
    if "attention.head_count_kv" in spelling.settings:
        values["num_key_value_heads"] = kv_heads
    # Stored in float32: 1e-5 comes as 9.999999747e-06, and is what was meant.
    values = {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in values.items()}
    table = file.tensors.get("token_embd.weight")
    values.setdefault("vocab_size", table.shape[0] if table else None)
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    head = _head(file, said, prefix, width // heads, "head_dim" in spelling.settings.values())
    if "head_dim" in spelling.settings.values():
        values["head_dim"] = head
    turned = said.get("rope.dimension_count", head)
    if spelling.partial and isinstance(turned, int) and 0 < turned < head:
        values[spelling.partial] = published_partial(turned, head)
    elif turned != head:
        raise InputError(f"{file.path}: {prefix}rope.dimension_count is {turned!r} but heads have {head} features")
    elif spelling.partial:
        values[spelling.partial] = 1.0
    if said.get("attention.sliding_window") and "attention.sliding_window" not in spelling.settings:
        values["sliding_window"] = said["attention.sliding_window"]
    values |= _own(file, kind, said, values, layers, width / heads, head)
    values |= _scaling(file, said, values, head, turned)
    return spelling, values, heads, kv_heads


def _whole(file: GgufFile, said: dict[str, Any], prefix: str, name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{file.path}: {prefix}{name} is {value!r}; a model needs it, 1 or more")
    return value


def _head(file: GgufFile, said: dict[str, Any], prefix: str, share: int, free: bool) -> int:
    """Features of a head; `share` of the width, unless the architecture can say otherwise (`free`)."""
    head = said.get("attention.key_length", share)
    if not isinstance(head, int) or head < 1 or (head != share and not free):
        raise InputError(f"{file.path}: {prefix}attention.key_length is {head!r} but heads have {share} features")
    if said.get("attention.value_length", head) != head:
        value = said["attention.value_length"]
        raise InputError(f"{file.path}: {prefix}attention.value_length is {value!r} but heads have {head} features")
    return head


def _own(
    file: GgufFile, kind: str, said: dict[str, Any], values: dict[str, Any], layers: int, share: float, head: int
) -> dict[str, Any]:
    """What one architecture alone says, or leaves to the name of the model."""
    own: dict[str, Any] = {}
    biased = "blk.0.attn_q.bias" in file.tensors
    if kind in LARGEST:
        own["query_pre_attn_scalar"] = share if layers == LARGEST[kind] else head
    pattern = said.get("attention.sliding_window_pattern", 3 if kind == "modern-bert" else 6)
    if isinstance(pattern, list):
        own["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern]
    elif kind == "modern-bert":
        own["global_attn_every_n_layers"] = pattern
    elif kind == "gemma3":
        if "sliding_window" in values:
            own["sliding_window_pattern"] = pattern
        else:
            own["sliding_window"], own["sliding_window_pattern"] = None, 1
    if kind in ("llama", "smollm3") and biased:
        own["attention_bias"] = True
    if kind == "llama" and said.get("expert_count"):
        own["num_local_experts"] = said["expert_count"]
        own["num_experts_per_tok"] = said.get("expert_used_count")
    if kind == "stablelm":
        own["use_qkv_bias"], own["qk_layernorm"] = biased, "blk.0.attn_q_norm.weight" in file.tensors
    if kind.endswith("bert") and said.get("attention.causal", False) is not False:
        raise InputError(f"{file.path}: {kind}.attention.causal is {said['attention.causal']!r}; it sees both ways")
    if values["model_type"] == "bert":
        own["type_vocab_size"] = file.tensors["token_types.weight"].shape[0]
    epsilon = said.get("attention.layer_norm_epsilon", 1e-12)
    if values["model_type"] == "distilbert" and not (isinstance(epsilon, float) and abs(epsilon - 1e-12) < 1e-15):
        raise InputError(f"{file.path}: bert.attention.layer_norm_epsilon is {epsilon!r}; without segments it is 1e-12")
    return own


def _scaling(file: GgufFile, said: dict[str, Any], values: dict[str, Any], head: int, turned: int) -> dict[str, Any]:
    """rope_scaling, from the metadata or from the divisors that some files carry as tensors."""
    kind, factor = said.get("rope.scaling.type", "none"), said.get("rope.scaling.factor", 1.0)
    trained = said.get("rope.scaling.original_context_length")
    plain = kind == "none" or (kind == "linear" and factor in (0.0, 1.0))
    divisors = file.tensors.get("rope_freqs.weight")
    if divisors is not None:
        if not plain:
            raise InputError(
                f'{file.path}: holds rope_freqs.weight and rope.scaling.type "{kind}": one of them too many'
            )
        return {"rope_scaling": _llama3(file, divisors, values, head)}
    if values["model_type"] == "phi3":
        out = {"original_max_position_embeddings": trained} if trained is not None else {}
        return out | _longrope(file, said, values, turned, trained)
    if plain:
        return {}
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        given = {
            "original_max_position_embeddings": trained,
            "beta_fast": said.get("rope.scaling.yarn_beta_fast"),
            "beta_slow": said.get("rope.scaling.yarn_beta_slow"),
        }
        scaling |= {name: value for name, value in given.items() if value is not None}
    return {"rope_scaling": scaling}


def _llama3(file: GgufFile, tensor: GgufTensor, values: dict[str, Any], head: int) -> dict[str, Any]:
    """The llama3 scaling that divides frequencies by the numbers of `tensor`, at the published bounds."""
    divisors, base = _divisors(file, tensor, head // 2), float(values.get("rope_theta", 10000.0))
    factor = float(np.round(divisors.max(), 4))
    if np.isfinite(divisors).all() and factor >= 1 and base > 0:
        scaling = RotaryScaling("llama3", factor)
        wanted = rotary_frequencies(head, base).astype(np.float64) / rotary_frequencies(head, base, scaling)
        if np.allclose(divisors, wanted, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
    raise InputError(f"{file.path}: rope_freqs.weight holds other divisors than Llama 3's; they are not supported")


def _longrope(
    file: GgufFile, said: dict[str, Any], values: dict[str, Any], turned: int, trained: Any
) -> dict[str, Any]:
    """Phi-3's scaling: short and long divisors, and a factor of the scores that its lengths give where none is said."""
    long, short = (file.tensors.get(f"rope_factors_{name}.weight") for name in ("long", "short"))
    if long is None or short is None:
        return {}
    scaling: dict[str, Any] = {"rope_type": "longrope"}
    for name, tensor in (("long_factor", long), ("short_factor", short)):
        scaling[name] = [float(f"{value:.7g}") for value in _divisors(file, tensor, turned // 2)]
    told, reach = said.get("rope.scaling.attn_factor"), values.get("max_position_embeddings")
    if isinstance(told, float):
        sound = isinstance(trained, int) and isinstance(reach, int) and trained > 1
        ratio = reach / trained if sound else 0.0
        usual = math.sqrt(1 + math.log(ratio) / math.log(trained)) if ratio > 1 else 1.0
        if not abs(told - usual) <= 1e-6 * usual:
            scaling["attention_factor"] = told
    return {"rope_scaling": scaling}


def _divisors(file: GgufFile, tensor: GgufTensor, count: int) -> np.ndarray:
    if tensor.shape != (count,) or tensor.dtype != "F32":
        raise InputError(f"{file.path}: {tensor.name} is {tensor.dtype} {list(tensor.shape)} for {[count]}")
    return tensor.read().astype(np.float64)
