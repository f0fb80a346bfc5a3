"""Why a run stopped, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import format_seconds
from weft.views.blocks import Block, Column, Grid, Paragraph

if TYPE_CHECKING:
    from weft.flights import Explained, Stand

SHOWN = 4
SHOWN_ROWS = 32


def flight_view(found: Explained) -> Iterator[Block]:
    """Which rank stopped first and who waits for it, and where each rank stood."""
    for sentence in _sentences(found):
        yield Paragraph(sentence, hang=2)
    order = {rank: place for place, rank in enumerate((*found.first, *found.circle))}
    stands = sorted(found.stands, key=lambda one: (order.get(one.rank, found.world), one.since_s, one.rank))
    shown = stands[:SHOWN_ROWS]
    end_s = max(one.flight.time_s for one in found.stands if one.flight is not None)
    yield Grid(
        [
            Column(heading="rank", cells=[f"{one.rank:,}" for one in shown]),
            Column(heading="host", cells=[one.flight.host if one.flight else "" for one in shown], left=True, drop=1),
            Column(heading="step", cells=[f"{one.flight.step:,}" if one.flight else "-" for one in shown]),
            Column(heading="stands in", cells=[_place(one) for one in shown], left=True),
            Column(heading="for", cells=[format_seconds(end_s - one.since_s) if one.flight else "-" for one in shown]),
            Column(heading="waits for", cells=[_ranks(one.waits_for) for one in shown], left=True),
            Column(heading="left because", cells=[_reason(one) for one in shown], left=True, drop=2),
        ]
    )
    if len(stands) > len(shown):
        yield Paragraph(f"and {len(stands) - len(shown):,} ranks more")


def _sentences(found: Explained) -> list[str]:
    records = sum(one.flight is not None for one in found.stands)
    said = [f"{found.folder}: {records:,} of {found.world:,} ranks left a record."]
    if found.mismatch is not None:
        said.append(f"Ranks differ in {found.mismatch.words}.")
    if found.circle:
        said.append(f"Ranks wait for each other in a circle: {', '.join(map(str, (*found.circle, found.circle[0])))}.")
    said += [_first(found, rank) for rank in found.first[:SHOWN]]
    if len(found.first) > SHOWN:
        said.append(f"So did {len(found.first) - SHOWN:,} ranks more.")
    return said


def _first(found: Explained, rank: int) -> str:
    """What one of the ranks did that keep others waiting."""
    stand = found.stands[rank]
    waiters = found.waiters(rank)
    waited = ""
    if waiters:
        at = waiters[0].at
        assert at is not None
        one = len(waiters) == 1
        who = f"rank {waiters[0].rank} waits" if one else f"ranks {_ranks([one.rank for one in waiters])} wait"
        waited = f"; {who} for it in {at.words} of step {at.step}"
    if stand.flight is None:
        return f"Rank {rank} left no record: it was killed, or its machine died{waited}."
    if stand.at is not None:
        where = f"{stand.at.words} of step {stand.at.step}"
        return f"Rank {rank} stands in {where}, to which all its ranks have come{waited}."
    last = stand.flight.last
    done = f"its last was {last.words} of step {last.step}" if last is not None else "it did nothing before"
    why = f" ({stand.flight.reason})" if stand.flight.cause == "error" else ""
    return f"Rank {rank} stopped first{why}: {done}{waited}."


def _place(stand: Stand) -> str:
    if stand.flight is None:
        return "no record"
    if stand.at is not None:
        return stand.at.words
    return f"after {stand.flight.last.words}" if stand.flight.last is not None else "the beginning"


def _reason(stand: Stand) -> str:
    return stand.flight.reason[:60] if stand.flight is not None else ""


def _ranks(ranks: list[int] | tuple[int, ...]) -> str:
    more = f" and {len(ranks) - SHOWN:,} more" if len(ranks) > SHOWN else ""
    return ", ".join(map(str, ranks[:SHOWN])) + more
