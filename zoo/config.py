"""ModelConfig: the one vocabulary in which every architecture of the zoo is described.

BERT, GPT, LLaMA, T5 and ViT differ by the values of these fields alone. A config is frozen and hashable, holds no
arrays, is validated where it is made, and travels whole. Letters used in shapes throughout the package:

    B batch, T query length, S key length, D embed_dim, N num_heads, K num_kv_heads, G = N / K, H head_dim,
    F mlp_dim, V vocab_size, L num_layers, P max_positions, C num_labels
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from zoo.config_checks import (
    MAX_DIM,
    MAX_LAYERS,
    check_heads,
    check_images,
    check_int8,
    check_ranks,
    check_types,
    nearest_divisor,
    refuse_unknown,
    require,
    require_int,
    require_positive,
)
from zoo.layer_config import Int8, LayerConfig, RotaryScaling

_LIMITS = {"num_layers": MAX_LAYERS, "vocab_size": 100 * MAX_DIM, "max_positions": 100 * MAX_DIM}


@dataclass(frozen=True)
class ModelConfig:
    """A Transformer, completely.

    Attributes:
        family: whose conventions checkpoints follow.
        vocab_size, embed_dim, num_layers, num_heads, num_kv_heads, head_dim, mlp_dim: V, D, L, N, K, H, F. num_kv_heads
            None means N (multi-head); fewer share keys and values among G = N / K query heads (Ainslie et al. 2023).
            head_dim None means D / N; mlp_dim None means 4 D.
        max_positions: P: length of the learned table; for the other kinds a stated limit of use.
        layer_pattern: layer i takes entry i mod len(pattern); the last repeat may be cut short (Gemma 3: 26 = 4 6 + 2).
        visibility: "causal" sees the past and itself, "full" everything (BERT), "prefix" a given prefix both ways.
        cross_attention: each block also attends to an encoder memory (Vaswani et al. 2017).
        positions: where order enters: learned table, sinusoidal (Vaswani et al. 2017, 3.5), rotary (Su et al. 2021),
            relative buckets added to the scores (Raffel et al. 2020, 2.1), or none.
        rotary_base, rotary_dim, rotary_scaling: rotary alone; rotary_dim None rotates the whole head.
        relative_buckets, relative_max_distance: relative alone.
        position_offset: rows of the learned table before position 0 (RoBERTa: 2).
        token_types: size of the segment-embedding table; 0 for none.
        embed_norm: normalise the sum of embeddings (BERT).
        embed_rank: E: embeddings have this width and a projection takes them to D (Lan et al. 2019, arXiv:1909.11942,
            3.1: V E + E D parameters in place of V D); None for D and no projection.
        embed_projection: what is projected: the (normalised) "sum" of all embeddings, with a bias (ALBERT); or "tokens"
            alone, without one, before positions of width D are added. Then a second projection takes the final stream
            back to E, and `hidden` is [B, T, E] (the released OPT 350M; Zhang et al. 2022, arXiv:2205.01068).
        shared_layers: all layers have the same parameters, which exist once (Lan et al. 2019, 3.1).
        embed_scale: multiply token embeddings by this, rounded to `dtype`; None for 1 (Gemma: sqrt(D), so rounded).
        norm: layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).
        norm_placement: "pre" x + F(norm x); "post" norm(x + F x); "both" x + norm(F(norm x)); "after" x + norm(F x)
            (OLMo Team 2025, arXiv:2501.00656, 3.1).
        norm_unit_offset: norms multiply by 1 + scale, and scales start at 0 (Gemma Team 2024, arXiv:2403.08295).
        norm_eps: added to the variance in every norm of the model.
        norm_bias: whether layer norms have a bias (ModernBERT: none; Warner et al. 2024, arXiv:2412.13663, 2.1).
        final_norm: a norm after the last block.
        layer_scale: multiply each update by a learned vector [D] that starts at this number (Touvron et al. 2021,
            arXiv:2103.17239, 2); None for none.
        attention_bias, attention_out_bias, mlp_bias: biases of query/key/value, of the output projection, of the FFN.
        qk_norm: queries and keys are normalised before scoring (Henry et al. 2020, Dehghani et al. 2023).
        qk_norm_over: what that norm runs over: "head" the H features of each head, one scale [H] for all heads (Qwen3,
            Gemma 3); "own_head" the same with a scale for each, [N, H] or [K, H] (StableLM 2 12B); "projection" all
            heads together, scale [N, H] or [K, H] (OLMo 2, arXiv:2501.00656).
        qk_norm_kind: RMS norm, or a layer norm without bias (Dehghani et al. 2023, arXiv:2302.05442, 2; StableLM 2).
        score_scale: multiplies QK^T; None means 1 / sqrt(H).
        attention_soft_cap, logit_soft_cap: c tanh(x / c) on scores and on logits; None for none.
        parallel_block: attention and FFN read the same normalised input and are added together.
        parallel_mlp_norm: parallel_block alone: the FFN reads a norm of its own (Black et al. 2022, arXiv:2204.06745).
        activation: "gelu" is the erf form, "gelu_tanh" the tanh one.
        gated: FFN is down(act(gate x) * up x) (Shazeer 2020) and not down(act(up x)).
        num_experts, experts_per_token: the FFN is so many, of which a router picks so many for each token (Shazeer et
            al. 2017, arXiv:1701.06538; Mixtral, arXiv:2401.04088); 0 for one FFN.
        dropout, embed_dropout, attention_dropout: rates in training: residual updates, embeddings, attention weights.
        tie_embeddings: read out with the token table.
        head: what `logits` is: "lm" x E^T or x W; "masked_lm" BERT's transform, then E^T and a bias; "classifier" of a
            pooled row; "token_classifier" of every token; "span" start and end of an answer for every token (Devlin et
            al. 2018, 4.2); "replaced_token" one number a token, above 0 where it takes the token for a generator's
            (Clark et al. 2020, arXiv:2003.10555, 2); "none".
        masked_lm_activation: nonlinearity of the masked-LM transform; None takes `activation` (RoBERTa: always GELU).
        head_bias: whether the masked-LM transform and a classifier's hidden layer have biases.
        lm_bias: a bias on the untied or tied "lm" read-out.
        pooler: BERT's tanh layer on the first token.
        next_sentence: BERT's two-way head on the pooled token.
        classifier_bias: whether the classifier adds a bias.
        num_labels, head_dropout: of the classifiers.
        pooling: how the classifier reads a row: the first token ("cls", through the pooler where the model has one and
            the classifier no hidden layer), the mean of real tokens (of patches, for images), the last real token, or
            the first token and the mean side by side ("cls_mean", 2 D features; Oquab et al. 2023, arXiv:2304.07193).
        classifier_hidden: which classifiers have a hidden layer act(x W + b) of width D: that of rows ("row": RoBERTa,
            DistilBERT, ELECTRA), those of rows, tokens and spans ("every": ModernBERT), or "none".
        classifier_activation, classifier_norm: nonlinearity of that layer, and whether a norm follows it.
        image_size, patch_size, channels: of models that read images [B, Y, X, C] cut into square patches (Dosovitskiy
            et al. 2020, arXiv:2010.11929, 3.1); image_size 0 for tokens. Their max_positions follows from these.
        class_token, distillation_token, registers: learned tokens before the patches: BERT's [CLS]; DeiT's second one
            (Touvron et al. 2020, arXiv:2012.12877, 4); R registers without positions (Darcet et al. 2023,
            arXiv:2309.16588).
        mask_token: a learned vector that stood for hidden patches in pre-training (DINOv2); kept, and read by no call.
        distillation_head: a second classifier on the distillation token; logits are the mean of both (DeiT, section 4).
        initializer_range: standard deviation of the normal initial weights.
        residual_init: divide it by sqrt(2 L) in the projections that write to the stream (Radford et al. 2019, 2.3).
        dtype: of activations; parameters are float32, and softmax, norms and logits are computed in float32.
        matmul_dtype: to which the factors of products with weights are rounded, forward and backward, with sums in
            float32 (zoo.mixed_product: no forward-mode derivatives); "" for `dtype` and what autodiff makes of it. A
            setting of training: train.TrainConfig.matmul sets it for a run's steps.
        scan: run layers under lax.scan over stacked parameters (short compile) and not as a Python loop.
        int8: kernels are int8 with a few float columns each (zoo.int8; Dettmers et al. 2022, arXiv:2208.07339), as
            zoo.quantize makes them; None for float ones.
        remat: what the backward pass computes again: nothing ("none"), all but named results ("minimal") or products of
            weights ("dots"), whole blocks ("full"), or as minimal with those in host memory ("offload"): zoo/remat.py.
        attention_kernel: see zoo.attention.attend; "auto" takes the fastest that honours what the call asks.
    """

    family: Literal[
        "bert", "roberta", "xlm_roberta", "distilbert", "albert", "electra", "modernbert", "vit", "deit", "dinov2",
        "gpt", "llama", "mistral", "mixtral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3", "gpt_neox",
        "opt", "phi3", "olmo2", "stablelm", "custom",
    ] = "custom"
    vocab_size: int = 32000
    embed_dim: int = 128
    num_layers: int = 2
    num_heads: int = 2
    num_kv_heads: int | None = None
    head_dim: int | None = None
    mlp_dim: int | None = None
    max_positions: int = 512
    layer_pattern: tuple[LayerConfig, ...] = (LayerConfig(),)
    visibility: Literal["causal", "full", "prefix"] = "causal"
    cross_attention: bool = False
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = "learned"
    rotary_base: float = 10000.0
    rotary_dim: int | None = None
    rotary_scaling: RotaryScaling | None = None
    relative_buckets: int = 32
    relative_max_distance: int = 128
    position_offset: int = 0
    token_types: int = 0
    embed_norm: bool = False
    embed_rank: int | None = None
    embed_projection: Literal["sum", "tokens"] = "sum"
    shared_layers: bool = False
    embed_scale: float | None = None
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_placement: Literal["pre", "post", "both", "after"] = "pre"
    norm_unit_offset: bool = False
    norm_eps: float = 1e-5
    norm_bias: bool = True
    final_norm: bool = True
    layer_scale: float | None = None
    attention_bias: bool = True
    attention_out_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    qk_norm_over: Literal["head", "own_head", "projection"] = "head"
    qk_norm_kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    score_scale: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    parallel_block: bool = False
    parallel_mlp_norm: bool = False
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    gated: bool = False
    num_experts: int = 0
    experts_per_token: int = 2
    dropout: float = 0.0
    embed_dropout: float = 0.0
    attention_dropout: float = 0.0
    tie_embeddings: bool = True
    head: Literal["none", "lm", "masked_lm", "classifier", "token_classifier", "span", "replaced_token"] = "lm"
    masked_lm_activation: Literal["gelu", "gelu_tanh", "relu", "silu"] | None = None
    head_bias: bool = True
    lm_bias: bool = False
    pooler: bool = False
    next_sentence: bool = False
    classifier_bias: bool = True
    num_labels: int = 0
    pooling: Literal["cls", "mean", "last", "cls_mean"] = "cls"
    classifier_hidden: Literal["none", "row", "every"] = "none"
    classifier_activation: Literal["tanh", "gelu", "gelu_tanh", "relu", "silu"] = "tanh"
    classifier_norm: bool = False
    head_dropout: float = 0.0
    image_size: int = 0
    patch_size: int = 16
    channels: int = 3
    class_token: bool = False
    distillation_token: bool = False
    registers: int = 0
    mask_token: bool = False
    distillation_head: bool = False
    initializer_range: float = 0.02
    residual_init: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    matmul_dtype: Literal["", "float32", "bfloat16", "float16"] = ""
    scan: bool = False
    int8: Int8 | None = None
    remat: Literal["none", "minimal", "dots", "full", "offload"] = "none"
    attention_kernel: Literal[
        "auto", "xla", "cudnn", "blockwise", "ring", "gathered", "splash", "splash_interpreted", "einsum"
    ] = "auto"
    label_names: tuple[str, ...] = field(default=())

    def __post_init__(self):
        check_types(self)
        for name in ("vocab_size", "embed_dim", "num_layers", "num_heads", "max_positions"):
            low = 0 if name == "vocab_size" and self.image_size else 1
            require_int(name, getattr(self, name), low, _LIMITS.get(name, MAX_DIM))
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        require_int("num_kv_heads", self.num_kv_heads, 1, MAX_DIM)
        if self.head_dim is None:
            require(
                self.embed_dim % self.num_heads == 0,
                f"num_heads {self.num_heads} does not divide embed_dim {self.embed_dim}; nearest that does: "
                f"{nearest_divisor(self.embed_dim, self.num_heads)} (or set head_dim)",
            )
            object.__setattr__(self, "head_dim", self.embed_dim // self.num_heads)
        if self.mlp_dim is None:
            object.__setattr__(self, "mlp_dim", 4 * self.embed_dim)
        require_int("head_dim", self.head_dim, 1, MAX_DIM)
        require_int("mlp_dim", self.mlp_dim, 1, MAX_DIM)
        require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}; nearest that does: "
            f"{nearest_divisor(self.num_heads, self.num_kv_heads)}",
        )
        object.__setattr__(self, "layer_pattern", tuple(self.layer_pattern))
        object.__setattr__(self, "label_names", tuple(self.label_names))
        require(len(self.layer_pattern) > 0, "layer_pattern is empty; it needs at least one LayerConfig()")
        require(
            len(self.layer_pattern) <= self.num_layers,
            f"layer_pattern has {len(self.layer_pattern)} entries for {self.num_layers} layers",
        )
        for layer in self.layer_pattern:
            require(isinstance(layer, LayerConfig), f"layer_pattern holds {layer!r}; its entries are LayerConfig()")
            check_types(layer)
            require_positive(layer, "rotary_base")
            if layer.window is not None:
                require_int("window", layer.window, 1, 100 * MAX_DIM)
            if self.positions != "rotary":
                plain = layer.rotary and layer.rotary_scaled
                require(plain, f'layer_pattern sets rotary or rotary_scaled but positions is "{self.positions}"')
        if self.positions == "rotary":
            rotated = self.head_dim if self.rotary_dim is None else self.rotary_dim
            require_int("rotary_dim", rotated, 2, self.head_dim)
            require(rotated % 2 == 0, f"rotary_dim {rotated} must be even: features are turned in pairs")
            if self.rotary_scaling is not None:
                self.rotary_scaling.check_dim(rotated)
        else:
            based = any(layer.rotary_base is not None for layer in self.layer_pattern)
            for name, given in (("rotary_scaling", self.rotary_scaling), ("rotary_dim", self.rotary_dim)):
                require(given is None, f'{name} is set but positions is "{self.positions}"')
            require(not based, f'layer_pattern sets rotary_base but positions is "{self.positions}"')
        if self.positions == "relative":
            least = 4 if self.visibility != "causal" else 2
            require_int("relative_buckets", self.relative_buckets, least, MAX_DIM)
            beyond = self.relative_buckets // 2 + 1
            require_int("relative_max_distance", self.relative_max_distance, beyond, 100 * MAX_DIM)
        for name in ("position_offset", "token_types", "num_labels"):
            require_int(name, getattr(self, name), 0, MAX_DIM)
        for name in ("rotary_base", "norm_eps", "attention_soft_cap", "logit_soft_cap"):
            require_positive(self, name)
        require(self.initializer_range >= 0, f"initializer_range is {self.initializer_range}; it must be 0 or more")
        for name in ("dropout", "embed_dropout", "attention_dropout", "head_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} is {getattr(self, name)}; it must be in [0, 1)")
        check_heads(self)
        check_int8(self)
        check_images(self)
        check_ranks(self)
        require_positive(self, "layer_scale")
        if self.shared_layers:
            require(len(self.layer_pattern) == 1, "shared_layers needs a layer_pattern of one entry")
        if not all(layer.attention_norm for layer in self.layer_pattern):
            require(self.norm_placement in ("pre", "both"), "attention_norm=False needs norm_placement 'pre' or 'both'")
        if self.image_size:
            object.__setattr__(self, "max_positions", self.num_patches + self.class_token + self.distillation_token)
        require_int("num_experts", self.num_experts, 0, 512)
        if self.num_experts:
            require_int("experts_per_token", self.experts_per_token, 1, self.num_experts)
        if self.norm_unit_offset:
            require(self.norm == "rmsnorm", "norm_unit_offset is defined for norm 'rmsnorm' alone")
        require(self.parallel_block or not self.parallel_mlp_norm, "parallel_mlp_norm needs parallel_block=True")
        if self.parallel_block:
            require(self.norm_placement == "pre", "parallel_block is defined for norm_placement 'pre' alone")
            require(not self.cross_attention, "parallel_block has no place for cross_attention; set one of them alone")

    @property
    def num_groups(self) -> int:
        """G = N / K: query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def embed_width(self) -> int:
        """Width of the token table (and of the others where embed_projection is "sum"): E, or D without a rank."""
        return self.embed_rank or self.embed_dim

    @property
    def hidden_width(self) -> int:
        """Width of the final stream that heads read: D, or E where a second projection takes it back."""
        return self.embed_width if self.embed_projection == "tokens" else self.embed_dim

    @property
    def num_patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_prefix(self) -> int:
        """Learned tokens before the patches: class, distillation, registers."""
        return self.class_token + self.distillation_token + self.registers

    @property
    def num_repeats(self) -> int:
        """How often the whole layer pattern is repeated."""
        return self.num_layers // len(self.layer_pattern)

    @property
    def num_tail(self) -> int:
        """Layers after the last whole repeat of the pattern."""
        return self.num_layers % len(self.layer_pattern)

    def layer(self, index: int) -> LayerConfig:
        """The pattern entry of layer `index`, counted from 0."""
        return self.layer_pattern[index % len(self.layer_pattern)]

    def replace(self, **changes: Any) -> "ModelConfig":
        """A copy with `changes`, validated; an unknown name raises InputError with the nearest field.

        Sizes derived from others (head_dim, mlp_dim, num_kv_heads) are kept as they are unless named.
        """
        refuse_unknown(changes, type(self))
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain types alone, ready for JSON; `from_dict` reads it back."""
        plain = dataclasses.asdict(self)
        plain["layer_pattern"] = list(plain["layer_pattern"])
        plain["label_names"] = list(plain["label_names"])
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "ModelConfig":
        """The inverse of `to_dict`; unknown keys raise InputError."""
        refuse_unknown(plain, cls)
        plain = dict(plain)
        for entry in plain.get("layer_pattern", ()):
            refuse_unknown(entry, LayerConfig)
        if "layer_pattern" in plain:
            plain["layer_pattern"] = tuple(LayerConfig(**entry) for entry in plain["layer_pattern"])
        if plain.get("rotary_scaling") is not None:
            refuse_unknown(plain["rotary_scaling"], RotaryScaling)
            plain["rotary_scaling"] = RotaryScaling(**plain["rotary_scaling"])
        if plain.get("int8") is not None:
            refuse_unknown(plain["int8"], Int8)
            plain["int8"] = Int8(**plain["int8"])
        return cls(**plain)
