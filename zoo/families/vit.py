"""ViT and DeiT: the block over patches of an image (Dosovitskiy et al. 2020; Touvron et al. 2020).

arXiv:2010.11929, table 1, and arXiv:2012.12877, table 1. The presets read 224 x 224 images in patches of 16 and answer
with ImageNet's 1000 classes. DeiT's plain models are ViTs; its distilled ones carry a second token and classifier.
"""

from zoo.config import ModelConfig

VIT = ModelConfig(
    family="vit",
    vocab_size=0,
    image_size=224,
    patch_size=16,
    class_token=True,
    embed_dim=768,
    num_layers=12,
    num_heads=12,
    visibility="full",
    norm_eps=1e-12,
    activation="gelu",
    head="classifier",
    num_labels=1000,
)
DEIT = VIT.replace(family="deit", distillation_token=True, distillation_head=True)


def _shape(base: ModelConfig, num_layers: int, embed_dim: int, num_heads: int, **changes) -> ModelConfig:
    sizes = dict(num_kv_heads=None, head_dim=None, mlp_dim=None)
    return base.replace(num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads, **sizes, **changes)


VIT_PRESETS = {
    "vit-tiny": _shape(VIT, 12, 192, 3),
    "vit-small": _shape(VIT, 12, 384, 6),
    "vit-base": VIT,
    "vit-large": _shape(VIT, 24, 1024, 16),
    "vit-huge": _shape(VIT, 32, 1280, 16, patch_size=14),
}
DEIT_PRESETS = {
    "deit-tiny": _shape(DEIT, 12, 192, 3),
    "deit-small": _shape(DEIT, 12, 384, 6),
    "deit-base": DEIT,
}
