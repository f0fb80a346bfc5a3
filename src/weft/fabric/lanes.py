"""Virtual lanes of routes, and the proof that no routes wait for each other in a circle.

A packet holds the buffer of one channel, a link and a lane of it, while it waits for the next.  Routes are free of
deadlock where the graph of such waits has no circle (Dally and Seitz, IEEE Trans. Computers 1987).  Accelerators that
pass traffic on between their scale-up domain and the network store it, so that nothing waits across; on a grid without
switches they pass it on as switches do.

Lanes are free of deadlock by construction: a packet starts on lane 0 and goes one up wherever the next link does not
come later in a fixed order of links: in each dimension of a grid by position, elsewhere up, across, down.  Where all
packets go from dimension to dimension in order, they start on lane 0 again in each.
``check_deadlock`` does not rely on that.  It looks at the waits themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from weft.errors import BadInput
from weft.fabric.paths import Mode, routes
from weft.fabric.spec import SCALE_UP, Fabric, Ints, Mask
from weft.fabric.structured import grid_of
from weft.fabric.traffic import Routes, spans
from weft.results import Result
from weft.units import counted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeadlockCheck:
    """Whether routes can wait for each other in a circle, with the proof.

    Channel ``c`` is lane ``lane[c]`` of link ``link[c]``; ``waits`` has a row (c, d) for each channel c that is held
    while channel d is waited for.  Free of deadlock, ``order`` numbers the channels so that every wait is for a higher
    number; otherwise it is None, and ``cycle`` are channels that wait for each other in turn.
    """

    link: Ints
    lane: Ints
    waits: Ints
    order: Ints | None
    cycle: Ints

    @property
    def free(self) -> bool:
        return self.order is not None

    @property
    def lanes(self) -> int:
        """Lanes that the routes need on some link."""
        return int(self.lane.max(initial=0)) + 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LanesReport(Result):
    """Routes between accelerators, checked: all on one lane (``bare``), and on lanes (``laned``; None where flows are
    split over paths, which have none)."""

    SCHEMA = "weft.lanes/1"

    fabric: Fabric
    routing: str
    pairs: int
    every: bool
    bare: DeadlockCheck
    laned: DeadlockCheck | None

    @property
    def proven(self) -> DeadlockCheck:
        """The check of the routes as they are to be used."""
        return self.bare if self.laned is None or self.bare.free else self.laned

    def words(self, check: DeadlockCheck) -> tuple[str, ...]:
        """The channels of a circle, as links with their lanes."""
        names, one = self.fabric.names, self.fabric
        return tuple(
            f"{names[one.source[link]]} -> {names[one.target[link]]} lane {lane}"
            for link, lane in zip(check.link[check.cycle].tolist(), check.lane[check.cycle].tolist(), strict=True)
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for the routes on one lane, and one for those on lanes."""
        checks = (("one lane", self.bare), ("lanes", self.laned))
        return [{"on": name} | self._check(check) for name, check in checks if check is not None]

    def _check(self, check: DeadlockCheck) -> dict[str, Any]:
        return {
            "lanes": check.lanes,
            "channels": len(check.link),
            "waits": len(check.waits),
            "free": check.free,
            "longest": None if check.order is None else int(check.order.max(initial=-1)) + 1,
            "cycle": list(self.words(check)),
        }

    def _document(self) -> dict[str, Any]:
        return {
            "fabric": self.fabric.name,
            "accelerators": self.fabric.accelerators,
            "routing": self.routing,
            "pairs": self.pairs,
            "every": self.every,
            "one_lane": self._check(self.bare),
            "lanes": None if self.laned is None else self._check(self.laned),
        }

    def _facts(self) -> Sequence[str]:
        found = self.proven
        return (
            f"{self.fabric.name}, {self.routing}",
            counted(found.lanes, "lane"),
            "free" if found.free else "not free",
        )


def report(fabric: Fabric, routing: str, *, pairs: int, seed: int = 0) -> LanesReport:
    """Routes between all accelerators, or between ``pairs`` of them drawn where there are more, checked.

    Raises:
        BadInput: the fabric has no such routes.
    """
    hosts = fabric.accelerators
    every = hosts * (hosts - 1) <= pairs
    if every:
        source, shift = np.divmod(np.arange(hosts * (hosts - 1)), hosts - 1)
    else:
        draw = np.random.default_rng(seed)
        source, shift = draw.integers(0, hosts, pairs), draw.integers(0, hosts - 1, pairs)
    found = routes(fabric, source, (source + shift + 1) % hosts, mode=cast(Mode, routing), seed=seed)
    split = bool((found.usage != 1).any())
    return LanesReport(
        fabric=fabric,
        routing=routing,
        pairs=len(source),
        every=every,
        bare=check_deadlock(fabric, found),
        laned=None if split else check_deadlock(fabric, found, lanes(fabric, found)),
    )


def ranks(fabric: Fabric) -> tuple[Ints, Ints]:
    """The order of links: first by the one number, then by the other.

    On grids they are the dimension and the position along it, elsewhere 0 and how far up, across or down.
    """
    try:
        grid = grid_of(fabric)
    except BadInput:
        return np.zeros(fabric.links, dtype=np.int64), _heights(fabric)
    start, end = (
        grid.coordinates(fabric.domain[np.minimum(ends, fabric.accelerators - 1)])
        for ends in (fabric.source, fabric.target)
    )
    axis = np.argmax(start != end, axis=1)
    one = np.arange(fabric.links)
    here, there = start[one, axis], end[one, axis]
    size = np.array(grid.dims)[axis]
    ahead = (there - here) % size == 1
    return np.asarray(axis, dtype=np.int64), np.where(ahead, here, size - 1 - here)


def _heights(fabric: Fabric) -> Ints:
    """Links up by their tier, then those across, then links down from the top."""
    outside = np.flatnonzero(fabric.tier > SCALE_UP)
    level = np.full(fabric.nodes, fabric.tier.max(initial=0), dtype=np.int64)
    np.minimum.at(level, fabric.target[outside], fabric.tier[outside])
    level[: fabric.accelerators] = 0
    rising = level[fabric.target] >= level[fabric.source]
    return np.where(rising, fabric.tier, 2 * (fabric.tier.max(initial=0) + 1) - fabric.tier)


def lanes(fabric: Fabric, taken: Routes) -> Ints:
    """The lane of every link of single paths, one entry each of ``taken.links``.

    Raises:
        BadInput: a flow is split over several paths.
    """
    if (taken.usage != 1).any():
        raise BadInput("split flows have no lanes", where="routing", remedy="choose one that gives a flow one path")
    major, minor = ranks(fabric)
    held, wanted = _consecutive(fabric, taken)
    before, after = taken.links[held], taken.links[wanted]
    if (_passed(fabric, before, after) & (major[after] < major[before])).any():
        major, minor = np.zeros_like(major), major * (int(minor.max(initial=0)) + 1) + minor
    found = np.zeros(len(taken.links), dtype=np.int64)
    length = np.diff(taken.indptr)
    for hop in range(1, int(length.max(initial=0))):
        at = taken.indptr[:-1][length > hop] + hop
        before, after = taken.links[at - 1], taken.links[at]
        turned = major[after] > major[before]
        later = (major[after] == major[before]) & (minor[after] > minor[before])
        found[at] = np.where(_passed(fabric, before, after) & ~turned, found[at - 1] + ~later, 0)
    return found


def _passed(fabric: Fabric, before: Ints, after: Ints) -> Mask:
    """Where traffic goes from one scale-out link to the next without being stored."""
    return (fabric.tier[before] > SCALE_UP) & (fabric.tier[after] > SCALE_UP)


def check_deadlock(fabric: Fabric, taken: Routes, lane: Ints | None = None) -> DeadlockCheck:
    """Look for waits in a circle among routes.

    Args:
        lane: of every link of the routes; all on lane 0 by default.
    """
    lane = np.zeros(len(taken.links), dtype=np.int64) if lane is None else lane
    many = int(lane.max(initial=0)) + 1
    kept = fabric.tier[taken.links] > SCALE_UP
    names, channel = np.unique(taken.links * many + lane, return_inverse=True)
    channel = channel.reshape(-1)
    held, wanted = _consecutive(fabric, taken)
    both = kept[held] & kept[wanted]
    count = len(names)
    waits = np.unique(channel[held[both]] * count + channel[wanted[both]])
    pairs = np.stack(np.divmod(waits, max(1, count)), axis=1).astype(np.int64)
    order = _ordered(count, pairs)
    left = order < 0
    return DeadlockCheck(
        link=names // many,
        lane=names % many,
        waits=pairs,
        order=None if left.any() else order,
        cycle=_cycle(pairs[left[pairs].all(axis=1)]) if left.any() else np.zeros(0, dtype=np.int64),
    )


def _consecutive(fabric: Fabric, taken: Routes) -> tuple[Ints, Ints]:
    """Entries of the links that follow each other: in order on single paths, by nodes where flows split."""
    flow = np.repeat(np.arange(len(taken)), np.diff(taken.indptr))
    if (taken.usage == 1).all():
        at = np.flatnonzero(flow[1:] == flow[:-1])
        return at, at + 1
    into = flow * fabric.nodes + fabric.target[taken.links]
    out = flow * fabric.nodes + fabric.source[taken.links]
    order = np.argsort(out, kind="stable")
    first, last = np.searchsorted(out[order], into), np.searchsorted(out[order], into, side="right")
    return np.repeat(np.arange(len(into)), last - first), order[spans(first, last - first)]


def _ordered(count: int, waits: Ints) -> Ints:
    """Numbers of the channels by the longest chain of waits that leads to them; -1 where a circle leads to them."""
    first = np.searchsorted(waits[:, 0], np.arange(count + 1))
    open_ = np.bincount(waits[:, 1], minlength=count)
    order = np.full(count, -1, dtype=np.int64)
    ready = np.flatnonzero(open_ == 0)
    step = 0
    while len(ready):
        order[ready] = step
        reached = waits[spans(first[ready], first[ready + 1] - first[ready]), 1]
        open_ -= np.bincount(reached, minlength=count)
        reached = np.unique(reached)
        ready, step = reached[open_[reached] == 0], step + 1
    return order


def _cycle(waits: Ints) -> Ints:
    """Channels that wait in a circle, from waits among channels of which each is waited for by another."""
    before = dict(zip(waits[:, 1].tolist(), waits[:, 0].tolist(), strict=True))
    seen: dict[int, None] = {}
    channel = int(waits[0, 1])
    while channel not in seen:
        seen[channel] = None
        channel = before[channel]
    trail = list(seen)
    return np.array(trail[trail.index(channel) :][::-1], dtype=np.int64)
