"""Plans as CSV: one row a layout, units in the header, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.estimation.result import MEMORY_PARTS, TIME_PARTS, Estimate
from weft.layout.spec import FIELDS
from weft.layout.text import layout_to_dict

if TYPE_CHECKING:
    from weft.search.ranking import Plan

_FORMULA = ("=", "+", "-", "@", "|", "%")
_BLANK = ("\t", "\r", "\n")
_RESULTS = (
    "iteration_s",
    "lower_bound_s",
    "tokens_per_s",
    "mfu",
    "hfu",
    "model_tflops",
    "memory_bytes",
    "capacity_bytes",
    "fullest_stage",
    "provenance",
)
_UNITS = {"model_tflops": "model_tflops_per_accelerator"}
_PARTS = (*(f"time_{name}" for name in TIME_PARTS), *(f"memory_{name}" for name in MEMORY_PARTS))


def plan_to_csv(plan: Plan) -> str:
    """The ranked layouts of a plan as CSV."""
    return estimates_to_csv(plan.layouts, model=plan.job.model.name, cluster=plan.cluster.name)


def estimates_to_csv(estimates: Sequence[Estimate], *, model: str, cluster: str) -> str:
    """Estimates as CSV: rank, model, cluster, the fields of the layout, results, and parts of time and
    memory."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_header(), lineterminator="\n")
    writer.writeheader()
    for rank, estimate in enumerate(estimates, 1):
        row = {"rank": rank, "model": model, "cluster": cluster} | _row(estimate)
        writer.writerow({name: neutral(value) for name, value in row.items()})
    return text.getvalue()


def neutral(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a leading apostrophe; everything else is kept."""
    if isinstance(value, str) and (value.startswith(_BLANK) or value.lstrip().startswith(_FORMULA)):
        return f"'{value}"
    return value


def _header() -> list[str]:
    results = [_UNITS.get(name, name) for name in _RESULTS]
    return ["rank", "model", "cluster", *FIELDS, *results, *_PARTS]


def _row(estimate: Estimate) -> dict[str, Any]:
    layout = layout_to_dict(estimate.layout)
    switches = {name: str(value).lower() if isinstance(value, bool) else value for name, value in layout.items()}
    return {
        **switches,
        "order": "/".join(layout["order"]),
        **{_UNITS.get(name, name): getattr(estimate, name) for name in _RESULTS},
        **{f"time_{part.name}": part.value for part in estimate.time},
        **{f"memory_{part.name}": part.value for part in estimate.memory},
    }
