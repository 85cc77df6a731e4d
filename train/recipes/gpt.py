"""A small decoder of GPT-2's kind."""

from train.recipes.recipe import COMMANDS, MIXTURE, MIXTURE_TEXTS, NO_DROPOUT, SMALL, TINY, Recipe

DEMO = Recipe(
    name="demo-gpt",
    preset="gpt2-tiny",
    model=NO_DROPOUT,
    train=SMALL.replace(objective="next_token", steps=1600),
    command=COMMANDS.format("gpt"),
    cost="39 seconds on 2 CPU cores (AMD EPYC, AVX-512)",
    expected="validation loss 4.36 on the demonstration's text (Reuters R8, 2,048 pieces); "
    "on other text not measured",
)

SHIPPED = Recipe(
    name="oneblock-gpt-tiny",
    preset="gpt2-tiny",
    model={**NO_DROPOUT, "num_layers": 3, "max_positions": 128},
    train=TINY.replace(objective="next_token", steps=20_000, decay_steps=5_000),
    command=MIXTURE.format("gpt-tiny"),
    cost="24 minutes of one CPU core (AMD EPYC, AVX-512), measured on a busy machine",
    expected="validation loss 4.77 on its own mixture",
    texts=MIXTURE_TEXTS,
)
