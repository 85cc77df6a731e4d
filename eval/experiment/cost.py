"""What a cell costs by formula: tokens with their padding, and FLOPs of training and prediction.

    FLOPs = sum over batches of rows x T x zoo.summary's forward FLOPs a token at length T x passes

Rows and lengths are those of the batches that are run, filler rows included; short texts share rows where their kind
allows it (eval.packing). A forward pass counts 1 and a full backward pass 2; which of them a way needs:

    full, lora    3                 lora makes the gradient of the whole kernel on its way to that of its factors
    top           1 + 2 k / L       the backward pass ends below the upper k of L blocks
    head          1                 the backbone is frozen
    probe         1, each text once (prediction reads the same features again)

The task's head (2 D C a text) and the optimizer are left out: below a thousandth of the rest for the networks here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from eval.encode import Encoded, prediction_order, training_order
from eval.kinds import Kind
from eval.packing import fill, layout, packs, prediction_length
from eval.ways.finetune_config import FinetuneConfig
from zoo.config import ModelConfig
from zoo.shared_rows import rows_a_batch
from zoo.summary import forward_flops

PREDICTION_BATCH = 64
# (rows, row length) -> how many such batches there are.
Shapes = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Cost:
    """Formula costs of one cell: tokens (padding included) and FLOPs."""

    training_tokens: int
    training_flops: float
    prediction_tokens: int
    prediction_flops: float

    @property
    def flops(self) -> float:
        """Of both."""
        return self.training_flops + self.prediction_flops


def cost(
    config: ModelConfig,
    tuning: FinetuneConfig,
    train: Encoded,
    test: Encoded,
    kind: Kind,
    *,
    row_shards: int = 1,
    steps: int | None = None,
) -> Cost:
    """The cost of fine-tuning on `train` and predicting `test`.

    Args:
        config: of the model.
        tuning: way, batch_size, epochs or steps, packing, seed.
        train, test: encoded examples.
        kind: of the task.
        row_shards: devices that share a batch's rows: batches are filled up to a multiple.
        steps: updates that were made, where training stopped early; None for all.
    """
    training = training_shapes(config, tuning, train, kind, row_shards, steps)
    prediction = prediction_shapes(config, test, kind, row_shards)
    return Cost(
        _tokens(training),
        _flops(config, training) * passes(tuning, config.num_layers),
        _tokens(prediction),
        _flops(config, prediction),
    )


def passes(tuning: FinetuneConfig, num_layers: int) -> float:
    """Forward passes that one pass of a training row costs; see the module's head."""
    if tuning.way == "top":
        return 1 + 2 * min(tuning.top_layers, num_layers) / num_layers
    return {"head": 1.0, "probe": 1.0}.get(tuning.way, 3.0)


def training_shapes(
    config: ModelConfig,
    tuning: FinetuneConfig,
    encoded: Encoded,
    kind: Kind,
    row_shards: int = 1,
    steps: int | None = None,
) -> Shapes:
    """The batches that go through the network while training; those of one prediction for a closed form."""
    if tuning.way == "probe":
        return prediction_shapes(config, encoded, kind, row_shards)
    packed = tuning.packing and packs(kind, encoded, config)
    size = _whole(tuning.batch_size, row_shards) * encoded.group
    total = tuning.total_steps(len(encoded)) if steps is None else steps
    found, step, epoch, shape = Counter(), 0, 0, None
    while step < total:
        order = training_order(encoded, tuning.batch_size, tuning.seed, epoch, by_length=not packed)
        shape = shape or (layout(encoded, order) if packed else None)
        for rows in order[: total - step]:
            found[_packed(encoded, rows, *shape, row_shards) if shape else (size, _length(encoded, rows))] += 1
            step += 1
        epoch += 1
    return found


def prediction_shapes(
    config: ModelConfig, encoded: Encoded, kind: Kind, row_shards: int = 1, batch_size: int = PREDICTION_BATCH
) -> Shapes:
    """The batches that go through the network to answer for each example once."""
    size = _whole(batch_size, row_shards)
    if packs(kind, encoded, config):
        size = _whole(rows_a_batch(prediction_length(encoded), batch_size), row_shards)
        rows, length = _packed(encoded, range(len(encoded)), prediction_length(encoded), 1, size)
        return {(size, length): rows // size}
    return Counter((size * encoded.group, _length(encoded, rows)) for rows in prediction_order(encoded, batch_size))


def _packed(encoded: Encoded, examples, length: int, least: int, unit: int) -> tuple[int, int]:
    """Rows and their length of `eval.packing.pack`, without making them."""
    return _whole(max(len(fill(encoded.lengths[list(examples)], length)), least), unit), length


def _tokens(shapes: Shapes) -> int:
    return sum(rows * length * count for (rows, length), count in shapes.items())


def _flops(config: ModelConfig, shapes: Shapes) -> float:
    """Of one forward pass. The read-out to the vocabulary, which a task's head replaces, is left out."""
    bare = config.replace(head="none", next_sentence=False) if config.head != "none" else config
    by_length = {length: sum(forward_flops(bare, length).values()) for _, length in shapes}
    return float(sum(rows * length * count * by_length[length] for (rows, length), count in shapes.items()))


def _length(encoded: Encoded, rows) -> int:
    return next(bucket for bucket in encoded.buckets if bucket >= encoded.lengths[rows].max())


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit
