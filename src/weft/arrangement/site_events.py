"""Events of a site as lines of JSON, one event a line.

    {"time_s": 0, "event": "job-arrives", "job": "a", "model": "llama-3.1-8b", "layout": "tp=8,dp=4", "batch": 16}
    {"time_s": 60, "event": "host-down", "host": "host-3"}
    {"time_s": 90, "event": "link-down", "link": ["leaf-0", "spine-3"]}

Also "job-ends" (job), "host-up", "link-up", "switch-down" and "switch-up" (switch).  A job has the fields of a site
file's ``[[jobs]]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

from weft.arrangement.online import Kind, SiteEvent, check_cut
from weft.arrangement.site import Site, read_job
from weft.documents import parse_line, validate
from weft.errors import BadInput

KINDS: tuple[Kind, ...] = get_args(Kind)
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_NEEDS = {"job-arrives": "job", "job-ends": "job"} | {
    f"{what}-{way}": what for what in ("host", "link", "switch") for way in ("down", "up")
}


class _Line(BaseModel):
    """What is read first; other fields are those of the job."""

    model_config = ConfigDict(extra="allow", strict=True)
    time_s: Annotated[float, Field(ge=0, lt=1e18, allow_inf_nan=False)]
    event: Kind
    job: _Name | None = None
    host: _Name | None = None
    link: Annotated[list[_Name], Field(min_length=2, max_length=2)] | None = None
    switch: _Name | None = None


def read_site_event(line: str, site: Site, beside: Path, where: str) -> SiteEvent:
    """The event of a line.  Files that a job names are looked for in ``beside``, too.

    Raises:
        BadInput: a torn line, an unknown event or field, a value that cannot be used.
    """
    fields = validate(_Line, parse_line(line, where), where)
    needed = _NEEDS[fields.event]
    if getattr(fields, needed) is None:
        raise BadInput("is missing", where=f"{where}: {needed}", remedy=f"{fields.event} needs it")
    rest: dict[str, Any] = dict(fields.model_extra or {})
    rest |= {name: value for name in ("host", "link", "switch") if (value := getattr(fields, name)) and name != needed}
    if fields.event == "job-arrives":
        job = read_job({"name": fields.job, **rest}, site, beside, where)
        check_cut(job, where)
        return SiteEvent(time_s=fields.time_s, kind=fields.event, job=job, text=line.strip())
    if rest:
        raise BadInput(
            f"{next(iter(rest))} does not go with {fields.event}", where=where, remedy=f"give {needed} alone"
        )
    return SiteEvent(
        time_s=fields.time_s,
        kind=fields.event,
        name=fields.job or fields.host or "",
        nodes=tuple(fields.link or ()) or ((fields.switch,) if fields.switch else ()),
        text=line.strip(),
    )
