"""Pictures of made-up views as PNG and as a page, and `python -m zoo lens`: whole, offline, escaped; errors."""

import base64
import html
import io
import json
import re
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from matplotlib.image import imread

import zoo
from tests import made_up
from tests.zoo.lens_models import made
from zoo import cli
from zoo.checkpoints import run_folder
from zoo.command_line import run
from zoo.errors import InputError
from zoo.lens import page, pictures
from zoo.lens.command import look, one_piece, read
from zoo.lens.view import CAVEAT, AttentionMaps, Bars, HeatMap, LensTable, Norms

BAD = "</script><script>alert('$x^_{')</script>&amp;"
TOKENS = ("<s>", "$x$", BAD)
LAYERS = ("embedding", "layer 0", "layer 1")
WEIGHTS = np.tril(np.full((2, 2, 3, 3), 0.25, np.float32))
EFFECTS = np.array([[0.1, -0.5], [0.2, 0.0]], np.float32)
VIEWS = (
    LensTable(TOKENS, LAYERS, np.tile([5, 7], (3, 3, 1)), np.tile([0.75, 0.2], (3, 3, 1)), {5: BAD, 7: "␣b"}),
    AttentionMaps(TOKENS, WEIGHTS, EFFECTS, f"change of log p({BAD}) when the head is zeroed, in nats"),
    Norms(TOKENS, LAYERS, np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])),
    Bars(("head 0.1", BAD), np.array([2.0, -0.5]), 1.5, f"logit of {BAD} at position 2"),
    HeatMap(("<s>", "$x$ | $y$", BAD), LAYERS[1:], np.array([[0.0, 0.5, -0.25], [0, 0, 1]]), -1, -3, f"log p({BAD})"),
)
GPT, BERT = "oneblock/gpt-tiny", "oneblock/bert-tiny"
TEXT = "the price of oil"


class Elements(HTMLParser):
    """All elements of a page with their attributes; text of script elements apart from other text."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.scripts, self.text, self.open = [], [], "", []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def whole():
    return page.page(f"Inside {BAD}", VIEWS, [f"note {BAD}"], f"text {BAD}")


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
def test_every_picture_is_a_png_and_the_same_each_time(view):
    png = pictures.draw(view)
    picture = imread(io.BytesIO(png))
    assert picture.shape[0] > 100 and picture.shape[1] > 400 and len(np.unique(picture)) > 10
    assert pictures.draw(view) == png


def texts_of(monkeypatch, draw, *arguments):
    """Every text that a picture holds."""
    from matplotlib.text import Text

    found = []

    def keep(figure):
        figure.canvas.draw()
        shown = [text for text in figure.findobj(Text) if text.get_text()]
        assert not any(text.get_parse_math() for text in shown if "$" in text.get_text())
        found.extend(text.get_text() for text in shown)
        return b""

    monkeypatch.setattr(pictures, "_png", keep)
    draw(*arguments)
    return found


def test_what_is_written_in_a_picture(monkeypatch):
    cells = texts_of(monkeypatch, pictures.logit_lens, VIEWS[0])
    assert cells.count(BAD[:8] + "… 0.75") == 9 and "$x$" in cells and "layer 1" in cells
    one = texts_of(monkeypatch, pictures.attention_head, VIEWS[1], 0, 1)
    assert "Attention weights of layer 0, head 1" in one and "Ablation: -0.5 without it" in one
    for words in (one, texts_of(monkeypatch, pictures.attention, VIEWS[1])):
        assert any(CAVEAT == " ".join(text.split()) for text in words)
    bars = texts_of(monkeypatch, pictures.attribution, VIEWS[3])
    assert "head 0.1" in bars and any(text.endswith("= 1.50") for text in bars)
    heat = texts_of(monkeypatch, pictures.patching, VIEWS[4])
    assert "$x$ | $y$" in heat and any("-1.00 clean, -3.00 corrupted" in " ".join(text.split()) for text in heat)


def test_a_long_table_is_drawn_by_its_end(monkeypatch):
    tokens = tuple(str(t) for t in range(30))
    table = LensTable(tokens, ("embedding",), np.full((1, 30, 1), 5), np.full((1, 30, 1), 0.5), {5: "x"})
    cells = texts_of(monkeypatch, pictures.logit_lens, table)
    assert cells.count("x 0.50") == 24 and "29" in cells and "5" not in cells
    assert any("(the last 24 of 30 positions)" in " ".join(text.split()) for text in cells)


def test_the_page_needs_nothing_from_outside(whole):
    found = Elements(whole)
    assert found.open == []
    assert not {tag for tag, _ in found.elements} & {"link", "iframe", "object", "embed", "base", "form", "a"}
    sources = [attributes["src"] for _, attributes in found.elements if "src" in attributes]
    assert len(sources) == 5 and all(source.startswith("data:image/png;base64,") for source in sources)
    assert [base64.b64decode(source.split(",")[1]) for source in sources] == [pictures.draw(view) for view in VIEWS]
    (policy,) = [a["content"] for tag, a in found.elements if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttp|innerHTML|insertAdjacent|document\.write", whole)


def test_the_page_escapes_texts(whole):
    found = Elements(whole)
    assert len(found.scripts) == 2  # the data and the code: no token has begun a third
    assert found.text.count(BAD) == 7  # title twice, text, note; attention, bars and patching in words
    assert "alert" not in found.scripts[1] and not re.search("[<>&]", found.scripts[0])
    assert [attributes for _, attributes in found.elements if any(name.startswith("on") for name in attributes)] == []


def test_the_page_holds_the_numbers(whole):
    table, maps, norms, bars, heat = json.loads(Elements(whole).scripts[0])
    assert [v["kind"] for v in (table, maps, norms, bars, heat)] == ["lens", "attention", "norms", "bars", "heat"]
    assert table["texts"] == {"5": BAD, "7": "␣b"} and table["ids"][2][1] == [5, 7]
    assert table["probabilities"][0][0] == [0.75, 0.2]
    shares = np.frombuffer(base64.b64decode(maps["weights"]), "<u2").reshape(2, 2, 3, 3) / 65535
    np.testing.assert_allclose(shares, WEIGHTS, atol=1 / 65535)
    assert maps["shape"] == [2, 2, 3] and maps["strongest"] == [0, 1]
    np.testing.assert_allclose(maps["effects"], EFFECTS, atol=1e-6)
    assert norms["values"] == VIEWS[2].values.tolist() and heat["values"] == VIEWS[4].values.tolist()
    assert bars["values"] == [2.0, -0.5] and bars["total"] == 1.5


def test_attention_never_stands_without_its_caveat(whole):
    assert html.unescape(whole).count(CAVEAT) == 1
    assert CAVEAT.startswith("Attention weights are not an explanation")
    assert CAVEAT not in page.page("norms alone", [VIEWS[2]])
    framed = page.frame(VIEWS[1])
    ((_, attributes),) = [element for element in Elements(framed).elements if element[0] == "iframe"]
    inside = Elements(attributes["srcdoc"])
    assert attributes["sandbox"] == "allow-scripts" and CAVEAT in inside.text and len(inside.scripts) == 2


def test_files_are_written_together_or_not_at_all(tmp_path, monkeypatch):
    written = page.write(tmp_path / "a" / "b", "Inside", VIEWS[:2])
    names = sorted(file.name for file in written.parent.iterdir())
    assert names == ["attention-strongest-head.png", "attention.png", "index.html", "logit-lens.png"]
    assert (written.parent / "attention.png").read_bytes() == pictures.draw(VIEWS[1])
    monkeypatch.setattr(pictures, "attention_head", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(tmp_path / "c", "Inside", VIEWS[:2])
    assert not (tmp_path / "c").exists()
    with pytest.raises(InputError, match="a page needs at least one picture"):
        page.page("empty", [])
    wide = AttentionMaps(("a",) * 2, np.broadcast_to(np.float32(0.5), (9, 32, 256, 256)), np.zeros((9, 32)), "none")
    with pytest.raises(InputError, match="a page of 18,874,368 attention weights would be 50 MB, more than browsers"):
        page.page("too much", [wide])


def command(*words) -> int:
    return run("zoo", cli.SUBCOMMANDS, ["lens", *(str(word) for word in words)])


def test_the_command_draws_all_views(tmp_path, capsys):
    out = tmp_path / "pictures"
    assert command(GPT, TEXT, "--corrupted", "the price of gold", "--out", out) == 0
    names = ["attention-strongest-head", "attention", "attribution", "logit-lens", "patching", "residual-norms"]
    assert capsys.readouterr().out == f"{out}/index.html, and {', '.join(f'{name}.png' for name in names)}\n"
    table, heat, maps, norms, bars = json.loads(Elements((out / "index.html").read_text()).scripts[0])
    assert table["tokens"] == ["<s>", "the", "␣price", "␣of", "␣oil"] == maps["tokens"] == norms["tokens"]
    assert heat["columns"][-1] == "␣oil | ␣gold"
    model, params = zoo.load(GPT)
    tokenizer = zoo.load_tokenizer(GPT)
    ids = [tokenizer.bos_id, *tokenizer.encode(TEXT)]
    likeliest = int(model.apply(params, np.array([ids])).logits[0, -1].argmax())
    assert table["ids"][-1][-1][0] == likeliest and table["texts"][str(likeliest)] in maps["effect"]
    assert bars["what"].startswith("logit of") and heat["clean"] != heat["corrupted"]


def test_encoders_are_asked_about_their_mask(tmp_path):
    model, params = zoo.load(BERT)
    tokenizer = zoo.load_tokenizer(BERT)
    reading = read("the [MASK] of oil", tokenizer, model.config, 48)
    assert reading.ids[reading.at] == tokenizer.mask_id and reading.at == 2 and reading.note == ""
    assert reading.ids[0] == tokenizer.cls_id and reading.ids[-1] == tokenizer.sep_id
    plain = read(TEXT, tokenizer, model.config, 48)
    assert plain.at == len(plain.ids) - 2  # no mask: the last piece of the text
    found, notes = look(model, params, tokenizer, reading)
    kinds = [type(view) for view in found]
    assert kinds[:3] == [LensTable, AttentionMaps, Norms]
    assert (Bars in kinds) != any("no attribution" in note for note in notes)


def test_long_texts_are_cut_and_that_is_said():
    config = zoo.create("gpt-tiny", vocab_size=4096).config
    tokenizer = zoo.load_tokenizer(GPT)
    reading = read(TEXT, tokenizer, config, 3)
    assert (len(reading.ids), reading.at) == (3, 2) and reading.note == "the text is cut to its first 2 of 4 tokens"
    assert read(TEXT, tokenizer, config, 5).note == ""
    # 25,600 maps of at most 4 M weights
    wide = zoo.create("gpt-tiny", vocab_size=4096, num_layers=200, num_heads=128, embed_dim=128)
    assert len(read("oil " * 40, tokenizer, wide.config, 48).ids) == 12


def test_models_without_a_vocabulary_show_what_they_can(tmp_path, capsys):
    tokenizer = made_up.tokenizer()
    sizes = dict(vocab_size=tokenizer.vocab_size, embed_dim=16, num_heads=2, num_layers=1, mlp_dim=16, max_positions=32)
    model = zoo.create("bert-tiny", **sizes, head="none", pooler=False)
    (tmp_path / "run").mkdir()
    run_folder.save(model, model.init(jax.random.key(0)), tmp_path / "run", tokenizer)
    capsys.readouterr()
    assert command(tmp_path / "run", "the cat", "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "note: this model has no head over its vocabulary" in said and "attention and its norms can be drawn" in said
    assert "residual-norms.png" in said and "logit-lens" not in said
    assert command(tmp_path / "run", "the cat", "--out", tmp_path / "out", "--target", "the") == 2
    assert "no head over its vocabulary" in capsys.readouterr().err
    assert command(GPT, TEXT, "--out", tmp_path / "run") == 2
    assert "give the pictures a folder of their own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("", "--out", "x"), "the text is empty"),
        ((TEXT,), "missing OUT"),
        ((TEXT, "--out", "x", "--tokens", "1"), "tokens is 1; it must be from 2 to 256"),
        ((TEXT, "--out", "x", "--target", "unbelievable gold"), "pieces ("),
        ((TEXT, "--out", "x", "--corrupted", "the price of black gold"), "they must be as many"),
        ((TEXT, "--out", "x", "--corrupted", TEXT), "nothing to restore"),
    ],
)
def test_bad_input_gets_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(GPT, *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]
    assert not (tmp_path / "x").exists()


def test_a_piece_is_one_piece():
    tokenizer = zoo.load_tokenizer(GPT)
    assert one_piece("target", "", tokenizer) is None
    assert one_piece("target", " oil", tokenizer) == tokenizer.encode(" oil")[0]


def test_models_of_images_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "load", lambda path: made("dinov2")[:2])
    assert command("eyes", TEXT, "--out", tmp_path / "x") == 2
    assert capsys.readouterr().err == "error: eyes reads images; the pictures are of models of text\n"
