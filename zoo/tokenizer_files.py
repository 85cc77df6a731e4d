"""The layouts in which tokenizers are published, each read into one shape.

    tokenizer.json                    Hugging Face tokenizers, whole
    tokenizer.model, spiece.model     SentencePiece
    vocab.txt                         BERT's WordPiece, one piece a line
    vocab.json + merges.txt           GPT-2's byte-level BPE
    x.gguf                            inside a model file, see zoo.gguf_tokenizer

Roles of special pieces come from tokenizer_config.json or special_tokens_map.json where those say so, else from the
usual names in the vocabulary. What does not hold its whole tokenizer, by its class or its pieces, is refused
(zoo.tokenizer_classes). A chat template and generation_config.json beside them are kept with the tokenizer.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import InputError
from zoo.gguf_file import is_gguf
from zoo.placeholders import placeholder
from zoo.safe_path import inside
from zoo.tokenizer_classes import ForeignTokenizer, refuse_foreign, refuse_other_pieces
from zoo.tokenizer_export import MARK
from zoo.word_cache import WordEncoder, word_cut

USUAL_NAMES = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
SETTINGS_NAMES = ("tokenizer_config.json", "special_tokens_map.json")
# What a folder says of how its texts are used: templates, ends, and the pooling of vectors (zoo.text_vectors).
BESIDE_NAMES = ("chat_template.jinja", "generation_config.json", "modules.json", "1_Pooling/config.json")
MAX_BYTES, MAX_PIECES = 256 * 1024**2, 10_000_000
# A byte-level vocabulary writes the bytes of space, newline, tab and carriage return as these letters.
BYTE_SPACES = ("\u0120", "\u010a", "\u0109", "\u010d")
SPACE_MARKS = ("\u2581", "<0x0A>", "<0x09>", "<0x0D>", "<0x20>")


def read(place: Path) -> tuple["SentencePieces | HuggingFacePieces", dict[str, bytes]]:
    """Finds and reads the tokenizer at `place`; returns it and the files that make it.

    Raises:
        InputError: nothing there, or not readable.
    """
    if place.is_file():
        if place.is_symlink() and place.resolve().suffix == place.suffix:
            place = place.resolve()  # named by the caller, not by a folder's author
        return _read_gguf(place) if is_gguf(place) else _read_file(place)
    if not place.is_dir():
        raise InputError(f"no file or folder {place}")
    for folder in (place, place / "tokenizer"):
        settings = folder / "tokenizer_config.json"
        original = folder / "tokenizer.model"
        if original.is_file() and settings.is_file() and MARK in _json(_bytes(settings), settings):
            return _read_file(original)
        for name in ("tokenizer.json", *SENTENCEPIECE_NAMES, "vocab.txt"):
            if (folder / name).is_file():
                return _read_file(folder / name)
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return _read_file(folder / "vocab.json")
    inside = sorted(place.glob("*.gguf"))
    if len(inside) == 1:
        return _read_gguf(inside[0])
    looked = ", ".join(("tokenizer.json", *SENTENCEPIECE_NAMES, "vocab.txt"))
    raise InputError(f"no tokenizer in {place} or its tokenizer/; looked for {looked}, vocab.json with merges.txt")


def is_tokenizer_folder(place: Path) -> bool:
    """Whether `read` would find something in this folder."""
    return any(
        (folder / name).is_file()
        for folder in (place, place / "tokenizer")
        for name in ("tokenizer.json", *SENTENCEPIECE_NAMES, "vocab.txt", "vocab.json")
    ) or len(list(place.glob("*.gguf"))) == 1


def _read_file(path: Path) -> tuple["SentencePieces | HuggingFacePieces", dict[str, bytes]]:
    names = [path.name, *SETTINGS_NAMES, *BESIDE_NAMES]
    names += ["merges.txt"] if path.name == "vocab.json" else []
    sentencepiece = path.suffix != ".json" and ".model" in path.name
    if path.suffix != ".json" and path.name != "vocab.txt" and not sentencepiece:
        raise InputError(f"{path} is no tokenizer file; give tokenizer.json, vocab.txt, or a SentencePiece .model")
    names = [name for name in names if name == path.name or (path.parent / name).is_file()]
    files = {name: _bytes(path.parent / name, path.parent if "/" in name else None) for name in names}
    if sentencepiece and path.name not in SENTENCEPIECE_NAMES:
        files = {"tokenizer.model": files[path.name]}  # one of several in a folder, of which nothing else speaks
    return _read_bytes(files, path), files


def _read_gguf(path: Path) -> tuple["SentencePieces | HuggingFacePieces", dict[str, bytes]]:
    from zoo.gguf_tokenizer import tokenizer_files

    files = tokenizer_files(path)
    return _read_bytes(files, path), files


def _read_bytes(files: dict[str, bytes], path: Path) -> "SentencePieces | HuggingFacePieces":
    """The pieces of a tokenizer's files, the first of which says the layout; `path` is its place, for messages."""
    _check_ends(files, path.parent / "generation_config.json")
    name, data = next(iter(files.items()))
    settings = {}
    for beside in reversed(SETTINGS_NAMES):
        if beside in files:
            settings |= _json(files[beside], path.parent / beside)
    settings.setdefault("tokenizer_class", _model_class(path.parent))
    if name in SENTENCEPIECE_NAMES:
        # Ids of XLM-R and its descendants are those of their file moved by one, and the file has a name of its own.
        shifted = "XLMRobertaTokenizer" if path.name == "sentencepiece.bpe.model" else None
        refuse_foreign("SentencePiece", settings["tokenizer_class"] or shifted, path)
        return SentencePieces(data, path, settings)
    if name == "vocab.txt":
        return _word_pieces(path, data, settings)
    content = _json(data, path)
    if name == "vocab.json":
        return _byte_pairs(path, content, files.get("merges.txt", b""), settings)
    library = _library()
    try:
        backend = library.Tokenizer.from_str(_text(data, path))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path} is no valid tokenizer.json ({str(error).splitlines()[0]})") from error
    return HuggingFacePieces(backend, settings, data)


def _check_ends(files: dict[str, bytes], path: Path) -> None:
    """Refuses a generation_config.json whose end-of-text ids are none."""
    ends = _json(files[path.name], path).get("eos_token_id") if path.name in files else None
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None and (not isinstance(end, int) or isinstance(end, bool)):
            raise InputError(f"{path}: eos_token_id is {ends!r}; it must be a whole number, or a list of them")


def _model_class(folder: Path) -> str | None:
    """tokenizer_class of config.json, where older checkpoints say it; None where nothing is said."""
    place = folder / "config.json"
    try:
        found = json.loads(_bytes(place)) if place.is_file() else {}
    except (ValueError, RecursionError):  # a model's file, whose faults zoo.load tells
        return None
    return found.get("tokenizer_class") if isinstance(found, dict) else None


class SentencePieces:
    """A SentencePiece model; specials are found by name, for its own slots hold four alone."""

    def __init__(self, model: bytes, path: str | Path, settings: dict[str, Any] | None = None):
        import sentencepiece

        try:
            if not model:
                raise RuntimeError("it is empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            processor = self._processor
            count = processor.get_piece_size()
            self.pieces = [processor.id_to_piece(i) for i in range(count)]
        except (RuntimeError, ValueError) as error:  # ValueError: pieces or messages that are no UTF-8
            raise InputError(f"{path} is no valid SentencePiece model") from error
        control = [i for i in range(count) if processor.is_control(i) or processor.is_unknown(i)]
        self.special_ids = tuple(control)
        by_name = {self.pieces[i]: i for i in control}
        self.roles = _roles(by_name, {})
        for role in ("bos", "eos", "pad", "unk"):
            own = getattr(processor, f"{role}_id")()
            if own >= 0:
                self.roles[role] = own
        self.starts_word = np.array([piece.startswith(SPACE_MARKS) for piece in self.pieces], dtype=bool)
        self.starts_word[control] = True
        self.definition = b"sentencepiece\0" + model
        self.adds_bos = bool((settings or {}).get("add_bos_token", True))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(texts)) if texts else []

    def encoder(self) -> Callable[[Sequence[str]], list[np.ndarray]]:
        return lambda texts: list(self._processor.encode(list(texts), return_type="numpy")) if texts else []

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        found = []
        for text in texts:
            mapping = self._processor.encode(text, out_type="offset_mapping", return_bytes=False)
            spans = list(mapping["offsets"])
            for at in reversed(range(len(spans) - 1)):  # the library gives a character to the last of its bytes alone
                if spans[at][0] == spans[at][1] and self._processor.is_byte(mapping["ids"][at]):
                    spans[at] = spans[at + 1]
            found.append((list(mapping["ids"]), spans))
        return found

    def encode_marked(self, text: str, marks: re.Pattern, hidden: str) -> list[int]:
        """Ids of a text in which `marks` are special pieces; `hidden` is taken out of what stands between them."""
        ids: list[int] = []
        for part in _parts(text, marks):
            at = self._processor.piece_to_id(part) if marks.fullmatch(part) else None
            ids += self._processor.encode(part.replace(hidden, "")) if at is None else [at]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode(list(ids))


class HuggingFacePieces:
    """A tokenizer of the tokenizers library, with its own padding, truncation and framing switched off."""

    def __init__(self, backend: Any, settings: dict[str, Any], definition: bytes):
        backend.no_padding()
        backend.no_truncation()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if max(vocabulary.values(), default=-1) >= MAX_PIECES:
            raise InputError(f"a tokenizer has an id of {max(vocabulary.values())}; at most {MAX_PIECES} are read")
        self.pieces = [""] * (1 + max(vocabulary.values(), default=-1))
        for piece, i in vocabulary.items():
            self.pieces[i] = piece
        self.roles = _roles(vocabulary, settings)
        added = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.special_ids = tuple(sorted(added | set(self.roles.values())))
        framed = backend.encode("a").ids if self.pieces else []
        self.adds_bos = bool(settings.get("add_bos_token", framed[:1] == [self.roles.get("bos")]))
        backend.encode_special_tokens = True  # "[SEP]" in a text is text
        written = json.loads(backend.to_str())
        self.starts_word = _starts_word(self.pieces, written)
        self.starts_word[list(self.special_ids)] = True
        self.definition = b"tokenizers\0" + definition
        self._backend, self._cut = backend, word_cut(written)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return [found.ids for found in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encoder(self) -> Callable[[Sequence[str]], list[np.ndarray]]:
        if self._cut is not None:
            return WordEncoder(self._cut, self.encode_batch)
        return lambda texts: [np.array(ids, np.int32) for ids in self.encode_batch(texts)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        found = self._backend.encode_batch(list(texts), add_special_tokens=False) if texts else []
        return [(encoding.ids, list(encoding.offsets)) for encoding in found]

    def encode_marked(self, text: str, marks: re.Pattern, hidden: str) -> list[int]:
        """As SentencePieces.encode_marked; special pieces may take the spaces beside them."""
        added = {token.content: token for token in self._backend.get_added_tokens_decoder().values()}
        parts = _parts(text, marks)
        for at, part in enumerate(parts):
            token = added.get(part) if marks.fullmatch(part) else None
            if token is not None and token.lstrip and at:
                parts[at - 1] = parts[at - 1].rstrip()
            if token is not None and token.rstrip and at + 1 < len(parts):
                parts[at + 1] = parts[at + 1].lstrip()
        ids: list[int] = []
        for part in filter(None, parts):
            at = self._backend.token_to_id(part) if marks.fullmatch(part) else None
            ids += self.encode_batch([part.replace(hidden, "")])[0] if at is None else [at]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=False)


def _word_pieces(path: Path, data: bytes, settings: dict[str, Any]) -> HuggingFacePieces:
    library = _library()
    refuse_foreign("WordPiece", settings["tokenizer_class"], path)
    lines = _text(data, path).removesuffix("\n").split("\n")
    vocabulary = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
    unknown = _token_text(settings.get("unk_token")) or "[UNK]"
    if unknown not in vocabulary:
        raise ForeignTokenizer(f"{path} has no {unknown} line; it is no WordPiece vocabulary")
    refuse_other_pieces("WordPiece", vocabulary, settings["tokenizer_class"], path)
    lower = bool(settings.get("do_lower_case", True))
    backend = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = library.normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    backend.decoder = library.decoders.WordPiece(prefix="##")
    definition = json.dumps([lower, settings.get("strip_accents")]).encode() + data
    return HuggingFacePieces(backend, settings, b"wordpiece\0" + definition)


def _byte_pairs(path: Path, vocabulary: Any, merges: bytes, settings: dict[str, Any]) -> HuggingFacePieces:
    library = _library()
    if not isinstance(vocabulary, dict) or not all(isinstance(i, int) for i in vocabulary.values()):
        raise InputError(f"{path} is no vocabulary: it must map pieces to ids")
    refuse_foreign("byte-level BPE", settings["tokenizer_class"], path)
    refuse_other_pieces("byte-level BPE", vocabulary, settings["tokenizer_class"], path)
    merges_path = path.parent / "merges.txt"
    lines = _text(merges, merges_path).split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    prefix = bool(settings.get("add_prefix_space", False))
    try:
        backend = library.Tokenizer(library.models.BPE(vocabulary, pairs))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{merges_path} does not fit vocab.json ({str(error).splitlines()[0]})") from error
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = library.decoders.ByteLevel()
    definition = json.dumps([vocabulary, pairs, prefix], sort_keys=True).encode()
    return HuggingFacePieces(backend, settings, b"bytepairs\0" + definition)


def _parts(text: str, marks: re.Pattern) -> list[str]:
    """`text` cut before and after each mark."""
    parts, end = [], 0
    for found in marks.finditer(text):
        parts += [text[end : found.start()], found[0]]
        end = found.end()
    return [part for part in (*parts, text[end:]) if part]


def _roles(vocabulary: dict[str, int], settings: dict[str, Any]) -> dict[str, int]:
    """Special id by role: as the settings name it, where they do (null says there is none), else by usual names."""
    roles = {}
    for role, usual in USUAL_NAMES.items():
        key = f"{role}_token"
        if settings.get(key) is not None and _token_text(settings[key]) is None:
            raise InputError(f"{key} is {settings[key]!r} in the tokenizer's settings; it must be a piece, or null")
        named = (_token_text(settings[key]),) if key in settings else usual
        found = next((vocabulary[name] for name in named if name in vocabulary), None)
        if found is not None:
            roles[role] = found
    return roles


def _token_text(entry: Any) -> str | None:
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _starts_word(pieces: Sequence[str], definition: dict[str, Any]) -> np.ndarray:
    model = definition["model"]
    if model["type"] == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        return np.array([not piece.startswith(prefix) for piece in pieces], dtype=bool)
    around = json.dumps([definition.get("pre_tokenizer"), definition.get("decoder")])
    marks = BYTE_SPACES if "ByteLevel" in around else SPACE_MARKS
    return np.array([piece.startswith(marks) for piece in pieces], dtype=bool)


def _library():
    try:
        import tokenizers
    except ImportError as error:
        raise InputError("reading this tokenizer needs the tokenizers library; run: pip install tokenizers") from error
    import tokenizers.decoders
    import tokenizers.models
    import tokenizers.normalizers
    import tokenizers.pre_tokenizers

    return tokenizers


def _bytes(path: Path, root: Path | None = None) -> bytes:
    path = inside(path, root)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} has {path.stat().st_size} bytes, too many for a tokenizer (at most {MAX_BYTES})")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from error
    other = placeholder(data)
    if other:
        raise InputError(f"{path}: {other}")
    return data


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")  # a byte order mark is no piece
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}") from error


def _json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(data, path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is no valid JSON at line {error.lineno}") from error
    except (RecursionError, ValueError) as error:  # nested or written too deep, digits without end
        raise InputError(f"{path} is no valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a JSON {type(found).__name__} and not an object")
    return found
