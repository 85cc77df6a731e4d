"""THE sharding table: which mesh axes each parameter is split over, by the end of its path.

Mesh axes: `data` and `fsdp` split the batch, and `fsdp` also the parameters; `tensor` splits heads, FFN width and
vocabulary; `sequence` splits tokens. A rule lists one entry a dimension, aligned to the right, so that one rule fits a
layer and a stack of layers, a parameter and its optimizer moments.
"""

import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from zoo.errors import InputError

MESH_AXES = ("data", "fsdp", "tensor", "sequence")

# (pattern on the end of the path, axes of the last dimensions)
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"embed/token/embedding", ("tensor", "fsdp")),
    (r"embed/(position|segment)/embedding", (None, "fsdp")),
    (r"embed/relative/embedding", (None, "tensor")),
    (r"embed/projection/kernel", (None, "fsdp")),
    (r"embed/(projection|patches)/bias", (None,)),
    (r"final_projection/kernel", ("fsdp", None)),
    (r"embed/patches/kernel", (None, None, None, "fsdp")),
    (r"embed/(class_token|distillation_token|registers|mask_token)", (None, "fsdp")),
    (r"(attention|cross)/(query|key|value)/kernel", ("fsdp", "tensor", None)),
    (r"(attention|cross)/(query|key|value)/bias", ("tensor", None)),
    (r"(attention|cross)/out/kernel", ("tensor", None, "fsdp")),
    (r"(attention|cross)/out/bias", (None,)),
    (r"(query|key)_norm/scale", (None,)),
    (r"mlp/(expert_\d+/)?(up|gate)/kernel", ("fsdp", "tensor")),
    (r"mlp/(expert_\d+/)?(up|gate)/bias", ("tensor",)),
    (r"mlp/(expert_\d+/)?down/kernel", ("tensor", "fsdp")),
    (r"mlp/(expert_\d+/)?down/bias", (None,)),
    (r"mlp/router/kernel", ("fsdp", None)),
    (r"(attention|mlp|cross|final|attention_post|mlp_post|cross_post)_norm/(scale|bias)", (None,)),
    (r"(attention|mlp|cross)_scale/scale", (None,)),
    (r"(embed|masked_lm|(token_|distillation_)?classifier|span|replaced_token)/norm/(scale|bias)", (None,)),
    (r"(lm_head|masked_lm)/kernel", ("fsdp", "tensor")),
    (r"(lm_head|masked_lm)/bias", ("tensor",)),
    (r"(pooler|(masked_lm|(token_|distillation_)?classifier|span|replaced_token)/dense)/kernel", ("fsdp", "tensor")),
    (r"(pooler|(masked_lm|(token_|distillation_)?classifier|span|replaced_token)/dense)/bias", ("tensor",)),
    (r"(next_sentence|(token_|distillation_)?classifier|span|replaced_token)/kernel", ("fsdp", None)),
    (r"(next_sentence|(token_|distillation_)?classifier|span|replaced_token)/bias", (None,)),
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


def shardings(mesh: Mesh, tree: Any) -> Any:
    """NamedShardings for a tree of parameters, of moments, or of a train state holding both.

    Arrays without a dimension (steps, counts) and arrays under no rule's path of rank 1 or less, such as random keys,
    are replicated. An axis that the mesh lacks or that does not divide its dimension is left out of that dimension.

    Args:
        mesh: any mesh whose axes are among MESH_AXES.
        tree: arrays or ShapeDtypeStructs.
    """

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = path_string(path)
        if leaf.ndim == 0 or (leaf.ndim == 1 and not matching_rules(name)):
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, _fit(spec_for(name, leaf.ndim), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(one, tree)


def batch_spec(mesh: Mesh) -> PartitionSpec:
    """Batches [B, ...] are split by rows over data and fsdp; constrain_stream splits tokens, inside the model."""
    rows = tuple(axis for axis in ("data", "fsdp") if axis in mesh.shape)
    return PartitionSpec(rows or None)


def constrain_stream(x: jax.Array) -> jax.Array:
    """The residual stream [B, T, D] pinned to rows over (data, fsdp) and tokens over sequence, under a mesh; else x.

    Without it the partitioner may split D as the parameters are split, and gather activations in their place.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or x.ndim != 3 or any(kind != jax.sharding.AxisType.Auto for kind in mesh.axis_types):
        return x
    rows = tuple(axis for axis in ("data", "fsdp") if axis in mesh.shape)
    tokens = "sequence" if "sequence" in mesh.shape else None
    return jax.lax.with_sharding_constraint(x, _fit(PartitionSpec(rows or None, tokens, None), x.shape, mesh))


def _fit(spec: PartitionSpec, shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
    fitted = []
    for size, entry in zip(shape, spec, strict=True):
        axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
        axes = tuple(axis for axis in axes if axis in mesh.shape)
        ways = 1
        for axis in axes:
            ways *= mesh.shape[axis]
        fits = axes and size % ways == 0
        fitted.append((axes[0] if len(axes) == 1 else axes) if fits else None)
    return PartitionSpec(*fitted)
