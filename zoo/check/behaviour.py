"""Claims about what a model does, by running it: few programs, each compiled once and run on what may not matter."""

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.check.claims import LUCK, SEEN, Measured, NotApplicable, difference, drift
from zoo.check.files import SENTENCE
from zoo.forward import Output
from zoo.model import Model
from zoo.stack import stack_layers, unstack_layers

LENGTH, LONGEST = 32, 160  # tokens of a row; rows grow to see past a window, to this length at most
SCORED = 256  # random tokens whose loss is taken
LEFT = 3  # padding before a row that is cached


class Runs:
    """One model, ready to be run; every row is of `length` tokens drawn evenly.

    Args:
        model, params: as from zoo.load; computed in float32 here.
        tokenizer: whose ids alone are drawn, and whose mask piece hides tokens; or None.
        seed: of the draws.
    """

    def __init__(self, model: Model, params: dict[str, Any], tokenizer: Any, seed: int):
        # A subclass of Model stays what it is.
        self.model = replace(model, config=model.config.replace(dtype="float32", remat="none"))
        self.params = params
        self.tokenizer = tokenizer
        config = model.config
        self.images = bool(config.image_size)
        windows = [layer.window for layer in config.layer_pattern if layer.window is not None]
        self.length = min(config.max_positions, LONGEST, max([LENGTH, *(window + 9 for window in windows)]))
        self.pieces = config.vocab_size if tokenizer is None else min(config.vocab_size, tokenizer.vocab_size)
        self.drift = drift(config.num_layers, config.embed_dim)
        self.draws = np.random.default_rng(seed)
        self.language_model = config.head in ("lm", "masked_lm")
        self.causal = config.visibility != "full"

    def draw(self, rows: int = 1, length: int | None = None) -> np.ndarray:
        """Tokens int32 [rows, length], each id as likely as any other; for a model of images one of noise."""
        if self.images:
            side = self.model.config.image_size
            return self.draws.standard_normal((1, side, side, self.model.config.channels)).astype(np.float32)
        return self.draws.integers(0, self.pieces, (rows, length or self.length)).astype(np.int32)

    @functools.cached_property
    def base(self) -> np.ndarray:
        return self.draw()

    @functools.cached_property
    def alone(self) -> Output:
        """The base row by itself: no mask, no segments, no cache."""
        return self.run(self.base)

    def run(self, tokens: np.ndarray) -> Output:
        return self.model.apply(self.params, tokens)

    def run_masked(self, tokens: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> Output:
        at = False if self.language_model else None
        return self.model.apply(self.params, tokens, padding_mask=mask, segment_ids=segments, logits_at=at)

    def visibility(self) -> Measured:
        """Changed from some place on, a row is what it was before that place (or, seen both ways, is not)."""
        if self.images:
            return self._image_seen()
        length = self._at_least(2)
        places = sorted({1, length // 2, length - 1})
        seen, here = [], []
        base = np.asarray(self.alone.hidden[0])
        for place in places:
            changed = self.base.copy()
            changed[0, place:] = (changed[0, place:] + 1 + self.draw(1, length - place)) % self.pieces
            if (changed[0, place] == self.base[0, place]).all():
                changed[0, place] = (changed[0, place] + 1) % self.pieces
            hidden = np.asarray(self.run(changed).hidden[0])
            before = slice(0, place) if self.causal else slice(place - 1, place)
            seen.append(difference(hidden[before], base[before]))
            here.append(difference(hidden[place], base[place]))
        if min(here) <= SEEN:
            return _seen(min(here), f"a changed token moves its own place by {min(here):.1e}")
        if self.causal:
            most = max(seen)
            return Measured(most == 0, f"later tokens move earlier places by {most:.1e}", "0", most, 0)
        return _seen(min(seen), f"the next token moves a place by {min(seen):.1e}")

    def _image_seen(self) -> Measured:
        """Other pixels in the last patch move every other token."""
        size = self.model.config.patch_size
        changed = self.base.copy()
        changed[:, -size:, -size:] += 1.0
        base, hidden = np.asarray(self.alone.hidden[0]), np.asarray(self.run(changed).hidden[0])
        seen = min(difference(hidden[at], base[at]) for at in range(len(base)))
        return _seen(seen, f"the last patch moves every token by {seen:.1e} or more")

    def padding(self) -> Measured:
        """Padded right and left, and over other padding, the real tokens keep their numbers."""
        length = self._at_least(1)
        rows = np.tile(self.draw(1, 2 * length), (2, 1))
        mask = np.zeros((2, 2 * length), np.int32)
        rows[0, :length], mask[0, :length] = self.base[0], 1
        rows[1, length:], mask[1, length:] = self.base[0], 1
        segments = np.zeros_like(mask)
        out = self.run_masked(rows, mask, segments)
        other = np.where(mask == 1, rows, (rows + 1) % self.pieces)
        again = self.run_masked(other, mask, segments)
        apart, leak = 0.0, 0.0
        for row, real in enumerate((slice(0, length), slice(length, None))):
            apart = max(apart, difference(out.hidden[row, real], self.alone.hidden[0]))
            leak = max(leak, difference(again.hidden[row, real], out.hidden[row, real]))
            for name in self._answers():
                apart = max(apart, difference(getattr(out, name)[row], getattr(self.alone, name)[0]))
        if leak > 0:
            return Measured(False, f"other tokens in the padding move real ones by {leak:.1e}", "0", leak, 0)
        return self._within(apart, "right, left and none")

    def packing(self) -> Measured:
        """Two documents in one row, told apart by segments, are each as if alone, whatever the other says."""
        length = self._at_least(1)
        second = self.draw()
        rows = np.concatenate([np.concatenate([self.base, second], 1), np.concatenate([second, self.base], 1)])
        mask = np.ones_like(rows)
        segments = np.repeat(np.array([[1, 2], [1, 2]], np.int32), length, axis=1)
        out = self.run_masked(rows, mask, segments)
        changed = rows.copy()
        changed[0, length:] = (changed[0, length:] + 1) % self.pieces
        changed[1, :length] = (changed[1, :length] + 1) % self.pieces
        again = self.run_masked(changed, mask, segments)
        apart, leak = 0.0, 0.0
        for row, own in enumerate((slice(0, length), slice(length, None))):
            apart = max(apart, difference(out.hidden[row, own], self.alone.hidden[0]))
            leak = max(leak, difference(again.hidden[row, own], out.hidden[row, own]))
        if leak > 0:
            return Measured(False, f"one document moves the other by {leak:.1e}", "0", leak, 0)
        return self._within(apart, "packed and alone")

    def cache(self) -> Measured:
        """Prefilled with 1, half and all tokens and then fed one by one, left-padded too: as the whole row at once."""
        config = self.model.config
        if not self.causal or config.head != "lm":
            raise NotApplicable("does not generate: " + ("sees both ways" if not self.causal else "no language head"))
        length = self._at_least(2)
        capacity = min(length + LEFT, config.max_positions)
        apart = 0.0
        whole = np.asarray(self.alone.logits[0])
        for first in sorted({1, length // 2, length}):
            pad = min(LEFT, first - 1, capacity - 1)
            late = np.concatenate([self.draw(1, LEFT)[0, :pad], self.base[0, : length - pad]])
            rows = np.stack([self.base[0], late])
            mask = np.ones((2, length), np.int32)
            mask[1, :pad] = 0
            cache = self.model.init_cache(2, capacity)
            out = self.model.apply(self.params, rows[:, :first], padding_mask=mask[:, :first], cache=cache)
            pieces = [np.asarray(out.logits)]
            for at in range(first, length):
                now = slice(at, at + 1)
                out = self.model.apply(self.params, rows[:, now], padding_mask=mask[:, now], cache=out.cache)
                pieces.append(np.asarray(out.logits))
            logits = np.concatenate(pieces, axis=1)
            apart = max(apart, difference(logits[0], whole), difference(logits[1, pad:], whole[: length - pad]))
        return self._within(apart, f"logits after a prefill of 1, {length // 2} and {length}")

    def scan(self) -> Measured:
        """The same weights, stacked under lax.scan or as a loop of layers, give the same stream."""
        config = self.model.config
        if config.num_layers == 1:
            raise NotApplicable("has one layer")
        other = replace(self.model, config=config.replace(scan=not config.scan))
        params = unstack_layers(self.params, config) if config.scan else stack_layers(self.params, config)
        return self._within(difference(other.apply(params, self.base).hidden, self.alone.hidden), "streams")

    def random_tokens(self) -> Measured:
        """Tokens drawn evenly and hidden from the model cost no less than ln V."""
        if not self.language_model:
            raise NotApplicable(f'has no vocabulary logits: head "{self.model.config.head}"')
        length = self._at_least(2)
        losses: list[np.ndarray] = []
        while sum(map(len, losses)) < SCORED:
            tokens = self.draw()
            if self.causal:
                shown, at, answers = tokens, np.arange(length - 1), tokens[0, 1:]
            else:
                at = np.arange(0, length, 2)
                shown, answers = tokens.copy(), tokens[0, at]
                shown[0, at] = self._hider()
            losses.append(_losses(self.run(shown).logits[0, at], answers))
        found = float(np.concatenate(losses).mean())
        count = sum(map(len, losses))
        even = math.log(self.pieces)
        least = even - LUCK / count
        bound = f"ln V = {even:.2f}, less {LUCK / count:.2f} for luck"
        return Measured(bool(found >= least), f"{found:.2f} nats a token over {count}", bound, found, least)

    def sentence(self) -> Measured:
        """Told and not judged: what an English sentence costs, and an even guess."""
        if self.model.config.head != "lm" or not self.causal or self.tokenizer is None:
            raise NotApplicable("needs a causal language model with its tokenizer")
        ids = self.tokenizer.encode(SENTENCE)
        if self.tokenizer.adds_bos:
            ids = [self.tokenizer.bos_id, *ids]
        ids = ids[: self.length]
        if len(ids) < 2 or max(ids) >= self.model.config.vocab_size:
            raise NotApplicable("the sentence cannot be written in this vocabulary")
        tokens = np.array([ids + [0] * (self.length - len(ids))], np.int32)
        loss = _losses(self.run(tokens).logits[0, : len(ids) - 1], np.array(ids[1:])).mean()
        guess = math.log(self.model.config.vocab_size)
        doubt = "" if loss < guess else "; no better: is it trained, on English, with this tokenizer?"
        return Measured(None, f"{loss:.2f} nats a token (an even guess: {guess:.2f}{doubt})", "", float(loss))

    def _within(self, measured: float, what: str) -> Measured:
        """The verdict on a difference between two programs."""
        bound = f"{self.drift:.0e}"
        return Measured(measured <= self.drift, f"{what} differ by {measured:.1e}", bound, measured, self.drift)

    def _hider(self) -> int:
        mask = None if self.tokenizer is None else self.tokenizer.mask_id
        return 0 if mask is None or mask >= self.model.config.vocab_size else mask

    def _answers(self) -> tuple[str, ...]:
        """Fields of an Output with one answer a row."""
        names = ("pooled", "next_sentence") + (("logits",) if self.model.config.head == "classifier" else ())
        return tuple(name for name in names if getattr(self.alone, name) is not None)

    def _at_least(self, least: int) -> int:
        if self.images:
            raise NotApplicable("reads images")
        if self.length < least:
            raise NotApplicable(f"needs rows of {least} tokens; the model holds {self.length}")
        return self.length


def _seen(moved: float, text: str) -> Measured:
    """The verdict on what must move."""
    return Measured(moved > SEEN, text, f"more than {SEEN:.0e}", moved, SEEN)


def _losses(logits: jax.Array, answers: np.ndarray) -> np.ndarray:
    """-log p of each answer, float64 [n], from logits [n, V]."""
    chosen = jnp.take_along_axis(logits.astype(jnp.float32), jnp.asarray(answers)[:, None], axis=-1)[:, 0]
    return np.asarray(jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1) - chosen, np.float64)
