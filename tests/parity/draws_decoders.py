"""Random settings of every decoder with a Hugging Face format: strategies of (class, settings, seed)."""

from typing import Any

import transformers
from hypothesis import strategies as st

from tests.parity.draws import ACTS, FULL, SLIDING, Draw, family, flag, heads, kinds_of_layer, labels, one, whole
from tests.parity.reference import Case

TRAINED = (16, 48, 96)
FAMILIES: dict[str, st.SearchStrategy[Case]] = {}


def decoder_class(draw: Draw, stem: str, speaks: str = "ForCausalLM", text: str = "") -> tuple[str, dict[str, Any]]:
    """A class, and what its head needs."""
    answers = [end for end in ("ForTokenClassification", "ForQuestionAnswering") if hasattr(transformers, stem + end)]
    end = one(draw, speaks, speaks, "ForSequenceClassification", "Model", *answers)
    more = labels(draw) if end.endswith("Classification") else {}
    padded = end == "ForSequenceClassification"
    return (stem if end == speaks else stem + text) + end, more | dict(pad_token_id=0 if padded else None)


def rotated(settings: dict[str, Any]) -> int:
    return settings.get("head_dim", settings["hidden_size"] // settings["num_attention_heads"])


def rope(draw: Draw, features: int, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
    """rope_parameters for `features` rotated features of a head."""
    kinds = kinds or ("default", "default", "linear", "dynamic", "llama3", "yarn", "longrope")
    kind = one(draw, *kinds)
    out: dict[str, Any] = dict(rope_type=kind, rope_theta=one(draw, 100.0, 10000.0, 500000.0))
    if kind == "default":
        return out
    trained = one(draw, *TRAINED)
    if kind != "longrope" or flag(draw):
        out["factor"] = draw(st.floats(1.0, 16.0, width=16))
    if kind in ("llama3", "yarn", "longrope"):
        out["original_max_position_embeddings"] = trained
    if kind == "llama3":
        out |= dict(low_freq_factor=1.0, high_freq_factor=one(draw, 2.0, 4.0))
    if kind == "yarn":
        out |= one(draw, {}, dict(beta_fast=8.0, beta_slow=2.0), dict(truncate=False), dict(attention_factor=1.2))
        out |= one(draw, {}, dict(mscale=1.3, mscale_all_dim=0.8))
    if kind == "longrope":
        parts = st.lists(st.floats(1.0, 30.0, width=16), min_size=features // 2, max_size=features // 2)
        out |= dict(short_factor=draw(parts), long_factor=draw(parts))
        out |= one(draw, {}, dict(attention_factor=1.1))
    return out


def llama_like(draw: Draw, *, free: bool = True, multiple: bool = False, eps: str = "rms_norm_eps") -> dict[str, Any]:
    return heads(draw, free, multiple) | {
        "vocab_size": whole(draw, 60, 120),
        "num_hidden_layers": whole(draw, 1, 5),
        "intermediate_size": whole(draw, 5, 60),
        "max_position_embeddings": one(draw, 48, 96, 256),
        "hidden_act": one(draw, *ACTS),
        "tie_word_embeddings": flag(draw),
        eps: one(draw, 1e-6, 1e-5, 1e-2),
    }


def window(draw: Draw) -> int:
    """In tokens of a text of 64 to 80."""
    return one(draw, 1, 2, 7, 16, 33, 100)


@family(FAMILIES)
def llama(draw):
    name, more = decoder_class(draw, "Llama")
    settings = llama_like(draw, multiple=True)
    more |= dict(attention_bias=flag(draw), mlp_bias=flag(draw), rope_parameters=rope(draw, rotated(settings)))
    return name, settings | more


@family(FAMILIES)
def mistral(draw):
    name, more = decoder_class(draw, "Mistral")
    settings = llama_like(draw)
    more |= dict(sliding_window=one(draw, None, window(draw)), rope_parameters=rope(draw, rotated(settings)))
    return name, settings | more


@family(FAMILIES)
def mixtral(draw):
    name, more = decoder_class(draw, "Mixtral")
    settings = llama_like(draw)
    settings["head_dim"] = rotated(settings)  # the reference's check of longrope reads nothing else
    experts = whole(draw, 1, 5)
    more |= dict(num_local_experts=experts, num_experts_per_tok=whole(draw, 1, experts))
    more |= dict(sliding_window=one(draw, None, window(draw)), rope_parameters=rope(draw, rotated(settings)))
    return name, settings | more


def qwen(draw, stem):
    name, more = decoder_class(draw, stem)
    settings = llama_like(draw)
    if stem == "Qwen3":
        settings |= dict(head_dim=rotated(settings), attention_bias=flag(draw))
    more |= dict(rope_parameters=rope(draw, rotated(settings)), use_sliding_window=flag(draw))
    if more["use_sliding_window"]:
        layers = settings["num_hidden_layers"]
        more |= dict(sliding_window=window(draw))
        more |= one(
            draw, dict(max_window_layers=whole(draw, 0, layers)), dict(layer_types=kinds_of_layer(draw, layers))
        )
    return name, settings | more


@family(FAMILIES)
def qwen2(draw):
    return qwen(draw, "Qwen2")


@family(FAMILIES)
def qwen3(draw):
    return qwen(draw, "Qwen3")


@family(FAMILIES)
def smollm3(draw):
    name, more = decoder_class(draw, "SmolLM3")
    settings = llama_like(draw)
    layers = settings["num_hidden_layers"]
    more |= dict(attention_bias=flag(draw), mlp_bias=flag(draw), rope_parameters=rope(draw, rotated(settings)))
    turned = st.lists(st.integers(0, 1), min_size=layers, max_size=layers)
    more |= one(draw, dict(no_rope_layer_interval=whole(draw, 2, 4)), dict(no_rope_layers=draw(turned)))
    if flag(draw):
        more |= dict(use_sliding_window=True, sliding_window=window(draw))
    return name, settings | more


def gemma_like(draw, multiple=True):
    settings = llama_like(draw, multiple=multiple)
    act = settings.pop("hidden_act")
    return settings | dict(head_dim=rotated(settings), attention_bias=flag(draw)), act


@family(FAMILIES)
def gemma(draw):
    name, more = decoder_class(draw, "Gemma")
    settings, _ = gemma_like(draw, multiple=False)
    act = one(draw, "gelu_pytorch_tanh", "relu", "silu")
    return name, settings | more | dict(hidden_act=act, rope_parameters=rope(draw, rotated(settings)))


@family(FAMILIES)
def gemma2(draw):
    name, more = decoder_class(draw, "Gemma2")
    settings, act = gemma_like(draw)
    more |= dict(hidden_activation=act, query_pre_attn_scalar=whole(draw, 1, 32), sliding_window=window(draw))
    more |= dict(attn_logit_softcapping=one(draw, None, 5.0), final_logit_softcapping=one(draw, None, 3.0))
    more |= one(draw, {}, dict(layer_types=kinds_of_layer(draw, settings["num_hidden_layers"])))
    return name, settings | more | dict(rope_parameters=rope(draw, rotated(settings)))


@family(FAMILIES)
def gemma3(draw):
    name, more = decoder_class(draw, "Gemma3", text="Text")
    settings, act = gemma_like(draw)
    more |= dict(hidden_activation=act, query_pre_attn_scalar=whole(draw, 1, 32), sliding_window=window(draw))
    # Both ways a window of 1 is written by the reference as one of 0, which it does not read back.
    both = more["sliding_window"] > 1 and flag(draw)
    more |= dict(final_logit_softcapping=one(draw, None, 3.0), use_bidirectional_attention=both)
    more |= one(
        draw,
        dict(sliding_window_pattern=whole(draw, 2, 6)),
        dict(layer_types=kinds_of_layer(draw, settings["num_hidden_layers"])),
    )
    local = dict(rope_type="default", rope_theta=one(draw, 500.0, 10000.0))
    whole_text = rope(draw, rotated(settings), ("default", "linear", "llama3", "yarn"))
    # The reference looks for "truncate" beside the kinds of layers and not in them, where these folders would have it.
    whole_text.pop("truncate", None)
    return name, settings | more | dict(rope_parameters={FULL: whole_text, SLIDING: local})


def partial(draw: Draw, settings: dict[str, Any]) -> tuple[float, int]:
    """A part of each head to turn, and its features: even and above 2."""
    features = settings["hidden_size"] // settings["num_attention_heads"]
    count = 2 * whole(draw, 2, features // 2)
    part = count / features
    return (part, count) if int(features * part) == count else (1.0, features)


@family(FAMILIES)
def neox(draw):
    name, more = decoder_class(draw, "GPTNeoX")
    settings = llama_like(draw, free=False, eps="layer_norm_eps")
    settings.pop("num_key_value_heads")
    part, count = partial(draw, settings)
    more |= dict(use_parallel_residual=flag(draw), attention_bias=flag(draw))
    return name, settings | more | dict(rope_parameters=rope(draw, count) | dict(partial_rotary_factor=part))


@family(FAMILIES)
def opt(draw):
    name, more = decoder_class(draw, "OPT")
    count = whole(draw, 1, 6)
    width = count * whole(draw, 3, 12)
    before = flag(draw)
    return name, more | dict(
        vocab_size=whole(draw, 60, 120),
        hidden_size=width,
        word_embed_proj_dim=one(draw, width, whole(draw, 4, 40)),
        num_attention_heads=count,
        num_hidden_layers=whole(draw, 1, 5),
        ffn_dim=whole(draw, 5, 60),
        max_position_embeddings=whole(draw, 80, 90),
        do_layer_norm_before=before,
        _remove_final_layer_norm=before and flag(draw),
        activation_function=one(draw, *ACTS),
        enable_bias=flag(draw),
        tie_word_embeddings=flag(draw),
    )


@family(FAMILIES)
def phi3(draw):
    name, more = decoder_class(draw, "Phi3")
    settings = llama_like(draw, free=False)
    part, count = partial(draw, settings)
    found = rope(draw, count, ("default", "longrope"))
    trained = found.pop("original_max_position_embeddings", None)
    more |= {} if trained is None else dict(original_max_position_embeddings=trained)
    found.pop("factor", None)
    more |= dict(sliding_window=one(draw, None, window(draw)))
    return name, settings | more | dict(rope_parameters=found | dict(partial_rotary_factor=part))


@family(FAMILIES)
def olmo2(draw):
    name, more = decoder_class(draw, "Olmo2")
    settings = llama_like(draw, free=False)
    more |= dict(attention_bias=flag(draw), rope_parameters=rope(draw, rotated(settings)))
    return name, settings | more


@family(FAMILIES)
def stablelm(draw):
    name, more = decoder_class(draw, "StableLm")
    settings = llama_like(draw, free=False, eps="layer_norm_eps")
    part, count = partial(draw, settings)
    more |= dict(use_qkv_bias=flag(draw), use_parallel_residual=flag(draw), qk_layernorm=flag(draw))
    return name, settings | more | dict(rope_parameters=rope(draw, count) | dict(partial_rotary_factor=part))


def gpt(draw, stem, activation, words):
    name, more = decoder_class(draw, stem, "LMHeadModel")
    count = whole(draw, 1, 6)
    return name, more | {
        "vocab_size": whole(draw, 60, 120),
        "n_embd": count * whole(draw, 3, 12),
        "n_head": count,
        "n_layer": whole(draw, 1, 5),
        "n_positions": whole(draw, 80, 90),
        "layer_norm_epsilon": one(draw, 1e-5, 1e-2),
        "tie_word_embeddings": flag(draw),
        activation: one(draw, *words),
    }


@family(FAMILIES)
def gpt1(draw):
    return gpt(draw, "OpenAIGPT", "afn", ("gelu", "relu", "silu"))


@family(FAMILIES)
def gpt2(draw):
    name, settings = gpt(draw, "GPT2", "activation_function", ACTS)
    return name, settings | dict(n_inner=one(draw, None, whole(draw, 5, 60)), scale_attn_weights=flag(draw))
