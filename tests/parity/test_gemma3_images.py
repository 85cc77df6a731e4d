"""Gemma 3 of text and images: its text model, out of both spellings of its folders, against the reference on text.

Tolerance as in test_models.py.
"""

import json

import jax
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from tests.golden.recipe import error
from tests.parity import reference
from tests.parity.decoders import GEMMA3, LABELS
from tests.parity.test_decoders import each_row, padded
from tests.zoo.config_json import read
from tests.zoo.published_decoders import PUBLISHED
from zoo.checkpoints import export, load, load_config
from zoo.checkpoints.commands import import_checkpoint
from zoo.registry import PRESETS

SCALED = GEMMA3 | dict(query_pre_attn_scalar=24, rope_scaling=dict(rope_type="linear", factor=8.0))
VISION = dict(hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28)
BOTH = dict(
    text_config=SCALED,
    vision_config=VISION | dict(patch_size=14),
    mm_tokens_per_image=4,
    image_token_index=97,
    pad_token_id=None,
)
CASES = {
    "speaks": reference.Case("Gemma3ForConditionalGeneration", BOTH, {}, 80),
    "untied": reference.Case(
        "Gemma3ForConditionalGeneration",
        BOTH | dict(text_config=SCALED | dict(tie_word_embeddings=False)),
        dict(tie_word_embeddings=False),
        81,
    ),
    "backbone": reference.Case("Gemma3Model", BOTH, {}, 82),
    "classifier": reference.Case(
        "Gemma3ForSequenceClassification", BOTH | dict(text_config=SCALED | LABELS), LABELS, 83
    ),
}
INNER = ("language_model.", "vision_tower.", "multi_modal_projector.")


@pytest.fixture(scope="module", params=list(CASES))
def case(request, tmp_path_factory):
    """(reference model, its folder)."""
    theirs = CASES[request.param].model()
    return theirs, reference.save(theirs, tmp_path_factory.mktemp(request.param))


def respelled(folder, out):
    """The same folder with names as the reference library has them in memory since 4.52, and some files too."""
    out.mkdir()
    (out / "config.json").write_text((folder / "config.json").read_text())
    names = {}
    for name, array in load_file(folder / "model.safetensors").items():
        new = name.replace("language_model.lm_head.", "lm_head.")
        names["model." + new if new.startswith(INNER) else new] = array
    renewed = {name.replace("language_model.model.", "language_model."): array for name, array in names.items()}
    assert any(name.startswith("model.language_model.layers.0.") for name in renewed)
    save_file(renewed, out / "model.safetensors")
    return out


def test_text_is_read_as_the_reference_reads_it(case, tmp_path):
    theirs, folder = case
    model, params = load(folder)
    again, same = load(respelled(folder, tmp_path / "new"))
    assert again == model and model.config.family == "gemma3"
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, same))
    assert {layer.rotary_scaled for layer in model.config.layer_pattern} == {True, False}
    errors = []
    for left in (False, True):
        inputs = padded(left)
        out = model.apply(params, inputs["tokens"], padding_mask=inputs["padding_mask"], want=("hidden_states",))
        for row, alone in each_row(inputs):
            expected, real = reference.run(theirs, alone), alone["padding_mask"] == 1
            mine = jax.tree.map(lambda array, row=row: array[row : row + 1], out)
            streams = expected.hidden_states
            errors += [error(mine.hidden_states[i], streams[i].numpy(), real) for i in range(len(streams) - 1)]
            errors.append(error(mine.hidden, streams[-1].numpy(), real))
            if hasattr(expected, "logits"):
                where = None if model.config.head == "classifier" else real
                errors.append(error(mine.logits, expected.logits.numpy(), where))
    assert max(errors) < 1e-5, errors


def test_what_is_left_out_is_said_and_the_text_model_leaves_alone(case, tmp_path, capsys):
    theirs, folder = case
    model, params = load(folder)
    said = capsys.readouterr().err
    count = sum("vision_tower." in name or "projector." in name for name in load_file(folder / "model.safetensors"))
    line = f"{folder}: {count} tensors of multi_modal_projector and vision_tower are left out: Gemma 3 reads text"
    assert said.startswith(line) and said.count("\n") == 1 and count > 40
    import_checkpoint(str(folder), tmp_path / "run")
    assert line in capsys.readouterr().err
    assert load_config(tmp_path / "run") == load_config(folder)
    capsys.readouterr()

    export(model, params, tmp_path / "out")
    name = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
    opened, info = getattr(transformers, name).from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    assert "vision" not in " ".join(opened.state_dict())
    _, alone = next(each_row(padded(False)))
    opened.config.pad_token_id = theirs.config.pad_token_id
    before, after = reference.run(theirs, alone), reference.run(opened, alone)
    assert error(after.hidden_states[-1], before.hidden_states[-1]) < 1e-6
    again, back = load(tmp_path / "out")
    assert again == model and capsys.readouterr().err == ""
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, back))


def test_what_the_settings_leave_out_is_what_the_reference_takes():
    """Published 4B, 12B and 27B folders say a few sizes of their text model; here even those are left out."""
    theirs = transformers.Gemma3TextConfig().to_dict()
    assert read(theirs | {"model_type": "gemma3_text"}) == read({"model_type": "gemma3_text"})
    both = transformers.Gemma3Config().to_dict() | {"architectures": ["Gemma3ForConditionalGeneration"]}
    assert read(both) == read({"model_type": "gemma3", "text_config": {}}) == read({"model_type": "gemma3_text"})


@pytest.mark.parametrize("name", ["gemma3-4b", "gemma3-12b", "gemma3-27b"])
def test_published_settings_through_the_reference(name):
    """What the reference makes of the published settings, written out by it in full, is the preset."""
    full = transformers.Gemma3Config(**PUBLISHED[name]).to_dict()
    assert full["text_config"]["vocab_size"] == 262208 and len(full["text_config"]) > 20
    assert read(full | {"architectures": ["Gemma3ForConditionalGeneration"]}) == PRESETS[name]
