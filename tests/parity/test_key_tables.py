"""Every preset at full size: our key table gives exactly the tensors of the reference library's model, name and shape.

Nothing is allocated: theirs is made on the meta device, ours under eval_shape. Tensors that the reference ties to
another are written once. Some models have other names in the reference's memory than in its files: it is asked for
those of its files, as its own save_pretrained does.
"""

import pytest
import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

from zoo.checkpoints.decoder import SPANS, TOKENS
from zoo.checkpoints.hugging_face import FORMATS, published_config
from zoo.checkpoints.keys import to_published
from zoo.checkpoints.layer_view import LayerView
from zoo.errors import InputError
from zoo.model import Model
from zoo.registry import PRESETS

# What the reference calls otherwise in memory than in its files.
IN_FILES = {"gpt_neox": ("lm_head.", "embed_out.")}


@pytest.mark.parametrize("name", list(PRESETS))
def test_names_and_shapes(name):
    compare(PRESETS[name])


ANSWERS = {
    "none": {},
    "classifier": dict(num_labels=3, pooling="last", classifier_bias=False),
    "token_classifier": dict(num_labels=3, classifier_bias=True),
    "span": dict(classifier_bias=True),
}
CAUSAL = [config for config in PRESETS.values() if config.visibility == "causal"]
DECODERS = [name for name, form in FORMATS.items() if any(form.writes(config) for config in CAUSAL)]


@pytest.mark.parametrize("model_type", DECODERS)
def test_every_class_of_every_decoder(model_type):
    """Those that we take are there, those that are there we take, and their tensors are ours."""
    form = FORMATS[model_type]
    preset = next(config for config in CAUSAL if form.writes(config))
    found = set()
    for head, changes in ANSWERS.items():
        config = preset.replace(head=head, tie_embeddings=head != "none" and preset.tie_embeddings, **changes)
        try:
            found.add(published_config(config)[1]["architectures"][0])
        except InputError as reason:
            assert f'cannot say head="{head}"' in str(reason) and head in ("token_classifier", "span")
            continue
        compare(config)
    assert found | {next(iter(form.architectures))} == set(form.architectures)
    stem = next(iter(form.architectures)).removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    for end in (TOKENS, SPANS):
        assert hasattr(transformers, stem + end) == (stem + end in form.architectures)


def compare(config):
    form, values = published_config(config)
    scanned = config.replace(scan=True)  # eighty layers are traced once
    shapes = LayerView(Model(scanned).init_shapes(), scanned).shapes
    prefix = form.prefix_of(values["architectures"][0])
    ours = to_published(form.table, shapes, lambda path: None, config.num_layers, prefix)

    made = getattr(transformers, values["architectures"][0])
    settings = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        model = made(made.config_class(**settings | {"pad_token_id": settings.get("pad_token_id")}))
    memory, file = IN_FILES.get(values["model_type"], ("", ""))
    state = revert_weight_conversion(model, model.state_dict(keep_vars=True))
    theirs = {key.replace(memory, file) if memory else key: tensor for key, tensor in state.items()}
    first: dict[int, str] = {}
    for key in sorted(theirs, key=lambda key: key not in ours):
        first.setdefault(id(theirs[key]), key)
    once = {key: tuple(theirs[key].shape) for key in first.values()}
    both = {key: tensor.shape for key, tensor in ours.items() if key in once or key not in theirs}
    assert both == once
    assert set(ours) <= set(theirs)


def test_the_largest_are_among_them():
    largest = {"llama-65b", "llama3-70b", "gpt3-175b", "bert-large", "mixtral-8x22b", "vit-huge", "dinov2-giant"}
    assert largest <= set(PRESETS)
