"""Networks as pages ask for them: side by side, one with parts failed, and its routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import numpy as np

from weft.errors import BadInput, NothingFeasible
from weft.fabric.spec import SCALE_UP
from weft.web.plans import Inquiry, planned
from weft.web.texts import Text, fabric_of_text

if TYPE_CHECKING:
    from weft.cluster import Calibration, Cluster
    from weft.fabric.spec import Fabric, Floats
    from weft.layout import Layout
    from weft.model import Job
    from weft.routing.plan import RoutePlan
    from weft.routing.report import RouteReport
    from weft.search import Plan
    from weft.search.design import DesignStudy
    from weft.simulation.iteration.report import IterationReport
    from weft.simulation.iteration.result import IterationSimulation

    Progress = Callable[[int, int], None] | None

_SHOWN = 12
"""Busiest links, and moved flows, that a page shows."""
_KEPT_STUDIES = 4
_LARGEST = 65_536
"""Accelerators of the largest network that is worked out while somebody waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job on a network.

    Attributes:
        inquiry: model, cluster and recipe.
        layout: as text; empty for the best on the network, of a pasted one the first of the plan.
        network: its kind, or a pasted text; an empty name for what the cluster's tiers suggest.
        radix: ports of a switch.
        routing: how paths are chosen in simulations.
    """

    inquiry: Inquiry
    layout: str
    network: Text
    radix: int
    routing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What is down, and where a click on another part leads.

    Attributes:
        names: of switches, and of links by their ends with a colon between.
        address: of the page without them; it has a query.
    """

    names: tuple[str, ...]
    address: str

    def without(self, name: str) -> tuple[str, ...]:
        """The other names; a link may be written from either end."""
        ends = sorted(name.split(":"))
        return tuple(one for one in self.names if sorted(one.split(":")) != ends)

    def toggled(self, name: str) -> str:
        """The address of the picture with one more part down, or one less."""
        left = self.without(name)
        names = left if len(left) < len(self.names) else (*self.names, name)
        down = quote(",".join(names))
        return f"{self.address}&failed={down}#picture" if names else f"{self.address}#picture"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A job, how it is cut, and the network that it is on, as built."""

    job: Job
    cluster: Cluster
    layout: Layout
    kind: str
    fabric: Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Networks for a job, with a chart of cost against speed and a picture of each kind."""

    study: DesignStudy
    chart: str
    pictures: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLink:
    """A cable, and the share of an iteration's time in which it moves bytes: as built, and with parts failed."""

    name: str
    before: float
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """A network with parts failed beside the network as built.

    Attributes:
        site: the job on its network.
        before: an iteration as built.
        after: the same with parts failed; None where none are, or where accelerators are cut off.
        lost: accelerators that are cut off.
        links: the busiest.
        svg: the network; colours tell how busy links are.
    """

    site: Site
    before: IterationSimulation
    after: IterationSimulation | None
    lost: int
    links: tuple[BusyLink, ...]
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Routes of a job's flows, in two states or by two routers.

    Attributes:
        site: the job on its network.
        lost: accelerators that are cut off.
        plans: what is routed, and the figures of ``weft.routing.report.plan_figures``.
        sides: name and SVG of the two that stand beside each other.
        moved: flows whose path differs, out of all.
        flows: the largest of these: source, target, bytes, path on either side.
    """

    site: Site
    lost: int
    plans: tuple[tuple[str, dict[str, Any]], ...]
    sides: tuple[tuple[str, str], ...]
    moved: tuple[int, int]
    flows: tuple[tuple[str, str, float, str, str], ...]


def _plan(scene: Scene) -> Plan:
    """The plan of a job on a network that is not too large.

    Raises:
        BadInput: it is, or a name, a text or an option cannot be used.
    """
    found = planned(scene.inquiry)
    if found.cluster.count > _LARGEST:
        problem = f"{found.cluster.count:,} accelerators"
        raise BadInput(problem, where="cluster", remedy=f"give {_LARGEST:,} at most; the command line takes more")
    return found


@lru_cache(maxsize=4)
def site_of(scene: Scene) -> Site:
    """The job, its layout and its network.

    Raises:
        BadInput: a name, a text or an option that cannot be used, or no network of these sizes.
        NothingFeasible: no layout fits.
    """
    from weft.verbs.shared import layout_of

    found = _plan(scene)
    kind, fabric = fabric_of_text(scene.network, found.cluster, radix=scene.radix)
    if scene.layout:
        layout = layout_of(scene.layout, found.job, found.cluster)
    elif not found.layouts:
        raise NothingFeasible(f"no layout fits -- {found.shortage}")
    elif scene.network.pasted is not None:
        layout = found.best.layout
    else:
        study = _study(scene, (kind,), no_failures=True)
        if not study.designs:
            raise NothingFeasible(f"{kind}: {study.rejected[0].reason}")
        layout = study.designs[0].layout
    return Site(job=found.job, cluster=found.cluster, layout=layout, kind=kind, fabric=fabric)


_studies: dict[tuple[Scene, tuple[str, ...], bool], DesignStudy] = {}


def _study(
    scene: Scene, kinds: tuple[str, ...], progress: Progress = None, *, no_failures: bool = False
) -> DesignStudy:
    from weft.verbs.design import design

    key = scene, kinds, no_failures
    if key not in _studies:
        plan = _plan(scene)
        found = design(
            plan.job,
            plan.cluster,
            fabrics=kinds,
            oversubscription="none",
            layout=scene.layout or None,
            radix=scene.radix,
            routing=scene.routing,
            no_failures=no_failures,
            progress=progress,
        )
        while len(_studies) >= _KEPT_STUDIES:
            del _studies[next(iter(_studies))]
        _studies[key] = found
    return _studies[key]


def compared(scene: Scene, kinds: tuple[str, ...], *, progress: Progress = None) -> Compared:
    """Networks side by side.

    Args:
        scene: the job; each network has its own best layout where none is given.
        kinds: of fabric.
        progress: called with networks done and in all.

    Raises:
        BadInput: a name, a text or an option that cannot be used.
    """
    from weft.fabric.catalogue import for_cluster
    from weft.views.charts.charts import embedded
    from weft.views.charts.designs import design_chart
    from weft.views.charts.fabric import fabric_svg

    study = _study(scene, kinds, progress)
    built = [one.kind for one in study.designs]
    return Compared(
        study=study,
        chart=embedded(design_chart(study)) if built else "",
        pictures=tuple(
            (kind, fabric_svg(for_cluster(kind, study.cluster, radix=scene.radix), aggregate=True)) for kind in built
        ),
    )


def _broken(site: Site, fabric: Fabric, names: tuple[str, ...]) -> tuple[Fabric, int]:
    """A network with parts down, and how many of the job's accelerators are cut off."""
    from weft.reliability.parts import stranded_accelerators
    from weft.verbs.traffic import failed

    left = failed(fabric, 0, names)
    return left, len(stranded_accelerators(left, np.arange(site.layout.world))) if names else 0


@lru_cache(maxsize=8)
def _simulated(scene: Scene, names: tuple[str, ...]) -> IterationReport:
    from weft.verbs.simulate import simulate

    site = site_of(scene)
    fabric, _ = _broken(site, site.fabric, names)
    found = simulate(site.job, site.cluster, site.layout, fabric=fabric, routing=scene.routing)
    return replace(cast("IterationReport", found), failed=names)


def degraded(scene: Scene, failures: Failures, *, progress: Progress = None) -> Degraded:
    """An iteration on a network, as built and with parts failed.

    Raises:
        BadInput: a name, a text or an option that cannot be used.
        NothingFeasible: no layout fits.
    """
    from weft.views.charts.fabric import Load, fabric_svg

    tell = progress or _silent
    site, names = site_of(scene), failures.names
    fabric, lost = _broken(site, site.fabric, names)
    tell(0, 2)
    before = _simulated(scene, ()).result
    tell(1, 2)
    after = _simulated(scene, names).result if names and not lost else None
    tell(2, 2)
    loads = [_loads(site, one) for one in (before, after) if one is not None]
    most = max(float(one.max(initial=0.0)) for one in loads)
    return Degraded(
        site=site,
        before=before,
        after=after,
        lost=lost,
        links=_busiest(site, loads),
        svg=fabric_svg(fabric, load=Load(values=loads[-1], most=most, form=".1%"), address=failures.toggled),
    )


def _silent(done: int, total: int) -> None:
    """No one is told."""


def _loads(site: Site, found: IterationSimulation) -> Floats:
    """The share of an iteration's time in which each link of the scale-out network moves bytes."""
    from weft.simulation.iteration.contention import reached

    fabric = site.fabric
    able = reached(fabric, _constants(site)[1]).capacity_Bps * found.iteration_s
    return np.where(fabric.tier == SCALE_UP, 0.0, found.link_bytes / able)


def _constants(site: Site) -> tuple[Calibration | None, Calibration]:
    """The constants of the job's software, where they are not the usual ones, and those that count."""
    from weft.cluster.calibration import calibration
    from weft.verbs.shared import CalibrationOptions, constants_of

    own = constants_of(CalibrationOptions(), site.cluster, site.job)
    return own, own or calibration(site.cluster.accelerator.name)


def _busiest(site: Site, loads: list[Floats]) -> tuple[BusyLink, ...]:
    """The cables whose busier direction is busiest in either state, busiest of all first."""
    fabric = site.fabric
    low, high = np.minimum(fabric.source, fabric.target), np.maximum(fabric.source, fabric.target)
    _, first, cable = np.unique(low * fabric.nodes + high, return_index=True, return_inverse=True)
    values = np.zeros((len(loads), len(first)))
    for row, one in zip(values, loads, strict=True):
        np.maximum.at(row, cable, one)
    return tuple(
        BusyLink(
            name=f"{fabric.names[low[first[i]]]}:{fabric.names[high[first[i]]]}",
            before=float(values[0, i]),
            after=float(values[1, i]) if len(loads) > 1 else None,
        )
        for i in np.argsort(-values.max(axis=0), kind="stable")[:_SHOWN]
        if values[:, i].any()
    )


@lru_cache(maxsize=8)
def _route(scene: Scene, names: tuple[str, ...], router: str) -> RouteReport:
    from weft.simulation.iteration.contention import reached
    from weft.simulation.routes.traffic import planned_traffic
    from weft.verbs.route import route

    site = site_of(scene)
    own, known = _constants(site)
    network = reached(site.fabric, known)
    name = site.job.model.name
    traffic = planned_traffic(site.job, site.cluster, site.layout, network, name=name, constants=own)
    return route(_broken(site, network, names)[0], traffic, router=router, paths=True)


def routed(scene: Scene, failures: Failures, router: str, *, progress: Progress = None) -> Routed:
    """Routes of a job's flows: hashed and by a router, or before and after failures.

    Raises:
        BadInput: a name, a text or an option that cannot be used, or flows that cannot be routed.
        NothingFeasible: no layout fits.
    """
    site, names = site_of(scene), failures.names
    _, lost = _broken(site, site.fabric, names)
    asked: list[tuple[tuple[str, ...], str]] = [((), one) for one in dict.fromkeys(("ecmp", router))]
    if names and not lost:
        asked += [(names, one) for _, one in asked]
    plans: list[tuple[str, RoutePlan]] = []
    for number, (down, one) in enumerate(asked):
        (progress or _silent)(number, len(asked))
        words = f"{one}, {'with failures' if down else 'as built'}"
        plans.append((words, _route(scene, down, one).plan))
    half = len(asked) // 2
    sides = [plans[half - 1], plans[-1]] if names and not lost else [plans[0], plans[-1]]
    moved, flows = _moved(*(plan for _, plan in sides))
    return Routed(
        site=site,
        lost=lost,
        plans=tuple((words, _figures(plan)) for words, plan in plans),
        sides=_drawn(sides, failures),
        moved=moved,
        flows=flows,
    )


def _figures(plan: RoutePlan) -> dict[str, Any]:
    from weft.routing.report import plan_figures

    return plan_figures(plan)


def _drawn(sides: list[tuple[str, RoutePlan]], failures: Failures) -> tuple[tuple[str, str], ...]:
    """A picture of each side, on one scale."""
    from weft.views.charts.fabric import Load, fabric_svg
    from weft.views.charts.routes import STEPS

    most = max(plan.alpha for _, plan in sides)
    loads = [Load(values=plan.load, most=most, form=".3g", steps=STEPS) for _, plan in sides]
    return tuple(
        (words, fabric_svg(plan.fabric, load=load, address=failures.toggled))
        for (words, plan), load in zip(sides, loads, strict=True)
    )


def _moved(
    before: RoutePlan, after: RoutePlan
) -> tuple[tuple[int, int], tuple[tuple[str, str, float, str, str], ...]]:
    """How many flows take another path, of how many, and the largest of them."""
    from weft.routing.report import flow_rows

    pairs = [
        (one["source"], one["target"], one["bytes"], _path(one), _path(other))
        for one, other in zip(
            *(flow_rows(plan.fabric, plan.traffic, plan.routes) for plan in (before, after)), strict=True
        )
        if _path(one) != _path(other)
    ]
    largest = sorted(pairs, key=lambda row: -row[2])[:_SHOWN]
    return (len(pairs), len(before.traffic)), tuple(largest)


def _path(row: dict[str, Any]) -> str:
    return " ".join(row["path"][1:-1]) if "path" in row else "sprayed"


def document(scene: Scene, kind: str, names: tuple[str, ...], more: tuple[str, ...]) -> str:
    """A file of what a page shows: "design" (``more``: the kinds), "simulate" or "route" (``more``: the router).

    Raises:
        BadInput: a name, a text or an option that cannot be used.
        NothingFeasible: no layout fits, or accelerators are cut off.
    """
    if kind == "design":
        return _study(scene, more).to_json()
    site = site_of(scene)
    if lost := _broken(site, site.fabric, names)[1]:
        raise NothingFeasible(f"{lost:,} accelerators are cut off -- let fewer parts fail")
    return (_simulated(scene, names) if kind == "simulate" else _route(scene, names, more[0])).to_json()
