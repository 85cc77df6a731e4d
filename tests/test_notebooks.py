"""The notebooks run from top to bottom, offline and small, and compute what their text says."""

import json
from pathlib import Path

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks run where nbformat is installed")
nbclient = pytest.importorskip("nbclient", reason="notebooks run where nbclient is installed")

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
QUICKSTART, TRANSFER = FOLDER / "01_quickstart.ipynb", FOLDER / "03_transfer.ipynb"
ATTENTION, INSIDE = FOLDER / "04_attention_by_hand.ipynb", FOLDER / "05_inside_a_model.ipynb"
KEPT = """
import json
print(json.dumps({
    "missing": missing, "counts": counts, "vocab": tokenizer.vocab_size, "documents": DOCUMENTS, "losses": losses,
    "pictures": {name: picture.tolist() for name, picture in pictures.items()},
    "views": [view.tolist() for view in views.values()], "types": types, "ids": ids, "sep": tokenizer.sep_id,
    "segments_matter": segments_matter, "greedy": greedy.texts, "lengths": greedy.lengths.tolist(),
    "chosen": greedy.tokens.tolist(), "similarity": None if similarity is None else similarity.tolist(),
    "uncached": [
        int(gpt.apply(state.params, jnp.asarray([[tokenizer.bos_id, *tokenizer.encode(p)]])).logits[0, -1].argmax())
        for p in prompts
    ],
    "same": zoo.create(gpt.config, **same_block) == llama, "fields": sorted(same_block),
}))
"""


def run(path: Path, kept: str) -> tuple[dict, list]:
    """Executes a notebook beside its file with a last cell that prints what is checked: (those values, its cells)."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(kept))
    place = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=place).execute()
    printed = "".join(output.text for output in outputs_of(notebook.cells[-1:]) if output.get("name") == "stdout")
    return json.loads(printed), notebook.cells


def outputs_of(cells: list) -> list:
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def small(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEBLOCK_NOTEBOOK_SIZE", "small")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))


def test_quickstart(monkeypatch, tmp_path):
    """One test for one run: tests that shared it could meet in two processes and run it twice."""
    small(monkeypatch, tmp_path)
    values, cells = run(QUICKSTART, KEPT)

    assert values["missing"] == []
    printed = "".join(output.get("text", "") for output in outputs_of(cells))
    assert "pip install" not in printed and "older" not in printed
    assert sum("image/png" in output.get("data", {}) for output in outputs_of(cells)) == 2
    assert values["views"] == [[[19, 22], [43, 50]]] * 4
    check_models(values)
    check_masks({name: np.array(picture) for name, picture in values["pictures"].items()})
    check_pair(values)
    check_training(values)
    check_checkpoint(values["similarity"])


def test_transfer(monkeypatch, tmp_path):
    """A file of one's own is learnt, and the curves have their cells: 2 arms and the baseline, 2 budgets, 2 seeds."""
    small(monkeypatch, tmp_path)
    values, cells = run(
        TRANSFER,
        "import json; print(json.dumps({'missing': missing, 'sizes': splits.counts(), 'scores': found.scores, "
        "'cells': [[c.key.arm, c.key.labels, c.key.seed] for c in outcome.cells], 'head': made.headline}))",
    )
    assert values["missing"] == []
    assert values["sizes"]["train"].keys() == {"kitchen", "sea"}
    assert values["scores"]["accuracy"] > 0.8
    arms = ("pretrained", "random", "baseline")
    assert sorted(values["cells"]) == sorted([arm, n, seed] for arm in arms for n in (16, 100) for seed in (0, 1))
    assert sum("image/png" in output.get("data", {}) for output in outputs_of(cells)) >= 2
    assert "Pre-trained against random start" in "".join(values["head"])


def test_attention_by_hand(monkeypatch, tmp_path):
    """The lectures' numbers, out of the cells: W1, W2, W3, W5, W6, W10, W11; both backward passes; saturation."""
    small(monkeypatch, tmp_path)
    values, cells = run(
        ATTENTION,
        "import json; print(json.dumps({'missing': missing, 'softmax': softmax.tolist(), 'mix': mix.tolist(), "
        "'other': other_mix.tolist(), 'views': [view.tolist() for view in views.values()], 'terms': terms.tolist(), "
        "'shapes': list(shapes.values()), 'non_zero': non_zero, "
        "'depends': [list(model.values()) for model in depends.values()], "
        "'pictures': {name: picture.tolist() for name, picture in pictures.items()}, 'differences': differences, "
        "'divided': divided.tolist(), 'plain': plain.tolist()}))",
    )
    assert values["missing"] == []
    np.testing.assert_allclose(values["softmax"], [0.665, 0.245, 0.090], atol=5e-4)
    np.testing.assert_allclose([values["mix"], values["other"]], [[[2.5, 0.5]], [[3.0, 0.5]]], atol=1e-6)
    assert values["views"] == [[[19, 22], [43, 50]]] * 4
    assert values["terms"] == [[[5, 6], [15, 18]], [[14, 16], [28, 32]]]
    assert values["shapes"] == [[4, 8], [8, 4], [4, 4], [4, 4], [4, 4], [4, 8], [4, 8]]
    assert values["non_zero"] == [1, 2, 3]
    assert values["depends"] == [[[0, 1, 2, 3], [0, 1, 2, 3]], [[0, 1, 2], [0]]]
    quickstart = {"causal": "causal (GPT, LLaMA)", "segments": "packed", "padding": "padded"}
    pictures = {quickstart.get(name, name): np.array(picture) for name, picture in values["pictures"].items()}
    check_masks(pictures | {"full (BERT)": np.ones((8, 8), bool)})
    assert values["differences"].keys() == {"dX", "dW", "db", "dQ", "dK", "dV", "dP", "dS"}
    assert max(values["differences"].values()) <= 1e-6
    assert values["plain"][-1][0] < 0.25 < 3.3 < values["divided"][-1][0] < np.log(64)
    assert sum("image/png" in output.get("data", {}) for output in outputs_of(cells)) == 5


def test_inside_a_model(monkeypatch, tmp_path):
    """Sums, lens, copying, patching and steering of a shipped model."""
    small(monkeypatch, tmp_path)
    values, cells = run(
        INSIDE,
        "import json; print(json.dumps({'missing': missing, 'size': [L, N], 'sum': sum_error, 'ids': ids, "
        "'lens': table.ids[-1, :, 0].tolist(), "
        "'own': model.apply(params, jnp.array([ids])).logits[0].argmax(-1).tolist(), "
        "'scores': scores.tolist(), 'weights': maps.weights.sum(-1).min().item(), 'bars': [bars.total, difference], "
        "'losses': losses, 'heat': heat.values.tolist(), 'differs': differs, 'odds': odds, "
        "'none': float(unsteered[piece(GOOD)] - unsteered[piece(BAD)]), 'texts': list(continuations.values())}))",
    )
    layers, heads = values["size"]
    assert values["missing"] == [] and values["sum"] < 1e-5
    assert values["lens"] == values["own"] and len(values["ids"]) == len(values["lens"])
    assert np.shape(values["scores"]) == (layers, heads)
    assert 0 <= np.min(values["scores"]) <= np.max(values["scores"]) <= 1
    assert abs(values["weights"] - 1) < 1e-5 and values["bars"][0] == pytest.approx(values["bars"][1], abs=1e-3)
    by_score, by_chance = values["losses"].values()
    assert by_score[0] == pytest.approx(by_chance[0]) and np.all(np.isfinite([by_score, by_chance]))
    heat = np.array(values["heat"])
    assert heat.shape == (layers, len(values["ids"])) and np.abs(heat[:, : values["differs"]]).max() < 1e-3
    assert heat[-1, -1] == pytest.approx(1, abs=1e-3)
    assert values["odds"][3] == pytest.approx(values["none"], abs=1e-3) and len(set(values["odds"])) > 1
    assert all(text.startswith("i watched the film") for text in values["texts"])
    assert sum("image/png" in output.get("data", {}) for output in outputs_of(cells)) == 7
    (page,) = [o["data"]["text/html"] for o in outputs_of(cells) if "iframe" in o.get("data", {}).get("text/html", "")]
    assert "srcdoc" in page


def check_models(values):
    """One difference of settings makes a LLaMA of the GPT; parameters counted by hand at D = 64, F = 256, P = 256."""
    assert values["same"] is True
    assert {"norm", "positions", "activation", "gated"} <= set(values["fields"])
    token_table, attention, norm = 64 * values["vocab"], 4 * 64 * 64, 2 * 64
    block = attention + 4 * 64 + 2 * 64 * 256 + 256 + 64 + 2 * norm
    assert values["counts"] == {
        "gpt": token_table + 64 * 256 + 2 * block + norm,
        "bert": token_table + 64 * 256 + 2 * 64 + norm + 2 * block + 64 * 64 + 64,
        "llama": 2 * token_table + 2 * (attention + 3 * 64 * 256 + 2 * 64) + 64,
    }


def check_masks(pictures):
    past = np.tril(np.ones((8, 8), bool))
    document = np.array([1, 1, 1, 2, 2, 3, 3, 3])
    expected = {
        "full (BERT)": np.ones((8, 8), bool),
        "causal (GPT, LLaMA)": past,
        "padded": np.tile([True] * 6 + [False] * 2, (8, 1)),
        "packed": past & (document[:, None] == document),
        "window of 3": past & ~np.tril(past, -3),
        "prefix of 4": past | (np.arange(8) < 4),
    }
    assert pictures.keys() == expected.keys()
    for name, picture in pictures.items():
        np.testing.assert_array_equal(picture, expected[name], name)


def check_pair(values):
    first = values["ids"].index(values["sep"]) + 1
    assert values["types"] == [0] * first + [1] * (len(values["ids"]) - first)
    assert values["segments_matter"] > 1e-3


def check_training(values):
    """From chance to well below it; then the first token drawn is the one an uncached pass finds likeliest."""
    losses = values["losses"]
    assert abs(losses[0] - np.log(values["vocab"])) < 0.3
    assert losses[-1] < 0.5 * losses[0] and np.all(np.isfinite(losses))
    assert [row[0] for row in values["chosen"]] == values["uncached"]
    assert all(0 < length <= 60 for length in values["lengths"]) and all("the" in text for text in values["greedy"])


def check_checkpoint(similarity):
    """Two sentences about a running dog are near, one about banks is far; nothing to check where it is not cached."""
    if similarity is not None:
        assert similarity[0][1] > 0.4 > 0.2 > similarity[0][2]
        np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-5)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_kept_without_results_and_open_in_colab(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(cell.outputs == [] and cell.execution_count is None for cell in code)
    badge = f"(https://colab.research.google.com/github/oneblock/oneblock/blob/main/notebooks/{path.name})"
    assert badge in notebook.cells[0].source


def install_cell(path: Path = QUICKSTART) -> str:
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [cell for cell in notebook.cells if "install" in cell.metadata.get("tags", ())]
    return cell.source


def test_every_notebook_installs_in_the_same_way():
    assert {install_cell(path) for path in FOLDER.glob("*.ipynb")} == {install_cell()}


def test_install_cell_needs_what_the_package_needs():
    import ast
    import tomllib

    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    (needed,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(install_cell()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "NEEDED"
    ]
    assert sorted(needed) == sorted(project["dependencies"])


@pytest.mark.parametrize(
    "absent, old",
    [
        ({"sentencepiece", "grain", "zoo"}, set()),
        ({"zoo"}, {"safetensors", "orbax-checkpoint"}),
        ({"tyro"}, set()),
        (set(), {"flax", "jax", "numpy"}),
    ],
)
def test_install_cell_keeps_the_jax_that_is_there(absent, old, monkeypatch, tmp_path):
    import importlib.metadata
    import importlib.util
    import subprocess
    import sys


    calls, find, version = [], importlib.util.find_spec, importlib.metadata.version
    jax_version, numpy_version = ("0.0.9" if name in old else version(name) for name in ("jax", "numpy"))

    def record(command, check):
        pins = [Path(command[i + 1]).read_text() for i, word in enumerate(command) if word == "--constraint"]
        calls.append((command[1:4], command[4:], "".join(pins), check))

    def version_of(package):
        if package in absent:
            raise importlib.metadata.PackageNotFoundError(package)
        return "0.0.9" if package in old else version(package)

    monkeypatch.setattr(importlib.metadata, "version", version_of)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find(name))
    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)  # no checkout beside it
    exec(install_cell(), {})
    assert all(start == ["-m", "pip", "install"] and check for start, _, _, check in calls)
    for _, what, pins, _ in calls:
        if "--no-deps" in what:
            assert what == ["--quiet", "--no-deps", "git+https://github.com/oneblock/oneblock"]
        else:
            assert f"jax=={jax_version}\n" in pins and f"numpy=={numpy_version}\n" in pins and "\nflax==" in pins
            assert not any(word.startswith("jax") for word in what)
    wanted = (absent | old) - {"zoo", "jax", "flax", "numpy"}
    assert len(calls) == ("zoo" in absent) + bool(wanted)
    installed = [word.split(">")[0] for _, what, _, _ in calls for word in what if ">=" in word]
    assert set(installed) == wanted
