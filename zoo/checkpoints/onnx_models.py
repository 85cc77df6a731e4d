"""DINOv2 out of an ONNX file that PyTorch exported: names of a Hugging Face folder, found again in the graph.

An exporter keeps the names of biases, norms and convolutions, but folds each transposed matrix into a nameless one. The
product that reads it is still named after its module, so the graph gives every tensor its name back; the table of
zoo/checkpoints/vit.py does the rest. What stands behind the backbone in the file (a decoder, a head) is passed over.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.checkpoints import hugging_face
from zoo.checkpoints.format import Format
from zoo.checkpoints.placing import Placing
from zoo.checkpoints.vit import FORMATS
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.model import Model
from zoo.placeholders import placeholder_at
from zoo.safe_path import inside

CLASS_TOKEN = "embeddings.cls_token"
SPELLED = {np.dtype("float32"): "F32", np.dtype("float16"): "F16"}
# Of the numbers in the graph: the exponent of a variance, and the most that an eps could be.
SQUARE, LARGEST_EPS = 2.0, 1e-2


@dataclass(frozen=True, eq=False)
class GraphTensor:
    """A constant of the graph under its module's name: what the key tables need of a stored tensor."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    array: np.ndarray

    def read(self) -> np.ndarray:
        return self.array


def file_of(place: Path) -> Path | None:
    """The ONNX file at `place`: itself, or the only one in a folder; None where there is none."""
    if place.is_dir():
        found = sorted(place.glob("*.onnx"))
        return inside(found[0]) if len(found) == 1 else None
    return place if place.is_file() and place.suffix == ".onnx" else None


def load(path: Path, placing: Placing) -> tuple[Model, dict[str, Any]]:
    """Model and parameters of a file; see zoo.load."""
    return hugging_face.build(*_open(path), str(path), placing)


def load_config(path: Path) -> ModelConfig:
    """The ModelConfig of a file."""
    return _open(path)[0]


def _open(path: Path) -> tuple[ModelConfig, Format, dict[str, Any]]:
    graph, constants = _graph(path)
    prefix = next((name.removesuffix(CLASS_TOKEN) for name in constants if name.endswith(CLASS_TOKEN)), None)
    if prefix is None:
        raise InputError(f"{path}: holds no {CLASS_TOKEN}; of ONNX files, exported DINOv2 models alone are read")
    try:
        tensors = _named(graph, constants, prefix)
        values = _settings(graph, tensors, prefix)
    except (KeyError, IndexError) as error:
        raise InputError(f"{path}: is no export of a DINOv2 model: {error} is not found in its graph") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:  # of other shapes, kinds and sizes
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: is no export of a DINOv2 model: its graph is another's ({said})") from None
    stored = {
        name: GraphTensor(path, name, SPELLED.get(array.dtype, str(array.dtype)), array.shape, array)
        for name, array in tensors.items()
    }
    form = FORMATS["dinov2"]
    return hugging_face.read_config(values, form, stored, path.parent), form, stored


def _graph(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """The graph, and its constants by name."""
    try:
        import onnx
    except ImportError:
        message = f'{path}: reading ONNX files needs the onnx package; run: pip install "oneblock[onnx]"'
        raise InputError(message) from None
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        held = {str(tensor.name): tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                held[str(node.output[0])] = node.attribute[0].t
        away = next((name for name, tensor in held.items() if tensor.data_location == tensor.EXTERNAL), None)
        if away is None:
            constants = {name: onnx.numpy_helper.to_array(tensor) for name, tensor in held.items()}
    except Exception as error:  # protobuf's and numpy's own, for damaged and for external data
        if other := placeholder_at(path):
            raise InputError(f"{path}: {other}") from None
        raise InputError(f"{path}: is no readable ONNX file: {' '.join(str(error).split())[:200]}") from None
    if away is not None:
        raise InputError(f"{path}: keeps {away} in another file, which is not read")
    return graph, constants


def _named(graph: Any, constants: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The backbone's tensors under the names of a Hugging Face folder."""
    named = {
        name.removeprefix(prefix): array
        for name, array in constants.items()
        if name.startswith(prefix) and "/" not in name
    }
    inside = "/" + prefix.replace(".", "/")
    places: dict[int, np.ndarray] = {}
    for node in graph.node:
        if not node.name.startswith(inside):
            continue
        module = node.name.removeprefix(inside).rpartition("/")[0].replace("/", ".")
        for name in node.input:
            array = constants.get(name)
            if array is None or name.startswith(prefix):
                continue
            if node.op_type == "MatMul" and array.ndim == 2:
                named[f"{module}.weight"] = array.T
            elif module == "embeddings" and array.ndim == 3 and array.shape[0] == 1:
                places[array.shape[1] > 1] = array  # the class token's place, and the patches'
    if len(places) == 2:
        named["embeddings.position_embeddings"] = np.concatenate([places[False], places[True]], axis=1)
    return named


def _settings(graph: Any, tensors: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
    """The config.json that the tensors and the graph amount to."""
    width, channels, patch, _ = tensors["embeddings.patch_embeddings.projection.weight"].shape
    layers = sum(name.endswith("layer_scale1.lambda1") for name in tensors)
    side = math.isqrt(tensors["embeddings.position_embeddings"].shape[1] - 1)
    inside = "/" + prefix.replace(".", "/") + "encoder/layer.0/"
    constants = _scalars(graph, inside)
    pairs = zip(constants["attention"], constants["attention"][1:], strict=False)
    heads = next((int(one) for one, other in pairs if one * other == width), None)
    if heads is None:
        raise KeyError("the number of heads")
    eps = next((value for value in constants["norm1"] if 0 < value < LARGEST_EPS), None)
    if eps is None:
        raise KeyError("the eps of a norm")
    return {
        "model_type": "dinov2",
        "architectures": ["Dinov2Model"],
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "mlp_ratio": tensors["encoder.layer.0.mlp.fc1.bias"].shape[0] // width,
        "layer_norm_eps": eps,
        "hidden_act": "gelu" if any(node.op_type == "Erf" for node in graph.node) else "gelu_pytorch_tanh",
        "use_mask_token": "embeddings.mask_token" in tensors,
    }


def _scalars(graph: Any, inside: str) -> dict[str, list[float]]:
    """Numbers among the constants of the modules of one layer, in the order of the graph."""
    from onnx import numpy_helper

    found: dict[str, list[float]] = {"attention": [], "norm1": []}
    for node in graph.node:
        module = node.name.removeprefix(inside).split("/")[0]
        if node.op_type == "Constant" and node.name.startswith(inside) and module in found:
            array = numpy_helper.to_array(node.attribute[0].t)
            # As the float32 that it was, in as few digits as say it: 1e-06 and not 9.999999974752427e-07.
            found[module] += [float(str(array.reshape(-1)[0]))] if array.size == 1 else []
    return found
