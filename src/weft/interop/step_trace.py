"""Where the time of a training step went, by a trace of PyTorch's profiler (Kineto) of one rank.

A moment belongs to the first of these that runs on the GPU: products, attention, other kernels, communication, group
by group, copies.  What is left are gaps.  So the parts add up to the step, and communication counts where nothing
hides it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Floats
from weft.interop.torch_records import communication, kind_of, number, rank_list, stream_events
from weft.model.workload import CommunicationKind

COMPUTATIONS = ("products", "attention", "other kernels")
_COPIES = "copies"
_NAMES = (
    ("attention", re.compile(r"flash|fmha|attention|attn|sdpa", re.I)),
    ("products", re.compile(r"gemm|gemv|cutlass|nvjet|xmma|cublas|matmul|cijk_|conv|winograd|[dw]grad|fprop", re.I)),
)
"""What a kernel does, by its name; what matches nothing is another kernel."""
_COMMUNICATION = re.compile(r"nccl|rccl|deep_ep|nvshmem|userbuffers", re.I)
LARGE_BYTES = 1 << 20
"""Collectives from this size on show a group's bandwidth."""
FASTER = 0.75
"""Of the large collectives' bandwidths the one that a quarter exceeds: slower ones waited for a peer."""
_BUS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
"""How often a ring of many ranks sends the buffer (nccl-tests' bus bandwidth)."""
_REMEDY = "profile a few steps on the GPU with ProfilerActivity.CPU and CUDA"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGroup:
    """Collectives of one kind in one group of ranks, per step.

    Attributes:
        group: what the framework calls the group; empty where it has no name.
        size: ranks in it; 0 where the trace does not say.
        busy_s, exposed_s: seconds in which they run, and those in which no other kernel does.
        large_bytes, large_Bps: median size of those of a MiB and more, and the bus bandwidth that a quarter of
            them exceeds; 0 where there are none, or the trace does not say.
    """

    group: str
    kind: CommunicationKind | None
    size: int
    ranks: tuple[int, ...] | None
    calls: float
    busy_s: float
    exposed_s: float
    large_bytes: float
    large_Bps: float

    @property
    def bus_bytes(self) -> float:
        """What a rank of a ring sends for ``large_bytes``."""
        return _BUS.get(str(self.kind), 0.0) * (self.size - 1) / max(self.size, 1) * self.large_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """A step of one rank, the mean of those traced; ``computation_s`` by ``COMPUTATIONS``.

    ``host_gaps_s`` are gaps in which the host had not yet launched the next kernel; ``gaps_s`` the others.  The sum of
    ``computation_s``, exposed communication, copies and gaps is ``step_s``: from the first kernel to the end of the
    last, over the number of steps.
    """

    source: str
    rank: int | None
    world: int | None
    steps: int
    step_s: float
    computation_s: tuple[float, ...]
    copies_s: float
    host_gaps_s: float
    gaps_s: float
    groups: tuple[TracedGroup, ...]


@dataclass(slots=True)
class _Calls:
    """Kernels of one kind: begins and ends in microseconds, bytes and ranks of their communication."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    sizes: list[tuple[float, float]] = field(default_factory=list)
    ranks: tuple[int, ...] | None = None


def read_step_trace(path: str | os.PathLike[str]) -> StepTrace:
    """The step of a trace (.json or .json.gz), read event by event.

    Where a file has several devices, only the first counts.
    """
    where = os.fspath(path)
    head, events = stream_events(path, where)
    calls: dict[str | tuple[str, CommunicationKind | None, int], _Calls] = {}
    launches: dict[int, float] = {}
    begun: list[tuple[float, int]] = []
    steps, device = set(), None
    for count, event in enumerate(events):
        category, arguments = str(event.get("cat")).lower(), event.get("args")
        if event.get("ph") != "X" or not isinstance(arguments, dict):
            continue
        name = str(event.get("name", ""))
        if category == "user_annotation" and name.startswith("ProfilerStep#"):
            steps.add(name)
        elif category in ("cuda_runtime", "cuda_driver"):
            launches[_correlation(arguments)] = number(event.get("ts"), f"{where}: event {count}: ts")
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            own = arguments.get("device", event.get("pid"))
            device = own if device is None else device
            if own != device:
                continue
            begin, length = (number(event.get(key), f"{where}: event {count}: {key}") for key in ("ts", "dur"))
            what = _COPIES if category != "kernel" else _computation(name, arguments)
            group = calls.setdefault(what or _group(name, arguments), _Calls())
            group.spans.append((begin, begin + length))
            begun.append((begin, _correlation(arguments)))
            if what is None:
                _measure(group, name, arguments, length)
    if not begun:
        raise BadInput("has no kernels of a GPU", where=where, remedy=_REMEDY)
    return _step(where, head.get("distributedInfo"), max(len(steps), 1), calls, begun, launches)


def _correlation(arguments: dict[str, Any]) -> int:
    value = arguments.get("correlation")
    return value if isinstance(value, int) else 0


def _computation(name: str, arguments: dict[str, Any]) -> str | None:
    """What a kernel computes; None where it communicates."""
    if "Collective name" in arguments or _COMMUNICATION.search(name):
        return None
    return next((what for what, pattern in _NAMES if pattern.search(name)), COMPUTATIONS[-1])


def _group(name: str, arguments: dict[str, Any]) -> tuple[str, CommunicationKind | None, int]:
    """The group of a kernel that communicates, the kind of its collective, and the number of ranks."""
    stated, size = arguments.get("Collective name"), arguments.get("Group size")
    kind = (kind_of(stated) if isinstance(stated, str) else None) or kind_of(name.split("(")[0])
    words = [arguments.get("Process Group Description"), arguments.get("Process Group Name")]
    group = next((word for word in words if isinstance(word, str) and word not in ("", "undefined")), "")
    if "deep_ep" in name.lower():
        group, kind = "deep_ep", "all-to-all"
    return group[:80], kind, size if isinstance(size, int) else 0


def _measure(group: _Calls, name: str, arguments: dict[str, Any], length: float) -> None:
    """Adds the size and the bus bandwidth of a large collective."""
    group.ranks = rank_list(arguments.get("Process Group Ranks"))
    _, kind, size = _group(name, arguments)
    if kind not in _BUS or size < 2 or length <= 0:
        return
    try:
        bytes_ = communication(kind, arguments, name).bytes
    except (BadInput, Unsupported):  # an old trace does not say the size
        return
    if bytes_ >= LARGE_BYTES:
        group.sizes.append((bytes_, _BUS[kind] * (size - 1) / size * bytes_ / (length * 1e-6)))


def _step(
    where: str,
    world: object,
    steps: int,
    calls: dict[str | tuple[str, CommunicationKind | None, int], _Calls],
    begun: Sequence[tuple[float, int]],
    launches: dict[int, float],
) -> StepTrace:
    scale = 1e-6 / steps
    # 1. What each kind adds to the time that those before it cover.
    added, covered, merged = {}, 0.0, np.empty((0, 2))
    groups = [key for key in calls if not isinstance(key, str)]
    for key in (*COMPUTATIONS, *groups, _COPIES):
        spans = np.array(calls[key].spans) if key in calls else np.empty((0, 2))
        merged = _union(np.concatenate([merged, spans]))
        total = float((merged[:, 1] - merged[:, 0]).sum())
        added[key], covered = (total - covered) * scale, total
    # 2. Gaps: until the host launched the kernel that ended them, and after.
    first = {begin: launches.get(correlation) for begin, correlation in sorted(begun, reverse=True)}
    ends, begins = merged[:-1, 1], merged[1:, 0]
    known = [first[begin] for begin in begins.tolist()]
    launched = np.array([end if at is None else at for at, end in zip(known, ends.tolist(), strict=True)])
    host = float(np.clip(launched - ends, 0.0, begins - ends).sum()) * scale
    told = world if isinstance(world, dict) else {}
    rank, ranks = (told.get(key) if isinstance(told.get(key), int) else None for key in ("rank", "world_size"))
    traced = [
        TracedGroup(
            group=name,
            kind=kind,
            size=size,
            ranks=calls[name, kind, size].ranks,
            calls=len(calls[name, kind, size].spans) / steps,
            busy_s=float(np.diff(_union(np.array(calls[name, kind, size].spans))).sum()) * scale,
            exposed_s=added[name, kind, size],
            large_bytes=float(np.median(sizes[:, 0])) if len(sizes) else 0.0,
            large_Bps=float(np.quantile(sizes[:, 1], FASTER)) if len(sizes) else 0.0,
        )
        for name, kind, size in groups
        for sizes in [np.array(calls[name, kind, size].sizes)]
    ]
    return StepTrace(
        source=os.path.basename(where),
        rank=rank,
        world=ranks,
        steps=steps,
        step_s=float(merged[-1, 1] - merged[0, 0]) * scale,
        computation_s=tuple(added[name] for name in COMPUTATIONS),
        copies_s=added[_COPIES],
        host_gaps_s=host,
        gaps_s=float((begins - ends).sum()) * scale - host,
        groups=tuple(traced),
    )


def _union(spans: Floats) -> Floats:
    """Spans, shape (n, 2), joined where they meet, in order."""
    if not len(spans):
        return spans
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    latest = np.maximum.accumulate(ordered[:, 1])
    opens = np.flatnonzero(np.concatenate([[True], ordered[1:, 0] > latest[:-1]]))
    return np.stack([ordered[opens, 0], latest[np.append(opens[1:], len(ordered)) - 1]], axis=1)
