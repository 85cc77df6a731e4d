"""Ids by words that are remembered: those of the library on whole texts, bit for bit, whatever the text."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from tests import made_up
from zoo import word_cache
from zoo.errors import InputError
from zoo.gguf_tokenizer import LLAMA3_SPLIT, QWEN2_SPLIT
from zoo.tokenizer import Tokenizer
from zoo.tokenizer_files import HuggingFacePieces
from zoo.word_cache import word_cut

# Blanks of all kinds, control characters that join or part words, marks that combine, contractions, digits, no letters.
LETTERS = list("aab  \n\t\r'st1٣,.!-_·中ñÑΣſİ") + [
    "\x0b", "\x1c", "\x1f", "\x85", "\xa0", "\xad", "\u0301", "\u0338", "\u1680", "\u180e", "\u2003", "\u200b",
    "\u2028", "\u3000", "\ufeff", "\ufffd", "\x00", "'s", "'LL", "  ", "   ", " \n", "\r\n", "[SEP]",
    "e\u0301", "\U0001f600",
]  # fmt: skip
TEXTS = st.lists(st.lists(st.sampled_from(LETTERS), max_size=24).map("".join), min_size=1, max_size=4)


def word_pieces(**options) -> tokenizers.Tokenizer:
    letters = sorted({c for piece in LETTERS for c in (piece + piece.lower()) if c.isprintable() and c != " "})
    pieces = ["[UNK]", "[SEP]", *letters, *(f"##{c}" for c in letters), "ab", "##ab", "aa", "st", "##st", "[", "]"]
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]", max_input_chars_per_word=12
        )
    )
    backend.normalizer = normalizers.BertNormalizer(**options)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(["[SEP]"])
    return backend


def byte_pairs(*first, use_regex: bool = True) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(pair.split("+")) for pair in "a+a Ġ+a Ġ+Ġ Ċ+Ċ '+s aa+b 1+1 Ġa+b s+t".split()]
    pieces = [*alphabet, *("".join(pair) for pair in merges)]
    backend = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, last]) if first else last
    return backend


def split(pattern: str):
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def made(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(HuggingFacePieces(backend, {}, backend.to_str().encode()), {})


BACKENDS = {
    "lower": word_pieces(lowercase=True),
    "cased": word_pieces(lowercase=False),
    "accents": word_pieces(lowercase=True, strip_accents=False, handle_chinese_chars=False, clean_text=False),
    "gpt2": byte_pairs(),
    "digits": byte_pairs(pre_tokenizers.Digits(individual_digits=True)),
    "runs of digits": byte_pairs(pre_tokenizers.Digits(individual_digits=False)),
    "llama3": byte_pairs(split(LLAMA3_SPLIT), use_regex=False),
    "qwen2": byte_pairs(split(QWEN2_SPLIT), use_regex=False),
}
CUT = {name: made(backend) for name, backend in BACKENDS.items()}


@pytest.mark.parametrize("name", BACKENDS)
def test_ids_are_those_of_whole_texts(name):
    own = CUT[name]
    assert word_cut(json.loads(BACKENDS[name].to_str())) is not None
    encode = own.encoder()

    @settings(max_examples=150)
    @given(TEXTS)
    @example(["a  b", " a", "a ", "   a", "a \n b", "\n\na", "a\xa0 b", "a \xa0b", "ab\x1c b", "a 1 ٣"])
    @example(["", " ", "\n", "é,\u0301a", "x" * 12 + " " + "x" * 13, "中中 a中", "=\u0338 a", "\u0301a \u0301b", "a's"])
    def same(texts):
        wanted = own.encode_batch(texts)
        for _ in range(2):  # learnt, and remembered
            found = encode(texts)
            assert [ids.tolist() for ids in found] == wanted
            assert all(ids.dtype == np.int32 for ids in found)

    same()


def test_other_tokenizers_have_no_such_words():
    """What looks beyond a word, or is not known not to, is encoded whole, to the same ids."""
    composed, prefixed, spaced, dropped = byte_pairs(), byte_pairs(), byte_pairs(), byte_pairs()
    composed.normalizer = normalizers.NFC()
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    spaced.add_tokens(["a a"])
    dropped.model.dropout = 0.5
    unknown = byte_pairs(split(r"[^|]+\|?"), use_regex=False)
    whole = byte_pairs(use_regex=False)
    stripped = word_pieces()
    stripped.normalizer = normalizers.Sequence([normalizers.Replace("a b", "c"), normalizers.BertNormalizer()])
    for backend in (composed, prefixed, spaced, dropped, unknown, whole, stripped):
        assert word_cut(json.loads(backend.to_str())) is None
    texts = ["a a b", "", "a\u030a 1"]
    for backend in (composed, prefixed, spaced):
        own = made(backend)
        assert [ids.tolist() for ids in own.encoder()(texts)] == own.encode_batch(texts)
    own = made_up.tokenizer()  # SentencePiece
    assert [ids.tolist() for ids in own.encoder()(texts)] == own.encode_batch(texts) and own.encoder()([]) == []


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(word_cache, "MOST", 8)
    own = CUT["lower"]
    encode = word_cache.WordEncoder(own._pieces._cut, own.encode_batch)
    long = "a" * 10 + "," + "b" * 60
    for _ in range(3):
        texts = [f"a{number} st,{number}b" for number in range(20)] + [long]
        assert [ids.tolist() for ids in encode(texts)] == own.encode_batch(texts)
        assert max(map(len, encode._known)) <= word_cache.LONGEST
        assert encode(["ab"])[0].tolist() == own.encode("ab") and len(encode._known) < 8


@pytest.mark.parametrize("name", ["lower", "gpt2"])
def test_faults_are_told_as_by_encode_batch(name):
    encode = CUT[name].encoder()
    for bad, told in ((3, "text 1 of 2 is a int and not a str"), (b"a", "text 1 of 2 is a bytes and not a str")):
        with pytest.raises(InputError, match=told):
            encode(["a b", bad])
    with pytest.raises(InputError, match="half of a surrogate pair at character 2"):
        encode(["a b", "a \ud800"])
    assert encode(["a b"])[0].tolist() == CUT[name].encode("a b")
