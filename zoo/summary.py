"""What a model weighs and costs, by formula: parameters, FLOPs, memory, and the printed table.

A product of [m, k] by [k, n] counts 2 m k n FLOPs. Training costs three forward passes: one forward, two backward.
"""

from dataclasses import dataclass

from zoo.config import ModelConfig
from zoo.errors import InputError


@dataclass(frozen=True)
class Summary:
    """Counts of one architecture at one sequence length; str() is a table.

    Attributes:
        config: the architecture.
        seq_len: T, in tokens.
        parameters: by part of the model, in numbers.
        forward_flops: by kind of product, per token of a full row.
    """

    config: ModelConfig
    seq_len: int
    parameters: dict[str, int]
    forward_flops: dict[str, float]

    @property
    def total_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def flops_per_token(self) -> float:
        """Forward FLOPs a token."""
        return sum(self.forward_flops.values())

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward FLOPs a token, without rematerialisation: 3 forward."""
        return 3 * self.flops_per_token

    @property
    def weight_bytes(self) -> int:
        """Of float32 parameters, or of int8 ones with their scales and float columns (zoo.int8)."""
        return weight_bytes(self.config)

    @property
    def training_bytes(self) -> int:
        """float32 parameters, gradients and Adam's two moments: 16 bytes a parameter."""
        return 16 * self.total_parameters

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in every layer, in the compute dtype."""
        return self.config.num_layers * self._pair_bytes(self.config.dtype)

    def cache_bytes(self, length: int, dtype: str | None = None, ring: bool = True) -> int:
        """Keys and values of one row of `length` tokens, as zoo.cache.init_cache keeps them: min(length, window) slots
        in each layer of a ring, `length` in the others, of 2 K H numbers; in int8 2 K (H + 4) bytes a slot, scales
        among them. (What is kept of a slot for all layers together, 9 bytes, is left out.)
        """
        config = self.config
        ring = ring and config.positions != "relative"
        windows = (config.layer_pattern[i % len(config.layer_pattern)].window for i in range(config.num_layers))
        slots = sum(min(length, window) if ring and window else length for window in windows)
        return slots * self._pair_bytes(dtype or config.dtype)

    def _pair_bytes(self, dtype: str) -> int:
        """A key and a value of one token in one layer."""
        sizes = {"float32": 4 * self.config.head_dim, "int8": self.config.head_dim + 4}
        return 2 * self.config.num_kv_heads * sizes.get(dtype, 2 * self.config.head_dim)

    def __str__(self) -> str:
        config, training = self.config, _bytes_text(self.training_bytes)
        rows = [
            ("layers x width (heads x size)", _shape_text(config)),
            ("feed-forward", f"{config.mlp_dim:,}"),
            *_input_rows(config),
            *((f"parameters: {name}", f"{count:,}") for name, count in self.parameters.items()),
            ("parameters", f"{self.total_parameters:,}"),
            (f"forward FLOPs a token (T = {self.seq_len})", f"{self.flops_per_token:,.0f}"),
            *((f"  of these {name}", f"{count:,.0f}") for name, count in self.forward_flops.items()),
            ("training FLOPs a token", f"{self.training_flops_per_token:,.0f}"),
            ("weights in int8" if config.int8 else "weights in float32", _bytes_text(self.weight_bytes)),
            *([] if config.int8 else [("training state (weights, gradients, moments)", training)]),
        ]
        if config.visibility != "full":
            rows.append(("cache a token", _bytes_text(self.cache_bytes_per_token)))
            rows.append(("  in int8", _bytes_text(config.num_layers * self._pair_bytes("int8"))))
            if self.cache_bytes(self.seq_len) < self.cache_bytes(self.seq_len, ring=False):
                name = f"cache of {self.seq_len} tokens, windows in rings"
                rows.append((name, _bytes_text(self.cache_bytes(self.seq_len))))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value:>20}" for name, value in rows)


def summarise(model_or_config, seq_len: int | None = None) -> Summary:
    """The Summary of a model (or of its config) at rows of `seq_len` tokens; None for its max_positions."""
    config = getattr(model_or_config, "config", model_or_config)
    if config.image_size:
        tokens = config.num_patches + config.num_prefix
        if seq_len not in (None, tokens):
            raise InputError(f"seq_len is {seq_len}, but this model reads images, whose rows have {tokens} tokens")
        seq_len = tokens
    seq_len = config.max_positions if seq_len is None else seq_len
    if seq_len < 1:
        raise InputError(f"seq_len is {seq_len}; it must be 1 or more")
    if config.positions == "learned" and not config.image_size and seq_len > config.max_positions:
        raise InputError(f"seq_len is {seq_len}, but the model has learned {config.max_positions} positions")
    return Summary(config, seq_len, count_parameters(config), forward_flops(config, seq_len))


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, by formula; their sum equals the leaves of Model.init exactly (of the float model, for int8).

    attention: D N H + 2 D K H + N H D, and biases; feed-forward: 2 D F (3 D F gated), and biases.
    """
    D, N, K, H, F, V = (
        config.embed_dim,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.mlp_dim,
        config.vocab_size,
    )
    bias = config.norm == "layernorm" and config.norm_bias
    norm, E, W = D * (1 + bias), config.embed_width, config.hidden_width
    tokens_alone = config.embed_projection == "tokens"
    P = D if tokens_alone else E  # width of the tables beside that of tokens
    attention = D * (N + 2 * K) * H + N * H * D
    attention += (N + 2 * K) * H if config.attention_bias else 0
    attention += D if config.attention_out_bias else 0
    if config.qk_norm:
        attention += 2 * H if config.qk_norm_over == "head" else (N + K) * H
    ups = 2 if config.gated else 1
    feed_forward = (ups + 1) * D * F + (ups * F + D if config.mlp_bias else 0)
    feed_forward = feed_forward * max(config.num_experts, 1) + D * config.num_experts
    norms = {"pre": 2, "post": 2, "both": 4, "after": 2}[config.norm_placement]
    norms -= config.parallel_block and not config.parallel_mlp_norm
    cross = 0
    if config.cross_attention:
        cross = attention + norm * (2 if config.norm_placement == "both" else 1)
    embed = V * E
    embed += (config.max_positions + config.position_offset) * P if config.positions == "learned" else 0
    embed += config.relative_buckets * N if config.positions == "relative" else 0
    embed += config.token_types * P + (P * (1 + bias) if config.embed_norm else 0)
    embed += 0 if config.embed_rank is None else E * D + (0 if tokens_alone else D)
    if config.image_size:
        embed = (config.max_positions + config.num_prefix + config.mask_token) * D
        embed += config.patch_size**2 * config.channels * D + D
    head = 0
    if config.head == "lm":
        head = (0 if config.tie_embeddings else W * V) + (V if config.lm_bias else 0)
    if config.head == "masked_lm":
        head = W * E + E * (config.head_bias + 1 + bias) + V + (0 if config.tie_embeddings else E * V)
    if config.head in ("classifier", "token_classifier", "span", "replaced_token"):
        head = _classifier(config, norm)
    head += D * D + D if config.pooler else 0
    head += 2 * D + 2 if config.next_sentence else 0
    head += D * E if tokens_alone else 0
    scales = 0 if config.layer_scale is None else (3 if config.cross_attention else 2) * D
    layers = 1 if config.shared_layers else config.num_layers
    unread = sum(not config.layer(layer).attention_norm for layer in range(layers))
    return {
        "embeddings": embed,
        "attention": layers * (attention + cross),
        "feed-forward": layers * feed_forward,
        "norms": (layers * norms - unread) * norm + (norm if config.final_norm else 0) + layers * scales,
        "heads": head,
    }


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of the parameters. An int8 kernel [in, out] with O float columns has in out + 4 (out + O + O out)."""
    whole = 4 * sum(count_parameters(config).values())
    if config.int8 is None:
        return whole
    D, F, int8 = config.embed_dim, config.mlp_dim, config.int8
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    kernels = []
    for number in range(1 if config.shared_layers else config.num_layers):
        kept = int8.layer(number)
        kernels += [(D, out, *kept.attention) for out in (queries, keys, keys)] + [(queries, D, *kept.out)]
        mlp = [(D, F, *kept.mlp)] * (2 if config.gated else 1) + [(F, D, *kept.down)]
        kernels += mlp * max(config.num_experts, 1)
    if int8.table is not None:
        kernels.append((config.embed_width, config.vocab_size, int8.table))
        if config.head == "lm" and not config.tie_embeddings:
            kernels.append((config.hidden_width, config.vocab_size, int8.table))
    return whole + sum(4 * (out + kept + kept * out) - 3 * inputs * out for inputs, out, kept in kernels)


def _classifier(config: ModelConfig, norm: int) -> int:
    D, W = config.embed_dim, config.hidden_width
    features = W
    if config.head == "replaced_token":
        return W * D + D * config.head_bias + (norm if config.classifier_norm else 0) + D + config.classifier_bias
    deep = config.classifier_hidden == "every" or (config.classifier_hidden == "row" and config.head == "classifier")
    if config.head == "classifier" and config.pooling == "cls_mean":
        features = 2 * W
    count = 0
    if deep:
        count = features * D + D * config.head_bias + (norm if config.classifier_norm else 0)
        features = D
    count += (features + config.classifier_bias) * (2 if config.head == "span" else config.num_labels)
    return 2 * count if config.distillation_head else count


def forward_flops(config: ModelConfig, seq_len: int) -> dict[str, float]:
    """Forward FLOPs a token by kind of product, in a row of seq_len tokens.

    Scores and value mix cost 4 N H a visible key: T keys for a model that sees both ways, (T + 1) / 2 on average for a
    causal one, at most the window's.
    """
    D, N, K, H, F = config.embed_dim, config.num_heads, config.num_kv_heads, config.head_dim, config.mlp_dim
    projections = 2 * D * (N + 2 * K) * H + 2 * N * H * D
    feed_forward = (6 if config.gated else 4) * D * F
    feed_forward = feed_forward * max(config.num_experts, 1) + 2 * D * config.num_experts  # each computes every token
    scores = sum(4 * N * H * _mean_keys(config, config.layer(i).window, seq_len) for i in range(config.num_layers))
    E = config.embed_width
    head = 2 * E * config.vocab_size if config.head in ("lm", "masked_lm") else 0
    head += 2 * config.hidden_width * E if config.head == "masked_lm" else 0
    head += 2 * D * E if config.embed_projection == "tokens" else 0
    before = 0.0 if config.embed_rank is None else 2.0 * E * D
    if config.image_size:
        share = config.num_patches / (config.num_patches + config.num_prefix)
        before = 2 * config.patch_size**2 * config.channels * D * share
    return {
        **({"patches" if config.image_size else "embedding projection": before} if before else {}),
        "projections": float(config.num_layers * projections * (2 if config.cross_attention else 1)),
        "scores and value mix": float(scores),
        "feed-forward": float(config.num_layers * feed_forward),
        "read-out": float(head),
    }


def _mean_keys(config: ModelConfig, window: int | None, length: int) -> float:
    if config.visibility == "full":
        if window is None:
            return length
        half = window // 2
        return sum(min(i, half) + min(length - 1 - i, half) + 1 for i in range(length)) / length
    if window is None or window >= length:
        return (length + 1) / 2
    return (window * (window + 1) / 2 + (length - window) * window) / length


def _input_rows(config: ModelConfig) -> list[tuple[str, str]]:
    if config.image_size:
        image = f"{config.image_size} x {config.image_size} x {config.channels}"
        tokens = f"{config.num_patches:,} + {config.num_prefix}"
        patch = f"{config.patch_size} x {config.patch_size}"
        return [("image", image), ("patch", patch), ("patches and tokens before them", tokens)]
    rank = [] if config.embed_rank is None else [("embedding width", f"{config.embed_rank:,}")]
    return [("vocabulary", f"{config.vocab_size:,}"), ("positions", f"{config.max_positions:,}"), *rank]


def _shape_text(config: ModelConfig) -> str:
    heads = f"{config.num_heads} x {config.head_dim}"
    if config.num_kv_heads != config.num_heads:
        heads += f", {config.num_kv_heads} kv"
    return f"{config.num_layers} x {config.embed_dim} ({heads})"


def _bytes_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"
