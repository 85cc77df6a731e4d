"""A small encoder: masked LM at 40 % (Wettig et al. 2022, arXiv:2202.08005, find rates above 15 % to train better)."""

from train.recipes.recipe import COMMANDS, NO_DROPOUT, SMALL, Recipe

DEMO = Recipe(
    name="demo-bert",
    preset="bert-tiny",
    model=NO_DROPOUT,
    train=SMALL.replace(objective="masked_lm", mask_rate=0.4, steps=4600),
    command=COMMANDS.format("bert"),
    cost="2 minutes 26 seconds on 2 CPU cores (AMD EPYC, AVX-512)",
    expected="validation loss 6.14 on the demonstration's text (20 Newsgroups and Reuters, 4,096 pieces); "
    "on other text not measured",
)
