"""A certificate for any checkpoint, on its own weights: what a sound model must do, measured, each with its bound.

    tensors      finite; shapes and count as the architecture says
    tokenizer    ids within the vocabulary, special pieces where they should be, a text that comes back
    behaviour    sees what it claims to see; padding, packing, cache and scan change nothing; no look at the answer
    way back     exported and read again, every bit is the same

All in float32 with full products, whatever the config computes in. Differences are parts of the largest number compared
(or of 1 where that is larger). Bounds:

    0        The same compiled program ran twice, and what changed must be invisible: nothing may differ, not by a bit.
    drift    Other shapes or programs add the same products in another order. A sum of D terms is then off by about
             sqrt(D) half-units, 6e-8 sqrt(D), at each of 2 L writes to the stream, in random directions:
             6e-8 sqrt(2 L D). Twice that may be, or 1e-5 (1e-4 for 64 layers of 6144); a key too many or too few in
             the attention moves a trained model by 1e-2 and more.
    SEEN     1e-6: more than a repeated program moves (0), less than any token of weight does.
    ln V     Tokens drawn evenly, hidden from the model, cost ln V on average under any distribution that adds to 1
             (Gibbs). By luck the mean of n falls short by a / n with probability e^-a at most (Markov, for the product
             of V p has mean 1), so with a = 14 one sound model in a million fails. A model that sees the answer, or
             whose probabilities add to more than 1, falls far below.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from zoo.check import behaviour, files
from zoo.check.claims import Certificate, Claim, Measured, NotApplicable
from zoo.errors import InputError
from zoo.model import Model
from zoo.partition import path_string
from zoo.summary import count_parameters

__all__ = ["Certificate", "Claim", "certify"]


def certify(
    model: Model,
    params: dict[str, Any],
    tokenizer: Any = None,
    *,
    special_ids: dict[str, tuple[int, ...]] | None = None,
    fingerprint: str | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> Certificate:
    """Checks a model, claim by claim; what fails is reported and not raised.

    Args:
        model, params: as from zoo.load.
        tokenizer: the one that comes with them, or None.
        special_ids: role ("bos", "eos", "pad" ...) -> ids that the checkpoint's settings give it.
        fingerprint: of the tokenizer that the checkpoint was trained with, where that is known.
        seed: of the tokens that are drawn.
        progress: told the name of each claim before it is checked.
    """
    claims: list[Claim] = []
    numbers_are_sound = True
    with jax.default_matmul_precision("highest"):
        for name, measure in _tensor_claims(model, params):
            progress(name)
            claims.append(_claim(name, measure))
            numbers_are_sound = numbers_are_sound and claims[-1].passed is not False
        for name, measure in _file_claims(model, tokenizer, special_ids or {}, fingerprint):
            progress(name)
            claims.append(_claim(name, measure))
        for name, measure in _behaviour_claims(model, params, tokenizer, seed):
            progress(name)
            if numbers_are_sound:
                claims.append(_claim(name, measure))
            else:
                claims.append(Claim(name, None, "not checked: the tensors themselves are at fault"))
    return Certificate(tuple(claims))


def _claim(name: str, measure: Callable[[], Measured]) -> Claim:
    try:
        return Claim(name, *measure())
    except NotApplicable as reason:
        return Claim(name, None, str(reason))
    except InputError as error:
        return Claim(name, False, str(error))


def _tensor_claims(model, params) -> Iterator[tuple[str, Callable[[], Measured]]]:
    yield "tensors are finite", lambda: finite(params)
    yield "shapes and count are right", lambda: shapes_and_count(model, params)


def _file_claims(model, tokenizer, special_ids, fingerprint) -> Iterator[tuple[str, Callable[[], Measured]]]:
    yield "ids lie within the vocabulary", lambda: files.ids_in_range(tokenizer, model.config)
    yield "special pieces are there", lambda: files.special_pieces(tokenizer, model.config, special_ids)
    if fingerprint is not None:
        yield "tokenizer is the one trained with", lambda: files.same_tokenizer(tokenizer, fingerprint)
    yield "a text comes back", lambda: files.round_trip(tokenizer)


def _behaviour_claims(model, params, tokenizer, seed) -> Iterator[tuple[str, Callable[[], Measured]]]:
    runs = behaviour.Runs(model, params, tokenizer, seed)
    yield ("sees both ways" if model.config.visibility == "full" else "the future is hidden"), runs.visibility
    yield "padding changes nothing", runs.padding
    yield "packing changes nothing", runs.packing
    yield "cached = uncached", runs.cache
    yield "scan = loop", runs.scan
    yield "no look at the answer", runs.random_tokens
    yield "loss of a sentence", runs.sentence
    yield "exported and read again", lambda: files.there_and_back(model, params)


def finite(params: Any) -> Measured:
    """No NaN and no infinity in any tensor."""
    bad, count, total = [], 0, 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        wrong = int(jnp.sum(~jnp.isfinite(leaf)))
        count, total = count + 1, total + wrong
        if wrong:
            bad.append(f"{wrong:,} of {path_string(path)}")
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        return Measured(False, f"not finite: {', '.join(bad[:5])}{more}", "0", total, 0)
    return Measured(True, f"0 values not finite, in {count} tensors", "0", 0, 0)


def shapes_and_count(model: Model, params: Any) -> Measured:
    """Every parameter of the architecture and no other, in its shape; their number by the summary's formula."""

    def shapes(tree: Any) -> set[tuple[str, tuple[int, ...]]]:
        return {(path_string(path), tuple(leaf.shape)) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}

    wanted, found = shapes(model.init_shapes()), shapes(params)
    odd = sorted(wanted ^ found)
    if odd:
        text = f"{odd[0][0]} {list(odd[0][1])} and {len(odd) - 1} more do not match"
        return Measured(False, text, f"{len(wanted)} tensors")
    count = sum(math.prod(shape) for _, shape in found)
    formula = sum(count_parameters(model.config).values())
    return Measured(count == formula, f"{count:,} parameters", f"{formula:,}", count, formula)
