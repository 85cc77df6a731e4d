"""Old pytorch_model.bin files through the loader that runs nothing; the real ALBERT of chemistry among them."""

import json
import pickle
import re

import jax
import numpy as np
import pytest
import torch
import transformers

from tests.golden.recipe import error
from tests.parity import encoders, reference
from zoo.checkpoints import load
from zoo.errors import InputError
from zoo.packages import CHECKPOINTS, cache_folder, fetch


def pickled(model, folder, dtype=torch.float32):
    """The folder of a model, as releases before safetensors wrote it."""
    reference.save(model, folder)
    (folder / "model.safetensors").unlink()
    torch.save({name: tensor.to(dtype) for name, tensor in model.state_dict().items()}, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_parameters_as_from_safetensors(dtype, tmp_path):
    theirs = encoders.CASES["albert-pretraining"].model().to(dtype)
    model, params = load(reference.save(theirs, tmp_path / "new"))
    old, same = load(pickled(theirs, tmp_path / "old", dtype))
    assert old == model
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, same))


class Command:
    """What unpickles as a call."""

    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("content", ["code", "list", "number", "cut", "stretched"])
def test_anything_but_tensors_is_refused_and_not_run(content, tmp_path, capsys):
    folder = pickled(encoders.CASES["albert-pretraining"].model(), tmp_path / "model")
    file = folder / "pytorch_model.bin"
    if content == "code":
        file.write_bytes(pickle.dumps({"a": Command()}))
    elif content == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    else:
        # The last has 4 bytes in the file and would take 4 TB in memory.
        odd = {"list": [torch.ones(2)], "number": {"a": 3}, "stretched": {"a": torch.ones(1).expand(10**12)}}
        torch.save(odd[content], file)
    with pytest.raises(InputError) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and "pytorch_model.bin" in str(caught.value)
    assert "run" not in capsys.readouterr().out


NAME = "rxnmapper"
# Atoms in brackets, two-letter elements, bonds and rings: the pieces of Schwaller et al. 2021.
PIECES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|%\d{2}|\d"
REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "CCO.O=C(Cl)c1ccccc1>>CCOC(=O)c1ccccc1",
)


@pytest.mark.skipif(
    not (cache_folder() / CHECKPOINTS[NAME].folder_name).is_dir(),
    reason=f"the {NAME} package is not in the cache; zoo.load('{NAME}') fetches it",
)
def test_the_real_albert_fills_masks_as_the_reference_does():
    """12 uses of one layer, embeddings 128 wide; every atom but the specials masked in turn."""
    folder = fetch(NAME)
    model, params = load(NAME)
    assert (model.config.num_layers, model.config.embed_dim, model.config.embed_rank) == (12, 256, 128)
    vocabulary = (folder / "vocab.txt").read_text().split("\n")
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    rows, places, answers = [], [], []
    for reaction in REACTIONS:
        pieces = re.findall(PIECES, reaction)
        assert "".join(pieces) == reaction
        row = [ids["[CLS]"], *(ids[piece] for piece in pieces), ids["[SEP]"]]
        for place in range(5, len(row) - 1, 6):
            rows.append(row[:place] + [ids["[MASK]"]] + row[place + 1 :])
            places.append(place)
            answers.append(row[place])
    length = max(map(len, rows))
    tokens = np.array([row + [ids["[PAD]"]] * (length - len(row)) for row in rows], np.int32)
    mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows], np.int32)

    # The reference reads safetensors alone by now: its model is made from the settings and filled by hand.
    settings = json.loads((folder / "config.json").read_text())
    theirs = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**settings, attn_implementation="eager")).eval()
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    unread = theirs.load_state_dict(weights, strict=False)
    assert not unread.missing_keys and set(unread.unexpected_keys) == {"albert.pooler.weight", "albert.pooler.bias"}
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.from_numpy(tokens).long(), attention_mask=torch.from_numpy(mask).long()
        ).logits.numpy()
    out = model.apply(params, tokens, padding_mask=mask)
    found = error(out.logits, expected, mask == 1)
    assert found < 1e-5, found
    at = np.arange(len(rows)), np.array(places)
    guesses = np.asarray(out.logits)[at].argmax(-1)
    assert (guesses == expected[at].argmax(-1)).all()
    assert (guesses == np.array(answers)).mean() > 0.6
