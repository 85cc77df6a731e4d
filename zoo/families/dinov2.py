"""DINOv2: a ViT whose updates are scaled by learned vectors, trained without labels (Oquab et al. 2023).

arXiv:2304.07193. The published position tables are for 518 x 518 images in patches of 14. The giant is gated; models
"with registers" carry four learned tokens more (Darcet et al. 2023, arXiv:2309.16588).
"""

from zoo.config import ModelConfig
from zoo.families.vit import VIT

DINOV2 = VIT.replace(
    family="dinov2",
    image_size=518,
    patch_size=14,
    norm_eps=1e-6,
    layer_scale=1.0,
    mask_token=True,
    head="none",
    num_labels=0,
    pooling="cls_mean",
)


def _shape(num_layers: int, embed_dim: int, num_heads: int, **changes) -> ModelConfig:
    sizes = dict(num_kv_heads=None, head_dim=None, mlp_dim=None) | changes
    return DINOV2.replace(num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads, **sizes)


GIANT = _shape(40, 1536, 24, mlp_dim=4096, gated=True, activation="silu")

PRESETS = {
    "dinov2-small": _shape(12, 384, 6),
    "dinov2-base": DINOV2,
    "dinov2-large": _shape(24, 1024, 16),
    "dinov2-giant": GIANT,
    "dinov2-small-registers": _shape(12, 384, 6, registers=4),
    "dinov2-base-registers": DINOV2.replace(registers=4),
    "dinov2-large-registers": _shape(24, 1024, 16, registers=4),
    "dinov2-giant-registers": GIANT.replace(registers=4),
}
