"""Families, meshes and batches for the proof that a mesh changes no number: five SGD steps, uneven masks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import zoo
from train.config import TrainConfig
from train.corruption import Vocabulary
from train.cross_entropy import cross_entropy
from train.mesh import make_driver
from train.metrics import accuracy
from train.objectives import Objective, masked_lm, masked_lm_weights, next_token
from train.optimizer import make_optimizer
from train.state import initial_state
from train.step import make_eval_step, make_train_step

V, ROWS, LENGTH, STEPS = 24, 16, 8, 5
SMALL = {"vocab_size": V, "embed_dim": 16, "num_layers": 2, "num_heads": 4, "mlp_dim": 32, "max_positions": 16}
VOCABULARY = Vocabulary(V, 6, (0, 1, 2, 3, 4, 5, 6))
PAIRS = Objective(
    partial(masked_lm, vocabulary=VOCABULARY, rate=0.3, next_sentence=True),
    partial(masked_lm_weights, vocabulary=VOCABULARY, rate=0.3),
)


def classify(model, params, batch, keys, *, train=True):
    """Classes of images, some of which do not count."""
    logits = model.apply(params, batch["images"], dropout_key=keys if train else None).logits
    counts = (batch["labels"] >= 0).astype(jnp.float32)
    losses = cross_entropy(logits, jnp.maximum(batch["labels"], 0))
    return (jnp.sum(losses * counts), jnp.sum(counts)), {"accuracy": accuracy(logits, batch["labels"], counts)}


FAMILIES = {
    "bert": (
        zoo.create(
            "bert-tiny", **SMALL, head="masked_lm", pooler=True, next_sentence=True, token_types=2, dropout=0.1
        ).config,
        PAIRS,
    ),
    "gpt2": (zoo.create("gpt2-tiny", **SMALL, dropout=0.1).config, Objective(next_token)),
    # Two key-value heads: on tensor=4 they are whole on each device.
    "llama": (zoo.create("llama3-tiny", **SMALL, num_kv_heads=2, head_dim=4).config, Objective(next_token)),
    "mixtral": (
        zoo.create("mixtral-tiny", **SMALL, num_kv_heads=4, head_dim=4, num_experts=4).config,
        Objective(next_token),
    ),
    "vit": (
        zoo.create(
            "deit-tiny", num_layers=2, image_size=32, embed_dim=16, num_heads=4, mlp_dim=32, head="classifier",
            num_labels=5, distillation_token=False, distillation_head=False,
        ).config,
        classify,
    ),
}  # fmt: skip
MESHES = (
    "data=8",
    "fsdp=8",
    "slice=2,data=2,fsdp=2",
    "data=2,fsdp=2,tensor=2",
    "slice=2,fsdp=2,tensor=2",
    "fsdp=2,tensor=4",
    "fsdp=2,sequence=4",
    "data=2,tensor=2,sequence=2",
    "fsdp=2,tensor=2,sequence=2",
)
PLACES = [("mesh", mesh) for mesh in MESHES] + [("pmap", "")]
REMATS = ("none", "minimal", "dots", "full", "offload")


def cases(places):
    """(family, driver, mesh, micro-batches, scan, remat) for each family on each place, (driver, mesh).

    Remat goes with family and place, so that each of them meets each; stacks and micro-batches go through their four.
    """
    return [
        (family, *place, 1 + (f + p // 2) % 2, bool((f + p) % 2), REMATS[(f + 2 * p) % len(REMATS)])
        for f, family in enumerate(FAMILIES)
        for p, place in enumerate(places)
    ]


def batches(family):
    """Half the rows have next to nothing to learn from, and they lie on the first devices."""
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        row_ids = (step * ROWS + np.arange(ROWS)).astype(np.int32)
        if family == "vit":
            labels = np.where(np.arange(ROWS) < ROWS // 2 - 1, -1, rng.integers(0, 5, ROWS)).astype(np.int32)
            images = rng.normal(size=(ROWS, 32, 32, 3)).astype(np.float32)
            yield {"images": images, "labels": labels, "row_ids": row_ids}
            continue
        width = LENGTH + (family != "bert")
        lengths = rng.integers(1, width + 1, ROWS)
        lengths[: ROWS // 2] = 1 + (family != "bert")
        segments = (np.arange(width) < lengths[:, None]).astype(np.int32)
        batch = {
            "tokens": np.where(segments, rng.integers(7, V, (ROWS, width)), 0).astype(np.int32),
            "segment_ids": segments,
            "row_ids": row_ids,
        }
        if family == "bert":
            batch["token_types"] = (np.arange(width) > 3).astype(np.int32) * segments
            batch["next_sentence"] = np.where(np.arange(ROWS) % 3 == 0, -1, np.arange(ROWS) % 2).astype(np.int32)
        yield batch


def trained(family, driver="jit", mesh="", accumulate=1, **changes):
    """Initial parameters, losses, final parameters and an evaluation, on the host; parameters as a loop has them."""
    config, objective = FAMILIES[family]
    loop, model = zoo.create(config), zoo.create(config.replace(**changes))
    train = TrainConfig(
        steps=STEPS, batch_size=ROWS, accumulate=accumulate, optimizer="sgd", learning_rate=0.3, schedule="constant"
    )
    optimizer, chosen = make_optimizer(train), make_driver(driver, mesh)

    def init(key):
        params = loop.init(key)  # a scan draws otherwise than a loop: here both begin with the same numbers
        return zoo.stack_layers(params, model.config) if model.config.scan else params

    def on_host(params):
        params = jax.device_get(params)
        return jax.device_get(zoo.unstack_layers(params, model.config)) if model.config.scan else params

    state = chosen.init(initial_state(init, optimizer, 3))
    first = on_host(state.params)
    step = chosen.compile(make_train_step(model, objective, optimizer, train))
    losses = []
    for batch in batches(family):
        state, metrics = step(state, chosen.put(batch))
        losses.append(float(metrics["loss"][0]) / (float(metrics["loss"][1]) or 1.0))
    evaluate = chosen.compile_eval(make_eval_step(model, objective))
    return first, losses, on_host(state.params), jax.device_get(evaluate(state.params, chosen.put(batch)))


def assert_equal_runs(found, wanted):
    """Initial parameters bit for bit, the rest to 1e-5."""
    close = np.testing.assert_allclose
    jax.tree.map(np.testing.assert_array_equal, found[0], wanted[0])
    close(found[1], wanted[1], rtol=1e-5)
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-5, atol=1e-5), found[2], wanted[2])
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-5), found[3], wanted[3])
    assert len(set(wanted[1])) == STEPS
