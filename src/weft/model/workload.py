"""Work of one iteration as tasks that wait for each other: for anything that is not a planned transformer.

A task computes for some seconds, or communicates.  One rank stands for all: every rank runs the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Literal

from weft.errors import BadInput

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
    assumptions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadInput("has no tasks", where=self.name)
        for number, task in enumerate(self.tasks):
            if any(not 0 <= other < len(self.tasks) for other in task.waits):
                raise BadInput(f"waits for a task that does not exist: {task.waits}", where=_at(self, number))
            if not 0 <= task.seconds < 1e9:
                raise BadInput(f"takes {task.seconds:g} s", where=_at(self, number))
            if task.communication is not None and task.seconds > 0:
                raise BadInput("computes and communicates: make two tasks of it", where=_at(self, number))
            if task.communication is not None and not 0 <= task.communication.bytes < 1e18:
                raise BadInput(f"moves {task.communication.bytes:g} bytes", where=_at(self, number))
        _check_circles(self)

    @property
    def compute_s(self) -> float:
        """Seconds of all computations."""
        return fsum(task.seconds for task in self.tasks)


def followers(tasks: Sequence[Task]) -> list[list[int]]:
    """The tasks that wait for each task."""
    found: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for other in task.waits:
            found[other].append(number)
    return found


def _check_circles(workload: Workload) -> None:
    after = followers(workload.tasks)
    left = [len(task.waits) for task in workload.tasks]
    able = [number for number, count in enumerate(left) if not count]
    done = 0
    while able:
        done += 1
        for other in after[able.pop()]:
            left[other] -= 1
            if not left[other]:
                able.append(other)
    if done < len(left):
        number = next(number for number, count in enumerate(left) if count)
        raise BadInput("tasks wait for each other in a circle", where=_at(workload, number))


def _at(workload: Workload, number: int) -> str:
    return f"{workload.name}: task {number} ({workload.tasks[number].name[:60]})"
