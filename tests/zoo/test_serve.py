"""The endpoint through OpenAI's own client: every answer is what zoo.generate and zoo.embed give."""

import base64
import json
import threading

import jax
import numpy as np
import pytest

import zoo
from tests.zoo.serving import NAME, expected, model_and_params, running, serving, tokenizer
from zoo.serve import answers, app, lanes
from zoo.serve.speech import Speech

PROMPT, OTHER = "The river sings", "every quiet meadow turns"
DRAWN = dict(temperature=0.9, top_p=0.9)
ALL = dict(temperature=0.9, presence_penalty=1.5, frequency_penalty=0.5)
MORE = dict(top_k=5, min_p=0.01, repetition_penalty=1.2)


decoder, encoder = serving(), serving("bert-tiny")


def complete(decoder, **given):
    return decoder.client.completions.create(
        **{"model": NAME, "prompt": PROMPT, "max_tokens": 12, "temperature": 0} | given
    )


def test_a_greedy_completion_and_its_counts(decoder):
    made, whole = complete(decoder), expected(PROMPT, 12)
    choice = made.choices[0]
    assert (choice.text, choice.index, choice.finish_reason, choice.logprobs) == (whole.texts[0], 0, "length", None)
    length = 1 + len(tokenizer().encode(PROMPT))  # BOS
    assert (made.object, made.model) == ("text_completion", NAME)
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (
        length,
        12,
        length + 12,
    )
    ids = [0, *tokenizer().encode(PROMPT)]
    assert complete(decoder, prompt=ids).choices[0].text == choice.text
    assert len(complete(decoder, max_tokens=None).choices[0].text) > len(choice.text)  # 16 where none is said


def test_seeds_prompts_and_samples_are_those_of_generate(decoder):
    """Choice p n + s is prompt p's sample s, drawn with the key that zoo.generate(prompts, samples=n) folds for it."""
    made = complete(decoder, prompt=[PROMPT, OTHER], n=2, seed=7, **DRAWN)
    fold, key = jax.random.fold_in, jax.random.key(7)
    keys = [fold(fold(key, place), sample)[None] for place in (0, 1) for sample in (0, 1)]
    texts = zip([PROMPT, PROMPT, OTHER, OTHER], keys, strict=True)
    whole = [expected(prompt, 12, key=key, **DRAWN) for prompt, key in texts]
    assert [choice.text for choice in made.choices] == [one.texts[0] for one in whole]
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert made.usage.completion_tokens == sum(int(one.lengths[0]) for one in whole)
    alone = complete(decoder, seed=7, **DRAWN).choices[0].text
    assert alone == expected(PROMPT, 12, key=jax.random.key(7), **DRAWN).texts[0]
    assert alone == complete(decoder, prompt=[PROMPT, OTHER], seed=7, **DRAWN).choices[0].text
    drawn = {complete(decoder, **DRAWN).choices[0].text for _ in range(4)}
    assert len(drawn) > 1  # without a seed each request has its own


def test_a_warm_server_has_the_programs_of_a_default_request():
    with running("gpt-tiny") as served:
        kinds = served.service.engine._desk.programs._met
        served.service.warm()
        warm = set(kinds)
        assert [kind[0] for kind in sorted(warm, key=str)] == ["advance", "begin"]
        made = served.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "Hi"}])
        assert made.choices[0].finish_reason and kinds == warm
        assert served.metrics()["oneblock_first_token_seconds_count"] == 1


def test_settings_of_sampling_arrive(decoder):
    free = expected(PROMPT, 12)
    first = int(free.tokens[0, 0])
    made = complete(decoder, seed=3, logit_bias={str(first): -100}, **ALL, extra_body=MORE)
    whole = expected(PROMPT, 12, key=jax.random.key(3), logit_bias={first: -100}, **ALL, **MORE)
    assert made.choices[0].text == whole.texts[0] != free.texts[0]


def test_a_stream_is_the_text_in_whole_characters(decoder):
    """Byte-level pieces: a stream of tokens breaks characters in two, a stream of texts may not."""
    hot = dict(temperature=1.5, top_p=0.99)
    given = dict(stream=True, stream_options={"include_usage": True}, seed=11, max_tokens=60)
    events = list(complete(decoder, **given, **hot))
    whole = expected(PROMPT, 60, key=jax.random.key(11), **hot)
    texts = [event.choices[0].text for event in events[:-1]]
    assert "".join(texts) == whole.texts[0] and len(texts) > 10
    assert [event.choices[0].finish_reason for event in events[:-1]][-2:] == [
        None,
        "stop" if whole.stopped[0] else "length",
    ]
    assert events[-1].choices == [] and events[-1].usage.completion_tokens == int(whole.lengths[0])
    assert len({event.id for event in events}) == 1
    status, headers, said = decoder.ask("POST", "/v1/completions", {"prompt": PROMPT, "stream": True, "max_tokens": 2})
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert said.rstrip(b"\r\n0").endswith(b"data: [DONE]")


def test_stop_texts_cut_and_count(decoder):
    free = expected(PROMPT, 40)
    word = free.texts[0][10:13]
    whole = expected(PROMPT, 40, stop=[word, "never said"])
    made = complete(decoder, max_tokens=40, stop=[word, "never said"])
    assert made.choices[0].text == whole.texts[0] == free.texts[0][: free.texts[0].find(word)]
    assert made.choices[0].finish_reason == "stop"
    # Counted are the tokens up to the one that completes the stop text.
    ids, least = free.tokens[0].tolist(), made.usage.completion_tokens
    assert word in tokenizer().decode(ids[:least]) and word not in tokenizer().decode(ids[: least - 1])
    streamed = list(complete(decoder, max_tokens=40, stop=word, stream=True))
    assert "".join(event.choices[0].text for event in streamed) == whole.texts[0]
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_the_stop_token_ends_a_text(decoder):
    ids, first = [0, *tokenizer().encode(PROMPT)], tokenizer().stop_ids[0]
    made = complete(decoder, logit_bias={str(first): 100}, **ALL, extra_body=MORE)
    assert (made.choices[0].text, made.choices[0].finish_reason) == ("", "stop")
    assert (made.usage.completion_tokens, made.usage.prompt_tokens) == (0, len(ids))


def test_log_probabilities(decoder):
    model, params = model_and_params("gpt-tiny")
    whole = expected(PROMPT, 6)
    ids = [0, *tokenizer().encode(PROMPT)]
    row = np.array([ids + whole.tokens[0].tolist()], np.int32)
    truth = np.asarray(jax.nn.log_softmax(model.apply(params, row).logits[0]))
    shown = complete(decoder, max_tokens=6, logprobs=0).choices[0]
    assert "".join(shown.logprobs.tokens) == shown.text and shown.logprobs.top_logprobs is None
    np.testing.assert_allclose(shown.logprobs.token_logprobs, whole.log_probs[0], atol=1e-5)
    starts = [shown.text[start:] for start in shown.logprobs.text_offset]
    assert all(rest.startswith(token) for rest, token in zip(starts, shown.logprobs.tokens, strict=True))
    most = complete(decoder, max_tokens=6, logprobs=3, echo=True).choices[0]
    assert most.text == PROMPT + shown.text
    assert most.logprobs.token_logprobs[0] is None and most.logprobs.top_logprobs[0] is None
    chosen = truth[np.arange(row.shape[1] - 1), row[0, 1:]]
    np.testing.assert_allclose(most.logprobs.token_logprobs[1:], chosen, atol=1e-5)
    for place, top in enumerate(most.logprobs.top_logprobs[1:]):
        assert max(top.values()) == pytest.approx(truth[place].max(), abs=1e-5) and len(top) in (1, 2, 3, 4)
    score = complete(decoder, max_tokens=0, logprobs=0, echo=True)  # how evaluation harnesses ask
    assert score.choices[0].text == PROMPT and score.usage.completion_tokens == 0
    np.testing.assert_allclose(score.choices[0].logprobs.token_logprobs[1:], chosen[: len(ids) - 1], atol=1e-5)


def test_a_conversation(decoder):
    messages = [{"role": "developer", "content": "old"}, {"role": "user", "content": [{"type": "text", "text": "Hi "}]}]
    plain = [{"role": "system", "content": "old"}, {"role": "user", "content": "Hi "}]
    ids = tokenizer().chat(plain)
    whole = expected(ids, 12)
    ask = dict(model=NAME, messages=messages, temperature=0, max_completion_tokens=12)
    made = decoder.client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    choice = made.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", whole.texts[0])
    assert (made.object, made.usage.prompt_tokens, made.usage.completion_tokens) == ("chat.completion", len(ids), 12)
    content = choice.logprobs.content
    assert "".join(token.token for token in content) == choice.message.content
    np.testing.assert_allclose([token.logprob for token in content], whole.log_probs[0], atol=1e-5)
    assert all(
        len(token.top_logprobs) == 2 and token.top_logprobs[0].logprob >= token.logprob - 1e-6 for token in content
    )
    assert bytes(content[0].bytes).decode() == content[0].token
    events = list(decoder.client.chat.completions.create(**ask, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == choice.message.content
    assert events[-1].choices[0].finish_reason == "length"
    free = decoder.client.chat.completions.create(**{**ask, "max_completion_tokens": None})
    reason = free.choices[0].finish_reason
    assert reason == "stop" or free.usage.total_tokens > 64  # what fits, where nothing is said


def test_embeddings(encoder):
    model, params = model_and_params("bert-tiny")
    texts = [PROMPT, OTHER, "candle"] * 7
    truth = zoo.embed(model, params, texts, tokenizer=tokenizer())
    made = encoder.client.embeddings.create(model=NAME, input=texts, encoding_format="float")
    found = np.array([entry.embedding for entry in made.data])
    np.testing.assert_allclose(found, truth, atol=1e-6)
    assert [entry.index for entry in made.data] == list(range(21))
    lengths = [len(tokenizer().encode(text)) + 2 for text in texts]
    assert made.usage.prompt_tokens == made.usage.total_tokens == sum(lengths)
    packed = encoder.client.embeddings.create(model=NAME, input=PROMPT).data[0].embedding  # base64 on the wire
    np.testing.assert_allclose(packed, found[0], atol=1e-6)
    said = json.loads(encoder.ask("POST", "/v1/embeddings", {"input": PROMPT, "encoding_format": "base64"})[2])
    raw = np.frombuffer(base64.b64decode(said["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(raw, np.float32(packed))
    ids = encoder.client.embeddings.create(model=NAME, input=[tokenizer().encode(PROMPT)]).data[0].embedding
    np.testing.assert_array_equal(ids, packed)


def test_models_health_and_metrics(decoder):
    assert [entry.id for entry in decoder.client.models.list()] == [NAME]
    assert decoder.client.models.retrieve(NAME).owned_by == "oneblock"
    assert json.loads(decoder.ask("GET", "/health")[2]) == {"status": "ok", "model": NAME, "running": 0, "waiting": 0}
    before = decoder.metrics()
    made = complete(decoder, max_tokens=5)
    assert decoder.refusal("/v1/completions", {"prompt": PROMPT, "n": 0})[0] == 400
    after = decoder.metrics()
    change = {name: value - before.get(name, 0) for name, value in after.items()}
    assert change['oneblock_requests_total{route="/v1/completions",status="200"}'] == 1
    assert change['oneblock_requests_total{route="/v1/completions",status="400"}'] == 1
    assert change["oneblock_prompt_tokens_total"] == made.usage.prompt_tokens
    assert change["oneblock_generated_tokens_total"] == 5
    assert change["oneblock_first_token_seconds_count"] == change["oneblock_tokens_per_second_count"] == 1
    assert after["oneblock_waiting_texts"] == after["oneblock_running_texts"] == 0
    ended = complete(decoder, logit_bias={str(tokenizer().eos_id): 100})  # the first token is the end
    assert (ended.choices[0].text, ended.usage.completion_tokens, ended.choices[0].finish_reason) == ("", 0, "stop")
    last = decoder.metrics()
    assert last["oneblock_first_token_seconds_count"] - after["oneblock_first_token_seconds_count"] == 1
    assert last["oneblock_tokens_per_second_count"] == after["oneblock_tokens_per_second_count"]
    complete(decoder, max_tokens=0, logprobs=0, echo=True)  # no token is asked for
    assert decoder.metrics()["oneblock_first_token_seconds_count"] == last["oneblock_first_token_seconds_count"]


def test_the_event_loop_reads_and_writes_nothing_long(decoder, encoder, monkeypatch):
    """Bodies are parsed and answers written beside it: whoever asks for the health is not kept waiting."""
    seen = set()

    def noted(module, name):
        real = getattr(module, name)

        def work(*args):
            seen.add((name, threading.current_thread().name.rsplit("_", 1)[0]))
            return real(*args)

        monkeypatch.setattr(module, name, work)

    for module, name in ((app, "parse"), (answers, "embeddings"), (answers, "_dumped"), (lanes, "parts_of")):
        noted(module, name)
    complete(decoder, max_tokens=2)
    encoder.client.embeddings.create(model=NAME, input=[PROMPT, OTHER], encoding_format="float")
    assert seen == {
        ("parse", "oneblock-reader"),
        ("embeddings", "oneblock-reader"),
        ("_dumped", "oneblock-reader"),
        ("parts_of", "oneblock-model"),
    }


def test_json_is_written_a_piece_at_a_time(monkeypatch):
    value = answers.embeddings("m", np.ones((40, 5), np.float32), False, 3)
    value |= {"a": [], "b": {}, "c": [{"d": None, "e": [1.5, "ä\ud800"]}], "f": [[1], [2]], "g": "\u2028"}
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    sizes, real = [], answers._dumped
    monkeypatch.setattr(answers, "_dumped", lambda one: (sizes.append(len(str(one))), real(one))[1])
    assert answers.encoded(value) == plain and json.loads(plain)["data"][3]["embedding"] == [1.0] * 5
    assert max(sizes) < 40
    with pytest.raises(ValueError):
        answers.encoded({"a": [{"b": float("nan")}]})


def test_speech_is_the_same_however_its_tokens_come():
    """One by one or all at once: text, tokens and count are equal, and no token of a stop text is told."""
    words = tokenizer()
    ids = words.encode("a maple leaf — naïve 川 and a ribbon")
    text = words.decode(ids)
    for stop in ((), ("川",), ("ve 川 and", "xyz"), ("a",)):
        found = []
        for size in (1, 3, len(ids)):
            speech, said = Speech(words, [0], stop), []
            for start in range(0, len(ids), size):
                part = ids[start : start + size]
                said.append(speech.read(0, part, [-1.0] * len(part), "length" if start + size >= len(ids) else ""))
                if said[-1].finish:
                    break
            tokens = [token for piece in said for token in piece.tokens]
            whole = "".join(piece.text for piece in said)
            found.append((whole, [token.text for token in tokens], said[-1].count, said[-1].finish))
        assert found[0] == found[1] == found[2]
        cut = min((text.find(word) for word in stop if word in text), default=len(text))
        whole, tokens, count, finish = found[0]
        assert whole == text[:cut] and finish == ("stop" if cut < len(text) else "length")
        assert "".join(tokens).startswith(whole) and (count < len(ids)) == (cut < len(text))
