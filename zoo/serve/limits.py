"""What one server takes on, and how it says no."""

import math
from dataclasses import dataclass
from typing import Any

from zoo.errors import InputError

DOCUMENTED = "invalid_request_error"


@dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        max_body: bytes of a request.
        max_length: tokens of a text, prompt and answer together; 0 for the model's positions.
        concurrency: texts at work at once.
        max_waiting: texts that wait for their turn; more are answered 429.
        timeout: seconds from a request's first byte of body to the last byte of its answer.
        grace: seconds that a stopping server gives to requests at work.
    """

    max_body: int = 1024**2
    max_length: int = 0
    concurrency: int = 8
    max_waiting: int = 64
    timeout: float = 300.0
    grace: float = 10.0

    def __post_init__(self):
        for name, least in (("max_body", 1), ("max_length", 0), ("concurrency", 1), ("max_waiting", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not 0 < self.timeout < math.inf:
            raise InputError(f"timeout is {self.timeout}; it must be a number of seconds above 0")
        if not 0 <= self.grace < math.inf:
            raise InputError(f"grace is {self.grace}; it must be a number of seconds, 0 or more")


class Refusal(Exception):
    """An answer other than 200, in OpenAI's shape.

    Attributes:
        status: of HTTP.
        error: message, type, param, code.
        headers: further ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = DOCUMENTED,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": code}
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        return {"error": self.error}


def too_long(message: str, param: str) -> Refusal:
    """A text does not fit."""
    return Refusal(400, message, param=param, code="context_length_exceeded")


def too_many(waiting: int) -> Refusal:
    """The queue is full."""
    message = f"{waiting} texts wait for their turn, and no more may; try again in a moment"
    return Refusal(429, message, code="rate_limit_exceeded", kind="requests", headers={"Retry-After": "1"})


def too_late(seconds: float) -> Refusal:
    """The time of a request is over. Clients are told not to send the same work again by themselves."""
    message = f"the request took more than the {seconds:g} seconds that it may; ask for fewer tokens"
    return Refusal(504, message, code="timeout", kind="server_error", headers={"x-should-retry": "false"})


def stopping() -> Refusal:
    """The server is being shut down."""
    return Refusal(503, "the server is stopping", code="stopping", kind="server_error", headers={"Retry-After": "5"})


def failed() -> Refusal:
    """A fault that is not the request's. What it was stands in the server's log, and is no client's to read."""
    return Refusal(500, "the server failed at this request; its log says how", kind="server_error")
