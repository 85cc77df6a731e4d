"""The face of a model: counts, hashing, heads, one line for each impossible call, NaN where values cannot be seen."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.forward import Inputs, Transformer

SIZES = {"vocab_size": 17, "embed_dim": 8, "num_heads": 2, "mlp_dim": 12, "num_layers": 1, "max_positions": 6}
GPT = zoo.Model(ModelConfig(**SIZES))
BERT = zoo.Model(
    ModelConfig(
        **SIZES,
        visibility="full",
        token_types=2,
        embed_norm=True,
        norm_placement="post",
        final_norm=False,
        pooler=True,
    )
)
ROTARY = zoo.create(GPT.config, positions="rotary")
TOKENS = jnp.asarray([[3, 1, 4, 1], [5, 9, 2, 6]])


@pytest.fixture(scope="module")
def params():
    return {model: model.init(jax.random.key(0)) for model in (GPT, BERT, ROTARY)}


# Counts, and what a model is -----------------------------------------------------------------------------------------

COUNTS = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt1": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_are_exact(name):
    """Under eval_shape, in float32; the deep ones scanned, which changes no count."""
    shapes = zoo.create(name, scan=name not in ("bert-base", "gpt2")).init_shapes()
    leaves = jax.tree.leaves(shapes)
    assert sum(math.prod(leaf.shape) for leaf in leaves) == COUNTS[name]
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}


def test_init_is_a_pure_function_to_a_plain_dict():
    first, again, other = (GPT.init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert type(first) is dict and type(first["blocks"]["layer_0"]["attention"]) is dict
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True))
    assert not np.array_equal(first["embed"]["token"]["embedding"], other["embed"]["token"]["embedding"])
    assert set(first) == {"embed", "blocks", "final_norm"} and set(first["embed"]) == {"token", "position"}


def test_initial_sizes():
    """Normal of standard deviation initializer_range; projections to the stream divided by sqrt(2 L)."""
    config = ModelConfig(
        vocab_size=500, embed_dim=64, num_heads=2, num_layers=8, max_positions=500, residual_init=True, scan=True
    )
    p = zoo.Model(config).init(jax.random.key(0))
    for leaf, size in [
        (p["embed"]["token"]["embedding"], 0.02),
        (p["embed"]["position"]["embedding"], 0.02),
        (p["blocks"]["attention"]["query"]["kernel"], 0.02),
        (p["blocks"]["mlp"]["up"]["kernel"], 0.02),
        (p["blocks"]["attention"]["out"]["kernel"], 0.005),
        (p["blocks"]["mlp"]["down"]["kernel"], 0.005),
    ]:
        assert float(leaf.std()) == pytest.approx(size, rel=0.03) and abs(float(leaf.mean())) < 0.001
    assert all((leaf == 0).all() for leaf in (p["blocks"]["mlp"]["up"]["bias"], p["final_norm"]["bias"]))
    assert (p["blocks"]["mlp_norm"]["scale"] == 1).all()


def test_models_are_hashable_and_hold_no_arrays():
    assert {GPT: 1}[zoo.Model(ModelConfig(**SIZES))] == 1 and GPT != BERT
    assert jax.tree.leaves(GPT.config.to_dict()) and not any(
        isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(GPT.config.to_dict())
    )


# What comes out ------------------------------------------------------------------------------------------------------


def test_only_what_was_asked_for_comes_out(params):
    out = GPT.apply(params[GPT], TOKENS)
    given = {name for name, value in vars(out).items() if value is not None}
    assert given == {"hidden", "logits"} and out.hidden.shape == (2, 4, 8) and out.logits.shape == (2, 4, 17)
    out = BERT.apply(params[BERT], TOKENS, want=("hidden_states", "attentions"))
    assert len(out.hidden_states) == 2 and [w.shape for w in out.attentions] == [(2, 2, 4, 4)]
    assert out.pooled.shape == (2, 8) and out.next_sentence is None and out.cache is None
    assert np.array_equal(out.hidden_states[-1], out.hidden)  # no final norm


def test_final_stream_is_embedding_plus_updates():
    """Pre-norm: the stream after the last block is the embedding plus every attention and feed-forward update."""
    config = zoo.create(GPT.config, num_layers=2, initializer_range=0.3).config
    params = zoo.Model(config).init(jax.random.key(0))

    @jax.jit
    def run(params):
        given = Inputs(inputs=TOKENS, want=("hidden_states",))
        return Transformer(config).apply(
            {"params": params},
            given,
            capture_intermediates=lambda module, call: call == "__call__" and module.name in ("attention", "mlp"),
        )

    out, caught = run(params)
    streams, total = out.hidden_states, out.hidden_states[0]
    for index in range(2):
        caught_here = caught["intermediates"]["blocks"][f"layer_{index}"]
        total = total + caught_here["attention"]["__call__"][0][0] + caught_here["mlp"]["__call__"][0]
        np.testing.assert_allclose(streams[index + 1], total, atol=1e-6)
    assert len(streams) == 3 and float(jnp.abs(streams[2] - streams[0]).max()) > 0.1


def test_segments_of_a_pair_change_the_logits(params):
    types = jnp.asarray([[0, 0, 1, 1]] * 2)
    first, second = (BERT.apply(params[BERT], TOKENS, token_types=t).logits for t in (types, jnp.zeros_like(types)))
    assert float(jnp.abs(first - second).max()) > 1e-3
    assert np.array_equal(second, BERT.apply(params[BERT], TOKENS).logits)


def test_bfloat16_policy(params):
    """Activations in bfloat16, logits in float32, near the float32 ones (8 bits of mantissa over a few layers)."""
    half = zoo.create(GPT.config, dtype="bfloat16")
    out, exact = half.apply(params[GPT], TOKENS), GPT.apply(params[GPT], TOKENS)
    assert out.hidden.dtype == jnp.bfloat16 and out.logits.dtype == jnp.float32
    np.testing.assert_allclose(out.hidden.astype(jnp.float32), exact.hidden, atol=3e-2)
    np.testing.assert_allclose(out.logits, exact.logits, atol=1e-2)


@pytest.mark.parametrize(
    "config",
    [
        zoo.create("bert-tiny", head="masked_lm").config,
        zoo.create("gpt2-tiny").config,
        zoo.create("llama-tiny").config.replace(qk_norm=True, norm_placement="both", scan=True),
    ],
    ids=["bert", "gpt", "llama"],
)
def test_every_norm_adds_the_configs_eps(config):
    """As many reciprocal roots as norms, each of a sum with the config's eps (a number that float32 has exactly)."""
    eps = 0.00732421875
    config = zoo.create(config, **SIZES, norm_eps=eps, num_kv_heads=None).config
    shapes = zoo.Model(config).init_shapes()
    jaxpr = jax.make_jaxpr(lambda p: zoo.Model(config).apply(p, TOKENS))(shapes)
    counts = {"rsqrt": 0, "eps": 0}

    def count(jaxpr):
        made = {}
        for equation in jaxpr.eqns:
            made |= {id(v): equation for v in equation.outvars}
            if equation.primitive.name == "rsqrt":
                counts["rsqrt"] += 1
                source = made[id(equation.invars[0])]
                added = [float(v.val) for v in source.invars if hasattr(v, "val")]
                counts["eps"] += source.primitive.name == "add" and added == [eps]
            for nested in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
                nested = getattr(nested, "jaxpr", nested)
                if hasattr(nested, "eqns"):
                    count(nested)

    count(jaxpr.jaxpr)
    norms = sum(path[-1].key == "scale" for path, _ in jax.tree_util.tree_leaves_with_path(shapes))
    assert counts == {"rsqrt": norms, "eps": norms} and norms >= 3


# Heads ---------------------------------------------------------------------------------------------------------------


def test_with_head_keeps_the_backbone(params):
    p = params[BERT]
    model, changed = zoo.with_head(BERT, p, head="classifier", num_labels=3, pooling="mean", key=jax.random.key(1))
    assert model.config == BERT.config.replace(head="classifier", num_labels=3, pooling="mean")
    assert jax.tree.structure(changed) == jax.tree.structure(model.init_shapes())
    for name in ("embed", "blocks", "pooler"):
        assert changed[name] is p[name]
    assert changed["classifier"]["kernel"].shape == (8, 3) and float(changed["classifier"]["kernel"].std()) > 0
    again = zoo.with_head(BERT, p, head="classifier", num_labels=3, pooling="mean", key=jax.random.key(1))[1]
    other = zoo.with_head(model, changed, num_labels=5, key=jax.random.key(2))[1]
    assert np.array_equal(again["classifier"]["kernel"], changed["classifier"]["kernel"])
    assert other["classifier"]["kernel"].shape == (8, 5) and other["blocks"] is p["blocks"]
    back, old = zoo.with_head(model, changed, head="lm", key=jax.random.key(3))
    assert np.array_equal(back.apply(old, TOKENS).logits, BERT.apply(p, TOKENS).logits)


def test_with_head_refuses_to_change_the_backbone(params):
    def line(model, **changes):
        with pytest.raises(InputError) as caught:
            zoo.with_head(model, params[model], key=jax.random.key(0), **changes)
        return str(caught.value)

    assert line(GPT, mlp_dim=16) == "with_head: the change alters parameters under blocks, which belong to the backbone"
    assert line(GPT, final_norm=False) == (
        "with_head: the change adds or removes final_norm, which belongs to the backbone"
    )
    assert line(GPT, hed="lm") == 'ModelConfig has no field "hed"; did you mean "head"?'


# Calls that cannot be right ------------------------------------------------------------------------------------------

CLASSIFIER = zoo.create(GPT.config, head="classifier", num_labels=2, pooling="last")
RELATIVE = zoo.create(GPT.config, positions="relative")
ONES = jnp.ones((2, 4), int)
WRONG = {
    "float tokens": (GPT, ONES * 1.0, {}, "inputs [B, T] must be integer tokens, not float32"),
    "rank": (GPT, ONES[0], {}, "inputs have shape (4,); give tokens [B, T] or embeddings [B, T, D]"),
    "width": (GPT, jnp.ones((2, 4, 9)), {}, "inputs have 9 features; the model's embed_dim is 8"),
    "empty": (GPT, ONES[:, :0], {}, "inputs have no tokens: T is 0"),
    "mask shape": (GPT, ONES, {"padding_mask": ONES[:, :3]}, "padding_mask has shape (2, 3); inputs need (2, 4)"),
    "positions shape": (GPT, ONES, {"positions": ONES[:1]}, "positions has shape (1, 4); inputs need (2, 4)"),
    "positions type": (GPT, ONES, {"positions": ONES * 0.5}, "positions must be integers, not float32"),
    "logits_at shape": (GPT, ONES, {"logits_at": ONES[0]}, "logits_at has shape (4,); give [B, K] with B = 2"),
    "logits_at range": (GPT, ONES, {"logits_at": ONES * 4}, "logits_at 4 at (0, 0) is outside the row: 0 to 3"),
    "logits_at negative": (GPT, ONES, {"logits_at": -ONES}, "logits_at -1 at (0, 0) is outside the row: 0 to 3"),
    "logits_at head": (
        CLASSIFIER,
        ONES,
        {"logits_at": ONES},
        'logits_at chooses among vocabulary logits; a model with head "classifier" has none',
    ),
    "want": (GPT, ONES, {"want": ("attention",)}, 'want names "attention"; did you mean "attentions"?'),
    "token types": (
        GPT,
        ONES,
        {"token_types": ONES},
        "token_types were given to a model without segment embeddings (token_types=0)",
    ),
    "token type range": (
        BERT,
        ONES,
        {"token_types": 2 * ONES},
        "token type 2 at (0, 0) is outside the segment table: 0 to 1",
    ),
    "prefix": (GPT, ONES, {"prefix_mask": ONES}, 'prefix_mask needs visibility "prefix"; this model has "causal"'),
    "decoder": (GPT, ONES, {"decoder_tokens": ONES}, "decoder_tokens: this model has no decoder beside an encoder"),
    "id": (GPT, ONES.at[1, 2].set(17), {}, "token id 17 at (1, 2) is outside the vocabulary: 0 to 16"),
    "negative id": (GPT, ONES.at[1, 2].set(-1), {}, "token id -1 at (1, 2) is outside the vocabulary: 0 to 16"),
    "length": (GPT, jnp.ones((2, 7), int), {}, "7 tokens exceed the model's 6 learned positions"),
    "padded length": (
        GPT,
        jnp.ones((2, 8), int),
        {"padding_mask": jnp.ones((2, 8), int).at[:, 7].set(0)},
        "7 tokens exceed the model's 6 learned positions",
    ),
    "position": (GPT, ONES, {"positions": ONES * 6}, "position 6 at (0, 0) is outside the position table: 0 to 5"),
    "relative": (
        RELATIVE,
        ONES,
        {"positions": ONES},
        "positions were given to a model of relative positions, which counts real tokens itself",
    ),
    "restart": (
        ROTARY,
        ONES,
        {"positions": jnp.asarray([[0, 1, 2, 3], [0, 1, 0, 1]])},
        "positions restart within a row but no segment_ids are given: documents would attend across; give segment_ids",
    ),
    "dropout key": (
        zoo.create(GPT.config, dropout=0.1),
        ONES,
        {"dropout_key": jax.random.split(jax.random.key(0), 3)},
        "dropout_key has shape (3,); give one key, or one a row: (2,)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_calls_give_one_line(name):
    model, inputs, call, line = WRONG[name]
    with pytest.raises(InputError) as caught:
        model.apply(model.init_shapes() if name != "dropout key" else model.init(jax.random.key(0)), inputs, **call)
    assert str(caught.value) == line


def test_possible_calls_beside_them(params):
    """Segments allow restarts; padding and segments allow rows longer than the table; numpy and lists will do."""
    restart = jnp.asarray([[0, 1, 0, 1]] * 2)
    own = ROTARY.apply(params[ROTARY], TOKENS, positions=restart, segment_ids=jnp.asarray([[1, 1, 2, 2]] * 2)).logits
    counted = ROTARY.apply(params[ROTARY], np.asarray(TOKENS), segment_ids=[[1, 1, 2, 2]] * 2).logits
    assert np.array_equal(own, counted)
    segments = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 2]] * 2)
    out = GPT.apply(params[GPT], jnp.concatenate([TOKENS, TOKENS], axis=1), segment_ids=segments)
    np.testing.assert_allclose(out.logits[:, 4:], GPT.apply(params[GPT], TOKENS).logits, atol=1e-5)


def test_what_jit_cannot_see_becomes_nan(params):
    """The rows concerned are NaN, the others are as ever."""
    run = jax.jit(
        lambda p, tokens, positions, types, at: (
            BERT.apply(p, tokens, positions=positions, token_types=types, logits_at=at).logits
        )
    )
    order, types, at = jnp.asarray([[0, 1, 2, 3]] * 2), ONES * 0, jnp.asarray([[0, 1, 2, 3]] * 2)
    good = np.asarray(run(params[BERT], TOKENS, order, types, at))
    assert np.isfinite(good).all()
    for bad in (
        (TOKENS.at[1, 2].set(17), order, types, at),
        (TOKENS.at[1, 2].set(-3), order, types, at),
        (TOKENS, order.at[1, 3].set(6), types, at),
        (TOKENS, order.at[1, 0].set(-1), types, at),
        (TOKENS, order.at[1].set(jnp.asarray([0, 1, 0, 1])), types, at),
        (TOKENS, order, types.at[1, 0].set(2), at),
        (TOKENS, order, types, at.at[1].set(jnp.asarray([4, -1, 5, -9]))),
    ):
        found = np.asarray(run(params[BERT], *bad))
        assert np.array_equal(found[0], good[0]) and np.isnan(found[1]).all()


def test_equal_models_share_a_program(params):
    """As static arguments they are one: the second call traces nothing."""
    traced = []
    model = zoo.Model(ModelConfig(**SIZES))

    @functools.partial(jax.jit, static_argnames="model")
    def run(p, tokens, model):
        traced.append(model)
        return model.apply(p, tokens).logits

    run(params[GPT], TOKENS, GPT)
    run(params[GPT], TOKENS + 1, model)
    assert len(traced) == 1
