"""A server in a thread over tiny models, and raw requests to it, for the tests of zoo.serve."""

import contextlib
import functools
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import openai
import pytest

import zoo
from tests import made_up
from zoo.serve import lanes
from zoo.serve.app import Service
from zoo.serve.limits import Limits
from zoo.serve.served import Served
from zoo.serve.server import Server, bind

NAME = "made-up"


@functools.cache
def tokenizer():
    """Byte-level pieces, so that characters arrive in halves; BOS, a chat template."""
    with tempfile.TemporaryDirectory() as folder:
        return zoo.load_tokenizer(made_up.json_tokenizer(Path(folder) / "words"))


@functools.cache
def model_and_params(preset: str):
    sizes = dict(vocab_size=360, embed_dim=32, mlp_dim=64, num_layers=1, max_positions=128)
    model = zoo.create(preset, **sizes)
    # Larger weights than at initialisation, so that the likeliest token depends on the context.
    return model, jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 1 else leaf, model.init(jax.random.key(1)))


@dataclass
class Running:
    """A server at work.

    Attributes:
        port: of 127.0.0.1.
        service, thread: what is served, by whom.
        client: openai's.
    """

    port: int
    server: Server
    service: Service
    thread: threading.Thread
    client: openai.OpenAI

    def ask(self, method: str, path: str, body: Any = None, headers: str = "") -> tuple[int, dict[str, str], bytes]:
        """A raw request: status, headers, body. `body` is bytes, or JSON is made of it."""
        with self.send(method, path, body, headers) as connection:
            return read(connection)

    def send(self, method: str, path: str, body: Any = None, headers: str = "") -> socket.socket:
        """A connection on which a request was sent."""
        body = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        )
        connection.sendall(head.encode() + body)
        return connection

    def refusal(self, path: str, body: Any, method: str = "POST") -> tuple[int, dict[str, Any]]:
        """Status and error of a request that is refused, of OpenAI's shape and one line."""
        status, headers, said = self.ask(method, path, body)
        found = json.loads(said)
        assert set(found) == {"error"} and set(found["error"]) == {"message", "type", "param", "code"}
        assert headers["content-type"] == "application/json" and "\n" not in found["error"]["message"]
        return status, found["error"]

    def metrics(self) -> dict[str, float]:
        """What GET /metrics tells, by name with labels."""
        status, headers, said = self.ask("GET", "/metrics")
        assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line.rsplit(" ", 1) for line in said.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def settle(self, seconds: float = 20.0) -> None:
        """Waits until nothing is at work, and fails if something stays."""
        until = time.monotonic() + seconds
        engine = self.service.engine
        while engine.running or engine.waiting or engine._lanes:
            assert time.monotonic() < until, f"{engine.running} at work, {engine.waiting} waiting"
            time.sleep(0.01)
        time.sleep(0.05)  # what the thread's last turn held is let go when that returns


def read(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """An answer up to the end of its connection."""
    whole = b""
    while part := connection.recv(65536):
        whole += part
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def client_of(port: int) -> openai.OpenAI:
    """OpenAI's client; it closes its connections at the end of a with block."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)


@contextlib.contextmanager
def running(preset: str = "gpt-tiny", **limits: Any) -> Iterator[Running]:
    """A server until the end of the block, where all of it must be over."""
    model, params = model_and_params(preset)
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    limits = Limits(**{"concurrency": 4, "grace": 5.0} | limits)
    service = Service(Served(model, params, tokenizer(), NAME, limits))
    server = Server(service)
    thread = threading.Thread(target=server.run, args=([taken],))
    thread.start()
    try:
        with client_of(port) as client:
            yield Running(port, server, service, thread, client)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def serving(preset: str = "gpt-tiny", **limits: Any):
    """A fixture: one server for the tests of a module, at rest at their end."""

    @pytest.fixture(scope="module")
    def served():
        with running(preset, **limits) as found:
            yield found
            found.settle()

    return served


def slow_batches(monkeypatch) -> None:
    """Steps of 0.1 s at least: a text of 90 tokens takes 9 seconds, whatever the machine."""

    class Slow(lanes.TextBatch):
        def advance(self, until):
            time.sleep(0.1 * (until - self.step))
            super().advance(until)

    monkeypatch.setattr(lanes, "TextBatch", Slow)


def expected(prompt: Any, new: int, **settings: Any):
    """What zoo.generate gives for one prompt, alone."""
    model, params = model_and_params("gpt-tiny")
    return zoo.generate(model, params, [prompt], max_new_tokens=new, tokenizer=tokenizer(), **settings)
