"""OPT: GPT-3 rebuilt with ReLU, and positions from row 2 of their table on (Zhang et al. 2022, arXiv:2205.01068).

The released 350M model stands apart: norms after the sums, no final norm, tokens half as wide as the stream.
"""

from zoo.config import ModelConfig

OPT = ModelConfig(
    family="opt",
    vocab_size=50272,
    embed_dim=768,
    num_layers=12,
    num_heads=12,
    max_positions=2048,
    position_offset=2,
    activation="relu",
    dropout=0.1,
    pooling="last",
)


def _shape(num_layers: int, embed_dim: int, num_heads: int, **changes) -> ModelConfig:
    sizes = dict(num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads) | changes
    return OPT.replace(**sizes, num_kv_heads=None, head_dim=None, mlp_dim=None)


PRESETS = {
    "opt-tiny": _shape(2, 128, 2, vocab_size=8192, max_positions=512),
    "opt-125m": OPT,
    "opt-350m": _shape(
        *(24, 1024, 16), embed_rank=512, embed_projection="tokens", norm_placement="post", final_norm=False
    ),
    "opt-1.3b": _shape(24, 2048, 32),
    "opt-2.7b": _shape(32, 2560, 32),
    "opt-6.7b": _shape(32, 4096, 32),
    "opt-13b": _shape(40, 5120, 40),
    "opt-30b": _shape(48, 7168, 56),
    "opt-66b": _shape(64, 9216, 72),
}
