"""The tokenizer inside a GGUF file, as a folder would hold it: tokenizer.json, tokenizer.model or vocab.txt.

    tokenizer.ggml.model  "gpt2"   byte-level BPE: tokens, merges, and a name for how text is cut before merging
                          "llama"  SentencePiece: tokens, scores, types
                          "bert"   WordPiece, lower-cased: first pieces of words begin with U+2581, the others plainly

Special ids, whether BOS is put first, and the chat template go into tokenizer_config.json; further end-of-text ids into
generation_config.json.
"""

import json
import struct
from pathlib import Path
from typing import Any

from zoo.errors import InputError, nearest
from zoo.gguf_file import read_header

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ROLE_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
    "sep": "seperator_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}
BERT_ROLES = {"cls_token": "bos", "sep_token": "eos"}
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
QWEN2_SPLIT = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
# How text is cut, by tokenizer.ggml.pre: a pattern (None: GPT-2's own), single digits, NFC, whole words first.
CUTS: dict[str, tuple[str | None, bool, bool, bool]] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "mpt", "roberta-bpe"), (None, False, False, False)),
    **dict.fromkeys(("olmo", "modern-bert"), (None, False, True, False)),  # GPT-NeoX's
    "dbrx": (LLAMA3_SPLIT, False, False, False),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (None, True, False, False)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), (LLAMA3_SPLIT, False, False, True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), (QWEN2_SPLIT, False, True, False)),
}


def tokenizer_files(path: Path) -> dict[str, bytes]:
    """File name -> content, of the tokenizer in a GGUF file.

    Raises:
        InputError: no tokenizer, one of a kind that is not read, or lists that do not fit together.
    """
    metadata = read_header(path).metadata
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _list(path, metadata, "tokens", str)
    types = _list(path, metadata, "token_type", int, [NORMAL] * len(tokens))
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise InputError(f"{path}: {len(tokens)} tokens ({len(set(tokens))} different) have {len(types)} types")
    classes = {"gpt2": "PreTrainedTokenizerFast", "llama": "LlamaTokenizer", "bert": "BertTokenizer"}
    if kind == "gpt2":
        files = {"tokenizer.json": _byte_pairs(path, metadata, tokens, types)}
    elif kind == "llama":
        files = {"tokenizer.model": _sentence_pieces(path, metadata, tokens, types)}
    elif kind == "bert":
        files = {"vocab.txt": _word_pieces(tokens, types)}
    else:
        raise InputError(f'{path}: tokenizer "{kind}" is not supported{nearest(str(kind), classes)}')
    settings: dict[str, Any] = {"tokenizer_class": classes[kind]}
    for role, key in ROLE_KEYS.items():
        at = metadata.get(f"tokenizer.ggml.{key}")
        settings[f"{role}_token"] = tokens[at] if isinstance(at, int) and 0 <= at < len(tokens) else None
    if kind == "bert":  # newer files call [CLS] and [SEP] BOS and EOS
        settings |= {role: settings[role] or settings[f"{other}_token"] for role, other in BERT_ROLES.items()}
        settings |= {"bos_token": None, "eos_token": None}
    settings["add_bos_token"] = bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama"))
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    files["tokenizer_config.json"] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = sorted({at for at in ends if isinstance(at, int) and 0 <= at < len(tokens)})
    if len(ends) > 1:
        files["generation_config.json"] = (json.dumps({"eos_token_id": ends}) + "\n").encode()
    return files


def _list(path: Path, metadata: dict[str, Any], name: str, kind: type, default: list | None = None) -> list[Any]:
    found = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(found, list) or not found or not all(isinstance(item, kind) for item in found):
        raise InputError(f"{path}: holds no tokenizer: tokenizer.ggml.{name} is no list of {kind.__name__}")
    return found


def _byte_pairs(path: Path, metadata: dict[str, Any], tokens: list[str], types: list[int]) -> bytes:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    cut = metadata.get("tokenizer.ggml.pre", "default")
    if cut not in CUTS:
        raise InputError(f'{path}: tokenizer.ggml.pre "{cut}" is not supported{nearest(str(cut), CUTS)}')
    pattern, digits, composed, whole = CUTS[cut]
    merges = [tuple(merge.split(" ")) for merge in _list(path, metadata, "merges", str)]
    try:
        model = models.BPE({token: i for i, token in enumerate(tokens)}, merges, ignore_merges=whole)
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path}: merges do not fit the tokens ({str(error).splitlines()[0]})") from error
    backend = tokenizers.Tokenizer(model)
    if composed:
        backend.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    first = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")] if pattern else []
    first += [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, byte_level]) if first else byte_level
    backend.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED)]
    backend.add_tokens(
        [tokenizers.AddedToken(token, special=kind == CONTROL, normalized=False) for token, kind in added]
    )
    return backend.to_str().encode()


def _word_pieces(tokens: list[str], types: list[int]) -> bytes:
    """A vocab.txt: a space before a piece that begins a word there is "##" before any other piece here."""

    def line(token: str, kind: int) -> str:
        if kind in (CONTROL, UNKNOWN):
            return token
        return token.removeprefix("\u2581") if token.startswith("\u2581") else f"##{token}"

    return ("\n".join(map(line, tokens, types)) + "\n").encode()


def _sentence_pieces(path: Path, metadata: dict[str, Any], tokens: list[str], types: list[int]) -> bytes:
    """A SentencePiece model file: https://github.com/google/sentencepiece, sentencepiece_model.proto."""
    scores = _list(path, metadata, "scores", float)
    if len(scores) != len(tokens):
        raise InputError(f"{path}: {len(tokens)} tokens have {len(scores)} scores")
    model = b"".join(
        _field(1, _field(1, token.encode()) + _field(2, score) + _field(3, kind))
        for token, score, kind in zip(tokens, scores, types, strict=True)
    )
    bpe = 2
    trainer = _field(3, bpe) + _field(4, len(tokens)) + _field(35, int(BYTE in types))
    for number, role in ((40, "unk"), (41, "bos"), (42, "eos"), (43, "pad")):
        at = metadata.get(f"tokenizer.ggml.{ROLE_KEYS[role]}")
        at = at if isinstance(at, int) and 0 <= at < len(tokens) else -1
        if role == "unk" and at < 0:
            at = types.index(UNKNOWN) if UNKNOWN in types else -1
        trainer += _field(number, at)
        if at >= 0:
            trainer += _field(number + 5, tokens[at].encode())
    space_first = int(bool(metadata.get("tokenizer.ggml.add_space_prefix", True)))
    normalizer = _field(1, b"identity") + _field(3, space_first) + _field(4, 0) + _field(5, 1)
    return model + _field(2, trainer) + _field(3, normalizer)


def _field(number: int, value: int | float | bytes) -> bytes:
    """One field of a protocol-buffer message: a whole number, a float32, or bytes."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
