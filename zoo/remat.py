"""Rematerialisation: what a block keeps of the forward pass for the backward one, and what is computed again.

Kept numbers a token and layer, in the dtype of activations (N query and K key-value heads of H, width D, FFN width F,
U = 2 where the FFN is gated, else 1, times the experts where there are X):

| remat   | kept on the device                                         | numbers                 | computed again      |
|---------|------------------------------------------------------------|-------------------------|---------------------|
| none    | all that the backward pass reads, scores [N, T] a token    | -                       | nothing             |
|         | among it                                                   |                         |                     |
| minimal | the stream; query, key, value; the attention's result and  | 2 D + 2 (N + K) H + U F | norms, activations, |
|         | update; up, gate; the FFN's update where a norm reads it   | (+ D)                   | scores              |
| dots    | the stream; what the backward pass reads of the products   | 2 D + (N + 2 K) H + U F | the same, and the   |
|         | of weights (with experts each one's, and the router's)     | (+ D) (+ X (D + 1))     | attention's result  |
| full    | the stream                                                 | D                       | the whole block     |
| offload | the stream; the rest of minimal lies in the host's memory  | D                       | as minimal          |

A step's activations are then about rows a device x tokens x layers x that, and one block's everything. Gradients are
the same numbers under each. Chen et al. 2016 (arXiv:1604.06174) for `full`; Korthikanti et al. 2022
(arXiv:2205.05198) for the choices between.
"""

import jax
from jax.ad_checkpoint import checkpoint_name

from zoo.config import ModelConfig
from zoo.errors import InputError

# What a block marks with `keep`, in the order in which it is computed. Kernels of weights are no marks: a kernel that
# fsdp splits is gathered again, whatever is kept.
MARKS = ("query", "key", "value", "attention_result", "attention_update", "up", "gate", "mlp_update")

POLICIES = {
    "minimal": jax.checkpoint_policies.save_only_these_names(*MARKS),
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(MARKS),
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def mark(x: jax.Array, name: str) -> jax.Array:
    """x, named for the policies; the same array without them."""
    return checkpoint_name(x, name)


def policy(config: ModelConfig):
    """The policy of config.remat, for jax.checkpoint.

    Raises:
        InputError: "offload" where the device reaches no pinned host memory.
    """
    if config.remat == "offload" and not _reaches_host():
        raise InputError(
            'remat "offload" needs a device that reaches pinned host memory, and this one does not; use "minimal" or '
            '"full"'
        )
    return POLICIES[config.remat]


def kept_numbers(config: ModelConfig) -> int | None:
    """Numbers a token and layer that stay on the device under config.remat, by the table above; None for "none"."""
    width = config.embed_dim
    if config.remat in ("none", "full", "offload"):
        return None if config.remat == "none" else width
    heads, pairs = config.num_heads * config.head_dim, 2 * config.num_kv_heads * config.head_dim
    scaled = config.layer_scale is not None
    # An update that is only added to the stream is not read again.
    updates = (scaled or not config.parallel_block) + (scaled or config.norm_placement != "pre")
    kept = (1 + updates) * width + heads + pairs + (1 + config.gated) * config.mlp_dim * max(1, config.num_experts)
    if config.remat == "minimal":
        return kept + heads
    return kept + config.num_experts * (width + 1)


def _reaches_host() -> bool:
    """Whether the devices compiled for have memory of kind pinned_host; those of a described mesh are taken to."""
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else getattr(mesh, "abstract_device", None)
    if device is not None and device.platform != jax.default_backend():
        return True
    return any(memory.kind == "pinned_host" for memory in jax.local_devices()[0].addressable_memories())
