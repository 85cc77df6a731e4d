"""GPT: causal, learned positions. GPT-1 normalises after each update, GPT-2 and GPT-3 before.

References: Radford et al. 2018, Radford et al. 2019, Brown et al. 2020 (arXiv:2005.14165). Table 2.1 of the last
contradicts itself twice: XL states 24 heads of 128 for a width of 2048, taken here as 16 x 128; 13B states a width of
5140 for 40 heads of 128, taken as 5120. GPT-3's banded layers are not described well enough to rebuild: all layers here
are dense, which changes no parameter.
"""

from zoo.config import ModelConfig

GPT1 = ModelConfig(
    family="gpt",
    vocab_size=40478,
    embed_dim=768,
    num_layers=12,
    num_heads=12,
    max_positions=512,
    norm_placement="post",
    norm_eps=1e-5,
    final_norm=False,
    activation="gelu_tanh",
    dropout=0.1,
    embed_dropout=0.1,
    attention_dropout=0.1,
    head_dropout=0.1,
    pooling="last",
)

GPT2 = GPT1.replace(
    vocab_size=50257, max_positions=1024, norm_placement="pre", final_norm=True, residual_init=True
)

GPT3 = GPT2.replace(max_positions=2048, dropout=0.0, embed_dropout=0.0, attention_dropout=0.0, head_dropout=0.0)


def _shape(base: ModelConfig, num_layers: int, embed_dim: int, num_heads: int, **changes) -> ModelConfig:
    return base.replace(
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=None,
        head_dim=None,
        mlp_dim=None,
        **changes,
    )


PRESETS = {
    "gpt-tiny": _shape(GPT2, 2, 128, 2, vocab_size=8192, max_positions=512),
    "gpt1-tiny": _shape(GPT1, 2, 128, 2, vocab_size=8192),
    "gpt1": GPT1,
    "gpt2-tiny": _shape(GPT2, 2, 128, 2, vocab_size=8192, max_positions=512),
    "gpt2": GPT2,
    "gpt2-medium": _shape(GPT2, 24, 1024, 16),
    "gpt2-large": _shape(GPT2, 36, 1280, 20),
    "gpt2-xl": _shape(GPT2, 48, 1600, 25),
    "gpt3-small": _shape(GPT3, 12, 768, 12),
    "gpt3-medium": _shape(GPT3, 24, 1024, 16),
    "gpt3-large": _shape(GPT3, 24, 1536, 16),
    "gpt3-xl": _shape(GPT3, 24, 2048, 16),
    "gpt3-2.7b": _shape(GPT3, 32, 2560, 32),
    "gpt3-6.7b": _shape(GPT3, 32, 4096, 32),
    "gpt3-13b": _shape(GPT3, 40, 5120, 40),
    "gpt3-175b": _shape(GPT3, 96, 12288, 96),
}
