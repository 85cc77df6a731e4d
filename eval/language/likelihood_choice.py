"""Multiple choice by likelihood: the option that a causal language model finds likeliest after the context.

With l_o = log p(delimiter + option o | context), the option chosen is

    acc             argmax of l_o
    acc_norm        argmax of l_o / UTF-8 bytes of the option: long options are not put at a disadvantage
    acc_per_token   argmax of l_o / tokens
    acc_pmi         argmax of l_o - log p(delimiter + option o | domain): what the option gains by the context (Holtzman
                    et al. 2021, Surface Form Competition, EMNLP, arXiv:2104.08315)

Questions may have options of different numbers. Of equals the first is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from eval.experiment.statistics import Interval, mean_interval
from eval.language.likelihood import log_likelihoods
from eval.language.token_scores import Watch
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import Tokenizer

MEASURES = ("acc", "acc_norm", "acc_per_token", "acc_pmi")


@dataclass(frozen=True, eq=False)
class ChoiceScores:
    """Of E questions, each a tuple entry of as many numbers as it has options.

    Attributes:
        log_probs: l_o, float64.
        tokens, bytes: of each option, int64.
        prior: log p(option | domain), float64; None where it was not asked for.
        lost: questions of which a context lost its beginning, for the model's positions.
    """

    log_probs: tuple[np.ndarray, ...]
    tokens: tuple[np.ndarray, ...]
    bytes: tuple[np.ndarray, ...]
    prior: tuple[np.ndarray, ...] | None
    lost: int

    def predictions(self, measure: str) -> np.ndarray:
        """int64 [E], the options chosen, by one of MEASURES."""
        if measure == "acc_pmi" and self.prior is None:
            raise InputError("acc_pmi needs the options' likelihoods without the context: pass domain")
        found = []
        for number, values in enumerate(self.log_probs):
            if measure == "acc_norm":
                values = values / np.maximum(self.bytes[number], 1)
            elif measure == "acc_per_token":
                values = values / np.maximum(self.tokens[number], 1)
            elif measure == "acc_pmi":
                values = values - self.prior[number]
            found.append(int(np.argmax(values)))
        return np.array(found, np.int64)

    def accuracy(self, labels: Sequence[int]) -> dict[str, Interval]:
        """Each measure's accuracy with its interval over questions, cut off at 0 and 1.

        Of equal scores the first option is chosen.

        Raises:
            InputError: not one label a question, or one that is no option.
        """
        if len(labels) != len(self.log_probs):
            raise InputError(f"{len(labels)} labels for {len(self.log_probs)} questions")
        for number, (label, options) in enumerate(zip(labels, self.log_probs, strict=True)):
            if not 0 <= label < len(options):
                raise InputError(f"question {number} has {len(options)} options and label {label}")
        measures = [name for name in MEASURES if name != "acc_pmi" or self.prior is not None]
        gold = np.asarray(labels)
        return {name: mean_interval(self.predictions(name) == gold, bounds=(0.0, 1.0)) for name in measures}


def score_options(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    contexts: Sequence[str],
    options: Sequence[Sequence[str]],
    *,
    delimiter: str = " ",
    domain: str | None = None,
    max_length: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    watch: Watch | None = None,
) -> ChoiceScores:
    """The likelihood of every option.

    Args:
        model, params: a causal language model.
        tokenizer: the checkpoint's own.
        contexts: E texts.
        options: E lists of one text or more.
        delimiter: what stands between context and option, and is scored with the option.
        domain: context of the options' own likelihood ("" for none at all), such as "Answer:"; None leaves acc_pmi out.
        max_length, devices, watch: see eval.language.likelihood.

    Raises:
        InputError: no question, a question without an option, what log_likelihoods refuses.
    """
    if len(contexts) != len(options) or not contexts:
        raise InputError(f"{len(contexts)} contexts with {len(options)} lists of options; each needs its own")
    for number, those in enumerate(options):
        if not those:
            raise InputError(f"question {number} has no option")
    both = zip(contexts, options, strict=True)
    pairs = [(context, delimiter + option) for context, those in both for option in those]
    count = len(pairs)
    if domain is not None:
        pairs += [(domain, text) for _, text in pairs]
    found = log_likelihoods(model, params, tokenizer, pairs, max_length=max_length, devices=devices, watch=watch)
    ends = np.cumsum([len(those) for those in options])[:-1]

    def parted(values: Sequence[Any], kind: Any) -> tuple[np.ndarray, ...]:
        return tuple(np.split(np.array(values, kind), ends))

    asked, prior = found[:count], found[count:]
    lost = parted([one.lost > 0 for one in asked], bool)
    return ChoiceScores(
        log_probs=parted([one.log_prob for one in asked], np.float64),
        tokens=parted([one.tokens for one in asked], np.int64),
        bytes=parted([len(option.encode()) for those in options for option in those], np.int64),
        prior=parted([one.log_prob for one in prior], np.float64) if prior else None,
        lost=int(sum(part.any() for part in lost)),
    )
