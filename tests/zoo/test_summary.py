"""Formulas of parameters and FLOPs against the models themselves and against numbers worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import zoo
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.explain import MEANINGS, SIZES, differences, explain
from zoo.layer_config import LayerConfig
from zoo.registry import PRESETS
from zoo.summary import count_parameters, forward_flops, summarise

VARIANTS = [
    dict(head="masked_lm"),
    dict(head="masked_lm", next_sentence=True, tie_embeddings=False),
    dict(head="classifier", num_labels=3, pooler=False),
    dict(cross_attention=True, lm_bias=True),
    dict(positions="relative", qk_norm=True, norm_placement="both", norm="rmsnorm"),
    dict(position_offset=2, token_types=0, embed_norm=False, tie_embeddings=False),
    dict(embed_rank=16, shared_layers=True, head="masked_lm"),
    dict(embed_projection="tokens", embed_rank=16, tie_embeddings=False, pooler=False),
    dict(embed_projection="tokens", embed_rank=16, head="masked_lm", pooler=False, norm_placement="pre"),
    dict(embed_projection="tokens", embed_rank=16, head="replaced_token", classifier_norm=True, pooler=False,
         classifier_hidden="every"),
    dict(embed_projection="tokens", embed_rank=16, head="classifier", num_labels=3, pooling="cls_mean", pooler=False),
    dict(qk_norm=True, qk_norm_over="own_head", qk_norm_kind="layernorm", num_kv_heads=1),
    dict(norm_bias=False, layer_scale=1.0, head="span", classifier_hidden="every", classifier_norm=True),
    dict(head="token_classifier", num_labels=3, head_bias=False, classifier_hidden="every"),
    dict(head="classifier", num_labels=3, pooling="cls_mean", classifier_hidden="row", head_bias=False),
    dict(head="replaced_token", norm_placement="pre", layer_pattern=(LayerConfig(attention_norm=False), LayerConfig())),
    dict(num_experts=3, gated=True),
    dict(qk_norm=True, qk_norm_over="projection", norm_placement="after", parallel_block=False, num_kv_heads=1),
    dict(parallel_block=True, parallel_mlp_norm=True, norm_placement="pre"),
    dict(head="classifier", num_labels=3, classifier_bias=False, norm="rmsnorm", norm_unit_offset=True),
    dict(parallel_block=True, norm_placement="pre", positions="rotary", rotary_dim=32, num_kv_heads=1),
]


@pytest.mark.parametrize("name", list(PRESETS))
def test_the_formula_counts_every_preset(name):
    leaves = jax.tree.leaves(zoo.create(name, scan=True).init_shapes())
    assert summarise(PRESETS[name]).total_parameters == sum(leaf.size for leaf in leaves)


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: next(iter(changes)))
def test_the_formula_counts_every_option(changes):
    model = zoo.create("bert-tiny", **changes)
    assert sum(count_parameters(model.config).values()) == sum(x.size for x in jax.tree.leaves(model.init_shapes()))


IMAGES = [
    dict(),
    dict(registers=3, mask_token=True, layer_scale=0.1, head="classifier", num_labels=3, pooling="cls_mean"),
    dict(distillation_token=True, distillation_head=True, head="classifier", num_labels=3),
    dict(class_token=False, channels=1, head="classifier", num_labels=3, pooling="mean", classifier_hidden="row"),
]


@pytest.mark.parametrize("changes", IMAGES, ids=str)
def test_the_formula_counts_models_of_images(changes):
    settings = dict(vocab_size=0, image_size=8, patch_size=4, class_token=True, visibility="full", head="none")
    model = zoo.Model(ModelConfig(**settings | changes))
    assert sum(count_parameters(model.config).values()) == sum(x.size for x in jax.tree.leaves(model.init_shapes()))


def test_flops_of_vit_base_by_hand():
    """The paper's 17.6 GFLOPs for an image count a multiply and an add as one: ours are twice those."""
    summary = summarise(PRESETS["vit-base"])
    assert summary.seq_len == 197
    assert summary.forward_flops["patches"] * 197 == pytest.approx(2 * 196 * 16 * 16 * 3 * 768)
    assert 2 * 17.5e9 < summary.flops_per_token * 197 < 2 * 17.7e9
    with pytest.raises(InputError, match="seq_len is 9, but this model reads images, whose rows have 197 tokens"):
        summarise(PRESETS["vit-base"], 9)


def test_flops_of_gpt2_by_hand():
    flops = forward_flops(PRESETS["gpt2"], 1024)
    assert flops["projections"] == 12 * (2 * 768 * 3 * 768 + 2 * 768 * 768)
    assert flops["feed-forward"] == 12 * 2 * 2 * 768 * 3072
    assert flops["scores and value mix"] == 12 * 4 * 768 * 1025 / 2
    assert flops["read-out"] == 2 * 768 * 50257


def test_flops_equal_the_products_in_the_traced_forward_pass():
    # 2 m k n over every dot_general; both visibilities score all T keys as computed, so BERT's formula is exact.
    model = zoo.create("bert-tiny", vocab_size=100, head="lm", pooler=False, attention_kernel="einsum")
    length = 16
    tokens = jnp.zeros((1, length), jnp.int32)
    jaxpr = jax.make_jaxpr(lambda p, t: model.apply(p, t).logits)(model.init_shapes(), tokens)
    assert dot_flops(jaxpr.jaxpr) == length * summarise(model, length).flops_per_token


def dot_flops(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += dot_flops(inner) if hasattr(inner, "eqns") else 0
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval
            depth = 1
            for axis in contracted:
                depth *= left.shape[axis]
            total += 2 * depth * equation.outvars[0].aval.size
    return total


@pytest.mark.parametrize("visibility, keys", [("causal", [1, 2, 3, 3, 3]), ("full", [2, 3, 3, 3, 2])])
def test_windows_count_the_visible_keys(visibility, keys):
    config = ModelConfig(num_layers=1, visibility=visibility, layer_pattern=(LayerConfig(window=3),))
    assert forward_flops(config, 5)["scores and value mix"] == pytest.approx(4 * 128 * sum(keys) / 5)


def test_memory():
    gpt2 = summarise(PRESETS["gpt2"])
    assert gpt2.training_bytes == 16 * 124_439_808
    assert gpt2.cache_bytes_per_token == 2 * 12 * 768 * 4
    assert summarise(PRESETS["llama3-8b"].replace(dtype="bfloat16")).cache_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert "124,439,808" in str(gpt2)


def test_every_setting_is_explained_and_a_diff_names_exactly_what_differs():
    assert set(MEANINGS) | set(SIZES) == {field.name for field in dataclasses.fields(ModelConfig)}
    gpt1, gpt2 = PRESETS["gpt1"], PRESETS["gpt2"]
    changed = {name for name, _, _ in differences(gpt1, gpt2)}
    assert changed == {"vocab_size", "max_positions", "norm_placement", "final_norm", "residual_init"}
    assert "norm_placement: post, where gpt2 has pre" in explain("gpt1", gpt1, {"gpt2": gpt2})
    assert explain("gpt2", gpt2, {"gpt2": gpt2}) == "gpt2 against gpt2: no difference"
    assert explain("gpt2", gpt2, {"gpt1": gpt1, "gpt2": gpt2}).endswith("\n\nagainst gpt2:\n  no difference")


@pytest.mark.parametrize("seq_len", [0, -1])
def test_rows_have_at_least_one_token(seq_len):
    with pytest.raises(InputError, match=f"seq_len is {seq_len}; it must be 1 or more"):
        summarise(PRESETS["gpt2-tiny"], seq_len)
