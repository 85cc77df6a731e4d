"""How a model differs from its neighbours, in words: a diff of settings."""

import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

# A layer pattern of more runs than these is told by how often each layer occurs.
MAX_RUNS = 6
SIZES = ("vocab_size", "embed_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_dim", "max_positions")

# What a setting decides, in a few words; every field of ModelConfig that is not a size stands here (tested).
MEANINGS = {
    "family": "whose checkpoint conventions it follows",
    "layer_pattern": "what repeats from layer to layer (window, rotary)",
    "visibility": "which tokens a token sees",
    "cross_attention": "whether blocks also attend to an encoder's output",
    "positions": "where order enters",
    "rotary_base": "base of the rotary frequencies",
    "rotary_dim": "how many features of a head are turned",
    "rotary_scaling": "how rotary frequencies are stretched beyond the trained length",
    "relative_buckets": "number of relative-position buckets",
    "relative_max_distance": "distance from which all share the last bucket",
    "position_offset": "rows of the position table before position 0",
    "token_types": "segment embeddings",
    "embed_norm": "whether the sum of embeddings is normalised",
    "embed_scale": "what token embeddings are multiplied by",
    "embed_rank": "width of the embedding tables, where a projection widens them",
    "embed_projection": "what that projection widens, and whether a second one leads back",
    "shared_layers": "whether all layers have the same parameters",
    "norm": "the kind of norm",
    "norm_placement": "where norms stand: before an update, after the sum, around the update, or after it",
    "norm_unit_offset": "norms multiply by 1 + scale",
    "norm_bias": "whether layer norms have a bias",
    "norm_eps": "added to the variance in every norm",
    "final_norm": "a norm after the last block",
    "layer_scale": "learned factors on every update, and where they start",
    "attention_bias": "biases of query, key and value",
    "attention_out_bias": "bias of the attention output",
    "mlp_bias": "biases of the feed-forward network",
    "qk_norm": "whether queries and keys are normalised",
    "qk_norm_over": "what a norm of queries and keys runs over",
    "qk_norm_kind": "the kind of that norm",
    "score_scale": "what scores are multiplied by",
    "attention_soft_cap": "soft cap on scores",
    "logit_soft_cap": "soft cap on logits",
    "parallel_block": "attention and feed-forward side by side",
    "parallel_mlp_norm": "whether the feed-forward beside attention has its own norm",
    "activation": "the feed-forward nonlinearity",
    "gated": "whether a gate multiplies it",
    "num_experts": "how many feed-forward networks a router chooses from",
    "experts_per_token": "how many of them a token goes to",
    "dropout": "dropout of updates, in training",
    "embed_dropout": "dropout of embeddings, in training",
    "attention_dropout": "dropout of attention weights, in training",
    "head_dropout": "dropout before the classifier, in training",
    "tie_embeddings": "whether the read-out is the token table",
    "head": "what logits are",
    "masked_lm_activation": "the nonlinearity of the masked-LM transform, where it is its own",
    "head_bias": "biases of the hidden layers of heads",
    "classifier_hidden": "which classifiers have a hidden layer",
    "classifier_activation": "the nonlinearity of that layer",
    "classifier_norm": "whether a norm follows that layer",
    "lm_bias": "a bias on the vocabulary logits",
    "pooler": "BERT's tanh layer on the first token",
    "next_sentence": "BERT's next-sentence head",
    "classifier_bias": "bias of the classifier",
    "num_labels": "classes of the classifier",
    "pooling": "how the classifier reads a row",
    "image_size": "side of the images that it reads; 0 for tokens",
    "patch_size": "side of a patch",
    "channels": "numbers a pixel",
    "class_token": "a learned token before the patches, which answers for the image",
    "distillation_token": "a second one, trained on a teacher's answers",
    "registers": "learned tokens without a position, where the network keeps notes",
    "mask_token": "what stood for hidden patches in pre-training",
    "distillation_head": "a second classifier, on the distillation token",
    "initializer_range": "standard deviation of initial weights",
    "residual_init": "smaller initial weights where updates are written",
    "dtype": "of activations",
    "matmul_dtype": "in which activations meet weights in training",
    "scan": "layers in a scan or in a loop",
    "int8": "weights in int8, with so many float columns a kernel",
    "remat": "what the backward pass recomputes",
    "attention_kernel": "which kernel computes attention",
    "label_names": "names of the classes",
}


def differences(config: ModelConfig, other: ModelConfig) -> list[tuple[str, Any, Any]]:
    """(field, value here, value there) for every field in which the two differ, sizes first."""
    names = [f.name for f in dataclasses.fields(ModelConfig)]
    names.sort(key=lambda name: name not in SIZES)
    return [(n, getattr(config, n), getattr(other, n)) for n in names if getattr(config, n) != getattr(other, n)]


def nearest_neighbour(config: ModelConfig, presets: dict[str, ModelConfig]) -> str:
    """The preset of another family whose settings, sizes aside, differ least; of equals the nearest in size."""

    def distance(other: ModelConfig) -> tuple[int, float]:
        settings = [field for field, _, _ in differences(config, other) if field not in SIZES]
        sizes = [c.num_layers * c.embed_dim**2 for c in (config, other)]
        return len(settings), abs(math.log(sizes[0] / sizes[1]))

    return min((name for name in presets if presets[name].family != config.family), key=lambda n: distance(presets[n]))


def explain(name: str, config: ModelConfig, others: dict[str, ModelConfig]) -> str:
    """The text of `python -m zoo explain`: what sets `name` apart from each of `others`, sizes in one line."""
    if others and not any(differences(config, other) for other in others.values()):
        return f"{name} against {', '.join(others)}: no difference"
    lines = [f"{name}: the block with these settings", ""]
    for field in ("visibility", "positions", "norm", "norm_placement", "activation", "gated", "tie_embeddings", "head"):
        lines.append(f"  {field:<16} {_words(getattr(config, field)):<10} {MEANINGS[field]}")
    for other_name, other in others.items():
        changed = differences(config, other)
        sizes = [f"{n} {_words(a)} (not {_words(b)})" for n, a, b in changed if n in SIZES]
        lines += ["", f"against {other_name}:"]
        if sizes:
            lines.append("  sizes: " + ", ".join(sizes))
        for field, here, there in changed:
            if field not in SIZES:
                lines.append(f"  {field}: {_words(here)}, where {other_name} has {_words(there)} - {MEANINGS[field]}")
        if not changed:
            lines.append("  no difference")
    return "\n".join(lines)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, LayerConfig):
        set_apart = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        plain = dataclasses.asdict(LayerConfig())
        return ", ".join(f"{k} {_words(v)}" for k, v in set_apart.items() if v != plain[k]) or "global"
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(value).items() if v is not None) or "plain"
    if isinstance(value, tuple):
        runs = [(len(list(run)), word) for word, run in itertools.groupby(_words(entry) for entry in value)]
        if len(runs) > MAX_RUNS:
            counts = Counter(_words(entry) for entry in value)
            runs = [(count, word) for word, count in counts.most_common()]
        return "; ".join(word if count == 1 else f"{count} x {word}" for count, word in runs) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
