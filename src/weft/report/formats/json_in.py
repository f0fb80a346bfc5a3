"""Reads a plan file back: the job, the cluster and one of its layouts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from weft.cluster.files import cluster_from_dict
from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.layout.check import explain
from weft.layout.spec import Layout
from weft.layout.text import layout_from_dict
from weft.model.job import Job
from weft.model.text import job_from_dict
from weft.report.formats.json_out import PLAN_SCHEMA

MAX_FILE_BYTES = 64_000_000
_WRITE_ONE = "write one with weft plan --format json -o plan.json"


def read_plan(path: str | os.PathLike[str], rank: int = 1) -> tuple[Job, Cluster, Layout]:
    """Job, cluster and the layout of a rank (from 1) of a file that ``plan_to_json`` wrote.

    Raises:
        BadInput: the file is no plan, was changed into one that cannot run, or has no layout of that rank.
    """
    where = os.fspath(path)
    plan = _plan(_read(Path(path), where), where)
    layouts = _field(plan, "layouts", where)
    if not isinstance(layouts, list) or not layouts:
        raise BadInput("holds no layout", where=f"{where}: layouts", remedy=_WRITE_ONE)
    if not 1 <= rank <= len(layouts):
        raise BadInput(f"there is no rank {rank}", where=where, remedy=f"choose 1 to {len(layouts)}")
    job = job_from_dict(_field(plan, "job", where), where=f"{where}: job")
    cluster = cluster_from_dict(_field(plan, "cluster", where), where=f"{where}: cluster")
    place = f"{where}: layouts[{rank - 1}]"
    layout = layout_from_dict(_field(layouts[rank - 1], "layout", place), where=place, world=cluster.count)
    broken = explain(job, cluster.count, layout)
    if broken is not None:
        raise BadInput(f"{broken.code}: {broken.reason}", where=place, remedy="plan again")
    return job, cluster, layout


def _read(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise BadInput("no such file", where=where, remedy=_WRITE_ONE) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot be read: {reason}", where=where) from None
    if len(raw) > MAX_FILE_BYTES:
        raise BadInput("is larger than 64 MB", where=where, remedy=_WRITE_ONE)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("is not a text file in UTF-8", where=where, remedy=_WRITE_ONE) from None


def _plan(text: str, where: str) -> Mapping[str, Any]:
    try:
        plan = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadInput(f"not valid JSON: {reason}", where=where, remedy=_WRITE_ONE) from None
    schema = _field(plan, "schema", where)
    if schema != PLAN_SCHEMA:
        shown = repr(schema) if isinstance(schema, str) and len(schema) <= 40 else "something else"
        raise BadInput(f"is {shown}, not {PLAN_SCHEMA!r}", where=f"{where}: schema", remedy=_WRITE_ONE)
    found: Mapping[str, Any] = plan
    return found


def _field(table: object, name: str, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise BadInput("is not a table of fields", where=where, remedy=_WRITE_ONE)
    if name not in table:
        raise BadInput(f"{name} is missing", where=where, remedy=_WRITE_ONE)
    return table[name]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table whose keys are given once."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table
