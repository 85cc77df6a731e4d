"""Random decoders out of the legal space, against the reference library: what no list of cases thought of.

A dozen in `make parity`; more by hand: ONEBLOCK_SPACE=300 make parity PARITY=tests/parity/test_decoder_space.py
"""

import os
import tempfile
from pathlib import Path

import jax
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.recipe import error
from tests.parity import reference
from tests.parity.decoders import TRAINED, factors, rope
from tests.parity.test_decoders import each_row, padded
from zoo.checkpoints import export, load

EXAMPLES = int(os.environ.get("ONEBLOCK_SPACE", 12))
FULL_HEADS = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "SmolLM3", "Gemma", "Gemma2", "Gemma3", "Olmo2")
FAMILIES = (*FULL_HEADS, "Phi3", "StableLm", "GPTNeoX", "OPT")


@st.composite
def scalings(draw, rotated: int):
    kind = draw(st.sampled_from(["default", "linear", "dynamic", "yarn", "longrope", "llama3"]))
    factor = draw(st.sampled_from([1.0, 1.5, 4.0]))
    trained = dict(original_max_position_embeddings=TRAINED)
    if kind == "default":
        return rope(kind)
    if kind == "llama3":
        bounds = dict(low_freq_factor=1.0, high_freq_factor=draw(st.sampled_from([2.0, 4.0])))
        return rope(kind, factor=factor, **bounds, **trained)
    if kind == "yarn":
        more = draw(st.sampled_from([{}, dict(attention_factor=0.9), dict(beta_fast=4.0, truncate=False)]))
        return rope(kind, factor=factor, **trained, **more)
    if kind == "longrope":
        lists = dict(short_factor=factors(1.0, 0.1, rotated // 2), long_factor=factors(2.0, 0.5, rotated // 2))
        return rope(kind, factor=factor, **lists, **trained)
    return rope(kind, factor=factor)


@st.composite
def cases(draw):
    family = draw(st.sampled_from(FAMILIES))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = kv_heads * draw(st.sampled_from([1, 2]))
    size = draw(st.sampled_from([8, 16]))
    layers = draw(st.integers(1, 4))
    kinds = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=layers, max_size=layers)
    window = draw(st.sampled_from([1, 7, 30, 64]))
    flag = st.booleans()
    values = dict(
        vocab_size=97,
        hidden_size=heads * size if family not in FULL_HEADS else draw(st.sampled_from([24, 36])),
        num_attention_heads=heads,
        num_hidden_layers=layers,
        max_position_embeddings=TRAINED,
        tie_word_embeddings=draw(flag),
        pad_token_id=None,
    )
    if family == "OPT":
        values |= dict(ffn_dim=40, enable_bias=draw(flag), do_layer_norm_before=draw(flag), max_position_embeddings=72)
        return reference.Case("OPTForCausalLM", values, {}, draw(st.integers(0, 99)))
    values |= dict(intermediate_size=40, num_key_value_heads=kv_heads)
    if family in FULL_HEADS:
        size = draw(st.sampled_from([8, 12])) if family != "Olmo2" else size
        values |= dict(head_dim=size)
        if family in ("Gemma2", "Gemma3"):
            values["hidden_size"] = 12 * heads
        if family == "Olmo2":
            del values["head_dim"]
            values["hidden_size"] = heads * size
    if family == "GPTNeoX":
        del values["num_key_value_heads"]
        values |= dict(use_parallel_residual=draw(flag), attention_bias=draw(flag))
    if family == "StableLm":
        values |= dict(use_parallel_residual=draw(flag), use_qkv_bias=draw(flag))
    if family in ("Llama", "Qwen3", "SmolLM3", "Gemma", "Gemma2", "Gemma3", "Olmo2"):
        values |= dict(attention_bias=draw(flag))
    if family in ("Mistral", "Mixtral", "Phi3"):
        values |= dict(sliding_window=draw(st.sampled_from([None, window])))
    if family in ("Qwen2", "Qwen3", "SmolLM3"):
        slides = draw(flag)
        values |= dict(use_sliding_window=slides, sliding_window=window)
        values |= dict(layer_types=draw(kinds)) if slides and draw(flag) else {}
    if family in ("Gemma2", "Gemma3"):
        values |= dict(sliding_window=window, layer_types=draw(kinds), query_pre_attn_scalar=draw(st.integers(4, 30)))
    if family == "Gemma2":
        values |= dict(attn_logit_softcapping=draw(st.sampled_from([None, 5.0])))
    if family == "SmolLM3":
        values |= dict(no_rope_layers=draw(st.lists(st.integers(0, 1), min_size=layers, max_size=layers)))
    if family == "Mixtral":
        values |= dict(num_local_experts=draw(st.integers(2, 5)), num_experts_per_tok=draw(st.integers(1, 2)))
    part = draw(st.sampled_from([0.5, 1.0])) if family in ("Phi3", "StableLm", "GPTNeoX") else 1.0
    if family == "Gemma3":
        local = dict(rope_type="default", rope_theta=100.0)
        scaled = st.sampled_from([rope("default"), rope("linear", factor=4.0)])
        values |= dict(rope_parameters=dict(full_attention=draw(scaled), sliding_attention=local))
    else:
        parameters = draw(scalings(int(size * part)))
        if family == "Phi3" and parameters["rope_type"] not in ("default", "longrope"):
            parameters = rope("default")
        if family == "Phi3":
            values |= dict(original_max_position_embeddings=TRAINED)
        if part != 1.0 or family in ("StableLm", "GPTNeoX"):
            parameters |= dict(partial_rotary_factor=part)
        values |= dict(rope_parameters=parameters)
    return reference.Case(f"{family}ForCausalLM", values, {}, draw(st.integers(0, 99)))


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(), left=st.booleans())
def test_any_decoder(case, left):
    """Logits and the last stream of rows of 70, 55 and 40 tokens; and every bit of the way back."""
    theirs = case.model()
    if "Gemma" in case.architecture:  # its norms add 1: twice as wide, scores would be four times as sharp
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                parameter -= float("norm" in name)
    with tempfile.TemporaryDirectory() as folder:
        model, params = load(reference.save(theirs, Path(folder) / "theirs"))
        export(model, params, Path(folder) / "ours")
        again, back = load(Path(folder) / "ours")
    assert again == model
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, back))
    inputs = padded(left)
    out = model.apply(params, inputs["tokens"], padding_mask=inputs["padding_mask"])
    for row, alone in each_row(inputs):
        expected = reference.run(theirs, alone)
        real = alone["padding_mask"] == 1
        assert error(out.hidden[row : row + 1], expected.hidden_states[-1].numpy(), real) < 1e-5
        assert error(out.logits[row : row + 1], expected.logits.numpy(), real) < 1e-5
