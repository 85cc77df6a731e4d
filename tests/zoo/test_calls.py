"""What a call refuses before anything is computed: ids too wide, masks of other numbers, parameters that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.errors import InputError
from zoo.model import Model

SIZES = {"vocab_size": 17, "embed_dim": 8, "num_heads": 2, "mlp_dim": 12, "num_layers": 2, "max_positions": 6}
GPT = Model(zoo.ModelConfig(**SIZES))
BERT = Model(zoo.ModelConfig(**SIZES, visibility="full", token_types=2))
SCANNED = zoo.create(GPT.config, scan=True)
ONES = np.ones((2, 4), np.int32)
WIDE = np.full((2, 4), 2**32 + 1)
MASK = "must be bool or whole numbers, 1 on real tokens and 0 on others"


@pytest.fixture(scope="module")
def params():
    return {model: model.init(jax.random.key(0)) for model in (GPT, BERT, SCANNED)}


def line(call, *args, **settings):
    with pytest.raises(InputError) as caught:
        call(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["inputs", "segment_ids", "positions", "token_types", "logits_at"])
@pytest.mark.parametrize("as_list", [False, True])
def test_numbers_are_checked_before_they_are_narrowed(params, name, as_list):
    """2^32 + 1 is no 1, as an int64 array or in a list."""
    wide = WIDE.tolist() if as_list else WIDE
    given = {"inputs": ONES, name: wide}
    said = line(BERT.apply, params[BERT], given.pop("inputs"), **given)
    assert said == f"{name} holds 4294967297 at (0, 0), beyond the 32 bits that are computed with"


def test_small_int64_numbers_will_do(params):
    wide = GPT.apply(params[GPT], ONES.astype(np.int64), segment_ids=ONES.astype(np.uint64)).logits
    assert np.array_equal(wide, GPT.apply(params[GPT], ONES, segment_ids=ONES).logits)
    assert "holds 1208925819614629174706176" in line(GPT.apply, params[GPT], [[1, 2**80]])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "inputs are None; give tokens [B, T] or embeddings [B, T, D]"),
        ("hello", "inputs are a str; give an array of numbers"),
        ([[1, 2], [3]], "inputs are ragged: rows differ in length; pad them and give a padding_mask"),
        (["a", "b"], "inputs are a list of what is no number; give an array of numbers"),
    ],
)
def test_inputs_that_are_no_array(params, inputs, message):
    assert line(GPT.apply, params[GPT], inputs) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1e9, f"padding_mask {MASK}, not float32"),
        (0.5, f"padding_mask {MASK}, not float32"),
        (np.nan, f"padding_mask {MASK}, not float32"),
        (2, f"padding_mask {MASK}; it holds 2 at (1, 3)"),
        (-1, f"padding_mask {MASK}; it holds -1 at (1, 3)"),
    ],
)
def test_masks_are_of_zeros_and_ones(params, value, message):
    """An additive mask (0 on real tokens, -1e9 on padding) would be read upside down."""
    mask = np.where(np.arange(8).reshape(2, 4) == 7, value, ONES)
    assert line(GPT.apply, params[GPT], ONES, padding_mask=mask) == message
    assert line(GPT.apply, params[GPT], ONES, padding_mask=jnp.asarray(mask)) == message
    if mask.dtype.kind == "f":
        run = jax.jit(lambda m: GPT.apply(params[GPT], ONES, padding_mask=m).logits)
        assert line(run, mask) == message


def test_masks_may_be_bool_or_whole(params):
    mask = np.array([[1, 1, 1, 0]] * 2)
    found = [GPT.apply(params[GPT], ONES, padding_mask=mask.astype(kind)).logits for kind in (bool, np.uint8, int)]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    assert np.array_equal(found[0], GPT.apply(params[GPT], ONES, padding_mask=mask.astype(np.float32)).logits)
    additive = np.zeros((2, 4))  # of rows without padding
    assert line(GPT.apply, params[GPT], ONES, padding_mask=additive) == f"padding_mask {MASK}, not float32"


# Parameters ----------------------------------------------------------------------------------------------------------


def test_parameters_that_do_not_fit_are_named(params):
    p = params[GPT]

    def changed(**parts):
        return {**p, **parts}

    deeper = changed(blocks={**p["blocks"], "layer_2": p["blocks"]["layer_1"]})
    shallow = changed(blocks={"layer_0": p["blocks"]["layer_0"]})
    other = changed(embed={**p["embed"], "token": {"embedding": np.zeros((17, 9), np.float32)}})
    names = {
        "surplus": (deeper, "params have blocks/layer_2/attention/key/bias, which this model has not"),
        "missing": (shallow, "params lack blocks/layer_1/attention/key/bias"),
        "shape": (other, "params: embed/token/embedding has shape (17, 9); this model's has (17, 8)"),
        "head": (changed(lm_head={"kernel": p["embed"]}), "params have lm_head/kernel/position/embedding, which this"),
        "empty": ({}, "params lack blocks/layer_0/attention/key/bias; there are none at all: use model.init"),
        "none": (None, "params are None; give what model.init or zoo.load returned"),
        "leaf": (changed(final_norm={"scale": "x", "bias": p["final_norm"]["bias"]}), "params: final_norm/scale is a"),
    }
    for name, (given, start) in names.items():
        assert line(GPT.apply, given, ONES).startswith(start), name
        if name in ("surplus", "missing", "shape"):
            assert line(jax.jit(lambda q: GPT.apply(q, ONES).logits), given).startswith(start), name
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), given)
            assert line(jax.eval_shape, lambda q: GPT.apply(q, ONES).logits, shapes).startswith(start), name


def test_looped_and_scanned_parameters_name_the_way_over(params):
    assert "; these are looped: zoo.stack_layers(params, model.config)" in line(SCANNED.apply, params[GPT], ONES)
    assert "; these are scanned: zoo.unstack_layers(params, model.config)" in line(GPT.apply, params[SCANNED], ONES)
    stacked = zoo.stack_layers(params[GPT], GPT.config)
    np.testing.assert_allclose(SCANNED.apply(stacked, ONES).logits, GPT.apply(params[GPT], ONES).logits, atol=1e-6)


def test_fitting_parameters_pass_in_any_mapping_and_dtype(params):
    half = jax.tree.map(lambda leaf: np.asarray(leaf, np.float16), params[GPT])
    assert GPT.apply(half, ONES).logits.shape == (2, 4, 17)
    rows = jax.vmap(lambda q: GPT.apply(q, ONES).logits)(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params[GPT]))
    np.testing.assert_allclose(rows[2], GPT.apply(params[GPT], ONES).logits, atol=1e-6)


# Keys, wants, heads ---------------------------------------------------------------------------------------------------


def test_keys_that_are_none(params):
    said = "is no random key; give one, such as jax.random.key(0)"
    assert line(GPT.init, 0) == f"key: 0 {said}"
    assert line(GPT.apply, params[GPT], ONES, dropout_key=3) == f"dropout_key: 3 {said}"
    assert line(zoo.with_head, GPT, params[GPT], head="none", key=5) == f"key: 5 {said}"
    assert jax.tree.structure(GPT.init(jax.random.PRNGKey(0))) == jax.tree.structure(params[GPT])
    old = GPT.apply(params[GPT], ONES, dropout_key=np.asarray(jax.random.PRNGKey(0)))
    assert np.array_equal(old.logits, GPT.apply(params[GPT], ONES).logits)


def test_one_want_may_be_a_string(params):
    out = GPT.apply(params[GPT], ONES, want="attentions")
    assert len(out.attentions) == 2 and out.hidden_states is None
    assert line(GPT.apply, params[GPT], ONES, want="attention") == 'want names "attention"; did you mean "attentions"?'


def test_heads_that_make_no_sense(params):
    vit = zoo.create("vit-tiny")
    for head in ("span", "token_classifier", "replaced_token"):
        said = line(vit.config.replace, head=head, num_labels=2)
        assert said == f'head "{head}" answers for each token of a text; a model of images (image_size > 0) has none'
    said = line(zoo.with_head, GPT, params[GPT], head="replaced_token", key=jax.random.key(0))
    assert said == 'head "replaced_token" needs visibility "full", not "causal"'
    span = zoo.with_head(GPT, params[GPT], head="span", key=jax.random.key(0))[0]
    assert span.config.head == "span"


def test_the_face_is_listed():
    late = {"load", "export", "load_tokenizer", "Tokenizer", "generate", "summarise"}
    assert late <= set(zoo.__all__) and set(zoo.__all__) <= set(dir(zoo))
    assert all(getattr(zoo, name) is not None for name in zoo.__all__)
