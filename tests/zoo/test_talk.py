"""`python -m zoo chat` and `generate`: whole conversations through the command line, and what ends a turn or all."""

import builtins
import io
import json
import re
import sys

import jax
import pytest

import zoo
from tests import made_up
from zoo import cli
from zoo.checkpoints import plain_folder, run_folder
from zoo.checkpoints.belongings import tokenizer_of
from zoo.command_line import run

NEW, POSITIONS = 6, 64
SPEED = re.compile(r"\[(\d+) tokens?, the first after \d+\.\d\d s(?:, then \d+\.\d tokens/s)?\]")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of a small model whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("talk")
    tokenizer = zoo.load_tokenizer(made_up.json_tokenizer(folder / "words"))
    model = zoo.create("gpt-tiny", vocab_size=360, embed_dim=32, mlp_dim=64, num_layers=1, max_positions=POSITIONS)
    params = jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 1 else leaf, model.init(jax.random.key(1)))
    plain_folder.save(model, params, folder / "model", tokenizer, "float32")
    return folder / "model"


def chat(place, monkeypatch, capsys, said: bytes, *words) -> tuple[int, str, str]:
    """Code, output and errors; the input as bytes, in a locale that is not UTF-8."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said), "ascii", errors="surrogateescape"))
    code = run("zoo", cli.SUBCOMMANDS, ["chat", str(place), "--max-new-tokens", str(NEW), *words])
    found = capsys.readouterr()
    return code, found.out, found.err


class Expected:
    """The conversation as it should be, an answer at a time."""

    def __init__(self, place, start=()):
        self.model, self.params = zoo.load(place)
        self.tokenizer = zoo.load_tokenizer(place)
        self.start, self.history = list(start), []

    def answer(self, text: str) -> str:
        self.history.append({"role": "user", "content": text})
        ids = self.tokenizer.chat([*self.start, *self.history])
        dropped = 0
        while len(ids) + NEW > POSITIONS:
            self.history, dropped = self.history[2:], dropped + 2
            ids = self.tokenizer.chat([*self.start, *self.history])
        out = zoo.generate(self.model, self.params, [ids], max_new_tokens=NEW, tokenizer=self.tokenizer)
        self.history.append({"role": "assistant", "content": out.texts[0]})
        remark = f"[the oldest {dropped} messages are left out: the conversation has outgrown the model]\n"
        return (remark if dropped else "") + f"{out.texts[0]}\n[speed]\n"


def test_a_whole_conversation(place, monkeypatch, capsys):
    """History, empty lines, a turn that is no UTF-8, /reset, one that is too long, room that ends, /exit."""
    talk, long = Expected(place, [{"role": "system", "content": "Be brief."}]), "pebble " * 40
    lines = [b"the river", b"", b"  \t", "é and then?".encode(), b"caf\xe9", b"walks", b"/reset", b"the river"]
    lines += [long.encode(), b"/help", b"a quiet stone", b"some bright maple", b"winter sings", b"/exit", b"never"]
    code, out, err = chat(place, monkeypatch, capsys, b"\n".join(lines), "--system", "Be brief.")
    assert code == 0 and err == ""
    expected = talk.answer("the river") + talk.answer("é and then?")
    assert len(talk.history) == 4
    expected += "[this turn is left out: it is not UTF-8 (unexpected end of data at 3)]\n"
    expected += talk.answer("walks")
    expected += "[the conversation is forgotten]\n"
    talk.history = []
    first = talk.answer("the river")
    tokens = len(talk.tokenizer.chat([*talk.start, {"role": "user", "content": long.strip()}]))
    expected += first + (
        f"[this turn is left out: it has {tokens} tokens; with {NEW} for the answer it exceeds the model's {POSITIONS} "
        "positions]\n[/help is unknown: /reset forgets the conversation, /exit ends it]\n"
    )
    expected += talk.answer("a quiet stone") + talk.answer("some bright maple") + talk.answer("winter sings")
    assert "are left out: the conversation has outgrown" in expected
    assert SPEED.sub("[speed]", out) == expected
    assert expected.startswith(first)  # a greedy answer does not depend on what was reset
    assert {int(count) for count in SPEED.findall(out)} <= set(range(1, NEW + 1))


def test_at_a_keyboard(place, monkeypatch, capsys):
    """Bytes that are none of a character arrive as halves of surrogates; the end of the input ends it."""
    said = iter(["the river", "caf\udce9", UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "no"), "walks"])

    def typed(prompt):
        assert prompt == "> "
        line = next(said, EOFError())
        if isinstance(line, Exception):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", typed)
    monkeypatch.setattr(sys, "stdin", type("Keyboard", (io.StringIO,), {"isatty": lambda self: True})())
    assert run("zoo", cli.SUBCOMMANDS, ["chat", str(place), "--max-new-tokens", str(NEW)]) == 0
    talk, out = Expected(place), capsys.readouterr().out
    expected = talk.answer("the river") + "[this turn is left out: it is not UTF-8 (surrogates not allowed at 3)]\n"
    expected += "[this turn is left out: it is not UTF-8 (unexpected end of data at 3)]\n" + talk.answer("walks")
    assert SPEED.sub("[speed]", out) == expected


def test_what_ends_a_conversation_before_it_begins(place, monkeypatch, capsys):
    for said in (b"", b"\n\n", b"/exit\n"):
        assert chat(place, monkeypatch, capsys, said) == (0, "", "")
    code, out, err = chat(place, monkeypatch, capsys, b"hi\n", "--max-new-tokens", "64")
    assert (code, out) == (2, "") and err.startswith("error: a turn of one word has ") and err.count("\n") == 1
    assert err.endswith("with 64 for the answer (--max-new-tokens) it passes the model's 64 positions\n")


def test_the_text_of_generate_and_its_stops(place, capsys):
    """The prompt, the text and how fast it came; nothing is printed before a stop text that is refused."""
    model, params = zoo.load(place)
    tokenizer = zoo.load_tokenizer(place)
    drawn = zoo.generate(model, params, ["the river"], max_new_tokens=NEW, tokenizer=tokenizer).texts[0]
    words = ["generate", str(place), "the river", "--max-new-tokens", str(NEW)]
    assert run("zoo", cli.SUBCOMMANDS, words) == 0
    assert SPEED.sub("[speed]", capsys.readouterr().out) == f"the river{drawn}\n\n[speed]\n"
    assert run("zoo", cli.SUBCOMMANDS, [*words, "--stop", ""]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err == (
        "error: a stop text is empty; it would end every text before its first character\n"
    )
    assert run("zoo", cli.SUBCOMMANDS, ["generate", str(place), "", "--max-new-tokens", "3"]) == 2
    assert capsys.readouterr().err == "error: the prompt is empty: there is nothing to continue\n"


def test_a_tokenizer_of_other_weights_is_one_line(place, tmp_path, capsys):
    """Where the folder says which one its weights were trained with: a plain folder, and a run by its newest step."""
    model, params = zoo.load(place)
    own = zoo.load_tokenizer(place)
    other = made_up.tokenizer()
    (tmp_path / "run").mkdir()
    run_folder.save(model, params, tmp_path / "run", own)
    plain_folder.save(model, params, tmp_path / "plain", own, "float32")
    meta = tmp_path / "run" / "checkpoints" / "0" / "meta" / "metadata"
    meta.parent.mkdir()
    meta.write_text(json.dumps({"tokenizer": own.fingerprint}))
    for folder, where in ((tmp_path / "run", "run/tokenizer"), (tmp_path / "plain", "plain")):
        assert zoo.load_tokenizer(folder).fingerprint == own.fingerprint
        for name in own.files():
            (tmp_path / where / name).unlink()
        other.save(tmp_path / where)
        line = (
            f"the tokenizer in {folder} is not the one that its weights were trained with: fingerprint "
            f"{other.fingerprint[:12]} and not {own.fingerprint[:12]}; ids would mean other pieces"
        )
        with pytest.raises(zoo.InputError) as caught:
            zoo.load_tokenizer(folder)
        assert str(caught.value) == line and tokenizer_of(folder).fingerprint == other.fingerprint
        assert run("zoo", cli.SUBCOMMANDS, ["generate", str(folder), "the river"]) == 2
        assert capsys.readouterr().err == f"error: {line}\n"
