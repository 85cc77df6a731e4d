"""Tracing: the numbers of the plain pass, the block's identities at its sites, and no cost for who asks nothing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
import zoo.block
from tests.zoo.lens_models import CONFIGS, OTHER, TOKENS, made
from zoo import lens
from zoo.forward import Inputs, forward
from zoo.lens import views
from zoo.lens.attribution import stacked
from zoo.masks import Mask, materialise
from zoo.positions import count_real_tokens
from zoo.probe import BLOCK_SITES, STEM_SITES, Look

near = np.testing.assert_allclose


def layer_norm(x, scale, bias, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps) * scale + bias


TRACES = {}


def traced(name):
    """The trace of all sites, once a family."""
    if name not in TRACES:
        model, params, inputs, call = made(name)
        TRACES[name] = lens.run(model, params, inputs, lens.sites(model), **call)
    return TRACES[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_traced_is_plain(name):
    """With scores and weights formed, heads split and every array given back, the answer is the fused program's."""
    model, params, inputs, call = made(name)
    plain, trace = model.apply(params, inputs, **call), traced(name)
    near(trace.output.hidden, plain.hidden, atol=1e-5)
    if plain.logits is not None:
        near(trace.output.logits, plain.logits, atol=1e-5)
        assert np.array_equal(trace.values["logits"], trace.output.logits)
    assert tuple(sorted(trace.values)) == tuple(sorted(lens.sites(model)))
    config = model.config
    sizes = {"L": config.num_layers, "B": 2, "T": inputs.shape[1] if config.vocab_size else 5, "D": 8, "N": 4, "K": 2}
    sizes |= {"H": 4, "F": 12, "X": config.num_experts, "V": config.vocab_size or 3}
    sizes["S"] = sizes["T"]
    for site, value in trace.values.items():
        if site == "logits" and config.head == "classifier":
            continue
        axes = STEM_SITES.get(site) or "L" + BLOCK_SITES[site.removeprefix("blocks.*.")]
        assert value.shape == tuple(sizes[axis] for axis in axes), site


@pytest.mark.parametrize("name", CONFIGS)
def test_the_block_is_its_identities(name):
    model, params, _, call = made(name)
    config, trace = model.config, traced(name)

    def at(site):
        return np.asarray(trace.values[f"blocks.*.{site}"])

    def weights_of(*path):
        return np.asarray(stacked(config, params, *path))

    # The stream: what leaves a layer enters the next, and updates are added.
    assert np.array_equal(at("in")[0], trace.values["embed"]) and np.array_equal(at("in")[1:], at("out")[:-1])
    if config.norm_placement == "post":
        for before, update, norm, after in (("in", "attention", "attention", "mid"), ("mid", "mlp", "mlp", "out")):
            scale, bias = (weights_of(f"{norm}_norm", part)[:, None, None] for part in ("scale", "bias"))
            near(at(after), layer_norm(at(before) + at(f"{update}.update"), scale, bias, config.norm_eps), atol=2e-6)
    elif config.parallel_block:
        near(at("out"), at("in") + at("attention.update") + at("mlp.update"), atol=1e-6)
    else:
        near(at("mid"), at("in") + at("attention.update"), atol=1e-6)
        near(at("out"), at("mid") + at("mlp.update"), atol=1e-6)
    plain = config.norm_placement in ("pre", "post") and config.layer_scale is None
    assert np.array_equal(at("attention.update"), at("attention.out")) == plain
    assert np.array_equal(at("mlp.update"), at("mlp.out")) == plain
    if config.final_norm and config.embed_rank is None:
        assert np.array_equal(trace.values["final_norm"], trace.output.hidden)

    # Attention: scores under the mask give weights, weights mix values, heads sum to what attention gives.
    length = at("in").shape[2]
    windows = [config.layer(layer).window for layer in range(config.num_layers)]
    real = call.get("padding_mask")
    order = None if real is None else count_real_tokens(2, length, real != 0, None)
    for layer, window in enumerate(windows):
        mask = Mask(causal=config.visibility == "causal", window=window, query_order=order, key_order=order)
        mask = mask if real is None else mask.replace(key_valid=real != 0)
        seen = materialise(mask, length, length)
        powers = np.exp(at("attention.scores")[layer]) * (True if seen is None else np.asarray(seen))
        near(at("attention.weights")[layer], powers / powers.sum(axis=-1, keepdims=True), atol=1e-6)
    weights = at("attention.weights")
    near(weights.sum(-1), np.ones(weights.shape[:-1]), atol=1e-6)
    if config.visibility == "causal":
        assert (weights[..., ~np.tri(length, dtype=bool)] == 0).all()
    if real is not None:
        assert (weights[:, 1, :, :, 5] == 0).all()
    values = np.repeat(at("attention.value"), 2, axis=-2)
    near(at("attention.mixed"), np.einsum("lbnts,lbsnh->lbtnh", weights, values), atol=1e-5)
    bias = weights_of("attention", "out", "bias")[:, None, None] if config.attention_out_bias else 0.0
    near(at("attention.heads").sum(axis=3) + bias, at("attention.out"), atol=2e-6)

    # The FFN.
    if config.num_experts:
        near(at("mlp.router").sum(-1), np.ones(at("mlp.router").shape[:-1]), atol=1e-6)
        assert ((at("mlp.router") > 0).sum(-1) == 2).all()
    else:
        down = np.einsum("lbtf,lfd->lbtd", at("mlp.act"), weights_of("mlp", "down", "kernel"))
        bias = weights_of("mlp", "down", "bias")[:, None, None] if config.mlp_bias else 0.0
        near(at("mlp.out"), down + bias, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gemma", "neox"])
def test_asking_one_layer_is_asking_all(name):
    """Names with a number, from either end, give that layer of the stack, in loops, scans, patterns and tails."""
    model, params, inputs, call = made(name)
    asked = ("blocks.0.mlp.act", "blocks.-1.attention.heads", "blocks.1.out", "embed")
    out = model.apply(params, inputs, want=(*asked, "hidden_states"), **call)
    every = traced(name).values
    assert list(out.sites) == sorted(asked) and out.attentions is None
    near(out.sites["blocks.0.mlp.act"], every["blocks.*.mlp.act"][0], atol=1e-5)
    near(out.sites["blocks.-1.attention.heads"], every["blocks.*.attention.heads"][-1], atol=1e-5)
    near(out.sites["blocks.1.out"], every["blocks.*.out"][1], atol=1e-5)
    assert np.array_equal(out.sites["blocks.1.out"], out.hidden_states[2])
    assert np.array_equal(out.sites["embed"], out.hidden_states[0])


# Only what is asked for ----------------------------------------------------------------------------------------------


def program(name, interventions=(), **given):
    model, params, inputs, _ = made(name)
    given["edits"] = lens.interventions.edits_of(model.config, interventions, inputs)
    traced = jax.make_jaxpr(lambda p: forward(p, Inputs(inputs=inputs, **given), config=model.config))(params)
    return re.sub(r"0x[0-9a-f]+", "", str(traced)), len(traced.out_avals)


@pytest.mark.parametrize("name", ["gpt2", "gemma", "neox", "dinov2"])
def test_nothing_asked_leaves_the_program_as_it_is(name, monkeypatch):
    """The program of a plain pass is that of a network without any hook, to the letter."""
    plain = program(name)
    monkeypatch.setattr(Look, "__call__", lambda self, site, x: x)
    monkeypatch.setattr(Look, "touches", lambda self, *sites: False)
    assert program(name) == plain
    monkeypatch.undo()
    text, outputs = program(name, want=("blocks.*.mlp.act",))
    assert outputs == plain[1] + 1
    # Nothing but the array is added: as many products, softmaxes and loops.
    for word in ("dot_general", "exp", "scan["):
        assert text.count(word) == plain[0].count(word), word


def test_interventions_do_not_unroll_the_scan():
    plain, _ = program("gpt2")
    changed, _ = program("gpt2", lens.ablate(heads=[(0, 1), (1, 3)]))
    assert plain.count("scan[") == changed.count("scan[") == 1
    assert plain.count("dot_general") == changed.count("dot_general")


def test_fused_kernels_stay_where_weights_are_not_asked(monkeypatch):
    """In a loop the very layer that is asked forms its weights; a scan is one program for all its layers."""
    calls = []

    def attend(*args, kernel, see, **options):
        calls.append((kernel, see is not None))
        return zoo.attention.attend(*args, kernel=kernel, see=see, **options)

    monkeypatch.setattr(zoo.block, "attend", attend)
    config = CONFIGS["neox"].replace(attention_kernel="blockwise")

    def kernels(config, *sites):
        model = zoo.Model(config)
        shapes = model.init_shapes()
        calls.clear()
        jax.eval_shape(lambda p: model.apply(p, TOKENS, want=sites).sites, shapes)
        return list(dict.fromkeys(calls))  # a scan's body is traced more than once

    assert kernels(config, "blocks.*.out", "blocks.*.attention.heads") == [("blockwise", False)]
    assert kernels(config, "blocks.1.attention.weights") == [("blockwise", False), ("auto", True)]
    assert kernels(config.replace(scan=True), "blocks.1.attention.scores") == [("auto", True)]


def test_places_and_values_compile_once():
    model, params, _, call = made("gpt2")

    def run(interventions):
        lens.run(model, params, TOKENS, "blocks.*.out", interventions, **call)
        return forward._cache_size()

    before = run(lens.ablate(heads=[(0, 1)], positions=[2]))
    assert run(lens.ablate(heads=[(1, 3)], positions=[0])) == before
    assert run(lens.ablate(heads=[(0, 0), (1, 1), (1, 2)], positions=[0, 5, -2])) == before


def test_maps_of_other_pieces_compile_nothing(caplog):
    model, params, _, call = made("gpt2")
    maps = [
        (lambda metric: lens.patching(model, params, TOKENS, OTHER, metric, **call), lens.LogitDifference),
        (
            lambda metric: lens.path_patching(model, params, TOKENS, OTHER, metric, "blocks.-1.out", **call),
            lens.LogitDifference,
        ),
        (lambda metric: views.head_effects(model, params, TOKENS, metric), views.LogProb),
    ]
    for of, kind in maps:
        of(kind(3, 4))
        with jax.log_compiles():
            of(kind(5, 2))
        assert "Compiling" not in caplog.text
    ids = [1, 2, 3, 4]
    views.attention_maps(model, params, ids)
    with jax.log_compiles():
        views.attention_maps(model, params, ids[::-1])
    assert "Compiling" not in caplog.text


# The logit lens and attribution --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma", "neox"])
def test_logit_lens(name):
    model, params, inputs, call = made(name)
    logits, found = traced(name).output.logits, lens.logit_lens(model, params, inputs, **call)
    assert found.shape == (model.config.num_layers + 1, 2, 6, 17) and found.dtype == jnp.float32
    near(found[-1], logits, atol=1e-5)
    if name == "gpt2":
        near(lens.logit_lens(model, params, inputs, at=[-1, 2], **call), found[:, :, [5, 2]], atol=1e-5)
        by_row = lens.logit_lens(model, params, inputs, at=[[1], [4]], **call)
        near(by_row[:, :, 0], found[:, [0, 1], [1, 4]], atol=1e-5)
    # Half way is another answer, and not that of a stream without its norm.
    assert np.abs(found[1] - found[-1]).max() > 0.1


@pytest.mark.parametrize("name", ["llama", "gemma", "olmo2", "neox", "mixtral", "shared"])
def test_attribution_sums_to_the_logit(name):
    model, params, inputs, call = made(name)
    config, trace = model.config, traced(name)
    parts = lens.attribution(model, params, inputs, 3, against=jnp.asarray([5, 7]), **call)
    assert parts.heads.shape == (config.num_layers, 2, 4) and parts.mlp.shape == (config.num_layers, 2)
    near(parts.total(), parts.logit, atol=1e-5, rtol=1e-5)
    last = np.asarray(trace.output.logits)[[0, 1], [5, 4]]  # the last real token of each row
    if config.logit_soft_cap is not None:
        last = config.logit_soft_cap * np.arctanh(np.asarray(last, np.float64) / config.logit_soft_cap)
    expected = last[[0, 1], 3] - last[[0, 1], [5, 7]]
    near(parts.logit, expected, atol=2e-3 if config.logit_soft_cap else 1e-5, rtol=1e-5)
    rows = parts.rows(1)
    assert len(rows) == 2 + config.num_layers * (4 + 2)
    assert list(rows)[:2] == ["embed", "head 0.0"]
    assert sum(rows.values()) == pytest.approx(float(parts.logit[1]), abs=1e-4)


def test_attribution_tells_the_head():
    """A head that writes nothing has no part; one that writes twice as much has, statistics held, twice as much."""
    model, params, inputs, call = made("gpt2")
    before = lens.attribution(model, params, inputs, 3, at=2, **call)
    silent = lens.attribution(model, params, inputs, 3, at=2, interventions=lens.ablate(heads=[(1, 2)]), **call)
    assert float(jnp.abs(silent.heads[1, :, 2]).max()) == 0.0 < float(jnp.abs(before.heads[1, :, 2]).min())
    near(silent.total(), silent.logit, atol=1e-5)
    # Layer 0 is as it was but for the final norm's statistics: one factor a row.
    ratio = silent.heads[0] / before.heads[0]
    near(ratio, jnp.broadcast_to(ratio[:, :1], ratio.shape), rtol=1e-3)


def test_traces_are_differentiable_and_jit():
    model, params, _, call = made("gpt2")

    def loss(params, tokens):
        trace = lens.run(model, params, tokens, "blocks.*.attention.weights", **call)
        return jnp.square(trace.values["blocks.*.attention.weights"]).sum()

    gradients = jax.jit(jax.grad(loss))(params, TOKENS)
    assert float(jnp.abs(gradients["blocks"]["attention"]["query"]["kernel"]).max()) > 1e-3
    assert float(jnp.abs(gradients["blocks"]["mlp"]["down"]["kernel"][-1]).max()) == 0.0  # no weights after it
    near(loss(params, OTHER), jax.jit(loss)(params, OTHER), rtol=1e-6)
