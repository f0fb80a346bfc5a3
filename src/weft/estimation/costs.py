"""What one block, the embedding and the head cost per micro-batch, over the distinct meshes of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.collectives.cost import Network, collective_s, lower_bound_s
from weft.estimation.kernels import Kernels, expected_largest
from weft.layout.mesh import Spread, spread
from weft.layout.operations import Collective, Computation, FlashAttention, Gemm, Operations, Pass, Phase, Scan
from weft.layout.spec import TensorOverlap
from weft.layout.step import Step
from weft.layout.table import Floats

MODES = len(TensorOverlap)
QUEUEING = 3.0
"""Exponent of the norm that joins the time of the host and that of the device.  Range: 2 to 6.  Source: of 100 jobs of
one node that ran in several layouts (vTrain), the ratio of two layouts is off by 5.3 % with 3, 5.7 with 4, 6.3 with 6
and 7.1 with the larger of both."""
LATENT_UPS = ("q", "q_up", "kv_up", "rotary")
"""What makes queries, keys and values of latent attention, as Megatron-Core's mla_up_proj repeats it."""
TENSOR, CONTEXT, EXPERT = "tensor", "context", "expert"


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

    @classmethod
    def zero(cls, length: int) -> PartCosts:
        flat = {name: np.zeros(length) for name in cls.__slots__}
        for name in ("tensor_forward_s", "tensor_backward_s", "tensor_hidden_s"):
            flat[name] = np.zeros((MODES, length))
        return cls(**flat)


class CostModel:
    """Times the parts of a step on the distinct meshes of a table."""

    def __init__(self, kernels: Kernels, network: Network, step: Step) -> None:
        self.kernels, self.network, self.step = kernels, network, step
        self.mesh, self.sizes = step.table, step.sizes
        self._spreads: dict[tuple[str, ...], Spread] = {}

    def parts(self) -> tuple[PartCosts, ...]:
        """Costs of each kind of block, of the embedding and of the head, as ``Step`` lists them."""
        return tuple(self._part(operations) for operations in self.step.operations)

    def spread(self, axes: tuple[str, ...]) -> Spread:
        """How the groups over ``axes`` lie on the tiers."""
        if axes not in self._spreads:
            self._spreads[axes] = spread(self.mesh, axes, self.network.spans)
        return self._spreads[axes]

    def zeros(self) -> Floats:
        return np.zeros(len(self.mesh))

    def collective_sum(self, collectives: Iterable[Collective]) -> Floats:
        """Seconds of collectives one after the other."""
        total = self.zeros()
        for one in collectives:
            total += collective_s(one.kind, one.bytes, self.spread(one.axes), self.network)
        return total

    def _part(self, operations: Operations) -> PartCosts:
        costs = PartCosts.zero(len(self.mesh))
        times = self._computations(operations, costs)
        idle = self._launch_floor(operations, costs, times)
        for collective in operations.collectives:
            if np.any((collective.elements > 0) & (self.spread(collective.axes).size > 1)):
                self._collective(collective, times, costs)
        # While a rank waits for its host, its collectives go on: first those that nothing else hides.
        forward, backward = costs.tensor_forward_s - idle[0], costs.tensor_backward_s - idle[1]
        costs.tensor_forward_s, costs.tensor_backward_s = np.maximum(forward, 0.0), np.maximum(backward, 0.0)
        left = np.minimum(forward, 0.0) + np.minimum(backward, 0.0)
        costs.tensor_hidden_s = np.maximum(costs.tensor_hidden_s + left, 0.0)
        return costs

    def _computations(self, operations: Operations, costs: PartCosts) -> _Times:
        """Add the device time of every computation; return GEMM and attention times for what hides behind
        them."""
        times = _Times({}, {}, {})
        peak, half = self.kernels.peak(core=False), self.kernels.peak(core=True)
        latent = any(isinstance(one, Gemm) and one.name == "kv_up" for one in operations.computations)
        repeated = LATENT_UPS if latent and self.step.software.repeats_latents else ()
        for operation in operations.computations:
            seconds = self.seconds(operation)
            flops, core = _flops(operation)
            _add(costs, operation.phase, seconds)
            if _behind_routing(operation):
                key = _direction(operation.phase)
                times.routed[key] = times.routed.get(key, 0.0) + seconds
            costs.math_bound_s += flops / (half if core else peak)
            if isinstance(operation, Gemm):
                times.gemms[operation.name, operation.phase] = seconds
            if isinstance(operation, FlashAttention):
                times.attention[operation.phase] = seconds
            if operation.phase == "forward":
                if isinstance(operation, Gemm) and not core:
                    costs.linear_s += seconds
                costs.flops += flops
                _replays(costs, operation, seconds, flops)
                if isinstance(operation, Gemm | Pass) and operation.name in repeated:
                    costs.cheap_s += seconds
        return times

    def seconds(self, operation: Computation) -> Floats:
        """Device time; the busiest rank of experts sets the pace of theirs (``expert_spread``).  The product of a
        rank's only expert is no grouped one."""
        seconds = self.kernels.seconds(operation)
        if not (isinstance(operation, Gemm) and operation.routed):
            return seconds
        constants = self.kernels.calibration
        grouped = np.where(operation.copies > 1, constants.expert_share, 1.0)
        # The mean of a rank's experts has a standard deviation smaller by the root of their number.
        farthest = constants.expert_spread * self._busiest
        busiest = 1.0 + farthest / np.sqrt(np.maximum(operation.copies, 1.0))
        return seconds * busiest / grouped

    @cached_property
    def _busiest(self) -> Floats:
        """How many standard deviations the busiest rank of experts is above the mean."""
        ranks, where = np.unique(self.sizes.expert, return_inverse=True)
        return np.array([expected_largest(int(count)) for count in ranks])[where]

    def _launch_floor(self, operations: Operations, costs: PartCosts, times: _Times) -> tuple[Floats, Floats]:
        """The host cannot launch kernels faster than one per ``launch_s``; what the device waits for it
        (``_waiting``), forward and backward.

        The host waits for the router's counts of tokens: it cannot launch what the experts do ahead of the rest.
        """
        launched = self._launched(operations)
        backward = costs.input_gradient_s + costs.weight_gradient_s
        idle = []
        for direction, device in (("forward", costs.forward_s), ("backward", backward)):
            routed = times.routed.get(direction, self.zeros())
            rest = _waiting(launched[direction, False], device - routed)
            idle.append(rest + _waiting(launched[direction, True], routed))
        costs.forward_s = costs.forward_s + idle[0]
        slow = np.where(backward > 0, (backward + idle[1]) / np.maximum(backward, 1e-12), 1.0)
        costs.input_gradient_s = costs.input_gradient_s * slow
        costs.weight_gradient_s = costs.weight_gradient_s * slow
        return idle[0], idle[1]

    def _launched(self, operations: Operations) -> dict[tuple[str, bool], Floats]:
        """Seconds in which the host launches a pass, by direction and whether it is behind the routing."""
        floor = self.kernels.calibration.launch_s * self.kernels.calibration.launches_per_step
        found = {(way, behind): self.zeros() for way in ("forward", "backward") for behind in (False, True)}
        for operation in (*operations.computations, *operations.collectives):
            launched = self.zeros() + 1.0
            if isinstance(operation, Collective):
                launched *= (operation.elements > 0) & (self.spread(operation.axes).size > 1)
                if operation.kind == "exchange":
                    launched *= self.sizes.context - 1
            elif isinstance(operation, FlashAttention):
                launched *= operation.calls
            elif isinstance(operation, Pass):
                launched *= operation.bytes > 0
            elif isinstance(operation, Gemm) and operation.routed:
                launched *= operation.copies * self.kernels.launches
            found[_direction(operation.phase), _behind_routing(operation)] += launched * floor
        return found

    def _collective(self, collective: Collective, times: _Times, costs: PartCosts) -> None:
        group = self.spread(collective.axes)
        constants = self.kernels.calibration
        once = collective.copies if constants.dispatch_once else 0.0
        seconds = collective_s(collective.kind, collective.bytes, group, self.network, copies=once)
        bound = lower_bound_s(collective.kind, collective.bytes, group, self.network)
        bound = np.where(group.size > 1, bound, 0.0)
        family = _family(collective)
        if collective.kind == "exchange":
            self._exchange(collective, seconds, bound, times, costs)
        elif family == TENSOR:
            _accumulate(costs, "contract_bound_s" if "x" not in collective.axes else "tensor_bound_s", bound)
            self._tensor(collective, seconds, times, costs)
        else:
            shown = 1.0 - constants.expert_overlap if family == EXPERT else 1.0
            _accumulate(costs, f"{family}_bound_s", bound)
            _accumulate(costs, f"{family}_{_direction(collective.phase)}_s", shown * seconds)

    def _exchange(
        self, collective: Collective, seconds: Floats, bound: Floats, times: _Times, costs: PartCosts
    ) -> None:
        """Ring attention: each of the context - 1 steps hides behind the attention of the block before it."""
        steps = self.sizes.context - 1
        attention = times.attention.get(collective.phase, self.zeros()) / self.sizes.context
        _accumulate(costs, f"context_{_direction(collective.phase)}_s", steps * np.maximum(seconds - attention, 0.0))
        costs.context_bound_s += steps * bound

    def _tensor(self, collective: Collective, seconds: Floats, times: _Times, costs: PartCosts) -> None:
        direction = _direction(collective.phase)
        target: Floats = getattr(costs, f"tensor_{direction}_s")
        for mode, hide in enumerate((_never, _behind_other_gradient, self._in_chunks)):
            hidden = hide(collective, seconds, times)
            target[mode] += seconds - hidden
            costs.tensor_hidden_s[mode] += hidden

    def _in_chunks(self, collective: Collective, seconds: Floats, times: _Times) -> Floats:
        """Pipelined with the GEMM that it feeds or drains, in as many chunks as ranks."""
        hidden = _behind_other_gradient(collective, seconds, times)
        gemm = times.gemms.get((collective.behind or "", collective.phase))
        if gemm is None or collective.kind == "all-reduce" or collective.phase == "weight-gradient":
            return hidden
        size = self.spread(collective.axes).size
        return np.maximum(hidden, np.minimum(seconds * (size - 1) / size, gemm))


@dataclass(frozen=True, slots=True)
class _Times:
    """Device time of products and attention by phase, and forward and backward of what is behind the routing."""

    gemms: dict[tuple[str, Phase], Floats]
    attention: dict[Phase, Floats]
    routed: dict[str, Floats]


def _waiting(launched: Floats, device: Floats) -> Floats:
    """How much longer than ``device`` a device takes whose host launches for ``launched``: both together take about as
    long as the longer where one is much shorter, and a quarter more where both are alike, since short kernels wait for
    their launch while long ones let launches queue."""
    longest = np.maximum(np.maximum(launched, device), 1e-30)
    both = (launched / longest) ** QUEUEING + (device / longest) ** QUEUEING
    waiting: Floats = longest * both ** (1.0 / QUEUEING) - device
    return waiting


def _never(collective: Collective, seconds: Floats, times: _Times) -> Floats:
    return np.zeros_like(seconds)


def _behind_other_gradient(collective: Collective, seconds: Floats, times: _Times) -> Floats:
    """The input gradient's collective behind the weight-gradient GEMM, the repeated gather behind the
    input-gradient GEMM (AxoNN's OAR; Megatron's asynchronous tensor-parallel communication)."""
    other: dict[Phase, Phase] = {"input-gradient": "weight-gradient", "weight-gradient": "input-gradient"}
    gathers_output = collective.kind == "all-gather" and collective.phase == "input-gradient"
    if collective.behind is None or collective.phase == "forward" or gathers_output:
        return np.zeros_like(seconds)
    gemm = times.gemms.get((collective.behind, other[collective.phase]))
    return np.zeros_like(seconds) if gemm is None else np.minimum(seconds, gemm)


def _behind_routing(operation: Computation | Collective) -> bool:
    return isinstance(operation, Gemm) and operation.routed


def _family(collective: Collective) -> str:
    if "context" in collective.axes:
        return CONTEXT
    return EXPERT if collective.axes[0].startswith("expert") else TENSOR


def _direction(phase: Phase) -> str:
    return "forward" if phase == "forward" else "backward"


def _accumulate(costs: PartCosts, name: str, seconds: Floats) -> None:
    setattr(costs, name, getattr(costs, name) + seconds)


def _add(costs: PartCosts, phase: Phase, seconds: Floats) -> None:
    _accumulate(costs, f"{phase.replace('-', '_')}_s", seconds)


def _flops(operation: Computation) -> tuple[Floats | float, bool]:
    """FLOPs of one computation, and whether they run at the 16-bit peak."""
    if isinstance(operation, Gemm):
        flops = 2.0 * operation.m * operation.n * operation.k * operation.copies
        return flops, operation.role != "linear"
    if isinstance(operation, FlashAttention | Scan):
        return operation.flops, True
    return 0.0, True


def _replays(costs: PartCosts, operation: Computation, seconds: Floats, flops: Floats | float) -> None:
    """Note what selective recomputation would run again."""
    if isinstance(operation, Pass):
        if operation.replay == "core":
            costs.core_s += seconds
        elif operation.replay == "cheap":
            costs.cheap_s += seconds
    elif isinstance(operation, Gemm) and operation.role == "core":
        costs.core_s += seconds
        costs.core_flops += flops
