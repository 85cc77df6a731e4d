"""How a run was made, in words that stand beside its numbers: all that decides them and only what took part.

Steps hide epochs, SGD has no weight decay, a closed form has neither a rate nor steps: what did not take part in a run
is not named.
"""

from eval.experiment.cells import WAY_WORDS
from eval.ways.finetune_config import FinetuneConfig

POOLING = {"auto": "mean (encoder) or last-token (decoder)", "last": "last-token", "cls": "[CLS]"}
POOLED = ("classification", "regression", "choice")  # kinds whose head reads one vector a text


def protocol(config: FinetuneConfig, *, kind: str = "classification", pooling: str = "") -> str:
    """One line about a run.

    Args:
        config: of the run.
        kind: of its task.
        pooling: the head's own, where "auto" was asked for.
    """
    said = [way_words(config)]
    if config.way == "probe":
        said[0] += " in closed form, no rate and no steps"
    else:
        said += [f"learning rate {config.learning_rate:g}", training(config)]
    said += [f"class weights {config.class_weights}"] if config.class_weights else []
    said += [pooling_words(pooling or config.pooling)] if kind in POOLED else []
    said += [f"at most {config.max_length} tokens"]
    said += [chosen(config)] if config.way != "probe" else []
    return "; ".join([*said, f"seed {config.seed}"])


def way_words(config: FinetuneConfig, way: str = "") -> str:
    """`LoRA (rank 8, alpha 16, query and value)`; `way` in place of the config's own."""
    way = way or config.way
    detail = ""
    if way == "lora":
        detail = f" (rank {config.lora_rank}, alpha {config.lora_alpha:g}, {' and '.join(config.lora_targets)})"
    elif way == "top":
        detail = f" ({config.top_layers})"
    return WAY_WORDS.get(way, way) + detail


def training(config: FinetuneConfig) -> str:
    """Length, optimizer, batch, schedule, decay, clipping and dropout of a training by steps."""
    count, unit = (config.steps, "step") if config.steps else (config.epochs, "epoch")
    adam = config.optimizer == "adamw"
    said = [f"{count} {unit}{'s' if count != 1 else ''} of {'AdamW' if adam else 'plain SGD'}"]
    said[0] += f" with batches of {config.batch_size}"
    said += [f"{config.schedule} rate after {config.warmup_fraction:.0%} warm-up"]
    said += [f"weight decay {config.weight_decay:g}"] if adam else []
    said += [f"gradient norm at most {config.clip_norm:g}" if config.clip_norm else "no clipping"]
    said += ["the checkpoint's own dropout" if config.dropout is None else f"dropout {config.dropout:g}"]
    said += [f"rates by layer, decay {config.layer_decay:g}"] if config.layer_decay != 1 else []
    return ", ".join(said)


def pooling_words(pooling: str) -> str:
    """`mean pooling`."""
    return f"{POOLING.get(pooling, pooling)} pooling"


def chosen(config: FinetuneConfig) -> str:
    """Which parameters of a training were kept."""
    if config.select != "best":
        return "parameters of the last update"
    by = f" by {config.metric.replace('_', ' ')}" if config.metric else ""
    often = f" every {config.eval_every} steps" if config.eval_every else ""
    patience = f", stopping after {config.patience} evaluations without a better one" if config.patience else ""
    return f"parameters of the best evaluation on the validation split{by}{often}{patience}"
