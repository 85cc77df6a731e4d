"""A linear probe in closed form: ridge regression on the pooled features of a frozen backbone, computed once.

    minimise  sum_i w_i |y_i - z_i W - b|^2 + lambda |W|^2

z are the features, standardised; y the ratings, or one-hot classes. lambda is the one of a grid with the least squared
error when each example is left out in turn, which one singular value decomposition gives exactly for all of them:

    left-out residual_i = residual_i / (1 - h_i),    h_i the i-th diagonal entry of the hat matrix

Ridge scores are no log-probabilities, so those of classes are multiplied by the one number t under which the labels are
likeliest by softmax(t left-out score). Standardisation, W, b and t become kernel and bias of an ordinary classifier.

References: Hoerl and Kennard 1970; Golub, Heath and Wahba 1979 (leave-one-out); Guo et al. 2017, arXiv:1706.04599 (t).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.encode import Encoded
from eval.kinds import CLASSIFICATION, REGRESSION, Kind
from eval.kinds.kind import read
from eval.predict import predict_encoded
from zoo.errors import InputError
from zoo.model import Model

# lambda / sum of w: standardised features have variance 1, so 1 is as strong as the data.
GRID = tuple(10.0 ** (k / 2) for k in range(-8, 9))
# Bounds of t: scores lie about 0 and 1, and 1 says almost nothing of them.
BLUNTEST, SHARPEST = 1.0, 100.0


@dataclass(frozen=True, eq=False)
class Ridge:
    """A solution: scores = x @ kernel + bias.

    Attributes:
        kernel, bias: float64 [D, C], [C].
        strength: lambda / sum of w, of the grid.
        left_out: [E, C] the scores of each example by the solution without it.
        error: the mean over examples of the squared error of `left_out`.
    """

    kernel: np.ndarray
    bias: np.ndarray
    strength: float
    left_out: np.ndarray
    error: float


def ridge(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None, grid: Sequence[float] = GRID) -> Ridge:
    """Ridge regression with an intercept that is not penalised, lambda chosen by leave-one-out.

    Args:
        x: [E, D] features.
        y: [E, C] targets.
        weights: [E] what each example counts; None for 1.
        grid: lambda / sum of w, ascending; of equal errors the strongest.

    Raises:
        InputError: fewer than two examples that count, or features that are not finite.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if np.count_nonzero(w) < 2:
        raise InputError(f"a probe needs two examples or more, and there are {np.count_nonzero(w)}")
    if not np.isfinite(x).all():
        raise InputError("the features of the frozen model are not finite; check the checkpoint")
    total = w.sum()
    middle = w @ x / total
    spread = np.sqrt(w @ (x - middle) ** 2 / total)
    spread = np.where(spread > 1e-9 * (1 + np.abs(middle)), spread, np.inf)  # a constant feature tells nothing
    root = np.sqrt(w)[:, None]
    level = w @ y / total
    left, singular, right = np.linalg.svd(root * (x - middle) / spread, full_matrices=False)
    target = left.T @ (root * (y - level))  # what the data say along each direction
    best = None
    for strength in grid:
        kept = singular**2 / (singular**2 + strength * total)
        hat = w / total + left**2 @ kept
        fitted = left @ (kept[:, None] * target)
        residual = np.divide(root * (y - level) - fitted, root, out=np.zeros_like(y), where=root > 0)
        left_out = y - residual / np.maximum(1 - hat, 1e-12)[:, None]
        error = float(w @ np.sum((y - left_out) ** 2, axis=1) / total)
        if best is None or error <= best.error:
            inverse = singular / (singular**2 + strength * total)
            kernel = right.T @ (inverse[:, None] * target) / spread[:, None]
            best = Ridge(kernel, level - middle @ kernel, strength, left_out, error)
    return best


def sharpness(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The t from 1 to 100 under which softmax(t score) makes the labels likeliest; their loss is convex in t."""
    from scipy.optimize import minimize_scalar

    w = np.ones(len(scores)) if weights is None else weights

    def loss(t: float) -> float:
        scaled = t * scores
        top = scaled.max(axis=1)
        own = scaled[np.arange(len(labels)), labels]
        return float(w @ (np.log(np.exp(scaled - top[:, None]).sum(axis=1)) + top - own))

    return float(minimize_scalar(loss, bounds=(BLUNTEST, SHARPEST), method="bounded", options={"xatol": 1e-6}).x)


def fit(
    model: Model,
    params: dict[str, Any],
    encoded: Encoded,
    kind: Kind = CLASSIFICATION,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> tuple[dict[str, Any], dict[str, float]]:
    """The same parameters with the classifier that the labelled examples give in closed form.

    Args:
        model, params: with head "classifier", a single linear map with a bias.
        encoded: E labelled examples of classes or of ratings.
        kind: of the task.
        devices: see eval.predict.

    Returns:
        params, whose classifier is new; facts: ridge_lambda (over E), left_out_error, sharpness.

    Raises:
        InputError: a kind of task whose answers are no linear map of one vector a text.
    """
    if kind not in (CLASSIFICATION, REGRESSION):
        raise InputError(
            f'way "probe" is for tasks of classes and ratings, and this is one of {kind.name}; take "head"'
        )
    x = features(model, params, encoded, devices=devices)
    classes = kind is CLASSIFICATION
    labels = encoded.labels
    y = np.eye(model.config.num_labels)[labels] if classes else labels.astype(np.float64)[:, None]
    found = ridge(x, y, encoded.label_weights)
    t = sharpness(found.left_out, labels, encoded.label_weights) if classes else 1.0
    new = {"kernel": jnp.asarray(t * found.kernel, jnp.float32), "bias": jnp.asarray(t * found.bias, jnp.float32)}
    facts = {"ridge_lambda": found.strength, "left_out_error": found.error}
    if classes:
        facts["sharpness"] = t
    return {**params, "classifier": new}, facts


def features(
    model: Model, params: dict[str, Any], encoded: Encoded, *, devices: Sequence[jax.Device] | None = None
) -> np.ndarray:
    """[E, D] float32: what the classifier of this model reads of each example, every example once."""
    return predict_encoded(model, params, encoded, kind=FEATURES, devices=devices)


def pooled(model: Model, params: dict[str, Any], batch: Mapping[str, jax.Array]) -> jax.Array:
    """What the classifier reads: its answer if its kernel were the identity, pooled and packed just as it is."""
    width = params["classifier"]["kernel"].shape[0]
    same = {"kernel": jnp.eye(width, dtype=jnp.float32), "bias": jnp.zeros(width, jnp.float32)}
    reader = Model(model.config.replace(num_labels=width, label_names=()))
    return read(reader, {**params, "classifier": same}, batch)


FEATURES = replace(CLASSIFICATION, name="features", outputs=pooled)
