"""GPT-1 and GPT-2 folders: their settings and key tables (Radford et al. 2018, 2019).

Both keep their projections as Conv1D, [in, out] and not transposed, with query, key and value in one tensor.
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import SPANS, TOKENS, published_head, read_head
from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, norm
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig

LAYER = "blocks/layer_{layer}/"
PARTS = ("query", "key", "value")


BLOCK = (
    *norm(f"{LAYER}attention_norm", "h.{layer}.ln_1"),
    Key(tuple(f"{LAYER}attention/{part}/kernel" for part in PARTS), "h.{layer}.attn.c_attn.weight", "conv_fused_heads"),
    Key(tuple(f"{LAYER}attention/{part}/bias" for part in PARTS), "h.{layer}.attn.c_attn.bias", "fused_heads_bias"),
    *linear(f"{LAYER}attention/out", "h.{layer}.attn.c_proj", "conv_from_heads"),
    *norm(f"{LAYER}mlp_norm", "h.{layer}.ln_2"),
    *linear(f"{LAYER}mlp/up", "h.{layer}.mlp.c_fc", "same"),
    *linear(f"{LAYER}mlp/down", "h.{layer}.mlp.c_proj", "same"),
)
HEADS = (
    Key("lm_head/kernel", "lm_head.weight", "linear"),
    Key("classifier/kernel", "score.weight", "linear"),
)
MASKS = r"h\.\d+\.attn\.(bias|masked_bias)"

GPT2_TABLE = Table(
    name="GPT-2",
    prefix="transformer.",
    keys=(
        Key("embed/token/embedding", "wte.weight", aliases=("lm_head.weight",)),
        Key("embed/position/embedding", "wpe.weight"),
        *BLOCK,
        *norm("final_norm", "ln_f"),
        *HEADS,
        *linear("token_classifier", "classifier"),
        *linear("span", "qa_outputs"),
    ),
    buffers=(MASKS,),
    heads=("lm_head.", "score.", "classifier.", "qa_outputs."),
)
GPT1_TABLE = Table(
    name="GPT-1",
    prefix="transformer.",
    keys=(
        Key("embed/token/embedding", "tokens_embed.weight", aliases=("lm_head.weight",)),
        Key("embed/position/embedding", "positions_embed.weight"),
        *BLOCK,
        *HEADS,
    ),
    buffers=(MASKS, "position_ids"),
)

# GPT-1 folders say "gelu" and mean the tanh form, the only one that its authors' code had.
GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
GPT1_PUBLISHED_ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}

ENDS = ("LMHeadModel", "ForSequenceClassification", "Model")
ARCHITECTURES: dict[str, dict[str, Any]] = {f"GPT2{end}": {} for end in (*ENDS, TOKENS, SPANS)}
GPT1_ARCHITECTURES: dict[str, dict[str, Any]] = {f"OpenAIGPT{end}": {} for end in ENDS}


def _shared(settings: Settings, vocab_size: int, max_positions: int) -> dict[str, Any]:
    settings.ignore("n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    settings.ignore("summary_first_dropout", "predict_special_tokens")
    dropout = settings.number("resid_pdrop", 0.1)
    return dict(
        family="gpt",
        vocab_size=settings.whole("vocab_size", vocab_size),
        embed_dim=settings.whole("n_embd", 768, "hidden_size"),
        num_layers=settings.whole("n_layer", 12, "num_hidden_layers"),
        num_heads=settings.whole("n_head", 12, "num_attention_heads"),
        max_positions=settings.whole("n_positions", max_positions, "max_position_embeddings"),
        visibility="causal",
        positions="learned",
        norm="layernorm",
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        dropout=dropout,
        head_dropout=dropout,
        embed_dropout=settings.number("embd_pdrop", 0.1),
        attention_dropout=settings.number("attn_pdrop", 0.1),
        initializer_range=settings.number("initializer_range", 0.02),
    )


def read_gpt2(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a GPT-2 folder; arguments as in zoo/checkpoints/bert.py."""
    settings.only("scale_attn_by_inverse_layer_idx", False)
    settings.only("reorder_and_upcast_attn", False)
    return ModelConfig(
        **_shared(settings, 50257, 1024) | read_head(settings, names, architecture, tied),
        mlp_dim=settings.whole("n_inner", None),
        norm_placement="pre",
        final_norm=True,
        activation=settings.choice("activation_function", "gelu_new", ACTIVATIONS),
        residual_init=True,
        score_scale=None if settings.flag("scale_attn_weights", True) else 1.0,
    )


def read_gpt1(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a GPT-1 folder; arguments as in zoo/checkpoints/bert.py."""
    settings.only("n_special", 0)
    return ModelConfig(
        **_shared(settings, 40478, 512) | read_head(settings, names, architecture, tied),
        norm_placement="post",
        final_norm=False,
        activation=settings.choice("afn", "gelu", GPT1_ACTIVATIONS),
    )


def _published(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.embed_dim,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_positions": config.max_positions,
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.embed_dropout,
        "attn_pdrop": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
    }


def write_gpt2(config: ModelConfig) -> dict[str, Any]:
    """The settings of a GPT-2 config.json."""
    return {
        "model_type": "gpt2",
        **published_head(config, "GPT2", "LMHeadModel"),
        **_published(config),
        "n_inner": config.mlp_dim,
        "activation_function": PUBLISHED_ACTIVATIONS[config.activation],
        "scale_attn_weights": config.score_scale is None,
    }


def write_gpt1(config: ModelConfig) -> dict[str, Any]:
    """The settings of a GPT-1 config.json, which has no word for the erf form of GELU."""
    return {
        "model_type": "openai-gpt",
        **published_head(config, "OpenAIGPT", "LMHeadModel"),
        **_published(config),
        "afn": GPT1_PUBLISHED_ACTIVATIONS.get(config.activation, "gelu"),
    }


FORMATS = {
    "gpt2": Format(
        table=GPT2_TABLE,
        architectures=ARCHITECTURES,
        read=read_gpt2,
        write=write_gpt2,
        read_out="lm_head.weight",
        token_table="wte.weight",
        tied=True,
        bare=("GPT2Model",),
        writes=lambda config: config.family == "gpt" and config.norm_placement != "post",
    ),
    "openai-gpt": Format(
        table=GPT1_TABLE,
        architectures=GPT1_ARCHITECTURES,
        read=read_gpt1,
        write=write_gpt1,
        read_out="lm_head.weight",
        token_table="tokens_embed.weight",
        tied=True,
        bare=("OpenAIGPTModel",),
        writes=lambda config: config.family == "gpt" and config.norm_placement == "post",
    ),
}
