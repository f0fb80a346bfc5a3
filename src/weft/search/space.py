"""Spaces of layouts: which degrees and switches a search tries, enumerated in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from weft.layout.check import CODES, reject, reject_mesh
from weft.layout.spec import AXES, CONTEXT_METHODS, RECOMPUTES, SCHEDULES, TENSOR_OVERLAPS
from weft.layout.table import COLUMNS, Ints, LayoutTable, Mask, encode
from weft.model.job import Job

FULL = RECOMPUTES.index("full")
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
RECOMPUTE_SHARES = (0.25, 0.5, 0.75)
"""Shares of a stage's layers that partial recomputation tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search may turn.

    Degrees run over all divisors; ``fixed`` pins a field of ``Layout`` to values, ``maximum`` bounds a
    degree.
    The other fields list the values of each switch.
    """

    name: str
    y: bool = False
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    zero: tuple[int, ...] = (0, 1, 2)
    recompute: tuple[str, ...] = RECOMPUTES
    partial_recompute: bool = True
    sequence_parallel: tuple[bool, ...] = (False, True)
    overlap_tensor: tuple[str, ...] = ("backward",)
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
        pinned = {name: (encode(name, value),) for name, value in fixed.items()}
        return replace(
            self,
            y=self.y or "y" in fixed or "y" in maximum,
            fixed=self.fixed | pinned,
            maximum=self.maximum | dict(maximum),
        )


STANDARD = Space(name="standard")
"""What Megatron-LM and torchtitan both run, with overlap on, which never loses to the same layout without."""

FOUR_D = replace(STANDARD, name="4d", y=True)
"""With AxoNN's y axis, which ``weft train`` runs."""

WIDE = replace(
    FOUR_D,
    name="wide",
    schedules=SCHEDULES,
    overlap_tensor=TENSOR_OVERLAPS,
    overlap_reduce=(False, True),
    overlap_gather=(False, True),
    offload_optimizer=(False, True),
    offload_activations=(False, True),
)
"""Every switch that Weft models."""

SPACES = {space.name: space for space in (STANDARD, FOUR_D, WIDE)}


@dataclass(frozen=True, slots=True)
class Batch:
    """Valid layouts of a part of the space, with how many others of it each code rejects.

    ``mesh`` numbers the mesh (all degrees) of each row; rows of one mesh are contiguous.
    """

    table: LayoutTable
    mesh: Ints
    rejected: Ints


def divisors(number: int) -> list[int]:
    """Divisors in increasing order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


class Enumeration:
    """All layouts of a space for a job on ``count`` accelerators.

    Meshes, and then micro-batches and schedules, that break a rule whatever the switches are counted once and
    dropped; with the others every combination of switches is tried.  Rows that mean the same (a switch without
    effect) appear once.
    """

    def __init__(self, job: Job, count: int, space: Space, rows: int = 32768) -> None:
        self.job, self.count, self.space, self.rows = job, count, space, rows
        self.rejected = np.zeros(len(CODES), dtype=np.int64)
        meshes = self._meshes()
        verdict = reject_mesh(job, count, meshes)
        np.add.at(self.rejected, verdict[verdict >= 0], 1)
        self.meshes = meshes.take(verdict < 0)
        self.frames, self.frame_mesh = self._runnable(*self._frames())
        self.switches = self._switches()

    def __len__(self) -> int:
        """Upper bound of the rows that ``batches`` walks through."""
        return len(self.frames) * len(self.switches["zero"])

    def batches(self) -> Iterator[Batch]:
        """The space in order, in batches of about ``rows``."""
        width = len(self.switches["zero"])
        step = max(1, self.rows // width)
        for start in range(0, len(self.frames), step):
            chosen = np.arange(start, min(start + step, len(self.frames)))
            frames = self.frames.take(chosen)
            table, share = self._crossed(frames)
            distinct = np.flatnonzero(self._distinct(table, share))
            table, mesh = table.take(distinct), self.frame_mesh[chosen][distinct // width]
            verdict = reject(self.job, self.count, table)
            rejected = np.bincount(verdict[verdict >= 0], minlength=len(CODES))
            valid = verdict < 0
            yield Batch(table.take(valid), mesh[valid], rejected)

    # Meshes ------------------------------------------------------------------------------------

    def _options(self, name: str, values: list[int]) -> list[int]:
        return [value for value in values if self.space.allows(name, value)]

    def _meshes(self) -> LayoutTable:
        """Every factorisation of the world, crossed with the experts' degrees."""
        rows: list[tuple[int, ...]] = []
        for x in self._options("x", divisors(self.count)):
            for y in self._options("y", divisors(self.count // x) if self.space.y else [1]):
                for pipeline in self._options("pipeline", divisors(self.count // (x * y))):
                    stage = self.count // (x * y * pipeline)
                    for context in self._options("context", divisors(stage)):
                        rest = stage // context
                        rows += [
                            (x, y, z, rest // z, pipeline, context)
                            for z in self._options("z", divisors(rest))
                            if self.space.allows("data", rest // z)
                            and self.space.allows("data_parallel", rest)
                        ]
        columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)] or [
            np.zeros(0, dtype=np.int64)
        ] * 6
        table = self._table(dict(zip(("x", "y", "z", "data", "pipeline", "context"), columns, strict=True)))
        return self._with_experts(table)

    def _table(self, columns: dict[str, Ints]) -> LayoutTable:
        """A table with the given columns and neutral values elsewhere."""
        length = len(columns["x"])
        neutral = {name: np.zeros(length, dtype=np.int64) for name in COLUMNS}
        for name in (*MESH_AXES, "micro_batch", "virtual_stages"):
            neutral[name] = np.ones(length, dtype=np.int64)
        return LayoutTable(**(neutral | columns), order=self.space.order)

    def _with_experts(self, table: LayoutTable) -> LayoutTable:
        routed = [kind.moe for kind in self.job.model.kinds if kind.moe]
        if not routed:
            return table
        experts = self._options("expert", divisors(int(np.gcd.reduce([moe.experts for moe in routed]))))
        tensors = self._options("expert_tensor", divisors(int(max(table.x, default=1))))
        pairs = np.array([(e, t) for e in experts for t in tensors], dtype=np.int64).reshape(-1, 2)
        crossed, which = _cross(table, len(pairs))
        crossed = crossed.replaced({"expert": pairs[which, 0], "expert_tensor": pairs[which, 1]})
        keep = (crossed.stage_ranks % (crossed.expert * crossed.expert_tensor) == 0) & (
            crossed.x % crossed.expert_tensor == 0
        )
        return crossed.take(keep)

    # Frames: mesh, micro-batch, schedule ----------------------------------------------------------

    def _frames(self) -> tuple[LayoutTable, Ints]:
        """Each mesh with every micro-batch, schedule and context method."""
        pieces, owners = [], []
        methods = [i for i in range(len(CONTEXT_METHODS)) if self.space.allows("context_method", i)]
        for index in range(len(self.meshes)):
            mesh = self.meshes.row(index)
            share = self.job.recipe.global_batch // (mesh.z * mesh.data)
            rows = [
                (micro_batch, schedule, virtual, method)
                for micro_batch in self._options("micro_batch", divisors(share))
                for schedule, virtual in self._schedules(mesh.pipeline)
                for method in (methods if mesh.context > 1 else methods[:1])
            ]
            if rows:
                pieces.append(np.array(rows, dtype=np.int64))
                owners.append(np.full(len(rows), index))
        if not pieces:
            return self.meshes.take(np.zeros(0, dtype=np.intp)), np.zeros(0, dtype=np.int64)
        owner, grid = np.concatenate(owners), np.concatenate(pieces)
        base = self.meshes.take(owner)
        names = ("micro_batch", "schedule", "virtual_stages", "context_method")
        return base.replaced({name: np.ascontiguousarray(grid[:, i]) for i, name in enumerate(names)}), owner

    def _runnable(self, frames: LayoutTable, mesh: Ints) -> tuple[LayoutTable, Ints]:
        """Frames that some setting of the switches can run; the others count once."""
        verdict = reject(self.job, self.count, frames)
        dropped = np.isin(verdict, [CODES.index(code) for code in FRAME_RULES])
        np.add.at(self.rejected, verdict[dropped], 1)
        return frames.take(~dropped), mesh[~dropped]

    def _schedules(self, pipeline: int) -> list[tuple[int, int]]:
        """Schedules with their virtual stages for a pipeline."""
        if pipeline == 1:
            pairs = [("1f1b", 1)]
        else:
            layers = -(-self.job.model.layers // pipeline)
            pairs = [
                ("1f1b", 1),
                *(("interleaved", v) for v in divisors(layers) if v > 1),
                ("zb1p", 1),
                ("zbv", 2),
            ]
        return [
            (SCHEDULES.index(schedule), virtual)
            for schedule, virtual in pairs
            if (schedule in self.space.schedules or "schedule" in self.space.fixed)
            and self.space.allows("schedule", SCHEDULES.index(schedule))
            and self.space.allows("virtual_stages", virtual)
        ]

    # Switches ------------------------------------------------------------------------------------

    def _switches(self) -> dict[str, Ints]:
        """The product of all switches; ``share`` numbers the share of recomputed layers (0: all)."""
        space = self.space
        options = {
            "zero": list(space.zero),
            "recompute": [RECOMPUTES.index(name) for name in space.recompute],
            "share": list(range(1 + len(RECOMPUTE_SHARES) * space.partial_recompute)),
            "sequence_parallel": [int(flag) for flag in space.sequence_parallel],
            "overlap_tensor": [TENSOR_OVERLAPS.index(name) for name in space.overlap_tensor],
            "overlap_reduce": [int(flag) for flag in space.overlap_reduce],
            "overlap_gather": [int(flag) for flag in space.overlap_gather],
            "offload_optimizer": [int(flag) for flag in space.offload_optimizer],
            "offload_activations": [int(flag) for flag in space.offload_activations],
        }
        for name in options:
            if name in space.fixed and name != "share":
                options[name] = list(space.fixed[name])
        if "recompute_layers" in space.fixed:
            options["share"] = [0]
        grid = np.meshgrid(*(np.array(values, dtype=np.int64) for values in options.values()), indexing="ij")
        flat = {name: values.ravel() for name, values in zip(options, grid, strict=True)}
        partial = (flat["recompute"] == FULL) | (flat["share"] == 0)
        return {name: values[partial] for name, values in flat.items()}

    def _crossed(self, frames: LayoutTable) -> tuple[LayoutTable, Ints]:
        """Every frame with every combination of switches, and the number of its share of recomputed
        layers."""
        table, which = _cross(frames, len(self.switches["zero"]))
        columns = {name: values[which] for name, values in self.switches.items() if name != "share"}
        number = self.switches["share"][which]
        layers = -(-self.job.model.layers // table.pipeline)
        columns["recompute_layers"] = np.rint(np.array([0.0, *RECOMPUTE_SHARES])[number] * layers).astype(
            np.int64
        )
        if "recompute_layers" in self.space.fixed:
            columns["recompute_layers"][:] = self.space.fixed["recompute_layers"][0]
        return table.replaced(columns), number

    def _distinct(self, table: LayoutTable, share: Ints) -> Mask:
        """One of each set of rows whose difference has no effect: the first value of an idle switch."""
        idle = {
            "zero": table.data * np.where(table.z > 1, 1, table.context) == 1,
            "sequence_parallel": table.x == 1,
            "overlap_tensor": table.x * table.y == 1,
            "overlap_reduce": table.data * table.z * table.context == 1,
            "overlap_gather": (table.z == 1) & ((table.zero == 0) | (table.data * table.context == 1)),
        }
        keep = np.ones(len(table), dtype=bool)
        for name, without_effect in idle.items():
            keep &= ~without_effect | (table.column(name) == self.switches[name].min())
        layers = -(-self.job.model.layers // table.pipeline)
        partial = share > 0
        return keep & (~partial | ((table.recompute_layers > 0) & (table.recompute_layers < layers)))


def _cross(table: LayoutTable, width: int) -> tuple[LayoutTable, Ints]:
    """Each row ``width`` times in a row, and the number of each repetition."""
    repeated = table.take(np.repeat(np.arange(len(table)), width))
    return repeated, np.tile(np.arange(width), len(table))
