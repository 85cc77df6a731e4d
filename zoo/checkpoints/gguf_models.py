"""GGUF files as models: their metadata and tensor names are another spelling of a Hugging Face folder's.

So a file is respelled, and the family's own reader and key table do the rest; a setting that nobody here knows is
refused by name, as there. Three things are more than spelling:

    LLaMA's query and key rows are stored for interleaved rotary pairs (i, i + 1); ours turn i with i + H/2.
    Gemma's norm scales are stored with 1 added.
    llama3 rotary scaling is stored as the divisors themselves, and its factor is found again from them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo.checkpoints import hugging_face
from zoo.checkpoints.format import Format
from zoo.checkpoints.placing import Placing
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.gguf_file import GgufFile, GgufTensor, is_gguf, read_header
from zoo.layer_config import RotaryScaling
from zoo.model import Model
from zoo.positions import rotary_frequencies
from zoo.safe_path import inside

__all__ = ["file_of", "is_gguf", "load", "load_config"]

SETTINGS = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
# Read below, or said by other settings too.
READ_APART = {
    "attention.value_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
}
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SANDWICH = {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm"}
SANDWICH |= {"post_ffw_norm": "post_feedforward_layernorm"}
TENSOR = re.compile(r"(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)")


@dataclass(frozen=True)
class Spelling:
    """How one architecture's files differ from a Hugging Face folder.

    Attributes:
        model_type: of the folder.
        architecture: class of the reference library.
        paired: query and key rows are stored for interleaved pairs.
        added: what norm scales are stored with, to be taken away.
        settings: metadata name -> setting, beside SETTINGS.
        layer_names: tensor name -> plain name, beside LAYER_NAMES.
        fixed: settings that the format leaves unsaid.
    """

    model_type: str
    architecture: str
    paired: bool = False
    added: float = 0.0
    settings: dict[str, str] = field(default_factory=dict)
    layer_names: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)


CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
GEMMA = dict(added=1.0, fixed={"hidden_activation": "gelu_pytorch_tanh"})
SPELLINGS = {
    "llama": Spelling("llama", "LlamaForCausalLM", paired=True),
    "qwen2": Spelling("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Spelling("qwen3", "Qwen3ForCausalLM"),
    "gemma": Spelling("gemma", "GemmaForCausalLM", **GEMMA),
    "gemma2": Spelling("gemma2", "Gemma2ForCausalLM", settings=CAPS, layer_names=SANDWICH, **GEMMA),
}


def file_of(folder: Path) -> Path:
    """The GGUF file of a folder that holds GGUF files.

    Raises:
        InputError: there are several.
    """
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise InputError(f"{folder}: holds {len(files)} GGUF files; name one, such as {files[0]}")
    return inside(files[0])


def load(path: Path, placing: Placing) -> tuple[Model, dict[str, Any]]:
    """Model and parameters of a GGUF file; quantised tensors are undone to float32, one at a time.

    Raises:
        InputError: a damaged file, an architecture, a setting or a tensor that we do not understand.
    """
    return hugging_face.build(*_open(path), str(path), placing)


def load_config(path: Path) -> ModelConfig:
    """The ModelConfig of a GGUF file; of the tensors only the header is read."""
    return _open(path)[0]


def _open(path: Path) -> tuple[ModelConfig, Format, dict[str, GgufTensor]]:
    file = read_header(path)
    kind = file.metadata.get("general.architecture")
    known = [name for name, spelling in SPELLINGS.items() if spelling.model_type in hugging_face.FORMATS]
    if kind not in known:
        raise InputError(f'{path}: architecture "{kind}" is not supported{nearest(str(kind), known)}')
    spelling = SPELLINGS[kind]
    form = hugging_face.FORMATS[spelling.model_type]
    values = _settings(file, kind, spelling)
    stored = _tensors(file, spelling, values)
    try:
        return hugging_face.read_config(values, form, stored, path), form, stored
    except InputError as error:
        raise InputError(str(error).replace(str(path / "config.json"), str(path))) from None


def _settings(file: GgufFile, kind: str, spelling: Spelling) -> dict[str, Any]:
    """What config.json would say."""
    prefix = f"{kind}."
    said = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    names = SETTINGS | spelling.settings
    strange = sorted(set(said) - set(names) - READ_APART)
    if strange:
        raise InputError(
            f"{file.path}: {len(strange)} settings are unknown to {kind} and may change the numbers: "
            f"{', '.join(f'{prefix}{name}={said[name]!r}'[:60] for name in strange[:10])}"
        )
    values = {"model_type": spelling.model_type, "architectures": [spelling.architecture], **spelling.fixed}
    values |= {names[name]: value for name, value in said.items() if name in names}
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        if not isinstance(values.get(name), int) or isinstance(values[name], bool) or values[name] < 1:
            raise InputError(f"{file.path}: {name} is {values.get(name)!r}; a model needs it")
    table = file.tensors.get("token_embd.weight")
    values.setdefault("vocab_size", table.shape[0] if table else None)
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    # Stored in float32: 1e-5 comes as 9.999999747e-06, and is what was meant.
    for name in ("rms_norm_eps", "rope_theta"):
        if isinstance(values.get(name), float):
            values[name] = float(f"{values[name]:.7g}")
    head = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    values["head_dim"] = head
    if kind == "gemma2":  # its largest size alone, of 46 layers, scales scores by the width over the heads
        whole = values["hidden_size"] / values["num_attention_heads"]
        values["query_pre_attn_scalar"] = whole if values["num_hidden_layers"] == 46 else head
    for name in ("attention.value_length", "rope.dimension_count"):
        if said.get(name, head) != head:
            raise InputError(f"{file.path}: {prefix}{name} is {said[name]!r} but heads have {head} features")
    window = said.get("attention.sliding_window")
    if window:
        values["sliding_window"] = window
    values |= _scaling(file, said, values, head)
    if kind == "llama" and any(name.startswith("blk.0.attn_q.bias") for name in file.tensors):
        values["attention_bias"] = True
    return values


def _scaling(file: GgufFile, said: dict[str, Any], values: dict[str, Any], head: int) -> dict[str, Any]:
    """rope_scaling, from the metadata or from the divisors that llama3 files carry as a tensor."""
    kind, factor = said.get("rope.scaling.type", "none"), said.get("rope.scaling.factor", 1.0)
    divisors = file.tensors.get("rope_freqs.weight")
    if divisors is not None:
        if kind not in ("none", "linear") or factor not in (0.0, 1.0):
            raise InputError(
                f'{file.path}: holds rope_freqs.weight and rope.scaling.type "{kind}": one of them too many'
            )
        return {"rope_scaling": _llama3(file, divisors, values, head)}
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {}
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn" and "rope.scaling.original_context_length" in said:
        scaling["original_max_position_embeddings"] = said["rope.scaling.original_context_length"]
    return {"rope_scaling": scaling}


def _llama3(file: GgufFile, tensor: GgufTensor, values: dict[str, Any], head: int) -> dict[str, Any]:
    """The llama3 scaling that divides frequencies by the numbers of `tensor`, at the published bounds."""
    if tensor.shape != (head // 2,) or tensor.dtype != "F32":
        raise InputError(f"{file.path}: rope_freqs.weight is {tensor.dtype} {list(tensor.shape)} for {[head // 2]}")
    divisors, base = tensor.read().astype(np.float64), float(values.get("rope_theta", 10000.0))
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


def _tensors(file: GgufFile, spelling: Spelling, values: dict[str, Any]) -> dict[str, GgufTensor]:
    """Tensors under the plain names of the key table, with rows and scales as it expects them when read."""
    heads = {"attn_q": values["num_attention_heads"]}
    heads["attn_k"] = values.get("num_key_value_heads") or heads["attn_q"]
    layer_names = LAYER_NAMES | spelling.layer_names
    stored = {}
    for name, tensor in file.tensors.items():
        found = TENSOR.fullmatch(name)
        layer, part, end = found.groups() if found else (None, "", "")
        plain = layer_names.get(part) if layer else NAMES.get(part)
        if name == "rope_freqs.weight":
            continue
        if plain is None:
            stored[name] = tensor  # reported with all that is left over
            continue
        change: Callable[[np.ndarray], np.ndarray] | None = None
        if spelling.paired and part in heads:
            change = partial(halves_from_pairs, heads=heads[part])
        elif spelling.added and part.endswith("norm"):
            change = partial(_less, spelling.added)
        stored[f"layers.{layer}.{plain}.{end}" if layer else f"{plain}.{end}"] = replace(tensor, change=change)
    return stored


def halves_from_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection [N H, ...] (or a bias [N H]), from features that turn with their neighbour to
    features that turn with the one H/2 further: rows 0, 2, 4 ... of each head, then 1, 3, 5 ..."""
    if rows.shape[0] % (2 * heads):
        return rows  # of a wrong shape, which the key table reports
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _less(amount: float, array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) - np.float32(amount)
