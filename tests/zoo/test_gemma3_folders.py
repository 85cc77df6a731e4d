"""Gemma 3 folders with a model of images: the text model in both spellings, and what is said of the rest."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zoo
from tests.zoo.test_checkpoints_folders import refusal, same, seeded
from zoo.checkpoints import export, load, load_config
from zoo.registry import PRESETS

PATTERN = PRESETS["gemma3-4b"].layer_pattern[-2:]
SMALL = dict(vocab_size=23, embed_dim=8, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=12)
CONFIG = zoo.create("gemma3-4b", **SMALL, max_positions=64, layer_pattern=PATTERN, tie_embeddings=False).config
OTHERS = {
    "vision_tower.vision_model.embeddings.position_embedding.weight": np.ones((4, 3), np.float32),
    "vision_tower.vision_model.head.probe": np.ones(3, np.float32),
    "multi_modal_projector.mm_soft_emb_norm.weight": np.ones(3, np.float32),
}
# How names of a text folder read in one with images: as published; as in the reference library's memory since 4.52.
SPELLINGS = {
    "published": lambda name: f"language_model.{name}",
    "newer": lambda name: "model.language_model." + name.removeprefix("model.") if name.startswith("model.") else name,
}


@pytest.fixture(params=SPELLINGS)
def both(request, tmp_path):
    """(parameters, folder of text and images, one of text alone)."""
    model, params = seeded(CONFIG)
    plain, folder = tmp_path / "text", tmp_path / "both"
    export(model, params, plain)
    folder.mkdir()
    spelled = SPELLINGS[request.param]
    tensors = {spelled(name): array for name, array in load_file(plain / "model.safetensors").items()}
    inside = "model." if request.param == "newer" else ""
    save_file(tensors | {inside + name: array for name, array in OTHERS.items()}, folder / "model.safetensors")
    text = json.loads((plain / "config.json").read_text())
    text.pop("architectures")
    values = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    values |= {"vision_config": {"hidden_size": 3}, "tie_word_embeddings": False, "mm_tokens_per_image": 4}
    (folder / "config.json").write_text(json.dumps(values))
    return params, folder, plain


def test_the_text_model_is_loaded_and_the_rest_named(both, capsys):
    params, folder, plain = both
    model, found = load(folder)
    said = capsys.readouterr().err
    assert said == (
        f"{folder}: 3 tensors of multi_modal_projector and vision_tower are left out: Gemma 3 reads text, not images\n"
    )
    assert same(found, params) and model.config == load_config(plain) == load_config(folder)
    assert capsys.readouterr().err == ""


def test_nothing_else_is_passed_over(both):
    _, folder, _ = both
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"audio_tower.x": np.ones(3, np.float32)}, folder / "model.safetensors")
    assert "1 unexpected: audio_tower.x" in refusal(folder)
    lost = next(name for name in tensors if name.endswith("norm.weight") and "layers" not in name and "mm" not in name)
    save_file({name: array for name, array in tensors.items() if name != lost}, folder / "model.safetensors")
    assert "1 missing: norm.weight" in refusal(folder)
