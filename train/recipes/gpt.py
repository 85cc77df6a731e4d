"""A small decoder of GPT-2's kind."""

from train.config import TrainConfig
from train.recipes.recipe import Recipe

DEMO = Recipe(
    name="demo-gpt",
    preset="gpt2-tiny",
    model={"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0},
    train=TrainConfig(
        objective="next_token",
        steps=2800,
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
    "python -m train pretrain runs/gpt --recipe demo-gpt --data data/demo",
    cost="about 2 minutes on 2 CPU cores",
    expected="to be measured",
)
