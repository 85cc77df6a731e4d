"""One request and its answer over the wire: a body within bounds, a client that goes away, events as they come."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from zoo.serve.answers import encoded, event
from zoo.serve.limits import Refusal, too_late

T = TypeVar("T")
# What logs of servers write for a client that left before its answer.
GONE = 499
# Bytes beyond the bound that are read, and dropped, so that the client hears why.
PASSED_OVER = 8 * 1024**2


class Gone(Exception):
    """The client has closed its connection."""


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response of JSON."""
    return Response(encoded(value), status, headers, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """A response that says no."""
    return answer(refusal.body, refusal.status, refusal.headers)


async def body_of(request: Request, most: int) -> bytes:
    """The body.

    Raises:
        Refusal: 413 where it is longer than `most` bytes, whether its length was told or not.
        Gone: the client went away in the middle.
    """
    close = {"Connection": "close"}
    large = Refusal(413, f"the body has more than {most} bytes", code="request_too_large", headers=close)
    told = request.headers.get("content-length", "0")
    told = int(told[:18]) if told.isdigit() else 0
    if told > most and (told > most + PASSED_OVER or "expect" in request.headers):
        raise large
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                parts.clear()  # read to its end all the same: a client that is still writing reads no answer
                if size > most + PASSED_OVER:
                    raise large
            else:
                parts.append(part)
    except ClientDisconnect:
        raise Gone from None
    if size > most:
        raise large
    return b"".join(parts)


async def unless_gone(receive: Callable[[], Coroutine[Any, Any, Any]], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is given up where the client goes first: Gone.

    The body has been read, so that the next thing to be received is the end of the connection.
    """

    async def end():
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(end())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise Gone
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Events(Response):
    """Server-sent events, each as soon as it is there.

    Args:
        first, rest: encoded events; the first is there already, so that what fails before it has a status of its own.
        until: of the loop's clock; later the answer ends with an error event.
        seconds: that there were until then.
        over: called once at the end with what came of it: 200, the status of the error event, 499.
    """

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes, None], until: float, seconds: float, over: Callable[[int], None]
    ):
        plain = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy keeps events back
        super().__init__(media_type="text/event-stream", headers=plain)
        del self.headers["content-length"]
        self._first, self._rest, self._until, self._seconds, self._over = first, rest, until, seconds, over

    async def __call__(self, scope, receive, send) -> None:
        status = GONE
        try:
            await unless_gone(receive, self._send(send))
            status = 200
        except Gone:
            pass
        except Refusal as refusal:
            status = refusal.status
        finally:
            await self._rest.aclose()
            self._over(status)

    async def _send(self, send) -> None:
        async def out(part: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": more})

        try:
            async with asyncio.timeout_at(self._until):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await out(self._first)
                async for part in self._rest:
                    await out(part)
        except (TimeoutError, Refusal) as error:
            refusal = error if isinstance(error, Refusal) else too_late(self._seconds)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):  # a client that does not read has no use for it
                    await out(event(refusal.body), more=False)
            raise refusal from None
        await out(b"", more=False)
