"""The routes: what is asked, put to the engine, answered."""

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zoo.errors import InputError, nearest
from zoo.generation.prompts import prompt_rows
from zoo.generation.sampling import Sampling
from zoo.serve import answers, asked
from zoo.serve.engine import Engine
from zoo.serve.exchange import GONE, Events, Gone, answer, body_of, refused, unless_gone
from zoo.serve.fields import parse
from zoo.serve.jobs import Job, Said, TextJob, VectorJob
from zoo.serve.limits import Refusal, failed, too_late, too_long
from zoo.serve.meters import Meters
from zoo.serve.served import Served
from zoo.text_rows import framed

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
# Threads that read requests, turn texts to ids and write answers; that may take seconds, and the event loop must not.
READERS = 4


class Service:
    """One model behind the routes.

    Args:
        served: the model, and the limits of requests.
    """

    def __init__(self, served: Served):
        self.served, self.meters = served, Meters()
        self.engine = Engine(served, self.meters)
        self._since = int(time.time())
        self._readers = ThreadPoolExecutor(READERS, "oneblock-reader")

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = {
            ("GET", "/health"): self.health,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/v1/models"): self.models,
            ("GET", "/v1/models/{name:path}"): self.one_model,
            ("POST", COMPLETIONS): self.completions,
            ("POST", CHAT): self.chat,
            ("POST", EMBEDDINGS): self.embeddings,
        }
        made = [Route(path, self._answered(path, work), methods=[method]) for (method, path), work in routes.items()]
        paths = sorted({path for _, path in routes if "{" not in path})
        return Starlette(routes=made, exception_handlers={HTTPException: functools.partial(self._no_route, paths)})

    def warm(self) -> None:
        """Compiles what a short request of default settings needs, before the first one waits for it."""
        if self.served.encodes:
            rows, _ = framed([[0]], self.served.tokenizer, self.served.model.config)
            self.engine.warm(VectorJob(None, rows))
        elif self.served.longest > 1:
            wanted = asked.TextsAsked(sampling=Sampling(temperature=1.0, vocab_limit=self.served.limit))
            most = self._room(1, None if self.served.tokenizer.chat_template else min(16, self.served.longest - 1), "")
            self.engine.warm(TextJob(None, wanted, [[0]], [most], 0))

    def close(self) -> None:
        """Ends the threads."""
        self.engine.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    # ---- routes -----------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        sound = self.engine.sound
        found = {"model": self.served.name, "running": self.engine.running, "waiting": self.engine.waiting}
        return answer({"status": "ok" if sound else "stopping"} | found, 200 if sound else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self.meters.text(), media_type=self.meters.content_type)

    async def models(self, request: Request) -> Response:
        return answer(answers.models(self.served.name, self._since))

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self.served.name:
            raise Refusal(404, f'there is no model "{name:.80}" here', param="model", code="model_not_found")
        return answer(answers.model(self.served.name, self._since))

    async def completions(self, request: Request) -> Response:
        self._require(not self.served.encodes)
        until = self._deadline()
        body, limit = await self._body(request, until), self.served.limit
        wanted = await self._aside(until, None, lambda: asked.completion(parse(body), self.served.name, limit))
        self.engine.require_room(len(wanted.prompts) * wanted.samples)
        prompts = await self._aside(
            until, "prompt", lambda: prompt_rows(list(wanted.prompts), None, self.served.tokenizer, self.served.limit)
        )
        shape = answers.Completion(self.served.name, wanted.top)
        return await self._texts(request, wanted, prompts, "prompt", shape, until)

    async def chat(self, request: Request) -> Response:
        self._require(not self.served.encodes)
        until = self._deadline()
        body, limit = await self._body(request, until), self.served.limit
        wanted = await self._aside(until, None, lambda: asked.conversation(parse(body), self.served.name, limit))
        self.engine.require_room(wanted.samples)
        ids = await self._aside(until, "messages", lambda: self.served.tokenizer.chat(list(wanted.messages)))
        if not ids:
            raise Refusal(400, "the chat template makes nothing of these messages", param="messages")
        shape = answers.Conversation(self.served.name, wanted.top)
        return await self._texts(request, wanted, [ids], "messages", shape, until)

    async def embeddings(self, request: Request) -> Response:
        self._require(self.served.encodes)
        until = self._deadline()
        body = await self._body(request, until)
        wanted = await self._aside(until, None, lambda: asked.embeddings(parse(body), self.served.name))
        width = self.served.model.config.hidden_width
        if wanted.dimensions not in (None, width):
            raise Refusal(400, f'"dimensions" is {wanted.dimensions}; vectors here have {width}', param="dimensions")
        config, most = self.served.model.config, self.served.longest
        words, inputs = self.served.tokenizer, wanted.inputs
        rows, long = await self._aside(until, "input", lambda: framed(inputs, words, config, most))
        if long:
            what = f"{long} of {len(rows)} texts exceed" if len(rows) > 1 else "the text exceeds"
            raise too_long(f"{what} the {most} tokens that are read here, special pieces included", "input")
        job = VectorJob(asyncio.get_running_loop(), rows)
        found = await self._at_work(request, job, job.events.get(), until)
        if isinstance(found, Refusal):
            raise found
        tokens = sum(map(len, rows))
        self.meters.prompt.inc(tokens)
        shaped = functools.partial(answers.embeddings, self.served.name, found.values, wanted.base64, tokens)
        return await self._aside(until, None, lambda: answer(shaped()))

    # ---- texts ------------------------------------------------------------------------------------------------------

    async def _texts(
        self,
        request: Request,
        wanted: asked.TextsAsked,
        prompts: list[list[int]],
        param: str,
        shape: answers.Completion,
        until: float,
    ) -> Response:
        longest = self.served.longest
        for number, ids in enumerate(prompts):
            if len(ids) + (wanted.max_tokens != 0) > longest:
                which = f"prompt {number} of {len(prompts)}" if len(prompts) > 1 else "the prompt"
                message = f"{which} has {len(ids)} tokens; a text has at most {longest} here, prompt and answer"
                raise too_long(message, param)
        most = [self._room(len(ids), wanted.max_tokens, param) for ids in prompts]
        seed = secrets.randbits(32) if wanted.seed is None else wanted.seed
        job = TextJob(asyncio.get_running_loop(), wanted, prompts, most, seed)
        echoes = await self._aside(until, None, lambda: self._echoes(wanted, prompts))
        self.meters.prompt.inc(sum(map(len, prompts)))
        if not wanted.stream:
            pieces = await self._at_work(request, job, _collected(job), until)
            counts = self._usage(prompts, (said[-1].count for said in pieces))
            return await self._aside(until, None, lambda: answer(shape.whole(pieces, counts, echoes)))
        events = self._events(job, wanted, prompts, shape, echoes)
        first = await self._at_work(request, job, anext(events), until, whole=False)

        def over(status: int) -> None:
            self.engine.cancel(job)
            request.state.over(status)

        return Events(first, events, until, self.served.limits.timeout, over)

    async def _events(
        self,
        job: TextJob,
        wanted: asked.TextsAsked,
        prompts: list[list[int]],
        shape: answers.Completion,
        echoes: list[str],
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events; the first when the first token is there."""
        lengths, counts = [len(echo) for echo in echoes], [0] * len(job.rows)
        begun = False
        async for said in _pieces(job):
            opening = b"" if begun else b"".join(map(answers.event, shape.opening(len(job.rows), echoes)))
            begun = True
            yield opening + answers.event(shape.piece(said, lengths[said.row]))
            lengths[said.row] += len(said.text)
            counts[said.row] = said.count
        if wanted.with_usage:
            yield answers.event(shape.last(self._usage(prompts, counts)))
        yield answers.DONE

    def _room(self, length: int, most: int | None, param: str) -> int:
        """New tokens for a prompt of this length."""
        longest = self.served.longest
        if most is None:  # what fits; where that is much, a little less, so that prompts of like length share programs
            rounded = longest - -(-length // 32) * 32
            return rounded if rounded > 0 else longest - length
        if length + most > longest:
            raise too_long(
                f"a prompt of {length} tokens and {most} new ones exceed the {longest} that a text has here; ask "
                f"for at most {longest - length}",
                param,
            )
        return most

    def _echoes(self, wanted: asked.TextsAsked, prompts: list[list[int]]) -> list[str]:
        if not wanted.echo:
            return [""] * len(prompts) * wanted.samples
        texts = [
            given if isinstance(given, str) else self.served.tokenizer.decode(ids)
            for given, ids in zip(wanted.prompts, prompts, strict=True)
        ]
        return [text for text in texts for _ in range(wanted.samples)]

    def _usage(self, prompts: list[list[int]], counts: Any) -> dict[str, int]:
        return answers.usage(sum(map(len, prompts)), sum(counts))

    # ---- shared by all ----------------------------------------------------------------------------------------------

    def _answered(self, path: str, work: Callable[[Request], Awaitable[Response]]):
        """A route: whatever happens is one answer in OpenAI's shape, and is counted."""

        async def route(request: Request) -> Response:
            began = time.perf_counter()

            def over(status: int) -> None:
                self.meters.requests.labels(path, str(status)).inc()
                self.meters.seconds.labels(path).observe(time.perf_counter() - began)

            request.state.over = over
            try:
                response = await work(request)
            except Gone:
                response = Response(status_code=GONE)
            except Refusal as refusal:
                response = refused(refusal)
            except InputError as error:
                response = refused(Refusal(400, str(error)))
            except Exception:
                logging.getLogger("oneblock.serve").exception("a request failed")
                response = refused(failed())
            if not isinstance(response, Events):  # which says itself what came of it
                over(response.status_code)
            return response

        return route

    async def _no_route(self, paths: list[str], request: Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        self.meters.requests.labels("other", str(error.status_code)).inc()
        if error.status_code == 405:
            message = f'{request.method} is not for "{path:.80}"'
        else:
            message = f'there is no route "{path:.80}"{nearest(path, paths)}'
        return refused(Refusal(error.status_code, message, code="unknown_url", headers=dict(error.headers or {})))

    def _require(self, served: bool) -> None:
        if not served:
            encoder = f"{self.served.name} is an encoder, which reads texts and makes none: ask {EMBEDDINGS}"
            decoder = f"{self.served.name} is a decoder, which continues texts and embeds none: ask {COMPLETIONS}"
            raise Refusal(400, encoder if self.served.encodes else decoder, param="model", code="unsupported_model")

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.served.limits.timeout

    async def _body(self, request: Request, until: float) -> bytes:
        try:
            async with asyncio.timeout_at(until):
                return await body_of(request, self.served.limits.max_body)
        except TimeoutError:
            message = f"the body did not come within {self.served.limits.timeout:g} seconds"
            raise Refusal(408, message, code="timeout", headers={"Connection": "close"}) from None

    async def _aside(self, until: float, param: str | None, work: Callable[[], Any]) -> Any:
        """The result of something long, beside the event loop; `param` is what a fault of its input is of."""
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.get_running_loop().run_in_executor(self._readers, work)
        except TimeoutError:
            raise too_late(self.served.limits.timeout) from None
        except InputError as error:
            raise Refusal(400, str(error), param=param) from None

    async def _at_work(self, request: Request, job: Job, result: Any, until: float, whole: bool = True) -> Any:
        """Submits a job and waits for what it gives; the job ends where the client goes, or the time does.

        Where `result` is not the whole, but the first piece of a stream, the job goes on.
        """
        try:
            self.engine.submit(job)
            async with asyncio.timeout_at(until):
                found = await unless_gone(request.receive, result)
            if whole:
                self.engine.cancel(job)
            return found
        except BaseException as error:
            self.engine.cancel(job)
            if hasattr(result, "close"):
                result.close()  # where it was never awaited
            if isinstance(error, TimeoutError):
                raise too_late(self.served.limits.timeout) from None
            raise


async def _pieces(job: TextJob) -> AsyncIterator[Said]:
    """What is said, until every row has finished."""
    left = len(job.rows)
    while left:
        said = await job.events.get()
        if isinstance(said, Refusal):
            raise said
        left -= bool(said.finish)
        yield said


async def _collected(job: TextJob) -> list[list[Said]]:
    """The pieces of each row."""
    found: list[list[Said]] = [[] for _ in job.rows]
    async for said in _pieces(job):
        found[said.row].append(said)
    return found
