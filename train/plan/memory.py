"""Bytes a chip of one training step, by formula: what is kept for the backward pass, and the fullest moment of it.

Letters as in train.plan.formulas. tests/train/test_plan_memory.py holds it to what libtpu's compiler took.
"""

from train.plan.formulas import Work
from zoo import remat

# Arrays of F numbers that the backward pass of the FFN's activation reads, its product with the other half included.
ACTIVATION_ARRAYS = {"gelu": 2, "gelu_tanh": 5, "silu": 4, "relu": 2}


def memory(work: Work) -> dict[str, float]:
    """Bytes a chip by part.

    parameters 4, moments 8 (AdamW), gradients 4 bytes a number, sums of micro-batches 4 more; the stack of a scanned
    model is cast once, w a number. activations kept: t L times `kept_bytes`. working space: the larger of one block's
    backward pass and of the read-out.

    - A block: its values (`block_numbers`), whose gradients take the places of those no longer read; scores twice in
      float32 and once in w bytes, unless the kernel writes none; the layer's kernels gathered, in w bytes, and their
      gradients, whole until summed: all of them, where the compiler mostly has half of them at a time.
    - The read-out: a chunk's logits in float32, their gradient in w bytes; its kernel gathered and the gradient of it.
    """
    config, train, w, t = work.config, work.train, work.width, work.tokens
    numbers = work.numbers()
    whole, split = block_numbers(work)
    scores = (8.0 + w) * work.scores_a_token if work.scores_in_memory else 0.0
    block = t * (w * (whole + split / work.tensor) + scores)
    head = config.hidden_width * config.vocab_size / work.tensor
    read_out = (4 + w) * work.logits / work.chunks
    if work.gathered:
        block += (w + work.gradient_bytes) * work.layer_numbers()
        read_out += (w + work.gradient_bytes) * head
    parts = {
        "parameters": 4.0 * numbers,
        "moments": 8.0 * numbers if train.optimizer == "adamw" else 0.0,
        "batch": 8.0 * t * train.accumulate,
        "gradients": 4.0 * numbers * (2 if train.accumulate > 1 else 1),
        "cast weights": float(w * numbers) if w < 4 else 0.0,
        "activations kept": t * config.num_layers * kept_bytes(work),
        "working space": max(block, read_out),
    }
    return {name: size for name, size in parts.items() if size}


def kept_bytes(work: Work) -> float:
    """Bytes a token and layer that a chip keeps of the forward pass: the numbers of zoo.remat, and for "none" all.

    All: each norm three times in float32 (centred, its inverse deviation's product, its result), the stream and what
    the FFN reads; query, key, value and the attention's result; ACTIVATION_ARRAYS; a bit's byte for each number
    dropped; weights of scores in float32 and w bytes, and with dropout in float32 again and as bits.
    """
    config, w = work.config, work.width
    D, N, K, H = config.embed_dim, config.num_heads, config.num_kv_heads, config.head_dim
    F, experts = config.mlp_dim, max(1, config.num_experts)
    total = remat.kept_numbers(config)
    if total is not None:
        split = {"minimal": 2 * (N + K) * H, "dots": (N + 2 * K) * H}.get(config.remat, 0)
        split += (1 + config.gated) * F * experts if split else 0
        return w * (total - split + split / work.tensor)
    norms = 4 if config.norm_placement == "both" else 2
    whole = D * (3 * 4 * norms + 2 * w + (2 if config.dropout else 0))
    ffn = (ACTIVATION_ARRAYS.get(config.activation, 4) + 2 * config.gated) * F * experts
    scores = (4 + w + (5 if config.attention_dropout else 0)) * work.scores_a_token if work.scores_in_memory else 0
    return whole + w * (2 * (N + K) * H + ffn) / work.tensor + scores


def block_numbers(work: Work) -> tuple[float, float]:
    """Numbers a token that one block makes, scores left out: (whole, split over tensor).

    The stream twice, two norms, an update; and split query, key, value and the attention's result, the FFN's inputs,
    activation and product.
    """
    config = work.config
    D, N, K, H = config.embed_dim, config.num_heads, config.num_kv_heads, config.head_dim
    F = config.mlp_dim * max(1, config.num_experts)
    return 5 * D, 2 * (N + K) * H + (2 + 2 * config.gated) * F
