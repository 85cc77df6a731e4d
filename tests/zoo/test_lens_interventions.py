"""Interventions: each against the same thing done by hand, exact where it should be, and differentiable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.zoo.lens_models import OTHER, TOKENS, made
from zoo import lens
from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

near = np.testing.assert_allclose
HEADS, OUT = "blocks.*.attention.mixed", "blocks.*.out"
UPDATES = ("blocks.*.attention.update", "blocks.*.mlp.update")


def logits(name, interventions, tokens=TOKENS):
    model, params, _, call = made(name)
    return lens.run(model, params, tokens, (), interventions, **call).output.logits


def without(params, layer, part):
    """Parameters of a scanned stack with what one layer's `part` writes set to zero."""
    kernel = {"attention": "out", "mlp": "down"}[part]
    zeroed = jax.tree.map(lambda leaf: leaf.at[layer].set(0.0), params["blocks"][part][kernel])
    return {**params, "blocks": {**params["blocks"], part: {**params["blocks"][part], kernel: zeroed}}}


# Ablation ------------------------------------------------------------------------------------------------------------


def test_zero_ablation_is_the_model_without():
    model, params, _, call = made("llama")  # no biases: no heads, no update
    for layer in range(2):
        bare = without(params, layer, "attention")
        expected = model.apply(bare, TOKENS, **call).logits
        assert np.abs(expected - logits("llama", ())).max() > 1e-2
        near(logits("llama", lens.ablate(heads=range(4), layers=[layer])), expected, atol=1e-6)
        near(logits("llama", lens.ablate(layers=[layer], parts="attention")), expected, atol=1e-6)
        whole = model.apply(without(bare, layer, "mlp"), TOKENS, **call).logits
        near(logits("llama", lens.ablate(layers=layer)), whole, atol=1e-6)


def test_pairs_of_layers_and_heads():
    """Heads (0, 1) and (1, 3) alone: their rows of the out projection, zeroed by hand."""
    model, params, _, call = made("llama")
    kernel = params["blocks"]["attention"]["out"]["kernel"].at[0, 1].set(0.0).at[1, 3].set(0.0)
    attention = {**params["blocks"]["attention"], "out": {"kernel": kernel}}
    expected = model.apply({**params, "blocks": {**params["blocks"], "attention": attention}}, TOKENS, **call).logits
    near(logits("llama", lens.ablate(heads=[(0, 1), (-1, -1)])), expected, atol=1e-6)
    twice = [lens.ablate(heads=[1], layers=[0]), [lens.ablate(heads=[3], layers=[1])]]
    near(logits("llama", twice), expected, atol=1e-6)
    by_output = [lens.Intervention("blocks.*.attention.heads", 0.0, heads=[(0, 1), (1, 3)])]
    near(logits("llama", by_output), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["gemma", "neox", "albert", "mixtral", "dinov2"])
def test_every_family_takes_interventions(name):
    """What is found at the site afterwards is what was put there, at the layer, head and position alone."""
    model, params, inputs, call = made(name)
    layer, parts = model.config.num_layers - 1, ("mixed", "heads", "scores")
    sites = tuple(f"blocks.*.attention.{part}" for part in parts) + ("blocks.*.mlp.update",)
    plain = lens.run(model, params, inputs, (*sites, OUT), **call).values
    found = lens.run(
        model,
        params,
        inputs,
        (*sites, OUT),
        (
            lens.Intervention(sites[0], 2.0, layers=[layer], heads=[1], positions=[3]),
            lens.Intervention(f"blocks.{layer}.attention.heads", -1.0, heads=[2], positions=[[0], [4]]),
            lens.Intervention(sites[2], 0.5, heads=[(layer, 0)], how="add"),
            lens.Intervention(sites[3], jnp.arange(8.0), layers=[layer], positions=[-1]),
        ),
        **call,
    ).values
    mixed = np.array(plain[sites[0]])
    mixed[layer, :, 3, 1] = 2.0
    near(found[sites[0]][:, :, :, 1:], mixed[:, :, :, 1:], atol=1e-5)
    heads = np.array(plain[sites[1]])
    assert (np.asarray(found[sites[1]])[layer, [0, 1], [0, 4], 2] == -1.0).all()
    near(found[sites[1]][layer, 0, 1:, 2], heads[layer, 0, 1:, 2], atol=1e-5)
    near(found[sites[2]][layer, :, 0], plain[sites[2]][layer, :, 0] + 0.5, atol=1e-5)
    near(found[sites[2]][layer, :, 1:], plain[sites[2]][layer, :, 1:], atol=1e-5)
    assert np.array_equal(found[sites[3]][layer, :, -1], np.broadcast_to(np.arange(8.0), (2, 8)))
    assert np.abs(found[OUT][layer] - plain[OUT][layer]).max() > 1e-2
    if name == "albert":  # one set of parameters, and yet one layer's intervention is that layer's alone
        assert np.array_equal(found[OUT][0], plain[OUT][0])


def test_mean_and_resampled():
    model, params, _, call = made("gpt2")
    source = lens.run(model, params, OTHER, (HEADS, *UPDATES), **call)
    real = np.asarray(call["padding_mask"], bool)
    values = np.asarray(source.values[HEADS])
    mean = values[:, real].mean(axis=1)
    found = lens.run(
        model, params, TOKENS, HEADS, lens.ablate(heads=[2], layers=[1], by="mean", source=source), **call
    ).values[HEADS]
    near(found[1, :, :, 2], np.broadcast_to(mean[1, 2], (2, 6, 4)), atol=1e-6)
    # Resampled: the other of two rows, whatever the key; whole layers as heads. Row 1 is padded at its last place.
    ways = dict(by="resample", source=source, key=jax.random.key(3))
    other = np.where(real[::-1], [[1], [0]], [[0], [1]])
    assert np.array_equal(lens.ablate(heads=[(0, 1)], **ways)[0].value, values[:, other, np.arange(6)])
    found = lens.run(model, params, TOKENS, UPDATES, lens.ablate(layers=[0], **ways), **call).values
    for site in UPDATES:
        assert np.array_equal(found[site][0], np.asarray(source.values[site])[0, other, np.arange(6)])


def test_resampled_values_are_those_of_real_tokens():
    """Of four rows with one, two, three and four tokens, each place takes another row's token, never padding."""
    real = np.tri(4, dtype=bool)
    rows = np.broadcast_to(np.arange(4.0)[:, None], (4, 4))[None, :, :, None, None]
    source = lens.Trace({HEADS: jnp.asarray(rows)}, None, jnp.asarray(real))
    drawn = [
        np.asarray(lens.ablate(heads=[0], by="resample", source=source, key=jax.random.key(n))[0].value)[0, ..., 0, 0]
        for n in range(8)
    ]
    for found in np.asarray(drawn, int):
        assert (real[found, np.arange(4)] | (found == np.arange(4)[:, None])).all()
        assert (found[:3] != np.arange(4)[:3, None]).all() and (found[3, :3] != 3).all() and found[3, 3] == 3
    assert len({found.tobytes() for found in drawn}) == 3


# Patching ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma", "bert"])
def test_patching_everything_gives_the_clean_logits_exactly(name):
    model, params, _, call = made(name)
    sites = tuple(site for site in lens.sites(model) if site != "logits")
    clean = lens.run(model, params, TOKENS, (*sites, "logits"), **call)
    patches = [lens.patch(clean, site) for site in sites]
    found = lens.run(model, params, OTHER, (*sites, "logits"), patches, **call)
    assert np.abs(model.apply(params, OTHER, **call).logits - clean.output.logits).max() > 1e-3
    assert np.array_equal(found.output.logits, clean.output.logits)
    for site in sites:
        assert np.array_equal(found.values[site], clean.values[site]), site
    # The last stream alone suffices, to what another program rounds.
    near(logits(name, lens.patch(clean, OUT, layers=[-1]), OTHER), clean.output.logits, atol=1e-5)


def test_patching_map_is_one_patch_at_a_time():
    model, params, _, call = made("gemma")
    metric, sites = lens.LogitDifference(3, 4), (OUT, "blocks.*.attention.update")
    found = lens.patching(model, params, TOKENS, OTHER, metric, sites, rows=5, **call)
    source = lens.run(model, params, TOKENS, sites, **call)
    ends = [metric(model.apply(params, tokens, **call)) for tokens in (TOKENS, OTHER)]
    near([found.clean, found.corrupted], ends, atol=1e-6)
    assert abs(found.clean - found.corrupted) > 1e-3 and found.maps[OUT].shape == (3, 6)
    for site, layer, place in ((OUT, 0, 2), (OUT, 1, 3), (sites[1], 2, 5), (sites[1], 0, 2)):
        patch = lens.patch(source, site, layers=[layer], positions=[place])
        alone = metric(lens.run(model, params, OTHER, (), patch, **call).output)
        near(found.maps[site][layer, place], alone, atol=1e-5)
    # The answer is read at the last place: patching the last stream there restores all, elsewhere nothing.
    near(found.restored(OUT)[-1], [0, 0, 0, 0, 0, 1], atol=1e-4)


def test_patching_map_of_heads():
    model, params, _, call = made("llama")
    metric = lens.LogitDifference(1, 2, at=-2)
    found = lens.patching(model, params, TOKENS, OTHER, metric, HEADS, over="heads", **call)
    source = lens.run(model, params, TOKENS, HEADS, **call)
    assert found.maps[HEADS].shape == (2, 4)
    for layer, head in ((0, 3), (1, 1)):
        patch = lens.patch(source, HEADS, heads=[(layer, head)])
        alone = metric(lens.run(model, params, OTHER, (), patch, **call).output)
        near(found.maps[HEADS][layer, head], alone, atol=1e-5)


# Gradients and steering ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma", "neox"])
def test_gradients_through_interventions(name):
    """By central differences: of a scale that steers all layers, and of a value that is put at one head."""
    model, params, _, call = made(name)
    rng = np.random.default_rng(3)
    vector = jnp.asarray(rng.standard_normal((model.config.num_layers, 8)), jnp.float32)
    value = jnp.asarray(rng.standard_normal(4), jnp.float32)

    @jax.jit
    def loss(scale, value):
        put = lens.Intervention("blocks.0.attention.mixed", value, heads=[2], positions=[1])
        interventions = (lens.steer(vector, "blocks.*.mlp.out", scale), put)
        out = lens.run(model, params, TOKENS, (), interventions, **call).output
        return jax.nn.log_softmax(out.logits)[:, 3, 5].sum()

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(0.1, value)  # of the scan, and of a loop
    step = 1e-2
    near(slopes[0], (loss(0.1 + step, value) - loss(0.1 - step, value)) / (2 * step), rtol=2e-2, atol=2e-3)
    for index in range(4):
        there = jnp.zeros(4).at[index].set(step)
        expected = (loss(0.1, value + there) - loss(0.1, value - there)) / (2 * step)
        near(slopes[1][index], expected, rtol=2e-2, atol=2e-3)
    assert abs(slopes[0]) > 1e-3 and float(jnp.abs(slopes[1]).max()) > 1e-4


def test_steering():
    model, params, _, call = made("gpt2")
    mask, site = call["padding_mask"], "blocks.0.out"
    streams = [np.asarray(lens.run(model, params, tokens, OUT, **call).values[OUT]) for tokens in (TOKENS, OTHER)]
    vector = lens.steering_vector(model, params, TOKENS, OTHER, OUT, positive_mask=mask, negative_mask=mask)
    last = [stream[:, [0, 1], [5, 4]].mean(axis=1) for stream in streams]  # last real tokens
    near(vector, last[0] - last[1], atol=1e-5)
    mean = lens.steering_vector(model, params, TOKENS, OTHER[:1], site, positive_mask=mask, over="mean")
    means = streams[0][0, 0].mean(axis=0) / 2 + streams[0][0, 1, :5].mean(axis=0) / 2
    alone = lens.run(model, params, OTHER[:1], site).values[site]
    near(mean, means - alone[0].mean(axis=0), atol=1e-5)
    steered = lens.run(model, params, TOKENS, site, lens.steer(vector[0], site, 2.0, positions=[1, -1]), **call)
    expected = streams[0][0].copy()
    expected[:, [1, 5]] += 2.0 * np.asarray(vector[0])
    near(steered.values[site], expected, atol=1e-5)


def test_scan_and_loop_agree_under_interventions():
    """A pattern with a tail: each layer of the scan takes its own part of the arrays."""
    model, params, _, call = made("gemma")
    config = model.config.replace(scan=False)
    looped = zoo.unstack_layers(params, model.config)
    rng = np.random.default_rng(0)
    value = jnp.asarray(rng.standard_normal((3, 1, 1, 4, 4)), jnp.float32)
    interventions = lens.Intervention(HEADS, value, heads=[(0, 1), (1, 2), (2, 3)])
    found = [
        lens.run(m, p, TOKENS, (HEADS, OUT), interventions, **call).values
        for m, p in ((model, params), (zoo.Model(config), looped))
    ]
    for site in (HEADS, OUT):
        near(found[0][site], found[1][site], atol=1e-5)
    near(found[0][HEADS][[0, 1, 2], 0, 0, [1, 2, 3]], value[[0, 1, 2], 0, 0, [1, 2, 3]], atol=0)


# Induction -----------------------------------------------------------------------------------------------------------

V, P = 10, 16


def induction_model():
    """Two layers of one head, by hand, on a stream of token | position | token before.

    Head 0 looks one place back and copies that token into the third part; head 1 looks where the token before was the
    one that stands here, and says the token that it finds.
    """
    config = ModelConfig(
        vocab_size=V,
        embed_dim=2 * V + P,
        num_layers=2,
        num_heads=1,
        head_dim=P,
        mlp_dim=1,
        max_positions=P,
        layer_pattern=(LayerConfig(attention_norm=False),),
        attention_bias=False,
        attention_out_bias=False,
        mlp_bias=False,
        final_norm=False,
        score_scale=100.0,
    )
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), zoo.Model(config).init_shapes())
    token, place, before = range(V), range(V, V + P), range(V + P, 2 * V + P)
    params["embed"]["token"]["embedding"][:, token] = np.eye(V)
    params["embed"]["position"]["embedding"][:, place] = np.eye(P)
    first, second = (params["blocks"][f"layer_{layer}"]["attention"] for layer in (0, 1))
    first["query"]["kernel"][place, 0] = np.eye(P, k=-1)  # place p asks for p - 1
    first["key"]["kernel"][place, 0] = np.eye(P)
    first["value"]["kernel"][token, 0] = np.eye(V, P)
    first["out"]["kernel"][0, :, before] = np.eye(P, V).T
    second["query"]["kernel"][token, 0] = np.eye(V, P)
    second["key"]["kernel"][before, 0] = np.eye(V, P)
    second["value"]["kernel"][token, 0] = np.eye(V, P)
    second["out"]["kernel"][0, :, token] = 3 * np.eye(P, V).T
    second["key"]["kernel"][V, 0] = -1.0  # not place 0, which has no token before it
    return zoo.Model(config), jax.tree.map(jnp.asarray, params)


def test_an_induction_head_made_by_hand_scores_1():
    model, params = induction_model()
    found = lens.induction_scores(model, params, jax.random.key(0), length=6)
    near(found, [[0.0], [1.0]], atol=1e-5)
    assert lens.induction_scores(model, params, jax.random.key(1), length=6, first=3)[1, 0] > 0.8  # 3 may come again
    logits = model.apply(params, jnp.asarray([[1, 2, 3, 1, 2, 3]])).logits
    assert list(np.argmax(logits[0, 3:], axis=-1)) == [2, 3, 1]
    # Without the copy that head 0 makes, head 1 has nothing to look for.
    broken = lens.run(
        model, params, jnp.asarray([[1, 2, 3, 1, 2, 3]]), "blocks.1.attention.weights", lens.ablate(heads=[(0, 0)])
    )
    near(broken.values["blocks.1.attention.weights"][0, 0, 4], [0.0, 0.25, 0.25, 0.25, 0.25, 0.0], atol=1e-6)


def test_the_path_between_the_two_heads():
    """Head 0 tells head 1 by its keys what stood before; by nothing else, and nobody else does."""
    model, params = induction_model()
    clean, corrupted = jnp.asarray([[1, 2, 3, 4, 1]]), jnp.asarray([[5, 2, 3, 4, 1]])
    find = lambda *place, **more: lens.path_patching(  # noqa: E731
        model, params, clean, corrupted, lens.LogitDifference(2, 3), *place, **more
    )
    by_keys = find("blocks.1.attention.key", heads=[0])
    near([by_keys.clean, by_keys.corrupted], [3.0, 0.0], atol=1e-4)
    near(by_keys.restored("blocks.1.attention.key"), [[1.0], [0.0]], atol=1e-4)
    near(find("blocks.-1.attention.query").restored("blocks.-1.attention.query"), [[0.0], [0.0]], atol=1e-4)
    # Straight to the answer it is head 1 that speaks.
    near(find("blocks.1.out").restored("blocks.1.out"), [[0.0], [1.0]], atol=1e-4)


def test_heads_that_look_everywhere_score_chance():
    """Without queries every visible token has the same weight: 1 / (length + 1), ..., 1 / (2 length), their mean."""
    model, params, _, _ = made("gpt2")
    attention = params["blocks"]["attention"]
    attention = {**attention, "query": jax.tree.map(np.zeros_like, attention["query"])}
    params = {**params, "blocks": {**params["blocks"], "attention": attention}}
    found = lens.induction_scores(model, params, jax.random.key(0), length=5)
    near(found, np.full((2, 4), np.mean([1 / n for n in range(6, 11)])), atol=1e-6)
