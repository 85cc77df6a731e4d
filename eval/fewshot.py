"""Classification by prompting: k labelled examples in the prompt, and the label whose words are likeliest after it.

With l_c = log p(words of label c | prompt), the label chosen is

    raw           argmax of l_c
    per token     argmax of l_c / tokens of the words: labels of more tokens are not put at a disadvantage
    calibrated    argmax of l_c - l_c(content-free): what the same prompt would say of "N/A" is taken off, since prompts
                  favour the labels that are common, or last, in them (Zhao et al. 2021, Calibrate Before Use, ICML,
                  arXiv:2102.09690: W = diag(p_cf)^-1, b = 0)

A seed draws the examples, stratified by class; an order permutes them. Accuracy is known up to both, and up to the test
set: three spreads that are reported beside each other (Lu et al. 2022, Fantastically Ordered Prompts, ACL: the order
alone can decide between chance and the state of the art).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from eval import metrics
from eval.examples import Example
from eval.experiment.statistics import Interval, mean_interval
from eval.language.likelihood import (
    Likelihood,
    encode_pairs,
    log_likelihoods,
    merge_prefixes,
    require_causal,
    row_limit,
    shared_prefix,
    to_queries,
)
from eval.language.prompts import Template, draw_shots
from eval.language.token_scores import Watch, tokens_per_second
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import Tokenizer

METHODS = ("raw", "per token", "calibrated")
CONTENT_FREE = "N/A"
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Prompted:
    """One prompt's answers on the test set.

    Attributes:
        shots, seed, order: which prompt.
        log_probs: float64 [E, C], l_c.
        tokens: int64 [E, C], of each label's words.
        content_free: float64 [C], l_c of the content-free text.
        labels: int64 [E].
        lost: test texts whose prompt lost its beginning, for the model's positions.
    """

    shots: int
    seed: int
    order: int
    log_probs: np.ndarray
    tokens: np.ndarray
    content_free: np.ndarray
    labels: np.ndarray
    lost: int

    def predictions(self, method: str) -> np.ndarray:
        """int64 [E], by one of METHODS."""
        values = {
            "raw": self.log_probs,
            "per token": self.log_probs / np.maximum(self.tokens, 1),
            "calibrated": self.log_probs - self.content_free,
        }[method]
        return values.argmax(axis=1)

    def scores(self, method: str) -> dict[str, float]:
        """Accuracy and macro-F1."""
        return metrics.score(metrics.confusion(self.predictions(method), self.labels, self.log_probs.shape[1]))

    def right(self, method: str) -> np.ndarray:
        """float64 [E], 1 where the label is right."""
        return (self.predictions(method) == self.labels).astype(np.float64)


@dataclass(frozen=True)
class Summary:
    """All prompts of k examples, by one method.

    Attributes:
        shots, method: which.
        accuracy: mean over seeds, with its interval by Student's t, cut off at 0 and 1 (none for one seed).
        macro_f1: mean over seeds.
        on_texts: the same accuracy with its interval over test texts, the seeds taken as they are.
        seeds_range: least and greatest accuracy of a seed (the mean over its orders).
        orders_range: greatest less least accuracy over the orders of one seed, the mean over seeds; None for one order.
        lost: test texts whose prompt was cut, over all prompts.
    """

    shots: int
    method: str
    accuracy: Interval
    macro_f1: float
    on_texts: Interval
    seeds_range: tuple[float, float]
    orders_range: float | None
    lost: int


def prompts_of(shots: Sequence[int], seeds: int, orders: int) -> list[tuple[int, int, int]]:
    """(shots, seed, order) of each prompt; without examples, and with one, there is nothing to draw or to order."""
    found = []
    for count in shots:
        for seed in range(seeds if count else 1):
            found += [(count, seed, order) for order in range(orders if count > 1 else 1)]
    return found


def requests(
    template: Template,
    train: Sequence[Example],
    test: Sequence[Example],
    prompt: tuple[int, int, int],
    content_free: str = CONTENT_FREE,
) -> list[tuple[str, str]]:
    """(prompt, word) for each test text and label, then for the content-free text and each label."""
    count, seed, order = prompt
    chosen = draw_shots(train, count, seed, order)
    asked = [example.texts for example in test] + [(content_free,) * len(test[0].texts)]
    return [(template.prompt(chosen, *texts), word) for texts in asked for word in template.words]


def measure(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    template: Template,
    train: Sequence[Example],
    test: Sequence[Example],
    prompt: tuple[int, int, int],
    *,
    content_free: str = CONTENT_FREE,
    max_length: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    watch: Watch | None = None,
) -> Prompted:
    """What the model answers to one prompt on every test text.

    Args:
        model, params: a causal language model.
        tokenizer: the checkpoint's own.
        template: see eval.language.prompts.
        train: where examples are drawn from.
        test: E texts with labels.
        prompt: (shots, seed, order).
        content_free: what stands for a text that says nothing.
        max_length: most tokens that go in; see eval.language.likelihood.
        devices, watch: see eval.language.token_scores.
    """
    if not test:
        raise InputError("there is no test text to prompt for")
    pairs = requests(template, train, test, prompt, content_free)
    found: list[Likelihood] = []
    for start in range(0, len(pairs), BLOCK):  # so that long prompts on many texts do not all lie in memory
        block = pairs[start : start + BLOCK]
        found += log_likelihoods(model, params, tokenizer, block, max_length=max_length, devices=devices, watch=watch)
    shape = (len(test) + 1, len(template.words))
    log_probs = np.array([one.log_prob for one in found]).reshape(shape)
    tokens = np.array([one.tokens for one in found]).reshape(shape)
    cut = np.array([one.lost for one in found]).reshape(shape)[:-1].any(axis=1)
    labels = np.array([example.label for example in test], np.int64)
    return Prompted(*prompt, log_probs[:-1], tokens[:-1], log_probs[-1], labels, int(cut.sum()))


def summarise(prompted: Sequence[Prompted]) -> list[Summary]:
    """A Summary for each number of shots and method, in their order."""
    found = []
    for count in dict.fromkeys(one.shots for one in prompted):
        group = [one for one in prompted if one.shots == count]
        seeds = list(dict.fromkeys(one.seed for one in group))
        for method in METHODS:
            by_seed = [[one.scores(method) for one in group if one.seed == seed] for seed in seeds]
            accuracies = [[score["accuracy"] for score in scores] for scores in by_seed]
            means = [float(np.mean(values)) for values in accuracies]
            ranges = [max(values) - min(values) for values in accuracies if len(values) > 1]
            found.append(
                Summary(
                    count,
                    method,
                    mean_interval(means, bounds=(0.0, 1.0)),
                    float(np.mean([np.mean([score["macro_f1"] for score in scores]) for scores in by_seed])),
                    mean_interval(np.mean([one.right(method) for one in group], axis=0), bounds=(0.0, 1.0)),
                    (min(means), max(means)),
                    float(np.mean(ranges)) if ranges else None,
                    sum(one.lost for one in group),
                )
            )
    return found


def baselines(train: Sequence[Example], test: Sequence[Example], num_labels: int) -> dict[str, float]:
    """Accuracy of always saying the training split's commonest label, and of guessing evenly."""
    commonest = np.bincount([example.label for example in train], minlength=num_labels).argmax()
    return {"majority": float(np.mean([example.label == commonest for example in test])), "random": 1 / num_labels}


def cost(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    max_length: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> tuple[float, int]:
    """(seconds, tokens through the model) that the requests of one prompt take, by a trial of one batch."""
    require_causal(model, tokenizer)
    queries, _ = to_queries(encode_pairs(tokenizer, pairs), row_limit(model, max_length), tokenizer.adds_bos)
    prefix, rows = shared_prefix(model, merge_prefixes(model, queries)[0])
    rate, tokens = tokens_per_second(
        model, params, rows, prefix=prefix, vocab_size=tokenizer.vocab_size, devices=devices
    )
    return (tokens + len(prefix)) / rate, tokens + len(prefix)
