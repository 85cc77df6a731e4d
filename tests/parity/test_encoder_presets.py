"""Full-size presets against the reference library's models on its meta device: every tensor, by name and shape.

Vision models are counted: the reference has other names in memory than in its files, whose names test_vision proves.
"""

import pytest
import torch
import transformers

from zoo.checkpoints.hugging_face import FORMATS, published_config
from zoo.checkpoints.layouts import LAYOUTS
from zoo.checkpoints.placing import flatten
from zoo.model import Model
from zoo.registry import PRESETS

NAMED = ("roberta", "xlm_roberta", "distilbert", "albert", "electra", "modernbert")
COUNTED = ("vit", "deit", "dinov2")


def reference_model(config):
    """The reference's model of a preset, by the settings that we publish, without storage."""
    form, values = published_config(config)
    name = values["architectures"][0]
    settings = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        made = getattr(transformers, name)
        return form, made(made.config_class(**settings)), name in form.bare


def sizes(family):
    return [name for name, config in PRESETS.items() if config.family in family and not name.endswith("-tiny")]


@pytest.mark.parametrize("name", sizes(NAMED))
def test_names_and_shapes(name):
    config = PRESETS[name]
    form, theirs, bare = reference_model(config)
    shapes = {path: leaf.shape for path, leaf in flatten(Model(config).init_shapes()).items()}
    ours = {}
    for key in form.table.rows(config.num_layers):
        if key.fits(shapes):
            tied = key.aliases if config.head == "masked_lm" else ()
            for published in (key.theirs, key.instead, *tied):
                if published:
                    outside = bare or published.startswith(form.table.heads)
                    ours[published if outside else form.table.prefix + published] = LAYOUTS[key.layout].shape([shapes[path] for path in key.paths])
    assert ours == {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items()}


@pytest.mark.parametrize("name", [*sizes(NAMED), *sizes(COUNTED), "vit-tiny", "deit-tiny"])
def test_counts(name):
    _, theirs, _ = reference_model(PRESETS[name])
    leaves = flatten(Model(PRESETS[name].replace(scan=True)).init_shapes()).values()
    assert sum(leaf.size for leaf in leaves) == sum(tensor.numel() for tensor in theirs.parameters())


def test_every_format_of_the_encoders_has_a_reference_class():
    for form in FORMATS.values():
        for name in form.architectures:
            assert hasattr(transformers, name), name
