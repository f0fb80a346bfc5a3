"""Plans and estimates as JSON: stable keys, SI units in the names, the same bytes for the same input.

The files hold the whole job, cluster and layouts, so that ``weft.report.formats.json_in`` reads them back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from weft.cluster.files import cluster_to_dict
from weft.layout.table import decode
from weft.layout.text import format_layout, layout_to_dict
from weft.model.text import job_to_dict

if TYPE_CHECKING:
    from weft.cluster.spec import Cluster
    from weft.estimation.result import Estimate
    from weft.estimation.single import Sensitivity
    from weft.estimation.training import TrainingRun
    from weft.model.job import Job
    from weft.search.ranking import Advice, Plan

PLAN_SCHEMA = "weft.plan/1"
ESTIMATE_SCHEMA = "weft.estimate/1"


def plan_to_json(plan: Plan, *, runs: Sequence[TrainingRun] | None = None) -> str:
    """A plan as JSON text of schema ``weft.plan/1``; ``runs`` are training runs of the ranked layouts, in
    order."""
    layouts = [{"rank": rank} | estimate_to_dict(one) for rank, one in enumerate(plan.layouts, 1)]
    for layout, run in zip(layouts, runs or (), strict=False):
        layout["run"] = run_to_dict(run)
    return _dump(
        {
            "schema": PLAN_SCHEMA,
            "considered": plan.considered,
            "evaluated": plan.evaluated,
            "feasible": plan.feasible,
            "rejected": {count.code: count.layouts for count in plan.rejected},
            "job": job_to_dict(plan.job),
            "cluster": cluster_to_dict(plan.cluster),
            "space": plan.space.name,
            "search": _search(plan),
            "calibration": asdict(plan.constants),
            "defaults": [*plan.job.defaults, *plan.cluster.defaults],
            "advice": _advice(plan.advice),
            "layouts": layouts,
            "pareto": [estimate_to_dict(one) for one in plan.pareto],
        }
    )


def _search(plan: Plan) -> dict[str, Any]:
    """What bounded the search; vocabulary fields by name."""
    fixed = {name: [decode(name, value) for value in values] for name, values in plan.space.fixed.items()}
    return {
        "fixed": fixed,
        "maximum": dict(plan.space.maximum),
        "memory_margin": plan.memory_margin,
        "per_mesh": plan.per_mesh,
    }


def estimate_to_json(
    estimate: Estimate,
    *,
    job: Job,
    cluster: Cluster,
    sensitivities: Sequence[Sensitivity] = (),
    run: TrainingRun | None = None,
) -> str:
    """One estimate as JSON text of schema ``weft.estimate/1``."""
    return _dump(
        {
            "schema": ESTIMATE_SCHEMA,
            "job": job_to_dict(job),
            "cluster": cluster_to_dict(cluster),
            "defaults": [*job.defaults, *cluster.defaults],
            "estimate": estimate_to_dict(estimate),
            "sensitivities": [asdict(one) for one in sensitivities],
            "run": None if run is None else run_to_dict(run),
        }
    )


def estimate_to_dict(estimate: Estimate) -> dict[str, Any]:
    """One estimate with JSON types; times in seconds, memory in bytes."""
    return {
        "layout": layout_to_dict(estimate.layout),
        "layout_text": format_layout(estimate.layout),
        "iteration_s": estimate.iteration_s,
        "lower_bound_s": estimate.lower_bound_s,
        "tokens_per_s": estimate.tokens_per_s,
        "mfu": estimate.mfu,
        "mfu_unmasked": estimate.mfu_unmasked,
        "hfu": estimate.hfu,
        "model_tflops_per_accelerator": estimate.model_tflops,
        "memory_bytes": estimate.memory_bytes,
        "capacity_bytes": estimate.capacity_bytes,
        "fits": estimate.fits,
        "fullest_stage": estimate.fullest_stage,
        "provenance": estimate.provenance,
        "error": None if estimate.error is None else asdict(estimate.error),
        "time": {part.name: part.value for part in estimate.time},
        "memory": {part.name: part.value for part in estimate.memory},
    }


def run_to_dict(run: TrainingRun) -> dict[str, Any]:
    """One training run with JSON types."""
    return asdict(run) | {"defaults": list(run.defaults)}


def _advice(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    accepted = advice.accepted
    return {
        "change": advice.change,
        "rejected": estimate_to_dict(advice.rejected),
        "accepted": None if accepted is None else estimate_to_dict(accepted),
    }


def _dump(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
