"""What the encoder families added to the block: each field by an identity or by its formula, looped and scanned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.layer_config import LayerConfig
from zoo.model import with_head
from zoo.norms import layer_norm
from zoo.stack import stack_layers, unstack_layers

V, D, B, T = 11, 8, 3, 4
TOKENS = jnp.asarray([[1, 2, 3, 4], [5, 6, 7, 0], [0, 8, 9, 10]])
MASK = jnp.asarray([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]])
BASE = ModelConfig(
    vocab_size=V,
    embed_dim=D,
    num_layers=3,
    num_heads=2,
    max_positions=8,
    visibility="full",
    final_norm=False,
    norm_placement="post",
    embed_norm=True,
    norm_eps=0.01,
    head="none",
)
PRE = BASE.replace(norm_placement="pre", final_norm=True)


def random_params(config, seed=0):
    draw = np.random.default_rng(seed)
    shapes = zoo.Model(config).init_shapes()
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * draw.standard_normal(leaf.shape), leaf.dtype), shapes)


def run(config, params, **call):
    return zoo.Model(config).apply(params, TOKENS, padding_mask=MASK, **call)


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


# shared_layers


def test_shared_layers_equal_layers_with_the_same_parameters():
    shared, plain = BASE.replace(shared_layers=True), BASE
    params = random_params(shared)
    block = params["blocks"]["shared"]
    copies = {**params, "blocks": {f"layer_{i}": block for i in range(3)}}
    same(run(shared, params).hidden, run(plain, copies).hidden)
    assert set(zoo.Model(shared).init_shapes()["blocks"]) == {"shared"}


def test_shared_layers_scanned_have_the_same_tree_and_numbers():
    config = BASE.replace(shared_layers=True)
    params = random_params(config)
    scanned = config.replace(scan=True, remat="full")
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, zoo.Model(scanned).init_shapes())
    want = ("hidden_states", "attentions")
    loop, scan = run(config, params, want=want), run(scanned, params, want=want)
    for one, other in zip(jax.tree.leaves(loop), jax.tree.leaves(scan), strict=True):
        same(one, other)
    assert stack_layers(params, config) is params and unstack_layers(params, scanned) is params


@pytest.mark.parametrize("scan", [False, True])
def test_a_shared_layer_gathers_the_gradients_of_all_its_uses(scan):
    config = BASE.replace(shared_layers=True, scan=scan)
    params = random_params(config)
    block = params["blocks"]["shared"]
    copies = {**params, "blocks": {f"layer_{i}": block for i in range(3)}}
    own = jax.grad(lambda p: jnp.sum(run(config, p).hidden ** 3))(params)["blocks"]["shared"]
    each = jax.grad(lambda p: jnp.sum(run(BASE, p).hidden ** 3))(copies)["blocks"]
    total = jax.tree.map(lambda *leaves: sum(leaves), *each.values())
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(total))
    for one, other in zip(jax.tree.leaves(own), jax.tree.leaves(total), strict=True):
        np.testing.assert_allclose(one / largest, other / largest, rtol=0, atol=1e-5)


def test_layers_that_share_parameters_drop_different_elements():
    config = BASE.replace(shared_layers=True, dropout=0.5)
    params = random_params(config)
    out = run(config, params, dropout_key=jax.random.key(1), want=("hidden_states",))
    streams = out.hidden_states
    once = zoo.Model(config.replace(num_layers=1)).apply(
        params, TOKENS, padding_mask=MASK, dropout_key=jax.random.key(1), want=("hidden_states",)
    )
    same(streams[1], once.hidden_states[1])
    again = zoo.Model(config.replace(num_layers=2, dropout=0.0)).apply(
        params, TOKENS, padding_mask=MASK, want=("hidden_states",)
    )
    assert float(jnp.abs(streams[2] - again.hidden_states[2]).max()) > 1e-3


# embed_rank


@pytest.mark.parametrize("scan", [False, True])
def test_embed_rank_is_a_narrow_sum_normalised_and_projected(scan):
    config = BASE.replace(embed_rank=5, token_types=2, scan=scan)
    params = random_params(config)
    embed = params["embed"]
    assert embed["token"]["embedding"].shape == (V, 5) and embed["projection"]["kernel"].shape == (5, D)
    places = jnp.maximum(jnp.cumsum(MASK, axis=1) - 1, 0)
    narrow = embed["token"]["embedding"][TOKENS] + embed["position"]["embedding"][places]
    narrow = narrow + embed["segment"]["embedding"][0]
    narrow = layer_norm(narrow, embed["norm"]["scale"], embed["norm"]["bias"], 0.01)
    wanted = narrow @ embed["projection"]["kernel"] + embed["projection"]["bias"]
    same(run(config, params, want=("hidden_states",)).hidden_states[0], wanted)
    given = zoo.Model(config).apply(params, embed["token"]["embedding"][TOKENS], padding_mask=MASK)
    same(given.hidden, run(config, params).hidden)


def test_a_narrow_table_is_read_out_through_the_transform():
    config = BASE.replace(embed_rank=5, head="masked_lm", masked_lm_activation="relu")
    params = random_params(config)
    out, head = run(config, params), params["masked_lm"]
    y = jax.nn.relu(out.hidden @ head["dense"]["kernel"] + head["dense"]["bias"])
    y = layer_norm(y, head["norm"]["scale"], head["norm"]["bias"], 0.01)
    same(out.logits, y @ params["embed"]["token"]["embedding"].T + head["bias"])
    same(zoo.Model(config).unembed(params, out.hidden), out.logits)
    with pytest.raises(InputError, match='embed_rank 5: head "lm" has no transform'):
        config.replace(head="lm")
    with pytest.raises(InputError, match="inputs have 8 features; the model's embed_rank is 5"):
        zoo.Model(config).apply(params, jnp.zeros((1, 2, D)))


@pytest.mark.parametrize("tied", [True, False])
def test_narrow_tokens_are_widened_before_positions_and_the_stream_is_narrowed_again(tied):
    """OPT 350M's way, with every other table at the stream's width."""
    config = BASE.replace(embed_rank=5, embed_projection="tokens", token_types=2, head="lm", tie_embeddings=tied)
    params = random_params(config)
    embed, table = params["embed"], params["embed"]["token"]["embedding"]
    assert table.shape == (V, 5) and set(embed["projection"]) == {"kernel"} == set(params["final_projection"])
    places = jnp.maximum(jnp.cumsum(MASK, axis=1) - 1, 0)
    wide = table[TOKENS] @ embed["projection"]["kernel"] + embed["position"]["embedding"][places]
    wide = layer_norm(wide + embed["segment"]["embedding"][0], embed["norm"]["scale"], embed["norm"]["bias"], 0.01)
    out = run(config, params, want=("hidden_states",))
    same(out.hidden_states[0], wide)
    same(out.hidden, out.hidden_states[-1] @ params["final_projection"]["kernel"])
    same(out.logits, out.hidden @ (table.T if tied else params["lm_head"]["kernel"]))
    same(zoo.Model(config).unembed(params, out.hidden), out.logits)
    at = jnp.asarray([[0]] * len(TOKENS))
    same(run(config, params, logits_at=at).logits, out.logits[:, :1])
    model, answers = zoo.with_head(
        zoo.Model(config), params, head="classifier", num_labels=3, pooling="mean", key=jax.random.key(1)
    )
    assert answers["classifier"]["kernel"].shape == (5, 3) and run(model.config, answers).logits.shape == (len(MASK), 3)


# norm_bias, attention_norm, layer_scale


@pytest.mark.parametrize("scan", [False, True])
def test_norms_without_bias_are_norms_whose_bias_is_zero(scan):
    bare, full = PRE.replace(norm_bias=False, scan=scan), PRE.replace(scan=scan)
    params = random_params(bare)
    shapes = zoo.Model(full).init_shapes()
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    padded = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _at(params, path) if jax.tree_util.keystr(path) in names else jnp.zeros(leaf.shape), shapes
    )
    assert "bias" not in params["final_norm"] and "bias" not in params["embed"]["norm"]
    same(run(bare, params).hidden, run(full, padded).hidden)


def _at(tree, path):
    for step in path:
        tree = tree[step.key]
    return tree


@pytest.mark.parametrize("scan", [False, True])
def test_a_layer_without_attention_norm_reads_the_stream_as_it_is(scan):
    """The update of attention is that of a model without any norm before it: norm(x) = x for normalised x."""
    pattern = (LayerConfig(attention_norm=False), LayerConfig(), LayerConfig())
    config = PRE.replace(layer_pattern=pattern, scan=scan)
    params = random_params(config)
    first = params["blocks"]["pattern_0" if scan else "layer_0"]
    assert "attention_norm" not in first and "mlp_norm" in first
    # Embeddings of mean 0 and variance 1 - eps are their own norm, so a plain norm of scale 1 changes nothing.
    x = jnp.asarray([[[1.0, -1, 1, -1, 1, -1, 1, -1]] * 2]) * (1 - 0.01) ** 0.5
    ones = {"scale": jnp.ones(D), "bias": jnp.zeros(D)}
    plain = PRE.replace(scan=scan, layer_pattern=(LayerConfig(), LayerConfig(window=99), LayerConfig()))
    other = jax.tree.map(lambda leaf: leaf, params)
    slot = "pattern_0" if scan else "layer_0"
    add = jax.tree.map(lambda leaf: leaf[None], ones) if scan else ones
    other["blocks"][slot] = {**first, "attention_norm": add}
    streams = []
    for setting, tree in ((config, params), (plain, other)):
        tree = {**tree, "embed": {**tree["embed"], "norm": ones}}
        tree["embed"]["position"] = {"embedding": jnp.zeros_like(tree["embed"]["position"]["embedding"])}
        streams.append(zoo.Model(setting).apply(tree, x).hidden)
    same(*streams)
    with pytest.raises(InputError, match="attention_norm=False needs norm_placement 'pre' or 'both'"):
        BASE.replace(layer_pattern=pattern)


@pytest.mark.parametrize("scan", [False, True])
def test_layer_scale_multiplies_each_update(scan):
    config = PRE.replace(layer_scale=0.25, scan=scan)
    params = random_params(config)
    fresh = zoo.Model(config).init(jax.random.key(0))["blocks"]
    fresh = fresh if scan else fresh["layer_0"]
    assert set(np.asarray(fresh["attention_scale"]["scale"]).ravel()) == {0.25}

    def scaled(tree, attention, mlp):
        def put(path, leaf):
            names = [step.key for step in path]
            if "attention_scale" in names:
                return jnp.full_like(leaf, attention)
            return jnp.full_like(leaf, mlp) if "mlp_scale" in names else leaf

        return jax.tree_util.tree_map_with_path(put, tree)

    still = run(config, scaled(params, 0.0, 0.0), want=("hidden_states",)).hidden_states
    same(still[-1], still[0])
    plain = jax.tree.map(lambda leaf: leaf, params)
    for block in [plain["blocks"]] if scan else plain["blocks"].values():
        del block["attention_scale"], block["mlp_scale"]
    same(run(config, scaled(params, 1.0, 1.0)).hidden, run(PRE.replace(scan=scan), plain).hidden)
    doubled = jax.tree.map(lambda leaf: leaf, plain)
    for block in [doubled["blocks"]] if scan else doubled["blocks"].values():
        block["mlp"]["down"] = jax.tree.map(lambda leaf: 2 * leaf, block["mlp"]["down"])
    same(run(config, scaled(params, 1.0, 2.0)).hidden, run(PRE.replace(scan=scan), doubled).hidden)


# heads

gelu = lambda x: jax.nn.gelu(x, approximate=False)  # noqa: E731


def dense(p, x, act):
    return act(x @ p["dense"]["kernel"] + p["dense"]["bias"])


HEADS = {
    "token_classifier": (
        dict(head="token_classifier", num_labels=3),
        lambda p, h: h @ p["token_classifier"]["kernel"] + p["token_classifier"]["bias"],
    ),
    "span": (dict(head="span"), lambda p, h: h @ p["span"]["kernel"] + p["span"]["bias"]),
    "row": (
        dict(head="classifier", num_labels=3, classifier_hidden="row", pooler=True),
        lambda p, h: (
            dense(p["classifier"], h[jnp.arange(3), jnp.array([0, 0, 1])], jnp.tanh) @ p["classifier"]["kernel"]
            + p["classifier"]["bias"]
        ),
    ),
    "row-of-tokens": (
        dict(head="token_classifier", num_labels=3, classifier_hidden="row"),
        lambda p, h: h @ p["token_classifier"]["kernel"] + p["token_classifier"]["bias"],
    ),
    "every": (
        dict(head="span", classifier_hidden="every", classifier_activation="gelu", classifier_norm=True),
        lambda p, h: (
            layer_norm(dense(p["span"], h, gelu), p["span"]["norm"]["scale"], p["span"]["norm"]["bias"], 0.01)
            @ p["span"]["kernel"]
            + p["span"]["bias"]
        ),
    ),
    "replaced_token": (
        dict(head="replaced_token", activation="relu"),
        lambda p, h: (
            dense(p["replaced_token"], h, jax.nn.relu) @ p["replaced_token"]["kernel"][:, 0]
            + p["replaced_token"]["bias"][0]
        ),
    ),
    "cls_mean": (
        dict(head="classifier", num_labels=3, pooling="cls_mean"),
        lambda p, h: (
            jnp.concatenate(
                [h[jnp.arange(3), jnp.array([0, 0, 1])], (h * MASK[..., None]).sum(1) / MASK.sum(1)[:, None]], -1
            )
            @ p["classifier"]["kernel"]
            + p["classifier"]["bias"]
        ),
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_by_formula(name):
    changes, formula = HEADS[name]
    config = BASE.replace(num_layers=1, **changes)
    params = random_params(config)
    out = run(config, params)
    assert out.logits.dtype == jnp.float32
    np.testing.assert_allclose(out.logits, formula(params, out.hidden), rtol=0, atol=1e-5)


def test_head_bias_and_classifier_bias_leave_their_biases_out():
    config = BASE.replace(
        num_layers=1, head="classifier", num_labels=3, classifier_hidden="row", head_bias=False, classifier_bias=False
    )
    shapes = zoo.Model(config).init_shapes()["classifier"]
    assert set(shapes) == {"dense", "kernel"} and set(shapes["dense"]) == {"kernel"}
    masked = zoo.Model(config.replace(head="masked_lm")).init_shapes()["masked_lm"]
    assert set(masked) == {"dense", "norm", "bias"} and set(masked["dense"]) == {"kernel"}


def test_a_new_head_keeps_the_backbone_and_no_other_head():
    """A token classifier of as many labels is not a row classifier: nothing of that is taken over."""
    model = zoo.Model(BASE.replace(num_layers=1, head="classifier", num_labels=3))
    params = model.init(jax.random.key(0))
    changed, tagged = with_head(model, params, head="token_classifier", num_labels=3, key=jax.random.key(1))
    assert changed.config.head == "token_classifier" and set(tagged) == {"embed", "blocks", "token_classifier"}
    assert tagged["blocks"] is params["blocks"] and tagged["embed"] is params["embed"]
    assert changed.apply(tagged, TOKENS).logits.shape == (3, 4, 3)
    changed, answers = with_head(changed, tagged, head="span", key=jax.random.key(2))
    assert changed.apply(answers, TOKENS).logits.shape == (3, 4, 2)
    with pytest.raises(InputError, match='a model with head "span" has no vocabulary logits'):
        changed.unembed(answers, jnp.zeros((1, D)))


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(head="token_classifier"), 'head "token_classifier" needs num_labels of 1 or more, not 0'),
        (dict(classifier_norm=True), "classifier_norm needs a hidden layer"),
        (dict(shared_layers=True, num_layers=2, layer_pattern=(LayerConfig(2), LayerConfig())), "of one entry"),
        (dict(layer_scale=0.0), "layer_scale is 0.0; it must be above 0"),
        (dict(embed_rank=0), "embed_rank is 0"),
        (dict(embed_projection="tokens"), 'embed_projection "tokens" needs embed_rank'),
        (dict(embed_projection="tokens", embed_rank=4, pooler=True), "pooler reads a stream of width embed_dim"),
        (dict(qk_norm_over="heads"), 'did you mean "head"'),
    ],
)
def test_settings_that_contradict_each_other(changes, said):
    with pytest.raises(InputError) as error:
        BASE.replace(**changes)
    assert said in str(error.value)
