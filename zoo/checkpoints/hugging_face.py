"""Hugging Face folders: config.json and safetensors in, the same out, proved against the reference library.

    folder/config.json                     settings; every one is understood, known harmless, or refused by name
    folder/model.safetensors               weights, or shards with model.safetensors.index.json
    folder/tokenizer.json ...              read by zoo.load_tokenizer
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from zoo.checkpoints import (
    albert,
    bert,
    distilbert,
    electra,
    gemma,
    gpt,
    llama,
    mistral,
    modernbert,
    neox,
    olmo,
    opt,
    phi,
    qwen,
    roberta,
    smollm,
    stablelm,
    vit,
)
from zoo.checkpoints.decoder import each_layer
from zoo.checkpoints.encoder import CLASSES
from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Source, match, plain_names, same_bits, to_published
from zoo.checkpoints.layer_view import LayerView
from zoo.checkpoints.placing import Placing, flatten
from zoo.checkpoints.safetensors_file import StoredTensor, open_folder, read_json
from zoo.checkpoints.safetensors_out import SHARD_BYTES, write_shards
from zoo.checkpoints.settings import Settings
from zoo.checkpoints.whole_folder import whole_folder
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.layer_config import shortest_pattern
from zoo.model import Model
from zoo.summary import count_parameters
from zoo.tokenizer_export import published_files

FORMATS: dict[str, Format] = {
    **bert.FORMATS,
    **roberta.FORMATS,
    **distilbert.FORMATS,
    **albert.FORMATS,
    **electra.FORMATS,
    **modernbert.FORMATS,
    **vit.FORMATS,
    **gpt.FORMATS,
    **llama.FORMATS,
    **mistral.FORMATS,
    **qwen.FORMATS,
    **smollm.FORMATS,
    **gemma.FORMATS,
    **neox.FORMATS,
    **opt.FORMATS,
    **phi.FORMATS,
    **olmo.FORMATS,
    **stablelm.FORMATS,
}

PUBLISHED_TYPES = ("float32", "bfloat16", "float16", "float64")

# Fields that a folder need not carry: they steer training or execution and not the numbers of a forward pass.
NOT_PUBLISHED = (
    "family",
    "dropout",
    "embed_dropout",
    "attention_dropout",
    "head_dropout",
    "initializer_range",
    "residual_init",
    "dtype",
    "scan",
    "remat",
    "attention_kernel",
)


def is_folder(path: Path) -> bool:
    """Whether `path` looks like a Hugging Face folder: its config.json says a model_type or architectures."""
    if not (path / "config.json").is_file():
        return False
    values = read_json(path / "config.json")
    return "model_type" in values or "architectures" in values


def load(folder: Path, placing: Placing) -> tuple[Model, dict[str, Any]]:
    """Model and parameters of a folder.

    Args:
        folder: as above.
        placing: number type and devices of the parameters.

    Raises:
        InputError: a setting or a tensor that we do not understand; all faults of the tensors in one line.
    """
    config, form, stored = _open(folder)
    found = build(config, form, stored, str(folder), placing)
    if form.table.left_out:
        _tell_left_out(form, folder)
    return found


def build(
    config: ModelConfig,
    form: Format,
    stored: Mapping[str, StoredTensor],
    where: str,
    placing: Placing,
    told_by: str = "config.json",
) -> tuple[Model, dict[str, Any]]:
    """Model and parameters out of tensors stored under plain names, of a folder or of any other file.

    Args:
        config, form, stored, where: as for `sources`.
        placing: number type and devices of the parameters.
        told_by: what of `where` describes the model, for messages.
    """
    found = sources(config, form, stored, where, told_by)
    model = Model(placing.config(config))
    return model, placing.place(model, found)


def stored_parameters(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """(path, array) of every parameter of a folder, in the stored number type, read one after the other."""
    for source in sources(*_open(folder), str(folder)):
        yield from source.read()


def sources(
    config: ModelConfig,
    form: Format,
    stored: Mapping[str, StoredTensor],
    where: str,
    told_by: str = "config.json",
) -> list[Source]:
    """Where each parameter of the model lies among tensors stored under plain names; see zoo.checkpoints.keys.match."""
    check_size(config, stored, where, told_by)
    shapes = {path: leaf.shape for path, leaf in flatten(Model(config).init_shapes()).items()}
    return match(form.table, shapes, stored, config.num_layers, where, told_by)


def check_size(
    config: ModelConfig, stored: Mapping[str, StoredTensor], where: str, told_by: str = "config.json"
) -> None:
    """Refuses, before anything of that size is made, a config that the stored numbers could never fill."""
    wanted = sum(count_parameters(config).values())
    held = sum(math.prod(tensor.shape) for tensor in stored.values())
    if wanted > 16 * held + 100_000:
        raise InputError(
            f"{where}: its {told_by} describes {wanted:,} parameters but its tensors hold {held:,} numbers"
        )


def load_config(folder: Path) -> ModelConfig:
    """The ModelConfig of a folder; of the weights only names (and tied tensors) are read."""
    return _open(folder)[0]


def _open(folder: Path) -> tuple[ModelConfig, Format, dict[str, StoredTensor]]:
    values = read_json(folder / "config.json")
    form = _format(values, folder)
    stored = plain_names(form.table, open_folder(folder), str(folder))
    return read_config(values, form, stored, folder), form, stored


def read_config(values: dict[str, Any], form: Format, stored: dict[str, StoredTensor], folder: Path) -> ModelConfig:
    """The ModelConfig that a folder's settings and tensor names mean.

    Raises:
        InputError: a setting that is unknown or not supported, by name.
    """
    where = str(folder / "config.json")
    if form.text_of is not None:
        values = form.text_of(values, where)
    settings = Settings(values, where, form.table.name)
    if _foreign_code(values.get("auto_map"), form.own_code):
        settings.only("auto_map", {})
    settings.ignore("auto_map")
    settings.only("quantization_config", {})
    architecture = _architecture(values, form, where)
    tied = settings.flag("tie_word_embeddings", form.tied)
    head, table = stored.get(form.read_out), stored.get(form.token_table)
    if head is not None and table is not None:
        # Two different tensors are never tied, whatever the flag says; so does the reference library since version 5.
        tied = tied and same_bits(head, table)
    try:
        config = form.read(settings, stored.keys(), architecture, tied)
    except InputError as error:
        raise error if where in str(error) else InputError(f"{where}: {error}") from None
    settings.done()
    return config


def published_config(config: ModelConfig) -> tuple[Format, dict[str, Any]]:
    """The format and the settings under which `config` is published.

    The settings are read back and must give the same config, so that nothing is lost without a word.

    Raises:
        InputError: the family has no folders, or its folders cannot say some field.
    """
    config = config.replace(scan=False, layer_pattern=shortest_pattern(each_layer(config)))
    form = next((form for form in FORMATS.values() if form.writes(config)), None)
    if form is None:
        raise InputError(f'family "{config.family}" has no published folder layout{nearest(config.family, FORMATS)}')
    values = form.write(config)
    own = {"pooler/kernel": config.pooler, "next_sentence/kernel": config.next_sentence}
    own["embed/mask_token"] = config.mask_token
    own["lm_head/kernel"] = config.head == "lm" and not config.tie_embeddings
    names = {key.theirs for key in form.table.keys if own.get(key.paths[0])}
    settings = Settings(values, "config.json", form.table.name)
    tied = settings.flag("tie_word_embeddings", form.tied)
    if values["architectures"][0] not in form.architectures:
        raise InputError(f'{form.table.name} folders cannot say head="{config.head}"; keep the run folder')
    back = form.read(settings, names, values["architectures"][0], tied)
    settings.done()
    faults = []
    for field, value in config.to_dict().items():
        if field in NOT_PUBLISHED or _without_effect(config, field):
            continue
        if value != back.to_dict()[field]:
            faults.append(f"{field}={value!r}")
    if faults:
        raise InputError(
            f"{form.table.name} folders cannot say {', '.join(faults)}; keep the run folder, which zoo.load reads"
        )
    return form, values


def export(
    model: Model,
    params: dict[str, Any],
    folder: Path,
    *,
    tokenizer: Any,
    dtype: str | None,
    overwrite: bool,
    max_shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a folder that the reference library opens; see zoo.export."""
    config = model.config
    form, values = published_config(config)
    expected = {path: leaf.shape for path, leaf in flatten(model.init_shapes()).items()}
    given = {path: tuple(leaf.shape) for path, leaf in flatten(params).items()}
    if expected != given:
        odd = sorted(set(expected.items()) ^ set(given.items()))
        raise InputError(f"parameters are not those of the model: {odd[0][0]} (and {len(odd) - 1} more differ)")
    flat = flatten(params)
    odd = [path for path, leaf in flat.items() if str(leaf.dtype) not in PUBLISHED_TYPES]
    if odd:
        kinds = ", ".join(sorted({str(flat[path].dtype) for path in odd}))
        held = ", ".join(PUBLISHED_TYPES)
        raise InputError(f"{len(odd)} parameters are {kinds}, {odd[0]} for one; folders hold {held}")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise InputError(f"the tokenizer has {tokenizer.vocab_size} pieces but the model {config.vocab_size} ids")
    layers = LayerView(params, config, jnp.dtype(dtype) if dtype else None)
    prefix = form.prefix_of(values["architectures"][0])
    tensors = to_published(form.table, layers.shapes, layers.read, config.num_layers, prefix)
    kinds = {str(tensor.dtype) for tensor in tensors.values()}
    values["torch_dtype"] = kinds.pop() if len(kinds) == 1 else "float32"
    for name in ("bos", "eos", "pad"):
        given, said = getattr(tokenizer, f"{name}_id", None), values.get(f"{name}_token_id")
        if said is not None and given not in (None, said):
            raise InputError(
                f"{form.table.name} folders count positions from behind the padding id, here {said}, and the "
                f"tokenizer's is {given}: export with a tokenizer that has it at {said}, or train with "
                f"position_offset={given + 1}"
            )
        values[f"{name}_token_id"] = given if said is None else said
    files = published_files(tokenizer) if tokenizer is not None else {}
    with whole_folder(folder, overwrite) as work:
        (work / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        write_shards(work, tensors, max_shard_bytes)
        for file_name, content in files.items():
            (work / file_name).parent.mkdir(exist_ok=True)
            (work / file_name).write_bytes(content)


def remarks(config: ModelConfig, tokenizer: Any) -> list[str]:
    """What a folder of `config`, exported with `tokenizer` (or None), cannot say: a line each."""
    form, values = published_config(config)
    back = form.architectures[values["architectures"][0]].get("head")
    lines = []
    if config.family == "bert" and config.head == "lm" and back is None:
        what = "have no read-out of the bare token table"
        lines.append(f'{form.table.name} folders {what}: this one comes back with head "none"')
    if config.visibility == "causal" and config.head == "classifier" and getattr(tokenizer, "pad_id", None) is None:
        lines.append("no pad_token_id: transformers classifies single rows alone until config.pad_token_id is set")
    return lines


def _tell_left_out(form: Format, folder: Path) -> None:
    """One line about the tensors of a folder that belong to another model and are not loaded."""
    names = [name for name in open_folder(folder) if name.startswith(form.table.left_out)]
    parts = sorted({name.removeprefix(form.table.prefix).split(".")[0] for name in names})
    if names:
        what = f"{len(names)} tensors of {' and '.join(parts)}"
        print(f"{folder}: {what} are left out: {form.table.name} reads text, not images", file=sys.stderr)


def _format(values: dict[str, Any], folder: Path) -> Format:
    where = folder / "config.json"
    kind = str(values.get("model_type", ""))
    if not kind:
        for form in FORMATS.values():
            if _named(values) in form.architectures:
                return form
        raise InputError(f"{where}: has no model_type{nearest('', FORMATS)}")
    if kind not in FORMATS:
        raise InputError(f'{where}: model_type "{kind}" is not supported{nearest(kind, FORMATS)}')
    return FORMATS[kind]


def _named(values: dict[str, Any]) -> str | None:
    names = values.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None


def _architecture(values: dict[str, Any], form: Format, where: str) -> str | None:
    name = _named(values)
    if name is not None and name not in form.architectures:
        raise InputError(f'{where}: architecture "{name}" is not supported{nearest(name, form.architectures)}')
    return name


def _foreign_code(auto_map: Any, own_code: tuple[str, ...]) -> bool:
    """Whether auto_map names code that is not a copy of the reference library's."""
    if not isinstance(auto_map, dict):
        return auto_map is not None
    return not all(isinstance(name, str) and name.split(".")[0] in own_code for name in auto_map.values())


def _without_effect(config: ModelConfig, field: str) -> bool:
    """Whether `field` means nothing under the other fields of `config`."""
    return (
        (field.startswith("rotary_") and config.positions != "rotary")
        or (field.startswith("relative_") and config.positions != "relative")
        or (field == "experts_per_token" and not config.num_experts)
        or (field.startswith("qk_norm_") and not config.qk_norm)
        or (field == "position_offset" and config.positions != "learned")
        or (field in ("num_labels", "label_names") and config.head not in CLASSES)
        or (field == "pooling" and config.head != "classifier")
        or (field == "classifier_bias" and config.head not in (*CLASSES, "span"))
        or (field in ("tie_embeddings", "logit_soft_cap") and config.head not in ("lm", "masked_lm"))
        or (field == "lm_bias" and config.head != "lm")
        or (field == "masked_lm_activation" and config.head != "masked_lm")
        or (field == "head_bias" and config.head != "masked_lm" and config.classifier_hidden == "none")
        or (field == "vocab_size" and config.image_size > 0)
        or (field == "head" and config.family == "bert" and config.head == "lm" and config.tie_embeddings)
    )
