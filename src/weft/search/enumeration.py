"""Spaces of layouts, and every layout of one in batches: meshes, then micro-batches and schedules, then switches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from weft.errors import BadInput, UnknownName
from weft.layout.check import CODES, check_runnable, reject
from weft.layout.mesh import degrees
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.table import COLUMNS, Floats, Index, Ints, LayoutTable, Mask, collapse, decode, encode
from weft.model.job import Job
from weft.model.spec import Model
from weft.solvers import divisors

BOUNDED = (
    *("x", "y", "z", "data", "data_parallel", "pipeline", "context", "expert", "expert_tensor"),
    *("micro_batch", "virtual_stages"),
)
"""Fields that can have a maximum."""
RECOMPUTE_SHARES = (0.25, 0.5, 0.75)
"""Shares of a stage's layers that partial recomputation tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search may turn.

    Degrees run over all divisors; ``fixed`` pins a field of ``Layout`` to values, ``maximum`` bounds a degree.
    The other fields list the values of each switch.
    """

    name: str
    y: bool = False
    schedules: tuple[PipelineSchedule, ...] = (PipelineSchedule.PLAIN, PipelineSchedule.INTERLEAVED)
    zero: tuple[int, ...] = (0, 1, 2)
    zero_with_z: bool = False
    any_expert_tensor: bool = False
    recompute: tuple[Recompute, ...] = tuple(Recompute)
    partial_recompute: bool = True
    sequence_parallel: tuple[bool, ...] = (False, True)
    overlap_tensor: tuple[TensorOverlap, ...] = (TensorOverlap.BACKWARD,)
    overlap_reduce: tuple[bool, ...] = (True,)
    overlap_gather: tuple[bool, ...] = (True,)
    offload_optimizer: tuple[bool, ...] = (False,)
    offload_activations: tuple[bool, ...] = (False,)
    order: tuple[str, ...] = AXES
    fixed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    maximum: dict[str, int] = field(default_factory=dict)

    def allows(self, name: str, value: int) -> bool:
        """Whether the constraints admit a value of a field (vocabulary fields by code)."""
        if name in self.fixed and value not in self.fixed[name]:
            return False
        return value <= self.maximum.get(name, value)

    def constrained(self, fixed: Mapping[str, int | str | bool], maximum: Mapping[str, int]) -> Space:
        """This space with fields pinned (by their values in ``Layout``; ``data_parallel`` is z * data) or
        bounded."""
        for name in maximum:
            if name not in BOUNDED:
                raise BadInput(f"{name} has no maximum", where="maximum", remedy=f"bound one of {', '.join(BOUNDED)}")
        if fixed.get("recompute_layers") and fixed.get("recompute", Recompute.FULL) != Recompute.FULL:
            raise BadInput("recompute_layers needs recompute = full", where="fixed", remedy="fix recompute = full too")
        pinned = {name: (encode(name, value),) for name, value in fixed.items()}
        return replace(
            self,
            y=self.y or "y" in fixed or "y" in maximum,
            fixed=self.fixed | pinned,
            maximum=self.maximum | dict(maximum),
        )

    def bounds(self) -> dict[str, Any]:
        """What pins and bounds the fields, with vocabulary fields by name; ``bounded`` reads it back."""
        fixed = {name: tuple(decode(name, value) for value in values) for name, values in self.fixed.items()}
        return {"fixed": fixed, "maximum": dict(self.maximum)}

    def bounded(self, fixed: Mapping[str, Sequence[Any]], maximum: Mapping[str, int], *, where: str) -> Space:
        """This space with ``bounds``.

        Raises:
            BadInput: a value is none of its field's.
        """
        try:
            pinned = {field: tuple(encode(field, value) for value in values) for field, values in fixed.items()}
        except (TypeError, ValueError):
            raise BadInput("holds a value that its field does not take", where=where) from None
        return replace(self, y=self.y or "y" in pinned or "y" in maximum, fixed=pinned, maximum=dict(maximum))


def runnable(space: Space, model: Model) -> Space:
    """The part of a space that ``weft.runtime`` trains, as ``weft.layout.step.check_runnable`` has it.

    Raises:
        Unsupported: the runtime does not train the model.
        BadInput: the space pins what the runtime lacks.
    """
    check_runnable(model, Layout())
    heads = gcd(*(attention.kv_heads for attention in model.attentions))
    trained: dict[str, tuple[int, ...]] = {}
    if not any(kind.moe for kind in model.kinds):
        trained |= dict.fromkeys(("expert", "expert_tensor"), (1,))
    trained |= dict.fromkeys(("offload_optimizer", "offload_activations"), (0,))
    trained["x"] = tuple(divisors(heads))
    trained["schedule"] = tuple(
        schedule.code for schedule in PipelineSchedule if not (schedule.wraps and model.tied_embeddings)
    )
    tried = {
        "schedule": tuple(encode("schedule", schedule) for schedule in space.schedules),
        "offload_optimizer": tuple(map(int, space.offload_optimizer)),
        "offload_activations": tuple(map(int, space.offload_activations)),
    } | space.fixed
    pinned: dict[str, tuple[int, ...]] = {}
    for name, values in trained.items():
        pinned[name] = tuple(value for value in tried.get(name, values) if value in values)
        if not pinned[name]:
            raise BadInput(
                f"no value of {name} that is tried can be trained",
                where="runnable",
                remedy=f"choose {' or '.join(str(decode(name, value)) for value in values)}",
            )
    return replace(space, fixed=space.fixed | pinned)


STANDARD = Space(name="standard")
"""What Megatron-LM and torchtitan both run, with overlap on, which never loses to the same layout without."""

ZERO_BUBBLE = replace(
    STANDARD,
    name="zero-bubble",
    schedules=tuple(schedule for schedule in PipelineSchedule if schedule is not PipelineSchedule.INTERLEAVED),
)
"""With pipeline schedules that split the backward pass, instead of the interleaved one."""

FOUR_D = replace(STANDARD, name="4d", y=True)
"""With AxoNN's y axis, which none of the launchers runs."""

WIDE = replace(
    FOUR_D,
    name="wide",
    schedules=tuple(PipelineSchedule),
    overlap_tensor=tuple(TensorOverlap),
    overlap_reduce=(False, True),
    overlap_gather=(False, True),
    offload_optimizer=(False, True),
    offload_activations=(False, True),
    zero_with_z=True,
    any_expert_tensor=True,
)
"""Every switch that Weft models."""

SPACES = {space.name: space for space in (STANDARD, ZERO_BUBBLE, FOUR_D, WIDE)}


def named_space(name: object) -> Space:
    """The space of a name.

    Raises:
        UnknownName: there is none.
    """
    if not isinstance(name, str) or name not in SPACES:
        raise UnknownName("space", str(name)[:40], SPACES)
    return SPACES[name]


MESH_AXES = ("x", "y", "z", "data", "pipeline", "context", "expert", "expert_tensor")
FRAME_RULES = (
    "batch-not-divisible",
    "ulysses-heads",
    "too-many-stages",
    "schedule-mismatch",
    "interleaving-rounds",
    "pipeline-starved",
    "experts-not-divisible",
)
"""Rejections that no switch changes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Valid layouts of a part of the space, with how many others of it each code rejects.

    ``mesh`` numbers the mesh (all degrees) of each row; rows of one mesh are contiguous.
    """

    table: LayoutTable
    mesh: Ints
    rejected: Ints


@dataclass(frozen=True, slots=True)
class SwitchGrid:
    """Frames that share their switches, with sequence parallelism on or off, each to be crossed with all settings.

    ``frames`` are places in a list of frames, ``entries`` of settings in the part's ``SwitchTable``, in order, whose
    switches are ``columns``.
    """

    frames: Index
    entries: Index
    columns: dict[str, Ints]

    def axes(self, *names: tuple[str, ...]) -> tuple[dict[str, Ints], Index]:
        """Distinct settings of the switches of each name, as columns with leading axes, an axis for each ``names``
        and one of length 1 for the rows; and the place in the product of those axes of each of ``entries``."""
        columns: dict[str, Ints] = {}
        place = np.zeros(len(self.entries), dtype=np.intp)
        for i, some in enumerate(names):
            groups = collapse([self.columns[name] for name in some])
            shape = (len(groups.first), *(1,) * (len(names) - i))
            columns |= {name: self.columns[name][groups.first].reshape(shape) for name in some}
            place = place * len(groups.first) + groups.group
        return columns, place


class Enumeration:
    """All layouts of a space for a job on ``count`` accelerators.

    Meshes, and then micro-batches and schedules, that break a rule whatever the switches are counted once in
    ``rejected`` and dropped; with the others every combination of switches is tried.  Rows that mean the same (a
    switch without effect) appear once.  ``parts`` walks through the meshes, so that memory does not grow with the
    space.
    """

    def __init__(self, job: Job, count: int, space: Space) -> None:
        self.job, self.count, self.space = job, count, space
        self.rejected = np.zeros(len(CODES), dtype=np.int64)
        meshes = self._meshes()
        verdict = reject(job, count, meshes, mesh_alone=True)
        np.add.at(self.rejected, verdict[verdict >= 0], 1)
        self.meshes = meshes.take(verdict < 0)
        self._grid = cache(self._made_grid)

    def parts(self, frames: int = 100_000) -> Iterator[Frames]:
        """The space in order, in parts of whole meshes with about so many frames."""
        keys = self._keys()
        sizes = [len(self._grid(*key)) for key in keys]
        for (share, _, _), size in zip(keys, sizes, strict=True):
            if not size:
                possible = self._options("micro_batch", divisors(share))
                code = "schedule-mismatch" if possible else "batch-not-divisible"
                self.rejected[CODES.index(code)] += 1
        ends = np.cumsum(np.array(sizes, dtype=np.int64))
        # Whole meshes, as many as fit into ``frames``, but at least one: searchsorted counts the ends within the
        # limit.
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = max(int(np.searchsorted(ends, before + frames, side="right")), start + 1)
            numbers = np.arange(start, stop)
            yield self._part(numbers, keys, self.rejected)
            start = stop

    def sample(self, meshes: int) -> Frames:
        """So many meshes spread over the space."""
        numbers = np.sort(np.random.default_rng(0).permutation(len(self.meshes))[:meshes])
        return self._part(numbers, self._keys(), np.zeros_like(self.rejected))

    def _part(self, numbers: Ints, keys: list[tuple[int, int, bool]], rejected: Ints) -> Frames:
        """Frames of the given meshes that some setting of the switches can run; the others count once in
        ``rejected``."""
        # FRAME_RULES read no switch, so that the verdict on a frame with neutral switches holds for all of its
        # layouts.
        pieces = [self._grid(*keys[number]) for number in numbers]
        mesh = np.repeat(numbers, [len(piece) for piece in pieces])
        names = ("micro_batch", "schedule", "virtual_stages", "context_method")
        frames = self.meshes.take(mesh, dict(zip(names, np.concatenate(pieces).T.copy(), strict=True)))
        verdict = reject(self.job, self.count, frames)
        dropped = np.isin(verdict, [CODES.index(code) for code in FRAME_RULES])
        np.add.at(rejected, verdict[dropped], 1)
        return Frames(self.job, self.count, self.space, frames.take(~dropped), mesh[~dropped])

    # Meshes ------------------------------------------------------------------------------------

    def _options(self, name: str, values: Sequence[int]) -> list[int]:
        return [value for value in values if self.space.allows(name, value)]

    def _meshes(self) -> LayoutTable:
        """Every factorisation of the world, crossed with the experts' degrees."""
        # x * y * z * data * pipeline * context = count. Each loop takes a divisor of what those around it leave, and
        # data is the rest, so that every factorisation comes exactly once.
        rows: list[tuple[int, ...]] = []
        for x in self._options("x", divisors(self.count)):
            for y in self._options("y", divisors(self.count // x) if self.space.y else [1]):
                for pipeline in self._options("pipeline", divisors(self.count // (x * y))):
                    stage = self.count // (x * y * pipeline)
                    for context in self._options("context", divisors(stage)):
                        copies = stage // context
                        rows += [
                            (x, y, z, copies // z, pipeline, context)
                            for z in self._options("z", divisors(copies))
                            if self.space.allows("data", copies // z) and self.space.allows("data_parallel", copies)
                        ]
        degrees_of_axes = np.array(rows, dtype=np.int64).reshape(-1, 6).T.copy()
        # Other columns are neutral.
        columns = dict.fromkeys(COLUMNS, np.zeros(len(rows), dtype=np.int64))
        columns |= dict.fromkeys((*MESH_AXES, "micro_batch", "virtual_stages"), np.ones(len(rows), dtype=np.int64))
        columns |= zip(("x", "y", "z", "data", "pipeline", "context"), degrees_of_axes, strict=True)
        return self._with_experts(LayoutTable(**columns, order=self.space.order))

    def _with_experts(self, table: LayoutTable) -> LayoutTable:
        routed = [kind.moe for kind in self.job.model.kinds if kind.moe]
        if not routed:
            dense = self.space.allows("expert", 1) and self.space.allows("expert_tensor", 1)
            return table if dense else table.take(np.zeros(0, dtype=np.intp))
        # All kinds of routed blocks share one degree: it divides the experts of each, thus their greatest common
        # divisor.
        experts = self._options("expert", divisors(int(np.gcd.reduce([moe.experts for moe in routed]))))
        tensors = self._options("expert_tensor", divisors(int(max(table.x, default=1))))
        pairs = np.array([(e, t) for e in experts for t in tensors], dtype=np.int64).reshape(-1, 2)
        # Every mesh with every pair of degrees, pairs fastest.
        which = np.tile(np.arange(len(pairs)), len(table))
        degrees_of_experts = {"expert": pairs[which, 0], "expert_tensor": pairs[which, 1]}
        crossed = table.take(np.repeat(np.arange(len(table)), len(pairs)), degrees_of_experts)
        usual = (crossed.expert_tensor == 1) | (crossed.expert_tensor == crossed.x)
        # Experts are dealt over ranks of a stage, and expert tensor parallelism within groups of x: both must divide.
        keep = (crossed.stage_ranks % (crossed.expert * crossed.expert_tensor) == 0) & (
            crossed.x % crossed.expert_tensor == 0
        )
        # The usual values are 1 and x; others are tried where the space says so or the user pins one.
        if not self.space.any_expert_tensor and "expert_tensor" not in self.space.fixed:
            keep &= usual
        return crossed.take(keep)

    # Frames: mesh, micro-batch, schedule ----------------------------------------------------------

    def _keys(self) -> list[tuple[int, int, bool]]:
        """What decides micro-batches and schedules of each mesh: share of the batch, pipeline, context."""
        shares = self.job.recipe.global_batch // (self.meshes.z * self.meshes.data)
        columns = (shares.tolist(), self.meshes.pipeline.tolist(), (self.meshes.context > 1).tolist())
        return list(zip(*columns, strict=True))

    def _made_grid(self, share: int, pipeline: int, in_context: bool) -> Ints:
        """Micro-batch, schedule, virtual stages and context method of a mesh, one combination a line."""
        # Where the sequence is not cut, the method has no effect: its first value stands for all.
        methods = self._options("context_method", list(range(len(ContextMethod))))
        rows = [
            (micro_batch, schedule, virtual, method)
            for micro_batch in self._options("micro_batch", divisors(share))
            for schedule, virtual in self._schedules(pipeline)
            for method in (methods if in_context else methods[:1])
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    def _schedules(self, pipeline: int) -> list[tuple[int, int]]:
        """Schedules with their virtual stages for a pipeline."""
        # Virtual stages divide the blocks of the largest stage; a schedule with a fixed number of chunks takes that
        # number.
        several = divisors(-(-self.job.model.layers // pipeline))[1:]
        return [
            (schedule.code, virtual)
            for schedule in (PipelineSchedule if pipeline > 1 else (PipelineSchedule.PLAIN,))
            for virtual in (several if schedule.chunks is None else (schedule.chunks,))
            if (schedule in self.space.schedules or "schedule" in self.space.fixed)
            and self.space.allows("schedule", schedule.code)
            and self.space.allows("virtual_stages", virtual)
        ]


class Frames:
    """Meshes with micro-batch and schedule, each to be crossed with its switches.

    ``mesh`` numbers the mesh of each frame; ``len`` is the number of layouts in all.
    """

    def __init__(self, job: Job, count: int, space: Space, frames: LayoutTable, mesh: Ints) -> None:
        self.space, self.frames, self.mesh = space, frames, mesh
        self.switches = SwitchTable(job, space, frames)
        # Of the switches, sequence parallelism alone decides whether a rule is broken (SwitchTable makes no
        # combination that breaks "recompute-layers"): two verdicts judge all layouts of a frame.
        flags = [frames.replaced({"sequence_parallel": np.full(len(frames), on)}) for on in (0, 1)]
        self._verdicts = np.stack([reject(job, count, flagged) for flagged in flags])

    def __len__(self) -> int:
        return int(self.switches.width.sum())

    def batches(self, frames: Index, rows: int = 131072) -> Iterator[Batch]:
        """The layouts of some frames in order, in batches of about ``rows``."""
        ends = np.cumsum(self.switches.width[frames])
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = max(int(np.searchsorted(ends, before + rows, side="right")), start + 1)
            yield self._batch(frames[start:stop])
            start = stop

    def rejected(self) -> Ints:
        """How many layouts each code rejects."""
        result = np.zeros(len(CODES), dtype=np.int64)
        for verdict, width in zip(self._verdicts, self.switches.widths, strict=True):
            broken = verdict >= 0
            np.add.at(result, verdict[broken], width[broken])
        return result

    def valid(self) -> Ints:
        """Layouts of each frame that no code rejects."""
        runs: Ints = (self.switches.widths * (self._verdicts < 0)).sum(axis=0)
        return runs

    def flagged(self, frames: Index, flag: int) -> tuple[Index, LayoutTable]:
        """Those of some frames that have layouts without (0) or with (1) sequence parallelism."""
        runs = frames[(self._verdicts[flag, frames] < 0) & (self.switches.widths[flag, frames] > 0)]
        return runs, self.frames.take(runs, {"sequence_parallel": np.full(len(runs), flag)})

    def grids(self, frames: Index, flag: int) -> Iterator[SwitchGrid]:
        """The layouts of ``flagged`` frames."""
        groups = self.switches.group[frames]
        for group in np.unique(groups):
            entries = self.switches.entries(int(group), flag)
            yield SwitchGrid(np.flatnonzero(groups == group), entries, self.switches.columns(entries))

    def batch(self, frames: Index, entries: Index) -> Batch:
        """Layouts of grids, a frame and an entry each."""
        table = self.frames.take(frames, self.switches.columns(entries))
        return Batch(table, self.mesh[frames], np.zeros(len(CODES), dtype=np.int64))

    def least_bytes(self, memory: Callable[[LayoutTable], Floats], enough: float) -> Floats:
        """Memory of each frame with the settings of the switches that need least, or with others that need at most
        ``enough``.

        Memory falls with sequence parallelism, ZeRO and offload; recomputation of some layers lies between none and
        all, or above.
        """
        options, frames = self.switches.values, self.frames
        # Every switch at the value that needs least; memory falls with each, whatever the others are.
        sharded = (frames.x > 1) & (frames.y == 1) & (options["sequence_parallel"].max() > 0)
        least = np.full(len(frames), np.inf)
        # Recomputation alone has no such order, so that each kind counts. The strongest comes first, as a frame that
        # it brings below ``enough`` needs no other.
        for recompute in np.unique(options["recompute"])[::-1]:
            rows = np.flatnonzero(least > enough)
            if len(rows):
                columns = {
                    name: np.full(len(rows), options[name].max())
                    for name in ("zero", "offload_optimizer", "offload_activations")
                }
                columns["sequence_parallel"] = sharded[rows].astype(np.int64)
                columns["recompute"] = np.full(len(rows), recompute)
                least[rows] = np.minimum(least[rows], memory(frames.take(rows, columns)))
        return least

    def _batch(self, frames: Index) -> Batch:
        row, columns = self.switches.crossed(frames)
        verdict = self._verdicts[columns["sequence_parallel"], row]
        rejected = np.bincount(verdict[verdict >= 0], minlength=len(CODES))
        if rejected.any():
            valid = np.flatnonzero(verdict < 0)
            row, columns = row[valid], {name: values[valid] for name, values in columns.items()}
        return Batch(self.frames.take(row, columns), self.mesh[row], rejected)


class SwitchTable:
    """Combinations of switches that differ in effect, for each frame.

    ``width`` counts them per frame, ``widths`` those without and with sequence parallelism.  Frames of which the same
    switches are idle share one list: their ``group``.
    """

    def __init__(self, job: Job, space: Space, frames: LayoutTable) -> None:
        self.space, self.routed = space, any(kind.moe for kind in job.model.kinds)
        self.values = self._product()
        # Which combinations differ follows from the idle switches and the blocks of a stage: frames that agree in both
        # share a list, and all lists lie one after another, group g from ``_start[g]`` to ``_start[g + 1]``.
        layers = -(-job.model.layers // frames.pipeline)
        names, flags = self._idle(frames)
        groups = collapse([*flags.astype(np.int64), layers])
        depth = layers[groups.first]
        differs = self._differs(dict(zip(names, flags[:, groups.first], strict=True)), depth)
        line, self._choice = np.nonzero(differs)
        self._layers = self._recomputed(depth)[line, self._choice]
        self.partial = bool(self._layers.any())
        self._start = np.concatenate(([0], np.cumsum(differs.sum(axis=1))))
        self.group = groups.group
        sharded = self.values["sequence_parallel"] == np.arange(2)[:, None, None]
        self.widths = (differs & sharded).sum(axis=2)[:, groups.group].astype(np.int64)
        self.width = self.widths.sum(axis=0)

    def crossed(self, frames: Ints) -> tuple[Index, dict[str, Ints]]:
        """The given frames with each of their combinations: frame per row, and the switches' columns."""
        width = self.width[frames]
        row = np.repeat(frames, width)
        # Row numbers less the number of each frame's first row: 0, 1, 2, ... within every frame.
        within = np.arange(len(row)) - np.repeat(np.cumsum(width) - width, width)
        return row, self.columns(self._start[self.group[row]] + within)

    def entries(self, group: int, flag: int) -> Index:
        """Numbers of the combinations of a group's frames without (0) or with (1) sequence parallelism."""
        entries = np.arange(self._start[group], self._start[group + 1])
        flagged: Index = entries[self.values["sequence_parallel"][self._choice[entries]] == flag]
        return flagged

    def columns(self, entries: Index) -> dict[str, Ints]:
        """The switches of combinations."""
        choice = self._choice[entries]
        columns = {name: values[choice] for name, values in self.values.items() if name != "share"}
        return columns | {"recompute_layers": self._layers[entries]}

    def _product(self) -> dict[str, Ints]:
        """The product of all switches; ``share`` numbers the share of recomputed layers (0: all)."""
        space = self.space
        options: dict[str, Sequence[object]] = {
            "zero": space.zero,
            "recompute": space.recompute,
            "share": range(1 + len(RECOMPUTE_SHARES) * space.partial_recompute),
            "sequence_parallel": space.sequence_parallel,
            "overlap_tensor": space.overlap_tensor,
            "overlap_reduce": space.overlap_reduce,
            "overlap_gather": space.overlap_gather,
            "offload_optimizer": space.offload_optimizer,
            "offload_activations": space.offload_activations,
        }
        if "recompute_layers" in space.fixed:
            options["share"] = (0,)
        if space.fixed.get("recompute_layers", (0,)) != (0,):
            options["recompute"] = (Recompute.FULL,)
        columns = []
        for name, values in options.items():
            codes = space.fixed[name] if name in space.fixed else [encode(name, value) for value in values]
            columns.append(np.array(codes, dtype=np.int64))
        grid = np.stack(np.meshgrid(*columns, indexing="ij")).reshape(len(columns), -1)
        # A share of the layers is only recomputed where blocks are recomputed whole.
        recompute, share = grid[list(options).index("recompute")], grid[list(options).index("share")]
        return dict(zip(options, grid[:, (recompute == Recompute.FULL.code) | (share == 0)], strict=True))

    def _idle(self, frames: LayoutTable) -> tuple[tuple[str, ...], Mask]:
        """Switches, and on which frames each is without effect (``overlap_gather`` also depends on ``zero``)."""
        # Ranks that hold the same weights: those of data, and those of context unless FSDP cuts over these too.
        sharded = frames.z > 1
        replicas = frames.data * np.where(sharded, 1, frames.context)
        copies = degrees(frames, "expert_data")
        expert_replicas = np.where(sharded, np.gcd(copies, frames.data), copies)
        alone = (replicas == 1) & ((not self.routed) | (expert_replicas == 1))
        # What each switch acts on: ZeRO on replicas, sequence parallelism on groups of x, overlap on what it hides.
        idle = {
            "zero": alone | (sharded & (not self.space.zero_with_z)),
            "sequence_parallel": (frames.x == 1) | (self.routed & (frames.y > 1)),
            "overlap_tensor": frames.x * frames.y == 1,
            "overlap_reduce": alone & ~sharded,
            "overlap_gather": ~sharded,
        }
        return tuple(idle), np.stack(list(idle.values()))

    def _differs(self, idle: dict[str, Mask], layers: Ints) -> Mask:
        """Which combinations differ in effect, shape (groups, combinations)."""
        keep = np.ones((len(layers), len(self.values["zero"])), dtype=bool)
        # A switch without effect keeps its first value: of the combinations that mean the same exactly one is left.
        for name, without_effect in idle.items():
            first = self.values[name] == self.values[name][0]
            if name == "overlap_gather":
                first = first | (self.values["zero"] > 0)
            keep &= ~without_effect[:, None] | first
        # With experts, sequence parallelism is needed where y = 1.
        if self.routed and self.values["sequence_parallel"].max():
            keep &= idle["sequence_parallel"][:, None] | (self.values["sequence_parallel"] > 0)
        # Partial recomputation of at least one layer, not all, and each number of layers once.
        if "recompute_layers" in self.space.fixed:
            keep &= self._recomputed(layers) <= layers[:, None]
            return keep
        # Rounded shares may coincide: a share is kept where it is above the one before and below all (which is share
        # 0).
        shares = np.rint(np.array([0.0, *RECOMPUTE_SHARES]) * layers[:, None])
        fresh = np.ones_like(shares, dtype=bool)
        fresh[:, 1:] = (shares[:, 1:] > shares[:, :-1]) & (shares[:, 1:] < layers[:, None])
        keep &= fresh[:, self.values["share"]]
        return keep

    def _recomputed(self, layers: Ints) -> Ints:
        """Recomputed layers of a stage for each group and combination (0: all)."""
        if "recompute_layers" in self.space.fixed:
            return np.full((len(layers), len(self.values["zero"])), self.space.fixed["recompute_layers"][0])
        share = np.array([0.0, *RECOMPUTE_SHARES])[self.values["share"]]
        return np.rint(share * layers[:, None]).astype(np.int64)
