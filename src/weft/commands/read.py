"""Results read back from the JSON files that the command line writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.cluster import Cluster
from weft.documents import parse_json
from weft.errors import BadInput
from weft.files import read_text
from weft.layout import Layout
from weft.model import Job

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.estimation.report import EstimateReport
    from weft.search import Plan

ARRANGEMENT = "weft.arrangement/1"
MAX_FILE_BYTES = 64_000_000
_WRITE_ONE = "write one with weft plan --format json -o plan.json"


def read(path: str | os.PathLike[str]) -> Plan | EstimateReport | Arrangement:
    """The plan, the estimate or the arrangement of a file that ``--format json`` or ``to_json`` wrote.

    >>> import tempfile, weft
    >>> found = weft.plan("gpt2-124m", "a100-8", top=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/plan.json"
    ...     found.save(path)
    ...     weft.read(path) == found
    True

    Raises:
        BadInput: the file is no such document, or was changed into one that means nothing.
    """
    from weft.estimation.report import EstimateReport
    from weft.search import Plan

    where = os.fspath(path)
    document = _document(path, where)
    if "schema" not in document:
        raise BadInput("schema is missing", where=where, remedy=_WRITE_ONE)
    schema = document["schema"]
    plan_kind: type[Plan] = Plan
    if "proof" in document:
        from weft.search.network_plan import NetworkPlan  # with compiled kernels

        plan_kind = NetworkPlan
    for kind in (plan_kind, EstimateReport):
        if schema == kind.SCHEMA:
            return kind.from_dict(document, where=where)
    if schema == ARRANGEMENT:
        from weft.arrangement.bundle import arrangement_of

        return arrangement_of(document, where)
    raise _no_schema(schema, f"{Plan.SCHEMA!r}, {EstimateReport.SCHEMA!r} or {ARRANGEMENT!r}", where)


def read_plan(plan: str | os.PathLike[str] | Plan, rank: int = 1) -> tuple[Job, Cluster, Layout]:
    """Job, cluster and the layout of a rank (from 1) of a plan or of its file.

    >>> import tempfile, weft
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/plan.json"
    ...     weft.plan("gpt2-124m", "a100-8", top=2).save(path)
    ...     job, cluster, layout = weft.read_plan(path, 2)
    >>> job.model.name, cluster.name, layout.world
    ('gpt2-124m', 'a100-8', 8)

    Raises:
        BadInput: the file is not a plan, was changed into one that cannot run, or has no layout of that rank.
    """
    from weft.layout.check import check_layout
    from weft.search import Plan

    where = "plan" if isinstance(plan, Plan) else os.fspath(plan)
    document = plan if isinstance(plan, Plan) else read(plan)
    if not isinstance(document, Plan):
        raise _no_schema(document.SCHEMA, repr(Plan.SCHEMA), where)
    if not document.layouts:
        raise BadInput("holds no layout", where=f"{where}: layouts", remedy=_WRITE_ONE)
    if not 1 <= rank <= len(document.layouts):
        raise BadInput(f"there is no rank {rank}", where=where, remedy=f"choose 1 to {len(document.layouts)}")
    job, cluster, layout = document.job, document.cluster, document.layouts[rank - 1].layout
    check_layout(job, cluster.count, layout, where=f"{where}: layouts[{rank - 1}]")
    return job, cluster, layout


def schema_of(path: str | os.PathLike[str]) -> str:
    """The form that a JSON file says that it has; empty where it says none, or is no JSON."""
    try:
        schema = _document(path, os.fspath(path)).get("schema")
    except BadInput:
        return ""
    return schema if isinstance(schema, str) else ""


def _document(path: str | os.PathLike[str], where: str) -> Mapping[str, Any]:
    text = read_text(path, where=where, largest=MAX_FILE_BYTES, remedy=_WRITE_ONE)
    result = parse_json(text, where, remedy=_WRITE_ONE)
    if not isinstance(result, Mapping):
        raise BadInput("is not a table of fields", where=where, remedy=_WRITE_ONE)
    return result


def _no_schema(schema: object, wanted: str, where: str) -> BadInput:
    shown = repr(schema) if isinstance(schema, str) and len(schema) <= 40 else "something else"
    return BadInput(f"is {shown}, not {wanted}", where=f"{where}: schema", remedy=_WRITE_ONE)
