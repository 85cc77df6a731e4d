"""The model card of a shipped model (Mitchell et al. 2019, arXiv:1810.03993), written from its metrics.json alone."""

from collections.abc import Iterable, Sequence
from typing import Any

KINDS = {
    "bert": "an encoder of BERT's kind",
    "gpt": "a decoder of GPT-2's kind",
    "llama": "a decoder of LLaMA's kind",
}
LICENCE = (
    "The weights and the vocabulary are Apache-2.0 as far as they are ours. They were learnt from these texts, which "
    "keep their own terms; two of them are free for research, so take the model for research, teaching and tests."
)


def card(facts: dict[str, Any]) -> str:
    """Markdown of the facts of a metrics.json (train.ship); every number in it is one of theirs."""
    name, causal = facts["name"], facts["objective"] == "next_token"
    parts = [
        f"# {name}",
        f"{_capital(KINDS.get(facts['family'], 'a Transformer'))}, {facts['parameters']:,} parameters: "
        f"{facts['layers']} layers of width {facts['width']}, {facts['heads']} heads, {facts['positions']} positions "
        f"(at most {facts['max_positions']} tokens), {facts['pieces']:,} lower-case SentencePiece pieces. Pre-trained "
        f"from scratch by {_objective(facts)}. It is a small model for demonstrations, lessons and tests.",
        f'```python\nimport zoo\n\nmodel, params = zoo.load("{name}")\ntokenizer = zoo.load_tokenizer("{name}")\n```',
        "## Text",
        f"{facts['text']['train']:,} tokens ({facts['text']['valid']:,} more held out for validation). Of tasks only "
        "the training splits' texts, without labels: no text of these tasks' test or validation sets is in it. "
        f"SHA-256 of the token file: `{facts['text_sha256']}`.",
        _table(("text", "licence"), facts["sources"]),
        LICENCE,
        "## Training",
        _training(facts),
        *([f"```\n{_lines(facts['command'])}\n```"] if facts["command"] else []),
        *facts["notes"],
        "## Measured",
        f"On the held-out text, {'next token' if causal else 'hidden tokens'}; an even guess costs ln V nats. The file "
        f"holds {facts['number_type']}; the other row is the run's own weights.",
        _table(
            ("weights", "loss (nats a token)", "accuracy"),
            [(kind, f"{v['loss']:.4f}", f"{v['accuracy']:.4f}") for kind, v in facts["valid"].items()],
        ),
        *_transfer(facts["transfer"]),
        "## Limits",
        _limits(facts, causal),
    ]
    return "\n\n".join(parts) + "\n"


def _objective(facts: dict[str, Any]) -> str:
    if facts["objective"] == "masked_lm":
        return f"masked language modelling, {facts['mask_rate']:.0%} of tokens chosen"
    return "predicting the next token"


def _training(facts: dict[str, Any]) -> str:
    epochs = facts["tokens_seen"] / facts["text"]["train"]
    said = (
        f"{facts['steps']:,} updates of {facts['tokens_a_step']:,} places in rows of {facts['row']}: "
        f"{facts['tokens_seen']:,} tokens, {epochs:.1f} times the text, special ones counted; "
        f"{facts['seconds'] / 60:.0f} minutes by the run's own clock."
    )
    return said + (f" The recipe is `{facts['recipe']}`:" if facts["recipe"] else "")


def _transfer(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    if not rows:
        return
    yield (
        "What pre-training bought: fine-tuned from these weights against the same network from random start, the same "
        "labelled examples, learning rates chosen for each arm on validation; difference by seed with its 95 % Student "
        "t interval."
    )
    header = ("task", "labels", "seeds", "pre-trained", "random start", "difference", "TF-IDF")
    yield _table(header, [transfer_row(row) for row in rows])
    protocols = dict.fromkeys(row["protocol"] for row in rows if row["protocol"])
    if protocols:
        yield "\n".join(f"- {', '.join(_tasks(rows, text))}: {text}." for text in protocols)


def _tasks(rows: Sequence[dict[str, Any]], protocol: str) -> Iterable[str]:
    told = (f"{row['task']} ({row['test_texts']:,} test texts)" for row in rows if row["protocol"] == protocol)
    return dict.fromkeys(told)


def transfer_row(row: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table, as texts."""
    plain = "" if row["tfidf"] is None else f"{row['tfidf']:.3f}"
    difference = f"{row['mean']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
    arms = (f"{row['pretrained']:.3f}", f"{row['random']:.3f}")
    return (row["task"], str(row["labels"]), str(row["seeds"]), *arms, difference, plain)


def _limits(facts: dict[str, Any], causal: bool) -> str:
    said = [
        "English, of newsgroups and news of decades ago, much of it without punctuation or digits. Trained on rows of "
        f"{facts['row']} tokens: longer texts are outside what it has seen. It repeats what its text holds, opinions "
        "of strangers among it, and knows nothing reliably.",
        "What it writes is grammatical by the clause and seldom makes sense."
        if causal
        else "It has neither BERT's pooler nor its next-sentence head: classify from the mean or the first token.",
    ]
    if facts["family"] == "bert" and facts["positions"] != "learned":
        said.append(
            f"BERT with {facts['positions']} positions is no published architecture: `zoo export` refuses it, and "
            "transformers cannot open it. It loads and trains here."
        )
    elif causal:
        said.append("`python -m zoo export` writes it as a folder that transformers opens.")
    return "\n".join(f"- {line}" for line in said)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _lines(command: str) -> str:
    return "\n".join(command.split(" && "))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
