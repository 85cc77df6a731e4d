"""Multiple choice: files of four layouts, rows of options, one softmax a question, and learning it both ways."""

import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from eval.encode import collate
from eval.finetune import FinetuneConfig, finetune, with_task_head
from eval.kinds import CHOICE
from eval.kinds.choice import delimiter, encode_choices, loss
from eval.predict import evaluate, predict_encoded
from eval.sources.choices import Choice, clean_hellaswag, read
from eval.task import Task
from tests import made_up
from zoo import InputError
from zoo.tokenizer import load_tokenizer

TASK = Task("own", "own", (), ("context", "options"), "label", "", kind="choice", reader="choices")
CONFIG = FinetuneConfig(learning_rate=4e-3, epochs=12, max_length=32, dropout=0.0)


def choices(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read(TASK, path)


def lines(*rows):
    return "\n".join(map(json.dumps, rows)) + "\n"


def test_swag(tmp_path):
    text = (
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
        '0,v,1,x,"Two men, one old.",He,gold,"sings, well.",runs.,sits.,eats.,2\n'
    )
    examples, families, dropped = choices(tmp_path, "train.csv", text)
    assert examples == [Choice("Two men, one old. He", ("sings, well.", "runs.", "sits.", "eats."), 2)]
    assert families == ["Two men, one old. He"] and dropped == {"without a label": 0}


def test_hellaswag(tmp_path):
    row = {
        "activity_label": "Baking",
        "ctx_a": "Mix it.",
        "ctx_b": "then he",
        "ctx": "[header] Mix it [title] Heat it. [step] then he",
        "endings": ["bakes [substeps] it.", "sleeps."],
        "label": 0,
    }
    hidden = row | {"label": ""}
    examples, _, dropped = choices(tmp_path, "val.jsonl", lines(row, hidden))
    assert examples == [Choice("Baking: Mix it. Heat it. then he", ("bakes it.", "sleeps."), 0)]
    assert dropped == {"without a label": 1}
    del row["ctx"]
    assert choices(tmp_path, "b.jsonl", lines(row))[0][0].context == "Baking: Mix it. then he"
    assert clean_hellaswag("a  [b c] d [title] e") == "a d. e"


def arc(key, labels=("A", "B", "C")):
    options = [{"text": f"option {label}", "label": label} for label in labels]
    return {"id": "1", "question": {"stem": " Why? ", "choices": options}, "answerKey": key}


def test_arc_has_letters_or_numbers_and_three_to_five_options(tmp_path):
    rows = lines(arc("C"), arc("2", ("1", "2", "3", "4")), arc("E", "ABCDE"), arc(""))
    examples, _, dropped = choices(tmp_path, "arc.jsonl", rows)
    assert [(e.context, len(e.options), e.label) for e in examples] == [("Why?", 3, 2), ("Why?", 4, 1), ("Why?", 5, 4)]
    assert examples[0].options[2] == "option C" and dropped == {"without a label": 1}
    with pytest.raises(InputError, match="line 1: the label names none of 3 options"):
        choices(tmp_path, "bad.jsonl", lines(arc("D")))


def test_plain_files(tmp_path):
    examples, _, _ = choices(tmp_path, "mine.jsonl", lines({"context": "c", "options": ["a", "b"], "label": 1}))
    assert examples == [Choice("c", ("a", "b"), 1)] and examples[0].texts == ("c", "a", "b")


@pytest.mark.parametrize(
    "row, line",
    [
        ({"context": "c", "options": ["a", ""], "label": 1}, "line 1: 2 options, some of them empty"),
        ({"context": "c", "options": ["a"], "label": 0}, "line 1: 1 options"),
        ({"context": "c", "options": "a", "label": 0}, "line 1: not as the other rows are"),
        ({"context": "c", "options": ["a", "b"], "label": 2}, "line 1: the label names none of 2 options"),
        ({"context": "c", "options": ["a", "b"], "label": "b"}, 'label "b" is no whole number from 0'),
        ({"context": "c", "options": ["a", "b"], "label": ""}, "1 questions without a label, as in a published test"),
        ({"text": "c", "label": 0}, "the fields are text, label; those of multiple choice are sent1"),
    ],
)
def test_other_files_are_one_line(tmp_path, row, line):
    with pytest.raises(InputError, match=line) as error:
        choices(tmp_path, "other.jsonl", lines(row))
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def own():
    return made_up.tokenizer()


@pytest.fixture(scope="module", params=["bert-tiny", "gpt2-tiny"])
def network(request, own):
    sizes = {"embed_dim": 32, "num_heads": 2, "num_layers": 2, "max_positions": 32, "initializer_range": 0.05}
    model = zoo.create(request.param, vocab_size=own.vocab_size, **sizes)
    return model, model.init(jax.random.key(0))


THREE = [Choice("the river", ("sings", "turns", "walks"), 2), Choice("a stone", ("opens", "counts the harbor"), 0)]


def test_an_encoder_reads_a_pair_an_option(own):
    config = zoo.create("bert-tiny", vocab_size=own.vocab_size).config
    encoded = encode_choices(THREE, own, config, 32)
    river, walks = own.encode("the river"), own.encode("walks")
    assert encoded.group == 3 and len(encoded) == 2 and len(encoded.ids) == 6
    assert encoded.ids[2].tolist() == [own.cls_id, *river, own.sep_id, *walks, own.sep_id]
    assert encoded.token_types[2].tolist() == [0] * (len(river) + 2) + [1] * (len(walks) + 1)
    assert encoded.ids[5].tolist() == encoded.token_types[5].tolist() == []
    assert encoded.labels.tolist() == [2, 0]
    assert encoded.lengths.tolist() == [max(len(ids) for ids in encoded.ids[r : r + 3]) for r in (0, 3)]


def test_a_decoder_reads_delimited_text(own, tmp_path):
    config = zoo.create("gpt2-tiny", vocab_size=own.vocab_size).config
    ids = encode_choices(THREE, own, config, 32).ids[2].tolist()
    assert ids == [own.bos_id, *own.encode("the river"), own.sep_id, *own.encode("walks"), own.eos_id]
    assert delimiter(own) == "[SEP]"
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "<|endoftext|>": 2}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    bare = load_tokenizer(tmp_path)
    config = zoo.create("gpt2-tiny", vocab_size=3).config
    assert encode_choices([Choice("a", ("b", "ab"), 0)], bare, config, 32).ids[1].tolist() == [2, 0, 2, 0, 1, 2]
    assert delimiter(bare) == "<|endoftext|>"


def test_options_that_are_not_there_have_no_probability(network, own, one):
    model, params = with_task_head(*network, CONFIG, 4, (), CHOICE)
    assert model.config.num_labels == 1
    encoded = encode_choices(THREE, own, model.config, 32)
    outputs = predict_encoded(model, params, encoded, kind=CHOICE, devices=one)
    assert outputs.shape == (2, 3) and outputs[1, 2] == -1e9 and np.isfinite(outputs).all()
    # The same question by itself, with two options, scores the same.
    alone = predict_encoded(model, params, encode_choices(THREE[1:], own, model.config, 32), kind=CHOICE, devices=one)
    np.testing.assert_allclose(outputs[1, :2], alone[0], atol=1e-5)
    spread = predict_encoded(model, params, encoded, kind=CHOICE, batch_size=8)
    np.testing.assert_allclose(spread, outputs, atol=1e-5)


def test_the_loss_is_a_softmax_over_the_options_of_a_question(network, own, one):
    model, params = with_task_head(*network, CONFIG, 3, (), CHOICE)
    encoded = encode_choices(THREE, own, model.config, 32)
    batch = collate(encoded, [0, 1], 4)
    assert batch["tokens"].shape[0] == 12
    keys = jax.vmap(jax.random.key)(jnp.arange(12))

    def objective(params):
        pair, metrics = loss(model, params, batch, keys)
        return pair[0], (pair, metrics)

    grads, ((total, weight), pairs) = jax.jit(jax.grad(objective, has_aux=True))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    outputs = predict_encoded(model, params, encoded, kind=CHOICE, devices=one)
    logs = [jax.nn.log_softmax(outputs[0])[2], jax.nn.log_softmax(outputs[1, :2])[0]]
    assert float(weight) == 2.0 and float(total) == pytest.approx(-float(sum(logs)), rel=1e-5)
    found = CHOICE.score(encoded, outputs, ("accuracy",))
    assert found.loss == pytest.approx(float(total) / 2, rel=1e-5)
    assert float(pairs["accuracy"][0]) / 2 == found.scores["accuracy"]


def made(count, seed):
    """The right option repeats the word of the context; 2 to 4 options."""
    draw, names = random.Random(seed), "river stone silver copper garden marble".split()
    examples = []
    for _ in range(count):
        options = draw.sample(names, draw.randint(2, 4))
        label = draw.randrange(len(options))
        examples.append(Choice(f"the {options[label]} sings", tuple(f"some {o}" for o in options), label))
    return examples


def test_choosing_is_learnt(network, own, one):
    tuned = finetune(*network, own, made(160, 0), CONFIG, 4, kind=CHOICE, devices=one)
    encoded = encode_choices(made(60, 1), own, tuned.model.config, 32)
    found = evaluate(tuned.model, tuned.params, encoded, ("accuracy",), kind=CHOICE, devices=one)
    assert found.scores["accuracy"] > 0.8
    with pytest.raises(InputError, match='no metric "macro_f1" of choices'):
        CHOICE.score(encoded, found.outputs, ("macro_f1",))


def test_labels_must_name_an_option(own):
    config = zoo.create("bert-tiny", vocab_size=own.vocab_size).config
    with pytest.raises(InputError, match="example 0 has label 2 and 2 options"):
        encode_choices([Choice("a", ("b", "c"), 2)], own, config, 32)
    with pytest.raises(InputError, match="there is no example to encode"):
        encode_choices([], own, config, 32)
