"""What zoo.lens refuses, in one line that names the nearest right thing."""

import jax
import jax.numpy as jnp
import pytest

from tests.zoo.lens_models import OTHER, TOKENS, made
from zoo import lens
from zoo.errors import InputError
from zoo.forward import Output
from zoo.lens import Intervention
from zoo.lens.views import LogProb

KEY = jax.random.key(0)
HEADS = "blocks.*.attention.mixed"


def run(sites=(), interventions=(), name="gpt2", **call):
    model, params, inputs, _ = made(name)
    return lens.run(model, params, inputs, sites, interventions, **call)


def put(value, site="blocks.*.out", name="gpt2", **where):
    return run(interventions=Intervention(site, value, **where), name=name)


def of(function, name, *args, **options):
    model, params, inputs, _ = made(name)
    return function(model, params, inputs, *args, **options)


def induction(name, *args):
    return lens.induction_scores(*made(name)[:2], *args)


def patched(metric):
    model, params, inputs, call = made("gpt2")
    return lens.patching(model, params, inputs, OTHER, metric, **call)


def held(*sites, length=6):
    """A Trace without a pass."""
    return lens.Trace({site: jnp.zeros((2, 2, length, 4, 4)) for site in sites}, Output(hidden=jnp.zeros((2, 6, 8))))


SITES = {
    "blocks.1.atention.weights": ' is unknown; did you mean "blocks.1.attention.weights"?',
    "blocks.*.mlp.up": ' is unknown; did you mean "blocks.*.mlp.out"?',
    "block.*.out": ' is unknown; did you mean "blocks.*.out"?',
    "embedding": ' is unknown; did you mean "embed"?',
    "blocks.2.out": ": layers of this model are 0 to 1",
    "blocks.last.out": ': "last" is no layer; give a number, or * for all',
}


@pytest.mark.parametrize("site", SITES)
def test_unknown_sites(site):
    with pytest.raises(InputError) as caught:
        run(site)
    assert str(caught.value) == f'site "{site}"{SITES[site]}'


LACKING = {
    ("neox", "blocks.*.mid"): "to parallel blocks, whose attention and FFN are added at once",
    ("mixtral", "blocks.0.mlp.act"): "to an FFN of experts",
    ("gpt2", "blocks.*.mlp.router"): "to an FFN without experts",
    ("bert", "final_norm"): "to a model without a final norm",
    ("albert", "logits"): "to a model without a head",
}


@pytest.mark.parametrize(("name", "site"), LACKING)
def test_sites_that_a_model_lacks(name, site):
    with pytest.raises(InputError, match=f'^site "{site.replace("*", "[*]")}" is unknown {LACKING[name, site]};'):
        run(site, name=name)
    model, params, inputs, _ = made(name)
    with pytest.raises(InputError, match=f"unknown {LACKING[name, site]}"):
        model.apply(params, inputs, want=(site,))
    assert site.replace(".0.", ".*.") not in lens.sites(model)


def metric(output):
    return output.logits[:, 0, 0]


CASES = {
    "no string": (lambda: run([3]), 'a site is 3; it must be a name such as "blocks.*.out"'),
    "cache": (lambda: run(cache=1), 'lens.run takes no "cache"; one of padding_mask, segment_ids'),
    "inputs": (lambda: lens.run(*made("gpt2")[:2], jnp.asarray([1, 2]), (), lens.ablate()), "inputs have shape (2,)"),
    "position": (lambda: put(0.0, positions=[6]), "position 6 is outside: this call has 6, 0 to 5"),
    "row position": (lambda: put(0.0, positions=[[0], [-7]]), "position -7 is outside: this call has 6, 0 to 5"),
    "rows": (lambda: put(0.0, positions=[[0], [1], [2]]), "positions have 3 rows; inputs have 2"),
    "layer": (lambda: put(0.0, layers=[0, 2]), "layer 2 is outside: this call has 2, 0 to 1"),
    "head": (lambda: put(0.0, HEADS, heads=[4]), "head 4 is outside: this call has 4, 0 to 3"),
    "key head": (lambda: put(0.0, "blocks.*.attention.key", heads=[2]), "head 2 is outside: this call has 2, 0 to 1"),
    "floats": (lambda: put(0.0, positions=[1.0]), "positions are float32; give whole numbers"),
    "deep": (lambda: put(0.0, layers=[[0]]), "layers have shape (1, 1); give a list of whole numbers"),
    "no heads": (lambda: put(0.0, heads=[0]), 'site "blocks.*.out" has no axis of heads; attention.mixed has'),
    "two layers": (
        lambda: put(0.0, "blocks.1.out", layers=[0]),
        'site "blocks.1.out" is of one place; layers= chooses among those of "blocks.*"',
    ),
    "pairs and layers": (lambda: put(0.0, HEADS, heads=[(0, 1)], layers=[0]), "heads have shape (1, 2); pairs (layer,"),
    "value": (
        lambda: put(jnp.zeros(7)),
        'site "blocks.*.out": the value has shape (7,); it must broadcast to (2, 6, 8), axes B T D, with 2 layers '
        "before them or without",
    ),
    "value of layers": (lambda: put(jnp.zeros((3, 2, 6, 8))), 'site "blocks.*.out": the value has shape (3, 2, 6, 8)'),
    "value of one": (lambda: put(jnp.zeros((2, 2, 6, 8)), "blocks.0.out"), "must broadcast to (2, 6, 8), axes B T D"),
    "how": (lambda: put(0.0, how="sett"), 'an intervention\'s how is "sett"; did you mean "set"?'),
    "logits": (lambda: put(0.0, "logits"), "an intervention at logits would change nothing"),
    "kind": (lambda: run(interventions=[lens.ablate(), "x"]), "interventions hold a str; give what lens.ablate"),
    "by": (lambda: lens.ablate(by="means"), 'ablate: by is "means"; did you mean "mean"?'),
    "parts": (lambda: lens.ablate(parts=["atention"]), 'ablate: parts names "atention"; did you mean "attention"?'),
    "no source": (lambda: lens.ablate(by="mean"), 'ablate: by="mean" needs source, a Trace of lens.run'),
    "a source": (lambda: lens.ablate(source=held()), 'ablate: by="zero" reads no source'),
    "no key": (lambda: lens.ablate(by="resample", source=held()), 'ablate: by="resample" needs key, such as'),
    "source lacks": (
        lambda: lens.ablate(by="mean", source=held("embed"), heads=[0]),
        f'source has no site "{HEADS}" (it holds embed); ask for it: lens.run(..., sites=("{HEADS}",))',
    ),
    "source holds none": (lambda: lens.patch(held(), "embed"), 'source has no site "embed" (it holds none); ask'),
    "no trace": (lambda: lens.patch(3, "embed"), "source is a int; give a Trace of lens.run"),
    "longer source": (lambda: run(interventions=lens.patch(held(HEADS, length=7), HEADS)), "value has shape (2, 2, 7,"),
    "texts": (
        lambda: of(lens.patching, "gpt2", OTHER[:, 1:], metric),
        "clean and corrupted have shapes (2, 6) and (2, 5); patching needs texts that are alike place by place",
    ),
    "metric": (lambda: of(lens.patching, "gpt2", OTHER, metric), "metric gave an array of shape (2,); it must"),
    "no metric": (lambda: of(lens.patching, "gpt2", OTHER, 3), "metric is a int; give a function of an Output"),
    "one layer": (
        lambda: of(lens.patching, "gpt2", OTHER, metric, "blocks.0.out"),
        'patching goes through all layers: "blocks.0.out" is one place; give a site of "blocks.*"',
    ),
    "over": (lambda: of(lens.patching, "gpt2", OTHER, metric, over="head"), 'over is "head"; did you mean "heads"?'),
    "over heads": (lambda: of(lens.patching, "gpt2", OTHER, metric, over="heads"), "has no heads to patch"),
    "side by side": (lambda: of(lens.patching, "gpt2", OTHER, metric, rows=0), "rows is 0; it must be a whole number"),
    "path": (
        lambda: of(lens.path_patching, "gpt2", OTHER, metric, "blocks.*.attention.query"),
        'path_patching: "blocks.*.attention.query" is every layer\'s; give one',
    ),
    "path to": (lambda: of(lens.path_patching, "gpt2", OTHER, metric, "blocks.0.out", heads=[0]), "has no axis of"),
    "path head": (
        lambda: of(lens.path_patching, "gpt2", OTHER, metric, "blocks.0.attention.key", heads=[2]),
        "head 2 is outside: this call has 2, 0 to 1",
    ),
    "lens": (lambda: of(lens.logit_lens, "dinov2"), "the logit lens needs vocabulary logits; a model with head"),
    "lens at": (lambda: of(lens.logit_lens, "gpt2", at=[6]), "at: position 6 is outside: this call has 6, 0 to 5"),
    "lens rows": (lambda: of(lens.logit_lens, "gpt2", at=[[1]] * 3), "at has 3 rows; inputs have 2"),
    "post-norm": (lambda: of(lens.attribution, "bert", 3), "attribution: in a post-norm model every layer normalises"),
    "head of": (lambda: of(lens.attribution, "dinov2", 0), 'attribution needs head "lm", a linear read-out of the voc'),
    "target": (lambda: of(lens.attribution, "gpt2", 17), "target: an id is outside the vocabulary of 17"),
    "targets": (lambda: of(lens.attribution, "gpt2", 1, against=[1, 2, 3]), "against has shape (3,) of int32; give"),
    "dropout": (lambda: of(lens.attribution, "gpt2", 1, dropout_key=KEY), "attribution is of a model in ev"),
    "metric's place": (
        lambda: patched(lens.LogitDifference(1, 2, at=6)),
        "LogitDifference: position 6 is outside -6 to 5",
    ),
    "metric's id": (lambda: patched(lens.LogitDifference(1, 17)), "LogitDifference: id 17 is outside 0 to 16"),
    "metric's kind": (lambda: patched(lens.LogitDifference(1, 2.0)), "LogitDifference: id is 2.0; give one whole num"),
    "log p": (lambda: patched(LogProb(-1, 2)), "LogProb: id -1 is outside 0 to 16"),
    "images": (lambda: induction("dinov2", KEY), "induction_scores repeats tokens"),
    "length": (lambda: induction("gpt2", KEY, 1), "induction_scores: length is 1; it"),
    "positions": (lambda: induction("gpt2", KEY, 9), "18 tokens exceed the model's 16"),
    "key": (lambda: induction("gpt2", 0), "key: 0 is no random key"),
    "steering": (
        lambda: of(lens.steering_vector, "gpt2", OTHER, "blocks.0.attention.weights"),
        'steering_vector: site "blocks.0.attention.weights" holds no vector a token; "blocks.*.out" does',
    ),
    "steering over": (lambda: of(lens.steering_vector, "gpt2", OTHER, "embed", over="first"), 'over is "first"; one'),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals(case):
    call, message = CASES[case]
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_traced_places_are_not_looked_at():
    """Under jit a layer or position can be an argument; nothing is raised, and one outside is no place at all."""
    model, params, _, _ = made("gpt2")

    @jax.jit
    def at(layer, head):
        put = Intervention(HEADS, 7.0, layers=layer[None], heads=head[None])
        return lens.run(model, params, TOKENS, HEADS, put).values[HEADS]

    for layer, head in ((0, 3), (1, 0)):
        found = at(jnp.asarray(layer), jnp.asarray(head))
        assert (found[layer, :, :, head] == 7.0).all() and (found == 7.0).sum() == 2 * 6 * 4
    assert (
        not (at(jnp.asarray(-1), jnp.asarray(4)) == 7.0).any() and not (at(jnp.asarray(2), jnp.asarray(0)) == 7.0).any()
    )
    assert (at(jnp.asarray(-1), jnp.asarray(0))[1, :, :, 0] == 7.0).all()
