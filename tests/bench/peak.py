"""Products of square matrices on all cores, in each framework: what a machine can do, by which other rows are read.

    make bench BENCH=peak
    python tests/bench/peak.py --rounds 3

`rate` is FLOP/s, 2 n^3 a product, of the best of eight runs of four products each: n is 2048 on CPUs, and 8192
elsewhere, so that a GPU has enough to do. Products in bfloat16 give bfloat16. Contestants: ours and ours-bf16 (jax),
theirs and theirs-bf16 (torch).
"""

import argparse
import json
import sys
import time

from contestant import Failed, record, result_of, usual_options

CONTESTANTS = ("ours", "theirs", "ours-bf16", "theirs-bf16")
RUNS, PRODUCTS = 8, 4


def best(multiply, n: int) -> dict:
    """What the best run gives; `multiply` does PRODUCTS products and waits for them."""
    multiply()
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        multiply()
        times.append(time.perf_counter() - began)
    return {"rate": 2 * n**3 * PRODUCTS / min(times), "unit": "FLOP", "n": n}


def run_ours(half: bool) -> dict:
    """Products in jax."""
    import jax
    import jax.numpy as jnp

    n = 2048 if jax.default_backend() == "cpu" else 8192
    dtype = jnp.bfloat16 if half else jnp.float32
    left, right = (jax.random.normal(jax.random.key(seed), (n, n)).astype(dtype) for seed in range(2))
    product = jax.jit(jnp.matmul)

    def multiply():
        for _ in range(PRODUCTS):
            product(left, right).block_until_ready()

    return best(multiply, n)


def run_theirs(half: bool) -> dict:
    """Products in torch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    n, dtype = (2048 if device == "cpu" else 8192), (torch.bfloat16 if half else torch.float32)
    left, right = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))

    def multiply():
        for _ in range(PRODUCTS):
            left @ right
        if device == "cuda":
            torch.cuda.synchronize()

    return best(multiply, n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="one contestant, in this process")
    usual_options(parser, CONTESTANTS)
    given = parser.parse_args()
    if given.run:
        run = run_ours if given.run.startswith("ours") else run_theirs
        print(json.dumps(run(given.run.endswith("bf16"))))
        return
    for number in range(1, given.rounds + 1):
        for name in given.contestants:
            python = given.ours if name.startswith("ours") else given.reference
            try:
                found = result_of([python, __file__, "--run", name])
            except Failed as error:
                sys.exit(f"error: {name}: {error}")
            record("peak", "bfloat16" if name.endswith("bf16") else "float32", name, number, found)
            print(f"round {number}, {name}: {found['rate'] / 1e9:,.0f} GFLOP/s", flush=True)


if __name__ == "__main__":
    main()
