"""Texts for a model that reads whole ones: framed as its family expects, then batches of like length, of few shapes.

    sees both ways    [CLS] a [SEP]; <s> a </s> where the vocabulary has no such pieces
    causal            a, with BOS before it where the tokenizer's settings say so
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.blockwise import BLOCK
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.generation.prompts import check_tokenizer
from zoo.generation.text_batch import longest_text
from zoo.tokenizer import Tokenizer, whole_ids

# Of 16, 32, 64 ... tokens, so that a program is compiled a few times, whatever the texts.
SHORTEST = 16
# Numbers in the largest array of a pass (128 MB of float32): of long texts fewer go together.
LARGEST = 2**25


@dataclass(frozen=True)
class Batch:
    """Rows of like length; arrays of [B, T], int32.

    Attributes:
        order: which texts the first rows are; rows beyond these are padding.
        tokens: ids, then padding.
        mask: 1 on real tokens.
    """

    order: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray


def texts_given(texts: Any) -> list[Any]:
    """The texts as a list; one text is a list of one. Raises InputError where there is none."""
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, bytes | dict) or not hasattr(texts, "__iter__"):
        raise InputError(f"texts are a {type(texts).__name__}; give a list of texts")
    found = list(texts)
    if not found:
        raise InputError("there are no texts")
    return found


def check_fit(config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raises InputError where texts cannot become rows of this model."""
    if config.image_size:
        raise InputError("texts are given, and this model reads images")
    check_tokenizer(tokenizer, config.vocab_size)


def framed(
    texts: Sequence[Any], tokenizer: Tokenizer, config: ModelConfig, max_length: int | None = None
) -> tuple[list[list[int]], int]:
    """Ids of each text with the special pieces around them that the model expects.

    Args:
        texts: E of them: str, or lists of ids without special pieces (those at the ends are not added again).
        tokenizer: the model's.
        config: of the model.
        max_length: most ids of a row; None for the model's positions.

    Returns:
        E rows, and how many of them lost ids from their end.

    Raises:
        InputError: a text without any token, ids outside the vocabulary, a max_length that the model or the special
            pieces do not allow.
    """
    check_fit(config, tokenizer)
    longest = longest_text(config)
    limit = longest if max_length is None else max_length
    if not 1 <= limit <= longest:
        raise InputError(f"max_length is {limit}; this model reads 1 to {longest} tokens")
    plain = [text for text in texts if isinstance(text, str)]
    encoded = iter(tokenizer.encode_batch(plain))
    rows, cut = [], 0
    for number, text in enumerate(texts):
        where = f"text {number} of {len(texts)}"
        ids = next(encoded) if isinstance(text, str) else _given_ids(text, where)
        if not ids:
            raise InputError(f"{where} is empty: there is no token in it")
        worst = max(ids, key=lambda token: (token < 0, token))
        if not 0 <= worst < config.vocab_size:
            raise InputError(f"{where} holds id {worst}, outside the vocabulary: 0 to {config.vocab_size - 1}")
        whole = _frame(ids, tokenizer, config, None)
        if limit <= len(whole) - len(ids):
            least = len(whole) - len(ids) + 1
            raise InputError(f"max_length is {limit}; beside the special pieces no token fits: take {least} or more")
        cut += len(whole) > limit
        rows.append(whole if len(whole) <= limit else _frame(ids, tokenizer, config, limit))
    return rows, cut


def _given_ids(text: Any, where: str) -> list[int]:
    try:
        return whole_ids(text)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _frame(ids: list[int], tokenizer: Tokenizer, config: ModelConfig, limit: int | None) -> list[int]:
    if config.visibility != "full":
        begins = tokenizer.adds_bos and ids[:1] != [tokenizer.bos_id]
        return ([tokenizer.bos_id, *ids] if begins else ids)[:limit]
    bert = tokenizer.cls_id is not None and tokenizer.sep_id is not None
    if not bert and tokenizer.bos_id is None and tokenizer.eos_id is None:
        return ids[:limit]
    return tokenizer.frame(ids, style="bert" if bert else "gpt", max_length=limit)[0]


def in_blocks(config: ModelConfig, width: int) -> ModelConfig:
    """The config for rows of so many tokens: where one row's attention scores pass LARGEST, they are never formed."""
    if config.attention_kernel == "auto" and config.num_heads * width * width > LARGEST:
        return config.replace(attention_kernel="blockwise")
    return config


def rows_within(config: ModelConfig, width: int, most: int) -> int:
    """Rows of `width` tokens that a pass takes at once: `most`, or fewer, 2^n, so that no array passes LARGEST."""
    whole = in_blocks(config, width).attention_kernel in ("auto", "xla", "einsum")
    scores = config.num_heads * (width if whole else min(width, BLOCK)) ** 2
    fit = LARGEST // max(scores, width * max(2 * config.mlp_dim, config.embed_dim))
    return most if fit >= most else 1 << max(fit.bit_length() - 1, 0)


def batches(
    rows: Sequence[Sequence[int]],
    batch_size: int,
    longest: int,
    pad_id: int | None = 0,
    config: ModelConfig | None = None,
) -> Iterator[Batch]:
    """Rows of like length together, shortest first, padded on the right.

    Widths are 16, 32, 64 ... (at most `longest`), and the last rows of all, where they fill no batch, make one of 1, 2,
    4 ... rows: what a text is computed with does not change its numbers beyond rounding. With a `config`, rows too long
    for so many at once go fewer at a time (rows_within).
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be 1 or more")
    lengths = np.array([len(row) for row in rows], np.int64)
    order = np.argsort(lengths, kind="stable")

    def width_of(part):
        return min(longest, max(SHORTEST, 1 << int(lengths[part].max() - 1).bit_length()))

    start = 0
    while start < len(order):
        part = order[start : start + batch_size]
        while config is not None and len(part) > rows_within(config, width_of(part), batch_size):
            part = part[:-1]
        start += len(part)
        height, width = min(batch_size, 1 << (len(part) - 1).bit_length()), width_of(part)
        tokens = np.full((height, width), pad_id or 0, np.int32)
        mask = np.zeros((height, width), np.int32)
        mask[len(part) :, 0] = 1  # rows of padding alone have one token to look at
        for place, number in enumerate(part):
            tokens[place, : lengths[number]] = rows[number]
            mask[place, : lengths[number]] = 1
        yield Batch(part, tokens, mask)
