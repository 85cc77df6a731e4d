"""THE sharding table: which mesh axes each parameter is split over, by the end of its path.

| axis       | what it splits                                                                                      |
|------------|-----------------------------------------------------------------------------------------------------|
| `slice`    | the batch, over slices of a pod joined by the slower network: parameters are copied to each slice   |
| `data`     | the batch; parameters are copied                                                                    |
| `fsdp`     | the batch, and every parameter and moment: a layer's are gathered when it runs                      |
| `tensor`   | heads, FFN width and vocabulary                                                                     |
| `sequence` | the tokens of a row, and what `fsdp` splits, further                                                |

A rule lists one entry a dimension, aligned to the right, so that one rule fits a layer and a stack of layers, a
parameter and its optimizer moments. `fsdp` in a rule stands for both storage axes, fsdp and sequence: parameters are
kept in parts over them and gathered to be used. Where a size does not divide its dimension:

- The storage axes go to the largest other dimension of the rule that they divide, first to one that is not split yet,
  then to one that `tensor` splits too; where both go nowhere, one of them. Never to the stacked layers: a scan takes
  one layer at a time, and would gather all. What they divide nowhere stays whole.
- `tensor` is left out. Key and value heads fewer than `tensor` are thus whole on each of its devices, as every device
  needs the one that its query heads share; so is a vocabulary that it does not divide.

Vectors (norm scales, biases) are kept in parts too, and those along D, which are used whole, over `tensor` as well. A
step gathers them once, for all layers (`gather_vectors`): they are small.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from zoo.errors import InputError

MESH_AXES = ("slice", "data", "fsdp", "tensor", "sequence")
ROW_AXES = ("slice", "data", "fsdp")
STORAGE = ("fsdp", "sequence")
VECTOR = ("fsdp", "tensor")  # stored over both, used whole
SPLIT_VECTOR = ("tensor", "fsdp")  # split in use over tensor

# (pattern on the end of the path, axes of the last dimensions)
RULES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (r"embed/token/embedding", ("tensor", "fsdp")),
    (r"embed/(position|segment)/embedding", (None, "fsdp")),
    (r"embed/relative/embedding", (None, "tensor")),
    (r"embed/projection/kernel", (None, "fsdp")),
    (r"embed/(projection|patches)/bias", (VECTOR,)),
    (r"final_projection/kernel", ("fsdp", None)),
    (r"embed/patches/kernel", (None, None, None, "fsdp")),
    (r"embed/(class_token|distillation_token|registers|mask_token)", (None, "fsdp")),
    (r"(attention|cross)/(query|key|value)/kernel", ("fsdp", "tensor", None)),
    (r"(attention|cross)/(query|key|value)/bias", ("tensor", "fsdp")),
    (r"(attention|cross)/out/kernel", ("tensor", None, "fsdp")),
    (r"(attention|cross)/out/bias", (VECTOR,)),
    (r"(query|key)_norm/scale", (VECTOR,)),
    (r"mlp/(expert_\d+/)?(up|gate)/kernel", ("fsdp", "tensor")),
    (r"mlp/(expert_\d+/)?(up|gate)/bias", (SPLIT_VECTOR,)),
    (r"mlp/(expert_\d+/)?down/kernel", ("tensor", "fsdp")),
    (r"mlp/(expert_\d+/)?down/bias", (VECTOR,)),
    (r"mlp/router/kernel", ("fsdp", None)),
    (r"(attention|mlp|cross|final|attention_post|mlp_post|cross_post)_norm/(scale|bias)", (VECTOR,)),
    (r"(attention|mlp|cross)_scale/scale", (VECTOR,)),
    (r"(embed|masked_lm|(token_|distillation_)?classifier|span|replaced_token)/norm/(scale|bias)", (VECTOR,)),
    (r"(lm_head|masked_lm)/kernel", ("fsdp", "tensor")),
    (r"(lm_head|masked_lm)/bias", (SPLIT_VECTOR,)),
    (r"(pooler|(masked_lm|(token_|distillation_)?classifier|span|replaced_token)/dense)/kernel", ("fsdp", "tensor")),
    (r"(pooler|(masked_lm|(token_|distillation_)?classifier|span|replaced_token)/dense)/bias", (SPLIT_VECTOR,)),
    (r"(next_sentence|(token_|distillation_)?classifier|span|replaced_token)/kernel", ("fsdp", None)),
    (r"(next_sentence|(token_|distillation_)?classifier|span|replaced_token)/bias", (VECTOR,)),
    (r"(kernel|embedding)_scale|outlier_(columns|kernel|embedding)", ()),  # of int8 weights: small, and whole
)

_COMPILED = tuple((re.compile(rf"(?:^|/){pattern}$"), axes) for pattern, axes in RULES)


def path_string(path: tuple[Any, ...]) -> str:
    """A jax key path as `blocks/attention/query/kernel`; attribute and index keys by their name or number."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def matching_rules(path: str) -> list[tuple[str | None, ...]]:
    """Axes of every rule that matches the end of `path`; a parameter of the zoo has exactly one."""
    return [axes for pattern, axes in _COMPILED if pattern.search(path)]


def spec_for(path: str, ndim: int) -> PartitionSpec:
    """The PartitionSpec of a parameter (or of a moment of it).

    Args:
        path: its path, `/` between names.
        ndim: its number of dimensions; those to the left of the rule (stacked layers) are not split.

    Raises:
        InputError: no rule or more than one.
    """
    found = matching_rules(path)
    if len(found) != 1:
        raise InputError(f"zoo/partition.py: parameter {path} matches {len(found)} rules; it must match exactly one")
    axes = found[0]
    if len(axes) > ndim:
        raise InputError(f"zoo/partition.py: the rule of {path} names {len(axes)} dimensions but it has {ndim}")
    return PartitionSpec(*(None,) * (ndim - len(axes)), *axes)


def fitted_spec(path: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    """The PartitionSpec of a parameter of this shape on a mesh of these sizes; see the module's text.

    Args:
        path: its path, `/` between names.
        shape: its own, stacked layers included.
        sizes: {axis: size} of the mesh.
    """
    spec, rule = spec_for(path, len(shape)), matching_rules(path)[0]
    ruled = [dim for dim, entry in enumerate(spec) if "fsdp" in axes_of(entry)]
    used = [None if entry == VECTOR else tuple(a for a in axes_of(entry) if a not in STORAGE) for entry in spec]
    fitted = list(_fit(PartitionSpec(*used), shape, sizes))
    if not ruled:
        return PartitionSpec(*fitted)
    split = [ways_of(entry, sizes) for entry in fitted]
    others = sorted(
        (dim for dim in range(len(shape) - len(rule), len(shape)) if dim not in ruled),
        key=lambda dim: (split[dim] > 1, -shape[dim]),
    )
    for axes in _storage(sizes, spec[ruled[0]] == VECTOR):
        for dim in (*ruled, *others):
            if shape[dim] % (split[dim] * ways_of(axes, sizes)) == 0:
                fitted[dim] = _entry((*axes_of(fitted[dim]), *axes))
                return PartitionSpec(*fitted)
    return PartitionSpec(*fitted)


def used_spec(spec: PartitionSpec, path: str) -> PartitionSpec:
    """Where a parameter stored at `spec` is used: gathered over the storage axes."""
    vector = matching_rules(path)[0] == (VECTOR,)
    return PartitionSpec(
        *(None if vector else _entry(axis for axis in axes_of(entry) if axis not in STORAGE) for entry in spec)
    )


def shardings(mesh: Mesh, tree: Any) -> Any:
    """NamedShardings for a tree of parameters, of moments, or of a train state holding both.

    Arrays without a dimension (steps, counts) and arrays under no rule's path of rank 1 or less, such as random keys,
    are replicated. An axis that the mesh lacks or that does not divide its dimension is left out of that dimension.

    Args:
        mesh: any mesh whose axes are among MESH_AXES.
        tree: arrays or ShapeDtypeStructs.
    """

    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, leaf_spec(path_string(path), leaf.shape, mesh.shape)), tree
    )


def leaf_spec(path: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    """As fitted_spec, for any leaf of a train state: scalars, and vectors under no rule, are replicated."""
    if not shape or (len(shape) == 1 and not matching_rules(path)):
        return PartitionSpec()
    return fitted_spec(path, shape, sizes)


def constrain(tree: Any) -> Any:
    """Parameters, or gradients of them, pinned inside jit to where `shardings` puts them; as given without a mesh.

    Arrays under no rule, such as low-rank adapters, are left to the partitioner.
    """
    mesh = auto_mesh()
    if mesh is None:
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.lax.with_sharding_constraint(
            leaf, leaf_spec(path_string(path), leaf.shape, mesh.shape)
        )
        if matching_rules(path_string(path))
        else leaf,
        tree,
    )


def gather_vectors(params: Any) -> Any:
    """Parameters with the vectors among them (norm scales, biases) gathered, all layers at once; the rest as given.

    A layer's own would be some hundred bytes a device and collective.
    """
    mesh = auto_mesh()
    if mesh is None:
        return params

    def gathered(path, leaf):
        name = path_string(path)
        if not name.endswith(("/scale", "/bias")) or not matching_rules(name):
            return leaf
        spec = leaf_spec(name, leaf.shape, mesh.shape)
        return jax.lax.with_sharding_constraint(leaf, used_spec(spec, name))

    return jax.tree_util.tree_map_with_path(gathered, params)


def looked_up(path: str, table: jax.Array) -> jax.Array:
    """An embedding table as ids look into it: gathered over `sequence`, over which the ids of a row lie.

    With both there, the partitioner would bring whole streams together.
    """
    mesh = auto_mesh()
    if mesh is None or mesh.shape.get("sequence", 1) == 1:
        return table
    spec = leaf_spec(path, table.shape, mesh.shape)
    used = PartitionSpec(*(_entry(axis for axis in axes_of(entry) if axis != "sequence") for entry in spec))
    return jax.lax.with_sharding_constraint(table, used)


def auto_mesh() -> Any:
    """The mesh of the enclosing jax.set_mesh, or None where there is none or a shard_map has taken its axes over."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or any(kind != jax.sharding.AxisType.Auto for kind in mesh.axis_types):
        return None
    return mesh


def platform() -> str:
    """What the program is compiled for, "cpu", "tpu" ...: the enclosing mesh's devices, which need not be here."""
    mesh = auto_mesh()
    return jax.default_backend() if mesh is None else mesh.abstract_device.platform


def row_axes(mesh: Any) -> tuple[str, ...]:
    """The axes of `mesh` over which rows of a batch are spread, the outermost first."""
    return tuple(axis for axis in ROW_AXES if axis in mesh.shape)


def batch_spec(mesh: Mesh) -> PartitionSpec:
    """Batches [B, ...] are split by rows over ROW_AXES; constrain_stream splits tokens, inside the model."""
    return PartitionSpec(row_axes(mesh) or None)


def constrain_stream(x: jax.Array) -> jax.Array:
    """The residual stream [B, T, D] pinned to rows over ROW_AXES and tokens over sequence, under a mesh; else x.

    Without it the partitioner may split D as the parameters are split, and gather activations in their place.
    """
    mesh = auto_mesh()
    if mesh is None or x.ndim != 3:
        return x
    tokens = "sequence" if "sequence" in mesh.shape else None
    spec = PartitionSpec(row_axes(mesh) or None, tokens, None)
    return jax.lax.with_sharding_constraint(x, _fit(spec, x.shape, mesh.shape))


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes that one entry of a PartitionSpec names."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def ways_of(entry: Any, sizes: Mapping[str, int]) -> int:
    """Into how many parts one entry of a PartitionSpec splits its dimension."""
    ways = 1
    for axis in axes_of(entry):
        ways *= sizes.get(axis, 1)
    return ways


def _storage(sizes: Mapping[str, int], vector: bool) -> list[tuple[str, ...]]:
    """Axes that a parameter may be stored over, the best first: all, or else one of them."""
    axes = tuple(axis for axis in STORAGE if sizes.get(axis, 1) > 1) or tuple(a for a in STORAGE[:1] if a in sizes)
    choices = ([axes] if axes else []) + [(axis,) for axis in axes if len(axes) > 1]
    if vector and sizes.get("tensor", 1) > 1:
        choices = [choice for axes in choices for choice in ((*axes, "tensor"), axes)]
    return choices


def _entry(axes: Any) -> Any:
    axes = tuple(axes)
    return axes[0] if len(axes) == 1 else axes or None


def _fit(spec: PartitionSpec, shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    fitted = []
    for size, entry in zip(shape, spec, strict=True):
        axes = tuple(axis for axis in axes_of(entry) if axis in sizes)
        fitted.append(_entry(axes) if axes and size % ways_of(axes, sizes) == 0 else None)
    return PartitionSpec(*fitted)
