"""ViT, DeiT and DINOv2 against the reference library: images of 8 x 8 patches, and the way back."""

import jax
import numpy as np
import pytest
import torch
import transformers

import zoo
from tests.golden.recipe import error
from tests.parity import reference
from tests.parity.reference import Case
from zoo.checkpoints import export, load
from zoo.checkpoints.hugging_face import published_config
from zoo.registry import PRESETS
from zoo.summary import summarise

VIT = dict(
    hidden_size=48,
    num_attention_heads=4,
    num_hidden_layers=2,
    intermediate_size=80,
    image_size=40,
    patch_size=5,
)
DINOV2 = {name: value for name, value in VIT.items() if name != "intermediate_size"} | dict(mlp_ratio=2)
THREE = dict(id2label={0: "no", 1: "yes", 2: "perhaps"})

CASES = {
    "vit-classifier": Case("ViTForImageClassification", VIT, THREE, 60),
    "vit-backbone": Case("ViTModel", VIT, dict(qkv_bias=False, num_channels=2, hidden_act="relu"), 61),
    "deit-classifier": Case("DeiTForImageClassification", VIT, THREE, 62),
    "deit-teacher": Case("DeiTForImageClassificationWithTeacher", VIT, THREE, 63),
    "deit-backbone": Case("DeiTModel", VIT, {}, 64),
    "dinov2-classifier": Case("Dinov2ForImageClassification", DINOV2, THREE, 65),
    "dinov2-backbone": Case("Dinov2Model", DINOV2, dict(mlp_ratio=3, use_mask_token=False), 66),
    "dinov2-gated": Case("Dinov2Model", DINOV2, dict(use_swiglu_ffn=True), 67),
    "dinov2-registers": Case(
        "Dinov2WithRegistersForImageClassification", DINOV2, THREE | dict(num_register_tokens=3), 68
    ),
}


def run(model, images):
    with torch.no_grad():
        pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        return model(pixels, output_hidden_states=True)


def images_for(config, seed):
    return np.random.RandomState(seed).standard_normal((2, 40, 40, config.num_channels)).astype(np.float32)


@pytest.fixture(scope="module", params=list(CASES))
def case(request, tmp_path_factory):
    """(reference model, our model, our parameters)."""
    theirs = CASES[request.param].model()
    return theirs, *load(reference.save(theirs, tmp_path_factory.mktemp(request.param)))


def test_logits_and_hidden_states(case):
    theirs, model, params = case
    images = images_for(theirs.config, 7)
    expected = run(theirs, images)
    out = model.apply(params, images, want=("hidden_states",))
    streams = [state.numpy() for state in expected.hidden_states]
    assert len(streams) == len(out.hidden_states) == model.config.num_layers + 1
    assert out.hidden.shape[1] >= 65
    errors = [error(mine, state) for mine, state in zip(out.hidden_states, streams, strict=True)]
    if hasattr(expected, "last_hidden_state"):
        errors.append(error(out.hidden, expected.last_hidden_state.numpy()))
        pooled = out.hidden[:, 0] if model.config.family == "dinov2" else out.pooled
        errors.append(error(pooled, expected.pooler_output.numpy()))
    else:
        errors.append(error(out.logits, expected.logits.numpy()))
    assert max(errors) < 1e-5, errors


def test_export_opens_in_the_reference_library_with_the_same_bits(case, tmp_path):
    theirs, model, params = case
    export(model, params, tmp_path / "out")
    opened, info = type(theirs).from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    state = opened.state_dict()
    for key, value in theirs.state_dict().items():
        assert torch.equal(state[key], value), key
    images = images_for(theirs.config, 8)
    before, after = run(theirs, images), run(opened, images)
    assert torch.equal(before.hidden_states[-1], after.hidden_states[-1])
    again, back = load(tmp_path / "out")
    assert again == model
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, back))


@pytest.mark.parametrize("name", ["vit-classifier", "deit-teacher", "dinov2-classifier", "dinov2-registers"])
def test_gradient(name, tmp_path):
    """Loss and whole gradient of the log-probability of a label."""
    theirs = CASES[name].model()
    model, params = load(reference.save(theirs, tmp_path / "model"))
    images, labels = images_for(theirs.config, 9), np.array([2, 0])
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    loss = -torch.log_softmax(theirs(pixels).logits, -1)[[0, 1], labels].mean()
    loss.backward()
    for parameter in theirs.parameters():
        if parameter.grad is None:  # the token of masked patches
            parameter.grad = torch.zeros_like(parameter)
    wanted = load(reference.save_gradients(theirs, tmp_path / "gradients"))[1]

    def our_loss(params):
        return -jax.nn.log_softmax(model.apply(params, images).logits)[np.arange(2), labels].mean()

    value, gradient = jax.jit(jax.value_and_grad(our_loss))(params)
    assert abs(float(value) - loss.item()) < 1e-5 * loss.item()
    errors = reference.gradient_errors(gradient, wanted)
    assert max(errors) < 1e-5, errors


SIZES = [
    ("vit-classifier", 60),
    ("deit-backbone", 25),
    ("dinov2-backbone", 15),
    ("dinov2-registers", 55),
    ("dinov2-registers", 15),
]


@pytest.mark.parametrize("name, side", SIZES)
def test_images_of_another_size(name, side, tmp_path):
    """The position table resized once, where the reference does it at each call."""
    theirs = CASES[name].model()
    model, params = zoo.with_image_size(*load(reference.save(theirs, tmp_path / "model")), side)
    images = np.random.RandomState(9).standard_normal((2, side, side, 3)).astype(np.float32)
    more = {} if name.startswith("dinov2") else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        expected = theirs(pixels, output_hidden_states=True, **more)
    out = model.apply(params, images, want=("hidden_states",))
    streams = expected.hidden_states
    errors = [error(mine, state.numpy()) for mine, state in zip(out.hidden_states, streams, strict=True)]
    assert max(errors) < 1e-5, errors


@pytest.mark.parametrize("name", [name for name, config in PRESETS.items() if config.image_size])
def test_full_size_presets_weigh_what_the_reference_s_models_do(name):
    _, values = published_config(PRESETS[name])
    made = getattr(transformers, values["architectures"][0])
    with torch.device("meta"):
        theirs = made(made.config_class(**values))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == summarise(PRESETS[name]).total_parameters
