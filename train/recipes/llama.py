"""A small decoder of LLaMA's kind: RMS norm, rotary positions, gated SiLU, grouped KV heads."""

from train.config import TrainConfig
from train.recipes.recipe import Recipe

DEMO = Recipe(
    name="demo-llama",
    preset="llama-tiny",
    model={"tie_embeddings": True},
    train=TrainConfig(
        objective="next_token",
        steps=2600,
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
    "python -m train pretrain runs/llama --recipe demo-llama --data data/demo",
    cost="about 2 minutes on 2 CPU cores",
    expected="to be measured",
)
