"""Planning for one network: its options, and the search on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.commands.networks import ROUTING, ROUTINGS, RadixOptions, TransportOptions, fabric_of, placement_of
from weft.commands.options import option, options_of
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.fabric.placement import Placement
    from weft.search import Plan
    from weft.search.network_plan import NetworkPlan


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(RadixOptions, TransportOptions):
    """The network for which layouts are searched."""

    fabric: str | Fabric | None = option(
        None, "Search for the fastest at flow level on this network (to build, or a file).", metavar="KIND|FILE"
    )
    routing: str = option(
        ROUTING,
        "How paths are chosen on --fabric; planned: by the routers of weft route.",
        choices=(*ROUTINGS, "planned"),
    )
    placement: str | Placement | None = option(
        None, "With --fabric: hosts in rank order, as CSV or a hostfile.", metavar="FILE"
    )
    seed: int = option(0, "Seed of hashed and random paths.")
    axis_order: str = option(
        "any", "With --fabric: orders of the axes; usual: only the one that launchers take.", choices=("any", "usual")
    )
    budget: str | float | None = option(
        None, "With --fabric: stop after so long, as 60s, with what is proved by then.", metavar="TIME"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in options_of(NetworkOptions):
            if self.fabric is None and getattr(self, one.name) != one.default:
                raise BadInput("says nothing without --fabric", where=one.flags[0], remedy="add --fabric KIND or FILE")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A network that layouts are searched for, and how."""

    options: NetworkOptions
    fabric: Fabric
    placement: Placement | None
    budget_s: float | None

    def plan(self, found: Plan, *, top: int, per_mesh: bool) -> NetworkPlan:
        """The plan for the network, of the closed form's plan.

        Raises:
            BadInput: the network does not hold the job.
        """
        from weft.search.network_plan import plan_on_fabric

        return plan_on_fabric(
            found,
            self.fabric,
            routing=self.options.routed(self.options.routing),
            seed=self.options.seed,
            placement=self.placement,
            orders=self.options.axis_order == "any",
            top=top,
            per_mesh=per_mesh,
            budget_s=self.budget_s,
        )


def network_of(options: NetworkOptions, cluster: Cluster) -> Asked | None:
    """The network that was asked for, if one was.

    Raises:
        BadInput: a file or an option that cannot be used.
        UnknownName: there is no such kind of network.
    """
    if options.fabric is None:
        return None
    from weft.units import parse_seconds

    fabric = fabric_of(options.fabric, cluster, options.radix)
    return Asked(
        options=options,
        fabric=fabric,
        placement=placement_of(options.placement, fabric, cluster.count),
        budget_s=None if options.budget is None else parse_seconds(options.budget, "--budget"),
    )
