"""A collective cut into chunks, each with its own order over the network's dimensions.

Every policy has one contract: ``policy(request, ...) -> Schedule``.  A reduce-scatter visits the dimensions
in the chunk's order and an all-gather in its gather order; an all-reduce does one after the other.  What a
stage costs is said in ``weft.collectives.stages`` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from weft.collectives.schedules.queues import NS, Passages, QueueRule
from weft.collectives.stages import ONE_OPERATION, STAGE_KINDS, Algorithm, StageCost, StageKind, choose, stage
from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.checks import MAX_ACCELERATORS
from weft.fabric.dimension import Dimension
from weft.fabric.spec import Floats, Ints, Mask

MOST_CHUNKS = 8192
MOST_DIMENSIONS = 6
LARGEST = 1e18
LONGEST_STEP_S = 1e3
SMALLEST_CHUNK_BYTES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A collective of all accelerators on dimensions, inner to outer, with the algorithm of each.

    ``bytes`` is the full buffer, as ``weft.model.workload.Communication`` defines it.  ``notes`` says where
    an algorithm is not the one that was asked for.
    """

    kind: StageKind
    bytes: float
    dimensions: tuple[Dimension, ...]
    algorithms: tuple[Algorithm, ...]
    notes: tuple[str, ...] = ()

    @property
    def accelerators(self) -> int:
        return prod(dimension.size for dimension in self.dimensions)

    @property
    def used(self) -> tuple[int, ...]:
        """Dimensions that have anybody to talk to."""
        return tuple(i for i, dimension in enumerate(self.dimensions) if dimension.size > 1)

    def stage(self, kind: StageKind, dimension: int) -> StageCost:
        """The cost of a stage on a dimension; an all-to-all goes direct where links allow it."""
        links, algorithm = self.dimensions[dimension], self.algorithms[dimension]
        # An all-to-all has nothing to reduce or gather on the way: where links join all pairs it takes them.
        if kind == "all-to-all" and links.kind in ("switch", "fully-connected"):
            algorithm = "direct"
        return stage(kind, algorithm, links.size)

    def rates_s(self, kind: StageKind) -> Floats:
        """The seconds that a byte of a stage's buffer costs on each dimension."""
        return np.array([self.stage(kind, i).sent / links.bandwidth_Bps for i, links in enumerate(self.dimensions)])

    def latencies_s(self, kind: StageKind) -> Floats:
        """The latency of a stage on each dimension."""
        return np.array([self.stage(kind, i).steps * links.latency_s for i, links in enumerate(self.dimensions)])

    @property
    def sizes(self) -> Ints:
        return np.array([dimension.size for dimension in self.dimensions], dtype=np.int64)


def request(
    kind: str, bytes_: float, dimensions: Sequence[Dimension], *, algorithms: Sequence[Algorithm | None] | None = None
) -> Request:
    """A collective to schedule.

    Args:
        kind: one of ``STAGE_KINDS``.
        bytes_: the full buffer.
        dimensions: inner to outer.
        algorithms: of each dimension; None is the usual one of its kind.

    Raises:
        UnknownName: there is no such kind.
        Unsupported: a dimension cannot carry its algorithm, or there are too many dimensions or
            accelerators.
    """
    if kind not in STAGE_KINDS:
        raise UnknownName("collective", str(kind), STAGE_KINDS)
    if not dimensions:
        raise BadInput("there is no dimension", where="dimensions", remedy="give one, as ring:8:50GB/s:1us")
    count = prod(dimension.size for dimension in dimensions)
    if count < 2:
        raise BadInput("one accelerator has nobody to talk to", where="dimensions")
    if count > MAX_ACCELERATORS:
        problem = f"{count:.3g} accelerators"
        raise Unsupported(problem, where="dimensions", remedy=f"give {MAX_ACCELERATORS:,} at most")
    # Quantities with which no time could be computed.
    if not 1.0 <= bytes_ <= LARGEST:
        raise BadInput(f"{bytes_:g} bytes", where="size", remedy=f"give 1 to {LARGEST:g} bytes")
    for number, dimension in enumerate(dimensions, start=1):
        if not 1.0 <= dimension.bandwidth_Bps <= LARGEST:
            problem = f"bandwidth {dimension.bandwidth_Bps:g} B/s"
            raise BadInput(problem, where=f"dimension {number}", remedy=f"give 1 to {LARGEST:g} B/s")
        if dimension.latency_s > LONGEST_STEP_S:
            problem = f"a step of {dimension.latency_s:g} s"
            raise BadInput(problem, where=f"dimension {number}", remedy=f"give {LONGEST_STEP_S:g} s at most")
    if sum(dimension.size > 1 for dimension in dimensions) > MOST_DIMENSIONS:
        raise Unsupported(f"{len(dimensions)} dimensions", where="dimensions", remedy=f"{MOST_DIMENSIONS} at most")
    wanted = algorithms if algorithms is not None else [None] * len(dimensions)
    if len(wanted) != len(dimensions):
        raise BadInput(f"{len(wanted)} algorithms for {len(dimensions)} dimensions", where="algorithms")
    chosen = [choose(dimension, name) for dimension, name in zip(dimensions, wanted, strict=True)]
    return Request(
        kind=kind,
        bytes=float(bytes_),
        dimensions=tuple(dimensions),
        algorithms=tuple(name for name, _ in chosen),
        notes=tuple(f"dimension {i + 1}: {note}" for i, (_, note) in enumerate(chosen) if note),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Chunks of a request.

    ``orders`` has a row of dimensions for each chunk, in the order in which it visits them; of an all-reduce
    that is the reduce-scatter, and ``gathers`` is the order of the all-gather.  ``fused``: the last
    reduce-scatter and the first all-gather, on one dimension, are a single operation, as in ASTRA-sim's
    baseline; in-switch and double-tree all-reduces always are.

    ``ranks``, where a policy fixes it, is the place of each stage among those of its dimension, made for
    ``active`` chunks at a time.
    """

    request: Request
    policy: str
    chunk_bytes: Floats
    orders: Ints
    gathers: Ints | None = None
    fused: bool = False
    ranks: Ints | None = None
    active: int | None = None

    def __len__(self) -> int:
        return len(self.chunk_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """All stages of a schedule's chunks, a chunk's stages one after the other.

    ``kind`` indexes ``STAGE_KINDS``; ``before_bytes`` and ``after_bytes`` are what an accelerator holds.
    """

    chunk: Ints
    dimension: Ints
    kind: Ints
    before_bytes: Floats
    after_bytes: Floats
    sent_bytes: Floats
    work_s: Floats
    latency_s: Floats

    def passages(self, rule: QueueRule = "fifo") -> Passages:
        """The stages as operations of one task; the size that ``rule`` looks at is that before an operation, or the
        larger of both."""
        larger = self.before_bytes if rule == "paper-scf" else np.maximum(self.before_bytes, self.after_bytes)
        return Passages(
            dimension=self.dimension,
            work_s=self.work_s,
            latency_s=self.latency_s,
            key_bytes=larger,
            chunk=self.chunk,
            task=np.zeros(len(self.chunk), dtype=np.int64),
        )


OUTER_FIRST = ("all-gather", "broadcast")


def baseline_order(collective: Request) -> Ints:
    """Dimensions in the usual order of the collective's kind."""
    inner_first = np.array(collective.used, dtype=np.int64)
    return inner_first[::-1] if collective.kind in OUTER_FIRST else inner_first


def mirrored(orders: Ints) -> Ints:
    """All-gather orders that take back what the reduce-scatter orders do."""
    return np.ascontiguousarray(orders[:, ::-1])


def stages_of(schedule: Schedule, *, whole_ns: bool = False) -> Stages:
    """The stages of every chunk.

    Args:
        whole_ns: round the time of every step up to whole nanoseconds, as ASTRA-sim does.
    """
    collective, orders = schedule.request, schedule.orders
    sizes = collective.sizes.astype(np.float64)
    if collective.kind == "all-reduce":
        assert schedule.gathers is not None
        # A reduce-scatter leaves 1/size of what was held in each dimension, an all-gather multiplies it again.
        down = _held(schedule.chunk_bytes, sizes[orders], shrink=True)
        total = float(np.prod(sizes))
        up = _held(schedule.chunk_bytes / total, sizes[schedule.gathers], shrink=False)
        dimension = np.concatenate([orders, schedule.gathers], axis=1)
        before = np.concatenate([down[:, :-1], up[:, :-1]], axis=1)
        after = np.concatenate([down[:, 1:], up[:, 1:]], axis=1)
        # First all reduce-scatters, then all all-gathers; where both meet on one dimension they may be one operation.
        kind = np.repeat([STAGE_KINDS.index("reduce-scatter"), STAGE_KINDS.index("all-gather")], orders.shape[1])
        kinds = np.tile(kind, (len(orders), 1))
        keep = _fuse(schedule, kinds, after)
    else:
        if collective.kind == "reduce-scatter":
            sizes_held = _held(schedule.chunk_bytes, sizes[orders], shrink=True)
        elif collective.kind == "all-gather":
            sizes_held = _held(schedule.chunk_bytes / float(np.prod(sizes)), sizes[orders], shrink=False)
        else:
            sizes_held = np.repeat(schedule.chunk_bytes[:, None], orders.shape[1] + 1, axis=1)
        dimension, before, after = orders, sizes_held[:, :-1], sizes_held[:, 1:]
        kinds = np.full(orders.shape, STAGE_KINDS.index(collective.kind))
        keep = np.ones(orders.shape, dtype=bool)
    chunk = np.repeat(np.arange(len(orders)), dimension.shape[1]).reshape(dimension.shape)
    return _priced(collective, chunk[keep], dimension[keep], kinds[keep], before[keep], after[keep], whole_ns=whole_ns)


def _held(first: Floats, sizes: Floats, *, shrink: bool) -> Floats:
    """Bytes held before, between and after the stages of each chunk."""
    factors = np.cumprod(sizes, axis=1)
    if shrink:
        factors = 1.0 / factors
    result: Floats = first[:, None] * np.concatenate([np.ones((len(first), 1)), factors], axis=1)
    return result


def _fuse(schedule: Schedule, kinds: Ints, after: Floats) -> Mask:
    """Make one operation of the two stages at the turn where they are one; returns which stages stay."""
    keep = np.ones(kinds.shape, dtype=bool)
    assert schedule.gathers is not None
    width = schedule.orders.shape[1]
    if not width:
        return keep
    collective = schedule.request
    at_once = np.array(
        [
            schedule.fused or collective.stage("all-reduce", i).algorithm in ONE_OPERATION
            for i in range(len(collective.sizes))
        ]
    )
    # The last reduce-scatter becomes an all-reduce that ends with what the first all-gather would have; that one goes.
    turn = schedule.orders[:, -1]
    fused = (turn == schedule.gathers[:, 0]) & at_once[turn]
    kinds[fused, width - 1] = STAGE_KINDS.index("all-reduce")
    after[fused, width - 1] = after[fused, width]
    keep[fused, width] = False
    return keep


def _priced(
    collective: Request, chunk: Ints, dimension: Ints, kind: Ints, before: Floats, after: Floats, *, whole_ns: bool
) -> Stages:
    buffer = np.maximum(before, after)
    sent, latency, work = np.zeros(len(chunk)), np.zeros(len(chunk)), np.zeros(len(chunk))
    # Each kind of stage on each dimension has one cost (`stages.stage`): bytes and latency follow from the buffer.
    for code in np.unique(kind):
        name = STAGE_KINDS[code]
        for i in collective.used:
            links = collective.dimensions[i]
            priced = (kind == code) & (dimension == i)
            cost = collective.stage(name, i)
            sent[priced] = buffer[priced] * cost.sent
            latency[priced] = cost.steps * links.latency_s
            seconds = sent[priced] / links.bandwidth_Bps
            work[priced] = _in_whole_ns(seconds, cost, name) if whole_ns else seconds
    return Stages(
        chunk=chunk,
        dimension=dimension,
        kind=kind,
        before_bytes=before,
        after_bytes=after,
        sent_bytes=sent,
        work_s=work,
        latency_s=latency,
    )


def _in_whole_ns(seconds: Floats, cost: StageCost, kind: StageKind) -> Floats:
    """Seconds with each step rounded up: equal steps, or halving-doubling's, each half of the one before."""
    # ASTRA-sim counts whole nanoseconds per step; 1e-9 of a nanosecond is rounding of ours.
    share = np.full(cost.steps, 1.0 / cost.steps)
    if cost.algorithm == "halving-doubling":
        rounds = cost.steps // 2 if kind == "all-reduce" else cost.steps
        once = 0.5 ** np.arange(1, rounds + 1)
        share = np.tile(once, cost.steps // rounds) / (once.sum() * (cost.steps // rounds))
    steps = seconds[:, None] / NS * share
    rounded: Floats = np.ceil(steps - 1e-9).sum(axis=1) * NS
    return rounded


def equal_chunks(collective: Request, chunks: int) -> Floats:
    """The request's bytes in equal parts."""
    if not 1 <= chunks <= MOST_CHUNKS:
        raise BadInput(f"{chunks} chunks", where="chunks", remedy=f"give 1 to {MOST_CHUNKS}")
    if collective.bytes / chunks < SMALLEST_CHUNK_BYTES:
        raise BadInput(f"{chunks} chunks of {collective.bytes:g} bytes", where="chunks", remedy="give fewer")
    return np.full(chunks, collective.bytes / chunks)
