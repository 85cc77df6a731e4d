"""Tiny models of the reference library with seeded weights, and what they give."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers.core_model_loading import revert_weight_conversion

from tests.golden.recipe import error, seeded_tensor

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

BERT = dict(
    vocab_size=97,
    hidden_size=48,
    num_attention_heads=4,
    num_hidden_layers=2,
    intermediate_size=80,
    max_position_embeddings=72,
    pad_token_id=None,  # with one, PyTorch keeps gradients from that row of the token table
)
# Heads of 7 features, and square projections: a transposed or permuted one passes every shape check.
GPT = dict(vocab_size=97, n_embd=35, n_head=5, n_layer=2, n_positions=72)
LLAMA = dict(
    vocab_size=97,
    hidden_size=48,
    num_attention_heads=6,
    num_key_value_heads=6,
    num_hidden_layers=2,
    intermediate_size=80,
    max_position_embeddings=256,
)
GROUPED = LLAMA | dict(num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5)


def llama3(factor: float) -> dict[str, Any]:
    """A scaling whose kept, blended and divided ranges all lie inside a head of 32 features."""
    return dict(
        rope_theta=10000.0,
        rope_type="llama3",
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=128,
    )


@dataclass(frozen=True)
class Case:
    """A class of the reference library, the settings that differ from its base, and its seed."""

    architecture: str
    base: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def config(self) -> Any:
        config_class = getattr(transformers, self.architecture).config_class
        return config_class(**self.base | self.changes, attn_implementation="eager")

    def model(self) -> Any:
        """The model with seeded weights, in evaluation."""
        model = getattr(transformers, self.architecture)(self.config()).eval()
        if self.architecture.startswith("Mixtral"):
            model.config._experts_implementation = "eager"  # its grouped product takes no float64
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(seeded_tensor(name, tuple(parameter.shape), self.seed)))
        return model


CASES = {
    "bert-masked-lm": Case("BertForMaskedLM", BERT),
    "bert-tanh-gelu": Case("BertForMaskedLM", BERT, dict(hidden_act="gelu_new", layer_norm_eps=1e-3), 1),
    "bert-untied": Case("BertForMaskedLM", BERT, dict(tie_word_embeddings=False), 2),
    "bert-pretraining": Case("BertForPreTraining", BERT, {}, 3),
    "bert-classifier": Case(
        "BertForSequenceClassification", BERT, dict(id2label={0: "no", 1: "yes", 2: "perhaps"}), 4
    ),
    "bert-backbone": Case("BertModel", BERT, dict(type_vocab_size=3), 5),
    "gpt1": Case("OpenAIGPTLMHeadModel", GPT),
    "gpt2": Case("GPT2LMHeadModel", GPT),
    "gpt2-wide": Case("GPT2LMHeadModel", GPT, dict(n_inner=50, activation_function="gelu", layer_norm_epsilon=1e-3), 1),
    "gpt2-unscaled-scores": Case("GPT2LMHeadModel", GPT, dict(scale_attn_weights=False), 2),
    "gpt2-untied": Case("GPT2LMHeadModel", GPT, dict(tie_word_embeddings=False), 3),
    "gpt2-backbone": Case("GPT2Model", GPT, {}, 4),
    "llama1": Case("LlamaForCausalLM", LLAMA),
    "llama2-grouped": Case("LlamaForCausalLM", GROUPED, {}, 1),
    "llama-one-kv-head": Case("LlamaForCausalLM", GROUPED, dict(num_key_value_heads=1), 2),
    "llama3-factor-8": Case("LlamaForCausalLM", GROUPED, dict(rope_parameters=llama3(8.0)), 3),
    "llama3-factor-32-tied": Case(
        "LlamaForCausalLM", GROUPED, dict(rope_parameters=llama3(32.0), tie_word_embeddings=True), 4
    ),
    "llama-linear": Case(
        "LlamaForCausalLM",
        GROUPED,
        dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=500000.0)),
        5,
    ),
    "llama-biases": Case("LlamaForCausalLM", GROUPED, dict(attention_bias=True, mlp_bias=True), 6),
    "llama-backbone": Case("LlamaModel", GROUPED, {}, 7),
}


def save(model: Any, folder: Path) -> Path:
    """As the reference library itself writes it."""
    model.save_pretrained(folder)
    return folder


def run(model: Any, batch: dict[str, np.ndarray], gradients: bool = False) -> Any:
    """The reference outputs for a batch of tests.golden.recipe, hidden states included."""
    inputs = {
        "input_ids": torch.from_numpy(batch["tokens"]).long(),
        "attention_mask": torch.from_numpy(batch["padding_mask"]).long(),
        "position_ids": torch.from_numpy(batch["positions"]).long(),
        "output_hidden_states": True,
    }
    if model.config.model_type == "bert":
        inputs["token_type_ids"] = torch.from_numpy(batch["token_types"]).long()
    with torch.set_grad_enabled(gradients):
        return model(**inputs)


def answers(out: Any) -> np.ndarray | None:
    """The logits of an output of the reference, start and end side by side; None of a backbone."""
    if getattr(out, "start_logits", None) is not None:
        return np.stack([out.start_logits.detach().numpy(), out.end_logits.detach().numpy()], axis=-1)
    return out.logits.detach().numpy() if hasattr(out, "logits") else None


def stream_errors(expected: Any, out: Any, config: Any, real: np.ndarray | None = None) -> list[float]:
    """How far all hidden states are apart: one number for each layer and the end.

    Args:
        expected: of the reference, with hidden_states.
        out: ours, with hidden_states.
        config: our model's.
        real: [B, T] where tokens are compared; None for everywhere.
    """
    streams = [state.detach().numpy() for state in expected.hidden_states]
    assert len(streams) == len(out.hidden_states) == config.num_layers + 1
    # The reference gives its last hidden state after the final norm (and a projection), as we give `hidden`.
    after = config.final_norm or config.hidden_width != config.embed_dim
    errors = [error(mine, theirs, real) for mine, theirs in zip(out.hidden_states[:-1], streams[:-1], strict=True)]
    errors += [] if after else [error(out.hidden_states[-1], streams[-1], real)]
    return [*errors, error(out.hidden, streams[-1], real)]


def gradient_errors(gradient: Any, wanted: Any) -> list[float]:
    """How far each parameter's gradient is from the reference's, as a part of the largest number of all."""
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(wanted))
    return jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()) / largest, gradient, wanted))


@contextlib.contextmanager
def in_float64(model: Any) -> Iterator[None]:
    """`model` computes in float64 throughout, also where its norms, softmaxes and rotary tables name float32.

    Weights come back as they were: float32 numbers are float64 numbers.
    """
    single, double = torch.float32, torch.float64
    everywhere = mock.patch.multiple(torch, float32=double, float=double)
    with everywhere, mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        model.double()
        try:
            yield
        finally:
            model.to(single)


def save_gradients(model: Any, folder: Path) -> Path:
    """The gradients of a model, as a folder of the same layout."""
    grads = {name: p.grad for name, p in model.named_parameters()}
    grads = revert_weight_conversion(model, grads)  # under the names of its files
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file({name: grad.numpy().copy() for name, grad in grads.items()}, folder / "model.safetensors")
    return folder
