"""Under load: 16 clients at once, some leave in the middle, some send garbage, and beside them conversations, scores,
embeddings and slow readers; the good ones get right answers, and nothing stays behind. Then the command itself, from
start to Ctrl-C."""

import gc
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import openai
import pytest

import zoo
from tests.zoo.serving import NAME, Running, client_of, expected, model_and_params, read, running, tokenizer
from zoo.serve import lanes

COMPLETIONS = "/v1/completions"
PROMPTS = ["The river sings", "every quiet meadow turns", "a narrow ribbon", "Some old lantern opens the garden"]
NEW, CLIENTS = 24, 16
CHATS, SCORES, SLOW, VECTORS = (range(16, 18), range(18, 20), range(20, 22), range(22, 24))
MESSAGES = [{"role": "user", "content": "Hi "}]
DRAWN = dict(temperature=0.9, top_p=0.9)
GARBAGE = [
    b"\x00\xff\x16\x03\x01 not HTTP at all\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{"prompt": "',
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n\xff\xfe[{",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"x" * 100_000,
]


@pytest.fixture(scope="module")
def truth():
    """What each client must get, by its number."""
    greedy = [expected(prompt, NEW).texts[0] for prompt in PROMPTS]
    drawn = [expected(prompt, NEW, key=jax.random.key(n), **DRAWN).texts[0] for n, prompt in enumerate(PROMPTS)]
    found = dict(enumerate([*greedy, *drawn])) | dict.fromkeys(range(8, CLIENTS))
    found |= dict.fromkeys(CHATS, expected(tokenizer().chat(MESSAGES), NEW).texts[0])
    found |= {number: (PROMPTS[number % 4] + greedy[number % 4], True) for number in SCORES}
    found |= {number: greedy[number % 4] for number in SLOW}
    return found


def client(served: Running, sdk: openai.OpenAI, number: int, found: dict[int, object]) -> None:
    """One of the 16: good (0 to 7), gone in the middle (8 to 11), garbage (12 to 15). Then those beside them."""
    which, body = number % 4, {"model": NAME, "max_tokens": NEW, "temperature": 0}
    body["prompt"] = PROMPTS[which]
    try:
        if number < 4:
            found[number] = sdk.completions.create(**body).choices[0].text
        elif number < 8:
            events = sdk.completions.create(**body | DRAWN | {"seed": which}, stream=True)
            found[number] = "".join(event.choices[0].text for event in events)
        elif number < 12:
            with served.send("POST", COMPLETIONS, body | {"max_tokens": 90, "stream": number % 2 == 0}) as connection:
                if number % 2 == 0:
                    connection.recv(100)
        elif number < CLIENTS:
            for sent in GARBAGE[which::4]:
                with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
                    connection.sendall(sent)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
        elif number in CHATS:
            given = dict(model=NAME, messages=MESSAGES, max_tokens=NEW, temperature=0)
            if number % 2:
                events = sdk.chat.completions.create(**given, stream=True)
                found[number] = "".join(event.choices[0].delta.content or "" for event in events)
            else:
                found[number] = sdk.chat.completions.create(**given).choices[0].message.content
        elif number in SCORES:
            choice = sdk.completions.create(**body, logprobs=3, echo=True).choices[0]
            found[number] = choice.text, max(map(len, choice.logprobs.top_logprobs[1:])) >= 3
        elif number in SLOW:
            with served.send("POST", COMPLETIONS, body | {"stream": True}) as connection:
                connection.settimeout(30)
                found[number] = slowly(connection)
        else:
            made = sdk.embeddings.create(model=NAME, input=PROMPTS, encoding_format="float")
            found[number] = np.array([entry.embedding for entry in made.data])
    except ConnectionError:
        found[number] = None if 8 <= number < CLIENTS else "lost"
    except Exception as error:
        found[number] = error


def slowly(connection: socket.socket) -> str:
    """The text of a stream that is read a few bytes at a time."""
    whole = b""
    while part := connection.recv(200):
        whole += part
        time.sleep(0.005)
    events = [line[6:] for line in whole.split(b"\n") if line.startswith(b"data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def storm(served: Running, encoder: Running) -> dict[int, object]:
    """What each of the clients got."""
    found: dict[int, object] = {}
    with client_of(served.port) as sdk, client_of(encoder.port) as other:
        given = [(served, sdk, number, found) for number in range(VECTORS.start)]
        given += [(encoder, other, number, found) for number in VECTORS]
        threads = [threading.Thread(target=client, args=one) for one in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    for one in (served, encoder):
        one.settle()
    gc.collect()  # the clients' TLS settings, half a megabyte each, lie in cycles
    return found


def held(*servers: Running) -> tuple[int, int, int, float]:
    """Open files, threads (but readers), arrays of jax, resident MB, once connections are gone."""
    until = time.monotonic() + 20
    while any(served.server.server_state.connections for served in servers):
        assert time.monotonic() < until
        time.sleep(0.05)
    # Readers are started when they are first needed, a few a server and no more.
    threads = sum(not thread.name.startswith("oneblock-reader") for thread in threading.enumerate())
    files, arrays = len(os.listdir("/proc/self/fd")), len(jax.live_arrays())
    return (
        files,
        threads,
        arrays,
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6,
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory and open files are read from /proc")
def test_sixteen_clients_and_nothing_stays(truth):
    with running(max_waiting=64) as served, running("bert-tiny") as encoder:
        with client_of(served.port) as sdk:
            for prompt in (PROMPTS[:1], PROMPTS):  # batches of 1 and of 4, so that every program is there
                for more in (dict(temperature=0), DRAWN):
                    sdk.completions.create(model=NAME, prompt=prompt, max_tokens=NEW, **more)
        storm(served, encoder)  # what is made once is made here
        storm(served, encoder)
        before = held(served, encoder)
        vectors = zoo.embed(*model_and_params("bert-tiny"), PROMPTS, tokenizer=tokenizer())
        for _ in range(5):
            found = storm(served, encoder)
            assert {number: found.get(number) for number in truth} == truth
            for number in VECTORS:
                np.testing.assert_allclose(found[number], vectors, rtol=0, atol=1e-6)
        after = held(served, encoder)
        assert all(now <= then for now, then in zip(after[:3], before[:3], strict=True)), (before, after)
        # 120 clients in between. What keeps a batch alive shows above; this is for what no count knows of: 8 MB are
        # 70 KB a client. Less than 1 MB was measured, and 3 MB after 384 clients.
        assert after[3] - before[3] < 8
        assert json.loads(served.ask("GET", "/health")[2])["running"] == 0


def test_a_short_text_does_not_wait_for_a_long_ones_end(truth, monkeypatch):
    class Slow(lanes.TextBatch):
        def advance(self, until):
            time.sleep(0.05)
            super().advance(until)

    monkeypatch.setattr(lanes, "TextBatch", Slow)
    with running(concurrency=2) as served:
        body = {"prompt": PROMPTS[0], "max_tokens": 96, "temperature": 0, "stream": True}
        with served.send("POST", COMPLETIONS, body) as long:
            first = long.recv(100)
            made = served.client.completions.create(model=NAME, prompt=PROMPTS[1], max_tokens=NEW, temperature=0)
            assert made.choices[0].text == truth[1]
            assert served.service.engine.running == 1  # the long one goes on
            rest = read(long)[2] if first.endswith(b"\r\n\r\n") else b"".join(iter(lambda: long.recv(65536), b""))
            assert b"[DONE]" in rest


def test_the_command_from_start_to_ctrl_c():
    words = [
        sys.executable,
        "-m",
        "zoo",
        "serve",
        "oneblock/gpt-tiny",
        "--port",
        "0",
        "--name",
        "little",
        "--no-warm-up",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert select.select([process.stdout], [], [], 120)[0]
        line = process.stdout.readline()
        told = re.fullmatch(r"little at http://127\.0\.0\.1:(\d+)/v1 \(completions; no chat template; .*\); .*\n", line)
        with socket.create_connection(("127.0.0.1", int(told[1])), timeout=30) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert json.loads(read(connection)[2])["status"] == "ok"
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out, error) == (130, "", "interrupted\n")
    finally:
        process.kill()
        process.communicate()
