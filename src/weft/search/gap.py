"""Where a traced step loses time: its parts beside what the estimate expects of them, each with the likely cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median_low
from typing import cast

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.codec import Document
from weft.collectives.cost import Network, collective_s
from weft.errors import BadInput
from weft.estimation.result import Estimate
from weft.interop.step_trace import StepTrace, TracedGroup
from weft.layout.mesh import degrees, rank_groups, spread
from weft.layout.operations import CollectiveKind
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.units import counted, format_si

LOST = 0.02
"""Share of the step that a part must lose before its cause is named."""
SLOW = 0.7
"""Share of the expected bandwidth below which a group's links are the cause."""
SKEW = 0.03
"""By how much longer a rank must compute than the median to be called slow."""
UNLIKE = 0.2
"""Share by which steps of one job differ at most."""
_COMPUTATION, _COPIES, _HOST, _GAPS, _OTHER = "computation", "copies", "host gaps", "other gaps", "other groups"
EXPECTED: Mapping[str, tuple[str, ...]] = {
    _COMPUTATION: ("forward_s", "backward_s", "recompute_s", "optimizer_s"),
    "tp": ("tensor_s",),
    "cp": ("context_s",),
    "pp": ("stage_send_s", "bubble_s"),
    "ep": ("expert_s",),
    "fsdp": ("weights_s",),
    "dp": ("data_s",),
    _OTHER: (),
    _COPIES: ("offload_s",),
    _HOST: ("host_s",),
    _GAPS: (),
}
"""Parts of a traced step, and the parts of an estimate that they come to; pp holds the waits for other stages."""
_CAUSES = {
    _COMPUTATION: "kernels are slower: clocks or power, unfused kernels, small matrices, or a slow rank",
    "tp": "not hidden: --tp-comm-overlap with sequence parallelism, or a smaller tp",
    "cp": "not hidden: a smaller cp, or Ulysses instead of a ring",
    "pp": "stages wait: more micro-batches, more virtual stages, or stages of equal work",
    "ep": "experts wait: unequal loads of experts, or a slow dispatcher (DeepEP)",
    "fsdp": "gathers are late: prefetch them, larger micro-batches, or fewer ranks that share weights",
    "dp": "not hidden: --overlap-grad-reduce and --overlap-param-gather",
    _OTHER: "collectives of no axis of the layout: metrics, checks of gradients, checkpoints",
    _COPIES: "copies wait: pinned memory and asynchronous loading",
    _HOST: "launch-bound: CUDA graphs, larger micro-batches, fewer small kernels",
    _GAPS: "streams wait: synchronizing calls such as .item(), or CUDA_DEVICE_MAX_CONNECTIONS=1 with FSDP",
}
_AXES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "tp": (("x",), ("x", "y"), ("y",)),
    "cp": (("context",),),
    "pp": (("pipeline",),),
    "ep": (("expert",), ("expert_tensor",)),
    "fsdp": (("z",), ("shard",), ("context", "z"), ("expert_shard",)),
    "dp": (("replica",), ("data",), ("context", "data"), ("expert_replica",)),
}
"""Axes of the mesh whose groups count for a part."""
_WORDS = (
    ("dp", r"expert_?data"),
    ("ep", r"expert|\bep\b|deep_ep"),
    ("tp", r"tensor|\btp\b"),
    ("pp", r"pipe|\bpp\b|embd|embed"),
    ("fsdp", r"shard|fsdp"),
    ("dp", r"data|\bdp\b|replica"),
    ("cp", r"context|\bcp\b"),
)
"""Words of frameworks for groups (Megatron-LM's descriptions, torch's device meshes), the most special first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapPart(Document):
    """A part of the step: seconds as traced and as expected, and the likely cause where it loses time."""

    name: str
    measured_s: float
    expected_s: float
    cause: str = ""

    @property
    def lost_s(self) -> float:
        return self.measured_s - self.expected_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGap(Document):
    """The step of the traced ranks (their mean), in parts that add up to it, the largest loss first.

    Attributes:
        kinds: seconds of computation by ``COMPUTATIONS``.
        slow_rank, slower: the rank that computes longest, and by what share longer than the median; None where no
            rank stands out.
    """

    sources: tuple[str, ...]
    step_s: float
    parts: tuple[GapPart, ...]
    kinds: tuple[float, ...]
    slow_rank: int | None = None
    slower: float | None = None


def step_gap(
    traces: Sequence[StepTrace], expected: Estimate, layout: Layout, cluster: Cluster, constants: Calibration
) -> StepGap:
    """The parts of a traced step beside those of the estimate ``expected`` of its ``layout``.

    Raises:
        BadInput: the traces are not of this layout, or not of one job.
    """
    _check(traces, layout)
    measured = dict.fromkeys(EXPECTED, 0.0)
    slow_links: dict[str, str] = {}
    network = Network.of(cluster, constants)
    for trace in traces:
        # 1. The parts that need no layout.
        ways = (sum(trace.computation_s), trace.copies_s, trace.host_gaps_s, trace.gaps_s)
        for name, seconds in zip((_COMPUTATION, _COPIES, _HOST, _GAPS), ways, strict=True):
            measured[name] += seconds / len(traces)
        # 2. Exposed communication, by the axis whose group it is.
        for group in trace.groups:
            name = axis_of(group, layout) or _OTHER
            measured[name] += group.exposed_s / len(traces)
            if words := _slow_links(group, name, layout, cluster, network):
                slow_links[name] = words
    parts, step_s = [], fsum(measured.values())
    for name, seconds in measured.items():
        expected_s = fsum(part.value for part in expected.time if part.name in EXPECTED[name])
        if max(seconds, expected_s) > 0:
            cause = slow_links.get(name, _CAUSES[name]) if seconds - expected_s > LOST * step_s else ""
            parts.append(GapPart(name=name, measured_s=seconds, expected_s=expected_s, cause=cause))
    computed = [sum(trace.computation_s) for trace in traces]
    slowest = int(np.argmax(computed))
    slower = computed[slowest] / median_low(computed) - 1.0 if min(computed) > 0 else 0.0
    return StepGap(
        sources=tuple(trace.source for trace in traces),
        step_s=step_s,
        parts=tuple(sorted(parts, key=lambda part: -part.lost_s)),
        kinds=tuple(np.mean([trace.computation_s for trace in traces], axis=0).tolist()),
        slow_rank=(traces[slowest].rank if traces[slowest].rank is not None else slowest) if slower > SKEW else None,
        slower=slower if slower > SKEW else None,
    )


def _check(traces: Sequence[StepTrace], layout: Layout) -> None:
    """Refuses traces of other jobs than that of the layout."""
    for trace in traces:
        if trace.world not in (None, layout.world):
            problem = f"is of a job on {counted(trace.world or 0, 'rank')}, the layout has {layout.world:,}"
            raise BadInput(problem, where=trace.source, remedy="give the trace and the layout of one run")
        if layout.world > 1 and not trace.groups:
            problem = f"has no communication, and the layout has {layout.world:,} ranks"
            raise BadInput(problem, where=trace.source, remedy="profile a rank of the run itself")
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    if len(set(ranks)) < len(ranks):
        raise BadInput("two traces are of the same rank", where="--trace", remedy="give each rank once")
    steps = [trace.step_s for trace in traces]
    if max(steps) > (1 + UNLIKE) * min(steps):
        slow, fast = traces[int(np.argmax(steps))], traces[int(np.argmin(steps))]
        problem = f"a step takes {slow.step_s:.3g} s in {slow.source} and {fast.step_s:.3g} s in {fast.source}"
        raise BadInput(problem, where="--trace", remedy="give traces of one job, each of whole steps")


def axis_of(group: TracedGroup, layout: Layout) -> str | None:
    """The part of ``EXPECTED`` that a group's communication counts for: by its name, else by its ranks, else by its
    kind; None where nothing tells."""
    words = group.group.lower().replace("model_parallel", "").replace("_", " ").replace("-", " ")
    for name, pattern in _WORDS:
        if re.search(pattern.replace("_?", " ?"), words):
            return name
    if group.ranks is not None:
        for name, axes in _matching(group, layout):
            if list(group.ranks) in np.sort(rank_groups(layout, axes), axis=1).tolist():
                return name
    if group.kind == "send":
        return "pp" if layout.pipeline > 1 else "cp" if layout.context > 1 else None
    return "ep" if group.kind == "all-to-all" and layout.expert > 1 else None


def _matching(group: TracedGroup, layout: Layout) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The axes whose groups have as many ranks as this one."""
    table = LayoutTable.of([layout])
    for name, choices in _AXES.items():
        for axes in choices:
            if np.prod([degrees(table, axis)[0] for axis in axes]) == group.size > 1:
                yield name, axes


def _slow_links(group: TracedGroup, name: str, layout: Layout, cluster: Cluster, network: Network) -> str:
    """What a group's bandwidth says of its links; empty where it is as expected, or nothing is known."""
    axes = next((axes for part, axes in _matching(group, layout) if part == name), None)
    if not group.large_Bps or axes is None:
        return ""
    spanned = spread(LayoutTable.of([layout]), axes, cluster.spans)
    seconds = float(
        collective_s(cast("CollectiveKind", group.kind), np.array([group.large_bytes]), spanned, network)[0]
    )
    expected_Bps = group.bus_bytes / seconds
    if group.large_Bps >= SLOW * expected_Bps:
        return ""
    reached, could = format_si(group.large_Bps, "B/s"), format_si(expected_Bps, "B/s")
    return f"{group.kind} over {name} reaches {reached} of {could}: a link or NIC is slow or unused (weft bench)"
