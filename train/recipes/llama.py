"""A small decoder of LLaMA's kind: RMS norm, rotary positions, gated SiLU, grouped KV heads."""

from train.recipes.recipe import COMMANDS, MIXTURE, MIXTURE_TEXTS, SMALL, TINY, Recipe

DEMO = Recipe(
    name="demo-llama",
    preset="llama-tiny",
    model={"tie_embeddings": True},
    train=SMALL.replace(objective="next_token", steps=2400),
    command=COMMANDS.format("llama"),
    cost="58 seconds on 2 CPU cores (AMD EPYC, AVX-512)",
    expected="validation loss 4.03 on the demonstration's text (Reuters R8, 2,048 pieces); "
    "on other text not measured",
)

SHIPPED = Recipe(
    name="oneblock-llama-tiny",
    preset="llama-tiny",
    model={"tie_embeddings": True, "num_layers": 3, "max_positions": 256},
    train=TINY.replace(objective="next_token", steps=20_000, decay_steps=5_000),
    command=MIXTURE.format("llama-tiny"),
    cost="24 minutes of one CPU core (AMD EPYC, AVX-512), measured on a busy machine",
    expected="validation loss 4.66 on its own mixture",
    texts=MIXTURE_TEXTS,
)
