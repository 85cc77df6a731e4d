"""Our models under EleutherAI's harness: two task files of our own over local data, and its encoding of pairs."""

import json
import math

import jax
import numpy as np
import pytest

import zoo
from eval.cli import evaluate
from eval.language.likelihood import encode_pairs, log_likelihoods
from eval.perplexity import measure
from tests import made_up
from zoo.checkpoints import run_folder
from zoo.errors import InputError

lm_eval = pytest.importorskip("lm_eval", reason='the harness is not installed: pip install "oneblock[harness]"')

CHOICE = """
task: own_choice
dataset_path: json
dataset_kwargs:
  data_files: {test: FILE}
test_split: test
output_type: multiple_choice
doc_to_text: "The {{subject}}"
doc_to_choice: "{{options}}"
doc_to_target: "{{label}}"
metric_list:
  - {metric: acc}
  - {metric: acc_norm}
"""
ROLLING = """
task: own_pages
dataset_path: json
dataset_kwargs:
  data_files: {test: FILE}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: bits_per_byte}
"""
GENERATION = """
task: own_answers
dataset_path: json
dataset_kwargs:
  data_files: {test: FILE}
test_split: test
output_type: generate_until
doc_to_text: "The {{subject}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 40, do_sample: false}
metric_list:
  - {metric: exact_match}
"""
QUESTIONS = [
    ("river", ["walks", "sings quiet", "counts every bright stone"], 0),
    ("old lantern", ["opens", "follows the narrow river"], 1),
    ("copper harbor", ["gathers", "turns", "leaves"], 2),
    ("quiet garden", ["finds marble", "carries silver ribbon"], 0),
    ("thunder", ["walks", "sings"], 1),
]
PAGES = ["The river sings. A quiet stone follows the maple lantern.", "Some old harbor counts copper " * 12]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    tokenizer = zoo.load_tokenizer(made_up.json_tokenizer(tmp_path_factory.mktemp("t")))
    model = zoo.create(
        "llama-tiny", vocab_size=tokenizer.vocab_size, embed_dim=32, num_heads=2, num_layers=1, max_positions=64,
        initializer_range=0.3,
    )  # fmt: skip
    return model, model.init(jax.random.key(0)), tokenizer


@pytest.fixture(scope="module")
def files(tmp_path_factory, network):
    import datasets

    folder = tmp_path_factory.mktemp("tasks")
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    greedy = zoo.generate(
        *network[:2], [f"The {q[0]}" for q in QUESTIONS[:2]], max_new_tokens=40, tokenizer=network[2]
    ).texts
    answers = [greedy[0].split(".")[0], "something else"]
    rows = {
        "own_choice": [{"subject": s, "options": o, "label": i} for s, o, i in QUESTIONS],
        "own_pages": [{"text": page} for page in PAGES],
        "own_answers": [{"subject": q[0], "answer": a} for q, a in zip(QUESTIONS[:2], answers, strict=True)],
    }
    for text, (name, lines) in zip((CHOICE, ROLLING, GENERATION), rows.items(), strict=True):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(text.replace("FILE", str(data)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def adapter(network):
    from eval.language.harness import OneblockLM

    return OneblockLM(*network, devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def results(adapter, files):
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(files), include_defaults=False)
    names = ["own_choice", "own_pages", "own_answers"]
    found = lm_eval.simple_evaluate(adapter, tasks=names, task_manager=manager, bootstrap_iters=0)
    return found["results"]


def test_a_multiple_choice_file_gives_the_numbers_of_our_own_code(results, network):
    pairs = [(f"The {s}", f" {option}") for s, options, _ in QUESTIONS for option in options]
    found = iter(log_likelihoods(*network, pairs))
    right, normed = [], []
    for _, options, label in QUESTIONS:
        values = np.array([next(found).log_prob for _ in options])
        right.append(values.argmax() == label)
        normed.append((values / [len(option) for option in options]).argmax() == label)
    assert results["own_choice"]["acc,none"] == pytest.approx(np.mean(right))
    assert results["own_choice"]["acc_norm,none"] == pytest.approx(np.mean(normed))


def test_a_perplexity_file_gives_the_numbers_of_our_own_code(results, network):
    """One page longer than the model's 64 positions: windows that do not overlap."""
    found = measure(*network, PAGES, length=64, stride=64)
    assert found.tokens > 64
    assert results["own_pages"]["bits_per_byte,none"] == pytest.approx(found.bits_per_byte, rel=1e-5)
    # The harness counts the parts between white space, of which a text that ends in a space has one more.
    words = found.words + sum(page != page.rstrip() for page in PAGES)
    assert results["own_pages"]["word_perplexity,none"] == pytest.approx(math.exp(found.nats / words), rel=1e-4)


def test_a_generation_file_stops_at_its_stop_string(results, adapter):
    assert results["own_answers"]["exact_match,none"] == 0.5


def _request(*args):
    from lm_eval.api.instance import Instance

    return Instance("generate_until", {}, args, 0)


def test_answers_do_not_depend_on_rounds_batches_and_stops(adapter, network):
    """Forty tokens are more than one round; what follows a stop string is no part of the answer."""
    model, params, tokenizer = network
    contexts = ["The river", "Some old quiet harbor", "A"]
    alone = [zoo.generate(model, params, [c], max_new_tokens=40, tokenizer=tokenizer).texts[0] for c in contexts]
    found = adapter.generate_until([_request(c, {"max_gen_toks": 40}) for c in contexts])
    assert found == alone
    stop = alone[0][3:5]
    cut = adapter.generate_until([_request(contexts[0], {"max_gen_toks": 40, "until": [stop, "never"]})])
    assert cut == [alone[0][: alone[0].index(stop)]]
    settings = {"max_gen_toks": 5, "do_sample": True, "temperature": 1.0}
    drawn = [adapter.generate_until([_request(c, settings) for c in contexts]) for _ in range(2)]
    assert drawn[0] == drawn[1] and drawn[0] != [text[: len(d)] for text, d in zip(alone, drawn[0], strict=True)]
    with pytest.raises(InputError, match='generation_kwargs hold "temprature"; did you mean "temperature"'):
        adapter.generate_until([_request("A", {"temprature": 1})])


def test_a_context_that_leaves_no_room_loses_its_beginning(adapter, network):
    model, params, tokenizer = network
    context = "old river " * 40
    ids = tokenizer.encode(context)
    kept = [tokenizer.bos_id, *ids[len(ids) - (64 - 8 - 1) :]]
    expected = zoo.generate(model, params, [kept], max_new_tokens=8, tokenizer=tokenizer).texts[0]
    assert adapter.generate_until([_request(context, {"max_gen_toks": 8})]) == [expected]


def test_pairs_are_parted_as_the_harness_parts_them(network):
    tokenizer = network[2]

    class Theirs(lm_eval.api.model.TemplateLM):
        eot_token_id = property(lambda self: tokenizer.eos_id)

        def tok_encode(self, string, add_special_tokens=None, **kwargs):
            head = [] if add_special_tokens is False else [tokenizer.bos_id]
            return head + tokenizer.encode(string)

        _loglikelihood_tokens = loglikelihood_rolling = generate_until = None

    theirs = Theirs()
    pairs = [("The river", " walks"), ("The river ", "walks old"), ("A\n", "B"), ("x  ", " y"), ("end.", "\n\nNext")]
    assert encode_pairs(tokenizer, pairs) == [theirs._encode_pair(*pair) for pair in pairs]


def test_a_chat_template_writes_pieces_and_messages_stay_text(adapter, network):
    tokenizer = network[2]
    history = [{"role": "user", "content": "river [SEP] stone"}]
    ids = adapter._marked.encode(adapter.apply_chat_template(history))
    assert ids == tokenizer.chat(history)
    # What the assistant begins to say is left open.
    history_begun = [*history, {"role": "assistant", "content": "old"}]
    begun = adapter.apply_chat_template(history_begun, add_generation_prompt=False)
    assert adapter._marked.encode(begun) == [*tokenizer.chat(history), *tokenizer.encode("old")]
    assert adapter._marked.encode("river [SEP]") == tokenizer.encode("river [SEP]")
    assert adapter.chat_template(True) == tokenizer.chat_template and adapter.chat_template() is None
    assert tokenizer.fingerprint.startswith(adapter.tokenizer_name.removeprefix("oneblock-"))


def test_the_command_and_the_arguments_of_the_harness(network, files, tmp_path, capsys, results):
    from eval.language.harness import OneblockLM

    folder = tmp_path / "run"
    folder.mkdir()
    run_folder.save(*network[:2], folder, network[2])
    words = ["harness", str(folder), "--tasks", str(files / "own_choice.yaml")]
    assert evaluate([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]["own_choice"]
    assert found["acc,none"] == pytest.approx(results["own_choice"]["acc,none"])
    assert evaluate([*words, "--limit", "2"]) == 0
    assert "acc_norm" in capsys.readouterr().out
    made = OneblockLM.create_from_arg_string(f"pretrained={folder},max_length=32", {"batch_size": 4})
    assert made.max_length == 32
    with pytest.raises(InputError, match='model_args hold "max_lengt"; did you mean "max_length"'):
        OneblockLM.create_from_arg_string(f"pretrained={folder},max_lengt=32")
    assert evaluate(["harness", str(folder), "--tasks", "none.yaml"]) == 2
    assert capsys.readouterr().err == 'error: no task file "none.yaml"\n'


def test_the_reference_librarys_adapter_gives_the_same_numbers(network, tmp_path):
    """The harness's own model class over our export: likelihoods, a long page in windows, an answer with a stop."""
    pytest.importorskip("accelerate", reason="the harness's own model class needs it")
    from lm_eval.models.huggingface import HFLM

    from eval.language.harness import OneblockLM

    folder = made_up.json_tokenizer(tmp_path / "t")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = zoo.load_tokenizer(folder)
    zoo.export(*network[:2], tmp_path / "published", tokenizer=tokenizer)
    theirs = HFLM(str(tmp_path / "published"), device="cpu", dtype="float32", batch_size=4, max_length=64)
    ours = OneblockLM(*network[:2], tokenizer, max_length=64, devices=jax.devices()[:1])
    pairs = [(f"The {s}", f" {option}") for s, options, _ in QUESTIONS for option in options] + [("", "The river")]
    requests = [_request(*pair) for pair in pairs]
    expected, found = theirs.loglikelihood(requests, disable_tqdm=True), ours.loglikelihood(requests)
    np.testing.assert_allclose([f[0] for f in found], [e[0] for e in expected], rtol=1e-5)
    assert [f[1] for f in found] == [e[1] for e in expected]
    pages = [_request(page) for page in PAGES]
    np.testing.assert_allclose(
        ours.loglikelihood_rolling(pages), theirs.loglikelihood_rolling(pages, disable_tqdm=True), rtol=1e-5
    )
    asked = [_request(f"The {q[0]}", {"until": ["q"], "max_gen_toks": 20, "do_sample": False}) for q in QUESTIONS]
    assert ours.generate_until(asked) == theirs.generate_until(asked, disable_tqdm=True)
