"""The four layouts in which tokenizers are published, each read into one shape.

    tokenizer.json                    Hugging Face tokenizers, whole
    tokenizer.model, spiece.model     SentencePiece
    vocab.txt                         BERT's WordPiece, one piece a line
    vocab.json + merges.txt           GPT-2's byte-level BPE

Roles of special pieces come from tokenizer_config.json or special_tokens_map.json where those say so, else from the
usual names in the vocabulary.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import InputError

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
# A byte-level vocabulary writes the bytes of space, newline, tab and carriage return as these letters.
BYTE_SPACES = ("\u0120", "\u010a", "\u0109", "\u010d")
SPACE_MARKS = ("\u2581", "<0x0A>", "<0x09>", "<0x0D>", "<0x20>")


def read(place: Path) -> tuple["SentencePieces | HuggingFacePieces", dict[str, bytes]]:
    """Finds and reads the tokenizer at `place`; returns it and the files that make it.

    Raises:
        InputError: nothing there, or not readable.
    """
    if place.is_file():
        return _read_file(place)
    if not place.is_dir():
        raise InputError(f"no file or folder {place}")
    for folder in (place, place / "tokenizer"):
        for name in ("tokenizer.json", *SENTENCEPIECE_NAMES, "vocab.txt"):
            if (folder / name).is_file():
                return _read_file(folder / name)
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return _read_file(folder / "vocab.json")
    looked = ", ".join(("tokenizer.json", *SENTENCEPIECE_NAMES, "vocab.txt"))
    raise InputError(f"no tokenizer in {place} or its tokenizer/; looked for {looked}, vocab.json with merges.txt")


def _read_file(path: Path) -> tuple["SentencePieces | HuggingFacePieces", dict[str, bytes]]:
    data = _bytes(path)
    if path.suffix != ".json" and ".model" in path.name:
        name = path.name if path.name in SENTENCEPIECE_NAMES else "tokenizer.model"
        return SentencePieces(data, path), {name: data}
    if path.suffix != ".json" and path.name != "vocab.txt":
        raise InputError(f"{path} is no tokenizer file; give tokenizer.json, vocab.txt, or a SentencePiece .model")
    settings_files = {name: _bytes(path.parent / name) for name in SETTINGS_NAMES if (path.parent / name).is_file()}
    settings = {}
    for name, content in reversed(settings_files.items()):
        settings |= _json(content, path.parent / name)
    files = {path.name: data} | settings_files
    if path.name == "vocab.txt":
        return _word_pieces(path, data, settings), files
    content = _json(data, path)
    if path.name == "vocab.json":
        merges = _bytes(path.parent / "merges.txt")
        return _byte_pairs(path, content, merges, settings), files | {"merges.txt": merges}
    library = _library()
    try:
        backend = library.Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path} is no valid tokenizer.json ({str(error).splitlines()[0]})") from error
    return HuggingFacePieces(backend, settings, data), {"tokenizer.json": data} | settings_files


class SentencePieces:
    """A SentencePiece model; specials are found by name, for its own slots hold four alone."""

    def __init__(self, model: bytes, path: str | Path):
        import sentencepiece

        try:
            if not model:
                raise RuntimeError("it is empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError(f"{path} is no valid SentencePiece model") from error
        processor = self._processor
        count = processor.get_piece_size()
        self.pieces = [processor.id_to_piece(i) for i in range(count)]
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

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(texts)) if texts else []

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode(list(ids))


class HuggingFacePieces:
    """A tokenizer of the tokenizers library, with its own padding, truncation and framing switched off."""

    def __init__(self, backend: Any, settings: dict[str, Any], definition: bytes):
        backend.no_padding()
        backend.no_truncation()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.pieces = [""] * (1 + max(vocabulary.values(), default=-1))
        for piece, i in vocabulary.items():
            self.pieces[i] = piece
        self.roles = _roles(vocabulary, settings)
        added = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.special_ids = tuple(sorted(added | set(self.roles.values())))
        backend.encode_special_tokens = True  # "[SEP]" in a text is text
        self.starts_word = _starts_word(self.pieces, json.loads(backend.to_str()))
        self.starts_word[list(self.special_ids)] = True
        self.definition = b"tokenizers\0" + definition
        self._backend = backend

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return [found.ids for found in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=False)


def _word_pieces(path: Path, data: bytes, settings: dict[str, Any]) -> HuggingFacePieces:
    library = _library()
    lines = _text(data, path).removesuffix("\n").split("\n")
    vocabulary = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
    unknown = _token_text(settings.get("unk_token")) or "[UNK]"
    if unknown not in vocabulary:
        raise InputError(f"{path} has no {unknown} line; it is no WordPiece vocabulary")
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


def _roles(vocabulary: dict[str, int], settings: dict[str, Any]) -> dict[str, int]:
    """Special id by role: as the settings name it, where they do (null says there is none), else by usual names."""
    roles = {}
    for role, usual in USUAL_NAMES.items():
        key = f"{role}_token"
        named = (_token_text(settings[key]),) if key in settings else usual
        found = next((vocabulary[name] for name in named if name in vocabulary), None)
        if found is not None:
            roles[role] = found
    return roles


def _token_text(entry: Any) -> str | None:
    return entry.get("content") if isinstance(entry, dict) else entry


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


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from error


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}") from error


def _json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(data, path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is no valid JSON at line {error.lineno}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a JSON {type(found).__name__} and not an object")
    return found
