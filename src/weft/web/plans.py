"""Plans as pages ask for them: worked out in a worker, which keeps the last ones for the questions that follow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.cluster.catalogue import Scales, oversubscribed, resized, rewired, scaled, with_domain
from weft.errors import NothingFeasible, UnknownName
from weft.verbs.plan import PlanOptions, plan
from weft.verbs.shared import constants_of, layout_of, stack_of
from weft.web.texts import Text, cluster_of_text, job_of_text

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.estimation import Estimate
    from weft.interop.training.launchers import LaunchArguments
    from weft.search import Plan
    from weft.search.comparison import Comparison

_KEPT_PLANS = 32
_COUNT = re.compile(r"-\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is planned.

    Attributes:
        model: name or pasted configuration.
        cluster: name or pasted TOML.
        count: accelerators, in place of those of the cluster's name or text.
        options: of the plan; none that names a file.
        scales: what if the hardware were faster.
        domain: what if a scale-up domain had so many accelerators.
        oversubscription: what if the outermost network had that.
    """

    model: Text
    cluster: Text
    count: int | None
    options: PlanOptions
    scales: Scales
    domain: int | None = None
    oversubscription: float | None = None

    @property
    def words(self) -> str:
        """What differs from the hardware as it is; empty where nothing does."""
        found = [self.scales.words] if self.scales.words else []
        found += [] if self.domain is None else [f"domains of {self.domain}"]
        found += [] if self.oversubscription is None else [f"oversubscription {self.oversubscription:g}"]
        return ", ".join(found)

    @property
    def as_it_is(self) -> Inquiry:
        """The same on the hardware as it is."""
        return replace(self, scales=Scales(), domain=None, oversubscription=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan, one layout of it or beside it, and what was asked of that.

    Attributes:
        plan: the ranked layouts.
        chosen: the layout that is looked at; None where nothing fits.
        as_it_is: on the hardware as it is, where the plan is of other hardware.
        compared: it and another one.
        charts: SVG and caption of each.
        launch: files for a tool.
        problem: why the tool cannot run the layout.
    """

    plan: Plan
    chosen: Estimate | None
    as_it_is: Plan | None = None
    compared: Comparison | None = None
    charts: tuple[tuple[str, str], ...] = ()
    launch: LaunchArguments | None = None
    problem: str = ""


_kept: dict[Inquiry, Plan] = {}


def planned(inquiry: Inquiry, progress: Callable[[int, int], None] | None = None) -> Plan:
    """The plan of an inquiry.

    Raises:
        BadInput: a name, a text or an option that cannot be used.
    """
    if inquiry not in _kept:
        cluster = _cluster(inquiry)
        job = job_of_text(inquiry.model, inquiry.options.changes(), cluster.count)
        found = plan(job, cluster, inquiry.options, progress=progress)
        while len(_kept) >= _KEPT_PLANS:
            del _kept[next(iter(_kept))]
        _kept[inquiry] = found
    return _kept[inquiry]


def _cluster(inquiry: Inquiry) -> Cluster:
    source, count = inquiry.cluster, inquiry.count
    if count is not None and source.pasted is None:
        source = Text(f"{_COUNT.sub('', source.name)}-{count}")
    cluster = cluster_of_text(source)
    if count is not None and cluster.count != count:
        cluster = resized(cluster, count)
    supposed = f"what if: {inquiry.words}" if inquiry.words else ""
    if inquiry.domain is not None:
        other = with_domain(cluster, inquiry.domain, where="domain")
        supposed, cluster = "; ".join(filter(None, (supposed, rewired(cluster, other)))), other
    if inquiry.oversubscription is not None:
        cluster = oversubscribed(cluster, inquiry.oversubscription)
    cluster = scaled(cluster, inquiry.scales)
    return replace(cluster, defaults=(*cluster.defaults, supposed)) if supposed else cluster


def explored(
    inquiry: Inquiry,
    layout: str,
    against: str,
    show: str,
    tool: str,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """A plan and what is looked at in it.

    Args:
        inquiry: what is planned.
        layout: as text; empty for the first.
        against: another layout to compare with, or empty.
        show: "charts" draws them, "launch" writes the launch file.
        tool: one of ``weft.verbs.launch.TOOLS``.
        progress: called with meshes done and in all.

    Raises:
        BadInput: a name, a text, an option or a layout that cannot be used.
    """
    found = planned(inquiry, progress)
    as_it_is = planned(inquiry.as_it_is, progress) if inquiry.words else None
    chosen = _chosen(found, inquiry, layout)
    if chosen is None:
        return Found(plan=found, chosen=None, as_it_is=as_it_is)
    launch, problem = _launch(tool, found, chosen) if show == "launch" else (None, "")
    return Found(
        plan=found,
        chosen=chosen,
        as_it_is=as_it_is,
        compared=_compared(found, inquiry, chosen, against) if against else None,
        charts=_charts(found) if show == "charts" and found.layouts else (),
        launch=launch,
        problem=problem,
    )


def _launch(tool: str, found: Plan, chosen: Estimate) -> tuple[LaunchArguments | None, str]:
    """What a tool runs, or why it cannot."""
    from weft.verbs.launch import launch_arguments

    try:
        return launch_arguments(tool, found.job, found.cluster, chosen.layout), ""
    except NothingFeasible as error:
        return None, str(error)


def _chosen(found: Plan, inquiry: Inquiry, text: str) -> Estimate | None:
    """The layout that is looked at."""
    if not text:
        return found.layouts[0] if found.layouts else None
    from weft.estimation import estimate

    layout = layout_of(text, found.job, found.cluster)
    for one in found.layouts:
        if one.layout == layout:
            return one
    constants = constants_of(inquiry.options, found.cluster, found.job)
    return estimate(found.job, found.cluster, [layout], constants)[0]


def _compared(found: Plan, inquiry: Inquiry, chosen: Estimate, against: str) -> Comparison:
    from weft.layout.text import format_layout
    from weft.verbs.compare import compare

    layouts = (format_layout(chosen.layout), against)
    stack = stack_of(inquiry.options, found.job, found.cluster)
    return compare(found.job, found.cluster, layout=layouts, stack=stack)


def _charts(found: Plan) -> tuple[tuple[str, str], ...]:
    from weft.report.pictures.charts import embedded
    from weft.report.pictures.layouts import breakdown_chart, pareto_chart

    return (
        (embedded(breakdown_chart(found)), "Time and memory of the first layouts, part by part"),
        (embedded(pareto_chart(found)), "Layouts that no other beats in both time and memory"),
    )


def document(inquiry: Inquiry, form: str) -> str:
    """The file of a plan: its JSON document, or its rows as "csv".

    Raises:
        BadInput: a name, a text or an option that cannot be used.
    """
    from weft.report.formats.csv_out import rows_to_csv

    found = planned(inquiry)
    return rows_to_csv(found.to_dicts(), found.COLUMNS) if form == "csv" else found.to_json()


def launch_file(inquiry: Inquiry, layout: str, tool: str) -> tuple[str, str]:
    """Name and text of a layout's launch file, that of the first layout where none is given.

    Raises:
        BadInput: a name, a text, an option, a layout or a tool that cannot be used.
        NothingFeasible: the tool cannot run the layout, or nothing fits.
    """
    from weft.verbs.launch import TOOLS, launch_arguments

    if tool not in TOOLS:
        raise UnknownName("tool", tool, TOOLS)
    found = planned(inquiry)
    chosen = _chosen(found, inquiry, layout) or found.best
    written = launch_arguments(tool, found.job, found.cluster, chosen.layout)
    return written.file, written.text
