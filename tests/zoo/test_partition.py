"""The sharding table: every parameter and moment has exactly one rule, and what does not divide is left whole."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import zoo
from zoo import partition
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.layer_config import Int8, LayerConfig

SMALL = {"vocab_size": 40, "embed_dim": 16, "num_heads": 4, "mlp_dim": 32, "num_layers": 2, "max_positions": 8}
PATTERN = {"layer_pattern": (LayerConfig(4), LayerConfig())}
CONFIGS = {
    "bert": zoo.create("bert-tiny", **SMALL, head="masked_lm", next_sentence=True, tie_embeddings=False).config,
    "bert-classifier": zoo.create("bert-tiny", **SMALL, head="classifier", num_labels=3, **PATTERN).config,
    "gpt": zoo.create("gpt2-tiny", **SMALL, lm_bias=True).config,
    "gpt1": zoo.create("gpt1-tiny", **SMALL, tie_embeddings=False, lm_bias=True).config,
    "llama": zoo.create("llama3-tiny", **SMALL, **PATTERN).config,
    "int8": zoo.create("llama3-tiny", **SMALL, tie_embeddings=False, int8=Int8(2, 2, 2, 2, 2)).config,
    "olmo": zoo.create("olmo2-tiny", **SMALL | {"num_layers": 5}, **PATTERN).config,
    "mixtral": zoo.create("mixtral-tiny", **SMALL, mlp_bias=True).config,
    "neox": zoo.create("pythia-tiny", **SMALL, rotary_dim=2).config,
    "gemma": zoo.create("gemma3-tiny", **SMALL | {"num_layers": 3}, head="classifier", num_labels=2).config,
    "opt-350m": zoo.create("opt-350m", **SMALL, embed_rank=8).config,
    "stablelm-2-12b": zoo.create("stablelm-2-12b", **SMALL, num_kv_heads=2, rotary_dim=2).config,
    "albert": zoo.create("albert-tiny", **SMALL, pooler=True, next_sentence=True).config,
    "electra": zoo.create("electra-tiny", **SMALL).config,
    "modernbert": zoo.create(
        "modernbert-tiny", **SMALL, **PATTERN, head="token_classifier", num_labels=2, head_bias=True
    ).config,
    "spans": zoo.create("modernbert-tiny", **SMALL, **PATTERN, head="span").config,
    "roberta": zoo.create("roberta-tiny", **SMALL, head="classifier", num_labels=3).config,
    "deit": zoo.create("deit-tiny", num_layers=1, image_size=16, embed_dim=48).config,
    "dinov2": zoo.create(
        "dinov2-small-registers", num_layers=2, image_size=28, head="classifier", num_labels=3, embed_dim=48
    ).config,
    "cross": ModelConfig(**SMALL, cross_attention=True, norm_placement="both", qk_norm=True, positions="relative"),
}


def mesh(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def paths(tree):
    return {partition.path_string(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize("scan", [False, True], ids=["loop", "scan"])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_parameter_matches_exactly_one_rule(name, scan):
    """And so do its two moments, with the parameter's own spec."""
    shapes = zoo.Model(CONFIGS[name].replace(scan=scan)).init_shapes()
    specs = {}
    for path, leaf in paths(shapes).items():
        assert len(partition.matching_rules(path)) == 1, path
        specs[path] = partition.spec_for(path, leaf.ndim)
        assert len(specs[path]) == leaf.ndim
    grid = mesh(fsdp=4, tensor=2)
    placed = paths(partition.shardings(grid, jax.eval_shape(optax.adamw(1e-3).init, shapes)))
    own = paths(partition.shardings(grid, shapes))
    moments = [path for path in placed if "/mu/" in path or "/nu/" in path]
    assert len(moments) == 2 * len(specs)
    for path in moments:
        assert placed[path].spec == own[path.split("u/", 1)[1]].spec, path
    assert all(placed[path].spec == P() for path in placed if path not in moments)  # the step count


def test_every_rule_is_used():
    found = [path for name in CONFIGS for path in paths(zoo.Model(CONFIGS[name]).init_shapes())]
    unused = [rule for rule, (pattern, _) in zip(partition.RULES, partition._COMPILED, strict=True)
              if not any(pattern.search(path) for path in found)]  # fmt: skip
    assert unused == []


def test_rules_are_aligned_to_the_right():
    """One rule serves a layer [D, N, H] and a stack of layers [L, D, N, H]; heads go over tensor in both."""
    assert partition.spec_for("blocks/layer_0/attention/query/kernel", 3) == P("fsdp", "tensor", None)
    assert partition.spec_for("blocks/attention/query/kernel", 4) == P(None, "fsdp", "tensor", None)
    assert partition.spec_for("blocks/pattern_1/mlp/down/kernel", 3) == P(None, "tensor", "fsdp")
    assert partition.spec_for("embed/token/embedding", 2) == P("tensor", "fsdp")


def test_unruled_paths_are_named():
    with pytest.raises(InputError, match="^zoo/partition.py: parameter blocks/router/kernel matches 0 rules; it "):
        partition.spec_for("blocks/router/kernel", 2)
    with pytest.raises(InputError, match="^zoo/partition.py: the rule of mlp/up/kernel names 2 dimensions but it "):
        partition.spec_for("mlp/up/kernel", 1)
    with pytest.raises(InputError, match="matches 0 rules"):
        partition.shardings(mesh(data=8), {"blocks": {"router": {"kernel": jax.ShapeDtypeStruct((4, 4), "float32")}}})


def test_axes_that_do_not_divide_are_left_out():
    """30 rows over tensor=4 do not go; 16 features over fsdp=2 do; an axis that the mesh lacks is no axis."""
    tree = {"embed": {"token": {"embedding": jax.ShapeDtypeStruct((30, 16), "float32")}}}
    spec = partition.shardings(mesh(fsdp=2, tensor=4), tree)["embed"]["token"]["embedding"].spec
    assert spec == P(None, "fsdp")
    assert partition.shardings(mesh(data=8), tree)["embed"]["token"]["embedding"].spec == P(None, None)
    key = {"key": jax.ShapeDtypeStruct((2,), "uint32"), "step": jax.ShapeDtypeStruct((), "int32")}
    assert {leaf.spec for leaf in partition.shardings(mesh(data=8), key).values()} == {P()}


@pytest.mark.parametrize(
    "path,shape,sizes,spec",
    [
        # fsdp goes where it divides: the largest other dimension first, then one that tensor splits too.
        ("embed/token/embedding", (32000, 100), {"fsdp": 256}, P("fsdp", None)),
        ("embed/token/embedding", (32768, 100), {"fsdp": 256, "tensor": 2}, P(("tensor", "fsdp"), None)),
        ("blocks/attention/query/kernel", (12, 100, 8, 64), {"fsdp": 64}, P(None, None, None, "fsdp")),
        ("attention/query/kernel", (100, 128, 64), {"fsdp": 64, "tensor": 2}, P(None, "tensor", "fsdp")),
        ("blocks/mlp/down/kernel", (64, 6400, 1600), {"fsdp": 256}, P(None, "fsdp", None)),
        # Not over the layers that a scan takes one by one; and what it divides nowhere stays whole.
        ("blocks/attention/query/kernel", (256, 100, 25, 60), {"fsdp": 256}, P(None, None, None, None)),
        # tensor is left out: two key heads stand whole on each of four devices, and so does an odd vocabulary.
        ("blocks/attention/key/kernel", (12, 64, 2, 16), {"fsdp": 2, "tensor": 4}, P(None, "fsdp", None, None)),
        ("embed/token/embedding", (50257, 768), {"fsdp": 4, "tensor": 2}, P(None, "fsdp")),
        # Parameters are stored over the axis sequence, too; where both go nowhere, over one of them.
        ("blocks/mlp/up/kernel", (2, 64, 8), {"fsdp": 4, "sequence": 16}, P(None, ("fsdp", "sequence"), None)),
        ("blocks/mlp/up/kernel", (2, 64, 8), {"data": 2, "sequence": 16}, P(None, "sequence", None)),
        ("mlp/up/kernel", (24, 12), {"fsdp": 8, "sequence": 12}, P("fsdp", None)),
        ("mlp/up/kernel", (20, 12), {"fsdp": 8, "sequence": 4}, P("sequence", None)),
        # Vectors over tensor as well, where they are not split over it in use.
        ("blocks/mlp_norm/scale", (12, 64), {"fsdp": 64}, P(None, "fsdp")),
        ("final_norm/scale", (64,), {"fsdp": 8, "tensor": 4}, P(("fsdp", "tensor"))),
        ("final_norm/scale", (24,), {"fsdp": 8, "tensor": 4}, P("fsdp")),
        ("final_norm/scale", (60,), {"fsdp": 8, "tensor": 4}, P(None)),
        ("final_norm/scale", (64,), {"tensor": 8}, P(None)),
        ("mlp/up/bias", (64,), {"fsdp": 8, "tensor": 4}, P(("tensor", "fsdp"))),
        ("blocks/attention/query/bias", (12, 8, 64), {"fsdp": 16, "tensor": 4}, P(None, "tensor", "fsdp")),
    ],
)
def test_where_a_size_does_not_divide(path, shape, sizes, spec):
    assert partition.leaf_spec(path, shape, sizes) == spec


def shares(tree, sizes):
    """{path: the share of an array that one chip holds}; counts of steps have none."""
    found = {}
    for path, leaf in paths(tree).items():
        if leaf.shape:
            spec = partition.leaf_spec(path, leaf.shape, sizes)
            found[path] = 1 / np.prod([partition.ways_of(entry, sizes) for entry in spec])
    return found


@pytest.mark.parametrize(
    "name,sizes",
    [(name, {"fsdp": 256}) for name in ("bert-large", "llama-7b", "llama-13b", "llama-33b", "llama-65b", "llama3-70b")]
    + [
        (name, sizes)
        for name in ("llama-65b", "llama3-70b")
        for sizes in (
            {"fsdp": 64, "tensor": 4}, {"fsdp": 32, "tensor": 8}, {"slice": 2, "fsdp": 64, "tensor": 2},
            {"data": 2, "sequence": 128}, {"fsdp": 16, "sequence": 16},
        )
    ],
    ids=str,
)
def test_at_full_size_no_array_of_the_state_is_above_a_hundredth_on_a_chip(name, sizes):
    """Parameters and both of Adam's moments; of BERT-large vectors are excepted that 256 chips do not divide."""
    model = zoo.create(name, scan=True)
    params = model.init_shapes()
    state = {"params": params, "opt_state": jax.eval_shape(optax.adamw(1e-3).init, params)}
    found = shares(state, sizes)
    parameters = [path for path in found if path.startswith("params/")]
    assert len(found) == 3 * len(parameters)
    above = {path: leaf for path, leaf in paths(state).items() if leaf.shape and found[path] > 1 / 100}
    if name != "bert-large":
        assert not above
    leaves = jax.tree.leaves(state)
    assert sum(leaf.size for leaf in above.values()) < 0.001 * sum(leaf.size for leaf in leaves)


def test_replicated_moments_are_seen():
    params = zoo.create("llama-7b", scan=True).init_shapes()
    assert set(shares({"opt_state": {"mu": params}}, {"data": 256}).values()) == {1.0}


def test_initial_parameters_do_not_depend_on_the_mesh():
    """Created split over 8 devices or whole on one: the same bits, each device holding its eighth."""
    model = zoo.Model(CONFIGS["gpt"].replace(scan=True))
    whole = model.init(jax.random.key(3))
    for sizes in ({"fsdp": 8}, {"data": 2, "fsdp": 2, "sequence": 2}, {"fsdp": 4, "tensor": 2}):
        grid = mesh(**sizes)
        split = jax.jit(model.init, out_shardings=partition.shardings(grid, model.init_shapes()))(jax.random.key(3))
        jax.tree.map(np.testing.assert_array_equal, split, whole)
    kernel = split["blocks"]["mlp"]["up"]["kernel"]
    assert kernel.addressable_shards[0].data.shape == (2, 4, 16) and kernel.shape == (2, 16, 32)


def test_stream_is_pinned_under_a_mesh():
    x = jnp.ones((8, 4, 6))
    assert partition.constrain_stream(x) is x
    grid = mesh(data=2, fsdp=2, sequence=2)
    with jax.set_mesh(grid):
        y = jax.jit(partition.constrain_stream)(x)
        odd = jax.jit(partition.constrain_stream)(jnp.ones((8, 3, 6)))
    assert y.sharding.is_equivalent_to(NamedSharding(grid, P(("data", "fsdp"), "sequence", None)), 3)
    assert odd.sharding.is_equivalent_to(NamedSharding(grid, P(("data", "fsdp"), None, None)), 3)
    assert partition.batch_spec(grid) == P(("data", "fsdp"))
    assert partition.batch_spec(mesh(tensor=8)) == P(None)
