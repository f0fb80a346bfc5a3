"""How many components a job has, which of a fabric's parts fail, and what goes down with them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from weft.errors import BadInput
from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.reliability.classes import NETWORK, Component, FailureBook, FailureClass

LEAVES = ("leaf", "rail")
SPINES = ("spine", "rail-spine")
LINKS = ("access-link", "fabric-link")
USUAL_HOST = 8
"""Accelerators of a host, where scale-up domains hold more and nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Components by kind of the part of a fabric that a job uses."""

    counts: dict[str, float]
    accelerators: int
    host_size: int

    def rate(self, known: FailureClass) -> float:
        """Failures of a class a second."""
        return known.rate(self.counts[known.component], self.accelerators)


def census(fabric: Fabric, accelerators: int, host_size: int | None = None) -> Census:
    """The components of a job's accelerators and of its share of the fabric, counted as a bill counts them."""
    size = host_size or min(int(np.bincount(fabric.domain).max()), USUAL_HOST)
    share = accelerators / fabric.accelerators
    counts: dict[str, float] = {"job": 1.0, "accelerator": float(accelerators), "host": -(-accelerators // size)}
    for kind in LINKS:
        counts[kind] = share * len(links_of(fabric, kind)) / 2.0
    access = links_of(fabric, "access-link")
    counts["nic"] = share * len(np.unique(fabric.source[access] * fabric.nodes + fabric.target[access])) / 2.0
    for kind in ("leaf", "spine", "core"):
        counts[kind] = share * len(switches_of(fabric, kind))
    return Census(counts=counts, accelerators=accelerators, host_size=size)


def switches_of(fabric: Fabric, kind: Component | str) -> Ints:
    """Scale-out switches of a kind: leaves, spines, and all others as cores."""
    outside = np.zeros(fabric.nodes, dtype=bool)
    beyond = fabric.tier != SCALE_UP
    outside[fabric.source[beyond]] = True
    outside[fabric.target[beyond]] = True
    outside[: fabric.accelerators] = False
    kinds = ["leaf" if role in LEAVES else "spine" if role in SPINES else "core" for role in fabric.roles]
    return np.flatnonzero(outside & (np.array(kinds)[fabric.role] == kind))


def links_of(fabric: Fabric, kind: Component | str) -> Ints:
    """Links (both directions) of cables from accelerators, or between switches."""
    at_end = (fabric.source < fabric.accelerators) | (fabric.target < fabric.accelerators)
    return np.flatnonzero((fabric.tier != SCALE_UP) & (at_end if kind == "access-link" else ~at_end))


def parts_of(fabric: Fabric, kind: Component | str) -> Ints:
    """What can fail of a kind: switches, or one link a cable."""
    if kind in LINKS:
        links = links_of(fabric, kind)
        return links[fabric.source[links] < fabric.target[links]]
    return switches_of(fabric, kind)


Failed = tuple[str, int, float]
"""A part that failed: its kind, its number (of ``parts_of``), and the share of capacity that its links keep."""


def drawn_failures(fabric: Fabric, book: FailureBook, count: int, *, seed: int, where: str) -> tuple[Failed, ...]:
    """``count`` parts that are failed at once, drawn without repetition in proportion to the rates of their classes.

    A part fails first, second, ... as the exponential times of all parts come.

    Args:
        where: the option that has ``count``.
    """
    classes = [known for known in book.classes if known.component in NETWORK and known.rate(1.0, 1.0) > 0]
    pool = [(known, int(part)) for known in classes for part in parts_of(fabric, known.component)]
    if count > len(pool):
        remedy = "give fewer, or classes of links and switches in --failures"
        problem = f"{count} parts cannot fail at once: {book.name} has classes for {len(pool)} of {fabric.name}"
        raise BadInput(problem, where=where, remedy=remedy)
    dice = random.Random(f"{seed} {count} 0")
    times = []
    for number, (known, _) in enumerate(pool):
        times.append((dice.expovariate(1.0) / known.rate(1.0, 1.0), number))
    first = sorted(number for _, number in sorted(times)[:count])
    return tuple((pool[number][0].component, pool[number][1], pool[number][0].capacity) for number in first)


def part_name(fabric: Fabric, failed: Failed) -> str:
    """What failed, in words: "fabric-link leaf-0 - spine-1", "leaf leaf-3"."""
    kind, part, _ = failed
    if kind in LINKS:
        return f"{kind} {fabric.names[fabric.source[part]]} - {fabric.names[fabric.target[part]]}"
    return f"{kind} {fabric.names[part]}"


def broken(fabric: Fabric, failed: Iterable[Failed]) -> Fabric:
    """The fabric with parts failed, each with the share of capacity that its links keep (0: they are down)."""
    reverse = fabric.reverse
    for kind, part, left in failed:
        if kind in LINKS:
            links = np.array([each for each in (part, int(reverse[part])) if each >= 0])
        else:
            links = np.flatnonzero((fabric.source == part) | (fabric.target == part))
        if left <= 0:
            fabric = fabric.failed(links=links)
            continue
        narrow = np.isin(np.arange(fabric.links), links)
        fabric = replace(fabric, capacity_Bps=np.where(narrow, fabric.capacity_Bps * left, fabric.capacity_Bps))
    return fabric


def stranded_accelerators(fabric: Fabric, among: Ints | None = None) -> Ints:
    """Accelerators (of some, or of all) that cannot reach the connected part that has the most of them."""
    part = components(fabric.nodes, fabric.source[fabric.up], fabric.target[fabric.up])
    wanted: Ints = np.arange(fabric.accelerators) if among is None else among
    largest = np.bincount(part[wanted]).argmax()
    return np.extract(part[wanted] != largest, wanted)


def hosts_taken(fabric: Fabric, known: FailureClass, host_size: int) -> int:
    """Hosts that the first component of a class takes down; 0 where the job's traffic finds another way."""
    if known.takes in ("job", "nothing"):
        return 0
    if known.takes == "host":
        return 1
    parts = parts_of(fabric, known.component if known.takes == "fabric" else "leaf")
    if not len(parts):
        return 0
    if known.takes == "fabric":
        if known.capacity > 0:
            return 0
        lost = stranded_accelerators(broken(fabric, [(known.component, int(parts[0]), 0.0)]))
    elif known.takes == "rail":
        lost = np.flatnonzero(fabric.rail == fabric.rail[0])
    else:
        ends = np.concatenate([fabric.source[fabric.target == parts[0]], fabric.target[fabric.source == parts[0]]])
        lost = np.unique(ends[ends < fabric.accelerators])
    return len(np.unique(lost // host_size))
