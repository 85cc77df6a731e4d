"""How a server starts and ends: what a command line cannot ask for, and what becomes of requests at work."""

import json
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import zoo
from tests.zoo import serving
from tests.zoo.serving import expected, running, slow_batches
from zoo import cli, command_line
from zoo.calibration import sample_rows
from zoo.command_line import Terminated
from zoo.serve import answers, command, lanes, server

PROMPT, COMPLETIONS = "The river sings", "/v1/completions"
LONG = {"prompt": PROMPT, "max_tokens": 90, "temperature": 0}


def test_a_stop_lets_requests_finish_or_tells_them(monkeypatch):
    slow_batches(monkeypatch)
    short = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    found = {}

    def ask(name, server, body):
        found[name] = server.ask("POST", COMPLETIONS, body)

    with running(grace=10.0) as patient, running(grace=0.5) as hasty:
        threads = [threading.Thread(target=ask, args=given) for given in (("a", patient, short), ("b", hasty, LONG))]
        for thread in threads:
            thread.start()
        for one in (patient, hasty):
            while not one.service.engine.running:
                time.sleep(0.01)
            one.server.should_exit = True
        for thread in threads:
            thread.join(20)
    status, _, said = found["a"]
    assert status == 200 and json.loads(said)["choices"][0]["text"] == expected(PROMPT, 20).texts[0]
    status, _, said = found["b"]
    assert status == 503 and json.loads(said)["error"]["message"] == "the server is stopping"


def test_a_stop_does_not_wait_for_a_compiler(monkeypatch, capsys):
    """The device's thread is busy with one long thing: requests are told in time, and the command ends."""
    free = threading.Event()

    class Compiling(lanes.TextBatch):
        def __init__(self, *args, **kwargs):
            assert free.wait(60)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(lanes, "TextBatch", Compiling)
    with running(grace=0.3) as served, ThreadPoolExecutor() as pool:
        answers = [pool.submit(served.refusal, COMPLETIONS, LONG) for _ in range(2)]
        while served.service.engine.running + served.service.engine.waiting < 2:
            time.sleep(0.01)
        served.server.should_exit = True
        assert [answer.result(20)[0] for answer in answers] == [503, 503]
        assert not served.service.engine.ended
        free.set()

    monkeypatch.setattr(os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    for error, code, said in ((KeyboardInterrupt(), 130, "interrupted\n"), (Terminated(), 143, "terminated\n")):
        with pytest.raises(SystemExit) as ended:
            command.end_at_once(error)
        assert ended.value.code == code and capsys.readouterr().err == said


def test_heads_that_never_end_and_too_many_connections(monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(server, "SPARE_CONNECTIONS", 3)
    with running(concurrency=1, max_waiting=0) as small:
        with socket.create_connection(("127.0.0.1", small.port), timeout=20) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            assert closed(connection)
        monkeypatch.setattr(server, "HEAD_SECONDS", 60)
        idle = [socket.create_connection(("127.0.0.1", small.port), timeout=20) for _ in range(4)]
        with socket.create_connection(("127.0.0.1", small.port), timeout=20) as connection:
            assert closed(connection)  # 1 at work, 3 to spare
        for connection in idle:
            connection.close()


def test_who_reads_slowly_gets_all_and_who_stands_still_is_cut_off(monkeypatch):
    """The clock of a client that does not read begins anew with each byte that goes."""
    monkeypatch.setattr(server, "STUCK_SECONDS", 1.0)
    real = answers.embeddings
    monkeypatch.setattr(answers, "embeddings", lambda name, found, *rest: real(name, np.tile(found, (400, 6)), *rest))
    body = json.dumps({"input": PROMPT}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)

    def narrow(host, port):  # what the system takes in between would hide who does not read
        taken = server.bind(host, port)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        return taken

    monkeypatch.setattr(serving, "bind", narrow)
    got = {}

    def client(port, name, pause, size):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            connection.settimeout(30)
            connection.connect(("127.0.0.1", port))
            connection.sendall(head + body)
            whole = b""
            try:
                while part := connection.recv(size):
                    whole += part
                    time.sleep(pause)
            except ConnectionResetError:
                pass
            told = int(whole.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            got[name] = len(whole.partition(b"\r\n\r\n")[2]) / told

    with running("bert-tiny") as served:
        given = (served.port, "slow", 0.015, 8192), (served.port, "still", 3.5, 8192)
        threads = [threading.Thread(target=client, args=one) for one in given]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        threads[0].join(30)
        passed = time.monotonic() - began
        threads[1].join(30)
    assert got["slow"] == 1 and got["still"] < 0.5 and passed > 2 * server.STUCK_SECONDS


def closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "words, said",
    [
        (["--port", "TAKEN"], "is in use: choose another with --port"),
        (["--port", "70000"], "--port is 70000; it must be from 0"),
        (["--host", "no.such.host"], 'host "no.such.host" is unknown'),
        (["--host", "203.0.113.7", "--port", "0"], "is no address of this machine"),
        (["--concurrency", "0"], "--concurrency is 0; it must be at least 1"),
        (["--timeout", "nan"], "--timeout is nan; it must be a number of seconds above 0"),
        (["--max-body", "-1"], "--max-body is -1"),
        (["--max-length", "4096"], "--max-length is 4096; this model has 128 positions (0 takes all)"),
    ],
)
def test_starts_that_cannot_be(words, said, capsys, monkeypatch):
    known = socket.getaddrinfo

    def names(host, *args, **kwargs):
        if host == "no.such.host":
            raise socket.gaierror("unknown")
        if host == "203.0.113.7":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0))]
        return known(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", names)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [str(taken.getsockname()[1]) if word == "TAKEN" else word for word in words]
        assert command_line.run("zoo", cli.SUBCOMMANDS, ["serve", "oneblock/gpt-tiny", *words]) == 2
    out, line = capsys.readouterr()
    assert said in line and line.count("\n") == 1 and out == ""


def test_an_encoder_has_no_cache(capsys):
    words = ["serve", "oneblock/bert-tiny", "--port", "0", "--cache-dtype", "int8"]
    assert command_line.run("zoo", cli.SUBCOMMANDS, words) == 2
    said = capsys.readouterr().err
    assert said == "error: --cache-dtype is int8; an encoder keeps no keys and values: leave it out\n"


def test_int8_weights_are_served(monkeypatch, capsys):
    """Quantised as `zoo generate --int8` does it; nothing listens here."""
    found = []

    def run(self, sockets):
        found.append(self._service.served)
        sockets[0].close()

    monkeypatch.setattr(server.Server, "run", run)
    words = ["serve", "oneblock/gpt-tiny", "--port", "0", "--int8", "--no-warm-up"]
    assert command_line.run("zoo", cli.SUBCOMMANDS, words) == 0
    model, params, words = *zoo.load("oneblock/gpt-tiny"), zoo.load_tokenizer("oneblock/gpt-tiny")
    small, expected_params = zoo.quantize(model, params, calibration=sample_rows(words))
    assert found[0].model == small and "keys and values of 8 texts of 128 tokens" in capsys.readouterr().out
    same = jax.tree.map(lambda one, other: bool((one == other).all()), found[0].params, expected_params)
    assert all(jax.tree.leaves(same))


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert command_line.run("zoo", cli.SUBCOMMANDS, ["serve", "oneblock/gpt-tiny"]) == 2
    assert capsys.readouterr().err == 'error: serving needs uvicorn; run: pip install "oneblock[serve]"\n'
