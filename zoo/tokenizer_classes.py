"""Which tokenizer classes of the reference library cut text as the files that we read say, and which do more.

tokenizer.json holds all that a tokenizer does. The older files hold a vocabulary, and the class does the rest in code:
lower case, another cut into words, ids that are shifted by one. Reading those as if the class added nothing gives wrong
ids without a word, so a class is taken where we know it, and refused by name elsewhere.
"""

from collections.abc import Iterable
from typing import Any

from zoo.errors import InputError

# They do what their files say, whatever those are.
ANY = frozenset(("PreTrainedTokenizer", "TokenizersBackend", "SentencePieceBackend", "PythonBackend", ""))
KNOWN = {
    "WordPiece": frozenset(
        f"{stem}Tokenizer"
        for stem in """
        Bert DistilBert Electra MobileBert SqueezeBert ConvBert MPNet Funnel LayoutLM LayoutLMv2 Lxmert RetriBert
        Splinter VisualBert DPRContextEncoder DPRQuestionEncoder DPRReader MegatronBert Nezha QDQBert Realm
        """.split()
    ),
    "byte-level BPE": frozenset(
        f"{stem}Tokenizer" for stem in "GPT2 Roberta Bart Longformer LED Mvp Deberta Whisper CodeGen".split()
    ),
    "SentencePiece": frozenset(
        f"{stem}Tokenizer" for stem in "Llama LLaMA CodeLlama Gemma T5 MT5 BertGeneration BigBird Reformer".split()
    ),
}
INSTEAD = (
    "give its tokenizer.json (transformers' AutoTokenizer writes one with save_pretrained), or cut the text with the "
    "checkpoint's own program and give the model ids"
)


class ForeignTokenizer(InputError):
    """The files are whole, and belong to a tokenizer that is not read here."""


def refuse_foreign(layout: str, declared: Any, where: Any) -> None:
    """Raises ForeignTokenizer where the class that a checkpoint names does more than files of `layout` say.

    Args:
        layout: a key of KNOWN.
        declared: tokenizer_class of tokenizer_config.json or config.json; None where neither names one.
        where: the file, for the message.
    """
    if known_class(layout, declared) or _name(declared) in ANY:
        return
    raise ForeignTokenizer(f'{where} belongs to a "{declared}", which is not plain {layout}: {INSTEAD}')


def known_class(layout: str, declared: Any) -> bool:
    """Whether `declared` is a class that does what files of `layout` say and nothing else."""
    return _name(declared) in KNOWN[layout]


def _name(declared: Any) -> str:
    return declared.removesuffix("Fast") if isinstance(declared, str) else ""


def refuse_other_pieces(layout: str, pieces: Iterable[str], declared: Any, where: Any) -> None:
    """Raises ForeignTokenizer where the pieces are not spelled as those of `layout` are.

    A WordPiece vocabulary marks what goes on within a word by "##"; one without is of whole words, atoms or letters,
    and the program that cuts text into those is elsewhere. Byte-level BPE has no "</w>" at the end of words.
    """
    pieces = list(pieces)
    marked = layout != "WordPiece" or known_class(layout, declared)
    if not marked and not any(piece.startswith("##") for piece in pieces):
        raise ForeignTokenizer(
            f'{where} is no WordPiece vocabulary, for none of its {len(pieces)} pieces begins with "##": cut the text '
            "with the checkpoint's own program (molecules are often cut by a regular expression) and give the model ids"
        )
    if layout == "byte-level BPE" and any(piece.endswith("</w>") for piece in pieces):
        raise ForeignTokenizer(f'{where} is no byte-level BPE, for its pieces end words with "</w>": {INSTEAD}')
