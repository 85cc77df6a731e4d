"""What is refused: each in OpenAI's shape, with one line that says what is wrong, and the server goes on."""

import json
import socket
import time
from types import SimpleNamespace

import openai
import pytest

from tests.zoo.serving import NAME, expected, read, running, serving, slow_batches
from zoo.errors import InputError
from zoo.serve import lanes
from zoo.serve.asked import completion
from zoo.serve.fields import parse
from zoo.serve.limits import Limits, Refusal

PROMPT = "The river sings"
MESSAGES = [{"role": "user", "content": "Hi"}]
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"


decoder, encoder = serving(concurrency=1, max_waiting=2, max_body=2000), serving("bert-tiny")


BAD = [
    ({"prompt": PROMPT, "tempreture": 1}, 'there is no field "tempreture"; did you mean "temperature"?', "tempreture"),
    ({"prompt": PROMPT, "suffix": "x"}, '"suffix" is not supported here', "suffix"),
    ({"prompt": PROMPT, "best_of": 2}, '"best_of" is not supported here (but 1)', "best_of"),
    ({"prompt": PROMPT, "temperature": -0.1}, '"temperature" is -0.1; it must be a number from 0 to 2', "temperature"),
    ({"prompt": PROMPT, "temperature": "hot"}, '"temperature" is "hot"; it must be a number', "temperature"),
    ({"prompt": PROMPT, "temperature": True}, '"temperature" is true', "temperature"),
    ({"prompt": PROMPT, "top_p": 1.5}, '"top_p" is 1.5; it must be a number from 0 to 1', "top_p"),
    ({"prompt": PROMPT, "top_k": 361}, '"top_k" is 361; it must be a whole number, from 0 to 360', "top_k"),
    ({"prompt": PROMPT, "min_p": 2}, '"min_p" is 2', "min_p"),
    ({"prompt": PROMPT, "repetition_penalty": 0}, '"repetition_penalty" is 0', "repetition_penalty"),
    ({"prompt": PROMPT, "presence_penalty": 3}, '"presence_penalty" is 3', "presence_penalty"),
    ({"prompt": PROMPT, "max_tokens": 0}, '"max_tokens" is 0; it must be at least 1, or 0 with echo', "max_tokens"),
    ({"prompt": PROMPT, "max_tokens": 1.5}, '"max_tokens" is 1.5', "max_tokens"),
    ({"prompt": PROMPT, "n": 4}, "4 texts are asked for at once; at most 3 are served", "n"),
    ({"prompt": PROMPT, "n": 10**9}, "1000000000 texts are asked for at once; at most 3 are served", "n"),
    ({"prompt": PROMPT, "seed": -1}, '"seed" is -1; it must be a whole number, from 0 to 4294967295', "seed"),
    ({"prompt": PROMPT, "stop": [""]}, '"stop" is [""]; it must be', "stop"),
    ({"prompt": PROMPT, "stop": ["a"] * 17}, '"stop" is a list; it must be', "stop"),
    ({"prompt": PROMPT, "logprobs": 6}, '"logprobs" is 6; it must be a whole number, from 0 to 5', "logprobs"),
    ({"prompt": PROMPT, "logprobs": 2, "stream": True}, "is not supported with", "logprobs"),
    ({"prompt": PROMPT, "logit_bias": {"x": 1}}, '"logit_bias" gives 1 to "x"; ids go from 0 to 359', "logit_bias"),
    ({"prompt": PROMPT, "logit_bias": {"360": 1}}, 'gives 1 to "360"', "logit_bias"),
    ({"prompt": PROMPT, "logit_bias": {"1": 101}}, "numbers from -100 to 100", "logit_bias"),
    ({"prompt": PROMPT, "logit_bias": {"1": 10**400}}, "numbers from -100 to 100", "logit_bias"),
    ({"prompt": PROMPT, "stream_options": {"include_usage": True}}, '"stream_options" is {"include', "stream_options"),
    (
        {"prompt": PROMPT, "stream": True, "stream_options": {"usage": 1}},
        '"stream_options.usage"',
        "stream_options.usage",
    ),
    ({"prompt": PROMPT, "stream": 1}, '"stream" is 1; it must be true or false', "stream"),
    ({}, '"prompt" is null; it must be a text', "prompt"),
    ({"prompt": []}, '"prompt" is []', "prompt"),
    ({"prompt": ["a", 1]}, '"prompt" is ["a", 1]', "prompt"),
    ({"prompt": [[]]}, '"prompt" is [[]]', "prompt"),
    ({"prompt": {"a": 1}}, '"prompt" is {"a": 1}', "prompt"),
    ({"prompt": [1, 360]}, "prompt 0 holds id 360, outside the vocabulary: 0 to 359", "prompt"),
    ({"prompt": [1, -1]}, "prompt 0 holds id -1", "prompt"),
    ({"prompt": [10**30]}, "prompt 0 holds id 1000000", "prompt"),
    ({"prompt": "half \ud800"}, "half of a surrogate pair at character 5", "prompt"),
    ({"prompt": [3] * 128}, "the prompt has 128 tokens; a text has at most 128 here", "prompt"),
    ({"prompt": [3] * 100, "max_tokens": 29}, "exceed the 128 that a text has here; ask for at most 28", "prompt"),
    ({"prompt": PROMPT, "\ud800": 1}, "there is no field", "\ud800"),
]


@pytest.mark.parametrize("body, said, param", BAD, ids=[str(number) for number in range(len(BAD))])
def test_completions_that_are_refused(decoder, body, said, param):
    status, error = decoder.refusal(COMPLETIONS, body)
    assert status == 400 and error["type"] == "invalid_request_error" and said in error["message"]
    assert error["param"] == param.replace("\ud800", "?")
    exceeds = "128" in said
    assert error["code"] == ("context_length_exceeded" if exceeds and "at most" in said else error["code"])


@pytest.mark.parametrize(
    "change, said",
    [
        ({"messages": []}, '"messages" is []'),
        ({"messages": "Hi"}, '"messages" is "Hi"'),
        ({"messages": [1]}, '"messages" is [1]'),
        ({"messages": [{"role": "wizard", "content": "x"}]}, '"messages[0].role" is "wizard"; it must be "system" or'),
        ({"messages": [{"role": ["user"], "content": "x"}]}, '"messages[0].role" is ["user"]'),
        ({"messages": [{"role": "user"}]}, '"messages[0].content" is null; it must be a text'),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 'content[0].type" is "image_url"'),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, '"messages[0].tool_calls" is not supp'),
        ({"tools": [{}]}, '"tools" is not supported here (but [])'),
        ({"response_format": {"type": "json_object"}}, '"response_format" is not supported here (but {"type": "te'),
        ({"store": 0}, '"store" is not supported here (but false)'),
        ({"top_logprobs": 2}, '"top_logprobs" is 2; it must be left out where logprobs is not true'),
        ({"logprobs": True, "top_logprobs": 21}, '"top_logprobs" is 21'),
        ({"max_tokens": 2, "max_completion_tokens": 2}, '"max_tokens" is 2; it must be left out'),
        ({"prompt": "x"}, 'there is no field "prompt"'),
    ],
)
def test_conversations_that_are_refused(decoder, change, said):
    status, error = decoder.refusal(CHAT, {"messages": MESSAGES} | change)
    assert status == 400 and said in error["message"]


def test_what_asks_for_nothing_is_taken(decoder):
    """Fields that clients send with values that change nothing."""
    idle = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "store": False, "n": 1}
    idle |= {"modalities": ["text"], "service_tier": "auto", "parallel_tool_calls": True, "logprobs": False}
    body = {"messages": MESSAGES, "max_tokens": 2, "temperature": 0}
    answers = [json.loads(decoder.ask("POST", CHAT, body | more)[2])["choices"] for more in ({}, idle)]
    assert answers[0] == answers[1]
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}
    answers = [
        json.loads(decoder.ask("POST", COMPLETIONS, body | more)[2])["choices"]
        for more in ({}, {"best_of": 1, "suffix": "", "echo": False, "stop": []})
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "body, said",
    [
        (b"{", "the body is not JSON: Expecting property name"),
        (b"", "the body is not JSON"),
        (b"[1]", "the body is a list; it must be an object"),
        (b"null", "the body is null; it must be an object"),
        (b'{"prompt": NaN}', "NaN is no JSON number"),
        (b'{"prompt": "\xff"}', "the body is not UTF-8 (invalid start byte at byte 12)"),
        (b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}", '"prompt" is a list; it must be'),
        (b'{"seed": ' + b"9" * 1900 + b"}", '"prompt" is null'),
    ],
)
def test_bodies_that_are_no_request(decoder, body, said):
    status, error = decoder.refusal(COMPLETIONS, body)
    assert status == 400 and said in error["message"]


def test_bodies_that_are_too_large(decoder):
    """Told or not, in one piece or in chunks: the client hears 413."""
    large = {"prompt": "x" * 3000}
    status, error = decoder.refusal(COMPLETIONS, large)
    assert (status, error["code"]) == (413, "request_too_large")
    assert error["message"] == "the body has more than 2000 bytes"
    with pytest.raises(openai.APIStatusError) as raised:
        decoder.client.completions.create(model=NAME, prompt="x" * 3_000_000)
    assert raised.value.status_code == 413
    with socket.create_connection(("127.0.0.1", decoder.port), timeout=20) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + (b"400\r\n" + b" " * 1024 + b"\r\n") * 3 + b"0\r\n\r\n")
        assert read(connection)[0] == 413
    head = "Expect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", decoder.port), timeout=20) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9999999999\r\n\r\n"
        connection.sendall(head.encode())
        assert read(connection)[0] == 413


def test_routes_models_and_kinds_of_models(decoder, encoder):
    status, error = decoder.refusal("/v1/completion", {})
    assert (status, error["code"]) == (404, "unknown_url") and 'did you mean "/v1/completions"' in error["message"]
    assert decoder.refusal(COMPLETIONS, None, "GET")[0] == 405
    for ask in (
        lambda: decoder.client.completions.create(model="gpt-5", prompt="x"),
        lambda: decoder.client.models.retrieve("gpt-5"),
    ):
        with pytest.raises(openai.NotFoundError, match="there is no model .*gpt-5"):
            ask()
    status, error = decoder.refusal(EMBEDDINGS, {"input": "x"})
    assert status == 400 and "is a decoder, which continues texts and embeds none" in error["message"]
    for route in (COMPLETIONS, CHAT):
        status, error = encoder.refusal(route, {"prompt": "x"})
        assert status == 400 and "is an encoder, which reads texts and makes none: ask /v1/emb" in error["message"]


@pytest.mark.parametrize(
    "body, said",
    [
        ({"input": ""}, "text 0 of 1 is empty"),
        ({"input": ["a", ""]}, "text 1 of 2 is empty"),
        ({"input": [3] * 127}, "the text exceeds the 128 tokens that are read here"),
        ({"input": [[3], [3] * 127]}, "1 of 2 texts exceed the 128 tokens"),
        ({"input": ["a"] * 2049}, '"input" has 2049 texts; at most 2048'),
        ({"input": "a", "dimensions": 8}, '"dimensions" is 8; vectors here have 32'),
        ({"input": "a", "encoding_format": "hex"}, '"encoding_format" is "hex"; it must be "float" or "base64"'),
        ({"input": "a", "pooling": "cls"}, 'there is no field "pooling"'),
    ],
)
def test_embeddings_that_are_refused(encoder, body, said):
    status, error = encoder.refusal(EMBEDDINGS, body)
    assert status == 400 and said in error["message"]


def test_a_model_without_a_chat_template(decoder, monkeypatch):
    monkeypatch.setitem(decoder.service.served.tokenizer.__dict__, "chat_template", None)
    status, error = decoder.refusal(CHAT, {"messages": MESSAGES})
    assert status == 400 and error["message"].startswith("this tokenizer has no chat template")
    monkeypatch.setitem(decoder.service.served.tokenizer.__dict__, "chat_template", "{{ raise_exception('no\nhere') }}")
    assert "refuses these messages: no here" in decoder.refusal(CHAT, {"messages": MESSAGES})[1]["message"]


@pytest.fixture
def slow(monkeypatch):
    slow_batches(monkeypatch)


LONG = {"prompt": PROMPT, "max_tokens": 90, "temperature": 0}


def test_a_full_queue_says_come_back_and_who_leaves_is_forgotten(decoder, slow):
    before = decoder.metrics()
    gone, made = 'oneblock_requests_total{route="/v1/completions",status="499"}', "oneblock_generated_tokens_total"
    connections = [decoder.send("POST", COMPLETIONS, LONG | {"stream": number == 0}) for number in range(3)]
    until = time.monotonic() + 20
    while decoder.service.engine.waiting < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(openai.RateLimitError, match="2 texts wait for their turn") as raised:
        decoder.client.completions.create(model=NAME, prompt=PROMPT)
    assert raised.value.response.headers["retry-after"] == "1"
    for connection in connections[1:]:
        connection.close()
    while decoder.service.engine.waiting:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert decoder.service.engine.running == 1  # who waits leaves at once, and not when the place is free
    connections[0].close()
    decoder.settle()
    while (after := decoder.metrics()).get(gone, 0) < before.get(gone, 0) + 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert after[made] - before[made] < 90  # the first was given up between two tokens, the others never began


def test_a_request_that_takes_too_long(slow):
    with running(timeout=2.0) as hasty:
        status, error = hasty.refusal(COMPLETIONS, LONG)
        assert (status, error["code"], error["type"]) == (504, "timeout", "server_error")
        hasty.settle()
        with hasty.send("POST", COMPLETIONS, LONG | {"stream": True}) as connection:
            status, _, said = read(connection)
        assert status == 200 and b"[DONE]" not in said
        last = json.loads(said[said.rindex(b"data: ") + 6 :].split(b"\n")[0])
        assert last["error"]["message"] == "the request took more than the 2 seconds that it may; ask for fewer tokens"
        hasty.settle()
        with socket.create_connection(("127.0.0.1", hasty.port), timeout=20) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
            assert read(connection)[0] == 408


def test_a_fault_of_the_model_ends_its_own_requests(decoder, monkeypatch, caplog):
    class Broken(lanes.TextBatch):
        def advance(self, until):
            raise RuntimeError("RESOURCE_EXHAUSTED in /home/somebody/secret")

    with monkeypatch.context() as patch:
        patch.setattr(lanes, "TextBatch", Broken)
        status, error = decoder.refusal(COMPLETIONS, {"prompt": PROMPT})
    assert status == 500 and error["message"] == "the server failed at this request; its log says how"
    assert "the model failed" in caplog.text and "/home/somebody/secret" in caplog.text
    good = decoder.client.completions.create(model=NAME, prompt=PROMPT, temperature=0, max_tokens=6)
    assert good.choices[0].text == expected(PROMPT, 6).texts[0]


def test_few_kinds_of_programs_are_kept(monkeypatch):
    cleared = []
    programs = [SimpleNamespace(clear_cache=lambda name=name: cleared.append(name)) for name in "abc"]
    monkeypatch.setattr(lanes, "PROGRAMS", programs)
    monkeypatch.setattr(lanes, "KINDS", 2)
    kept = lanes.Programs()
    for kind, count in ((1, 0), (2, 0), (1, 0), (3, 3), (1, 3), (2, 6)):
        kept.meet(kind)
        assert len(cleared) == count


def test_biases_are_as_many_as_openai_takes():
    with pytest.raises(Refusal, match='"logit_bias" has 301 ids; at most 300 are taken'):
        completion({"prompt": "x", "logit_bias": {str(number): 1 for number in range(301)}}, NAME, 360)


def test_json_that_is_nested_without_end():
    with pytest.raises(Refusal, match="nested deeper than anything here asks for"):
        parse(b'{"prompt": ' + b"[" * 500_000)


def test_limits_say_what_they_must_be():
    with pytest.raises(InputError, match="max_length is -1; it must be at least 0"):
        Limits(max_length=-1)
    with pytest.raises(InputError, match="grace is inf"):
        Limits(grace=float("inf"))
