"""Routers compared: the same jobs replayed with each, on a fabric with more and more of its spines down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.routing.events import Event
from weft.routing.traffic import JobTraffic
from weft.simulation.routes.replay import Replay, replay

Progress = Callable[[int, int], object]
"""Told how many replays of how many are done."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedJobs:
    """Jobs under a name."""

    name: str
    traffic: JobTraffic

    @property
    def rings(self) -> list[int]:
        """Ranks of the ring that each collective is, where it is a ring all-reduce; 1 where it is none."""
        return [rounds // 2 + 1 if rounds % 2 == 0 else 1 for rounds in self.traffic.rounds.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One workload with one router and some spines down."""

    workload: NamedJobs
    failed_spines: int
    replay: Replay


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Rows by workload, then spines down, then router, in the orders given."""

    fabric: str
    epochs: int
    seed: int
    controller: str
    rows: tuple[Row, ...]


def evaluate(
    fabric: Fabric,
    workloads: Sequence[NamedJobs],
    *,
    routers: Sequence[str],
    failed_spines: Sequence[int] = (0,),
    epochs: int = 10,
    seed: int = 0,
    split: int = 2,
    controller: str = "held",
    events: Sequence[Event] = (),
    progress: Progress | None = None,
) -> Evaluation:
    """Replay every workload with every router, with the last spines of the fabric down.

    Raises:
        UnknownName: there is no such router or controller.
        BadInput: more spines down than there are; flows that cannot be routed.
        Unsupported: a router that does not apply.
    """
    broken = [with_spines_down(fabric, count) for count in failed_spines]
    total = len(workloads) * len(broken) * len(routers)
    rows: list[Row] = []
    for workload in workloads:
        for count, rest in zip(failed_spines, broken, strict=True):
            for router in routers:
                if progress is not None:
                    progress(len(rows), total)
                done = replay(
                    rest,
                    workload.traffic,
                    router,
                    epochs=epochs,
                    seed=seed,
                    split=split,
                    controller=controller,
                    events=events,
                )
                rows.append(Row(workload=workload, failed_spines=count, replay=done))
    return Evaluation(fabric=fabric.name, epochs=epochs, seed=seed, controller=controller, rows=tuple(rows))


def with_spines_down(fabric: Fabric, count: int) -> Fabric:
    """The fabric without its last spines.

    Raises:
        BadInput: it has not more spines than that.
    """
    spines = fabric.nodes_of("spine")
    if count and not 0 < count < len(spines):
        raise BadInput(
            f"{count} of {len(spines)} spines down",
            where="--failed-spines",
            remedy=f"give 0 to {max(len(spines) - 1, 0)}",
        )
    return fabric.failed(nodes=spines[len(spines) - count :]) if count else fabric
