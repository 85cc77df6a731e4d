"""`python -m zoo`: which models there are, what is in one, checkpoints in and out, generation."""

import json
from typing import Annotated

import tyro

from zoo.registry import FAMILIES

Family = Annotated[str, tyro.conf.arg(help=f"only this one: {', '.join(FAMILIES)}.")]


def list_models(family: Family = "all") -> None:
    """List the presets: parameters, layers, width, heads, positions.

    Args:
        family: only this one.

    Examples:
        python -m zoo list --family llama
    """
    from zoo import shipped
    from zoo.errors import InputError, nearest
    from zoo.summary import count_parameters

    if family not in ("all", *FAMILIES):
        raise InputError(f'there is no family "{family}"{nearest(family, ("all", *FAMILIES))}')
    print(f"{'name':<24}{'parameters':>18}{'layers':>8}{'width':>8}{'heads':>10}{'vocabulary':>12}{'positions':>11}")
    for name, presets in FAMILIES.items():
        for preset, config in presets.items() if family in ("all", name) else ():
            heads = str(config.num_heads)
            if config.num_kv_heads != config.num_heads:
                heads += f"/{config.num_kv_heads} kv"
            print(
                f"{preset:<24}{sum(count_parameters(config).values()):>18,}{config.num_layers:>8}{config.embed_dim:>8,}"
                f"{heads:>10}{config.vocab_size:>12,}{config.max_positions:>11,}"
            )
    if family == "all":
        print(f"\npre-trained, come with the package (zoo.load): {', '.join(shipped.names())}")


def show(name: str, /, seq_len: int | None = None, as_json: bool = False) -> None:
    """Show one model: its settings, parameters by part, FLOPs a token, memory.

    Args:
        name: a preset, or the path of a checkpoint or run folder.
        seq_len: row length for the FLOPs; by default the model's positions.
        as_json: print the config alone, as JSON.

    Examples:
        python -m zoo show llama3-8b --seq-len 2048
    """
    from zoo.summary import summarise

    config = _config_of(name)
    if as_json:
        print(json.dumps(config.to_dict(), indent=2))
        return
    summary = summarise(config, seq_len)
    print(f"{name} ({config.family})\n\n{summary}")


def explain(name: str, /, against: tuple[str, ...] = ()) -> None:
    """Explain how a model differs from its neighbours: a diff of settings, in words.

    Args:
        name: a preset, or the path of a checkpoint or run folder.
        against: what to compare with; by default the nearest model of another family.

    Examples:
        python -m zoo explain llama-7b --against gpt2 bert-base
    """
    from zoo.explain import explain as explain_config
    from zoo.explain import nearest_neighbour
    from zoo.registry import PRESETS

    config = _config_of(name)
    others = against or (nearest_neighbour(config, PRESETS),)
    print(explain_config(name, config, {other: _config_of(other) for other in others}))


def _config_of(name: str):
    from pathlib import Path

    from zoo.errors import InputError, nearest
    from zoo.output_folder import file_above
    from zoo.packages import is_name
    from zoo.registry import PRESETS

    if not name.strip():
        raise InputError(f"the name is empty; give a model, a folder or a GGUF file{nearest('', PRESETS)}")
    if name in PRESETS:
        return PRESETS[name]
    if Path(name).exists() or is_name(name) or "://" in name or file_above(name):
        from zoo.checkpoints import load_config

        return load_config(name)
    raise InputError(f'"{name}" is neither a model nor a folder{nearest(name, PRESETS)}')


SUBCOMMANDS = {
    "list": list_models,
    "show": show,
    "explain": explain,
    "import": "zoo.checkpoints.commands:import_checkpoint",
    "export": "zoo.checkpoints.commands:export_checkpoint",
    "check": "zoo.check.command:check",
    "generate": "zoo.generation.talk:generate",
    "chat": "zoo.generation.talk:chat",
    "lens": "zoo.lens.command:lens",
    "serve": "zoo.serve.command:serve",
    "embed": "zoo.text_commands:embed",
    "fill": "zoo.text_commands:fill",
    "cost": "zoo.cost_command:cost",
}
