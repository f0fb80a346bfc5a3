"""Schedules as pages ask for them: every policy of one collective, and one of them in full."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from weft.errors import UnknownName
from weft.verbs.schedule import ScheduleOptions, schedule

if TYPE_CHECKING:
    from weft.collectives.schedules.result import ScheduleResult

SHOWS = ("policies", "chunks")
"""What is drawn: the policies' chunks over time, or what the policies reach in several numbers of chunks."""
CHUNK_COUNTS = (4, 8, 16, 32, 64, 128, 256, 512)
_DRAWN = ("baseline", "themis scf", "weft")
"""Policies that are drawn beside the one that is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is scheduled.

    Attributes:
        collective: its kind.
        size: of the full buffer, as text.
        options: the dimensions and the chunks; none that names a file.
    """

    collective: str
    size: str
    options: ScheduleOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A collective under every policy.

    Attributes:
        result: of the policy that is looked at, the others beside it.
        policy: its name among them.
        chart: SVG of what is drawn.
    """

    result: ScheduleResult
    policy: str
    chart: str


@lru_cache(maxsize=4)
def _compared(inquiry: Inquiry) -> ScheduleResult:
    options = replace(inquiry.options, policy="baseline", compare=True)
    return cast("ScheduleResult", schedule(inquiry.collective, inquiry.size, options))


def scheduled(inquiry: Inquiry, policy: str) -> ScheduleResult:
    """The schedule of a policy, by its name among those that are compared, beside all of them.

    Raises:
        BadInput: a dimension, a size or an option that cannot be used.
        UnknownName: there is no such policy.
    """
    found = _compared(inquiry)
    assert found.others is not None
    if policy not in found.others:
        raise UnknownName("policy", policy[:40], tuple(found.others))
    return replace(found, timed=found.others[policy])


def explored(inquiry: Inquiry, policy: str, show: str) -> Found:
    """What ``scheduled`` finds, with a picture: one of ``SHOWS``.

    Raises:
        BadInput: a dimension, a size or an option that cannot be used.
        UnknownName: there is no such policy.
    """
    from weft.views.charts.charts import embedded
    from weft.views.charts.schedules import counts_chart, policies_chart

    found = scheduled(inquiry, policy)
    if show == "chunks":
        chart = counts_chart(_swept(inquiry, found.timed.schedule.request.bytes).counts, found.bound_s)
    else:
        assert found.others is not None
        drawn = {name: timed for name, timed in found.others.items() if name in (*_DRAWN, policy)}
        chart = policies_chart(drawn, found.bound_s)
    return Found(result=found, policy=policy, chart=embedded(chart))


def _swept(inquiry: Inquiry, bytes_: float) -> ScheduleResult:
    """Every policy in as many of ``CHUNK_COUNTS`` as there are bytes for."""
    counts = tuple(one for one in CHUNK_COUNTS if one <= bytes_) or (1,)
    options = replace(inquiry.options, policy="baseline", chunks=None, chunk_counts=counts)
    return cast("ScheduleResult", schedule(inquiry.collective, inquiry.size, options))


def document(inquiry: Inquiry, policy: str, form: str) -> str:
    """The file of a schedule: its JSON document, or its dimensions as "csv".

    Raises:
        BadInput: a dimension, a size or an option that cannot be used.
        UnknownName: there is no such policy.
    """
    from weft.views.files.csv_out import rows_to_csv

    found = scheduled(inquiry, policy)
    rows = found.to_dicts()
    return rows_to_csv(rows, tuple(rows[0])) if form == "csv" else found.to_json()
