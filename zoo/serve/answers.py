"""Answers as OpenAI shapes them: completions, conversations, embeddings, their events, and the models."""

import base64
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from zoo.serve.jobs import Said, Token

# JSON has no infinity; OpenAI's smallest.
LEAST = -9999.0


def encoded(value: Any) -> bytes:
    """JSON in UTF-8; half of a surrogate pair, which a request may bring, becomes "?".

    Written piece by piece: one call for all of a long answer would keep every other thread from the interpreter.
    """
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict) and any(isinstance(one, dict | list) for one in value.values()):
        for number, (name, one) in enumerate(value.items()):
            yield (b"," if number else b"{") + _dumped(name) + b":"
            yield from _pieces(one)
        yield b"}"
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        for number, one in enumerate(value):
            yield b"," if number else b"["
            yield from _pieces(one)
        yield b"]"
    else:
        yield _dumped(value)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def models(name: str, since: int) -> dict[str, Any]:
    """The one model, as a list."""
    return {"object": "list", "data": [model(name, since)]}


def model(name: str, since: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": since, "owned_by": "oneblock"}


def usage(prompt: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def embeddings(name: str, vectors: np.ndarray, as_base64: bool, tokens: int) -> dict[str, Any]:
    """Vectors [E, D], as lists of numbers or base64 of little-endian float32."""
    data = []
    for number, vector in enumerate(vectors):
        value = base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector.tolist()
        data.append({"object": "embedding", "index": number, "embedding": value})
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": name, "usage": counts}


class Completion:
    """Shapes of POST /v1/completions.

    Args:
        name: of the model.
        log_probs: how many of the likeliest are shown; None without log-probabilities.
    """

    object, piece_object, prefix = "text_completion", "text_completion", "cmpl-"

    def __init__(self, name: str, log_probs: int | None):
        self._log_probs = log_probs
        self._head = {"id": self.prefix + secrets.token_hex(12), "created": int(time.time()), "model": name}

    def whole(self, pieces: Sequence[Sequence[Said]], counts: dict[str, int], echoes: Sequence[str]) -> dict[str, Any]:
        """The answer: pieces and the prompt's text (or "") of each choice."""
        choices = []
        for number, (said, echo) in enumerate(zip(pieces, echoes, strict=True)):
            tokens = [*said[-1].prompt, *(token for piece in said for token in piece.tokens)]
            text = echo + "".join(piece.text for piece in said)
            choices.append(self._choice(number, text, tokens, said[-1].finish, 0))
        return {**self._head, "object": self.object, "choices": choices, "usage": counts}

    def opening(self, rows: int, echoes: Sequence[str]) -> Iterable[dict[str, Any]]:
        """Events before the first piece."""
        for number in range(rows):
            if echoes[number]:
                yield self._event(self._choice(number, echoes[number], [], None, 0))

    def piece(self, said: Said, before: int) -> dict[str, Any]:
        """One event; `before`: characters of the text that are out."""
        return self._event(self._choice(said.row, said.text, list(said.tokens), said.finish or None, before))

    def last(self, counts: dict[str, int]) -> dict[str, Any]:
        """The event of counts."""
        return {**self._head, "object": self.piece_object, "choices": [], "usage": counts}

    def _event(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "object": self.piece_object, "choices": [choice]}

    def _choice(self, number: int, text: str, tokens: list[Token], finish: str | None, start: int) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": self._shown(tokens, start), "finish_reason": finish}

    def _shown(self, tokens: list[Token], start: int) -> dict[str, Any] | None:
        if self._log_probs is None:
            return None
        offsets = []
        for token in tokens:
            offsets.append(start)
            start += len(token.text)
        tops = [_likeliest(token) for token in tokens] if self._log_probs else None
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [_finite(token.log_prob) for token in tokens],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


class Conversation(Completion):
    """Shapes of POST /v1/chat/completions."""

    object, piece_object, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def opening(self, rows: int, echoes: Sequence[str]) -> Iterable[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        for number in range(rows):
            yield self._event({"index": number, "delta": delta, "logprobs": None, "finish_reason": None})

    def piece(self, said: Said, before: int) -> dict[str, Any]:
        delta = {"content": said.text} if said.text or not said.finish else {}
        shown = self._shown(list(said.tokens), before)
        return self._event({"index": said.row, "delta": delta, "logprobs": shown, "finish_reason": said.finish or None})

    def _choice(self, number: int, text: str, tokens: list[Token], finish: str | None, start: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {
            "index": number,
            "message": message,
            "logprobs": self._shown(tokens, start),
            "finish_reason": finish,
        }

    def _shown(self, tokens: list[Token], start: int) -> dict[str, Any] | None:
        if self._log_probs is None:
            return None
        content = [
            {
                **_spelled(token.text, token.log_prob),
                "top_logprobs": [_spelled(text, log_prob) for text, log_prob in token.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def _spelled(text: str, log_prob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": _finite(log_prob), "bytes": list(text.encode("utf-8", "replace"))}


def _likeliest(token: Token) -> dict[str, float | None] | None:
    """By text; of two that spell alike the likelier, and the token itself wherever it stands."""
    if token.log_prob is None:
        return None
    found = {token.text: _finite(token.log_prob)}
    for text, log_prob in token.top:
        found.setdefault(text, _finite(log_prob))
    return found


def _finite(log_prob: float | None) -> float | None:
    return log_prob if log_prob is None else max(float(log_prob), LEAST)
