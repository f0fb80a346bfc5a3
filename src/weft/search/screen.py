"""Which layouts of a space are worth timing, and which of similar times comes first.

The memory of a layout is known exactly, so are the counts of those that fit.  No layout takes less time than the
blocks of its model do on perfectly even stages, nor less than that with the efforts of its frame.  One whose bound is
behind all that a plan keeps, and no way ahead in memory, cannot be in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from weft.cluster.spec import Cluster
from weft.estimation.frame import Frame
from weft.estimation.iteration import Estimator
from weft.estimation.iteration import least_s as frame_least_s
from weft.estimation.result import Estimate, EstimateTable
from weft.layout.spec import Layout, Recompute
from weft.layout.table import Floats, Index, Ints, LayoutTable, Mask
from weft.model.job import Job
from weft.search.enumeration import Batch, Enumeration, Frames, SwitchGrid

# Ease: which of layouts with similar times comes first, and which of them tie with the fastest --------

MECHANISM = 0.01
"""Share of the time that a mechanism must gain."""
UNUSUAL = 0.1
"""Share that what hardly any published run does must gain: about the error between layouts that differ by a
doubling of a degree."""
FULL, TIGHT = 0.8, 0.01
"""Memory in use beyond the share ``FULL`` of what may be used counts up to ``TIGHT``."""
SLICE = 4096
"""Tokens of a sequence that a context-parallel rank keeps in published runs, at least."""
CHUNKS = 12
"""Virtual stages that published runs have, at most."""
EXPERTS = 64
"""Experts of a layer that a rank holds in published runs, at most."""
FULLY_SHARDED = (
    *("fsdp", "torchtitan", "torchtitan-2024", "nemo-automodel", "maxtext", "maxtext-gpu", "llm-foundry", "axonn"),
)
"""Software whose own way is to shard weights (FSDP), not to replicate them."""
ZERO_BUBBLE = ("hai-llm", "torchtitan", "torchtitan-2024")
"""Software that runs pipeline schedules with split backward passes."""


class Habit(NamedTuple):
    """Something that a layout may do: ``words`` name it, ``price`` is a share of the time."""

    words: str
    price: float


class Ease:
    """Efforts of the layouts of a job on a cluster, trained by a software.

    Args:
        capacity_bytes: memory of an accelerator that may be used.
    """

    def __init__(self, job: Job, cluster: Cluster, stack: str, capacity_bytes: float) -> None:
        self.stack, self.capacity_bytes = stack, capacity_bytes
        self.domain, self.sequence, self.layers = cluster.tiers[0].size, job.recipe.sequence, job.model.layers
        self.experts = max((kind.moe.experts for kind in job.model.kinds if kind.moe), default=0)

    def efforts(self, table: LayoutTable, memory_bytes: Floats) -> Floats:
        """Shares of their times that layouts must gain by what they do."""
        used = memory_bytes / self.capacity_bytes
        efforts: Floats = TIGHT * np.clip((used - FULL) / (1 - FULL), 0.0, 1.0)
        for _, price, does in self._habits(table):
            efforts += price * does
        return efforts

    def does(self, layout: Layout) -> tuple[Habit, ...]:
        """What a layout does of what counts."""
        habits = self._habits(LayoutTable.of([layout]))
        return tuple(Habit(words, price) for words, price, does in habits if does[0])

    def _habits(self, t: LayoutTable) -> list[tuple[str, float, Mask]]:
        """What a layout may do, the price of it, and the rows that do."""
        sharded, stack = self.stack in FULLY_SHARDED, self.stack
        replicas, pipe = t.data > 1, t.pipeline > 1
        # Stages differ, also where embedding and loss count as a layer each (Megatron-Core's
        # account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split).
        chunks = t.pipeline * t.virtual_stages
        unequal = (self.layers % chunks > 0) & ((self.layers + 1) % chunks > 0) & ((self.layers + 2) % chunks > 0)
        return [
            ("tensor parallelism", MECHANISM, t.x > 1),
            ("AxoNN's y axis", 0.0 if stack == "axonn" else UNUSUAL, t.y > 1),
            ("a pipeline", MECHANISM, pipe),
            ("interleaving", MECHANISM, t.scheduled("rounds")),
            ("context parallelism", MECHANISM, t.context > 1),
            ("expert parallelism", MECHANISM, t.expert > 1),
            ("weights sharded (FSDP)", 0.0 if sharded else MECHANISM, t.z > 1),
            (
                "FSDP together with tensor, context or pipeline parallelism",
                MECHANISM if sharded else UNUSUAL,
                (t.z > 1) & ((t.x > 1) | (t.context > 1) | pipe),
            ),
            ("FSDP within replicas (HSDP)", MECHANISM, (t.z > 1) & replicas),
            ("recomputation", MECHANISM, t.recompute != Recompute.NONE.code),
            ("recomputation of some layers", MECHANISM, t.recompute_layers > 0),
            ("optimizer offload", MECHANISM, t.offload_optimizer > 0),
            ("activation offload", MECHANISM, t.offload_activations > 0),
            ("ZeRO-2", 0.0 if stack == "deepspeed" else MECHANISM, (t.zero == 2) & (t.z == 1)),
            ("unequal pipeline stages", MECHANISM, unequal),
            ("a zero-bubble schedule", MECHANISM if stack in ZERO_BUBBLE else UNUSUAL, t.scheduled("splits_backward")),
            (f"tensor parallelism beyond the scale-up domain of {self.domain}", UNUSUAL, t.x * t.y > self.domain),
            (
                f"context parallelism with less than {SLICE:,} tokens a rank",
                UNUSUAL,
                (t.context > 1) & (self.sequence < SLICE * t.context),
            ),
            (f"more than {EXPERTS} experts a rank", UNUSUAL, t.expert * EXPERTS < self.experts),
            ("ZeRO-2 with a pipeline", UNUSUAL, (t.zero == 2) & (t.z == 1) & pipe),
            (f"more than {CHUNKS} virtual stages", UNUSUAL, t.virtual_stages > CHUNKS),
            (f"replicated weights with {stack}", UNUSUAL if sharded else 0.0, (t.z == 1) & replicas),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Why the first layout of a plan is first.

    Attributes:
        fastest: the layout of the least predicted time, of all that fit.
        pairs: of runs of ``jobs`` of so many ``sources``, which give the error between layouts.
        reasons: what the fastest does and the first does not, of what counts against a layout, dearest first.
        unusual: what the first does that hardly any published run does.
    """

    fastest: Estimate
    pairs: int
    jobs: int
    sources: int
    reasons: tuple[str, ...]
    unusual: tuple[str, ...]


# Screening --------------------------------------------------------------------------------------------

WORTHWHILE = 0.99
"""Advice must promise at least this share of the best iteration time."""


class Kept(NamedTuple):
    """A layout worth keeping: what it is ordered by (``key``, then ``bytes_``), and the number of its mesh."""

    key: float
    bytes_: float
    mesh: int
    layout: Layout


def _with_rows(kept: Sequence[Kept], batch: Batch, keys: Floats, bytes_: Floats, rows: Index) -> list[Kept]:
    """Layouts with rows of a batch, in order; of equals those of before come first."""
    added = [Kept(float(keys[i]), float(bytes_[i]), int(batch.mesh[i]), batch.table.row(int(i))) for i in rows]
    return sorted([*kept, *added], key=itemgetter(0, 1))


def _least_bytes(front: Sequence[Kept], seconds: Floats) -> Floats:
    """On a frontier by time, the least memory of what takes at most so long; infinite where nothing does."""
    # Along a frontier memory falls as time grows: the last entry in time needs least of all that are in time.
    bytes_ = np.array([np.inf, *(kept.bytes_ for kept in front)])
    result: Floats = bytes_[np.searchsorted([kept.key for kept in front], seconds, side="right")]
    return result


@dataclass(frozen=True, slots=True)
class Scale:
    """What layouts are judged by.

    ``top`` are kept, of each mesh only the best where ``per_mesh``; ``capacity_bytes`` may be used of an accelerator's
    memory and ``pinned_bytes`` of its host's; times count with the efforts of ``ease``, or alone.
    """

    top: int
    per_mesh: bool
    capacity_bytes: float
    pinned_bytes: float
    ease: Ease | None

    def fits(self, bytes_: Floats, host_bytes: Floats) -> tuple[Mask, Mask]:
        """What fits the accelerator, and what fits its host."""
        return bytes_ <= self.capacity_bytes, host_bytes <= self.pinned_bytes


class Fold:
    """The best of what was added, the Pareto frontier, and that of what lacks memory."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.best, self.front, self.misfits = list[Kept](), list[Kept](), list[Kept]()

    @property
    def limit_s(self) -> float:
        """Only what is faster is worth advice."""
        return WORTHWHILE * self.front[0].key if self.front else np.inf

    def add(self, batch: Batch, results: EstimateTable) -> None:
        """Keep what may matter of estimates of layouts that come behind all those of before."""
        on_device, pinned = self.scale.fits(results.memory_bytes, results.host_bytes)
        fits, keys = on_device & pinned, results.iteration_s
        if self.scale.ease is not None:
            keys = keys * (1.0 + self.scale.ease.efforts(batch.table, results.memory_bytes))
        # What does not fit is never ranked, whatever its key.
        self._keep_best(batch, results, np.where(fits, keys, np.inf))
        self.front = self._with_front(self.front, batch, results, fits)
        self.misfits = self._with_front(self.misfits, batch, results, ~on_device & pinned)

    def open(self, least_s: Floats, least_key: Floats, bytes_: Floats, fits: Mask, misfits: Mask) -> Mask:
        """Which of layouts that fit or lack only memory may still matter: they need ``bytes_``, take more than
        ``least_s`` and have keys above ``least_key``."""
        # A layout matters in one of three ways, and its own figures are never below the bounds.
        # 1. It may be ranked: equal keys are ordered by memory, so that a key like the last one's is open.
        ranked = least_key <= self._worst()
        # 2. It may be on the frontier, unless something no slower than its bound needs as little memory: that also
        # beats the layout itself, which takes longer than its bound.
        ahead = ranked | (bytes_ < _least_bytes(self.front, least_s))
        # 3. It may be advised: the same on the frontier of what lacks memory.
        advised = (least_s < self.limit_s) & (bytes_ < _least_bytes(self.misfits, least_s))
        return (fits & ahead) | (misfits & advised)

    def _worst(self) -> float:
        return self.best[-1].key if len(self.best) >= self.scale.top else np.inf

    def _keep_best(self, batch: Batch, results: EstimateTable, keys: Floats) -> None:
        rows = np.flatnonzero((keys <= self._worst()) & np.isfinite(keys))
        if not len(rows):
            return
        # Best first: by key, then memory, then order of enumeration (lexsort takes its last key first).
        rows = rows[np.lexsort((rows, results.memory_bytes[rows], keys[rows]))]
        if self.scale.per_mesh:
            # The first row of a mesh is its best.
            _, first = np.unique(batch.mesh[rows], return_index=True)
            rows = rows[np.sort(first)]
        # Rows kept before come before those of this batch, so that equal ones stay in the order of enumeration.
        best = _with_rows(self.best, batch, keys, results.memory_bytes, rows[: self.scale.top])
        if self.scale.per_mesh:
            of_mesh: dict[int, Kept] = {}
            for kept in best:
                of_mesh.setdefault(kept.mesh, kept)
            best = list(of_mesh.values())
        self.best = best[: self.scale.top]

    def _with_front(self, front: list[Kept], batch: Batch, results: EstimateTable, eligible: Mask) -> list[Kept]:
        """A Pareto frontier of time and memory, sorted by time, with the rows of a batch that ``eligible`` marks."""
        seconds, bytes_ = results.iteration_s, results.memory_bytes
        rows = np.flatnonzero(eligible)
        # Dominated by what is kept already: something no slower needs as little.
        rows = rows[bytes_[rows] < _least_bytes(front, seconds[rows])]
        if not len(rows):
            return front
        rows = rows[np.lexsort((rows, bytes_[rows], seconds[rows]))]
        # Sorted by time, a row is on the frontier where its memory is below that of all before it; the frontier of
        # both lists together follows in the same way.
        front = _with_rows(front, batch, seconds, bytes_, rows[_records(bytes_[rows])])
        return [front[i] for i in _records(np.array([kept.bytes_ for kept in front]))]


def _records(values: Floats) -> Index:
    """Positions whose value is below all before it."""
    least = np.minimum.accumulate(np.concatenate(([np.inf], values[:-1])))
    return np.flatnonzero(values < least)


HOPELESS = 1.25
"""Frames that need this many times the capacity at their leanest are not compared."""
ROUNDING = 1e-9
"""Relative differences below this are rounding."""
ROWS = 16384
"""Layouts that are timed at once."""
FEW = 4096
"""The same where little is known yet."""
SHARE = 64
"""One mesh in so many is looked at ahead of all."""
MESHES = 256
"""Meshes that are looked at ahead, at least, where there are twice as many."""
MEMORY = (("zero",), ("recompute", "recompute_layers"), ("offload_optimizer",), ("offload_activations",))
"""Switches that memory depends on."""
OVERLAP = ("overlap_tensor", "overlap_reduce", "overlap_gather")


class _Worth(NamedTuple):
    """Layouts that may matter: numbers of frame and entry, what bounds them, and whether they fit."""

    frames: Index
    entries: Index
    least_s: Floats
    least_key: Floats
    bytes_: Floats
    fits: Mask

    def take(self, rows: Index | Mask | slice) -> _Worth:
        columns: Sequence[Any] = self
        return _Worth(*(column[rows] for column in columns))


class Screening:
    """Compares layouts, and folds those that may matter into ``fold``.

    ``compared`` counts layouts except the ``hopeless``, which lack so much memory that no switch helps; of them
    ``feasible`` fit, and ``unpinned`` lack only the host's memory.
    """

    def __init__(self, estimator: Estimator, scale: Scale) -> None:
        self.estimator, self.scale = estimator, scale
        # ``ahead`` holds what the sample found. It only rules layouts out and is never returned: its own layouts come
        # again in ``add``, and bounds lie below times (``ROUNDING``), so that none rules out itself.
        self.fold, self.ahead = Fold(scale), Fold(scale)
        self.compared = self.hopeless = self.feasible = self.unpinned = 0
        self.leanest = np.inf

    def sample(self, enumeration: Enumeration) -> None:
        """Look at some meshes first, so that what they have need not be undercut."""
        count = max(len(enumeration.meshes) // SHARE, MESHES)
        if 2 * count <= len(enumeration.meshes):
            before = Screening(self.estimator, self.scale)
            before.add(enumeration.sample(count), ordered=False)
            self.ahead = before.fold

    def add(self, part: Frames, *, ordered: bool = True) -> None:
        """Compare all layouts of a part of the space, which comes behind those of before; the best first, unless the
        first of equals is to be kept (``ordered``)."""
        promising = self._promising(part)
        every = part.valid()
        compared = int(every[promising].sum())
        self.compared, self.hopeless = self.compared + compared, self.hopeless + int(every.sum()) - compared
        some = [worth for flag in (0, 1) for worth in self._worth(part, np.flatnonzero(promising), flag)]
        if not some:
            return
        worth = _Worth(*map(np.concatenate, zip(*some, strict=True)))
        # In order of enumeration, the first of equals is found first. By bound, good layouts come early, and what they
        # rule out is never timed; which of equals is kept does not matter in a sample.
        worth = worth.take(np.lexsort((worth.entries, worth.frames) if ordered else (worth.least_key,)))
        rows = ROWS if ordered else FEW
        for start in range(0, len(worth.frames), rows):
            pending = worth.take(slice(start, start + rows))
            # The limits have fallen since these rows were collected: only those still open are timed.
            bounds = pending.least_s, pending.least_key, pending.bytes_, pending.fits, ~pending.fits
            pending = pending.take(self.fold.open(*bounds) & self.ahead.open(*bounds))
            if len(pending.frames):
                batch = part.batch(pending.frames, pending.entries)
                self.fold.add(batch, self.estimator.evaluate(batch.table))

    def _promising(self, part: Frames) -> Mask:
        """Frames that may fit, or nearly, with some setting of the switches."""
        enough = HOPELESS * self.scale.capacity_bytes
        least = part.least_bytes(self.estimator.memory_bytes, enough)
        promising: Mask = least <= enough
        # While nothing fits, the leanest of all parts so far counts, for advice: one that lacks more is no better.
        if not self.feasible and not promising.any() and least.min(initial=np.inf) < self.leanest:
            self.leanest = float(least.min())
            promising[np.argmin(least)] = True
        return promising

    def _worth(self, part: Frames, frames: Index, flag: int) -> Iterator[_Worth]:
        """Count layouts without or with sequence parallelism; those that may matter."""
        runs, table = part.flagged(frames, flag)
        if not len(runs):
            return
        # Sequence parallelism changes what ranks hold and send, so that each of its values has a frame and bounds.
        frame = self.estimator.frame(table, ordered=bool(part.switches.partial))
        least = least_s(part, frame)
        # Efforts of mesh and schedule alone: those of switches and of memory in use only add to them.
        efforts = 0.0 if self.scale.ease is None else self.scale.ease.efforts(table, np.zeros(len(table)))
        bounds = least, least * (1.0 + efforts)
        for grid in part.grids(runs, flag):
            worth = self._compared(grid, frame, *(bound[:, grid.frames] for bound in bounds))
            yield worth._replace(frames=runs[worth.frames])

    def _compared(self, grid: SwitchGrid, frame: Frame, least_s: Floats, least_key: Floats) -> _Worth:
        """Count the layouts of a grid, whose bounds are given by recomputation; those that may matter."""
        # Memory follows from few switches: it is computed for each distinct setting of these and counts ``times`` for
        # the layouts that share it. Settings that no layout has are not counted.
        switches, place = grid.axes(*MEMORY)
        device_bytes, hosted = (peak.reshape(-1, len(grid.frames)) for peak in frame.peaks(grid.frames, switches))
        on_device, pinned = self.scale.fits(device_bytes, hosted)
        times = np.bincount(place, minlength=len(device_bytes))
        counted = (times > 0)[:, None]
        fits, misfits = on_device & pinned & counted, ~on_device & pinned & counted
        self.feasible += int(times @ np.count_nonzero(fits, axis=1))
        self.unpinned += int(times @ np.count_nonzero(on_device & ~pinned, axis=1))
        code = np.zeros(len(device_bytes), dtype=np.intp)
        some = grid.columns["recompute_layers"] > 0  # which takes at least as long as none
        code[place] = np.where(some, Recompute.NONE.code, grid.columns["recompute"])
        least_s, least_key = least_s[code], least_key[code]
        # Both limits must leave a layout open; then its setting is expanded into the layouts that have it.
        known, ahead = (fold.open(least_s, least_key, device_bytes, fits, misfits) for fold in (self.fold, self.ahead))
        setting, at = np.nonzero(known & ahead)
        row, entry = _members(setting, place, times)
        setting, at = setting[row], at[row]
        bounds = least_s[setting, at], least_key[setting, at]
        return _Worth(grid.frames[at], grid.entries[entry], *bounds, device_bytes[setting, at], fits[setting, at])


def least_s(part: Frames, frame: Frame, *, bubble: bool = True) -> Floats:
    """Seconds that no layout undercuts with each kind of recomputation, shape (kinds, frames); infinite where no
    layout has it.  Without ``bubble`` nor does a pipeline that is stepped through."""
    options = part.switches.values
    some = [Recompute.NONE.code] if part.switches.partial else []
    codes = np.unique(np.concatenate([options["recompute"], np.array(some, dtype=np.int64)]))
    values = [codes, *(np.unique(options[name]) for name in OVERLAP)]
    axes = range(len(values), 0, -1)
    columns = [codes.reshape(-1, *(1,) * axis) for codes, axis in zip(values, axes, strict=True)]
    switches = dict(zip(("recompute", *OVERLAP), columns, strict=True))
    # The least over all overlap switches bounds the layouts with each of them.
    result = np.full((len(Recompute), len(frame)), np.inf)
    result[codes] = (1 - ROUNDING) * frame_least_s(frame, switches, bubble=bubble).min(
        axis=tuple(range(1, len(values)))
    )
    return result


def _members(setting: Index, place: Index, times: Ints) -> tuple[Index, Index]:
    """The entries at the places of ``setting``, of which each place has so many: which of ``setting``, and the
    entry."""
    # A stable sort by place puts the layouts of each setting in a row, the first of them at ``first``.
    width = times[setting]
    row = np.repeat(np.arange(len(setting)), width)
    within = np.arange(len(row)) - np.repeat(np.cumsum(width) - width, width)
    first = np.cumsum(times) - times
    return row, np.argsort(place, kind="stable")[first[setting[row]] + within]
