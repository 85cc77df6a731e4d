"""Training a SentencePiece vocabulary: one that serves every family.

    <pad>=0 <unk>=1 <s>=2 </s>=3 [CLS]=4 [SEP]=5 [MASK]=6, the 256 bytes, then what the text teaches

A character that was not seen is written in bytes, so nothing is unknown. Kudo and Richardson 2018, arXiv:1808.06226.
"""

import io
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from zoo.errors import InputError
from zoo.tokenizer import Tokenizer, sentencepiece_tokenizer

CONTROL_PIECES = ("[CLS]", "[SEP]", "[MASK]")
MAX_CHUNK = 1000
# SentencePiece adds up the shares of its threads; a fixed number of them gives one vocabulary on every machine.
THREADS = 4


def train_vocabulary(
    documents: Iterable[str],
    vocab_size: int = 8192,
    *,
    kind: Literal["unigram", "bpe"] = "unigram",
    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "identity"] = "nmt_nfkc",
    character_coverage: float = 0.9995,
    max_chunks: int = 1_000_000,
) -> Tokenizer:
    """Learns pieces from text. The same documents in the same order give the same vocabulary.

    Args:
        documents: any iterable of texts; read once.
        vocab_size: V, all special pieces and bytes included.
        kind: "unigram" (Kudo 2018, arXiv:1804.10959) or "bpe" (Sennrich et al. 2016, arXiv:1508.07909).
        normalization: "nmt_nfkc" folds compatibility forms and runs of white space; "nmt_nfkc_cf" folds case too;
            "identity" keeps every character, so that decoding gives the text back exactly.
        character_coverage: share of the running text whose characters get pieces; the rest is written in bytes.
        max_chunks: texts are learnt from in chunks of about 1,000 characters; of more than this many an even sample is
            taken.

    Raises:
        InputError: no text, or a vocab_size that this text cannot fill or that cannot hold its characters, with the
            nearest size that can be.
    """
    import sentencepiece

    if kind not in ("unigram", "bpe"):
        raise InputError(f'no vocabulary kind "{kind}"; one of unigram, bpe')
    if vocab_size < 1:
        raise InputError(f"vocab_size is {vocab_size}; it must be 1 or more, such as 8192")
    chunks = _sample(_chunks(documents), max_chunks)
    if not chunks:
        raise InputError("no text to learn a vocabulary from; give at least one document that is not blank")
    keep = normalization == "identity"
    model = io.BytesIO()
    try:
        interruptible(
            sentencepiece.SentencePieceTrainer.train,
            sentence_iterator=iter(chunks),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=kind,
            normalization_rule_name=normalization,
            remove_extra_whitespaces=not keep,
            character_coverage=character_coverage,
            byte_fallback=True,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece="<pad>",
            control_symbols=list(CONTROL_PIECES),
            max_sentence_length=16 * MAX_CHUNK,
            num_threads=THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise InputError(_size_line(vocab_size, sum(map(len, chunks)), str(error))) from error
    return sentencepiece_tokenizer(model.getvalue())


def interruptible(work: Callable[..., Any], **options: Any) -> None:
    """Calls `work` in a thread beside this one: a call into C++ would hear of Ctrl-C when it is over.

    What was interrupted goes on unheard until the program ends, which is soon.
    """
    faults: list[BaseException] = []

    def call() -> None:
        try:
            work(**options)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if faults:
        raise faults[0]


def _size_line(vocab_size: int, characters: int, said: str) -> str:
    if found := re.search(r"too high.*<= (\d+)", said):
        return (
            f"a text of {characters:,} characters teaches fewer than {vocab_size:,} pieces; "
            f"pass --vocab-size {found[1]} or less"
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", said):
        return (
            f"a vocabulary of {vocab_size:,} pieces cannot hold the bytes and characters of this text; "
            f"pass --vocab-size {found[1]} or more"
        )
    return f"no vocabulary of {vocab_size} pieces could be learnt; pass another --vocab-size ({said.splitlines()[0]})"


def _chunks(documents: Iterable[str]) -> Iterator[str]:
    """Lines and parts of long lines: SentencePiece passes over a sentence that is too long without a word."""
    for document in documents:
        for line in document.split("\n"):
            while len(line) > MAX_CHUNK:
                cut = line.rfind(" ", 1, MAX_CHUNK)
                cut = cut if cut > 0 else MAX_CHUNK
                yield line[:cut]
                line = line[cut:]
            if line.strip():
                yield line


def _sample(chunks: Iterator[str], most: int) -> list[str]:
    """An even sample of at most `most` (Vitter 1985, algorithm R), the same at every call."""
    kept = list(itertools.islice(chunks, most))
    draw = random.Random(0)
    for seen, chunk in enumerate(chunks, most + 1):
        place = draw.randrange(seen)
        if place < most:
            kept[place] = chunk
    return kept
