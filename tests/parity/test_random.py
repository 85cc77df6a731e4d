"""Settings that nobody chose, against the reference library: logits, hidden states, and the way back to the bit.

`make parity` runs a few draws, the same each time; `make soak` sets ONEBLOCK_SOAK_DRAWS and runs that many of every
family, new ones each time. A failure prints the class, the settings and the seed of the weights.

The reference computes in float64 throughout (reference.in_float64), so that our own error is seen and not a sum of two:
it is below 1e-5. Some draws are badly conditioned (sharp attention, a norm of a token that nearly vanished): there the
exact answer moves by more than that when each weight moves by half a rounding of float32, and four times that movement,
or the reference's own error in float32 where that is larger, is allowed; above 1e-4 twice that, and 5e-3 at most (a
wrong layout gives 0.05).

Measured over 26 families, 453 batches: ours 2.4e-5 at most, above 1e-5 in twelve; the reference's float32 6.3e-5. Of
520 draws at another time two were worse conditioned: ours 1.7e-4 where the reference's float32 is off by 7.9e-4, and
1.7e-4 where it is off by 4.6e-4. They are WORST below.
"""

import json
import os

import jax
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.golden.recipe import batch, error
from tests.golden.recipe import images as noise
from tests.parity import draws_decoders, draws_encoders, encoders, reference
from zoo.checkpoints import export, load

DRAWS = int(os.environ.get("ONEBLOCK_SOAK_DRAWS", "0"))
FEW = 8
FAMILIES = draws_decoders.FAMILIES | draws_encoders.FAMILIES
ENCODERS = ("bert", "roberta", "xlm-roberta", "albert", "electra", "distilbert", "modernbert")
OUTPUTS = ("logits", "prediction_logits", "pooler_output", "seq_relationship_logits", "sop_logits")


def reference_run(theirs, inputs):
    """name -> float64 array: the reference's hidden states, logits and pooled vectors."""
    with torch.no_grad():
        if "pixels" in inputs:
            pixels = torch.from_numpy(inputs["pixels"].transpose(0, 3, 1, 2).copy()).to(theirs.dtype)
            out = theirs(pixels, output_hidden_states=True)
        elif theirs.config.model_type in ENCODERS:
            out = encoders.run(theirs, inputs)
        else:
            out = reference.run(theirs, inputs)
    found = {f"state {index}": state.numpy() for index, state in enumerate(out.hidden_states)}
    if getattr(out, "start_logits", None) is not None:
        found["logits"] = np.stack([out.start_logits.numpy(), out.end_logits.numpy()], axis=-1)
    for name in OUTPUTS:
        if getattr(out, name, None) is not None:
            found[name] = getattr(out, name).numpy()
    if getattr(out, "last_hidden_state", None) is not None:
        found["hidden"] = out.last_hidden_state.numpy()
    return found


def our_run(model, params, inputs):
    """The same names."""
    if "pixels" in inputs:
        out = model.apply(params, inputs["pixels"], want=("hidden_states",))
    else:
        types = {"token_types": inputs["token_types"]} if model.config.token_types > 1 else {}
        mask = inputs["padding_mask"]
        out = model.apply(params, inputs["tokens"], padding_mask=mask, want=("hidden_states",), **types)
    states = list(out.hidden_states)
    if (model.config.final_norm or model.config.hidden_width != states[-1].shape[-1]) and "pixels" not in inputs:
        states[-1] = out.hidden  # so does the reference
    found = {f"state {index}": state for index, state in enumerate(states)} | {"hidden": out.hidden}
    pooled = out.hidden[:, 0] if model.config.family == "dinov2" else out.pooled
    found |= {"logits": out.logits, "prediction_logits": out.logits, "pooler_output": pooled}
    if model.config.head == "none" and model.config.next_sentence:
        found["logits"] = out.next_sentence
    return found | {"seq_relationship_logits": out.next_sentence, "sop_logits": out.next_sentence}


def movement(theirs, inputs, exact, where):
    """name -> how far rounding moves the reference: float32, or float64 with each weight moved by half a rounding."""
    kept = {name: value.clone() for name, value in theirs.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    runs = [reference_run(theirs, inputs)]
    for _ in range(3):
        with reference.in_float64(theirs), torch.no_grad():
            for weight in theirs.parameters():
                weight *= 1 + 6e-8 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            runs.append(reference_run(theirs, inputs))
        theirs.load_state_dict(kept)
    return {name: max(error(run[name], exact[name], where[name]) for run in runs) for name in where}


def compare(theirs, model, params, inputs, pooled):
    """The worst error, each as a part of what it may be; `pooled` is whether row-wise answers are compared too."""
    real = None if "pixels" in inputs else inputs["padding_mask"] == 1
    with reference.in_float64(theirs):
        exact = reference_run(theirs, inputs)
    mine, own, worst, where = our_run(model, params, inputs), None, {}, {}
    for name, wanted in exact.items():
        each = real is not None and wanted.ndim > 1 and wanted.shape[:2] == real.shape
        if each or pooled or real is None:
            where[name] = real if each else None
    for name, places in where.items():
        found = error(mine[name], exact[name], places)
        allowed = 1e-5
        if found > allowed:
            own = movement(theirs, inputs, exact, where) if own is None else own
            allowed = max(allowed, min(4 * own[name], max(1e-4, 2 * own[name]), 5e-3))
        worst[name] = found / allowed
    assert len(worst) > model.config.num_layers
    assert max(worst.values()) <= 1, worst


def rows_for(theirs, model, length, left, seed):
    """Padded rows; padding holds id 0 and nothing else does, as the reference's classifiers need."""
    config = theirs.config
    inputs = batch(seed, config.vocab_size, rows=2, length=length, shortest=40, left=left)
    inputs["tokens"] = np.where(inputs["padding_mask"] == 1, np.maximum(inputs["tokens"], 1), 0)
    inputs["token_types"] = inputs["token_types"] % max(model.config.token_types, 1)
    return inputs


def check(case, folder, length):
    theirs = case.model()
    if hasattr(theirs, "set_experts_implementation"):
        theirs.set_experts_implementation("eager")  # its joint product wants rows of 16 bytes, and no float64
    model, params = load(reference.save(theirs, folder / "model"))
    if model.config.image_size:
        shape = dict(side=theirs.config.image_size, channels=theirs.config.num_channels)
        compare(theirs, model, params, {"pixels": noise(case.seed, 2, **shape)}, True)
    elif theirs.config.model_type in ENCODERS:
        for left in (False, True):
            # The reference pools place 0, which is padding on the left; we pool the first real token.
            pooled = not left or model.config.pooling == "mean"
            compare(theirs, model, params, rows_for(theirs, model, length, left, case.seed), pooled)
    else:
        both = [rows_for(theirs, model, length, left, case.seed) for left in (False, True)]
        for row in (1, 0):  # the shorter first: the reference's dynamic scaling remembers the longest
            for inputs in both:
                alone = {name: array[row : row + 1] for name, array in inputs.items()}
                compare(theirs, model, params, alone, True)

    export(model, params, folder / "out")
    name = type(theirs).__name__
    if name.endswith("Model") and model.config.head == "lm":  # its own table reads out
        name = json.loads((folder / "out" / "config.json").read_text())["architectures"][0]
    opened, info = getattr(transformers, name).from_pretrained(
        folder / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    state, prefix = opened.state_dict(), ""
    if type(opened) is not type(theirs) and not set(theirs.state_dict()) <= set(state):
        prefix = f"{opened.base_model_prefix}."
    for key, value in theirs.state_dict().items():
        if key in ("cls.predictions.bias", "lm_head.bias", "predictions.bias") and f"{prefix}{key}" in state:
            if not theirs.config.tie_word_embeddings:
                continue  # not tied to the decoder's bias, it is added to nothing
        assert torch.equal(state[prefix + key], value), key
    again, back = load(folder / "out")
    assert again == model
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, back))


@pytest.mark.parametrize("family", list(FAMILIES) if DRAWS else ["any"])
def test_random_settings(family, tmp_path_factory):
    cases = FAMILIES[family] if DRAWS else st.one_of(*FAMILIES.values())

    @settings(
        max_examples=DRAWS or FEW,
        derandomize=not DRAWS,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, length=st.integers(64, 80))
    def run(case, length):
        note(f"{case!r} at length {length}")
        check(case, tmp_path_factory.mktemp(family), length)
        if DRAWS:
            jax.clear_caches()  # no two draws share a program

    run()


BADLY_CONDITIONED = reference.Case(
    "MixtralModel",
    dict(
        num_attention_heads=6,
        num_key_value_heads=3,
        hidden_size=80,
        head_dim=6,
        vocab_size=103,
        num_hidden_layers=4,
        intermediate_size=16,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        pad_token_id=None,
        num_local_experts=5,
        num_experts_per_tok=2,
        sliding_window=None,
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=10000.0,
            factor=2.0,
            original_max_position_embeddings=48,
            low_freq_factor=1.0,
            high_freq_factor=2.0,
        ),
    ),
    seed=1000000,
)


def test_a_padded_row_of_mixtral_that_differs_by_rounding_alone(tmp_path):
    """No choice of experts is near a tie, and rounding alone moves the exact answer as far as ours is from it.

    Measured at the shorter row: ours 2.4e-5, the reference's float32 1.1e-5, weights moved by half a rounding 2.1e-5;
    all at one token, where others have 3e-6. The second and third expert are 6.8e-3 apart or more in float64, and the
    same are chosen in float32.
    """
    theirs = BADLY_CONDITIONED.model()
    model, params = load(reference.save(theirs, tmp_path / "model"))
    inputs = {name: array[1:] for name, array in rows_for(theirs, model, 73, False, BADLY_CONDITIONED.seed).items()}
    real, chosen, gaps = inputs["padding_mask"] == 1, [], []

    def note_choice(module, given, out):
        logits = out[0].double().reshape(-1, 5)[torch.from_numpy(real[0])]
        top = logits.topk(3)
        chosen.append(top.indices[:, :2].sort().values)
        gaps.append(float((top.values[:, 1] - top.values[:, 2]).min()))

    hooks = [layer.mlp.gate.register_forward_hook(note_choice) for layer in theirs.layers]
    single = reference_run(theirs, inputs)["hidden"]
    with reference.in_float64(theirs):
        exact = reference_run(theirs, inputs)
    for hook in hooks:
        hook.remove()
    assert all(torch.equal(a, b) for a, b in zip(chosen[:4], chosen[4:], strict=True)) and min(gaps) > 5e-3
    ours = error(our_run(model, params, inputs)["hidden"], exact["hidden"], real)
    moved = movement(theirs, inputs, exact, {"hidden": real})["hidden"]
    assert 1e-5 < max(ours, moved) < 1e-4, (ours, moved)  # on another machine the order of sums is another
    assert ours <= 4 * moved and error(single, exact["hidden"], real) <= 4 * moved


WORST = (
    (
        76,
        reference.Case(
            "GemmaForSequenceClassification",
            dict(
                num_attention_heads=2,
                num_key_value_heads=1,
                hidden_size=84,
                head_dim=8,
                vocab_size=96,
                num_hidden_layers=5,
                intermediate_size=59,
                max_position_embeddings=48,
                tie_word_embeddings=True,
                rms_norm_eps=0.01,
                attention_bias=False,
                id2label={n: f"label {n}" for n in range(4)},
                pad_token_id=0,
                hidden_act="silu",
                rope_parameters=dict(
                    rope_type="longrope",
                    rope_theta=500000.0,
                    factor=2.0,
                    original_max_position_embeddings=16,
                    short_factor=[11.5234375, 26.21875, 20.5625, 21.1875],
                    long_factor=[4.09765625, 21.703125, 3.88671875, 6.625],
                    attention_factor=1.1,
                ),
            ),
            seed=30976,
        ),
    ),
    (
        69,
        reference.Case(
            "Qwen2ForSequenceClassification",
            dict(
                num_attention_heads=1,
                num_key_value_heads=1,
                hidden_size=71,
                head_dim=8,
                vocab_size=98,
                num_hidden_layers=5,
                intermediate_size=8,
                max_position_embeddings=96,
                hidden_act="relu",
                tie_word_embeddings=False,
                rms_norm_eps=1e-5,
                id2label={n: f"label {n}" for n in range(4)},
                pad_token_id=0,
                rope_parameters=dict(
                    rope_type="longrope",
                    rope_theta=100.0,
                    factor=15.7890625,
                    original_max_position_embeddings=96,
                    short_factor=[10.7734375, 17.78125, 11.3125, 5.40625],
                    long_factor=[10.0078125, 9.4921875, 13.3671875, 12.46875],
                    attention_factor=1.1,
                ),
                use_sliding_window=True,
                sliding_window=100,
                layer_types=["sliding_attention"] * 4 + ["full_attention"],
            ),
            seed=9979,
        ),
    ),
)


@pytest.mark.parametrize("length, case", WORST, ids=["gemma", "qwen2"])
def test_the_worst_conditioned_draws(tmp_path, length, case):
    """Five layers in which rounding grows: it moves the exact answer further than ours is from it."""
    check(case, tmp_path, length)
