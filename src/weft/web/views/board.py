"""Hosts as boxes in their leaves and pods, jobs as colours, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from weft.units import format_seconds
from weft.views.words import printable
from weft.web.views.parts import Cell, Column, Fact, Table

if TYPE_CHECKING:
    from weft.web.sites import Seen

COLOURS = 12
"""Colours of jobs in the style sheet; later jobs begin anew."""
UNITS = ("leaf", "pod", "zone")
"""What units of a tier are called, the inner first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A host.

    Attributes:
        number: of the host.
        label: the number of its job, from 1; empty without.
        words: the whole of it, for screen readers and on hovering.
        colour: of its job; -1 without.
        state: "free"; "moves" or "fixed" with a job; "down".
        picked: whether it is about to be moved.
    """

    number: int
    label: str
    words: str
    colour: int
    state: Literal["free", "moves", "fixed", "down"]
    picked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A leaf with its hosts, or what holds units of the tier below."""

    name: str
    seats: tuple[Seat, ...] = ()
    units: tuple[Unit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """A job as a whole: it may be picked up and put on other hosts."""

    number: int
    name: str
    colour: int
    movable: bool
    picked: bool


def board(seen: Seen, picked: str) -> Unit:
    """All hosts; ``picked`` is "host:3" or "job:1", or empty."""
    held = {host: (job, at) for job, one in enumerate(seen.put.hosts) for at, host in enumerate(one)}
    hosts = range(len(seen.hosts))
    seats = [_seat(seen, host, held.get(host), picked == f"host:{host}") for host in hosts]
    return _within(seen, seats, hosts, len(seen.units), "All hosts")


def _within(seen: Seen, seats: Sequence[Seat], hosts: Sequence[int], tier: int, name: str) -> Unit:
    if not tier:
        return Unit(name=name, seats=tuple(seats[host] for host in hosts))
    unit = seen.units[tier - 1]
    kind = UNITS[min(tier, len(UNITS)) - 1]
    groups = groupby(sorted(hosts, key=lambda host: (unit[host], host)), key=lambda host: unit[host])
    inner = tuple(_within(seen, seats, list(some), tier - 1, f"{kind} {number}") for number, some in groups)
    return Unit(name=name, units=inner)


def _seat(seen: Seen, host: int, holds: tuple[int, int] | None, picked: bool) -> Seat:
    name = printable(seen.hosts[host])
    if holds is None:
        free = seen.usable[host]
        words = f"{name}: {'free' if free else 'down'}"
        return Seat(number=host, label="", words=words, colour=-1, state="free" if free else "down", picked=picked)
    number, place = holds
    job = seen.jobs[number]
    words = f"{name}: {printable(job.name)}, its host {place + 1} of {len(seen.put.hosts[number])}"
    state: Literal["moves", "fixed"] = "fixed" if job.may == "stay" else "moves"
    return Seat(
        number=host,
        label=str(number + 1),
        words=words + (", which stays" if state == "fixed" else ""),
        colour=number % COLOURS,
        state=state,
        picked=picked,
    )


def crews(seen: Seen, picked: str) -> tuple[Crew, ...]:
    """All jobs."""
    return tuple(
        Crew(
            number=number,
            name=f"{number + 1} {printable(job.name)}",
            colour=number % COLOURS,
            movable=job.may == "move",
            picked=picked == f"job:{number}",
        )
        for number, job in enumerate(seen.jobs)
    )


def result(seen: Seen) -> tuple[Fact, ...]:
    """What it comes to."""
    return (
        Fact(name="Objective", text=f"{seen.reached}, {seen.objective}"),
        Fact(name="As given", text=f"{seen.before}, with the hosts as given and hashed routes"),
        Fact(name="Bound", text=f"{seen.bound}, which no arrangement betters"),
    )


def jobs(seen: Seen) -> Table:
    """Each job's slowdown where it was put."""
    columns = (
        Column(heading="job", number=False),
        Column(heading="slowdown", meaning="time of an iteration over that alone on a 1:1 network"),
        Column(heading="as given", meaning="slowdown with the hosts as given and hashed routes"),
        Column(heading="iteration", meaning="steady time of an iteration with all jobs"),
        Column(heading="hosts"),
        Column(heading="layout", number=False),
    )
    rows = tuple(
        (
            Cell(text=f"{number + 1} {printable(job.name)}"),
            Cell(text=f"{job.slowdown:.4f}", key=job.slowdown),
            Cell(text=f"{job.before:.4f}", key=job.before),
            Cell(text=format_seconds(job.iteration_s), key=job.iteration_s),
            Cell(text=str(len(seen.put.hosts[number])), key=len(seen.put.hosts[number])),
            Cell(text=job.layout),
        )
        for number, job in enumerate(seen.jobs)
    )
    return Table(name="slowdowns", caption="Slowdowns", columns=columns, rows=rows)


def links(seen: Seen) -> Table | None:
    """The busiest links; None where nothing leaves any host."""
    if not seen.links:
        return None
    columns = (
        Column(heading="link", number=False),
        Column(heading="load", meaning="mean share of what it can carry"),
        Column(heading="jobs", meaning="that use it"),
    )
    rows = tuple(
        (
            Cell(text=printable(one.name)),
            Cell(text=f"{one.share:.1%}", key=one.share),
            Cell(text=str(one.jobs), key=one.jobs),
        )
        for one in seen.links
    )
    return Table(name="busiest", caption="Busiest links", columns=columns, rows=rows)
