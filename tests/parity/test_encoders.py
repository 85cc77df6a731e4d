"""The encoder families against the reference library: every head, and the way back. Tolerance as in test_models."""

import jax
import numpy as np
import pytest
import torch
import transformers

from tests.golden.recipe import batch, error
from tests.parity import encoders, reference
from zoo.checkpoints import export, load

BY_ROW = ("classifier", "next_sentence")


@pytest.fixture(scope="module", params=list(encoders.CASES))
def case(request, tmp_path_factory):
    """(name, reference model, our model, our parameters)."""
    theirs = encoders.CASES[request.param].model()
    folder = reference.save(theirs, tmp_path_factory.mktemp(request.param))
    return request.param, theirs, *load(folder)


def ours(model, params, inputs, **more):
    types = {"token_types": inputs["token_types"]} if model.config.token_types > 1 else {}
    return model.apply(params, inputs["tokens"], padding_mask=inputs["padding_mask"], **types, **more)


@pytest.mark.parametrize("left", [False, True], ids=["right-padded", "left-padded"])
def test_logits_and_hidden_states(case, left):
    name, theirs, model, params = case
    inputs = batch(7, 97, rows=3, length=70, shortest=40, left=left)
    real = inputs["padding_mask"] == 1
    expected = encoders.run(theirs, inputs)
    out = ours(model, params, inputs, want=("hidden_states",))

    errors = reference.stream_errors(expected, out, model.config, real)
    wanted = encoders.logits_of(expected)
    assert (wanted is None) == (out.logits is None)
    # The reference pools place 0, which is padding on the left; we pool the first real token.
    if wanted is not None and not (left and model.config.head == "classifier" and model.config.pooling == "cls"):
        errors.append(error(out.logits, wanted, real if out.logits.ndim > 1 and out.logits.shape[1] == 70 else None))
    for field, mine in (("sop_logits", out.next_sentence), ("pooler_output", out.pooled)):
        if getattr(expected, field, None) is not None and not left:
            errors.append(error(mine, getattr(expected, field).numpy()))
    assert max(errors) < 1e-5, errors


def test_export_opens_in_the_reference_library_with_the_same_bits(case, tmp_path):
    name, theirs, model, params = case
    export(model, params, tmp_path / "out")
    opened, info = type(theirs).from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    state = opened.state_dict()
    for key, value in theirs.state_dict().items():
        if name.endswith("untied") and key in ("lm_head.bias", "predictions.bias"):
            continue  # not tied to the decoder's bias, it is added to nothing
        assert torch.equal(state[key], value), key
    inputs = batch(8, 97, rows=2, length=64, shortest=50, left=False)
    before, after = encoders.run(theirs, inputs), encoders.run(opened, inputs)
    assert torch.equal(before.hidden_states[-1], after.hidden_states[-1])
    assert np.array_equal(encoders.logits_of(before), encoders.logits_of(after)) or encoders.logits_of(before) is None
    assert opened.config.to_dict().get("id2label") == theirs.config.to_dict().get("id2label")

    again, back = load(tmp_path / "out")
    assert again == model
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, back))


GRADIENTS = (
    "roberta-masked-lm",
    "distilbert-masked-lm",
    "albert-masked-lm",
    "electra-generator",
    "modernbert-masked-lm",
)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name, tmp_path):
    """Loss and whole gradient; a shared layer gathers those of all its uses."""
    theirs = encoders.CASES[name].model()
    for module in theirs.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # the reference keeps gradients from that row
    model, params = load(reference.save(theirs, tmp_path / "model"))
    inputs = batch(9, 97, rows=2, length=64, shortest=44, left=False)
    labels = np.random.RandomState(10).randint(0, 97, (2, 64))
    rows, columns = np.nonzero(inputs["padding_mask"])
    logits = encoders.run(theirs, inputs, gradients=True).logits
    loss = -torch.log_softmax(logits, -1)[rows, columns, labels[rows, columns]].mean()
    loss.backward()
    wanted = load(reference.save_gradients(theirs, tmp_path / "gradients"))[1]

    def our_loss(params):
        return -jax.nn.log_softmax(ours(model, params, inputs).logits)[rows, columns, labels[rows, columns]].mean()

    value, gradient = jax.jit(jax.value_and_grad(our_loss))(params)
    assert abs(float(value) - loss.item()) < 1e-5 * loss.item()
    errors = reference.gradient_errors(gradient, wanted)
    assert max(errors) < 1e-5, errors


def test_roberta_counts_positions_from_the_mask_as_the_reference_does_from_its_padding_id():
    """The reference is given no positions; its padding id stands on padding and nowhere else."""
    theirs = encoders.CASES["roberta-masked-lm"].model()
    assert transformers.RobertaConfig().pad_token_id == 1
    for left in (False, True):
        inputs = batch(13, 97, rows=3, length=70, shortest=40, left=left)
        real = inputs["padding_mask"] == 1
        tokens = np.where(real, np.where(inputs["tokens"] == 1, 5, inputs["tokens"]), 1)
        with torch.no_grad():
            counted = theirs(torch.from_numpy(tokens).long(), attention_mask=torch.from_numpy(real).long()).logits
        explicit = encoders.run(theirs, inputs | {"tokens": tokens, "token_types": 0 * inputs["token_types"]}).logits
        assert error(explicit.numpy(), counted.numpy(), real) < 1e-6
