"""A small encoder: masked LM at 40 % (Wettig et al. 2022, arXiv:2202.08005, find rates above 15 % to train better)."""

from train.config import TrainConfig
from train.recipes.recipe import Recipe

DEMO = Recipe(
    name="demo-bert",
    preset="bert-tiny",
    model={"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0},
    train=TrainConfig(
        objective="masked_lm",
        mask_rate=0.4,
        steps=4600,
        warmup_steps=150,
        batch_size=8,
        seq_len=64,
        learning_rate=2e-3,
        weight_decay=0.05,
        beta2=0.98,
        checkpoint_every=500,
        log_every=20,
        keep_last=1,
        keep_best=0,
    ),
    command="python -m train prepare encyclopedia shakespeare --out data/demo && "
    "python -m train pretrain runs/bert --recipe demo-bert --data data/demo",
    cost="about 3 minutes on 2 CPU cores",
    expected="to be measured",
)
