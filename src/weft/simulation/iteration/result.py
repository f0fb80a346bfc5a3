"""What the simulation of one training iteration returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from weft.cluster.spec import Cluster
from weft.codec import Document, encode
from weft.fabric.spec import Fabric, Floats
from weft.fabric.transport import carrier
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.results import Result

SpanKind = Literal["forward", "backward", "weight-gradient", "send", "weights", "gradients", "update", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow(Document):
    """One distinct collective: its groups over ``axes``, all of which run it at the same time.

    ``bytes`` is one call's full buffer as ``weft.layout.operations.Collective`` defines it (the mean over the
    calls), ``calls`` how often a rank of the busiest stage calls it in an iteration.  ``ideal_s`` is the
    transfer over ports alone, the fabric never being in the way; ``alone_s`` that of the slowest group alone
    on the fabric, ``everybody_s`` of the slowest group while all groups run.  ``closed_form_s`` is the closed
    form's call, with launch, latency and protocol; ``simulated_s`` replaces its transfer by the simulated
    one.  ``used`` is False for rows that are only shown beside: an all-to-all forwarded hop after hop.
    ``bottlenecks`` names the links that limit the slowest flows (source, then target).
    """

    DOCUMENT = """
        axes kind algorithm used bytes calls groups size ideal_s alone_s everybody_s closed_form_s simulated_s
        bottlenecks slowdown"""

    axes: str
    kind: str
    algorithm: str
    used: bool
    bytes: float
    calls: float
    groups: int
    size: int
    ideal_s: float
    alone_s: float
    everybody_s: float
    closed_form_s: float
    simulated_s: float
    bottlenecks: tuple[str, ...]

    @property
    def slowdown(self) -> float:
        """How much longer the transfer takes because the other groups run too."""
        return self.everybody_s / self.alone_s if self.alone_s > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """Bytes that one link (source, then target) carries in an iteration, and its share of the link's time."""

    link: int
    name: str
    tier: int
    bytes: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLoad:
    """Bytes that all links of a tier carry in one iteration; tier 0 is the scale-up domain.  ``reached`` is the share
    of their speed that collectives get of them, by the tier's calibration or by the transport, whichever is less."""

    tier: int
    links: int
    bytes: float
    reached: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """One bar of the timeline: what a pipeline stage does from ``begin_s`` to ``end_s``."""

    stage: int
    kind: SpanKind
    name: str
    begin_s: float
    end_s: float

    @property
    def track(self) -> Literal["compute", "network"]:
        """``network`` for what runs beside the computation."""
        return "network" if self.kind in ("send", "gradients", "weights") else "compute"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IterationSimulation:
    """One iteration at flow level beside the closed form.

    ``scheduled_s`` is the same schedule with the closed form's collectives, so that ``iteration_s`` over it
    is the fabric's doing alone.  ``cross_rail_bytes`` counts bytes between accelerators of different domains
    and different rails; ``link_bytes`` holds the bytes of every link.  ``exact`` is True where every flow of
    the iteration was simulated, False where identical groups were solved once.
    """

    iteration_s: float
    closed_form_s: float
    lower_bound_s: float
    scheduled_s: float
    routing: str
    exact: bool
    collectives: tuple[CollectiveRow, ...]
    busiest: tuple[LinkLoad, ...]
    tiers: tuple[TierLoad, ...]
    cross_rail_bytes: float
    link_bytes: Floats
    timeline: Iterable[StageSpan]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class IterationReport(Result):
    """One iteration of a layout at flow level on a fabric.

    ``planned``: nobody gave the layout, it is the one that a plan recommends.
    """

    SCHEMA = "weft.simulate/1"
    DOCUMENT = """
        job cluster layout fabric=fabric.name routing=result.routing transport exact=result.exact slow failed
        makespan_s=iteration_s iteration_s closed_form_s=result.closed_form_s scheduled_s=result.scheduled_s
        lower_bound_s=result.lower_bound_s cross_rail_bytes=result.cross_rail_bytes collectives=result.collectives
        busiest=result.busiest tiers=result.tiers"""

    job: Job
    cluster: Cluster
    layout: Layout
    fabric: Fabric
    result: IterationSimulation
    slow: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    planned: bool = False

    @property
    def iteration_s(self) -> float:
        return self.result.iteration_s

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every collective."""
        return [encode(row) for row in self.result.collectives]

    @property
    def transport(self) -> str:
        return carrier(self.result.routing)
