"""What each part of a step costs, over the distinct meshes of a table, each cost once per distinct cause.

A micro-batch of a block, of the embedding or of the head: its computations, what overlap leaves of its collectives,
and the gathering of its weights.  A step: gradients of a stage.  A block's cost depends on how the groups that it
talks to lie on the tiers, not on the degrees of the other axes; weights do not depend on the micro-batch.
``Remembered`` computes a cost on rows that differ in its causes and copies it to the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from weft.cluster.calibration import Calibration, calibration
from weft.cluster.spec import Accelerator, Cluster
from weft.collectives.cost import VENDORS, Network, collective_s, communicator_bytes, lower_bound_s
from weft.estimation.kernels import KernelModel, expected_largest
from weft.layout.mesh import Spread, degrees, spread
from weft.layout.operations import (
    Collective,
    Computation,
    FlashAttention,
    Gemm,
    Operations,
    Pass,
    Phase,
    Sizes,
    distinct_matrices,
    expert_rows,
    scan_share,
    split,
)
from weft.layout.spec import AXES, TensorOverlap
from weft.layout.stages import StageTable
from weft.layout.step import BLOCKWISE, SCALAR_BYTES, SOFTWARES, Reduction, Software, TrainingStep, Unit
from weft.layout.table import Floats, Index, Ints, LayoutTable, collapse
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, FeedForward, LatentAttention, MixtureOfExperts

MODES = len(TensorOverlap)
QUEUEING = 3.0
"""Exponent of the norm that joins the time of the host and that of the device.  Range: 2 to 6.  Source: of 100 jobs of
one node that ran in several layouts (vTrain), the ratio of two layouts is off by 5.3 % with 3, 5.7 with 4, 6.3 with 6
and 7.1 with the larger of both."""
LATENT_UPS = ("q", "q_up", "kv_up", "rotary")
"""What makes queries, keys and values of latent attention, as Megatron-Core's mla_up_proj repeats it."""


@dataclass(slots=True)
class PartCosts:
    """Seconds (and FLOPs) of one block, or of the embedding or head, for one micro-batch on one rank.

    Arrays hold one value per distinct mesh; ``tensor_*`` have a leading axis over ``TensorOverlap``.
    ``*_exposed_s`` is not hidden by overlap inside the block, ``tensor_hidden_s`` is.  ``linear_s`` is what linear
    layers take of the forward pass; ``core_s`` and ``cheap_s`` are what selective recomputation runs again.
    ``*_bound_s`` (tensor: x; contract: y) are lower bounds at peak figures.
    """

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    linear_s: Floats
    core_s: Floats
    cheap_s: Floats
    tensor_forward_s: Floats
    tensor_backward_s: Floats
    tensor_hidden_s: Floats
    context_forward_s: Floats
    context_backward_s: Floats
    expert_forward_s: Floats
    expert_backward_s: Floats
    flops: Floats
    core_flops: Floats
    math_bound_s: Floats
    tensor_bound_s: Floats
    contract_bound_s: Floats
    context_bound_s: Floats
    expert_bound_s: Floats

    def add(self, name: str, amount: Floats) -> None:
        """Add to one of the figures."""
        setattr(self, name, getattr(self, name) + amount)


class PartTimer:
    """Times one part of a step on every mesh of its table; ``costs`` are what it takes.

    ``gemms`` and ``attention`` are device times by phase, which collectives hide behind; ``routed`` is the device time
    of what waits for the router, forward and backward.
    """

    def __init__(
        self,
        kernels: KernelModel,
        network: Network,
        step: TrainingStep,
        operations: Operations,
        spreads: dict[Any, Spread],
    ) -> None:
        self.kernels, self.network, self.step, self.sizes = kernels, network, step, step.sizes
        self.operations, self._spreads = operations, spreads
        length = len(step.table)
        shapes = dict.fromkeys(("tensor_forward_s", "tensor_backward_s", "tensor_hidden_s"), (MODES, length))
        # 1. Computations first: collectives hide behind the device time of products and attention.
        self.costs = PartCosts(**{name: np.zeros(shapes.get(name, length)) for name in PartCosts.__slots__})
        self.gemms: dict[tuple[str, Phase], Floats] = {}
        self.attention: dict[Phase, Floats] = {}
        self.routed = {"forward": self.zeros(), "backward": self.zeros()}
        self._computations()
        # 2. The host's launches, which may be slower than the device.
        idle = self._launch_floor()
        # 3. Collectives, as far as the group has more than one rank.
        for collective in operations.collectives:
            if np.any((collective.elements > 0) & (self.spread(collective.axes).size > 1)):
                self._collective(collective)
        # While a rank waits for its host, its collectives go on: first those that nothing else hides.
        costs = self.costs
        forward, backward = costs.tensor_forward_s - idle[0], costs.tensor_backward_s - idle[1]
        costs.tensor_forward_s, costs.tensor_backward_s = np.maximum(forward, 0.0), np.maximum(backward, 0.0)
        left = np.minimum(forward, 0.0) + np.minimum(backward, 0.0)
        costs.tensor_hidden_s = np.maximum(costs.tensor_hidden_s + left, 0.0)

    def zeros(self) -> Floats:
        return np.zeros(len(self.step.table))

    def spread(self, axes: tuple[str, ...]) -> Spread:
        """How the groups over ``axes`` lie on the tiers."""
        if axes not in self._spreads:
            self._spreads[axes] = spread(self.step.table, axes, self.network.spans)
        return self._spreads[axes]

    def _computations(self) -> None:
        """Add the device time of every computation."""
        costs, computations = self.costs, self.operations.computations
        peak, half = self.kernels.peak(core=False), self.kernels.peak(core=True)
        latent = any(isinstance(computation, Gemm) and computation.name == "kv_up" for computation in computations)
        repeated = LATENT_UPS if latent and self.step.software.repeats_latents else ()
        for computation in computations:
            seconds, forward = self.seconds(computation), computation.phase == "forward"
            costs.add(f"{computation.phase.replace('-', '_')}_s", seconds)
            # What selective recomputation runs again, which is part of the forward pass.
            if forward and isinstance(computation, Gemm | Pass) and computation.name in repeated:
                costs.cheap_s += seconds
            if isinstance(computation, Pass):
                if forward and computation.replay != "full":
                    costs.add(f"{computation.replay}_s", seconds)
                continue
            linear = False
            if isinstance(computation, Gemm):
                flops, linear = (
                    2.0 * computation.m * computation.n * computation.k * computation.copies,
                    computation.role == "linear",
                )
                self.gemms[computation.name, computation.phase] = seconds
                if computation.routed:
                    self.routed[_direction(computation.phase)] = self.routed[_direction(computation.phase)] + seconds
            else:
                flops = computation.flops
                if isinstance(computation, FlashAttention):
                    self.attention[computation.phase] = seconds
            costs.math_bound_s += flops / (peak if linear else half)
            if forward:
                costs.flops += flops
                if linear:
                    costs.linear_s += seconds
                elif isinstance(computation, Gemm) and computation.role == "core":
                    costs.core_s += seconds
                    costs.core_flops += flops

    def seconds(self, operation: Computation) -> Floats:
        """Device time; the busiest rank of experts sets the pace of theirs (``expert_spread``).  The product of a
        rank's only expert is not a grouped one."""
        seconds = self.kernels.seconds(operation)
        if not (isinstance(operation, Gemm) and operation.routed):
            return seconds
        constants = self.kernels.calibration
        grouped = np.where(operation.copies > 1, constants.expert_share, 1.0)
        # Standard deviations of the busiest rank above the mean; that of the mean of a rank's experts is smaller by
        # the root of their number.
        ranks, where = np.unique(self.sizes.expert, return_inverse=True)
        farthest = constants.expert_spread * np.array([expected_largest(int(count)) for count in ranks])[where]
        busiest = 1.0 + farthest / np.sqrt(np.maximum(operation.copies, 1.0))
        return seconds * busiest / grouped

    def _launch_floor(self) -> tuple[Floats, Floats]:
        """The host cannot launch kernels faster than one per ``launch_s``; what the device waits for it
        (``_waiting``), forward and backward."""
        costs, constants = self.costs, self.kernels.calibration
        floor = constants.launch_s * constants.launches_per_step
        launched = {(way, behind): self.zeros() for way in ("forward", "backward") for behind in (False, True)}
        for operation in (*self.operations.computations, *self.operations.collectives):
            # Launches of an operation: one, except where it is a loop over ring steps, attention calls or experts.
            kernels = self.zeros() + 1.0
            if isinstance(operation, Collective):
                kernels *= (operation.elements > 0) & (self.spread(operation.axes).size > 1)
                if operation.kind == "exchange":
                    kernels *= self.sizes.context - 1
            elif isinstance(operation, FlashAttention):
                kernels *= operation.calls
            elif isinstance(operation, Pass):
                kernels *= operation.bytes > 0
            elif isinstance(operation, Gemm) and operation.routed:
                kernels *= operation.copies * self.kernels.launches
            launched[_direction(operation.phase), isinstance(operation, Gemm) and operation.routed] += kernels * floor
        backward = costs.input_gradient_s + costs.weight_gradient_s
        idle = []
        # The experts' kernels queue apart: their launches begin when the router's counts have come.
        for way, device in (("forward", costs.forward_s), ("backward", backward)):
            before_s = _waiting(launched[way, False], device - self.routed[way])
            idle.append(before_s + _waiting(launched[way, True], self.routed[way]))
        costs.forward_s = costs.forward_s + idle[0]
        # Waiting is spread over both halves of the backward pass in proportion to their device time.
        slow = np.where(backward > 0, (backward + idle[1]) / np.maximum(backward, 1e-12), 1.0)
        costs.input_gradient_s = costs.input_gradient_s * slow
        costs.weight_gradient_s = costs.weight_gradient_s * slow
        return idle[0], idle[1]

    def _collective(self, collective: Collective) -> None:
        group, constants, costs = self.spread(collective.axes), self.kernels.calibration, self.costs
        once = collective.copies if constants.dispatch_once else 0.0
        seconds = collective_s(collective.kind, collective.bytes, group, self.network, copies=once)
        bound = np.where(group.size > 1, lower_bound_s(collective.kind, collective.bytes, group, self.network), 0.0)
        direction = _direction(collective.phase)
        if collective.kind == "exchange":
            # Ring attention: each of the context - 1 steps hides behind the attention of the block before it.
            steps = self.sizes.context - 1
            attention = self.attention.get(collective.phase, self.zeros()) / self.sizes.context
            costs.add(f"context_{direction}_s", steps * np.maximum(seconds - attention, 0.0))
            costs.context_bound_s += steps * bound
        # Each axis has its own figure, so that bounds can take the busiest axis and reports name it.
        elif "context" in collective.axes:
            costs.add("context_bound_s", bound)
            costs.add(f"context_{direction}_s", seconds)
        elif collective.axes[0].startswith("expert"):
            costs.add("expert_bound_s", bound)
            costs.add(f"expert_{direction}_s", (1.0 - constants.expert_overlap) * seconds)
        else:
            costs.add("tensor_bound_s" if "x" in collective.axes else "contract_bound_s", bound)
            exposed: Floats = getattr(costs, f"tensor_{direction}_s")
            for mode, hidden in enumerate(self._hidden(collective, seconds, group.size)):
                exposed[mode] += seconds - hidden
                costs.tensor_hidden_s[mode] += hidden

    def _hidden(self, collective: Collective, seconds: Floats, size: Floats) -> tuple[Floats, Floats, Floats]:
        """What each mode of ``TensorOverlap`` hides of a tensor-parallel collective."""
        nothing = np.zeros_like(seconds)
        if collective.behind is None:
            return nothing, nothing, nothing
        opposite: dict[Phase, Phase] = {"input-gradient": "weight-gradient", "weight-gradient": "input-gradient"}
        gathers_output = collective.kind == "all-gather" and collective.phase == "input-gradient"
        # ``backward``: the collective runs beside the other gradient's product, which does not wait for it (AxoNN's
        # OAR; Megatron's asynchronous tensor-parallel communication); a gather of the output's gradient feeds both
        # products, so that nothing is left to hide it.
        beside = nothing
        if collective.phase != "forward" and not gathers_output:
            gemm = self.gemms.get((collective.behind, opposite[collective.phase]))
            beside = nothing if gemm is None else np.minimum(seconds, gemm)
        gemm = self.gemms.get((collective.behind, collective.phase))
        if gemm is None or collective.kind == "all-reduce" or collective.phase == "weight-gradient":
            return nothing, beside, beside
        # ``full``: in as many chunks as ranks, all but one chunk runs beside the product's other chunks.
        return nothing, beside, np.maximum(beside, np.minimum(seconds * (size - 1) / size, gemm))


def _waiting(launched: Floats, device: Floats) -> Floats:
    """How much longer than ``device`` a device takes whose host launches for ``launched``: both together take about as
    long as the longer where one is much shorter, and a quarter more where both are alike, since short kernels wait for
    their launch while long ones let launches queue."""
    # A p-norm of both times, scaled by the longer so that the powers neither overflow nor vanish.
    longest = np.maximum(np.maximum(launched, device), 1e-30)
    powers = (launched / longest) ** QUEUEING + (device / longest) ** QUEUEING
    waiting: Floats = longest * powers ** (1.0 / QUEUEING) - device
    return waiting


def _direction(phase: Phase) -> str:
    return "forward" if phase == "forward" else "backward"


# Weights and gradients ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShardCosts:
    """Seconds in one micro-batch to gather a part's weights over their shards, forward, backward and to replay,
    and to scatter its gradients; the least that the first two and the last take at peak."""

    forward_s: Floats
    backward_s: Floats
    replay_s: Floats
    scatter_s: Floats
    bound_s: Floats


def shard_costs(units: Iterable[Unit], recipe: Recipe, table: LayoutTable, network: Network) -> ShardCosts:
    """Costs of a part's units of sharding, one after the other."""
    forward, backward, replay, scatter, bound = (np.zeros(len(table)) for _ in range(5))
    for unit in units:
        group = spread(table, unit.axes, network.spans)
        weights = unit.elements * recipe.element_bytes
        gather_s = unit.calls * collective_s("all-gather", weights, group, network)
        gradients = unit.elements * recipe.gradient_bytes
        forward += unit.forward * gather_s
        backward += unit.backward * gather_s
        replay += unit.replay * gather_s
        scatter += unit.calls * collective_s("reduce-scatter", gradients, group, network)
        least = unit.calls * lower_bound_s("all-gather", weights, group, network)
        bound += (unit.forward + unit.backward + 1) * np.where(group.size > 1, least, 0.0)
    return ShardCosts(forward, backward, replay, scatter, bound)


@dataclass(frozen=True, slots=True)
class GradientCosts:
    """Gradients of the largest stage that a rank keeps (``elements``), their ``replicas``, whether ``zero`` shards
    them (``by_zero``, 0 or 1), and seconds per step in so many ``buckets``: ``all_reduce_s`` where they are
    replicated, else ``scatter_s``, and ``gather_s`` for the updated parameters."""

    elements: Floats
    replicas: Floats
    by_zero: Floats
    all_reduce_s: Floats
    scatter_s: Floats
    gather_s: Floats
    buckets: Floats


def gradient_costs(reduction: Reduction, recipe: Recipe, table: LayoutTable, network: Network) -> GradientCosts:
    """Costs of synchronising a stage's gradients over their replicas."""
    group, buckets = spread(table, reduction.axes, network.spans), reduction.buckets
    gradient_bytes = reduction.elements / buckets * recipe.gradient_bytes
    gradients, weights = (
        reduction.padded / buckets * width for width in (recipe.gradient_bytes, recipe.element_bytes)
    )
    return GradientCosts(
        elements=reduction.elements,
        replicas=group.size,
        by_zero=np.full_like(group.size, float(reduction.by_zero)),
        all_reduce_s=buckets * collective_s("all-reduce", gradient_bytes, group, network),
        scatter_s=buckets * collective_s("reduce-scatter", gradients, group, network),
        gather_s=buckets * collective_s("all-gather", weights, group, network),
        buckets=buckets,
    )


# Memory ------------------------------------------------------------------------------------------
#
# Activation sizes follow Korthikanti et al. (arXiv 2205.05198, section 4) term by term, so that an unfused GPT
# block with dropout keeps s b h (34 + 5 a s / h) bytes, and a flash one drops the score terms.


SAVED_BYTES = {"fp8": 1.0, "fp8-rowwise": 1.0, "mxfp8": 1.0, "nvfp4": 1.0, "int8": 1.0}
"""Bytes kept per element of a linear layer's input where it is quantized (the wgrad copy is 8-bit)."""


EAGER_NORM_BYTES = 8.0
"""Bytes kept per element by a norm of separate kernels: its input, in 16 and in 32 bits, and its scaled result."""

WORKSPACE_BYTES, OLD_WORKSPACE_BYTES = 32 * 2.0**20, 8 * 2.0**20
"""cuBLAS's workspace of one thread from Hopper on, and before (PyTorch's ``CublasHandlePool.cpp``; Transformer
Engine's ``cpp_extensions/gemm.py``)."""


def workspace_bytes(chip: Accelerator) -> float:
    """cuBLAS's workspace of one thread; 0 where there is no cuBLAS."""
    if chip.vendor.lower() != "nvidia":
        return 0.0
    return WORKSPACE_BYTES if chip.fp8_flops else OLD_WORKSPACE_BYTES


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one block and micro-batch on one rank: all kept, after selective recomputation, and the
    input alone; and ``gradients``, the most that a block's backward pass needs beside them."""

    none: Floats
    selective: Floats
    full: Floats
    gradients: Floats

    def __add__(self, second: Activations) -> Activations:
        """Of one block behind another: what both keep, and the most that one of them allocates."""
        return Activations(
            none=self.none + second.none,
            selective=self.selective + second.selective,
            full=self.full + second.full,
            gradients=np.maximum(self.gradients, second.gradients),
        )


def block_activations(block: Block, recipe: Recipe, sizes: Sizes, software: Software = BLOCKWISE) -> Activations:
    """Activation bytes of one block for each recomputation."""
    hidden = sizes.own_tokens * block.hidden / sizes.y
    linear_bytes = SAVED_BYTES.get(recipe.precision, recipe.element_bytes) if software.quantized else None
    norm_inputs = (EAGER_NORM_BYTES if software.eager_norms else recipe.element_bytes) * block.norms * hidden
    masks = (float(block.branches) if recipe.dropout else 0.0) * hidden
    cheap, linear = _linear_inputs(block, sizes, linear_bytes or recipe.element_bytes, software)
    operands, outputs, core = _attention_bytes(block, recipe, sizes, software)
    stored = norm_inputs + masks + linear + operands + outputs
    inputs, halves = _activation_inputs(block, recipe, sizes)
    stored = stored + inputs + _scan_operands(block, recipe, sizes)
    if software.eager_activations:
        stored = stored + halves
    full = recipe.element_bytes * hidden
    if software.by_product:
        selective = full + core + recipe.element_bytes * _kept_products(block, sizes)
    else:
        selective = stored + cheap + core - (core if recipe.attention == "unfused" else cheap)
        if software.eager_norms and recipe.attention == "flash":
            selective = selective - (EAGER_NORM_BYTES - recipe.element_bytes) * block.norms * hidden
        if software.repeats_latents and isinstance(block.attention, LatentAttention) and recipe.attention == "flash":
            selective = selective - operands
    gradients = _gradient_bytes(block, recipe, sizes, software)
    return Activations(none=stored + cheap + core, selective=selective, full=full, gradients=gradients)


def _kept_products(block: Block, sizes: Sizes) -> Floats:
    """Elements of every second product, the first one included, except the last, which backward does not need,
    and of attention's output (torchtitan's ``selective_ac_option = op``); none are joined."""
    attention, feed = block.attention, block.feed_forward
    widths: list[Floats] = []
    for linear in block.linears():
        rows = expert_rows(block, sizes) if linear.part == "expert" else sizes.tokens
        outputs: tuple[float, ...] = (float(linear.outputs),)
        if linear.name == "qkv" and attention is not None:
            key, value = attention.kv_heads * attention.qk_dim, attention.kv_heads * attention.v_dim
            outputs = (linear.outputs - key - value, key, value)
        elif linear.name.endswith("fc1"):
            layer = feed
            if isinstance(feed, MixtureOfExperts):
                layer = feed.shared if linear.part == "shared_expert" else feed.expert
            if isinstance(layer, FeedForward) and layer.gated:
                outputs = (linear.outputs / 2.0,) * 2
        _, cut = split(linear, sizes)
        widths += [rows * width / cut for width in outputs]
    kept = sum(widths[:-1:2], np.zeros_like(sizes.x))
    if attention is None:
        return kept
    return kept + sizes.tokens * attention.heads / sizes.x * attention.v_dim


def _gradient_bytes(block: Block, recipe: Recipe, sizes: Sizes, software: Software) -> Floats:
    """The most that a block's backward pass allocates at once: at its activation function, whose inputs' gradients
    are as large as they are, or at the layer before it, which gathers its input again over sequence parallelism
    and makes its gradient, one of each product; or at attention, where context parallelism gathers all keys and
    values.  The gradient of what the block adds to is there all the time."""
    width = recipe.element_bytes
    stream = width * sizes.own_tokens * block.hidden / sizes.y
    gathered = width * sizes.tokens * block.hidden / sizes.y * (sizes.own_tokens < sizes.tokens)
    inputs = (1.0 if software.joined else 2.0) * gathered
    stays_gathered = 1.0 if software.keeps_gathered else 0.0
    widest = np.maximum(_activation_inputs(block, recipe, sizes)[0], (1.0 - stays_gathered) * gathered + inputs)
    if software.context_gather:
        widest = np.maximum(widest, _gathered_keys(block, recipe, sizes))
    return stream + widest


def _gathered_keys(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """Keys and values of the whole sequence, for each head of a query, as they arrive and in order, and the same of
    their gradients."""
    attention = block.attention
    if attention is None:
        return np.zeros_like(sizes.x)
    features = attention.heads / sizes.x * (attention.qk_dim + attention.v_dim)
    gathered_bytes = recipe.element_bytes * sizes.tokens * sizes.context * features
    return np.where(sizes.context > 1, 4.0 * gathered_bytes, 0.0)


def _linear_inputs(block: Block, sizes: Sizes, element_bytes: float, software: Software) -> tuple[Floats, Floats]:
    """Inputs that linear layers keep for their weight gradient: those that recomputing norms and the experts'
    activation makes again, and others.

    Layers that share an input (latent attention's down-projections, router and experts) keep it once.
    """
    cheap, kept = np.zeros_like(sizes.x), np.zeros_like(sizes.x)
    sources: set[str] = set()
    for linear in block.linears():
        source = SOURCES.get(linear.name, linear.name)
        if linear.part == "expert":
            rows = expert_rows(block, sizes)
        elif linear.part == "router":
            rows = sizes.routed_tokens
        elif linear.kind == "transposed" or (linear.kind == "normal" and software.keeps_gathered):
            rows = sizes.tokens
        else:
            rows = sizes.own_tokens
        inputs, _ = split(linear, sizes)
        saved = element_bytes * rows * linear.inputs / inputs
        if source in sources:
            # Where y cuts features, what is routed is no longer the norm's output, which shared experts keep.
            cheap = cheap + saved * (sizes.y > 1) * (linear.name == "shared_expert.fc1")
            continue
        sources.add(source)
        if source in ("norm1", "norm2", "expert.fc2"):
            cheap = cheap + saved
        else:
            kept = kept + saved
    return cheap, kept


SOURCES = dict.fromkeys(("q_down", "kv_down", "qkv", "q", "in_proj"), "norm1")
SOURCES |= dict.fromkeys(("fc1", "router", "shared_expert.fc1", "latent_down"), "norm2")
"""The norms that feed linear layers, by the layers' names."""


def _attention_bytes(block: Block, recipe: Recipe, sizes: Sizes, software: Software) -> tuple[Floats, Floats, Floats]:
    """What the attention core keeps: its operands, its second output, and its scores."""
    attention = block.attention
    if attention is None:
        return np.zeros_like(sizes.x), np.zeros_like(sizes.x), np.zeros_like(sizes.x)
    # Queries, keys and values, and what gates the output; Ulysses and ring both keep the rank's own share.
    heads, kv_heads = attention.heads / sizes.x, np.maximum(attention.kv_heads / sizes.x, 1.0)
    queries = heads * attention.qk_dim
    if isinstance(attention, Attention) and attention.gated:
        queries = queries + 2.0 * attention.heads / sizes.x * attention.v_dim
    operands: Floats = queries + kv_heads * (attention.qk_dim + attention.v_dim)
    # Context parallelism keeps the output twice, for its own backward pass and as the projection's input: Ulysses
    # before and after its exchange; Transformer Engine's ring converts it to 16 bits twice (AttnFuncWithCPAndKVP2P).
    twice = (sizes.context > 1) & ((sizes.ulysses > 0) | software.ring_outputs)
    outputs = recipe.element_bytes * twice * sizes.tokens * attention.heads / sizes.x * attention.v_dim
    # The log-sum-exp of a fused core; softmax output, dropout mask and dropout output of an unfused one (5 a s / h).
    scores = 4.0 * sizes.tokens * heads
    if recipe.attention != "flash":
        scores = (5.0 if recipe.dropout else 2.0) * sizes.tokens * recipe.sequence * heads
    return recipe.element_bytes * sizes.tokens * operands, outputs, scores


def _scan_operands(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """What a state space keeps: the output of its input projection, and of the recurrence before its gated norm.
    Backward makes the convolution's output, the states of chunks and their products again (Dao & Gu 2024, arXiv
    2405.21060, section 6)."""
    state = block.state_space
    if state is None:
        return np.zeros_like(sizes.x)
    heads, groups = scan_share(state, sizes)
    projected = heads * (2.0 * state.head_dim + state.scalars) + 2.0 * groups * state.state
    return recipe.element_bytes * sizes.tokens * (projected + heads * state.head_dim)


def _activation_inputs(block: Block, recipe: Recipe, sizes: Sizes) -> tuple[Floats, Floats]:
    """Outputs of the first feed-forward layers, which the activation's backward needs; and outputs of gated layers'
    activation function, before they are multiplied by the other half."""
    layer = block.feed_forward
    parts: list[tuple[Floats, FeedForward, Floats]] = []
    if isinstance(layer, FeedForward):
        parts.append((sizes.tokens, layer, sizes.x))
    elif layer is not None:
        parts.append((expert_rows(block, sizes), layer.expert, sizes.expert_tensor))
        if layer.shared is not None:
            parts.append((sizes.tokens, layer.shared, sizes.x))
    inputs, halves = np.zeros_like(sizes.x), np.zeros_like(sizes.x)
    for rows, part, cut in parts:
        inputs = inputs + recipe.element_bytes * rows * part.intermediate * (2.0 if part.gated else 1.0) / cut
        halves = halves + recipe.element_bytes * rows * part.intermediate * float(part.gated) / cut
    return inputs, halves


# Distinct meshes ---------------------------------------------------------------------------------

T = TypeVar("T")
PART_COLUMNS = ("x", "y", "context", "expert", "expert_tensor", "micro_batch", "sequence_parallel", "context_method")
PART_AXES = (("x",), ("y",), ("x", "y"), ("context",), ("expert",), ("expert_tensor",))
COMMUNICATOR_COLUMNS = (
    *("x", "y", "z", "data", "pipeline", "context", "expert", "expert_tensor"),
    *("sequence_parallel", "context_method"),
)
WEIGHT_COLUMNS = ("x", "y", "context", "z", "expert", "expert_tensor")
KEPT = 65536
"""Costs of distinct causes that are kept."""
SHARD_AXES = (("shard",), ("expert_shard",))
COPY_AXES = (
    *(("replica",), ("expert_replica",)),
    *(("copies",), ("token_copies",), ("head_copies",), ("router_copies",)),
)
SHARDING = ("shard", "replica", "expert_shard", "expert_replica")
"""Groups that divide weights and what belongs to them."""


class Remembered:
    """Results by their causes.

    Results are arrays whose last axis is the row, or tuples or dataclasses of them.
    """

    def __init__(self) -> None:
        self._result: Any = None
        self._places: dict[bytes, int] = {}

    def once(self, causes: Sequence[Ints], compute: Callable[[Index], T]) -> T:
        """A result computed on one row of each distinct combination of causes, and copied to all rows; what is known
        from earlier calls is not computed again."""
        groups = collapse(causes)
        keys = list(map(bytes, np.stack([cause[groups.first] for cause in causes], axis=1)))
        if fresh := [i for i, key in enumerate(keys) if key not in self._places]:
            # Over the limit all is forgotten: arrays stay bounded, and rows are appended without moving those before.
            if len(self._places) + len(fresh) > KEPT:
                self._places.clear()
                fresh = list(range(len(keys)))
            result = compute(groups.first[fresh])
            if self._places:
                result = _each([self._result, result], lambda some: np.concatenate(some, axis=-1))
            self._result = result
            for i in fresh:
                self._places[keys[i]] = len(self._places)
        rows = np.fromiter(map(self._places.__getitem__, keys), dtype=np.intp)[groups.group]
        copied: T = _each([self._result], lambda some: some[0][..., rows])
        return copied


def _each(results: list[Any], change: Callable[[list[Floats]], Floats]) -> Any:
    """Results of the same kind, made one array by array."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(_each(list(some), change) for some in zip(*results, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in fields(first)]
        return type(first)(**{name: _each([getattr(result, name) for result in results], change) for name in names})
    return change(results)


class CostModel:
    """What meshes cost a job on a cluster, by the constants of its software; remembers what it was asked.

    Args:
        job: model and recipe.
        cluster: accelerators and tiers.
        constants: calibration, which also says what the software does with weights; the shipped one of the
            accelerator by default.

    Raises:
        Unsupported: the accelerator lacks the recipe's precision.
    """

    def __init__(self, job: Job, cluster: Cluster, constants: Calibration | None = None) -> None:
        self.job, self.cluster = job, cluster
        self.constants = constants or calibration(cluster.accelerator.name)
        software = SOFTWARES[self.constants.software]
        software = replace(software, eager_norms=software.eager_norms and self.constants.norm_overhead > 1.0)
        self.software = software if software.by_matrix else replace(software, pieces=self.constants.shard_collectives)
        self.network = Network.of(cluster, self.constants)
        self.kernels = KernelModel(
            cluster.accelerator, self.constants, job.recipe.precision, job.recipe.gradient_bytes, cluster.count
        )
        self.kernels.peak(core=False)
        self.workspace_bytes = workspace_bytes(cluster.accelerator)

    @property
    def network(self) -> Network:
        """What prices collectives; on another nothing is remembered."""
        return self._network

    @network.setter
    def network(self, network: Network) -> None:
        self._network = network
        self.parts, self.shards, self.communicators = Remembered(), Remembered(), Remembered()

    def step(self, mesh: LayoutTable) -> TrainingStep:
        return TrainingStep(self.job.model, self.job.recipe, mesh, self.software)

    def causes(self, mesh: LayoutTable, names: Sequence[str], groups: Iterable[tuple[str, ...]]) -> list[Ints]:
        """Columns of a table, and how groups over axes lie on the tiers."""
        spreads = [spread(mesh, axes, self.network.spans) for axes in groups]
        columns = [mesh.column(name) for name in names]
        return columns + [members.astype(np.int64) for group in spreads for members in group.members]


class Meshes:
    """The distinct meshes of a table of layouts: sizes and costs, an array over the meshes each.

    On one rank: ``activations`` of each kind of block and of a multi-token-``prediction`` module, ``logits``, what the
    head reads of a micro-batch and its gradient, what stages pass on of one, and one 16-bit gradient of each shape
    that linear layers have; ranks of the groups of ``SHARDING`` (``members``); bytes of its ``communicators`` without
    and with ``zero``.  Times are computed when they are first read.
    """

    def __init__(self, model: CostModel, table: LayoutTable) -> None:
        self.model, self.table = model, table
        work, recipe, software = model.job.model, model.job.recipe, model.software
        self.step = model.step(table)
        sizes = self.step.sizes
        activations = [
            block_activations(kind, recipe, sizes, software) for kind in (*work.kinds, *work.prediction_module)
        ]
        self.activations = activations[: len(work.kinds)]
        module = activations[len(work.kinds) :]
        self.prediction = sum(module[1:], module[0])
        heads, cut = 1 + work.prediction_layers, 1.0 if software.whole_logits else sizes.x
        self.logits = heads * sizes.tokens * work.vocab / (cut * sizes.y)
        stream, dealt = recipe.element_bytes * work.hidden / sizes.y, sizes.own_tokens < sizes.tokens
        # At the head: features before the last norm, behind it, and gathered over sequence parallelism; of their
        # gradient all tokens, and a rank's share once it is scattered.
        self.head_bytes = stream * (2.0 * sizes.own_tokens + sizes.tokens * dealt)
        self.head_gradient_bytes = stream * (sizes.tokens + sizes.own_tokens * dealt)
        self.boundary_bytes = stream * sizes.own_tokens
        self.dummies_bytes = recipe.element_bytes * distinct_matrices(work, sizes)
        self.members = {group: degrees(table, group).astype(np.float64) for group in SHARDING}
        self.communicators = self._communicators()

    def _communicators(self) -> Floats:
        """Bytes of a rank's communicators: without and with ``zero``, shape (2, rows); none without an order of the
        axes, which no order undercuts."""
        model = self.model
        if not self.table.order or model.kernels.accelerator.vendor.lower() not in VENDORS:
            return np.zeros((2, len(self.table)))

        def compute(rows: Index) -> Floats:
            sizes = []
            for zero in (0, 1):
                some = self.table.take(rows, {"zero": np.full(len(rows), zero)})
                groups = model.step(some).groups()
                if model.constants.dispatch_once:  # DeepEP and its like exchange tokens in separate buffers
                    groups.pop(("all-to-all", ("expert",)), None)
                sizes.append(communicator_bytes(some, groups, model.network))
            return np.stack(sizes)

        return model.communicators.once(model.causes(self.table, COMMUNICATOR_COLUMNS, ()), compute)

    def _once(
        self,
        columns: Sequence[str],
        groups: Iterable[tuple[str, ...]],
        compute: Callable[[TrainingStep], T],
        remembered: Remembered | None = None,
    ) -> T:
        """What follows from some columns, and from how groups lie on the tiers, of steps that differ in these."""
        causes = self.model.causes(self.table, columns, groups)
        return (remembered or Remembered()).once(causes, lambda rows: compute(self.model.step(self.table.take(rows))))

    @cached_property
    def parts(self) -> tuple[PartCosts, ...]:
        """Seconds per micro-batch of each kind of block, of the embedding and of the head, as ``TrainingStep`` lists
        them."""
        model = self.model

        def compute(step: TrainingStep) -> tuple[PartCosts, ...]:
            spreads = dict[Any, Spread]()
            return tuple(
                [PartTimer(model.kernels, model.network, step, part, spreads).costs for part in step.operations]
            )

        return self._once(PART_COLUMNS, PART_AXES, compute, model.parts)

    @cached_property
    def shards(self) -> tuple[ShardCosts, ...]:
        """Seconds per micro-batch to gather and scatter the weights of each part."""

        def compute(step: TrainingStep) -> tuple[ShardCosts, ...]:
            return tuple([shard_costs(part, step.recipe, step.table, self.model.network) for part in step.units])

        return self._once(WEIGHT_COLUMNS, SHARD_AXES, compute, self.model.shards)

    @cached_property
    def send_s(self) -> Floats:
        """Seconds to pass a micro-batch on to the next stage."""

        def compute(step: TrainingStep) -> Floats:
            total, network = np.zeros(len(step.table)), self.model.network
            for collective in step.boundary:
                group = spread(step.table, collective.axes, network.spans)
                total += collective_s(collective.kind, collective.bytes, group, network)
            return total

        names = ("x", "y", "context", "micro_batch", "sequence_parallel")
        return self._once(names, (("pipeline",), ("x",)), compute)

    @cached_property
    def tied_s(self) -> Floats:
        """Seconds per step to sum a tied embedding's gradient over the first and the last stage."""

        def compute(step: TrainingStep) -> Floats:
            group = spread(step.table, ("tied",), self.model.network.spans)
            return collective_s(
                "all-reduce", step.tied_at_rest * step.recipe.gradient_bytes, group, self.model.network
            )

        return self._once(("x", "y", "z", "context"), (("tied",),), compute)

    @cached_property
    def scalars_s(self) -> Floats:
        """Seconds per step for loss and norm of the gradients, where the software's step lists them."""
        total, network = np.zeros(len(self.table)), self.model.network
        for axes in (("copies",), AXES) if self.model.software.scalars else ():
            group = spread(self.table, axes, network.spans)
            total += collective_s("all-reduce", np.full(len(total), float(SCALAR_BYTES)), group, network)
        return total

    def gradients(self, stages: StageTable, mesh: Index, line: Index) -> tuple[GradientCosts, ...]:
        """Gradients of the largest stage, as the step sums them, for pairs of a mesh and a line of stages."""
        pairs, model = self.table.take(mesh), self.model

        def compute(rows: Index) -> tuple[GradientCosts, ...]:
            # Stages differ in what they hold, so that each sum is over the stage with most of it: that one ends last.
            every = []
            for stage in range(stages.repeats.shape[1]):
                counts = [array[line[rows], stage] for array in (*stages.counts, stages.embedding, stages.head)]
                every.append(self.step.reductions(self.step.stage_held(counts, mesh[rows]), mesh[rows]))
            largest = [Reduction.largest(some) for some in zip(*every, strict=True)]
            some = pairs.take(rows)
            return tuple([gradient_costs(reduction, model.job.recipe, some, model.network) for reduction in largest])

        causes = [line, *model.causes(pairs, WEIGHT_COLUMNS, (*SHARD_AXES, *COPY_AXES))]
        return Remembered().once(causes, compute)
