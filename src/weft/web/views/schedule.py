"""A collective under every policy, and one schedule of it, as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.units import counted, format_si
from weft.views.collective import (
    ORDERS_SHOWN,
    bytes_words,
    order_groups,
    order_words,
    over_words,
    policy_words,
    provision_words,
    time_words,
    times_words,
)
from weft.web.views.parts import Cell, Column, Fact, Table

if TYPE_CHECKING:
    from weft.collectives.schedules.result import ScheduleResult

_EMPTY = Cell(text="-")


def facts(found: ScheduleResult) -> tuple[Fact, ...]:
    """What was scheduled, and what came out."""
    timed, asked = found.timed, found.timed.schedule.request
    shape = " x ".join(f"{one.size:,}" for one in asked.dimensions)
    pairs = [
        (
            "Collective",
            f"{asked.kind} of {bytes_words(asked.bytes)} on {shape} = {counted(asked.accelerators, 'accelerator')}",
        ),
        ("Schedule", policy_words(timed)),
        ("Time", f"{time_words(timed.time_s)}, {over_words(timed.time_s, found.bound_s)} over the bound"),
        ("Bound", f"{time_words(found.bound_s)}: no schedule of chunks over these dimensions is faster"),
        ("Ideal", f"{time_words(found.ideal_s)}: every dimension busy all the time, without latency"),
        *(("Assumed", note) for note in (*asked.notes, *found.assumptions)),
    ]
    return tuple(Fact(name=name, text=text) for name, text in pairs)


def policies(found: ScheduleResult, shown: str, link: Callable[[str], str]) -> Table:
    """The policies one under the other, ``shown`` being looked at; ``link`` makes the address of another."""
    assert found.others is not None
    used = found.timed.schedule.request.used
    first = next(iter(found.others.values()))
    columns = (
        Column(heading="policy", meaning="leads to its schedule", number=False),
        Column(heading="chunks"),
        Column(heading="time", meaning="until the last accelerator is done"),
        Column(heading="speedup", meaning="over the baseline"),
        Column(heading="over the bound", meaning="how much longer than any schedule must take"),
        *(Column(heading=f"idle {i + 1}", meaning=f"of the time, in dimension {i + 1}") for i in used),
        Column(heading="used", meaning="share of all bandwidth, over the time"),
    )
    seconds = {name: one.time_s for name, one in found.others.items()}
    seconds |= {"bound": found.bound_s, "ideal": found.ideal_s}
    written = dict(zip(seconds, times_words(list(seconds.values())), strict=True))

    def times(name: str) -> tuple[Cell, Cell, Cell]:
        time_s = seconds[name]
        return (
            Cell(text=written[name], key=time_s),
            Cell(text=f"{first.time_s / time_s:.2f}x", key=first.time_s / time_s),
            Cell(text=over_words(time_s, found.bound_s), key=time_s / found.bound_s),
        )

    rows: list[tuple[Cell, ...]] = []
    for name, one in found.others.items():
        idle = [1 - float(one.dimension_utilization[i]) for i in used]
        rows.append(
            (
                Cell(text=f"{name} (shown)") if name == shown else Cell(text=name, link=link(name)),
                Cell(text=f"{len(one.schedule):,}", key=len(one.schedule)),
                *times(name),
                *(Cell(text=f"{share:.1%}", key=share) for share in idle),
                Cell(text=f"{one.utilization:.1%}", key=one.utilization),
            )
        )
    for name in ("bound", "ideal"):
        rows += [(Cell(text=name), _EMPTY, *times(name), *[_EMPTY] * len(used), _EMPTY)]
    return Table(name="policies", caption="Policies", columns=columns, rows=tuple(rows))


def dimensions(found: ScheduleResult) -> Table:
    """How busy each dimension is under the schedule that is looked at."""
    columns = (
        Column(heading="#", meaning="inner to outer"),
        Column(heading="kind", number=False),
        Column(heading="size", meaning="accelerators of a group"),
        Column(heading="bandwidth", meaning="of an accelerator into the dimension, per direction"),
        Column(heading="step", meaning="latency of one step"),
        Column(heading="algorithm", number=False),
        Column(heading="sent", meaning="bytes of an accelerator"),
        Column(heading="busy", meaning="share of the time"),
        Column(heading="idle", meaning="time in which no byte moves"),
    )
    rows = [
        (
            Cell(text=str(row["number"]), key=row["number"]),
            Cell(text=row["kind"]),
            Cell(text=f"{row['size']:,}", key=row["size"]),
            Cell(text=format_si(row["bandwidth_Bps"], "B/s"), key=row["bandwidth_Bps"]),
            Cell(text=time_words(row["step_latency_s"]), key=row["step_latency_s"]),
            Cell(text=row["algorithm"]),
            Cell(text=bytes_words(row["sent_bytes"]), key=row["sent_bytes"]),
            Cell(text=f"{row['utilization']:.1%}", key=row["utilization"]),
            Cell(text=time_words(row["idle_s"]), key=row["idle_s"]),
        )
        for row in found.to_dicts()
    ]
    return Table(name="dimensions", caption="Dimensions, inner to outer", columns=columns, rows=tuple(rows))


def orders(found: ScheduleResult) -> Table:
    """The orders in which chunks go through the dimensions."""
    groups = order_groups(found.timed.schedule)
    columns = (
        Column(heading="dimensions in turn", meaning="after the bar: of the all-gather", number=False),
        Column(heading="chunks"),
        Column(heading="bytes", meaning="share of the buffer"),
    )
    rows = [
        (
            Cell(text=order_words(order, gather)),
            Cell(text=f"{count:,}", key=count),
            Cell(text=f"{share:.1%}", key=share),
        )
        for order, gather, count, share in groups[:ORDERS_SHOWN]
    ]
    caption = f"Orders of {counted(len(found.timed.schedule), 'chunk')}"
    if len(groups) > ORDERS_SHOWN:
        caption += f", the first {ORDERS_SHOWN} of {len(groups)}"
    return Table(name="orders", caption=caption, columns=columns, rows=tuple(rows))


def bandwidths(found: ScheduleResult) -> tuple[str, ...]:
    """What the dimensions' bandwidths are worth beside each other, in sentences."""
    return tuple(line[0].upper() + line[1:] for line in provision_words(found.provision))
