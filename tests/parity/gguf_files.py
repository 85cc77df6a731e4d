"""Models of the reference library as GGUF files: the gguf package's names, the rules of llama.cpp's converter."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.parity.decoders import GEMMA, GEMMA3, MULTI, NEOX, PHI, STABLE, WINDOW, factors
from tests.parity.encoders import DISTILBERT, MODERNBERT
from tests.parity.reference import BERT, GPT, GROUPED, Case

TRAINED = 48
LONG = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    short_factor=factors(1.0, 0.05, 6),
    long_factor=factors(1.5, 0.4, 6),
    original_max_position_embeddings=TRAINED,
    partial_rotary_factor=0.75,
)
PLAIN = dict(pad_token_id=None)
# Name -> architecture of the file, model, our family.
CASES: dict[str, tuple[str, Case, str]] = {
    "llama": ("llama", Case("LlamaForCausalLM", GROUPED, PLAIN | dict(attention_bias=True), 31), "llama"),
    "mistral": ("llama", Case("MistralForCausalLM", GROUPED, PLAIN | dict(sliding_window=None), 32), "llama"),
    "mixtral": ("llama", Case("MixtralForCausalLM", GROUPED, PLAIN | dict(num_local_experts=4), 33), "mixtral"),
    "qwen2": ("qwen2", Case("Qwen2ForCausalLM", GROUPED, PLAIN, 34), "qwen2"),
    "qwen3": ("qwen3", Case("Qwen3ForCausalLM", GROUPED, PLAIN, 35), "qwen3"),
    "smollm3": ("smollm3", Case("SmolLM3ForCausalLM", GROUPED, PLAIN | dict(num_hidden_layers=5), 36), "smollm3"),
    "gemma": ("gemma", Case("GemmaForCausalLM", GEMMA, {}, 37), "gemma"),
    "gemma2": (
        "gemma2",
        Case("Gemma2ForCausalLM", GEMMA, dict(sliding_window=WINDOW, query_pre_attn_scalar=16), 38),
        "gemma2",
    ),
    "gemma3": (
        "gemma3",
        Case(
            "Gemma3ForCausalLM",
            GEMMA3 | dict(num_hidden_layers=7, sliding_window_pattern=6),
            dict(query_pre_attn_scalar=16),
            39,
        ),
        "gemma3",
    ),
    "gemma3-scaled": (
        "gemma3",
        Case(
            "Gemma3ForCausalLM",
            GEMMA3,
            dict(
                num_hidden_layers=4,
                sliding_window=WINDOW,
                query_pre_attn_scalar=16,
                final_logit_softcapping=3.0,
                layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                rope_parameters={
                    "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=50000.0),
                    "sliding_attention": dict(rope_type="default", rope_theta=3000.0),
                },
            ),
            40,
        ),
        "gemma3",
    ),
    "phi3": ("phi3", Case("Phi3ForCausalLM", PHI, dict(sliding_window=WINDOW), 41), "phi3"),
    "phi3-longrope": (
        "phi3",
        Case("Phi3ForCausalLM", PHI, dict(original_max_position_embeddings=TRAINED, rope_parameters=LONG), 42),
        "phi3",
    ),
    "olmo2": ("olmo2", Case("Olmo2ForCausalLM", MULTI | dict(head_dim=8), PLAIN, 43), "olmo2"),
    "stablelm": ("stablelm", Case("StableLmForCausalLM", STABLE, dict(use_qkv_bias=True), 44), "stablelm"),
    "stablelm-parallel": (
        "stablelm",
        Case("StableLmForCausalLM", STABLE, dict(use_parallel_residual=True, tie_word_embeddings=True), 45),
        "stablelm",
    ),
    "stablelm-head-norms": (
        "stablelm",
        Case("StableLmForCausalLM", STABLE, dict(qk_layernorm=True, use_parallel_residual=True), 53),
        "stablelm",
    ),
    "gptneox": ("gptneox", Case("GPTNeoXForCausalLM", NEOX, PLAIN | dict(rotary_pct=0.25), 46), "gpt_neox"),
    "gptneox-serial": (
        "gptneox",
        Case("GPTNeoXForCausalLM", NEOX, PLAIN | dict(rotary_pct=0.5, use_parallel_residual=False), 47),
        "gpt_neox",
    ),
    "gpt2": ("gpt2", Case("GPT2LMHeadModel", GPT, {}, 48), "gpt"),
    "bert": ("bert", Case("BertModel", BERT, {}, 49), "bert"),
    "distilbert": ("bert", Case("DistilBertModel", DISTILBERT, {}, 52), "distilbert"),
    "modernbert": ("modern-bert", Case("ModernBertModel", MODERNBERT, {}, 51), "modernbert"),
    "roberta": ("bert", Case("RobertaModel", BERT, dict(pad_token_id=1, layer_norm_eps=1e-5), 50), "bert"),
}


def write(path: Path, kind: str, model: Any) -> Path:
    """A model of the reference library as a GGUF file of architecture `kind`, without a tokenizer."""
    writer = gguf.GGUFWriter(path, kind)
    _settings(writer, kind, model.config)
    for name, array in _tensors(kind, model):
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _settings(writer: gguf.GGUFWriter, kind: str, config: Any) -> None:
    width, heads = config.hidden_size, config.num_attention_heads
    roberta = config.model_type == "roberta"
    writer.add_context_length(config.max_position_embeddings - (config.pad_token_id + 1 if roberta else 0))
    writer.add_embedding_length(width)
    writer.add_block_count(config.num_hidden_layers)
    ffn = "hidden_dim" if config.model_type == "distilbert" else "intermediate_size"
    writer.add_feed_forward_length(4 * width if kind == "gpt2" else getattr(config, ffn))
    writer.add_head_count(heads)
    if kind.endswith("bert"):
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
    if kind == "bert":
        writer.add_token_type_count(getattr(config, "type_vocab_size", 1))
    if config.model_type == "distilbert":
        writer.add_layer_norm_eps(1e-12)
    if kind == "modern-bert":
        writer.add_sliding_window(config.local_attention)
        writer.add_sliding_window_pattern(3)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        if hasattr(config, name):
            writer.add_layer_norm_eps(getattr(config, name))
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if kind in ("stablelm", "gptneox"):
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind in ("bert", "modern-bert", "gpt2"):
        return
    rope = getattr(config, "rope_parameters", None) or {}
    part = rope.get("partial_rotary_factor", 1.0)
    if kind in ("llama", "smollm3", "phi3", "stablelm", "gptneox"):
        writer.add_rope_dimension_count(int(part * (getattr(config, "head_dim", None) or width // heads)))
    if kind == "gptneox":
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    if kind == "stablelm":
        return
    if kind != "phi3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if kind == "phi3":
        trained = rope.get("original_max_position_embeddings", config.original_max_position_embeddings)
        writer.add_rope_scaling_orig_ctx_len(trained)
        writer.add_sliding_window(config.sliding_window or 0)
        if "long_factor" in rope:
            scale = config.max_position_embeddings / trained
            attention = math.sqrt(1 + math.log(scale) / math.log(trained))
            writer.add_rope_scaling_attn_factors(attention)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        kinds = [one == "sliding_attention" for one in config.layer_types]
        if kinds != [(index + 1) % 6 != 0 for index in range(len(kinds))]:
            writer.add_sliding_window_pattern(kinds)
        if rope["sliding_attention"]["rope_theta"] != 10000.0:
            writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        if rope["full_attention"]["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
    if config.model_type == "mixtral":
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)


def _tensors(kind: str, model: Any) -> Iterator[tuple[str, np.ndarray]]:
    config = model.config
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind), config.num_hidden_layers
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    tied = getattr(config, "tie_word_embeddings", False) or kind == "gpt2"
    for key, array in state.items():
        end = key.split(".")[-2]
        if key.startswith("pooler.") or (tied and key in ("lm_head.weight", "embed_out.weight")):
            continue
        if key.endswith("experts.gate_up_proj"):
            layer = key.split(".")[2]
            gate, up = np.split(array, 2, axis=1)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
            continue
        if key.endswith("experts.down_proj"):
            yield f"blk.{key.split('.')[2]}.ffn_down_exps.weight", array
            continue
        if "_layernorm.norms." in key:
            stem, _, index = key.removesuffix(".weight").rpartition(".")
            if index == "0":  # all heads' in one
                count = sum(name.startswith(f"{stem}.") for name in state)
                name = names.get_name(stem.removesuffix(".norms"))
                yield f"{name}.weight", np.stack([state[f"{stem}.{head}.weight"] for head in range(count)])
            continue
        if kind in ("llama", "smollm3") and end in heads:
            halves = array.reshape(heads[end], 2, array.shape[0] // heads[end] // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        elif kind.startswith("gemma") and key.endswith("norm.weight"):
            array = array + 1
        elif kind == "gpt2" and key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            array = array.T
        elif end == "query_key_value":
            by_head = array.reshape(config.num_attention_heads, 3, -1, *array.shape[1:])
            array = np.concatenate([by_head[:, part].reshape(-1, *array.shape[1:]) for part in range(3)])
        elif key == "embeddings.position_embeddings.weight" and config.model_type == "roberta":
            array = array[config.pad_token_id + 1 :]
        key = key.replace("mlp.gate.weight", "block_sparse_moe.gate.weight")
        key = "lm_head.weight" if key == "embed_out.weight" else key
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        yield name, array
    rope = getattr(config, "rope_parameters", None) or {}
    if "long_factor" in rope:
        yield "rope_factors_long.weight", np.array(rope["long_factor"], np.float32)
        yield "rope_factors_short.weight", np.array(rope["short_factor"], np.float32)
