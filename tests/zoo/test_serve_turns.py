"""The model's thread, turn by turn and without a socket: no turn is long, no more is held than is promised, and what is
told of a text does not depend on how it was asked for."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.zoo.serving import NAME, expected, model_and_params, tokenizer
from zoo import text_rows
from zoo.generation.sampling import Sampling, for_rows
from zoo.serve import engine as engines
from zoo.serve import lanes, scoring, vector_lane
from zoo.serve.asked import TextsAsked
from zoo.serve.engine import Engine
from zoo.serve.jobs import Said, TextJob, VectorJob
from zoo.serve.limits import Limits, Refusal
from zoo.serve.meters import Meters
from zoo.serve.served import Served
from zoo.text_rows import LARGEST

PROMPT = [3, 4, 5, 6]


def idle(preset="gpt-tiny", model=None, cache_dtype=None, **limits) -> Engine:
    """An engine whose turns the test takes: engine._work() is one."""
    made = (model, model.init(jax.random.key(1))) if model else model_and_params(preset)
    found = Engine(Served(*made, tokenizer(), NAME, Limits(**limits), cache_dtype), Meters())
    found._thread = SimpleNamespace(is_alive=lambda: True, ident=None)
    return found


class Told:
    """Keeps what a job is told."""

    def __init__(self, *args, **kwargs):
        super().__init__(None, *args, **kwargs)
        self.told = []

    def tell(self, event):
        self.told.append(event)


class Texts(Told, TextJob):
    pass


class Embeddings(Told, VectorJob):
    pass


def texts(prompts, most, seed=0, **asked) -> Texts:
    asked = {"sampling": Sampling(vocab_limit=360)} | asked
    return Texts(TextsAsked(**asked), prompts, most, seed)


def work(engine: Engine, turns: int = 400) -> None:
    """Until nothing is left."""
    for _ in range(turns):
        if not engine._lanes and not engine._waiting:
            return
        engine._work()
    raise AssertionError("there is no end")


def ended(job: Texts) -> list[Said]:
    assert all(isinstance(said, Said) for said in job.told), job.told
    return [said for said in job.told if said.finish]


# Scores ---------------------------------------------------------------------------------------------------------------


def test_memory_of_the_scores_of_a_long_text_is_bounded():
    """A chunk of a text of 8,192 tokens and 9 heads; the whole in one pass reserved 7.2 GB."""
    model = zoo.create("llama-tiny", embed_dim=72, num_heads=9, num_kv_heads=3, num_layers=1, max_positions=8192)
    chunk = scoring.chunk_of(model.config, 8192)
    ids, cache = jax.ShapeDtypeStruct((1, chunk), jnp.int32), jax.eval_shape(lambda: model.init_cache(1, 8192))
    following, limit = jax.ShapeDtypeStruct((chunk,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
    given = (model.init_shapes(), ids, ids, following, limit, cache)
    lowered = scoring.scores.lower(*given, model=model, count=20)
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 2 * 4 * LARGEST
    assert chunk == 256 and scoring.chunk_of(model.config, 2**17) == 16


@pytest.mark.parametrize("chunk", [16, 256])
def test_scores_of_a_long_text_are_those_of_one_pass_a_chunk_a_turn(chunk, monkeypatch):
    monkeypatch.setattr(scoring, "CHUNK", chunk)
    engine, ids = idle(), np.random.default_rng(0).integers(5, 300, 100).tolist()
    job = texts([ids], [0], top=3, echo=True)
    engine.submit(job)
    turns = 0
    while not job.told:
        engine._work()
        turns += 1
    assert turns == -(-scoring.width_of(model_and_params("gpt-tiny")[0].config, 100) // chunk)
    model, params = model_and_params("gpt-tiny")
    truth = np.asarray(jax.nn.log_softmax(model.apply(params, np.array([ids], np.int32)).logits[0]))
    (said,) = ended(job)
    assert said.prompt[0].log_prob is None
    found = [token.log_prob for token in said.prompt[1:]]
    np.testing.assert_allclose(found, truth[np.arange(99), ids[1:]], atol=1e-5)
    tops = [[share for _, share in token.top] for token in said.prompt[1:]]
    np.testing.assert_allclose(tops, -np.sort(-truth[:99, :360], axis=1)[:, :3], atol=1e-5)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "int8"])
def test_log_probabilities_are_those_of_the_run_whatever_else_is_shown(kind):
    """Angles that go by the length, and a cache in int8: a plain pass over the finished text has other numbers."""
    sizes = dict(vocab_size=360, embed_dim=32, mlp_dim=64, num_layers=1, max_positions=96)
    scaling = {
        "dynamic": zoo.RotaryScaling("dynamic", factor=4.0, original_max_positions=16),
        "longrope": zoo.RotaryScaling(
            "longrope", factor=4.0, original_max_positions=16, short_factors=(1.0,) * 4, long_factors=(3.0,) * 4
        ),
    }
    model = zoo.create("llama-tiny", **sizes, num_heads=4, num_kv_heads=2, head_dim=8, rotary_scaling=scaling.get(kind))
    params = jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, model.init(jax.random.key(1)))
    served = Served(model, params, tokenizer(), NAME, Limits(), "int8" if kind == "int8" else None)
    engine = idle()
    engine._desk = engine._desk._replace(served=served)
    found = []
    for top in (0, 1, 20):
        job = texts([PROMPT], [20], top=top)
        engine.submit(job)
        work(engine)
        found.append(ended(job)[0])
    plain, *more = ([token.log_prob for token in said.tokens] for said in found)
    assert len(plain) > 10 and plain == more[0] == more[1]
    for said in found[1:]:  # greedy: each token is the likeliest of its place
        likeliest = [token.top[0][1] for token in said.tokens]
        np.testing.assert_allclose(likeliest, plain, rtol=0, atol=1e-5)


def test_weights_that_are_not_numbers_are_the_server_s_fault(caplog):
    engine = idle()
    served = engine._desk.served
    broken = jax.tree.map(lambda leaf: leaf * np.nan, served.params)
    engine._desk = engine._desk._replace(served=Served(served.model, broken, served.tokenizer, NAME))
    for job in (texts([PROMPT], [4]), texts([PROMPT], [0], top=0, echo=True)):
        engine.submit(job)
        work(engine)
        assert [type(event) for event in job.told] == [Refusal] and job.told[0].status == 500
    assert "its weights are not sound" in caplog.text


# Places ---------------------------------------------------------------------------------------------------------------


def test_no_more_rows_are_held_than_may_be_at_work():
    """A long text and short ones, again and again: the batch that the long one keeps counts as what it holds."""
    engine, held = idle(concurrency=8), []
    jobs = []
    for _ in range(4):
        jobs.append(texts([PROMPT] * 8, [90] + [1] * 7))
        engine.submit(jobs[-1])
        for _ in range(3):
            engine._work()
            works = [lane._work for lane in engine._lanes if getattr(lane, "_work", None) is not None]
            rows = sum(one.now.cache.valid.shape[0] for one in works if one.now is not None)
            held.append(rows)
            assert rows <= engine.held <= 8 and engine.running <= engine.held
    work(engine)
    assert max(held) >= 4 and all(len(ended(job)) == 8 for job in jobs)
    assert engine.running == engine.waiting == engine.held == 0


@pytest.mark.parametrize("places", [1, 3, 8])
def test_a_batch_has_no_more_rows_than_there_are_places(places):
    engine = idle(concurrency=places, max_waiting=64)
    engine.submit(texts([PROMPT] * 10, [2] * 10))
    while engine._waiting:
        lane = engine._next_lane()
        if lane is None:
            break
        engine._lanes.append(lane)
        assert lane.size <= lane.held and engine.held <= places
    assert engine.running == places


def test_a_fifth_kind_does_not_wait_for_the_end_of_four_others(monkeypatch):
    monkeypatch.setattr(engines, "PATIENCE", 0.0)
    engine = idle(concurrency=8)
    longs = [texts([[3] * length], [30]) for length in (4, 40, 70)] + [
        texts([PROMPT], [90], sampling=Sampling(temperature=1.0, vocab_limit=360))
    ]
    for job in longs:
        engine.submit(job)
    for _ in longs:
        engine._work()
    assert len(engine._lanes) == 4
    short = texts([PROMPT], [4], sampling=Sampling(presence_penalty=1.0, vocab_limit=360))
    engine.submit(short)
    while not short.told:
        engine._work()
    assert sum(bool(ended(job)) for job in longs) < 4
    work(engine)


def test_running_texts_are_counted_once():
    """Whoever asks in the middle of a start hears no more than there are."""
    engine, seen = idle(concurrency=2, max_waiting=0), []

    class Watching(lanes.TextLane):
        def __init__(self, *args):
            super().__init__(*args)
            seen.append(engine.running + engine.waiting)

        def turn(self):
            seen.append(engine.running + engine.waiting)
            super().turn()
            seen.append(engine.running + engine.waiting)

    job = texts([PROMPT] * 2, [6, 6])
    original, engines.TextLane = engines.TextLane, Watching
    try:
        engine.submit(job)
        work(engine)
    finally:
        engines.TextLane = original
    assert max(seen) == 2 and engine.running == 0


# Turns ----------------------------------------------------------------------------------------------------------------


def test_prompts_are_read_a_chunk_a_turn_and_others_go_on_between(monkeypatch):
    monkeypatch.setattr(lanes, "READ", 64)
    engine, ids = idle(concurrency=8), np.random.default_rng(1).integers(5, 300, 70).tolist()
    short = texts([PROMPT], [40], stream=True)
    engine.submit(short)
    engine._work()
    long = texts([ids] * 4, [8] * 4)  # 96 columns of four rows, 16 a turn
    engine.submit(long)
    before, turns = len(short.told), []
    while not long.told:
        engine._work()
        turns.append(len(short.told))
    # Six turns to read, one or two to make eight tokens; between any two the short text had its own.
    assert len(turns) >= 12 and turns[6] > before and turns[-1] > turns[6]
    work(engine)
    assert [said.text for said in ended(long)] == expected(ids, 8).texts * 4
    assert "".join(said.text for said in short.told) == expected(PROMPT, 40).texts[0]


def test_prompts_of_clients_that_left_are_not_read_on(monkeypatch):
    monkeypatch.setattr(lanes, "READ", 64)
    calls = []
    known = lanes.TextBatch.read
    monkeypatch.setattr(lanes.TextBatch, "read", lambda self: (calls.append(1), known(self)))
    engine, ids = idle(concurrency=8), np.random.default_rng(1).integers(5, 300, 70).tolist()
    long = texts([[7] * 70] * 4, [8] * 4)
    engine.submit(long)
    engine._work()
    engine.cancel(long)
    work(engine, turns=2)
    assert calls == [1] and engine.held == engine.running == 0 and not long.told
    other, stays = texts([[7] * 70] * 3, [8] * 3), texts([ids], [8])
    engine.submit(other)
    engine.submit(stays)
    engine._work()
    assert (engine.held, engine.running, len(engine._lanes)) == (4, 4, 1)
    engine.cancel(other)
    engine._work()
    assert (engine.held, engine.running) == (1, 1)  # of what was read so far the row that stays is kept, and no other
    work(engine)
    assert ended(stays)[0].text == expected(ids, 8).texts[0] and not other.told


def test_what_a_text_may_become_costs_nothing_before():
    """Texts that may fill the model's positions begin in as few slots as short ones, and go with them."""
    sizes = dict(vocab_size=360, embed_dim=32, mlp_dim=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16)
    engine = idle(model=zoo.create("llama-tiny", **sizes, max_positions=4096))
    open_end, short = texts([PROMPT], [4000]), texts([PROMPT], [8])
    engine.submit(open_end)
    engine.submit(short)
    engine._work()
    (lane,) = engine._lanes
    assert lane.size == 2 and lane._work.capacity == 512
    for job in (open_end, short):
        engine.cancel(job)
    work(engine)


def test_embeddings_go_by_length_a_bounded_batch_a_turn(monkeypatch):
    monkeypatch.setattr(vector_lane, "TOKENS", 256)
    engine = idle("bert-tiny")
    model, params = model_and_params("bert-tiny")
    ids = [[7 + length] * length for length in (100, 3, 5, 90, 4, 2, 110, 8, 9, 3)]
    job = Embeddings(text_rows.framed(ids, tokenizer(), model.config)[0])
    lane, shapes = vector_lane.VectorLane(engine._desk, job), []
    while not lane.finished:
        shapes.append(lane._next()[1].tokens.shape)
        lane.turn()
    assert shapes == [(16, 16), (1, 128), (1, 128), (1, 128)]
    truth = zoo.embed(model, params, ids, tokenizer=tokenizer())
    np.testing.assert_allclose(job.told[0].values, truth, rtol=0, atol=1e-6)


# Programs -------------------------------------------------------------------------------------------------------------


def test_few_kinds_of_programs_whatever_is_asked_for():
    """Eight kinds of sampling; each does all that its rows need, and what they do not need changes nothing."""
    settings = [
        Sampling(temperature=t, top_k=k, top_p=p, min_p=m, repetition_penalty=r, presence_penalty=pp, logit_bias=b)
        for t in (0.0, 1.0)
        for k in (0, 1, 7, 64, 100, 360)
        for p in (1.0, 0.9)
        for m in (0.0, 0.1)
        for r in (1.0, 1.3)
        for pp in (0.0, 1.0)
        for b in ({}, {3: 5.0})
    ]
    found = {lanes.parts_of(one, 360) for one in settings}
    assert len(found) == 8
    for one in settings:
        needed, given = for_rows([one], 360)[0], lanes.parts_of(one, 360)
        assert given.draws == needed.draws and given.head >= needed.head
        for name in ("min_p", "repetition", "counted", "offset"):
            assert getattr(given, name) >= getattr(needed, name)
    one, other = ([Sampling(logit_bias=bias)] for bias in ({3: 5.0}, {4: 1.0}))
    shapes = {for_rows(rows, 360, lanes.parts_of(rows[0], 360))[1].offsets.shape for rows in (one * 4, one * 3 + other)}
    assert shapes == {(4, 360)}
