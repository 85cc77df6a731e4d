"""Perplexity of texts: by strided windows under a causal model, by masking one token at a time under a masked one.

    nats            = - sum over the scored tokens of log p(token | its context)
    perplexity      = exp(nats / tokens)
    bits per byte   = nats / ln 2 / UTF-8 bytes of the text: what vocabularies of different sizes can be compared by
    per word        = exp(nats / words), words being what white space parts

Causal. A text is cut into windows of `length` tokens that end `stride` tokens apart. Each token is scored once, in the
first window that holds it, so that beyond the first window it sees length - stride tokens or more (a first window's
tokens see all that there is). With stride = length, windows are blocks that know nothing of each other, but that
without a BOS the first token of a block is predicted from the last one of the block before. Where the tokenizer's
settings say that texts begin with BOS, every window does.

Masked. Pseudo-perplexity (Salazar et al. 2020, Masked Language Model Scoring, ACL, arXiv:1910.14659): each token is
masked by itself and predicted from both sides, a forward pass a token. That is no probability of the text, so its bits
compare masked models with each other alone.

Every token is paid for, the first one too (from BOS, or where there is none from the end-of-text piece, which in
training stands before a document), so that bits per byte are those of the whole text; `score_first=False` takes the
first token as given instead.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from eval.language.likelihood import beginning, require_fitting, score_causal
from eval.language.token_scores import Query, Watch, token_scores
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import Tokenizer

LONGEST = 1024


@dataclass(frozen=True)
class Perplexity:
    """What a model makes of some texts.

    Attributes:
        nats: - log p of all scored tokens.
        tokens, bytes, words: of what is scored.
        texts: how many had a token to score.
        unknown: tokens that stand for what the vocabulary cannot write: their price is not the text's.
        lossless: whether the tokens give each text back; else bits per byte leave something out.
        pseudo: a masked model's.
        length, stride: tokens of a window, and from one to the next.
    """

    nats: float
    tokens: int
    bytes: int
    words: int
    texts: int
    unknown: int
    lossless: bool
    pseudo: bool
    length: int
    stride: int

    @property
    def per_token(self) -> float:
        return _exp(self.nats / self.tokens)

    @property
    def per_word(self) -> float:
        return _exp(self.nats / self.words) if self.words else math.inf

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes if self.bytes else math.inf

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        ratios = {name: getattr(self, name) for name in ("per_token", "per_word", "bits_per_byte")}
        return {"perplexity": ratios.pop("per_token"), **ratios, **asdict(self)}


def measure(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    length: int | None = None,
    stride: int | None = None,
    score_first: bool = True,
    batch_tokens: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    watch: Watch | None = None,
) -> Perplexity:
    """Perplexity of texts, each by itself, summed over all.

    Args:
        model, params: a causal or a masked language model.
        tokenizer: the checkpoint's own.
        texts: one or more; those without a token count for nothing.
        length: tokens of a window, special pieces included; None for the model's positions, 1,024 at most.
        stride: tokens from one window to the next; None for half a causal window and a whole masked one.
        score_first: False takes each text's first token as given.
        batch_tokens, devices, watch: see eval.language.token_scores.

    Raises:
        InputError: another kind of model, no token to score, a window that does not fit.
    """
    pseudo = model.config.visibility == "full"
    require_fitting(model, tokenizer)
    length, stride = window(model, length, stride)
    queries, scored, size, words, unknown, kept = [], 0, 0, 0, 0, 0
    lossless = True
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        given = 0 if score_first else 1
        if len(ids) <= given:
            continue
        rows = masked_rows if pseudo else causal_rows
        queries += rows(tokenizer, ids, length, stride, given)
        kept, scored, words = kept + 1, scored + len(ids) - given, words + len(text.split())
        size += len(text.encode()) - (len(tokenizer.decode(ids[:1]).encode()) if given else 0)
        unknown += sum(i == tokenizer.unk_id for i in ids)
        lossless = lossless and tokenizer.decode(ids) == text
    if not kept:
        raise InputError(f"no token to score in {len(texts)} texts")
    score = token_scores if pseudo else score_causal
    options = {"vocab_size": tokenizer.vocab_size, "batch_tokens": batch_tokens, "devices": devices, "watch": watch}
    nats = -math.fsum(float(value) for found in score(model, params, queries, **options) for value in found.log_probs)
    return Perplexity(nats, scored, size, words, kept, unknown, lossless, pseudo, length, stride)


def window(model: Model, length: int | None, stride: int | None) -> tuple[int, int]:
    """`length` and `stride` with their defaults, checked against the model."""
    most, pseudo = model.config.max_positions, model.config.visibility == "full"
    length = min(most, LONGEST) if length is None else length
    least, room = (3, length - 2) if pseudo else (2, length)
    if not least <= length <= most:
        raise InputError(f"length is {length}; this model takes windows of {least} to {most} tokens")
    if stride is None:
        stride = room if pseudo else max(1, length // 2)
    if not 1 <= stride <= room:
        raise InputError(f"stride is {stride}; windows of {length} tokens move by 1 to {room}")
    return length, stride


def ends(count: int, first: int, stride: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of what each window scores: 0 to `first`, then `stride` more each time, up to `count`."""
    begin, end = 0, min(first, count)
    while begin < count:
        yield begin, end
        begin, end = end, min(end + stride, count)


def causal_rows(tokenizer: Tokenizer, ids: Sequence[int], length: int, stride: int, given: int = 0) -> list[Query]:
    """The windows of one text; see the head of this file.

    Args:
        tokenizer: says what a text begins with.
        ids: of the text.
        length, stride: of `window`.
        given: how many tokens at the text's beginning are not scored.
    """
    head = beginning(tokenizer, bare=not given)
    stream = [*head, *ids]
    first = len(head) + given  # the first token that is a label
    rows = []
    for begin, end in ends(len(stream) - first, length + 1 - first, stride):
        begin, end = begin + first, end + first
        low = max(0, end - 1 - length)
        inputs = stream[low : end - 1]
        if low and tokenizer.adds_bos:
            inputs = [*head, *inputs[1:]]
        places = range(begin - 1 - low, end - 1 - low)
        rows.append(Query(inputs, tuple(places), tuple(stream[begin:end])))
    return rows


def masked_rows(tokenizer: Tokenizer, ids: Sequence[int], length: int, stride: int, given: int = 0) -> list[Query]:
    """A row for each scored token of one text, in which that token is masked; arguments as in `causal_rows`."""
    if tokenizer.mask_id is None:
        raise InputError("this tokenizer has no MASK piece, which a masked model's perplexity needs")
    rows = []
    for begin, end in ends(len(ids) - given, length - 2 - given, stride):
        begin, end = begin + given, end + given
        low = max(0, end - (length - 2))
        framed, _ = tokenizer.frame(ids[low:end], style="bert")
        before = len(framed) - (end - low) - 1  # [CLS]
        for at in range(begin, end):
            place = at - low + before
            rows.append(Query([*framed[:place], tokenizer.mask_id, *framed[place + 1 :]], (place,), (ids[at],)))
    return rows


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
