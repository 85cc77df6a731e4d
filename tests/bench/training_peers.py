"""Steps of peers' training, each in its own environment, on the rows of training_rows.py.

All keep parameters and AdamW's moments in float32, clip by the global norm, and read the loss of each step. Nobody is
made to do more than its users would: read-outs of masked LM are at the chosen positions where the library can do that
(transformers has them everywhere), ids are corrupted before the clock starts, attention is the fused kernel that the
library takes on the device at hand, GELU is one kernel.
"""

import contextlib
import os
import sys
from functools import partial
from typing import Any

from training_rows import CLIP, DECAY, RATE, WARM, Contestant, Row, batches, masked_batches, measured


def transformers_network(row: Row) -> Any:
    """The reference library's model."""
    import transformers as hf

    if row.family == "bert":
        config = hf.BertConfig(
            vocab_size=row.vocabulary, hidden_size=row.width, num_hidden_layers=row.layers,
            num_attention_heads=row.heads, intermediate_size=row.mlp, max_position_embeddings=row.positions,
            hidden_dropout_prob=row.dropout, attention_probs_dropout_prob=row.dropout,
        )  # fmt: skip
        return hf.BertForMaskedLM(config)
    if row.family == "gpt":
        # The same function as its default "gelu_new", in one kernel.
        config = hf.GPT2Config(
            vocab_size=row.vocabulary, n_embd=row.width, n_layer=row.layers, n_head=row.heads, n_inner=row.mlp,
            n_positions=row.positions, resid_pdrop=row.dropout, embd_pdrop=row.dropout, attn_pdrop=row.dropout,
            activation_function="gelu_pytorch_tanh", use_cache=False,
        )  # fmt: skip
        return hf.GPT2LMHeadModel(config)
    config = hf.LlamaConfig(
        vocab_size=row.vocabulary, hidden_size=row.width, num_hidden_layers=row.layers, num_attention_heads=row.heads,
        intermediate_size=row.mlp, max_position_embeddings=row.positions, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def run_transformers(contestant: Contestant, row: Row, steps: int) -> dict[str, Any]:
    """The reference library, as its Trainer does it, without the Trainer's overhead; its own loss."""
    import torch

    torch.manual_seed(0)

    def inputs_of(batch):
        if not row.share:
            ids, after = torch.from_numpy(batch[:, :-1]), torch.from_numpy(batch[:, 1:]).long()
            return {"input_ids": ids, "labels": after, "shift_labels": after}
        labels = torch.full(batch.inputs.shape, -100)
        chosen = torch.where(torch.from_numpy(batch.weights) > 0, torch.from_numpy(batch.labels).long(), -100)
        labels.scatter_(1, torch.from_numpy(batch.positions).long(), chosen)
        return {"input_ids": torch.from_numpy(batch.inputs), "labels": labels}

    def loss_of(model, inputs):
        return model(**inputs).loss

    return torch_steps(contestant, row, steps, transformers_network(row), inputs_of, loss_of)


def x_network(row: Row) -> Any:
    """x-transformers' model with its loss: module(ids, labels), or module(ids, chosen, labels) for masked LM."""
    import torch
    import torch.nn.functional as F
    from torch import nn
    from x_transformers import Decoder, Encoder, TransformerWrapper

    shape = {"dim": row.width, "depth": row.layers, "heads": row.heads, "attn_dim_head": row.width // row.heads}
    shape |= {"attn_flash": True, "attn_dropout": row.dropout, "ff_mult": row.mlp / row.width}
    shape |= {"attn_sublayer_dropout": row.dropout, "ff_sublayer_dropout": row.dropout}
    if row.family == "bert":
        layers = Encoder(**shape, pre_norm=False)
    elif row.family == "gpt":
        layers = Decoder(**shape, ff_custom_activation=nn.GELU("tanh"))
    else:
        layers = Decoder(
            **shape, use_rmsnorm=True, rotary_pos_emb=True, rotary_emb_dim=row.width // row.heads, ff_glu=True,
            ff_swish=True, ff_no_bias=True,
        )  # fmt: skip

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = TransformerWrapper(
                num_tokens=row.vocabulary, max_seq_len=row.positions, attn_layers=layers, tie_embedding=True,
                tie_embedding_scale=1.0, emb_dropout=row.dropout, post_emb_norm=row.family == "bert",
                use_abs_pos_emb=row.family != "llama",
            )  # fmt: skip
            if row.share:
                self.dense, self.norm = nn.Linear(row.width, row.width), nn.LayerNorm(row.width)
                self.bias = nn.Parameter(torch.zeros(row.vocabulary))

        def forward(self, ids, *given):
            *chosen, labels = given
            if not chosen:
                logits = self.net(ids).flatten(0, 1)
            else:
                hidden = self.net(ids, return_embeddings=True).flatten(0, 1)[chosen[0]]
                logits = self.net.to_logits(self.norm(F.gelu(self.dense(hidden)))) + self.bias
            return F.cross_entropy(logits.float(), labels)

    return drawn(Network())


def litgpt_network(row: Row) -> Any:
    """litgpt's model with the loss of its pretrain command, tied as there: module(ids, labels)."""
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy
    from torch import nn

    config = Config(
        block_size=row.positions, vocab_size=row.vocabulary, padded_vocab_size=row.vocabulary, n_layer=row.layers,
        n_head=row.heads, n_embd=row.width, intermediate_size=row.mlp, rotary_percentage=1.0, parallel_residual=False,
        bias=False, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP",
    )  # fmt: skip

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = GPT(config)
            self.net.transformer.wte.weight = self.net.lm_head.weight
            self.net.max_seq_length = row.length

        def forward(self, ids, labels):
            return chunked_cross_entropy(self.net(ids).float(), labels)

    return drawn(Network())


def drawn(model: Any) -> Any:
    """Tables and kernels drawn from N(0, 0.02^2), as of the other libraries: losses can be set side by side."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
    return model


def run_torch(network_of: Any, contestant: Contestant, row: Row, steps: int) -> dict[str, Any]:
    """A module that gives its loss."""
    import torch

    def inputs_of(batch):
        if not row.share:
            return torch.from_numpy(batch[:, :-1]).long(), torch.from_numpy(batch[:, 1:]).flatten().long()
        counts = torch.from_numpy(batch.weights) > 0
        flat = torch.from_numpy(batch.positions) + row.length * torch.arange(row.rows)[:, None]
        return torch.from_numpy(batch.inputs).long(), flat[counts], torch.from_numpy(batch.labels)[counts].long()

    def loss_of(model, inputs):
        return model(*inputs)

    return torch_steps(contestant, row, steps, network_of(row), inputs_of, loss_of)


def torch_steps(contestant: Contestant, row: Row, steps: int, model, inputs_of, loss_of) -> dict[str, Any]:
    """Steps on torch: autocast where products are in bfloat16, fused AdamW."""
    import torch
    from torch.utils import _pytree as pytree

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    forward = torch.compile(model) if contestant.compiled else model

    def step(inputs):
        inputs = pytree.tree_map(lambda part: part.to(device), inputs)
        with torch.autocast(device, torch.bfloat16) if contestant.half else contextlib.nullcontext():
            loss = loss_of(forward, inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    given = map(inputs_of, (masked_batches if row.share else batches)(row, steps + WARM))
    more = {"threads": torch.get_num_threads(), "device": device}
    found = measured(step, given, row, sum(weight.numel() for weight in model.parameters()), more)
    if device == "cuda":
        found["device_peak"] = torch.cuda.max_memory_allocated()
    return found


def keras_network(row: Row) -> Any:
    """keras-hub's task model."""
    import keras_hub.models as hub

    sizes = {"vocabulary_size": row.vocabulary, "num_layers": row.layers, "hidden_dim": row.width}
    sizes |= {"intermediate_dim": row.mlp, "dropout": row.dropout}
    if row.family == "bert":
        backbone = hub.BertBackbone(**sizes, num_heads=row.heads, max_sequence_length=row.positions)
        backbone.pooled_dense.trainable = False  # nothing reads it
        return hub.BertMaskedLM(backbone)
    if row.family == "gpt":
        return hub.GPT2CausalLM(hub.GPT2Backbone(**sizes, num_heads=row.heads, max_sequence_length=row.positions))
    heads = {"num_query_heads": row.heads, "num_key_value_heads": row.heads}
    return hub.LlamaCausalLM(hub.LlamaBackbone(**sizes, **heads, tie_word_embeddings=True))


def run_keras(contestant: Contestant, row: Row, steps: int) -> dict[str, Any]:
    """keras-hub on jax: Keras' own stateless step, jitted whole with its state donated, as its guide to jax has it."""
    os.environ["KERAS_BACKEND"] = "jax"
    for name in ("tensorflow", "tensorflow_text"):
        # Its text pipelines alone need these; a process without them is smaller.
        sys.modules[name] = None
    import jax
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16" if contestant.half else "float32")
    model = keras_network(row)
    table = model.backbone.token_embedding.embeddings
    table.assign(keras.random.normal(table.shape, stddev=0.02))  # as of the others; its own is 0.01 in some models
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=DECAY, epsilon=1e-8, global_clipnorm=CLIP)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    ones = np.ones((row.rows, row.length), np.int32)

    def arrays_of(batch):
        if not row.share:
            return {"token_ids": batch[:, :-1], "padding_mask": ones}, batch[:, 1:], None
        inputs = {"token_ids": batch.inputs, "segment_ids": 0 * ones, "padding_mask": ones}
        return inputs | {"mask_positions": batch.positions}, batch.labels, batch.weights

    def forward(trained, fixed, inputs, labels, weights):
        logits, fixed = model.stateless_call(trained, fixed, inputs, training=True)
        return loss_of(labels, logits, sample_weight=weights), fixed

    @partial(jax.jit, donate_argnums=0)
    def update(state, inputs, labels, weights):
        trained, fixed, moments = state
        (loss, fixed), grads = jax.value_and_grad(forward, has_aux=True)(trained, fixed, inputs, labels, weights)
        trained, moments = optimizer.stateless_apply(moments, grads, trained)
        return loss, (trained, fixed, moments)

    kept = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state = [[variable.value for variable in variables] for variables in kept]
    parameters = sum(weight.size for weight in state[0])

    def step(arrays):
        nonlocal state
        loss, state = update(state, *arrays)
        return float(loss)

    given = map(arrays_of, (masked_batches if row.share else batches)(row, steps + WARM))
    found = measured(step, given, row, parameters, {"device": jax.default_backend()})
    if jax.default_backend() != "cpu":
        found["device_peak"] = jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]
    return found


RUNS = {
    "theirs": run_transformers,
    "keras": run_keras,
    "x": partial(run_torch, x_network),
    "litgpt": partial(run_torch, litgpt_network),
}
