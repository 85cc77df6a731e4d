"""Training steps: this project against the reference library on torch, turn and turn about.

    make bench BENCH=training                               # both environments, three rounds
    python tests/bench/training.py --rows bert gpt2 --contestants ours theirs --steps 4

One step is forward, backward, clipping by the global norm and AdamW, in full, on the same ids in the same order (eight
batches in turn, so that a model that learns shows it). `rate` is tokens a second over the median step once everything
is compiled, `peak` the most memory the process held, `losses` the first and the last eight steps' means. Contestants:

    ours, ours-bf16             train.step, products in float32, or in bfloat16 over float32 parameters
    theirs, theirs-bf16         eager; with autocast to bfloat16; fused AdamW, sdpa attention
    theirs-compiled, ...-bf16   torch.compile
"""

import argparse
import json
import resource
import statistics
import sys
import time

from contestant import Failed, result_of

CONTESTANTS = ("ours", "theirs", "theirs-compiled", "ours-bf16", "theirs-bf16", "theirs-compiled-bf16")
# Of each row: preset, fields, rows a step, tokens a row, share of tokens chosen for masked LM (0: next token).
LLAMA = {
    "vocab_size": 32000, "embed_dim": 768, "num_layers": 12, "num_heads": 12, "num_kv_heads": 12, "mlp_dim": 2048,
    "tie_embeddings": True,
}  # fmt: skip
TINY = {"vocab_size": 4096, "embed_dim": 128, "num_layers": 2, "num_heads": 2, "mlp_dim": 512, "max_positions": 512}
ROWS = {
    "bert": ("bert-base", {"dropout": 0.0}, 16, 128, 0.15),
    "bert-dropout": ("bert-base", {"dropout": 0.1, "attention_dropout": 0.1}, 16, 128, 0.15),
    "gpt2": ("gpt2", {"dropout": 0.0}, 4, 256, 0.0),
    "llama": ("llama-tiny", LLAMA, 4, 256, 0.0),
    "llama-long": ("llama-tiny", LLAMA | {"max_positions": 2048}, 1, 2048, 0.0),
    "bert-tiny": ("bert-base", TINY | {"dropout": 0.0}, 16, 64, 0.15),
    "gpt-tiny": ("gpt2", TINY | {"dropout": 0.0}, 16, 64, 0.0),
}
BATCHES, WARM, RATE, DECAY, CLIP = 8, 2, 1e-4, 0.01, 1.0


def ids_of(row: str, vocabulary: int):
    """Eight batches of ids, of a sharply uneven distribution: there is something to learn, and early."""
    import numpy as np

    _, _, rows, length, rate = ROWS[row]
    rng = np.random.default_rng(0)
    drawn = (vocabulary - 200) * rng.random((BATCHES, rows, length + (not rate))) ** 4
    return 150 + drawn.astype(np.int64)


def run_ours(name: str, row: str, steps: int) -> dict:
    """Steps of this project's training."""
    import jax
    import numpy as np

    import zoo
    from train.config import TrainConfig
    from train.corruption import Vocabulary
    from train.mesh import make_driver
    from train.objectives import Objective, masked_lm, next_token
    from train.optimizer import make_optimizer
    from train.state import initial_state
    from train.step import make_train_step

    preset, fields, rows, length, share = ROWS[row]
    dtype = "bfloat16" if name.endswith("bf16") else "float32"
    model = zoo.create(preset, **fields, dtype=dtype, **({"head": "masked_lm"} if share else {}))
    size = model.config.vocab_size

    def masked(model, params, batch, keys, train=True):
        return masked_lm(model, params, batch, keys, vocabulary=Vocabulary(size, 4, tuple(range(7))), rate=share)

    train = TrainConfig(
        steps=1000, batch_size=rows, learning_rate=RATE, schedule="constant", weight_decay=DECAY, clip_norm=CLIP
    )
    optimizer, driver = make_optimizer(train), make_driver("jit")
    state = driver.init(initial_state(model.init, optimizer, 0))
    step = driver.compile(make_train_step(model, Objective(masked if share else next_token), optimizer, train))
    batches = ids_of(row, size).astype(np.int32)
    whole = np.ones_like(batches[0])
    times, losses = [], []
    for number in range(steps + WARM):
        tokens = batches[number % BATCHES]
        batch = {"tokens": tokens, "segment_ids": whole, "row_ids": (number * rows + np.arange(rows)).astype(np.int32)}
        began = time.perf_counter()
        state, metrics = step(state, driver.put(batch))
        loss, weight = jax.device_get(metrics["loss"])
        times.append(time.perf_counter() - began)
        losses.append(float(loss / weight))
    return report(times, losses, rows * length)


def network_of(row: str):
    """The reference library's model of the same shape, and the tokens of its vocabulary."""
    import transformers as hf

    preset, fields, _, length, _ = ROWS[row]
    sizes = {"bert-base": (30522, 768, 12, 12, 3072), "gpt2": (50257, 768, 12, 12, 3072)}.get(preset, ())
    names = ("vocab_size", "embed_dim", "num_layers", "num_heads", "mlp_dim")
    vocabulary, width, layers, heads, ffn = (
        fields.get(name, size) for name, size in zip(names, sizes or (None,) * 5, strict=True)
    )
    dropout, positions = fields.get("dropout", 0.0), fields.get("max_positions", 1024)
    if preset == "bert-base":
        config = hf.BertConfig(
            vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=ffn, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )  # fmt: skip
        return hf.BertForMaskedLM(config), vocabulary
    if preset == "gpt2":
        config = hf.GPT2Config(
            vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=heads, n_inner=ffn, n_positions=positions,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        )  # fmt: skip
        return hf.GPT2LMHeadModel(config), vocabulary
    config = hf.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=ffn, max_position_embeddings=max(length, 2048), tie_word_embeddings=True,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config), vocabulary


def run_theirs(name: str, row: str, steps: int) -> dict:
    """The same of the reference library, as its Trainer does it, without the Trainer's overhead."""
    import contextlib

    import torch

    torch.manual_seed(0)
    model, vocabulary = network_of(row)
    rows, length, share = ROWS[row][2:]
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    forward = torch.compile(model) if "compiled" in name else model
    half = name.endswith("bf16")
    batches = torch.tensor(ids_of(row, vocabulary))
    times, losses = [], []
    for number in range(steps + WARM):
        ids = batches[number % BATCHES]
        began = time.perf_counter()
        if share:
            inputs, labels = masked(ids, share, vocabulary)
        else:
            # Its own loss shifts: the last id is a label alone, as here.
            inputs, labels = ids, ids
        with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
            loss = forward(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(time.perf_counter() - began)
    return report(times, losses, rows * length) | {"threads": torch.get_num_threads()}


def masked(ids, share: float, vocabulary: int):
    """BERT's corruption: of the chosen 80 % hidden, 10 % another token, 10 % kept; labels -100 elsewhere."""
    import torch

    chosen, kind = torch.rand(ids.shape) < share, torch.rand(ids.shape)
    inputs = torch.where(chosen & (kind < 0.8), 4, ids)
    inputs = torch.where(chosen & (kind >= 0.9), torch.randint(7, vocabulary, ids.shape), inputs)
    return inputs, torch.where(chosen, ids, -100)


def report(times: list[float], losses: list[float], tokens: int) -> dict:
    """What a contestant prints."""
    usual = times[WARM:]
    return {
        "rate": tokens / statistics.median(usual),
        "spread": [tokens / max(usual), tokens / min(usual)],
        "first_step": times[0],
        "losses": [statistics.mean(losses[:BATCHES]), statistics.mean(losses[-BATCHES:])],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def compare(given: argparse.Namespace) -> None:
    """Runs all contestants in turn, row by row; prints medians with the spread, ratios, and peak memory."""
    for row in given.rows:
        found: dict[str, list[dict]] = {name: [] for name in given.contestants}
        for number in range(given.rounds):
            for name in found:
                python = given.ours if name.startswith("ours") else given.reference
                words = [python, __file__, "--run", name, "--rows", row, "--steps", str(given.steps)]
                try:
                    found[name].append(result_of(words))
                except Failed as error:
                    sys.exit(f"error: {row}, {name}: {error}")
                print(f"round {number + 1}, {row}, {name}: {json.dumps(found[name][-1])}", flush=True)
        base = next(iter(found))
        print(f"\n{row}: tokens/s (least to most), times {base} by round; peak memory; losses first and last")
        for name, runs in found.items():
            rates = [run["rate"] for run in runs]
            ratios = [rate / run["rate"] for rate, run in zip(rates, found[base], strict=True)]
            peak = statistics.median(run["peak"] for run in runs) / 2**30
            losses = [statistics.median(values) for values in zip(*(run["losses"] for run in runs), strict=True)]
            print(
                f"  {name:22} {statistics.median(rates):9,.0f} ({min(rates):,.0f} to {max(rates):,.0f})   "
                f"{statistics.median(ratios):5.2f}   {peak:5.2f} GiB   "
                f"{losses[0]:.3f} {losses[1]:.3f}"
            )
        print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="one contestant, in this process")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--ours", default=sys.executable, help="interpreter of this project")
    parser.add_argument("--reference", default=".venv-bench/bin/python", help="interpreter of the reference library")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.run:
        run = run_ours if given.run.startswith("ours") else run_theirs
        print(json.dumps(run(given.run, given.rows[0], given.steps)))
    else:
        compare(given)


if __name__ == "__main__":
    main()
