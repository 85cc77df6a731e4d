"""Shards: what is written is read, ids that do not fit are refused, a killed run counts for nothing."""

import json
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import made_up
from train.data.holdout import HoldOut
from train.data.shards import Split, open_shards, token_dtype, write_shards
from zoo.errors import InputError


def texts(split, tokenizer) -> list[str]:
    return [tokenizer.decode(split.document(number)) for number in range(len(split))]


@pytest.fixture
def tokenizer():
    return made_up.tokenizer()


@pytest.fixture
def folder(tmp_path, tokenizer):
    write_shards(made_up.documents(30), tokenizer, tmp_path / "shards", min_valid=3, source="made up", licence="MIT")
    return tmp_path / "shards"


def test_documents_come_back_in_order(tmp_path, tokenizer):
    documents = made_up.documents(300)
    shards = write_shards(iter(documents), tokenizer, tmp_path, valid_fraction=0.2, min_valid=0, source="made up")
    train, valid = texts(shards.train, tokenizer), texts(shards.valid, tokenizer)
    held = set(valid)
    assert train == [text for text in documents if text not in held]
    assert valid == [text for text in documents if text in held]
    assert 30 < len(valid) < 95  # 60 expected, five sigma
    counts = shards.manifest["splits"]["train"]
    assert counts["documents"] == len(train) and counts["tokens"] == sum(map(len, tokenizer.encode_batch(train)))
    assert (shards.manifest["dtype"], shards.manifest["source"], shards.vocab_size) == ("uint16", "made up", 360)
    assert (tmp_path / "train.tokens").stat().st_size == 2 * counts["tokens"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json", "tokenizer", "train.ends", "train.tokens", "valid.ends", "valid.tokens",
    ]  # fmt: skip


@pytest.mark.parametrize(("valid_fraction", "min_valid"), [(0.0, 4), (0.1, 4), (0.5, 0)])
def test_the_held_out_side_does_not_depend_on_order(tmp_path, tokenizer, valid_fraction, min_valid):
    documents = [*made_up.documents(40), *made_up.documents(40)[:15]]  # some twice
    sides = []
    for order in range(3):
        random.Random(order).shuffle(documents)
        shards = write_shards(
            documents, tokenizer, tmp_path / str(order), valid_fraction=valid_fraction, min_valid=min_valid
        )
        sides.append((sorted(texts(shards.train, tokenizer)), sorted(texts(shards.valid, tokenizer))))
    assert sides[0] == sides[1] == sides[2]
    train, valid = map(set, sides[0])
    assert not train & valid and len(valid) >= min_valid
    assert sorted(sides[0][0] + sides[0][1]) == sorted(documents)


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(0, 12), st.integers(0, 6))
def test_holding_out_takes_the_smallest_hashes(keys, threshold, least):
    holdout, sides = HoldOut(threshold, least), {"train": [], "valid": []}
    for key in keys:
        for side, document in holdout.add(key, key):
            sides[side].append(document)
    for side, document in holdout.rest():
        sides[side].append(document)
    different = sorted(set(keys))
    held = [key for place, key in enumerate(different) if key < threshold or place < least]
    assert sorted(sides["valid"]) == [key for key in sorted(keys) if key in held]
    assert sorted(sides["train"]) == [key for key in sorted(keys) if key not in held]
    assert holdout.held_out == min(least, len(different))


def test_ids_fit_their_type():
    assert [token_dtype(size).name for size in (1, 65536, 65537)] == ["uint16", "uint16", "uint32"]
    big = Split.of([[70_000, 5]], 70_001)
    assert big.document(0).tolist() == [70_000, 5] and big.tokens.dtype == np.uint32


@pytest.mark.parametrize("wrong", [-1, 360, 65_536 + 7])
def test_an_id_outside_the_vocabulary_is_not_written(tmp_path, tokenizer, wrong):
    with pytest.raises(InputError, match=f"document 1 holds id {wrong}, outside the vocabulary of 360 pieces"):
        write_shards([[5, 6], [7, wrong]], tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=f"holds id {wrong}, outside"):
        Split.of([[5, wrong]], 360)


def test_an_id_outside_the_vocabulary_is_not_read(folder):
    tokens = np.fromfile(folder / "train.tokens", "<u2")
    tokens[3] = 360
    tokens.tofile(folder / "train.tokens")
    shards = open_shards(folder)
    with pytest.raises(InputError, match="holds id 360, outside the vocabulary of 360 pieces"):
        shards.train.document(0)
    with pytest.raises(InputError, match="SHA-256"):
        open_shards(folder, verify=True)


def test_empty_documents_are_counted_and_left_out(tmp_path, tokenizer):
    shards = write_shards(["", "one stone", " ", [], "two stones"], tokenizer, tmp_path)
    assert (len(shards.train), len(shards.valid), shards.manifest["skipped_empty"]) == (1, 1, 3)


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ([], {}, r"the corpus holds no text \(0 empty documents\)"),
        (["", ""], {}, r"the corpus holds no text \(2 empty documents\)"),
        (["one"], {}, "the text is 1 document, too few to set 1 aside for validation and still train on the rest"),
        (["one", "one", "two"], {"min_valid": 3}, "the text is 3 documents, too few to set 3 aside for validation"),
        (["one"], {"valid_fraction": 1.0}, "valid_fraction is 1.0; it must be from 0 to below 1"),
        (["one"], {"min_valid": -1}, "min_valid is -1; it must be 0, to set none aside, or more"),
    ],
)
def test_a_corpus_that_is_too_small(tmp_path, tokenizer, documents, options, message):
    with pytest.raises(InputError, match=message):
        write_shards(documents, tokenizer, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
    assert len(write_shards(["one"], tokenizer, tmp_path, min_valid=0, valid_fraction=0).train) == 1


def test_finished_shards_are_not_overwritten_unasked(folder, tokenizer):
    before = (folder / "train.tokens").read_bytes()
    with pytest.raises(InputError, match="holds finished shards"):
        write_shards(["one", "two"], tokenizer, folder)
    assert (folder / "train.tokens").read_bytes() == before
    assert len(write_shards(["one", "two"], tokenizer, folder, overwrite=True).train) == 1


def test_other_tokenizers_are_refused(folder, tokenizer):
    assert open_shards(folder, tokenizer, verify=True).fingerprint == tokenizer.fingerprint
    with pytest.raises(InputError, match="belong to another tokenizer; use the one in .*tokenizer"):
        open_shards(folder, made_up.tokenizer(340))


def test_damaged_folders_are_refused(folder):
    whole = (folder / "train.tokens").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "train.tokens").write_bytes(whole[:-2])
    with pytest.raises(InputError, match=f"train.tokens has {len(whole) - 2} bytes and not {len(whole)}"):
        open_shards(folder)
    (folder / "train.tokens").unlink()
    with pytest.raises(InputError, match="train.tokens is missing"):
        open_shards(folder)
    (folder / "train.tokens").write_bytes(whole)
    ends = np.fromfile(folder / "train.ends", "<u8")
    ends[[0, 1]] = ends[[1, 0]]
    ends.tofile(folder / "train.ends")
    with pytest.raises(InputError, match="train.ends does not fit its tokens"):
        open_shards(folder)
    (folder / "manifest.json").write_text(json.dumps({"format": manifest["format"]}))
    with pytest.raises(InputError, match="manifest.json lacks 'splits'"):
        open_shards(folder)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="is not of format"):
        open_shards(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="manifest.json cannot be read"):
        open_shards(folder)


def test_a_killed_run_counts_for_nothing_and_starts_clean(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "tokenizer")
    script = f"""
import os, signal
from train.data.shards import write_shards
from zoo.tokenizer import load_tokenizer
def documents():
    for number in range(1000):
        if number == 900:
            os.kill(os.getpid(), signal.SIGKILL)
        yield f"stone {{number}}"
write_shards(documents(), load_tokenizer({str(tmp_path / "tokenizer")!r}), {str(tmp_path / "shards")!r})
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    with pytest.raises(InputError, match=r"no finished shards in .* \(a run was cut short there\)"):
        open_shards(tmp_path / "shards")
    shards = write_shards(["one", "two"], tokenizer, tmp_path / "shards")
    assert sorted(texts(shards.train, tokenizer) + texts(shards.valid, tokenizer)) == ["one", "two"]
    assert not (tmp_path / "shards" / ".unfinished").exists()


def test_a_failed_overwrite_leaves_the_old_shards_and_a_failed_first_run_nothing(folder, tokenizer, tmp_path):
    def documents():
        yield "one stone"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_shards(documents(), tokenizer, folder, overwrite=True)
    open_shards(folder, tokenizer, verify=True)
    assert not (folder / ".unfinished").exists()
    with pytest.raises(InputError, match="too few to set 9 aside"):
        write_shards(["one", "two"], tokenizer, tmp_path / "new", min_valid=9)
    assert not (tmp_path / "new").exists()


def test_documents_and_splits_out_of_range(folder):
    shards = open_shards(folder)
    with pytest.raises(InputError, match="has documents 0 to 2; there is no 3"):
        shards.valid.document(3)
    with pytest.raises(InputError, match='no split "test"; one of train, valid'):
        shards.split("test")


def test_no_run_and_no_published_checkpoint_is_written_over(tokenizer, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds a published checkpoint; take another folder for shards"):
            write_shards(["one", "two"], tokenizer, tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_request_to_stop_leaves_nothing_unfinished(folder, tokenizer, tmp_path, capsys):
    from zoo.command_line import run

    def documents():
        yield "one stone"
        signal.raise_signal(signal.SIGTERM)
        yield "two stones"

    for place, overwrite in ((tmp_path / "new", False), (folder, True)):
        def prepare(place=place, overwrite=overwrite):
            write_shards(documents(), tokenizer, place, overwrite=overwrite, progress=False)

        assert run("train", {"prepare": lambda: prepare()}, ["prepare"]) == 143
        assert capsys.readouterr().err == "terminated\n"
    assert not (tmp_path / "new").exists() and not (folder / ".unfinished").exists()
    open_shards(folder, tokenizer, verify=True)
