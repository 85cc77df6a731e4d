"""How the GGUF files of each architecture spell a Hugging Face folder: settings, tensors, orders of rows.

Names are those of the gguf package (MODEL_TENSORS); orders of rows and what is added to norms follow llama.cpp's
converter, which wrote the files:

    llama, smollm3   query and key rows stand for interleaved rotary pairs (i, i + 1); ours turn i with i + H/2
    gemma 1 to 3     norm scales are stored with 1 added
    gpt2             Conv1D kernels are transposed
    gptneox          all query rows, all key rows, all value rows; published head by head
    mixtral          the experts of a layer are one tensor, or (older files) one each
    stablelm         the norms of all heads are one tensor
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from zoo.gguf_file import ChangedTensor, GgufTensor

Change = Callable[[np.ndarray], np.ndarray]

SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
ROTARY = {"attention.head_count_kv": "num_key_value_heads", "rope.freq_base": "rope_theta"}
LLAMA = SIZES | ROTARY | {"attention.key_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}

NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
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
AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
SANDWICH = AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
ROUTED = {"ffn_gate_inp": "block_sparse_moe.gate"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm"}
EXPERTS = {"ffn_gate": "w1", "ffn_down": "w2", "ffn_up": "w3"}
TENSOR = re.compile(r"(?:blk\.(\d+)\.)?([a-z_]+)(?:\.(\d+))?\.(weight|bias)")


@dataclass(frozen=True)
class Spelling:
    """How one architecture's files differ from a Hugging Face folder.

    Attributes:
        model_type: of the folder.
        architecture: class of the reference library.
        settings: metadata name -> setting.
        names: tensor name -> plain name, outside of layers.
        layer_names: the same in a layer.
        layers: what plain names of a layer begin with, before its number.
        paired: query and key rows are stored for interleaved pairs.
        added: what norm scales are stored with, to be taken away.
        transposed: tensors whose two axes are exchanged.
        thirds: all query rows, all key rows, all value rows are stored one after the other.
        partial: the setting that says what part of each head turns; "" for whole heads.
        fixed: settings that the format leaves unsaid, as in the published models.
    """

    model_type: str
    architecture: str
    settings: dict[str, str] = field(default_factory=lambda: LLAMA)
    names: dict[str, str] = field(default_factory=lambda: NAMES)
    layer_names: dict[str, str] = field(default_factory=lambda: LAYER_NAMES)
    layers: str = "layers."
    paired: bool = False
    added: float = 0.0
    transposed: tuple[str, ...] = ()
    thirds: bool = False
    partial: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)


GEMMA = dict(added=1.0, fixed={"hidden_activation": "gelu_pytorch_tanh"})
SPELLINGS = {
    "llama": Spelling("llama", "LlamaForCausalLM", paired=True),
    "qwen2": Spelling("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Spelling("qwen3", "Qwen3ForCausalLM"),
    "smollm3": Spelling("smollm3", "SmolLM3ForCausalLM", paired=True),
    "gemma": Spelling("gemma", "GemmaForCausalLM", **GEMMA),
    "gemma2": Spelling("gemma2", "Gemma2ForCausalLM", LLAMA | CAPS, layer_names=LAYER_NAMES | SANDWICH, **GEMMA),
    "gemma3": Spelling(
        "gemma3_text",
        "Gemma3ForCausalLM",
        LLAMA | CAPS | {"rope.freq_base_swa": "rope_local_base_freq"},
        layer_names=LAYER_NAMES | SANDWICH,
        **GEMMA,
    ),
    "olmo2": Spelling("olmo2", "Olmo2ForCausalLM", layer_names=LAYER_NAMES | AFTER),
    "phi3": Spelling("phi3", "Phi3ForCausalLM", layer_names=LAYER_NAMES | FUSED, partial="partial_rotary_factor"),
    "stablelm": Spelling(
        "stablelm",
        "StableLmForCausalLM",
        SIZES | ROTARY | LAYER_NORM | {"use_parallel_residual": "use_parallel_residual"},
        partial="partial_rotary_factor",
    ),
    "gptneox": Spelling(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        SIZES | LAYER_NORM | {"use_parallel_residual": "use_parallel_residual", "rope.freq_base": "rotary_emb_base"},
        names={"token_embd": "embed_in", "output_norm": "final_layer_norm", "output": "embed_out"},
        layer_names={
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        thirds=True,
        partial="rotary_pct",
    ),
    "gpt2": Spelling(
        "gpt2",
        "GPT2LMHeadModel",
        {
            "vocab_size": "vocab_size",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        names={"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"},
        layer_names={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        layers="h.",
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
    # RoBERTa too: the rows of its table before the first position are cut off, and then the two are one.
    "bert": Spelling(
        "bert",
        "BertModel",
        SIZES | LAYER_NORM,
        names={
            "token_embd": "embeddings.word_embeddings",
            "position_embd": "embeddings.position_embeddings",
            "token_types": "embeddings.token_type_embeddings",
            "token_embd_norm": "embeddings.LayerNorm",
        },
        layer_names={
            "attn_q": "attention.self.query",
            "attn_k": "attention.self.key",
            "attn_v": "attention.self.value",
            "attn_output": "attention.output.dense",
            "attn_output_norm": "attention.output.LayerNorm",
            "ffn_up": "intermediate.dense",
            "ffn_down": "output.dense",
            "layer_output_norm": "output.LayerNorm",
        },
        layers="encoder.layer.",
    ),
    "modern-bert": Spelling(
        "modernbert",
        "ModernBertModel",
        SIZES
        | {
            "attention.layer_norm_epsilon": "norm_eps",
            "attention.sliding_window": "local_attention",
            "rope.freq_base": "global_rope_theta",
            "rope.freq_base_swa": "local_rope_theta",
        },
        names={
            "token_embd": "embeddings.tok_embeddings",
            "token_embd_norm": "embeddings.norm",
            "output_norm": "final_norm",
        },
        layer_names={
            "attn_norm": "attn_norm",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.Wo",
            "ffn_norm": "mlp_norm",
            "ffn_up": "mlp.Wi",
            "ffn_down": "mlp.Wo",
        },
    ),
}
# Architectures of the same name that their tensors tell apart: a BERT without segments, a LLaMA with experts.
DISTILBERT = replace(
    SPELLINGS["bert"],
    model_type="distilbert",
    architecture="DistilBertModel",
    settings={
        "vocab_size": "vocab_size",
        "context_length": "max_position_embeddings",
        "embedding_length": "dim",
        "block_count": "n_layers",
        "feed_forward_length": "hidden_dim",
        "attention.head_count": "n_heads",
    },
    layer_names={
        "attn_q": "attention.q_lin",
        "attn_k": "attention.k_lin",
        "attn_v": "attention.v_lin",
        "attn_output": "attention.out_lin",
        "attn_output_norm": "sa_layer_norm",
        "ffn_up": "ffn.lin1",
        "ffn_down": "ffn.lin2",
        "layer_output_norm": "output_layer_norm",
    },
    layers="transformer.layer.",
)
MIXTRAL = Spelling("mixtral", "MixtralForCausalLM", layer_names=LAYER_NAMES | ROUTED, paired=True)


def respelled(
    name: str, tensor: GgufTensor, spelling: Spelling, heads: int, kv_heads: int
) -> Iterator[tuple[str, GgufTensor | ChangedTensor]]:
    """A tensor of a file under the plain names of the key table, with rows and scales as it expects them when read.

    A name that nobody knows stays, to be reported with all that is left over.
    """
    found = TENSOR.fullmatch(name)
    layer, part, expert, end = found.groups() if found else (None, "", None, "")
    one = part.removesuffix("_exps")
    if layer and one in EXPERTS and spelling.model_type == "mixtral" and (expert or one != part):
        parts = [(int(expert), tensor)] if expert else enumerate(slices(tensor, 3))
        for index, matrix in parts:
            yield f"layers.{layer}.block_sparse_moe.experts.{index}.{EXPERTS[one]}.{end}", matrix
        return
    if layer and part in HEAD_NORMS and spelling.model_type == "stablelm" and end == "weight":
        for index, scale in enumerate(slices(tensor, 2)):
            yield f"layers.{layer}.{HEAD_NORMS[part]}.norms.{index}.weight", scale
        return
    plain = None if expert else (spelling.layer_names if layer else spelling.names).get(part)
    if plain is None:
        yield name, tensor
        return
    change: Change | None = None
    shape = tensor.shape
    if spelling.paired and part in ("attn_q", "attn_k"):
        change = partial(halves_from_pairs, heads=heads if part == "attn_q" else kv_heads)
    elif spelling.added and part.endswith("norm"):
        change = partial(_less, spelling.added)
    elif part in spelling.transposed and end == "weight":
        change, shape = np.transpose, shape[::-1]
    elif spelling.thirds and part == "attn_qkv":
        change = partial(heads_from_thirds, heads=heads)
    plain = f"{spelling.layers}{layer}.{plain}.{end}" if layer else f"{plain}.{end}"
    yield plain, tensor if change is None else ChangedTensor(tensor, shape, change)


def slices(tensor: GgufTensor, axes: int) -> list[GgufTensor]:
    """What lies along the first of so many axes, each a part of the file of its own."""
    if len(tensor.shape) != axes:
        return [tensor]
    count, size = tensor.shape[0], tensor.size // tensor.shape[0]
    return [
        replace(tensor, shape=tensor.shape[1:], start=tensor.start + index * size, size=size) for index in range(count)
    ]


def halves_from_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection [N H, ...] (or a bias [N H]), from features that turn with their neighbour to
    features that turn with the one H/2 further: rows 0, 2, 4 ... of each head, then 1, 3, 5 ..."""
    if rows.shape[0] % (2 * heads):
        return rows  # of a wrong shape, which the key table reports
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def heads_from_thirds(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [3 N H, ...] of query, key and value one after the other, as those of head 0, those of head 1 and so on."""
    if rows.shape[0] % (3 * heads):
        return rows
    return rows.reshape(3, heads, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def _less(amount: float, array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) - np.float32(amount)


def in_its_words(line: str, kind: str, spelling: Spelling) -> str:
    """A message about a folder's settings and tensors in the words of the file: `llama.block_count`, `blk.0.attn_q`."""
    settings = {setting: f"{kind}.{name}" for name, setting in spelling.settings.items()}
    settings |= {"rope_scaling: rope_type": f"{kind}.rope.scaling.type", "rope_scaling": f"{kind}.rope.scaling"}
    settings.setdefault("sliding_window", f"{kind}.attention.sliding_window")
    if spelling.partial:
        settings[spelling.partial] = f"{kind}.rope.dimension_count"
    words = "|".join(re.escape(word) for word in sorted(settings, key=len, reverse=True))
    line = re.sub(rf"(?<![\w./-])({words})(?![\w./-])", lambda found: settings[found[1]], line)
    inner = {plain: name for name, plain in spelling.layer_names.items()}
    routed = {word: name for name, word in EXPERTS.items()}
    some = r"[\d,-]+"  # numbers of layers and experts, perhaps folded into ranges
    expert = rf"layers\.({some})\.block_sparse_moe\.experts\.({some})\.(w\d)\.weight"
    line = re.sub(rf"layers\.({some})\.self_attn\.([qk])_layernorm\.norms\.{some}\.", r"blk.\1.attn_\2_norm.", line)
    line = re.sub(expert, lambda found: f"blk.{found[1]}.{routed[found[3]]}.{found[2]}.weight", line)
    outer = {plain: name for name, plain in spelling.names.items()}

    def tensor(found: re.Match) -> str:
        layer, plain, end = found.groups()
        name = (inner if layer else outer).get(plain)
        return found[0] if name is None else f"blk.{layer}.{name}.{end}" if layer else f"{name}.{end}"

    layers = re.escape(spelling.layers)
    return re.sub(rf"(?<![\w./-])(?:{layers}({some})\.)?([A-Za-z_][\w.]*)\.(weight|bias)(?![\w./-])", tensor, line)
