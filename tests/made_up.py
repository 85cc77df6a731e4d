"""Made-up text and a vocabulary learnt from it: the same in every run, and small enough to train in a blink."""

import functools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from train.vocabulary import train_vocabulary
from zoo.tokenizer import Tokenizer

WORDS = (
    "river stone maple winter lantern harbor copper meadow thunder pebble garden silver orchard candle marble ribbon "
    "walks sings turns carries finds leaves opens counts follows gathers the a every some old quiet bright narrow"
).split()


def sentence(draw: random.Random) -> str:
    words = [draw.choice(WORDS) for _ in range(draw.randint(3, 14))]
    return " ".join(words).capitalize() + draw.choice(".!?")


@functools.cache
def documents(count: int = 200, seed: int = 0) -> tuple[str, ...]:
    """Texts of 1 to 12 sentences."""
    draw = random.Random(seed)
    return tuple(" ".join(sentence(draw) for _ in range(draw.randint(1, 12))) for _ in range(count))


@functools.cache
def tokenizer(vocab_size: int = 360, normalization: str = "nmt_nfkc") -> Tokenizer:
    """A SentencePiece vocabulary of `documents()`."""
    return train_vocabulary(documents(), vocab_size, normalization=normalization)


TEMPLATE = (
    "{% for message in messages %}{{ '[' + message['role'] + ']' + message['content'] | trim + '[SEP]' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def json_tokenizer(folder: Path) -> Path:
    """A folder with tokenizer.json (byte-level BPE, learnt from `documents()`) and a chat template."""
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=360,
        show_progress=False,
        special_tokens=["<s>", "[SEP]", "[user]", "[assistant]"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(documents(), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(backend.to_str())
    settings = {"bos_token": "<s>", "eos_token": "[SEP]", "add_bos_token": True, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def gguf(path: Path, kind: str = "F32", **changes: Any) -> dict[str, np.ndarray]:
    """Writes a LLaMA of one layer as a GGUF file, with the tokenizer of `json_tokenizer`; returns its tensors.

    Args:
        path: of the file.
        kind: number type of its matrices.
        **changes: further metadata, dots of keys written as two underscores.
    """
    import gguf as library

    width, ffn, heads, kv_heads, size = 256, 256, 4, 2, 64
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads((json_tokenizer(path.parent) / "tokenizer.json").read_text())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path.parent / name).unlink()
    pieces = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    special = {token["content"] for token in content["added_tokens"]}
    writer = library.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in special else 1 for piece in pieces])
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    for key, value in changes.items():
        {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](
            key.replace("__", "."), value
        )
    draw = np.random.RandomState(0)
    shapes = {
        "token_embd.weight": (len(pieces), width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_q.weight": (heads * size, width),
        "blk.0.attn_k.weight": (kv_heads * size, width),
        "blk.0.attn_v.weight": (kv_heads * size, width),
        "blk.0.attn_output.weight": (width, heads * size),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (ffn, width),
        "blk.0.ffn_up.weight": (ffn, width),
        "blk.0.ffn_down.weight": (width, ffn),
    }
    tensors = {}
    for name, shape in shapes.items():
        array = draw.standard_normal(shape).astype(np.float32)
        array = 1 + 0.2 * array if len(shape) == 1 else array / 8
        number_type = library.GGMLQuantizationType["F32" if len(shape) == 1 else kind]
        stored = quantised(array, number_type, draw)
        writer.add_tensor(name, stored, raw_dtype=number_type)
        tensors[name] = library.quants.dequantize(stored, number_type).reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def quantised(array: np.ndarray, number_type: Any, draw: np.random.RandomState) -> np.ndarray:
    """`array` in a number type of GGUF; random blocks with sane scales where the library cannot quantise to it."""
    import gguf as library

    try:
        return library.quants.quantize(array, number_type)
    except NotImplementedError:
        block, size = library.GGML_QUANT_SIZES[number_type]
        data = draw.randint(0, 256, (array.size // block, size)).astype(np.uint8)
        # Where the float16 scales of a block stand, and how large they may be for matrices of a sane size.
        scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[number_type.name]
        largest = {"Q2_K": 2e-3, "Q3_K": 1e-3, "Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 5e-5}[number_type.name]
        for at in scales:
            data[:, at : at + 2] = (largest * draw.rand(len(data))).astype(np.float16)[:, None].view(np.uint8)
        return data.reshape(*array.shape[:-1], -1)
