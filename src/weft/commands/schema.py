"""JSON Schemas of the files that Weft reads and of the documents that it writes."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from weft import codec
from weft.errors import UnknownName

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLES = {
    "arrangement": "Hosts, times, routes and classes of the jobs of a site (weft arrange)",
    "bench": "Collectives, products and memory of a machine, measured (weft bench)",
    "bill-of-materials": "Bill of materials of a network (weft fabric bill)",
    "calibrate": "Constants fitted to measured runs (weft validate --fit)",
    "cluster": "A cluster file (TOML)",
    "comparison": "Layouts, clusters or plans side by side (weft compare)",
    "design": "Networks for a model and a cluster (weft design)",
    "dry-run": "Collectives of a training step, traced without hardware (weft train --dry-run)",
    "estimate": "Time, memory and bounds of one layout (weft estimate)",
    "fabric": "A fabric file (JSON or TOML)",
    "fabric-check": "Cables as built against a design (weft fabric check)",
    "failures": "Failures and recovery (TOML)",
    "goodput": "How much time failures cost a run (weft.goodput)",
    "plan": "Layouts of a model on a cluster, best first (weft plan)",
    "prices": "Prices of network parts (TOML)",
    "route": "Routes of all flows of all jobs (weft route plan)",
    "route-audit": "Installed routes, and what moving flows would gain (weft route audit)",
    "route-decision": "A decision of the route controller, a line (weft route watch)",
    "schedule": "A collective over the dimensions of a network (weft schedule)",
    "selftest": "What the runtime does on a machine (weft bench selftest)",
    "simulate": "Flows, or one iteration, on a fabric (weft simulate)",
    "site": "A site and its jobs (TOML)",
    "study": "A study (TOML)",
    "sweep": "The points of a study (weft sweep)",
    "trace-kernels": "Products and attention as a profiler's trace timed them (weft validate --trace)",
    "train": "The steps of a training run (weft train)",
    "tune": "What to change in a measured run (weft tune)",
    "validate": "Predicted against measured times (weft validate)",
    "workload": "A workload over the dimensions of a network (weft schedule --workload)",
}
_RECORDS = {
    "arrangement": "arrangement.bundle:ArrangementFile",
    "bench": "validation.measured:Described",
    "bill-of-materials": "fabric.cost:Bill",
    "calibrate": "validation.fit:Fitted",
    "cluster": "cluster.files:ClusterFile",
    "comparison": "search.comparison:Comparison",
    "design": "search.design:DesignStudy",
    "dry-run": "commands.train:DryRun",
    "estimate": "estimation.report:EstimateReport",
    "fabric": "fabric.files:FabricFile",
    "fabric-check": "fabric.wiring_check:WiringReport",
    "failures": "reliability.classes:FailureFile",
    "goodput": "search.goodput:GoodputReport",
    "plan": "search.ranking:Plan search.network_plan:NetworkPlan",
    "prices": "fabric.cost:Prices",
    "route": "routing.report:RouteReport",
    "route-audit": "routing.audit:RouteAudit",
    "route-decision": "views.route:DecisionLine",
    "schedule": "collectives.schedules.result:ScheduleResult",
    "selftest": "commands.selftest:Selftest",
    "simulate": "simulation.iteration.result:IterationReport simulation.flows.scenario:ScenarioReport",
    "site": "arrangement.site:SiteFile",
    "study": "studies.study:StudyFile",
    "sweep": "studies.result:Sweep",
    "trace-kernels": "interop.kernel_times:Traced",
    "train": "commands.train:Trained",
    "tune": "search.tune:Tuning",
    "validate": "validation.summary:Validation",
    "workload": "simulation.workload:WorkloadResult",
}
"""The record that a file is read into or a document written from, as ``module:class``; two, where it has two forms."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file that Weft reads or of a document that it writes.

    >>> import weft
    >>> weft.schema("plan")["properties"]["schema"]
    {'const': 'weft.plan/1', 'type': 'string'}

    Args:
        name: as ``weft info schemas`` lists them; also the whole ``schema`` of a document, as "weft.plan/1".

    Raises:
        UnknownName: there is no schema of this name.
    """
    short = re.sub(r"^weft\.([\w-]+)/\d+$", r"\1", name)
    if short not in TITLES:
        raise UnknownName("schema", name, TITLES, listed="weft info schemas")
    homes = (place.split(":") for place in _RECORDS[short].split())
    kinds = [getattr(import_module(f"weft.{module}"), kind) for module, kind in homes]
    return {"$schema": DIALECT, "title": TITLES[short]} | codec.schema(*kinds)
