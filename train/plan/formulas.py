"""What one training step does, by formula: FLOPs, memory traffic, collectives (bytes held: train.plan.memory).

Letters as everywhere, and: w bytes of a number under config.dtype; U 2 where the FFN is gated, else 1; t the tokens
that a chip sees at a time (rows x length / chips that split either / micro-batches); tp the size of the axis `tensor`.
Bytes of parameters follow zoo.partition leaf by leaf. Weights of a layer come gathered, used and dropped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from train.config import TrainConfig
from train.corruption import places
from train.plan.collectives import Collective, make
from zoo import partition
from zoo.config import ModelConfig
from zoo.splash import BLOCK, LANES, SPLASH_FROM
from zoo.summary import forward_flops

CHUNK_BYTES = 1 << 29  # of float32 logits at a time, as train.objectives has it for accelerators
FLASH = ("splash", "cudnn", "blockwise", "ring", "gathered")  # kernels that never write scores to memory


@dataclass(frozen=True)
class Work:
    """A configuration on a mesh, with what the formulas share.

    Attributes:
        config, train: the run.
        mesh: {axis: size}.
        platform: that the step is compiled for, "tpu", "gpu" or "cpu": what kernel "auto" is depends on it.
        gradient_bytes: of a number of a gradient that is summed over chips; 4 here, 2 in programs that sum in bfloat16.
    """

    config: ModelConfig
    train: TrainConfig
    mesh: Mapping[str, int]
    platform: str = "cpu"
    gradient_bytes: int = 4

    @property
    def width(self) -> int:
        """w."""
        return 4 if self.config.dtype == "float32" else 2

    @property
    def tensor(self) -> int:
        """tp."""
        return self.mesh.get("tensor", 1)

    @property
    def tokens(self) -> float:
        """t."""
        ways = math.prod(self.mesh.get(axis, 1) for axis in (*partition.ROW_AXES, "sequence"))
        return self.train.batch_size * self.train.seq_len / ways / self.train.accumulate

    @property
    def kernel(self) -> str:
        """The attention kernel; of "auto" the one that zoo.attention takes for a packed row in training."""
        config, length = self.config, self.train.seq_len
        if config.attention_kernel != "auto":
            return config.attention_kernel
        ways = self.mesh.get("sequence", 1)
        refused = config.attention_dropout or config.positions == "relative"
        refused = refused or any(layer.window is not None for layer in config.layer_pattern)
        flash = self.platform == "tpu" and length >= SPLASH_FROM and not refused
        if ways > 1 and length % ways == 0:
            gathered = 2 * length * config.num_kv_heads <= length // ways * config.num_heads
            if not gathered:
                return "ring"
            return "splash" if flash and length // ways % LANES == 0 else "gathered"
        if flash:
            return "splash"
        fused = self.platform == "gpu" and ways == 1 and self.width == 2 and length % 2 == 0
        fused = fused and not (config.attention_dropout or config.positions == "relative" or config.attention_soft_cap)
        return "cudnn" if fused and config.head_dim % 8 == 0 and config.head_dim <= 128 else "xla"

    @property
    def scores_in_memory(self) -> bool:
        """Whether [T, S] scores are written to HBM."""
        return self.kernel not in FLASH

    @property
    def blocks_run(self) -> float:
        """Share of blocks of scores that splash computes: under a causal mask those that a query sees."""
        blocks = max(1, math.ceil(self.train.seq_len / BLOCK))
        return (blocks + 1) / (2 * blocks) if self.config.visibility == "causal" else 1.0

    @property
    def read_out_share(self) -> float:
        """Share of positions that are read out."""
        train = self.train
        if train.objective != "masked_lm":
            return 1.0
        return places(train.seq_len, train.mask_rate, train.whole_words) / train.seq_len

    @property
    def logits(self) -> float:
        """Numbers of logits a chip and micro-batch."""
        return self.tokens * self.read_out_share * self.config.vocab_size / self.tensor

    @property
    def chunks(self) -> int:
        """Pieces in which logits are made."""
        budget = self.train.loss_chunk_bytes or CHUNK_BYTES
        return max(1, math.ceil(4 * self.logits * self.tensor / budget))

    def leaves(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """(path, numbers, mesh axes of more than one chip that split it) of each parameter."""
        return list(_placed(_neutral(self.config), tuple(self.mesh.items())))

    def numbers(self, *without: str) -> float:
        """Parameters a chip holds, were they not split over the axes named."""
        return sum(size / self._ways(axes, without) for _, size, axes in self.leaves())

    def layer_numbers(self) -> float:
        """Parameters of one layer that a chip holds once gathered."""
        total = sum(
            size / self._ways(axes, partition.STORAGE) for path, size, axes in self.leaves() if path.startswith(_LAYERS)
        )
        return total / (1 if self.config.shared_layers else self.config.num_layers)

    @property
    def gathered(self) -> bool:
        """Whether parameters are stored in parts and gathered to be used."""
        return any(set(axes) & set(partition.STORAGE) for _, _, axes in self.leaves())

    @property
    def scores_a_token(self) -> float:
        """Scores a token, of the heads of one chip."""
        return self.config.num_heads / self.tensor * self.train.seq_len

    def _ways(self, axes, without):
        return math.prod(self.mesh[axis] for axis in axes if axis not in without)


_LAYERS = ("blocks/", "tail/")


def model_flops(work: Work) -> float:
    """FLOPs of a step over all chips: three forward passes, as zoo.summary counts them; read-out where there is one."""
    return 3 * _tokens_a_step(work) * sum(_forward(work).values())


def hardware_flops(work: Work) -> float:
    """FLOPs that run: model_flops, every score where causal ones are masked and not skipped, and what is recomputed.

    remat "full": the blocks' forward pass once more, without a product whose result only the stream takes up (the
    FFN's last one under pre-norm); "dots": scores and value mix; "minimal", "offload": scores. A kernel that never
    writes scores makes them anew in its backward pass. Splash runs two products forward (again under "full" and
    "dots") and seven backward, each over the blocks that a query sees.
    """
    config, remat = work.config, work.config.remat
    parts = _forward(work)
    head = parts.pop("read-out")
    del parts["scores and value mix"]
    scores = 4.0 * config.num_layers * config.num_heads * config.head_dim * work.train.seq_len  # two products
    down = 2.0 * config.num_layers * config.mlp_dim * config.embed_dim * max(1, config.num_experts)
    out = 2.0 * config.num_layers * config.num_heads * config.head_dim * config.embed_dim
    pre = config.norm_placement == "pre"
    unread = (down + (out if config.parallel_block else 0)) if pre else 0.0
    weights = sum(parts.values())
    again = weights - unread if remat == "full" else 0.0
    if work.kernel == "splash":
        attention = scores / 2 * work.blocks_run * (9 + 2 * (remat in ("full", "dots")))
    else:
        attention = scores * (3 + {"none": 0.0, "full": 1.0, "dots": 1.0}.get(remat, 0.5))
        if not work.scores_in_memory:
            attention += scores / 2 if remat in ("none", "full", "dots") else 0.0
    return _tokens_a_step(work) * (3 * (weights + head) + again + attention)


def traffic(work: Work) -> dict[str, float]:
    """HBM bytes a chip and step, each array written once and read once by each product that takes it.

    weights: gathered ones written, read by the forward pass, by the backward pass for inputs, again where recomputed;
    gradients of kernels written and read. activations: a block's reads and writes, twice as many backward, once more
    where recomputed. scores: float32 ones written and read, weights written and read. read-out: logits three times,
    their gradient twice, the kernel for each chunk. optimizer: parameters and moments read and written, the gradient
    read twice (its norm first); sums of micro-batches read and written.
    """
    config, train, w, m = work.config, work.train, work.width, work.train.accumulate
    D, N, K, H = config.embed_dim, config.num_heads, config.num_kv_heads, config.head_dim
    U, F = 1 + config.gated, config.mlp_dim * max(1, config.num_experts)
    t, L, tp = work.tokens, config.num_layers, work.tensor
    again = {"full": 1.0}.get(config.remat, 0.25 if config.remat != "none" else 0.0)
    numbers, layer = work.numbers(), work.layer_numbers()
    block = 8 * D + (D + 2 * (N + 2 * K) * H + 2 * (N + K) * H + 2 * N * H + (2 * U + 1) * F) / tp
    head = config.hidden_width * config.vocab_size / tp
    parts = {
        "weights": m * L * layer * w * ((4 if work.gathered else 0) + 2 + min(again, 1) + 2),
        "activations": m * t * L * block * w * (3 + again),
        "scores": (3 + min(again * 4, 1)) * m * t * L * 12.0 * work.scores_a_token if work.scores_in_memory else 0.0,
        "read-out": m * (work.logits * (3 * 4 + 2 * w) + work.chunks * head * (2 * w + 8)),
        "optimizer": numbers * 4.0 * ((8 if train.optimizer == "adamw" else 4) + (2 * m if m > 1 else 0)),
    }
    return {name: size for name, size in parts.items() if size}


def expected_collectives(work: Work) -> list[Collective]:
    """Collectives of a step as the program asks for them, by formula.

    Storage axes (fsdp, sequence): each kernel gathered forward and backward in the dtype of products (the read-out's
    once, for all chunks), its gradient (g bytes a number) scattered, each micro-batch; vectors gathered, and their
    gradients summed, once a micro-batch for all layers; of an embedding the rows travel, not the table. Axes of rows
    and tokens that store nothing: sums of what each chip holds of the gradients. tensor: sums of [t, D]: two a layer
    forward, two backward, one more under remat "full", one each for embedding and read-out. sequence: keys and values
    go round a ring forward and backward, and with them their gradients.

    Of docs/plans libtpu's programs gather and scatter that much (tests/train/test_plan_memory.py), and otherwise do as
    they like with two things: a scatter whose parts are no multiple of a tile is padded, and neighbours exchange what
    was padded (permutes); in nine of the fifteen the rows of an embedding travel forward alone, and the gradient of its
    table, 4 V D / tp bytes whole on each chip, is summed once a step, over slices too.
    """
    config, train, w, g, mesh = work.config, work.train, work.width, work.gradient_bytes, work.mesh
    m, L, D, t = train.accumulate, config.num_layers, config.embed_dim, work.tokens
    found: list[Collective] = []

    def add(kind, axes, payload, count, source):
        if payload and any(mesh.get(axis, 1) > 1 for axis in axes):
            found.append(make(kind, axes, mesh, payload, count, source))

    for path, size, axes in work.leaves():
        storage = tuple(axis for axis in axes if axis in partition.STORAGE)
        others = tuple(axis for axis in (*partition.ROW_AXES, "sequence") if axis not in storage)
        local = size / math.prod(mesh[axis] for axis in axes if axis not in storage)
        layers = L if path.startswith(_LAYERS) and not config.shared_layers else 1
        held = local / math.prod(mesh[axis] for axis in storage)
        read_out = path.startswith(("lm_head", "masked_lm"))
        if path.endswith(("/scale", "/bias")):
            add("all-gather", axes, 4 * size, m, path)
            add("all-reduce", (*partition.ROW_AXES, "sequence"), 4 * size, m, path)
            continue
        if storage and path.startswith("embed/token"):
            add("all-to-all", storage, t * D * w, m, path)
            add("all-to-all", storage, t * D * 4, m, path)
            if config.head in ("lm", "masked_lm") and config.tie_embeddings:
                add("all-gather", storage, w * local, m, path)
                add("reduce-scatter", storage, g * local, m, path)
        elif storage and not path.endswith("/embedding"):
            add("all-gather", storage, w * local / layers, (1 if read_out else 2) * layers * m, path)
            add("reduce-scatter", storage, g * local / layers, layers * m, path)
        add("all-reduce", others, g * held / layers, layers * m, path)
    sums = 4 + (config.remat == "full")
    add("all-reduce", ("tensor",), t * D * w, m * L * sums, "sums of split products")
    add("all-reduce", ("tensor",), t * D * 4, m * (1 + work.read_out_share), "embedding and read-out")
    pairs = 2 * config.num_kv_heads * config.head_dim / (work.tensor if config.num_kv_heads % work.tensor == 0 else 1)
    hops = mesh.get("sequence", 1) * (3 + (config.remat == "full"))
    add("collective-permute", ("sequence",), t * pairs * w, m * L * hops, "keys and values, and their gradients")
    return found


def _tokens_a_step(work):
    return work.train.batch_size * work.train.seq_len


def _forward(work):
    parts = dict(forward_flops(work.config, work.train.seq_len))
    return parts | {"read-out": parts["read-out"] * work.read_out_share}


@lru_cache(maxsize=64)
def _neutral(config: ModelConfig) -> ModelConfig:
    """The config with the fields set back that change no parameter."""
    return config.replace(remat="none", dtype="float32", attention_kernel="auto")


@lru_cache(maxsize=16)
def _shapes(config: ModelConfig) -> tuple[tuple[str, tuple[int, ...]], ...]:
    import jax

    import zoo

    leaves = jax.tree_util.tree_leaves_with_path(zoo.create(config).init_shapes())
    return tuple((partition.path_string(path), leaf.shape) for path, leaf in leaves)


@lru_cache(maxsize=256)
def _placed(config, mesh):
    sizes = dict(mesh)
    found = []
    for path, shape in _shapes(config):
        spec = partition.leaf_spec(path, shape, sizes)
        axes = tuple(a for entry in spec for a in partition.axes_of(entry) if sizes.get(a, 1) > 1)
        found.append((path, math.prod(shape), axes))
    return tuple(found)
