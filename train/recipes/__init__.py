"""Recipes: whole pre-training runs that are known to work, each with its command, its cost and the number to expect.

python -m train pretrain runs/bert --recipe demo-bert --data data/demo
"""

from train.recipes import bert, gpt, llama
from train.recipes.recipe import Recipe
from zoo.errors import InputError, nearest

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for family in (bert, gpt, llama) for recipe in (family.DEMO, family.SHIPPED)
}


def find(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        InputError: there is none, with the nearest name.
    """
    if name not in RECIPES:
        raise InputError(f'there is no recipe "{name}"{nearest(name, RECIPES)}')
    return RECIPES[name]
