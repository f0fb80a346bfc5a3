"""``weft.route``: routes for all flows of all jobs on a fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import UnknownName
from weft.verbs.options import given_options, option, verb
from weft.verbs.traffic import TrafficOptions, traffic_of

if TYPE_CHECKING:
    from weft.fabric import Fabric
    from weft.routing import JobTraffic
    from weft.routing.report import RouteReport

ROUTERS = (
    "auto",
    "ecmp",
    "ecmp-paper",
    "random",
    "greedy",
    "edge-coloring",
    "repair",
    "anneal",
    "ilp",
    "split",
    "spray",
    "rail",
)


@dataclass(frozen=True, kw_only=True)
class RouteOptions(TrafficOptions):
    """Who routes which flows, and how the routes are judged."""

    router: str = option("auto", "Who chooses the paths.", choices=ROUTERS)
    split: int = option(2, "Parts, for split.", least=1, most=64)
    objective: str = option("collective", "Groups that count.", choices=("flow", "collective", "job"))
    bound: str = option("auto", "How the bound is proved.", choices=("auto", "cuts", "lp"))
    time_limit: float = option(60.0, "Seconds, for ilp.", least=0.01)
    compare: str | None = option(None, "Also show what these routers reach.", metavar="ROUTER,...")
    paths: bool = option(False, "With --format json: every flow's path.")

    def others(self) -> list[str]:
        """The routers of ``compare``.

        Raises:
            UnknownName: there is no such router.
        """
        names = [name.strip() for name in self.compare.split(",")] if self.compare else []
        for name in names:
            if name not in ROUTERS:
                raise UnknownName("router", name, ROUTERS, where="--compare")
        return names


@verb(RouteOptions)
def route(
    fabric: Fabric | str | None = None,
    traffic: JobTraffic | None = None,
    options: RouteOptions | None = None,
    **given: Any,
) -> RouteReport:
    """Route all flows at once; say how good the routes are, and how good any could be.

    >>> import weft
    >>> found = weft.route(cluster="h100-64", fabric="fat-tree", radix=8, job="llama-3.1-8b tp=8,dp=8")
    >>> found.plan.alpha, found.plan.alpha_bound
    (1.0, 1.0)

    Args:
        fabric: a fabric, a fabric file, or a kind of network of ``cluster``.
        traffic: flows, beside those that the options name.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: no traffic, flows that cannot be routed, or an option that cannot be used.
        Unsupported: a router that does not apply.
    """
    asked = given_options(RouteOptions, options, given | ({} if fabric is None else {"fabric": fabric}))
    from weft.routing.plan import plan
    from weft.routing.report import RouteReport

    names = [*asked.others(), asked.router]
    network, flows = traffic_of(asked, *(() if traffic is None else (traffic,)))
    *others, found = (
        plan(
            network,
            flows,
            router=name,
            seed=asked.seed,
            split=asked.split,
            objective=asked.objective,
            bound=asked.bound,
            time_limit_s=asked.time_limit,
        )
        for name in names
    )
    return RouteReport(plan=found, compared=tuple(others), paths=asked.paths)
