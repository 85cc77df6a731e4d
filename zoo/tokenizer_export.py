"""A SentencePiece vocabulary as tokenizer.json, so that other programs cut text into the same ids.

A bare tokenizer.model is read by the reference library as the family's own kind of tokenizer says, byte pairs for most,
and a unigram vocabulary then gives other ids without a word. tokenizer.json says all that a tokenizer does, but for one
thing: special pieces and byte pieces ("<s>", "<0x41>") that a text spells out are text to SentencePiece alone.
"""

import json
from typing import Any

from zoo.errors import InputError

# Set in tokenizer_config.json where tokenizer.json was made here: the SentencePiece file beside it is the original.
MARK = "made_from"
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
SPACE = "\u2581"
# Cut both ways when a tokenizer is written: what is written must give the same ids.
SAMPLES = (
    "The cat sees a dog.",
    " Two  spaces, a\ttab\nand a line ",
    "na\u00efve \ufb01 \u4f60\u597d \U0001f600 12.5%",
    "",
)


def published_files(tokenizer: Any) -> dict[str, bytes]:
    """The files of a tokenizer for a published folder: its own, and tokenizer.json where they are SentencePiece alone.

    Byte-pair SentencePiece files are what the reference library's LlamaTokenizer reads, and are named so.

    Raises:
        InputError: the vocabulary cuts text in a way that tokenizer.json cannot say.
    """
    files = dict(tokenizer.files())
    said = json.loads(files.get("tokenizer_config.json", b"{}"))
    if "tokenizer.model" not in files or (said and MARK not in said):
        return files
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(files["tokenizer.model"])
    settings: dict[str, Any] = {MARK: "tokenizer.model"} | {
        f"{role}_token": proto.pieces[getattr(tokenizer, f"{role}_id")].piece
        for role in ROLES
        if getattr(tokenizer, f"{role}_id") is not None
    }
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        backend = unigram(proto)
        for text in SAMPLES:
            if backend.encode(text, add_special_tokens=False).ids != tokenizer.encode(text):
                raise InputError(f"the tokenizer cannot be written as tokenizer.json: it cuts {text!r} in another way")
        files["tokenizer.json"] = backend.to_str().encode()
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        settings |= {"tokenizer_class": "LlamaTokenizer", "legacy": False}
    settings["clean_up_tokenization_spaces"] = False
    files["tokenizer_config.json"] = (json.dumps(settings, indent=2) + "\n").encode()
    return files


def unigram(proto: Any) -> Any:
    """A tokenizers.Tokenizer that does what a unigram ModelProto of SentencePiece says.

    Reference: Kudo 2018 (arXiv:1804.10959).
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    spec, pieces = proto.normalizer_spec, proto.pieces
    backend = Tokenizer(
        models.Unigram(
            [(piece.piece, piece.score) for piece in pieces],
            unk_id=proto.trainer_spec.unk_id,
            byte_fallback=proto.trainer_spec.byte_fallback,
        )
    )
    steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(content=" ", left=1)] if spec.add_dummy_prefix else []),
        ]
    )
    special = [piece.piece for piece in pieces if piece.type in (piece.CONTROL, piece.UNKNOWN)]
    backend.add_special_tokens([AddedToken(name, special=True) for name in special])
    return backend
