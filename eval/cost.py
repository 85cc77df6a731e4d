"""What a cell costs by formula: tokens with their padding, and FLOPs of training and prediction.

    FLOPs = sum over batches of rows x T x zoo.summary's forward FLOPs a token at length T x passes

Rows and lengths are those of the batches that are run, filler rows included, with short texts packed into rows where
their kind allows it (eval.packing). A forward pass counts 1 and a full backward pass 2; which of them a way needs:

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
from eval.finetune_config import FinetuneConfig
from eval.kinds import Kind
from eval.packing import fill, packs, row_length, rows_a_step
from zoo.config import ModelConfig
from zoo.summary import forward_flops

PREDICTION_BATCH = 64
Rows = Mapping[int, int]


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
        tuning: way, batch_size, epochs or steps, seed.
        train, test: encoded examples.
        kind: of the task.
        row_shards: devices that share a batch's rows: batches are filled up to a multiple.
        steps: updates that were made, where training stopped early; None for all.
    """
    prediction = prediction_rows(config, test, kind, row_shards)
    if tuning.way == "probe":
        training = prediction_rows(config, train, kind, row_shards)
    else:
        training = training_rows(config, train, tuning, kind, row_shards, steps)
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


def training_rows(
    config: ModelConfig,
    encoded: Encoded,
    tuning: FinetuneConfig,
    kind: Kind,
    row_shards: int = 1,
    steps: int | None = None,
) -> Rows:
    """Row length -> rows that go through the network while training by steps."""
    packed = tuning.packing and packs(kind, encoded, config)
    unit = _whole(rows_a_step(encoded, tuning.batch_size), row_shards)
    total = tuning.total_steps(len(encoded)) if steps is None else steps
    size, found, step, epoch = _whole(tuning.batch_size, row_shards) * encoded.group, Counter(), 0, 0
    while step < total:
        order = training_order(encoded, tuning.batch_size, tuning.seed, epoch, by_length=not packed)
        for rows in order[: total - step]:
            if packed:
                length = row_length(encoded)
                found[length] += _whole(len(fill(encoded.lengths[rows], length)), unit)
            else:
                found[_length(encoded, rows)] += size
            step += 1
        epoch += 1
    return found


def prediction_rows(
    config: ModelConfig, encoded: Encoded, kind: Kind, row_shards: int = 1, batch_size: int = PREDICTION_BATCH
) -> Rows:
    """Row length -> rows that go through the network to answer for each example once."""
    size = _whole(batch_size, row_shards)
    if packs(kind, encoded, config):
        length = row_length(encoded)
        return {length: _whole(len(fill(encoded.lengths, length)), size)}
    found = Counter()
    for rows in prediction_order(encoded, batch_size):
        found[_length(encoded, rows)] += size * encoded.group
    return found


def _tokens(rows: Rows) -> int:
    return sum(length * count for length, count in rows.items())


def _flops(config: ModelConfig, rows: Rows) -> float:
    """Of one forward pass. The read-out to the vocabulary, which a task's head replaces, is left out."""
    bare = config.replace(head="none", next_sentence=False) if config.head != "none" else config
    return float(sum(count * length * sum(forward_flops(bare, length).values()) for length, count in rows.items()))


def _length(encoded: Encoded, rows) -> int:
    return next(bucket for bucket in encoded.buckets if bucket >= encoded.lengths[rows].max())


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit
