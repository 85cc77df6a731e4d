"""Models of images: patches, the tokens before them, their heads, and what is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.families.vit import VIT
from zoo.patches import cubic_weights, cut

D = 8
TINY = ModelConfig(
    vocab_size=0,
    image_size=6,
    patch_size=2,
    channels=3,
    class_token=True,
    embed_dim=D,
    num_layers=2,
    num_heads=2,
    visibility="full",
    head="none",
)
IMAGES = jnp.asarray(np.random.RandomState(0).standard_normal((2, 6, 6, 3)), jnp.float32)


def random_params(config, seed=0):
    draw = np.random.default_rng(seed)
    shapes = zoo.Model(config).init_shapes()
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * draw.standard_normal(leaf.shape), leaf.dtype), shapes)


def first_stream(config, params):
    return zoo.Model(config).apply(params, IMAGES, want=("hidden_states",)).hidden_states[0]


def test_patches_go_left_to_right_and_then_down():
    image = jnp.arange(36.0).reshape(1, 6, 6, 1)
    cells = cut(image, 2)[0, ..., 0]
    assert cells.shape == (9, 2, 2)
    assert cells[0].tolist() == [[0, 1], [6, 7]]
    assert cells[1].tolist() == [[2, 3], [8, 9]]
    assert cells[3].tolist() == [[12, 13], [18, 19]]


def test_patch_embedding_is_a_convolution_with_the_stride_of_a_patch():
    config = TINY.replace(class_token=False)
    params = random_params(config)
    kernel, bias = params["embed"]["patches"]["kernel"], params["embed"]["patches"]["bias"]
    assert kernel.shape == (2, 2, 3, D)
    grid = jax.lax.conv_general_dilated(IMAGES, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    wanted = grid.reshape(2, 9, D) + bias + params["embed"]["position"]["embedding"]
    np.testing.assert_allclose(first_stream(config, params), wanted, rtol=0, atol=1e-5)


def test_the_tokens_before_the_patches_and_their_positions():
    """[class] [distillation] [registers] patches; registers have no position."""
    config = TINY.replace(distillation_token=True, registers=2, mask_token=True)
    params = random_params(config)
    embed = params["embed"]
    assert config.max_positions == 11 and embed["position"]["embedding"].shape == (11, D)
    x = first_stream(config, params)
    assert x.shape == (2, 13, D)
    tokens = [embed["class_token"] + embed["position"]["embedding"][:1]]
    tokens += [embed["distillation_token"] + embed["position"]["embedding"][1:2], embed["registers"]]
    wanted = jnp.broadcast_to(jnp.concatenate(tokens), (2, 4, D))
    np.testing.assert_allclose(x[:, :4], wanted, rtol=0, atol=1e-6)
    bare = config.replace(class_token=False, distillation_token=False, registers=0, mask_token=False)
    patches = first_stream(bare, {**params, "embed": {"patches": embed["patches"], "position": _from(embed, 2)}})
    np.testing.assert_allclose(x[:, 4:], patches, rtol=0, atol=1e-6)


def _from(embed, start):
    return {"embedding": embed["position"]["embedding"][start:]}


def test_the_mask_token_is_kept_and_read_by_no_call():
    config = TINY.replace(mask_token=True, layer_scale=1.0)
    params = random_params(config)
    gradient = jax.grad(lambda p: zoo.Model(config).apply(p, IMAGES).hidden.var())(params)
    assert not gradient["embed"]["mask_token"].any() and gradient["embed"]["class_token"].any()


def test_scanned_and_looped_give_the_same():
    config = TINY.replace(registers=1, layer_scale=1.0, pooler=True)
    params = random_params(config)
    scanned = zoo.Model(config.replace(scan=True))
    loop = zoo.Model(config).apply(params, IMAGES, want=("hidden_states",))
    scan = scanned.apply(zoo.stack_layers(params, config), IMAGES, want=("hidden_states",))
    for one, other in zip(jax.tree.leaves(loop), jax.tree.leaves(scan), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_the_classifier_reads_the_class_token_and_a_teacher_s_the_mean_of_both():
    config = TINY.replace(head="classifier", num_labels=3, distillation_token=True)
    params = random_params(config.replace(distillation_head=True))
    single = {name: tree for name, tree in params.items() if name != "distillation_classifier"}
    out = zoo.Model(config).apply(single, IMAGES)
    own, other = params["classifier"], params["distillation_classifier"]
    first = out.hidden[:, 0] @ own["kernel"] + own["bias"]
    np.testing.assert_allclose(out.logits, first, rtol=0, atol=1e-5)
    both = zoo.Model(config.replace(distillation_head=True)).apply(params, IMAGES)
    second = out.hidden[:, 1] @ other["kernel"] + other["bias"]
    np.testing.assert_allclose(both.logits, (first + second) / 2, rtol=0, atol=1e-5)


def test_the_mean_is_that_of_the_patches():
    config = TINY.replace(head="classifier", num_labels=3, pooling="cls_mean", registers=2)
    params = random_params(config)
    out = zoo.Model(config).apply(params, IMAGES)
    features = jnp.concatenate([out.hidden[:, 0], out.hidden[:, 3:].mean(axis=1)], axis=-1)
    wanted = features @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    np.testing.assert_allclose(out.logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "given, said",
    [
        (dict(inputs=jnp.zeros((2, 6, 6, 4))), r"have shape \(2, 6, 6, 4\); this model reads images \[B, 6, 6, 3\]"),
        (dict(inputs=jnp.zeros((2, 8, 6, 3))), "this model reads images"),
        (dict(inputs=jnp.zeros((2, 5), jnp.int32)), "this model reads images"),
        (dict(inputs=jnp.zeros((2, 6, 6, 3), jnp.uint8)), "images must be floating point"),
        (dict(padding_mask=jnp.ones((2, 10))), "padding_mask belongs to models of tokens"),
        (dict(positions=jnp.ones((2, 10), jnp.int32)), "positions belongs to models of tokens"),
        (dict(logits_at=jnp.zeros((2, 1), jnp.int32)), "logits_at belongs to models of tokens"),
        (dict(want=("hidden_state",)), 'did you mean "hidden_states"'),
    ],
)
def test_calls_that_are_refused(given, said):
    model = zoo.Model(TINY)
    call = {"inputs": IMAGES} | given
    with pytest.raises(InputError, match=said):
        model.apply(model.init_shapes(), call.pop("inputs"), **call)


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(patch_size=4), "patch_size 4 does not divide image_size 6; nearest that does: 3"),
        (dict(head="masked_lm"), 'no vocabulary, so head cannot be "masked_lm"'),
        (dict(visibility="causal"), "visibility is 'causal'"),
        (dict(positions="rotary"), "positions is 'rotary'"),
        (dict(token_types=2), "token_types is 2"),
        (dict(embed_norm=True), "embed_norm is True"),
        (dict(class_token=False, pooler=True), "it needs class_token=True"),
        (dict(distillation_head=True), "distillation_head needs distillation_token=True"),
        (dict(image_size=0, vocab_size=5), "class_token belongs to models of images"),
        (dict(vocab_size=10), "vocab_size is 10, but a model of images (image_size > 0) needs 0"),
        (dict(registers=-1), "registers is -1"),
    ],
)
def test_settings_that_are_refused(changes, said):
    with pytest.raises(InputError) as error:
        TINY.replace(**changes)
    assert said in str(error.value)


def test_cubic_weights():
    """Literal values at twice the size; a constant stays constant; the same size stays the same."""
    double = cubic_weights(4, 8)
    np.testing.assert_allclose(double[3], [-0.10546875, 0.87890625, 0.26171875, -0.03515625], atol=1e-6)
    np.testing.assert_allclose(double[0], [1.140625 - 0.03515625, -0.10546875, 0, 0], atol=1e-6)
    np.testing.assert_allclose(cubic_weights(7, 3).sum(axis=1), 1, atol=1e-6)
    for smooth in (False, True):
        np.testing.assert_array_equal(cubic_weights(5, 5, smooth), np.eye(5, dtype=np.float32))
    # At half the size the taps lie at 1/4, 3/4, 5/4 and 7/4 of the kernel's unit: 111, 29, -9, -3 of 128, over two.
    half = cubic_weights(16, 8, smooth=True)
    np.testing.assert_allclose(half[3, 3:11] * 256, [-3, -9, 29, 111, 111, 29, -9, -3], atol=1e-4)
    np.testing.assert_allclose(half.sum(axis=1), 1, atol=1e-6)
    assert not half[3, :3].any() and not half[3, 11:].any()


@pytest.mark.parametrize("scan", [False, True])
def test_another_image_size_keeps_all_but_the_position_table(scan):
    config = TINY.replace(distillation_token=True, registers=1, scan=scan)
    model, params = zoo.Model(config), random_params(config)
    larger, resized = zoo.with_image_size(model, params, 8)
    table, new = params["embed"]["position"]["embedding"], resized["embed"]["position"]["embedding"]
    assert larger.config.image_size == 8 and new.shape == (18, D)
    np.testing.assert_array_equal(new[:2], table[:2])
    weights = cubic_weights(3, 4, smooth=True)  # the registers' way
    grid = np.einsum("yr,xc,rcd->yxd", weights, weights, table[2:].reshape(3, 3, D))
    np.testing.assert_allclose(new[2:], grid.reshape(16, D), atol=1e-6)
    assert resized["blocks"] is params["blocks"] and resized["embed"]["patches"] is params["embed"]["patches"]
    assert larger.apply(resized, jnp.ones((1, 8, 8, 3))).hidden.shape == (1, 19, D)
    assert zoo.with_image_size(model, params, 6) == (model, params)
    with pytest.raises(InputError, match="patch_size 2 does not divide image_size 7"):
        zoo.with_image_size(model, params, 7)
    with pytest.raises(InputError, match="this model reads tokens"):
        zoo.with_image_size(zoo.create("bert-tiny"), {}, 8)


def test_positions_follow_the_image():
    assert VIT.max_positions == 197
    assert VIT.replace(image_size=384).max_positions == 577
    assert VIT.replace(class_token=False, max_positions=5).max_positions == 196


def test_text_commands_refuse_models_of_images_by_name():
    model = zoo.create("vit-tiny", num_layers=1)
    with pytest.raises(InputError, match="generation continues texts, and this model reads images"):
        zoo.generate(model, {}, [[1, 2]], max_new_tokens=1)
    with pytest.raises(InputError, match='a cache serves causal models; this one has visibility "full"'):
        model.init_cache(1, 4)
    with pytest.raises(InputError, match="a model of images has no vocabulary"):
        zoo.create("vit-tiny", head="lm")
