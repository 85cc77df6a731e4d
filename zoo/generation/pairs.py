"""Pairs of texts as ids: where a context ends and its continuation begins.

Context + continuation is encoded as one text, as a model meets it; the continuation is all after the longest common
beginning with the ids of the context alone. A token that reaches over the border belongs to the continuation. Spaces at
the end of a context go to its continuation (" Paris" is a token, "Paris" after "is " mostly is not). Exactly one BOS
stands first where the tokenizer's settings say that texts begin so. An empty context is the BOS, or else the
end-of-text piece, which in training stands before a document.
"""

from collections.abc import Sequence

from zoo.tokenizer import Tokenizer

Pair = tuple[str, str]
Ids = tuple[list[int], list[int]]


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[Ids]:
    """(context ids, continuation ids) of each pair of texts, by the rule above."""
    moved = [(context.rstrip(), context[len(context.rstrip()) :] + text) for context, text in pairs]
    contexts = list(dict.fromkeys(context for context, _ in moved))
    ids_of = dict(zip(contexts, tokenizer.encode_batch(contexts), strict=True))
    wholes = tokenizer.encode_batch([context + text for context, text in moved])
    found = []
    for (context, _), whole in zip(moved, wholes, strict=True):
        before = ids_of[context] if context else []
        shared = shared_length(before, whole)
        begins = shared and tokenizer.adds_bos and whole[0] == tokenizer.bos_id  # a conversation brings its own
        begin = [] if begins else beginning(tokenizer, bare=not shared)
        found.append((begin + whole[:shared], whole[shared:]))
    return found


def shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two rows begin with together."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def beginning(tokenizer: Tokenizer, bare: bool = True) -> list[int]:
    """What stands before a text's first token: BOS where texts begin with it.

    Args:
        bare: nothing else stands before what is scored: where texts do not begin with BOS, this takes BOS (or EOS) all
            the same, for a first token is predicted from something.
    """
    if tokenizer.adds_bos:
        return [tokenizer.bos_id]
    if not bare:
        return []
    ids = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.cls_id)
    return [next((i for i in ids if i is not None), 0)]
