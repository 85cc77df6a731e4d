"""Language models that can be computed by hand: a LLaMA whose logits after token i are row i of a table; letters."""

import jax
import jax.numpy as jnp
import numpy as np

import zoo

LETTERS = ("<pad>", "<s>", "</s>", "a", "b", "c", "ab", " ")


class Letters:
    """Eight pieces; "ab" is one piece wherever it stands, so that texts merge over a border."""

    vocab_size, pad_id, bos_id, eos_id = len(LETTERS), 0, 1, 2
    unk_id = cls_id = sep_id = mask_id = None
    special_ids, stop_ids, chat_template, fingerprint = (0, 1, 2), (2,), None, "letters"

    def __init__(self, adds_bos: bool = True):
        self.adds_bos = adds_bos

    def encode(self, text):
        ids = []
        while text:
            piece = max((p for p in LETTERS[3:] if text.startswith(p)), key=len)
            ids.append(LETTERS.index(piece))
            text = text[len(piece) :]
        return ids

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        return "".join(LETTERS[i] for i in ids if i not in self.special_ids)


def bigram(table, max_positions: int = 32, dtype: str = "float32"):
    """(model, params) with logits[..., t, :] = table[token t], whatever stands before: all its updates are zero.

    The stream is a one-hot vector, which the final RMS norm makes sqrt(V) times as long; the read-out undoes that.
    """
    table = jnp.asarray(table, jnp.float32)
    size = len(table)
    model = zoo.create(
        "llama-tiny",
        vocab_size=size,
        embed_dim=size,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        mlp_dim=8,
        num_layers=1,
        max_positions=max_positions,
        norm_eps=1e-12,
        dtype=dtype,
    )
    params = model.init(jax.random.key(0))
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.zeros_like(leaf) if path[-2].key in ("out", "down") else leaf, params
    )
    params["embed"]["token"]["embedding"] = jnp.eye(size)
    params["lm_head"]["kernel"] = table / np.sqrt(size)
    return model, params


def random_table(seed: int, size: int = len(LETTERS)):
    return np.random.default_rng(seed).normal(size=(size, size)).astype(np.float32)


def log_softmax(table):
    """float64 [V, V]."""
    table = np.asarray(table, np.float64)
    return table - np.log(np.exp(table).sum(axis=1, keepdims=True))
