"""The search: every layout of a space, ranked among those that fit by iteration time and by what it is to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from weft.cluster.calibration import USUAL_STACK, Calibration
from weft.cluster.spec import Cluster
from weft.errors import BadInput, NothingFeasible
from weft.estimation.iteration import Estimator
from weft.estimation.offload import pinned_capacity
from weft.estimation.result import COLUMNS, Estimate, EstimateTable
from weft.estimation.single import estimate_of
from weft.estimation.training import TrainingRun
from weft.layout.check import CODES, explain
from weft.layout.spec import Layout, Recompute
from weft.layout.table import Floats, Index, Ints, LayoutTable, Mask
from weft.model.job import Job
from weft.model.text import job_from_dict, job_to_dict
from weft.records import Reader, number, table_of
from weft.results import Result
from weft.search.ease import Ease
from weft.search.enumeration import Batch, Enumeration, Frames
from weft.search.space import STANDARD, Space
from weft.search.ties import Choice, Facts, Tie, held
from weft.units import format_bytes

HOPELESS = 1.25
"""Frames that need this many times the capacity at their leanest are not timed."""
ALIKE = 0.03
"""Layouts closer than this in time are alike."""
WORTHWHILE = 0.99
"""Advice must promise at least this share of the best iteration time."""
ORDERS = ("ease", "time")
"""How layouts are ranked: by time and what each is to run (``weft.search.ease``), or by time alone."""
DOES_NOT_FIT, HOST_MEMORY = CODES.index("does-not-fit"), CODES.index("host-memory")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many layouts a rejection code took."""

    code: str
    layouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The layout that lacks least memory of those that would be faster than all that fit.

    ``change`` is the single change that lets it fit at the least cost in time; ``accepted`` is the changed layout,
    None where no switch suffices.
    """

    rejected: Estimate
    change: str
    accepted: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Result):
    """Ranked layouts of a job on a cluster.

    ``considered`` counts feasible and rejected layouts; ``evaluated`` those whose time was computed, without those
    that lack so much memory that no switch helps.  ``layouts`` are feasible, in ``order``, then by memory, then by
    order of enumeration; ``ties`` say of each which others cannot be told apart from it, ``choice`` what being first
    is worth (both empty where no error between layouts is known, as with a user's constants).  ``pareto`` are the
    feasible ones that no other beats in both time and memory, by time.  ``stack`` is the software that trains.
    ``runs`` are whole training runs with the ``layouts``, in their order, where they were asked for.
    """

    SCHEMA = "weft.plan/1"
    COLUMNS = ("rank", "model", "cluster", *COLUMNS, *Tie.__slots__)

    job: Job
    cluster: Cluster
    space: Space
    memory_margin: float
    per_mesh: bool
    constants: Calibration
    stack: str
    order: str
    considered: int
    evaluated: int
    feasible: int
    rejected: tuple[Count, ...]
    layouts: tuple[Estimate, ...]
    pareto: tuple[Estimate, ...]
    advice: Advice | None
    ties: tuple[Tie, ...] = ()
    choice: Choice | None = None
    runs: tuple[TrainingRun, ...] = ()

    @property
    def best(self) -> Estimate:
        """The first layout.

        Raises:
            NothingFeasible: none fits; says how many fell to which rule.
        """
        if not self.layouts:
            raise NothingFeasible(f"{self.shortage} -- see weft explain CODE")
        return self.layouts[0]

    @property
    def shortage(self) -> str:
        """How many layouts fell to which rule."""
        counts = ", ".join(f"{each.code} {each.layouts:,}" for each in self.rejected)
        return f"none of {self.considered:,} layouts is feasible ({counts})"

    def to_dicts(self) -> list[dict[str, Any]]:
        """The ranked layouts, a row each, under ``COLUMNS``: degrees, switches, totals in SI units, parts, ties."""
        named = {"model": self.job.model.name, "cluster": self.cluster.name}
        rows = [{"rank": rank} | named | one.row() for rank, one in enumerate(self.layouts, 1)]
        return [row | tie for row, tie in zip(rows, self._ties(), strict=True)]

    def _ties(self) -> list[dict[str, Any]]:
        """Group and chance of each layout; None where they are not known."""
        unknown = dict.fromkeys(Tie.__slots__)
        return [asdict(one) for one in self.ties] + [unknown] * (len(self.layouts) - len(self.ties))

    def _document(self) -> dict[str, Any]:
        from weft.cluster.files import cluster_to_dict  # pydantic loads only for files

        layouts = [{"rank": rank} | one.to_dict() for rank, one in enumerate(self.layouts, 1)]
        layouts = [layout | tie for layout, tie in zip(layouts, self._ties(), strict=True)]
        for layout, run in zip(layouts, self.runs, strict=False):
            layout["run"] = run.to_dict()
        return {
            "considered": self.considered,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "rejected": {count.code: count.layouts for count in self.rejected},
            "job": job_to_dict(self.job),
            "cluster": cluster_to_dict(self.cluster),
            "space": self.space.name,
            "search": self.space.bounds()
            | {"memory_margin": self.memory_margin, "per_mesh": self.per_mesh, "order": self.order},
            "stack": self.stack,
            "calibration": asdict(self.constants),
            "defaults": [*self.job.defaults, *self.cluster.defaults],
            "advice": None if self.advice is None else _advice_to_dict(self.advice),
            "choice": None
            if self.choice is None
            else asdict(self.choice) | {"fastest": self.choice.fastest.to_dict()},
            "layouts": layouts,
            "pareto": [one.to_dict() for one in self.pareto],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, where: str = "plan") -> Plan:
        """The plan that ``to_dict`` wrote.

        Raises:
            BadInput: a field is missing, of the wrong kind, or no layout of the plan's job and cluster.
        """
        from weft.cluster.files import cluster_from_dict

        table_of(document, where)
        if missing := [name for name in _KEYS if name not in document]:
            raise BadInput(f"{missing[0]} is missing", where=where)
        cluster = cluster_from_dict(document["cluster"], where=f"{where}: cluster")
        search = table_of(document["search"], f"{where}: search")

        def estimates(name: str) -> tuple[Estimate, ...]:
            listed = document[name]
            if not isinstance(listed, list):
                raise BadInput("is not a list", where=f"{where}: {name}")
            places = [f"{where}: {name}[{i}]" for i in range(len(listed))]
            return tuple(
                Estimate.from_dict(one, where=place, world=cluster.count)
                for one, place in zip(listed, places, strict=True)
            )

        ranked = document["layouts"] if isinstance(document["layouts"], list) else []
        runs = [one["run"] for one in ranked if isinstance(one, Mapping) and "run" in one]
        counts = {name: int(number(document[name], f"{where}: {name}")) for name in _COUNTS}
        return cls(
            job=job_from_dict(document["job"], where=f"{where}: job"),
            cluster=cluster,
            space=Space.of_bounds(document["space"], search, where=f"{where}: search"),
            memory_margin=number(search.get("memory_margin"), f"{where}: search.memory_margin"),
            per_mesh=bool(search.get("per_mesh")),
            constants=_PLAIN.read(Calibration, document["calibration"], f"{where}: calibration"),
            stack=str(document.get("stack", USUAL_STACK)),
            order=str(search.get("order", "time")),
            **counts,
            rejected=tuple(
                Count(code=str(code), layouts=int(number(count, f"{where}: rejected.{code}")))
                for code, count in table_of(document["rejected"], f"{where}: rejected").items()
            ),
            layouts=estimates("layouts"),
            pareto=estimates("pareto"),
            advice=_advice_from_dict(document["advice"], cluster.count, f"{where}: advice"),
            ties=tuple(
                _PLAIN.read(Tie, {name: one.get(name) for name in Tie.__slots__}, f"{where}: layouts")
                for one in ranked
                if isinstance(one, Mapping) and one.get("group") is not None
            ),
            choice=_choice_from_dict(document.get("choice"), cluster.count, f"{where}: choice"),
            runs=tuple(TrainingRun.from_dict(run, where=f"{where}: run") for run in runs),
        )

    def _facts(self) -> Sequence[str]:
        subject = f"{self.job.model.name} on {self.cluster.name}"
        counts = f"{self.considered:,} layouts considered, {self.feasible:,} fit"
        best = [f"best {' '.join(self.best.short_row().values())}"] if self.layouts else []
        return (subject, counts, *best)

    def _shown(self) -> list[dict[str, Any]]:
        return [{"rank": rank} | one.short_row() for rank, one in enumerate(self.layouts, 1)]


_COUNTS = ("considered", "evaluated", "feasible")
_KEYS = (*_COUNTS, "rejected", "job", "cluster", "space", "search", "calibration", "advice", "layouts", "pareto")
_PLAIN = Reader(least=0)


def _advice_to_dict(advice: Advice) -> dict[str, Any]:
    accepted = advice.accepted
    return {
        "change": advice.change,
        "rejected": advice.rejected.to_dict(),
        "accepted": None if accepted is None else accepted.to_dict(),
    }


def _advice_from_dict(raw: object, world: int, where: str) -> Advice | None:
    if raw is None:
        return None
    table = table_of(raw, where)
    accepted = table.get("accepted")
    return Advice(
        rejected=Estimate.from_dict(table.get("rejected"), where=f"{where}.rejected", world=world),
        change=str(table.get("change")),
        accepted=None if accepted is None else Estimate.from_dict(accepted, where=f"{where}.accepted", world=world),
    )


def _choice_from_dict(raw: object, world: int, where: str) -> Choice | None:
    if raw is None:
        return None
    table = table_of(raw, where)
    fastest = Estimate.from_dict(table.get("fastest"), where=f"{where}.fastest", world=world)
    facts = {name: value for name, value in table.items() if name != "fastest"}
    return Choice(fastest=fastest, **asdict(_PLAIN.read(Facts, facts, where)))


@dataclass(slots=True)
class _Kept:
    """Rows worth keeping: their layouts, what they are ordered by, memory and place in the enumeration."""

    layouts: list[Layout]
    keys: list[float]
    bytes_: list[float]
    meshes: list[int]

    def order(self) -> list[int]:
        keys = range(len(self.layouts))
        return sorted(keys, key=lambda i: (self.keys[i], self.bytes_[i], i))


def plan(
    job: Job,
    cluster: Cluster,
    *,
    space: Space = STANDARD,
    top: int = 10,
    per_mesh: bool = False,
    memory_margin: float = 0.0,
    constants: Calibration | None = None,
    stack: str = USUAL_STACK,
    order: str = "ease",
    progress: Progress | None = None,
) -> Plan:
    """Search a space exhaustively.

    Args:
        job: model and recipe.
        cluster: accelerators and tiers.
        space: degrees and switches to try.
        top: how many layouts to return.
        per_mesh: keep only the best layout of each mesh.
        memory_margin: share of the accelerator's memory to leave free.
        constants: calibration; the shipped one by default.
        stack: the software that trains, which decides what is usual.
        order: one of ``ORDERS``.
        progress: called with meshes done and meshes in all.

    Raises:
        Unsupported: the accelerator lacks the recipe's precision.
    """
    estimator = Estimator(job, cluster, constants)
    enumeration = Enumeration(job, cluster.count, space)
    ease = _ease(job, cluster, stack, memory_margin)
    search = _Search(estimator, top, per_mesh, ease.capacity_bytes, ease if order == "ease" else None)
    rejected = np.zeros(len(CODES), dtype=np.int64)
    done = 0
    for part in enumeration.parts():
        promising, hopeless = search.divide(part)
        for batch in part.batches(promising):
            rejected += batch.rejected
            search.add(batch)
        for batch in part.batches(hopeless):
            rejected += batch.rejected
            rejected[DOES_NOT_FIT] += len(batch.table)
        done = int(part.mesh[-1]) + 1 if len(part.mesh) else done
        if progress is not None:
            progress(done, len(enumeration.meshes))
    rejected += enumeration.rejected
    rejected[DOES_NOT_FIT] += search.evaluated - search.feasible - search.unpinned
    rejected[HOST_MEMORY] += search.unpinned
    found = Plan(
        job=job,
        cluster=cluster,
        space=space,
        memory_margin=memory_margin,
        per_mesh=per_mesh,
        constants=estimator.constants,
        stack=stack,
        order=order,
        considered=search.feasible + int(rejected.sum()),
        evaluated=search.evaluated,
        feasible=search.feasible,
        rejected=_counts(rejected),
        layouts=search.ranked(),
        pareto=search.frontier(),
        advice=search.advice(),
    )
    return _judged(found)


def _counts(rejected: Ints) -> tuple[Count, ...]:
    """What fell to each rule, most first."""
    ordered = sorted(zip(CODES, rejected, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple(Count(code=code, layouts=int(number)) for code, number in ordered if number)


def _ease(job: Job, cluster: Cluster, stack: str, memory_margin: float) -> Ease:
    return Ease(job, cluster, stack, (1 - memory_margin) * cluster.accelerator.memory_bytes)


def _judged(found: Plan) -> Plan:
    """A plan with its ties and its choice; what comes first by ease but is told apart from the fastest, does not."""
    if not found.layouts or not found.constants.shipped:
        return found
    fastest = found.pareto[0]
    ease = _ease(found.job, found.cluster, found.stack, found.memory_margin)
    against = held(found.layouts, fastest)
    if against is None:
        return found
    order = list(range(len(found.layouts)))
    if found.order == "ease":
        ahead = next((i for i, tie in enumerate(against.ties) if tie.group == 1), 0)
        order.insert(0, order.pop(ahead))
    layouts = tuple(found.layouts[i] for i in order)
    ties = tuple(against.ties[i] for i in order if i < len(against.ties))
    own = ease.does(layouts[0].layout)
    spared = sorted((habit for habit in ease.does(fastest.layout) if habit not in own), key=lambda one: -one.price)
    choice = Choice(
        fastest=fastest,
        chance=ties[0].chance,
        fastest_chance=against.fastest.chance,
        candidates=against.candidates,
        pairs=against.contrast.pairs,
        jobs=against.contrast.jobs,
        sources=against.contrast.sources,
        reasons=tuple(habit.words for habit in spared if habit.price),
        unusual=tuple(habit.words for habit in own if habit.unusual),
    )
    return replace(found, layouts=layouts, ties=ties, choice=choice)


def distinct(found: Plan, top: int) -> Plan:
    """A plan with at most ``top`` layouts, without those that only deal the same ranks differently.

    A layout is left out that shares tensor, pipeline and expert degrees with one ahead of it, differs in how the
    other ranks are divided among context, z and data, and takes less than ``ALIKE`` more time.
    """
    kept: list[int] = []
    for i, one in enumerate(found.layouts):
        alike = (
            _family(other.layout) == _family(one.layout) and one.iteration_s < (1 + ALIKE) * other.iteration_s
            for other in (found.layouts[j] for j in kept)
        )
        if len(kept) < top and not any(alike):
            kept.append(i)
    return _judged(replace(found, layouts=tuple(found.layouts[i] for i in kept)))


def _family(layout: Layout) -> tuple[int, ...]:
    return layout.x, layout.y, layout.pipeline, layout.expert, layout.expert_tensor


class _Search:
    """Folds batches of estimates into the best, the Pareto frontier and the fastest that does not fit."""

    def __init__(
        self, estimator: Estimator, top: int, per_mesh: bool, capacity_bytes: float, ease: Ease | None
    ) -> None:
        self.estimator, self.top, self.per_mesh, self.capacity = estimator, top, per_mesh, capacity_bytes
        self.pinned = pinned_capacity(estimator.cluster.accelerator)
        self.ease = ease
        self.evaluated = self.feasible = self.unpinned = 0
        self.leanest = np.inf
        self.best = _Kept([], [], [], [])
        self.front = _Kept([], [], [], [])
        self.misfits = _Kept([], [], [], [])

    def divide(self, part: Frames) -> tuple[Index, Index]:
        """Frames worth evaluating, and those that do not fit by far whatever their switches.

        While nothing fits, the leanest frame so far is evaluated all the same, for the sake of advice.
        """
        if not len(part.frames):
            return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
        least = np.full(len(part.frames), np.inf)
        for table in part.leanest():
            least = np.minimum(least, self.estimator.memory_bytes(table))
        promising = least <= HOPELESS * self.capacity
        if not self.feasible and not promising.any() and least.min() < self.leanest:
            self.leanest = float(least.min())
            promising[np.argmin(least)] = True
        return np.flatnonzero(promising), np.flatnonzero(~promising)

    def add(self, batch: Batch) -> None:
        """Evaluate a batch and keep what may matter."""
        if not len(batch.table):
            return
        results = self.estimator.evaluate(batch.table)
        pinned = results.memory.host_bytes <= self.pinned
        on_device = results.memory_bytes <= self.capacity
        fits = on_device & pinned
        self.evaluated += len(fits)
        self.unpinned += int((on_device & ~pinned).sum())
        self.feasible += int(fits.sum())
        keys = results.iteration_s
        if self.ease is not None:
            keys = keys * (1.0 + self.ease.efforts(batch.table, results.memory_bytes))
        self._keep_best(batch, results, np.where(fits, keys, np.inf))
        self.front = self._with_front(self.front, batch, results, fits)
        self.misfits = self._with_front(self.misfits, batch, results, ~on_device & pinned)

    def _keep_best(self, batch: Batch, results: EstimateTable, keys: Floats) -> None:
        worst = self.best.keys[-1] if len(self.best.keys) >= self.top else np.inf
        rows = np.flatnonzero((keys <= worst) & np.isfinite(keys))
        if not len(rows):
            return
        rows = rows[np.lexsort((rows, results.memory_bytes[rows], keys[rows]))]
        if self.per_mesh:
            _, first = np.unique(batch.mesh[rows], return_index=True)
            rows = rows[np.sort(first)]
        self._extend(self.best, batch, results, keys, rows[: self.top])
        order, seen = [], set[int]()
        for i in self.best.order():
            if self.per_mesh and self.best.meshes[i] in seen:
                continue
            seen.add(self.best.meshes[i])
            order.append(i)
        self.best = _pick(self.best, order[: self.top])

    def _with_front(self, front: _Kept, batch: Batch, results: EstimateTable, kept: Mask) -> _Kept:
        """A Pareto frontier of time and memory, sorted by time, with the rows of a batch that ``kept``
        marks."""
        seconds, bytes_ = results.iteration_s, results.memory_bytes
        rows = np.flatnonzero(kept)
        if front.layouts:
            known = np.searchsorted(front.keys, seconds[rows], side="right")
            rows = rows[bytes_[rows] < np.array([np.inf, *front.bytes_])[known]]
        if not len(rows):
            return front
        rows = rows[np.lexsort((rows, bytes_[rows], seconds[rows]))]
        self._extend(front, batch, results, seconds, rows[_records(bytes_[rows])])
        order = front.order()
        return _pick(front, [order[i] for i in _records(np.array([front.bytes_[i] for i in order]))])

    def _extend(self, kept: _Kept, batch: Batch, results: EstimateTable, keys: Floats, rows: Index | Ints) -> None:
        for row in rows:
            kept.layouts.append(batch.table.row(int(row)))
            kept.keys.append(float(keys[row]))
            kept.bytes_.append(float(results.memory_bytes[row]))
            kept.meshes.append(int(batch.mesh[row]))

    def ranked(self) -> tuple[Estimate, ...]:
        return self._estimates(self.best.layouts)

    def frontier(self) -> tuple[Estimate, ...]:
        return self._estimates(self.front.layouts)

    def _estimates(self, layouts: list[Layout]) -> tuple[Estimate, ...]:
        if not layouts:
            return ()
        results = self.estimator.evaluate(LayoutTable.of(layouts))
        return tuple(estimate_of(self.estimator, one, results, i) for i, one in enumerate(layouts))

    def advice(self) -> Advice | None:
        """What would let a faster layout fit: of those that lack memory the one that lacks least.

        Where layouts fit already, only gains of more than ``WORTHWHILE`` count.
        """
        limit = WORTHWHILE * self.front.keys[0] if self.front.keys else np.inf
        faster = [i for i, seconds in enumerate(self.misfits.keys) if seconds < limit]
        if not faster:
            return None
        layout = self.misfits.layouts[faster[-1]]
        rejected = self._estimates([layout])[0]
        job, count = self.estimator.job, self.estimator.cluster.count
        changes = [pair for pair in single_changes(layout) if explain(job, count, pair[1]) is None]
        fitting = [
            (change, estimate)
            for (change, _), estimate in zip(changes, self._estimates([c for _, c in changes]), strict=True)
            if estimate.memory_bytes <= self.capacity and estimate.fits_host and estimate.iteration_s < limit
        ]
        if fitting:
            change, accepted = min(fitting, key=lambda pair: (pair[1].iteration_s, pair[0]))
            return Advice(rejected=rejected, change=change, accepted=accepted)
        missing = f"{format_bytes(rejected.memory_bytes - self.capacity)} more memory per accelerator"
        return Advice(rejected=rejected, change=missing, accepted=None)


def single_changes(layout: Layout) -> list[tuple[str, Layout]]:
    """Layouts that differ in one switch or one halved micro-batch and may need less memory."""
    changes: list[tuple[str, Layout]] = []
    for recompute in (Recompute.SELECTIVE, Recompute.FULL):
        if layout.recompute != recompute:
            changed = replace(layout, recompute=recompute, recompute_layers=0)
            changes.append((f"recompute = {recompute}", changed))
    changes += [(f"zero = {zero}", replace(layout, zero=zero)) for zero in range(layout.zero + 1, 3)]
    if layout.micro_batch % 2 == 0:
        halved = layout.micro_batch // 2
        changes.append((f"micro_batch = {halved}", replace(layout, micro_batch=halved)))
    if not layout.sequence_parallel:
        changes.append(("sequence_parallel = true", replace(layout, sequence_parallel=True)))
    if not layout.offload_optimizer:
        changes.append(("offload_optimizer = true", replace(layout, offload_optimizer=True)))
    if not layout.offload_activations:
        changes.append(("offload_activations = true", replace(layout, offload_activations=True)))
    return changes


def _pick(kept: _Kept, rows: list[int]) -> _Kept:
    return _Kept(
        [kept.layouts[i] for i in rows],
        [kept.keys[i] for i in rows],
        [kept.bytes_[i] for i in rows],
        [kept.meshes[i] for i in rows],
    )


def _records(values: Floats) -> Index:
    """Positions whose value is below all before it."""
    least = np.minimum.accumulate(np.concatenate(([np.inf], values[:-1])))
    return np.flatnonzero(values < least)
