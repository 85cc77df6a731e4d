"""zoo.embed: what a vector is, that it depends on its own text alone, and what is refused."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests import made_up
from zoo import text_rows
from zoo.errors import InputError
from zoo.text_rows import LARGEST, batches, framed, in_blocks, rows_within
from zoo.text_vectors import pooling_of, vectors_program

TEXTS = ["oil prices rose", "a", "The bank of England cut its rate by a quarter of a point on Thursday. " * 3, "oil"]


@pytest.fixture(scope="module")
def encoder():
    return (*zoo.load("oneblock/bert-tiny"), zoo.load_tokenizer("oneblock/bert-tiny"))


@pytest.fixture(scope="module")
def decoder():
    return (*zoo.load("oneblock/gpt-tiny"), zoo.load_tokenizer("oneblock/gpt-tiny"))


def by_hand(model, params, row, how):
    hidden = np.asarray(model.apply(params, np.array([row], np.int32), logits_at=False).hidden[0], np.float64)
    return {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[how]


@pytest.mark.parametrize("how", ["mean", "cls", "last"])
def test_a_vector_is_the_text_s_own_stream_pooled(encoder, how):
    model, params, tokenizer = encoder
    found = zoo.embed(model, params, TEXTS, tokenizer=tokenizer, pooling=how, normalize=False, batch_size=4)
    assert found.shape == (4, 128) and found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        row = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
        np.testing.assert_allclose(vector, by_hand(model, params, row, how), rtol=0, atol=1e-5)


def test_a_decoder_s_vector_is_its_last_token_after_bos(decoder):
    model, params, tokenizer = decoder
    found = zoo.embed(model, params, TEXTS, tokenizer=tokenizer, normalize=False)
    for text, vector in zip(TEXTS, found, strict=True):
        row = [tokenizer.bos_id, *tokenizer.encode(text)]
        np.testing.assert_allclose(vector, by_hand(model, params, row, "last"), rtol=0, atol=1e-5)


def test_neither_the_batch_nor_the_order_counts(encoder):
    model, params, tokenizer = encoder
    whole = zoo.embed(model, params, TEXTS, tokenizer=tokenizer)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1.0, atol=1e-6)
    alone = zoo.embed(model, params, TEXTS[::-1], tokenizer=tokenizer, batch_size=1)[::-1]
    np.testing.assert_allclose(alone, whole, rtol=0, atol=1e-6)
    one = zoo.embed(model, params, TEXTS[0], tokenizer=tokenizer)
    assert one.shape == (1, 128)
    np.testing.assert_allclose(one[0], whole[0], rtol=0, atol=1e-6)
    ids = [tokenizer.encode(text) for text in TEXTS]
    np.testing.assert_array_equal(zoo.embed(model, params, ids, tokenizer=tokenizer), whole)
    told = []
    zoo.embed(model, params, TEXTS, tokenizer=tokenizer, batch_size=1, watch=lambda *done: told.append(done))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_what_is_too_long_is_cut_and_counted(encoder):
    model, params, tokenizer = encoder
    with pytest.warns(UserWarning, match="^2 of 4 texts are longer than 3 tokens: their ends are left out$"):
        cut = zoo.embed(model, params, TEXTS, tokenizer=tokenizer, max_length=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = zoo.embed(model, params, [tokenizer.encode(text)[:1] for text in TEXTS], tokenizer=tokenizer)
        zoo.embed(model, params, TEXTS, tokenizer=tokenizer)
    np.testing.assert_allclose(cut, first, rtol=0, atol=1e-6)


def test_few_shapes_and_every_row_once():
    rows = [[7] * n for n in (40, 3, 17, 16, 1, 90, 33, 2, 5)]
    made = list(batches(rows, 4, longest=64 + 30, pad_id=9))
    assert [batch.tokens.shape for batch in made] == [(4, 16), (4, 64), (1, 94)]
    assert sorted(int(number) for batch in made for number in batch.order) == list(range(9))
    for batch in made:
        for place, number in enumerate(batch.order):
            assert batch.tokens[place].tolist() == rows[number] + [9] * (batch.tokens.shape[1] - len(rows[number]))
            assert batch.mask[place].sum() == len(rows[number])
    (few,) = batches(rows[:3], 8, longest=512)
    assert few.tokens.shape == (4, 64) and few.mask[3].sum() == 1


def test_long_texts_go_fewer_at_a_time_and_in_blocks(encoder, monkeypatch):
    """Where arrays would grow too large; the vectors are the same."""
    model, params, tokenizer = encoder
    whole = zoo.embed(model, params, TEXTS, tokenizer=tokenizer)
    config = zoo.create("bert-tiny", embed_dim=64, num_heads=8, mlp_dim=16).config
    monkeypatch.setattr(text_rows, "LARGEST", 8 * 64 * 64 - 1)
    assert [in_blocks(config, width).attention_kernel for width in (32, 64)] == ["auto", "blockwise"]
    shapes = [batch.tokens.shape for batch in batches([[7] * n for n in (60, 30, 9, 3, 17, 5, 20)], 4, 512, 0, config)]
    assert shapes == [(4, 16), (2, 32), (1, 32), (1, 64)]
    monkeypatch.setattr(text_rows, "LARGEST", model.config.num_heads * 64 * 64 - 1)
    np.testing.assert_allclose(zoo.embed(model, params, TEXTS, tokenizer=tokenizer), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [512, 2048])
def test_memory_of_long_texts_is_bounded(width):
    """What XLA reserves for a batch of one layer: three arrays of LARGEST numbers; 9.7 GB for 16 texts of 2,048."""
    model = zoo.create("bert-tiny", embed_dim=96, num_heads=12, mlp_dim=64, num_layers=1, max_positions=2048)
    tokens = jax.ShapeDtypeStruct((rows_within(model.config, width, 16), width), jnp.int32)
    blocks = zoo.create(in_blocks(model.config, width))
    lowered = vectors_program.lower(model.init_shapes(), tokens, tokens, model=blocks, pooling="mean", normalize=True)
    assert tokens.shape[0] == 8 and lowered.compile().memory_analysis().temp_size_in_bytes < 3 * 4 * LARGEST


POOLING = "pooling_mode_"


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ({f"{POOLING}cls_token": True, f"{POOLING}mean_tokens": False}, "cls"),
        ({f"{POOLING}lasttoken": True, f"{POOLING}max_tokens": False}, "last"),
        ({"word_embedding_dimension": 8, "pooling_mode": "mean"}, "mean"),
        ({}, "mean"),
    ],
)
def test_auto_is_what_the_folder_states(tmp_path, said, how):
    folder = made_up.json_tokenizer(tmp_path / "model")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    config = zoo.create("bert-tiny").config
    tokenizer = zoo.load_tokenizer(folder)
    assert pooling_of(config, tokenizer) == how and pooling_of(config, tokenizer, "last") == "last"
    tokenizer.save(tmp_path / "run" / "tokenizer")  # it travels with the tokenizer
    assert pooling_of(config, zoo.load_tokenizer(tmp_path / "run")) == how


def test_a_pooling_that_is_not_known_is_refused_and_layers_that_are_not_read_are_said(tmp_path):
    folder = made_up.json_tokenizer(tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"{POOLING}max_tokens": True}))
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    config = zoo.create("bert-tiny").config
    with pytest.warns(UserWarning, match="go on through Dense, not read here"):
        with pytest.raises(InputError, match="pools by pooling_mode_max_tokens, which is not known here; name mean"):
            pooling_of(config, zoo.load_tokenizer(folder))


def test_a_pooling_file_outside_the_folder_is_not_read(tmp_path):
    folder = made_up.json_tokenizer(tmp_path / "model")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "config.json").write_text("{}")
    (folder / "1_Pooling").symlink_to(tmp_path / "private")
    with pytest.raises(InputError, match="1_Pooling/config.json: is a link to a place outside its folder"):
        zoo.load_tokenizer(folder)


def test_a_pooling_file_in_a_download_cache_is_read(tmp_path):
    folder = made_up.json_tokenizer(tmp_path / "snapshots" / "abc")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "5eed").write_text(json.dumps({f"{POOLING}cls_token": True}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").symlink_to("../../../blobs/5eed")
    assert pooling_of(zoo.create("bert-tiny").config, zoo.load_tokenizer(folder)) == "cls"


@pytest.mark.parametrize(
    ("texts", "options", "said"),
    [
        ([], {}, "there are no texts"),
        (["a", ""], {}, "text 1 of 2 is empty: there is no token in it"),
        ([[]], {}, "text 0 of 1 is empty"),
        (["a", [5, 4096]], {}, "text 1 of 2 holds id 4096, outside the vocabulary: 0 to 4095"),
        ([[-1]], {}, "holds id -1, outside"),
        ([[1.5]], {}, "text 0 of 1: id 1.5 is no whole number"),
        ([7], {}, "text 0 of 1: ids are a int; give a list of whole numbers"),
        (b"a", {}, "texts are a bytes; give a list of texts"),
        (["a"], {"pooling": "max"}, 'pooling "max" is unknown; one of auto, mean, cls, last'),
        (["a"], {"batch_size": 0}, "batch_size is 0; it must be 1 or more"),
        (["a"], {"max_length": 2}, "max_length is 2; beside the special pieces no token fits: take 3 or more"),
        (["a"], {"max_length": 513}, "max_length is 513; this model reads 1 to"),
        (["a\ud800"], {}, "text 0 of 1 is no text: half of a surrogate pair at character 1"),
    ],
)
def test_refusals(encoder, texts, options, said):
    model, params, tokenizer = encoder
    with pytest.raises(InputError) as error:
        zoo.embed(model, params, texts, tokenizer=tokenizer, **options)
    assert said.replace('; one of auto, mean, cls, last', "") in str(error.value) and "\n" not in str(error.value)


def test_other_models_and_broken_weights(encoder):
    model, params, tokenizer = encoder
    small = zoo.create(model.config.replace(vocab_size=100))
    with pytest.raises(InputError, match="the tokenizer has 4096 pieces but the model's vocabulary 100"):
        zoo.embed(small, small.init(jax.random.key(0)), ["a"], tokenizer=tokenizer)
    with pytest.raises(InputError, match="this model reads images"):
        framed(["a"], tokenizer, zoo.create("vit-tiny").config)
    broken = jax.tree.map(lambda leaf: leaf * np.nan, params)
    with pytest.raises(InputError, match="2 of 2 vectors are not finite, text 0's first"):
        zoo.embed(model, broken, ["oil prices rose", "a"], tokenizer=tokenizer)
