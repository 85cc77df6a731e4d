"""Characters of pieces: literal places for every layout, and what holds for any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import made_up
from tests.zoo.test_tokenizer import BYTE_PIECES, SPACE, WORD_PIECES, llama_style
from zoo.errors import InputError
from zoo.tokenizer import Tokenizer, load_tokenizer
from zoo.tokenizer_export import published_files

OWL = "\U0001f989"


@pytest.fixture(scope="module")
def layouts(tmp_path_factory) -> dict[str, Tokenizer]:
    """One tokenizer a layout."""
    import json

    folder = tmp_path_factory.mktemp("layouts")
    for name in ("words", "bytes", "exported"):
        (folder / name).mkdir()
    (folder / "words" / "vocab.txt").write_text("\n".join(WORD_PIECES) + "\n")
    (folder / "bytes" / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(BYTE_PIECES)}))
    (folder / "bytes" / "merges.txt").write_text(f"#version: 0.2\na b\n{SPACE} c\n")
    for name, data in published_files(made_up.tokenizer()).items():
        if name != "tokenizer.model":
            (folder / "exported" / name).write_bytes(data)
    return {
        "words": load_tokenizer(folder / "words"),
        "bytes": load_tokenizer(folder / "bytes"),
        "json": load_tokenizer(made_up.json_tokenizer(folder / "json")),
        "own": made_up.tokenizer(),
        "exported": load_tokenizer(folder / "exported"),
        "llama": llama_style(),
    }


def shown(tokenizer, text):
    ids, spans = tokenizer.encode_with_offsets([text])[0]
    assert ids == tokenizer.encode(text)
    return [(tokenizer.piece(i), *span) for i, span in zip(ids, spans, strict=True)]


def test_word_pieces_have_the_places_of_their_letters(layouts):
    assert shown(layouts["words"], " The  unaffable\u0000, cat") == [
        ("the", 1, 4),
        ("un", 6, 8),
        ("##aff", 8, 11),
        ("##able", 11, 15),
        (",", 16, 17),
        ("cat", 18, 21),
    ]


def test_the_space_that_a_byte_level_piece_carries_is_none_of_its_characters(layouts):
    assert shown(layouts["bytes"], "ab c a") == [("ab", 0, 2), (SPACE + "c", 3, 4), (SPACE, 5, 5), ("a", 5, 6)]


def test_bytes_of_one_character_all_have_its_place(layouts):
    for name in ("json", "llama"):
        spans = [span for _, *span in shown(layouts[name], f"a {OWL} b")]
        assert spans.count([2, 3]) == 4, name
        assert [0, 1] in spans[:2] and spans[-1] == [4, 5]


def test_sentencepiece_places_are_characters_of_the_text_before_it_was_normalised(layouts):
    text = "  \uff52iver\u3000 stone \ufb01"
    for name in ("own", "exported"):
        spans = [(start, end) for _, start, end in shown(layouts[name], text) if start < end]
        assert spans[0] == (2, 7) and text[2:7] == "\uff52iver"
        assert (9, 14) in spans and text[9:14] == "stone"
        assert spans[-1] == (15, 16)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_places_go_forward_and_ids_are_those_of_encode(layouts, text):
    for name, tokenizer in layouts.items():
        ids, spans = tokenizer.encode_with_offsets([text])[0]
        assert ids == tokenizer.encode(text), name
        assert len(ids) == len(spans)
        before = 0
        for start, end in spans:
            assert before <= start <= end <= len(text), (name, spans)
            assert start == end or not (text[start].isspace() or text[end - 1].isspace())
            before = start


@given(st.text(st.characters(min_codepoint=33, max_codepoint=591, exclude_categories=["Cc", "Zs", "Cf"]), max_size=20))
def test_every_character_that_is_kept_has_a_piece(layouts, text):
    for name in ("json", "llama"):
        covered = {at for start, end in layouts[name].encode_with_offsets([text])[0][1] for at in range(start, end)}
        assert covered == {at for at, character in enumerate(text) if not character.isspace()}, name


def test_what_is_no_text_is_refused(layouts):
    for tokenizer in layouts.values():
        assert tokenizer.encode_with_offsets([]) == []
        with pytest.raises(InputError, match="text 1 of 2 is a int and not a str"):
            tokenizer.encode_with_offsets(["a", 7])
        with pytest.raises(InputError, match="half of a surrogate pair at character 1"):
            tokenizer.encode_with_offsets(["a\ud800"])
