"""Generation is the same whatever keeps the keys and values: rings, eight bits, a mesh; and keeps them in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.generation import beams, decoding, text_batch
from zoo.generation.prompts import left_padded
from zoo.generation.sampling import Sampling
from zoo.generation.text_batch import TextBatch
from zoo.layer_config import LayerConfig
from zoo.partition import shardings

NEW = 12
PROMPTS = [list(range(1, 21)), [5, 6, 7]]


@pytest.fixture(scope="module")
def made():
    """Layers of a window of four and of none, in turn, scanned and cut short; parameters that make up their mind."""
    pattern = (LayerConfig(window=4), LayerConfig(window=4), LayerConfig())
    sizes = dict(vocab_size=48, embed_dim=32, num_heads=4, num_kv_heads=2, mlp_dim=64, num_layers=5, max_positions=64)
    model = zoo.create("llama-tiny", **sizes, layer_pattern=pattern, scan=True)
    params = model.init(jax.random.key(1))
    return model, jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 2 else leaf, params)


@pytest.fixture(scope="module")
def greedy(made):
    return zoo.generate(*made, PROMPTS, max_new_tokens=NEW)


def test_a_ring_gives_the_text_of_whole_passes_in_chunks_longer_than_the_window(made, greedy, monkeypatch):
    model, params = made
    apply = jax.jit(lambda row: model.apply(params, row).logits)
    for prompt, tokens in zip(PROMPTS, greedy.tokens, strict=True):
        row = np.zeros((1, 32), np.int32)
        row[0, : len(prompt)] = prompt
        for at in range(len(prompt), len(prompt) + NEW):
            row[0, at] = int(jnp.argmax(apply(row)[0, at - 1]))  # causal: what follows `at` does not matter
        assert tokens.tolist() == row[0, len(prompt) : len(prompt) + NEW].tolist()
    monkeypatch.setattr(text_batch, "CHUNK", 8)
    parts = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW)
    assert parts.tokens.tolist() == greedy.tokens.tolist()
    np.testing.assert_allclose(parts.log_probs, greedy.log_probs, atol=1e-5)


def test_eight_bits_change_no_token_that_is_ahead_by_more_than_they_move_it(made, greedy):
    model, params = made
    rough = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, cache_dtype="int8")
    sure, rows = 0, [prompt + tokens.tolist() for prompt, tokens in zip(PROMPTS, greedy.tokens, strict=True)]
    tokens, mask = left_padded(rows, 32)
    exact, near = (
        np.asarray(model.apply(params, tokens, padding_mask=mask, cache=model.init_cache(2, 32, dtype, True)).logits)
        for dtype in ("float32", "int8")
    )
    for i in range(len(PROMPTS)):
        logits = exact[i, -NEW - 1 : -1]
        moved = np.abs(near[i, -NEW - 1 : -1] - logits).max(axis=1)
        best = np.sort(logits, axis=1)[:, -2:]
        ahead = best[:, 1] - best[:, 0] > 2 * moved
        count = NEW if ahead.all() else int(np.argmin(ahead))
        assert rough.tokens[i, :count].tolist() == greedy.tokens[i, :count].tolist()
        assert 0 < moved.max() < 0.5
        sure += count
    assert sure >= NEW  # half of all tokens and more are ahead


@pytest.mark.parametrize("axes", [dict(data=2, tensor=2), dict(fsdp=2, tensor=4)], ids=str)
def test_over_a_mesh_the_text_is_that_of_one_device(made, greedy, axes):
    model, params = made
    devices = np.asarray(jax.devices()[: int(np.prod(list(axes.values())))]).reshape(*axes.values())
    mesh = jax.sharding.Mesh(devices, tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
    placed = jax.device_put(params, shardings(mesh, params))
    with jax.set_mesh(mesh):
        work = TextBatch(model, placed, PROMPTS, [Sampling()] * 2, max_new_tokens=NEW)
        work.advance(NEW)
        keys = work.now.cache.keys[0]
        rows, heads = keys.sharding.shard_shape(keys.shape)[1:3]
        assert rows == 1 and heads == (1 if axes["tensor"] == 2 else 2)
        tokens, lengths, log_probs, _ = work.result()
    assert tokens.tolist() == greedy.tokens.tolist() and lengths.tolist() == greedy.lengths.tolist()
    np.testing.assert_allclose(log_probs, greedy.log_probs, atol=1e-5)


def test_the_cache_is_written_in_place(made):
    """The program that goes on takes the caches' buffers for its own, and so does the one that begins."""
    model, params = made
    work = TextBatch(model, params, PROMPTS, [Sampling()] * 2, max_new_tokens=NEW)
    now, size = work.now, sum(leaf.nbytes for leaf in jax.tree.leaves(work.now.cache))
    lowered = decoding.advance.lower(params, now, work._rules, jnp.int32(3), model=model, parts=work._parts)
    assert lowered.compile().memory_analysis().alias_size_in_bytes >= size
    work.advance(3)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(now.cache))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def capacities(work, until, by=5):
    """The capacities that a batch of texts has on its way."""
    seen = [work.capacity]
    while work.step < until and not work.finished:
        work.advance(work.step + by)
        seen.append(work.capacity)
    return sorted(set(seen))


def test_a_long_text_starts_in_few_slots_and_is_the_same(made, monkeypatch):
    """Below and above the windows; drawn with penalties, that their memory goes along with."""
    model, params = made
    sampling = [Sampling(temperature=1.5, repetition_penalty=1.2, frequency_penalty=0.3), Sampling()]
    asked = dict(max_new_tokens=30, key=jax.random.key(8))
    whole = TextBatch(model, params, PROMPTS, sampling, **asked)
    assert capacities(whole, 30, by=30) == [62]
    monkeypatch.setattr(text_batch, "SLOTS", 9)
    grown = TextBatch(model, params, PROMPTS, sampling, **asked)
    assert capacities(grown, 30) == [36, 62]
    at_once = TextBatch(model, params, PROMPTS, sampling, **asked)
    at_once.advance(30)
    for work in (grown, at_once):
        for mine, right in zip(work.result(), whole.result(), strict=True):
            np.testing.assert_allclose(mine, right, atol=1e-5)


def test_rows_that_are_kept_go_on_as_they_would(made):
    """In another order, one of them twice but ended; each with its own settings, key and memory."""
    model, params = made
    rows = [*PROMPTS, [9, 8]]
    for banned in (((), (), ()), ((), (3,), (4, 5))):  # offsets that all rows share, and a row's own
        penalties = dict(temperature=1.5, presence_penalty=0.5, repetition_penalty=1.1)
        samplings = [Sampling(**penalties, top_k=k, banned=ids) for k, ids in zip((0, 5, 9), banned, strict=True)]
        asked = dict(max_new_tokens=NEW, key=jax.random.key(8))
        whole, part = (TextBatch(model, params, rows, samplings, **asked) for _ in range(2))
        whole.advance(NEW)
        part.advance(4)
        part.keep([2, 1, 1])
        part.end([False, False, True])
        part.advance(NEW)
        tokens, lengths, log_probs, ended = part.result()
        right = whole.result()
        assert tokens[:2].tolist() == right[0][[2, 1]].tolist() and lengths.tolist() == [NEW, NEW, 4]
        np.testing.assert_allclose(log_probs[:2], right[2][[2, 1]], atol=1e-5)
        assert ended.tolist() == [False, False, True] and part.now.cache.valid.shape[0] == 3


def test_the_loop_ends_with_its_last_row(made, greedy):
    """Steps run: those of the row that ends last, its stop token among them, and none more."""
    model, params = made
    stops = tuple({int(greedy.tokens[0, 2]), int(greedy.tokens[1, 4])})
    work = TextBatch(model, params, PROMPTS, [Sampling()] * 2, max_new_tokens=NEW, stop_ids=stops)
    work.advance(NEW)
    lengths = work.result()[1]
    assert work.now.done.all() and work.step == lengths.max() + 1 < NEW
    assert int(work.now.cache.length) == 32 + work.step - 1  # prompts take 32 slots, and the last token was not read


def test_prompts_of_samples_and_the_texts_of_beams_are_written_in_place(made):
    """The pass over the prompts writes into the cache that it gets; samples get copies, and beams go on in theirs."""
    model, params = made
    asked = dict(max_new_tokens=NEW, key=jax.random.key(0), samples=3, in_turns=True)
    work = TextBatch(model, params, PROMPTS, [Sampling(temperature=1.0)] * 2, **asked)
    cache = work._unread.cache
    work.read()
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(cache)) and work.now.cache.valid.shape[0] == 6
    tokens, mask = left_padded(PROMPTS, 32)
    cache = model.init_cache(2, 44, ring=True)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(cache))
    lowered = decoding.last_logits.lower(params, tokens, mask, cache, model=model)
    assert lowered.compile().memory_analysis().alias_size_in_bytes >= size
    now = beams._begin(*text_batch.read_prompts(model, params, tokens, mask, cache), beams=2, steps=NEW)
    rules = dict(stops=jnp.zeros(0, jnp.int32), penalty=jnp.float32(1.0), most=jnp.int32(NEW))
    beams._go_on(params, now, jnp.int32(1), **rules, model=model, limit=48)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((cache, now.cache)))


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="XLA of jax 0.10 copies them all the same")
def test_a_step_copies_no_keys_and_values():
    """Written once and read where it lies: in the compiled loop no instruction copies an array of a buffer's shape."""
    sizes = dict(vocab_size=48, embed_dim=32, num_heads=4, num_kv_heads=2, mlp_dim=64, num_layers=2, max_positions=128)
    model = zoo.create("llama-tiny", **sizes)
    work = TextBatch(model, model.init(jax.random.key(1)), PROMPTS[:1], [Sampling()], max_new_tokens=NEW)
    shape = work.now.cache.keys[0].shape
    given = work._params, work.now, work._rules, jnp.int32(NEW)
    text = decoding.advance.lower(*given, model=model, parts=work._parts).compile().as_text()
    wanted = f"f32[{','.join(map(str, shape))}]"
    assert f"{wanted}{{3,2,1,0}}" in text
    assert not [line for line in text.splitlines() if f" {wanted}" in line and " copy(" in line]
