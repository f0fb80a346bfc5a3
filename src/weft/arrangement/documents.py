"""What a site takes out of other documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput
from weft.files import read_text

MAX_FILE_BYTES = 64_000_000
_WRITE_ONE = "write one with weft plan --format json -o plan.json"


def plan_parts(path: str, rank: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The job and the layout of a rank (from 1) in a plan's file, as they stand there.

    Raises:
        BadInput: the file is no plan, or has no layout of that rank.
    """
    document = parse_json(read_text(path, where=path, largest=MAX_FILE_BYTES, remedy=_WRITE_ONE), path)
    if not isinstance(document, Mapping) or document.get("schema") != "weft.plan/1":
        raise BadInput("is no plan", where=path, remedy=_WRITE_ONE)
    layouts = document.get("layouts")
    if not isinstance(layouts, list) or not 1 <= rank <= len(layouts):
        raise BadInput(f"there is no rank {rank}", where=path, remedy=_WRITE_ONE)
    row = layouts[rank - 1]
    if not isinstance(row, Mapping) or not isinstance(row.get("layout"), Mapping) or "job" not in document:
        raise BadInput("holds no job with a layout", where=path, remedy=_WRITE_ONE)
    return document["job"], row["layout"]
