"""Work of one iteration as tasks that wait for each other: for anything that is not a planned transformer.

A task computes for some seconds, or communicates.  One rank stands for all: every rank runs the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from math import fsum
from typing import Literal

from weft.codec import decode
from weft.documents import parse_toml
from weft.errors import BadInput, UnknownName

CommunicationKind = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "send", "barrier"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """A collective of a group, or a message.

    ``bytes`` is the full buffer: reduced (all-reduce, reduce), gathered (all-gather), before scattering
    (reduce-scatter), sent by one rank to all (all-to-all), passed on (broadcast, send); 0 for a barrier.
    ``dimensions`` are the network's dimensions that the group spans, inner to outer from 0; None is all of
    them.  Where the group is not made of whole dimensions, ``factors`` says (size, distance in ranks) of its
    parts, inner to outer, as 8 neighbours are ((8, 1),).  ``ranks`` names its members where that is known.
    """

    kind: CommunicationKind
    bytes: float
    dimensions: tuple[int, ...] | None = None
    factors: tuple[tuple[int, int], ...] | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``seconds`` of computation, or a communication; it begins when all tasks in ``waits`` have ended."""

    name: str
    seconds: float = 0.0
    communication: Communication | None = None
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tasks in program order (computations that could begin together run in it); who waits for whom.

    ``assumptions`` says in words what the source left open.

    Raises:
        BadInput: a task waits for one that does not exist, does both, or takes or moves no sensible amount;
            or tasks wait for each other in a circle.
    """

    name: str
    tasks: tuple[Task, ...]
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadInput("has no tasks", where=self.name)
        for number, task in enumerate(self.tasks):
            if any(not 0 <= wait < len(self.tasks) for wait in task.waits):
                raise BadInput(f"waits for a task that does not exist: {task.waits}", where=_at(self, number))
            if not 0 <= task.seconds < 1e9:
                raise BadInput(f"takes {task.seconds:g} s", where=_at(self, number))
            if task.communication is not None and task.seconds > 0:
                raise BadInput("computes and communicates: make two tasks of it", where=_at(self, number))
            if task.communication is not None and not 0 <= task.communication.bytes < 1e18:
                raise BadInput(f"moves {task.communication.bytes:g} bytes", where=_at(self, number))
        try:
            TopologicalSorter({number: task.waits for number, task in enumerate(self.tasks)}).prepare()
        except CycleError as error:
            where = _at(self, min(error.args[1]))
            raise BadInput("tasks wait for each other in a circle", where=where) from None

    @property
    def compute_s(self) -> float:
        """Seconds of all computations."""
        return fsum(task.seconds for task in self.tasks)


def followers(tasks: Sequence[Task]) -> list[list[int]]:
    """The tasks that wait for each task."""
    result: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for wait in task.waits:
            result[wait].append(number)
    return result


def _at(workload: Workload, number: int) -> str:
    return f"{workload.name}: task {number} ({workload.tasks[number].name[:60]})"


SCALE = 0.26
"""Factor on the compute times of Themis' public inputs."""
ASSUMED = (f"compute times are those of the public inputs times {SCALE}", "all gradients are reduced at once")


@cache
def workloads() -> dict[str, Workload]:
    """The workloads of Themis' evaluation (arXiv 2110.04478) whose inputs are public."""
    text = files("weft.model").joinpath("data", "workloads.toml").read_text(encoding="utf-8")
    tables = decode(dict[str, tuple[Task, ...]], parse_toml(text, "workloads.toml"), "workloads.toml")
    scaled = {
        name: tuple(replace(task, seconds=SCALE * task.seconds) for task in tasks) for name, tasks in tables.items()
    }
    return {name: Workload(name=name, tasks=tasks, assumptions=ASSUMED) for name, tasks in scaled.items()}


def workload(name: str) -> Workload:
    """A workload by name.

    Raises:
        UnknownName: there is none.
    """
    if name not in workloads():
        raise UnknownName("workload", name, workloads())
    return workloads()[name]
