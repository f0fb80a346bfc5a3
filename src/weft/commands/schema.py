"""JSON Schemas of the files that Weft reads and of the documents that it writes."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from weft import codec
from weft.errors import UnknownName

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = {
    "arrangement": (
        "arrangement.bundle:ArrangementFile",
        "Hosts, times, routes and classes of the jobs of a site (weft arrange)",
    ),
    "bench": ("validation.measured:Described", "Collectives, products and memory of a machine, measured (weft bench)"),
    "bill-of-materials": ("fabric.cost:Bill", "Bill of materials of a network (weft fabric bill)"),
    "calibrate": ("validation.fit:Fitted", "Constants fitted to measured runs (weft validate --fit)"),
    "cluster": ("cluster.files:ClusterFile", "A cluster file (TOML)"),
    "comparison": ("search.comparison:Comparison", "Layouts, clusters or plans side by side (weft compare)"),
    "design": ("search.design:DesignStudy", "Networks for a model and a cluster (weft design)"),
    "dry-run": (
        "commands.train:DryRun",
        "Collectives of a training step, traced without hardware (weft train --dry-run)",
    ),
    "estimate": ("estimation.report:EstimateReport", "Time, memory and bounds of one layout (weft estimate)"),
    "fabric": ("fabric.files:FabricFile", "A fabric file (JSON or TOML)"),
    "fabric-check": ("fabric.wiring_check:WiringReport", "Cables as built against a design (weft fabric check)"),
    "failures": ("reliability.classes:FailureFile", "Failures and recovery (TOML)"),
    "goodput": ("search.goodput:GoodputReport", "How much time failures cost a run (weft.goodput)"),
    "plan": (
        "search.ranking:Plan search.network_plan:NetworkPlan",
        "Layouts of a model on a cluster, best first (weft plan)",
    ),
    "prices": ("fabric.cost:Prices", "Prices of network parts (TOML)"),
    "route": ("routing.report:RouteReport", "Routes of all flows of all jobs (weft route plan)"),
    "route-audit": (
        "routing.report:RouteAudit",
        "Installed routes, and what moving flows would gain (weft route audit)",
    ),
    "route-decision": ("views.route:DecisionLine", "A decision of the route controller, a line (weft route watch)"),
    "schedule": (
        "collectives.schedules.result:ScheduleResult",
        "A collective over the dimensions of a network (weft schedule)",
    ),
    "selftest": ("commands.bench:Selftest", "What the runtime does on a machine (weft bench selftest)"),
    "simulate": (
        "simulation.iteration.result:IterationReport simulation.flows.scenario:ScenarioReport",
        "Flows, or one iteration, on a fabric (weft simulate)",
    ),
    "site": ("arrangement.site:SiteFile", "A site and its jobs (TOML)"),
    "study": ("studies.study:StudyFile", "A study (TOML)"),
    "sweep": ("studies.result:Sweep", "The points of a study (weft sweep)"),
    "trace-kernels": (
        "interop.kernel_times:Traced",
        "Products and attention as a profiler's trace timed them (weft bench --trace)",
    ),
    "train": ("commands.train:Trained", "The steps of a training run (weft train)"),
    "tune": ("search.tune:Tuning", "What to change in a measured run (weft tune)"),
    "validate": ("validation.summary:Validation", "Predicted against measured times (weft validate)"),
    "workload": (
        "simulation.workload:WorkloadResult",
        "A workload over the dimensions of a network (weft schedule --workload)",
    ),
}
"""The record that a file is read into or a document written from, as ``module:class`` (two, where it has two forms),
and what it describes."""


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
    if short not in SCHEMAS:
        raise UnknownName("schema", name, SCHEMAS, listed="weft info schemas")
    records, title = SCHEMAS[short]
    homes = (place.split(":") for place in records.split())
    kinds = [getattr(import_module(f"weft.{module}"), kind) for module, kind in homes]
    return {"$schema": DIALECT, "title": title} | codec.schema(*kinds)
