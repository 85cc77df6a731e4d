"""Reading any tokenizer: one small class over SentencePiece and Hugging Face files.

A tokenizer here turns text into ids and back, knows its special ids by role, and frames ids for a model family:

    bert    [CLS] a [SEP]            [CLS] a [SEP] b [SEP]      token types 0 and 1
    gpt     <s> a </s>               <s> a [SEP] b </s>         </s> in place of [SEP] where there is none

Training a vocabulary is `train.vocabulary`'s work.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zoo import chat, tokenizer_files
from zoo.atomic_file import write_atomically
from zoo.errors import InputError, nearest
from zoo.given_numbers import whole_ids
from zoo.packages import CHECKPOINTS, checkpoint_folder, is_name
from zoo.tokenizer_pieces import Pieces

BREAK = "\ufdd0"  # no character of any text, by the Unicode standard
ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")


class Tokenizer:
    """Text to ids and back, with special ids by role.

    Attributes:
        vocab_size: V, one above the largest id.
        bos_id, eos_id, pad_id, unk_id, cls_id, sep_id, mask_id: int, or None where the vocabulary has no such piece.
        special_ids: ids that no text produces, ascending.
        stop_ids: what ends a generated text: those of generation_config.json, or EOS, or none.
        adds_bos: whether a text that is to be continued begins with BOS, as the checkpoint's settings say.
        starts_word: [V] bool: the piece begins a word (special pieces are words of their own).
        fingerprint: SHA-256 (hex) of what decides ids; equal fingerprints give equal ids.
    """

    def __init__(self, pieces: Pieces, files: dict[str, bytes]):
        self._pieces = pieces
        self._files = dict(files)
        self.vocab_size = len(pieces.pieces)
        for role in ROLES:
            setattr(self, f"{role}_id", pieces.roles.get(role))
        self.special_ids = tuple(sorted(pieces.special_ids))
        self.starts_word = pieces.starts_word
        self.adds_bos = pieces.adds_bos and self.bos_id is not None

    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unk_id: int | None
    cls_id: int | None
    sep_id: int | None
    mask_id: int | None

    @cached_property
    def fingerprint(self) -> str:
        specials = json.dumps([[role, getattr(self, f"{role}_id")] for role in ROLES])
        return hashlib.sha256(specials.encode() + b"\0" + self._pieces.definition).hexdigest()

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        named = _settings(self._files, "generation_config.json").get("eos_token_id")
        ids = [i for i in (named if isinstance(named, list) else [named]) if isinstance(i, int) and i >= 0]
        ids += [] if self.eos_id is None or self.eos_id in ids else [self.eos_id]
        return tuple(i for i in ids if i < self.vocab_size)

    @cached_property
    def chat_template(self) -> str | None:
        """Jinja source from chat_template.jinja or tokenizer_config.json; None where there is none."""
        if "chat_template.jinja" in self._files:
            return self._files["chat_template.jinja"].decode(errors="replace")
        found = _settings(self._files, "tokenizer_config.json").get("chat_template")
        if isinstance(found, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("default")
        return found if isinstance(found, str) else None

    def chat_text(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """A conversation as the checkpoint's own template writes it, special pieces included.

        Args:
            messages: dicts with "role" ("system", "user", "assistant") and "content".
            add_generation_prompt: end where the assistant's turn begins.
            **variables: more names that the template reads, such as tools.

        Raises:
            InputError: there is no template, or it fails or refuses these messages.
        """
        chat.check_messages(messages)
        if self.chat_template is None:
            raise InputError("this tokenizer has no chat template; use a checkpoint that was trained to converse")
        given = {"tools": None, "documents": None} | variables
        for role in ROLES:
            at = getattr(self, f"{role}_id")
            if at is not None:
                given[f"{role}_token"] = self.piece(at)
        return chat.render(self.chat_template, messages, add_generation_prompt=add_generation_prompt, **given)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Ids of a conversation; arguments and errors as `chat_text`.

        The template's special pieces become their ids. What a message says is text alone: "<|im_end|>" in a content
        ends no turn, as it would if the whole were read together.
        """
        chat.check_messages(messages)
        pattern = self._marks(self.special_ids)

        def hidden(value: Any) -> Any:
            if isinstance(value, str):
                return pattern.sub(lambda found: found[0][0] + BREAK + found[0][1:], value.replace(BREAK, ""))
            if isinstance(value, Mapping):
                return {name: hidden(inner) for name, inner in value.items()}
            return [hidden(inner) for inner in value] if isinstance(value, list | tuple) else value

        safe = [{name: value if name == "role" else hidden(value) for name, value in m.items()} for m in messages]
        return self.encode_marked(self.chat_text(safe, add_generation_prompt, **variables), self.special_ids)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` without special pieces; text that looks like one ("[SEP]") is read as plain characters."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` of each text, on all cores.

        Raises:
            InputError: a text is no str or holds half of a surrogate pair.
        """
        texts = list(texts)
        with _faults_told(texts):
            return self._pieces.encode_batch(texts)

    def encoder(self) -> Callable[[Iterable[str]], list[np.ndarray]]:
        """`encode_batch` for much text: a function from texts to [length] int32 of each, the same ids.

        Where words are encoded one by one, it remembers the ids of those it has met (zoo.word_cache); each call of
        `encoder` begins with none.
        """
        encode = self._pieces.encoder()

        def encoded(texts: Iterable[str]) -> list[np.ndarray]:
            texts = list(texts)
            with _faults_told(texts):
                return encode(texts)

        return encoded

    def encode_marked(self, text: str, special: Sequence[int]) -> list[int]:
        """`encode`, where the pieces of the ids `special`, spelt out in the text, are those ids.

        Raises:
            InputError: as `encode_batch`.
        """
        with _faults_told([text]):
            return self._pieces.encode_marked(text, self._marks(special), BREAK)

    def _marks(self, special: Sequence[int]) -> re.Pattern:
        """What finds the pieces of these ids in a text, the longest first."""
        marks = sorted(filter(None, map(self.piece, special)), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, marks)) or "(?!)")

    def encode_with_offsets(self, texts: Iterable[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """For each text the ids of `encode` and, for each id, the characters that it stands for.

        text[start:end] holds neither the space before a word nor the one after it. Pieces that are bytes of one
        character all have its place; a piece that stands for no character, or for spaces alone, has start = end.

        Raises:
            InputError: as `encode_batch`.
        """
        texts = list(texts)
        with _faults_told(texts):
            found = self._pieces.encode_with_offsets(texts)
        pairs = zip(texts, found, strict=True)
        return [(ids, [_trimmed(text, *span) for span in spans]) for text, (ids, spans) in pairs]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special pieces leave no trace.

        Raises:
            InputError: an id is no whole number, is negative or not below vocab_size.
        """
        ids = whole_ids(ids)
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise InputError(f"id {i} is outside the vocabulary of {self.vocab_size} pieces")
        special = set(self.special_ids)
        return self._pieces.decode([i for i in ids if i not in special])

    def piece(self, id: int) -> str:
        """The piece with this id as the vocabulary writes it."""
        if not 0 <= id < self.vocab_size:
            raise InputError(f"id {id} is outside the vocabulary of {self.vocab_size} pieces")
        return self._pieces.pieces[id]

    def frame(
        self,
        ids: Sequence[int],
        pair: Sequence[int] | None = None,
        *,
        style: Literal["bert", "gpt"] = "bert",
        max_length: int | None = None,
    ) -> tuple[list[int], list[int]]:
        """Ids with the special pieces around them that a family expects.

        Whatever stands at the ends of `ids` already is not added again: there is exactly one BOS (or [CLS]). What is
        too long loses ids from its end, of a pair the longer one first; an odd id is left to the longer one, or of two
        equals to the second.

        Args:
            ids: of the first text.
            pair: of the second text, if there is one.
            style: "bert" or "gpt", drawn at the head of this file. A vocabulary without BOS gets none under "gpt".
            max_length: most ids in the result, special pieces included.

        Returns:
            (ids, token_types), both of one length; under "bert" the second text and its [SEP] have type 1.

        Raises:
            InputError: the vocabulary lacks the pieces of this style, or max_length leaves no room for them.
        """
        if style == "bert":
            before, between, after = self._need("cls", style), self._need("sep", style), self.sep_id
        elif style == "gpt":
            if self.bos_id is None and self.eos_id is None:
                raise InputError('this tokenizer has neither BOS nor EOS, which style "gpt" needs; use style="bert"')
            before, after = self.bos_id, self.eos_id
            between = self.sep_id if self.sep_id is not None else self.eos_id
            if pair is not None and between is None:
                raise InputError("this tokenizer has neither SEP nor EOS to put between the texts of a pair")
        else:
            raise InputError(f'no frame style "{style}"; one of bert, gpt')
        first, second = list(ids), None if pair is None else list(pair)
        if before is not None and first and first[0] == before:
            first = first[1:]
        for part, mark in ((first, after if second is None else between), (second, after)):
            if part and mark is not None and part[-1] == mark:
                part.pop()
        head = [] if before is None else [before]
        middle = [] if second is None else [between]
        tail = [] if after is None else [after]
        if max_length is not None:
            room = max_length - len(head) - len(middle) - len(tail)
            if room < 0:
                raise InputError(
                    f"max_length {max_length} cannot hold the special pieces; at least {max_length - room}"
                )
            longer = len(second or ()) >= len(first)
            kept = min(len(second or ()), max((room + longer) // 2, room - len(first)))
            first = first[: room - kept]
            second = None if second is None else second[:kept]
        framed = head + first + middle + (second or []) + tail
        ones = 0 if style == "gpt" or second is None else len(second) + 1
        return framed, [0] * (len(framed) - ones) + [1] * ones

    def _need(self, role: str, style: str) -> int:
        found = getattr(self, f"{role}_id")
        if found is None:
            other = "bert" if style == "gpt" else "gpt"
            raise InputError(f'this tokenizer has no {role.upper()}, which style "{style}" needs; use style="{other}"')
        return found

    def files(self) -> dict[str, bytes]:
        """The files that make this tokenizer, by name, as they were read."""
        return dict(self._files)

    def save(self, folder: str | os.PathLike) -> Path:
        """Writes `files()` into `folder` (made if missing), each atomically; returns the folder."""
        folder = Path(folder)
        for name, data in self._files.items():
            write_atomically(folder / name, data)
        return folder

    def __len__(self) -> int:
        return self.vocab_size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        roles = ", ".join(f"{role}={getattr(self, f'{role}_id')}" for role in ROLES)
        return f"Tokenizer({self.vocab_size} pieces from {', '.join(self._files)}; {roles})"


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """The tokenizer in a folder or file.

    Args:
        path: a file (tokenizer.json, a SentencePiece model, vocab.txt, a GGUF model), a folder with one of them or with
            vocab.json and merges.txt, a run or shard folder (its `tokenizer/` is read), or the name of a
            shipped model ("oneblock/gpt-tiny") or an embedded package.

    Raises:
        InputError: nothing there, or not readable as a tokenizer; a ForeignTokenizer (zoo.tokenizer_classes) where the
            files leave a part of the work to a program that is not here; beside weights that were trained with another
            one, as their folder says.
    """
    from zoo.checkpoints.belongings import require_trained_with

    tokenizer = read_tokenizer(path)
    require_trained_with(path, tokenizer)
    return tokenizer


def read_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """As load_tokenizer, whatever the weights beside it were trained with."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"the path of the tokenizer is a {type(path).__name__}; name a folder or a file")
    name = os.fspath(path)
    if not name.strip():
        raise InputError("the path of the tokenizer is empty; name a folder or a file")
    if "://" in name:
        raise InputError(f'"{name:.80}" is an address, from which nothing is downloaded: name a folder or a file')
    place = Path(name)
    if not os.path.exists(name):  # False for names that are too long, where Path.exists raises
        if not is_name(name):
            raise InputError(_no_place(name))
        place = checkpoint_folder(name)
    return Tokenizer(*tokenizer_files.read(place))


def sentencepiece_tokenizer(model: bytes, name: str = "tokenizer.model") -> Tokenizer:
    """A Tokenizer over the bytes of a SentencePiece model."""
    return Tokenizer(tokenizer_files.SentencePieces(model, name), {name: model})


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    inner = text[start:end]
    start = min(end, start + len(inner) - len(inner.lstrip()))
    return start, max(start, end - len(inner) + len(inner.rstrip()))


def _no_place(name: str) -> str:
    from zoo.registry import PRESETS

    shown = f'no file or folder "{name:.80}"'
    if name in PRESETS:
        return f'{shown}; "{name}" is a preset without a tokenizer: name a folder or one of {", ".join(CHECKPOINTS)}'
    return shown + nearest(name, CHECKPOINTS)


def _settings(files: dict[str, bytes], name: str) -> dict[str, Any]:
    try:
        found = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _faults_told(texts: Sequence[str]) -> Iterator[None]:
    """What a library says of texts that are none, as one line."""
    try:
        yield
    except (TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise InputError(_text_fault(texts, error)) from error


def _text_fault(texts: Sequence[str], error: Exception) -> str:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            return f"text {number} of {len(texts)} is a {type(text).__name__} and not a str"
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            return f"text {number} of {len(texts)} is no text: half of a surrogate pair at character {fault.start}"
    return f"the tokenizer refused {len(texts)} texts: {str(error).splitlines()[0]}"
