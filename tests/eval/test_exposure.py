"""Exposure bias on bigrams, where every expectation is a sum over eight tokens."""

import json

import numpy as np
import pytest

from eval.cli import evaluate
from eval.language.exposure import divergences, measure, windows
from tests.eval.table_model import LETTERS, Letters, bigram, log_softmax, random_table
from zoo.checkpoints import run_folder
from zoo.errors import InputError

# The control pieces are never written: the models part on letters alone.
P_TABLE = random_table(5)
P_TABLE[:, :3] = -30.0
O_TABLE = random_table(6)
O_TABLE[:, :3] = -30.0
LOG_P, LOG_O = log_softmax(P_TABLE), log_softmax(O_TABLE)
KL = (np.exp(LOG_O) * (LOG_O - LOG_P)).sum(axis=1)  # of each current token
ENTROPY = -(np.exp(LOG_P) * LOG_P).sum(axis=1)


@pytest.fixture(scope="module")
def model():
    return bigram(P_TABLE)


def draw_text(log_p, length, seed):
    """A text of pieces drawn from a bigram, without "a" before "b", which would be another piece."""
    rng, ids = np.random.default_rng(seed), [5]
    while len(ids) < length:
        nxt = int(rng.choice(8, p=np.exp(log_p[ids[-1]]) / np.exp(log_p[ids[-1]]).sum()))
        if nxt > 2 and not (ids[-1] == 3 and nxt == 4):
            ids.append(nxt)
    return "".join(LETTERS[i] for i in ids)


TEXT = draw_text(LOG_O, 400, 0)


def test_each_loss_and_each_error_by_hand(model, one):
    found = measure(*model, Letters(), [TEXT], prompt=3, depth=6, rows=20, reference=bigram(O_TABLE), devices=one)
    heads, truths = windows(Letters(), [TEXT], 3, 6, 20, 32)
    assert found.true.shape == found.own.shape == (20, 6) and np.isfinite(found.own).all()
    for prompt, following, losses, errors in (
        (heads, truths, found.true, found.true_error),
        (heads, found.tokens, found.own, found.own_error),
    ):
        before = np.concatenate([np.array(prompt)[:, -1:], following[:, :-1]], axis=1)
        np.testing.assert_allclose(losses, -LOG_P[before, following], atol=1e-5)
        np.testing.assert_allclose(errors, KL[before], atol=1e-5)
    expected = found.own_error.sum() / found.true_error.sum() - 1
    assert found.excess_error() == pytest.approx(expected)
    differences = (found.own - found.true).mean(axis=1)
    assert found.drift().mean == pytest.approx(differences.mean()) and found.drift().n == 20


def test_the_models_own_text_has_its_entropy_and_the_references_error(model, one):
    """After t own tokens the current one is distributed as e_prompt P^t: four standard errors of its expectation."""
    found = measure(*model, Letters(), [TEXT], prompt=3, depth=6, rows=40, reference=bigram(O_TABLE), devices=one)
    heads, _ = windows(Letters(), [TEXT], 3, 6, 40, 32)
    state = np.eye(8)[np.array(heads)[:, -1]]  # [R, 8]
    entropy, regret = [], []
    for _ in range(6):
        entropy.append((state @ ENTROPY).mean())
        regret.append((state @ KL).mean())
        state = state @ np.exp(LOG_P)
    for seen, expected in ((found.own, np.mean(entropy)), (found.own_error, np.mean(regret))):
        assert abs(seen.mean() - expected) < 4 * seen.std() / np.sqrt(seen.size)
    assert found.own[:, 0].mean() != pytest.approx(found.true[:, 0].mean(), abs=1e-3)


def test_a_model_that_is_its_reference_makes_no_error(model, one):
    found = measure(*model, Letters(), [TEXT], prompt=3, depth=6, rows=8, reference=model, devices=one)
    assert np.abs(found.true_error).max() < 1e-6 and np.abs(found.own_error).max() < 1e-6
    assert found.excess_error() is None
    assert measure(*model, Letters(), [TEXT], prompt=3, depth=6, rows=8, devices=one).excess_error() is None


def test_a_text_that_the_model_ends_counts_up_to_its_end(one):
    """EOS (2) follows whatever stands there with probability one: one token of own text a row."""
    table = np.zeros((8, 8), np.float32)
    table[:, 2] = 40.0
    found = measure(*bigram(table), Letters(), [TEXT], prompt=3, depth=6, rows=8, devices=one)
    assert np.isfinite(found.own[:, 0]).all() and np.isnan(found.own[:, 1:]).all()
    assert found.drift(slice(0, 1)).mean == pytest.approx(-40, abs=1e-3)
    assert np.isnan(found.drift(slice(1, 4)).mean) and found.drift(slice(1, 4)).n == 0


def test_divergence_ignores_padded_ids(model):
    heads, following = [[1, 5]], np.array([[4, 5]], np.int32)
    whole = divergences(*model, *bigram(O_TABLE), 8, heads, following)
    cut = divergences(*model, *bigram(O_TABLE), 6, heads, following)
    p, o = log_softmax(P_TABLE[:, :6]), log_softmax(O_TABLE[:, :6])
    np.testing.assert_allclose(cut[0], (np.exp(o) * (o - p)).sum(axis=1)[[5, 4]], atol=1e-5)
    np.testing.assert_allclose(whole[0], KL[[5, 4]], atol=1e-5)


def test_the_same_seed_writes_the_same(model, one):
    first, again, other = (
        measure(*model, Letters(), [TEXT], prompt=3, depth=6, rows=18, seed=seed, devices=one) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert (first.tokens != other.tokens).any()
    assert (first.tokens[0] != first.tokens[1]).any()


def test_bad_input(model):
    with pytest.raises(InputError, match="hold 0 windows of 12 tokens; two or more are needed"):
        measure(*model, Letters(), ["cab"], prompt=4, depth=8)
    with pytest.raises(InputError, match="exceed the model's 32 positions"):
        measure(*model, Letters(), [TEXT], prompt=4, depth=28)
    with pytest.raises(InputError, match="rows 1: 1, 1 and 2 are the least"):
        measure(*model, Letters(), [TEXT], rows=1)
    with pytest.raises(InputError, match="the reference has 6 ids and the model 8"):
        measure(*model, Letters(), [TEXT], prompt=2, depth=4, rows=4, reference=bigram(np.zeros((6, 6))))


def test_the_command(gpt, tokenizer, tmp_path, capsys):
    folder = tmp_path / "gpt"
    folder.mkdir()
    run_folder.save(*gpt, folder, tokenizer)
    page = tmp_path / "page.txt"
    page.write_text("hammer nail saw plank, oven bread butter. " * 20, encoding="utf-8")
    words = ["exposure", str(folder), "--data", str(page), "--prompt", "3", "--depth", "6", "--rows", "8"]
    assert evaluate([*words, "--reference", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [line["depths"] for line in found["depths"]] == ["1 to 2", "3 to 4", "5 to 5", "6 to 6", "all"]
    expected = measure(*gpt, tokenizer, [page.read_text()], prompt=3, depth=6, rows=8)
    assert found["windows"] == 8 and found["excess_error"] is None
    assert found["depths"][-1]["true"] == pytest.approx(expected.true.mean(), rel=1e-4)
    assert found["depths"][-1]["own"] == pytest.approx(np.nanmean(expected.own), rel=1e-4)
    assert abs(found["depths"][-1]["own_error"]) < 1e-5
    assert evaluate(words) == 0
    assert "own - true" in capsys.readouterr().out
    assert evaluate([*words, "--reference", "nowhere"]) == 2
    assert 'no folder "nowhere"' in capsys.readouterr().err
