"""Every family against the reference library: logits, hidden states, gradients, and the way back.

Tolerance 1e-5 in float32, as a part of the largest number compared (tests.golden.recipe.error): two libraries add the
same products in another order, and the rounding of a sum goes with the size of its terms.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from tests.golden.recipe import batch, error
from tests.parity import reference
from zoo.checkpoints import export, load

CAUSAL = [name for name in reference.CASES if not name.startswith("bert")]


@pytest.fixture(scope="module", params=list(reference.CASES))
def case(request, tmp_path_factory):
    """(name, reference model, our model, our parameters, folder)."""
    theirs = reference.CASES[request.param].model()
    folder = reference.save(theirs, tmp_path_factory.mktemp(request.param))
    return request.param, theirs, *load(folder), folder


def ours(model, params, inputs, **more):
    types = {"token_types": inputs["token_types"]} if model.config.token_types else {}
    return model.apply(params, inputs["tokens"], padding_mask=inputs["padding_mask"], **types, **more)


@pytest.mark.parametrize("left", [False, True], ids=["right-padded", "left-padded"])
def test_logits_and_hidden_states(case, left):
    name, theirs, model, params, _ = case
    inputs = batch(7, 97, rows=3, length=70, shortest=40, left=left)
    real = inputs["padding_mask"] == 1
    expected = reference.run(theirs, inputs)
    out = ours(model, params, inputs, want=("hidden_states",))

    errors = reference.stream_errors(expected, out, model.config, real)

    if hasattr(expected, "prediction_logits"):
        errors.append(error(out.logits, expected.prediction_logits.numpy(), real))
    elif name == "bert-classifier":
        if not left:  # the reference pools position 0, which is padding on the left; we pool the first real token
            errors.append(error(out.logits, expected.logits.numpy()))
    elif hasattr(expected, "logits"):
        errors.append(error(out.logits, expected.logits.numpy(), real))
    if getattr(expected, "seq_relationship_logits", None) is not None and not left:
        errors.append(error(out.next_sentence, expected.seq_relationship_logits.numpy()))
    if getattr(expected, "pooler_output", None) is not None and not left:
        errors.append(error(out.pooled, expected.pooler_output.numpy()))
    assert max(errors) < 1e-5, errors


def test_export_opens_in_the_reference_library_with_the_same_bits(case, tmp_path):
    name, theirs, model, params, _ = case
    export(model, params, tmp_path / "out")
    # GPT2Model goes out as a language model, which its tied table makes it.
    classes = {"gpt2-backbone": "GPT2LMHeadModel"}
    opened, info = getattr(transformers, classes.get(name, type(theirs).__name__)).from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    state = opened.state_dict()
    prefix = "transformer." if name == "gpt2-backbone" else ""
    for key, value in theirs.state_dict().items():
        if name == "bert-untied" and key == "cls.predictions.bias":
            continue  # not tied to the decoder's bias, it is added to nothing
        assert torch.equal(state[prefix + key], value), key
    inputs = batch(8, 97, rows=2, length=64, shortest=50, left=False)
    before, after = reference.run(theirs, inputs), reference.run(opened, inputs)
    assert torch.equal(before.hidden_states[-1], after.hidden_states[-1])
    for field in ("logits", "prediction_logits", "seq_relationship_logits", "pooler_output"):
        if getattr(before, field, None) is not None:
            assert torch.equal(getattr(before, field), getattr(after, field))
    assert opened.config.to_dict().get("id2label") == theirs.config.to_dict().get("id2label")

    again, back = load(tmp_path / "out")
    assert again == model
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, back))


@pytest.mark.parametrize("name", ["bert-pretraining", "gpt1", "gpt2", "llama2-grouped", "llama3-factor-32-tied"])
def test_gradient_and_the_step_that_follows(name, tmp_path):
    """Loss, whole gradient and one step of gradient descent; what was tied stays tied."""
    theirs = reference.CASES[name].model()
    model, params = load(reference.save(theirs, tmp_path / "model"))
    inputs = batch(9, 97, rows=2, length=64, shortest=44, left=False)
    labels = np.random.RandomState(10).randint(0, 97, (2, 64))
    rows, columns = np.nonzero(inputs["padding_mask"])

    expected = reference.run(theirs, inputs, gradients=True)
    logits = expected.prediction_logits if name == "bert-pretraining" else expected.logits
    loss = -torch.log_softmax(logits, -1)[rows, columns, labels[rows, columns]].mean()
    if name == "bert-pretraining":
        loss = loss - torch.log_softmax(expected.seq_relationship_logits, -1)[[0, 1], [1, 0]].mean()
    loss.backward()
    wanted = load(reference.save_gradients(theirs, tmp_path / "gradients"))[1]

    def our_loss(params):
        out = ours(model, params, inputs)
        value = -jax.nn.log_softmax(out.logits)[rows, columns, labels[rows, columns]].mean()
        if name == "bert-pretraining":
            value = value - jax.nn.log_softmax(out.next_sentence)[jnp.array([0, 1]), jnp.array([1, 0])].mean()
        return value

    value, gradient = jax.jit(jax.value_and_grad(our_loss))(params)
    assert abs(float(value) - loss.item()) < 1e-5 * loss.item()
    errors = reference.gradient_errors(gradient, wanted)
    assert max(errors) < 1e-5, errors

    rate = 0.1
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter -= rate * parameter.grad
    stepped = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
    export(model, stepped, tmp_path / "stepped")
    opened = type(theirs).from_pretrained(tmp_path / "stepped", attn_implementation="eager")
    assert opened.config.tie_word_embeddings == model.config.tie_embeddings
    after, wanted_after = reference.run(opened, inputs), reference.run(theirs, inputs)
    field = "prediction_logits" if name == "bert-pretraining" else "logits"
    real = inputs["padding_mask"] == 1
    assert error(getattr(after, field), getattr(wanted_after, field), real) < 1e-5
