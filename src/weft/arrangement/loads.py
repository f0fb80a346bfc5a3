"""What happens on a site in time: who communicates when, how busy links are, and which are the busiest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.arrangement.clock import Clock, Timed
from weft.arrangement.schedule import sent
from weft.fabric.spec import SCALE_UP, Floats, Ints
from weft.simulation.flows.engine import run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkLoads:
    """Mean share of each link that the jobs use, at the pace that they reach together (job, link).

    Links inside scale-up domains and links that are down have 0.
    """

    of_job: Floats

    @property
    def share(self) -> Floats:
        """Of all jobs, for every link."""
        return np.asarray(self.of_job.sum(axis=0))

    def busiest(self, count: int) -> Ints:
        """The busiest links in use, the busiest first; those of the lowest number first where they are alike."""
        order = np.argsort(-np.round(self.share, 9), kind="stable")[:count]
        return np.asarray(order[self.share[order] > 0])

    def shared(self) -> int:
        """The busiest link that several jobs use; else the busiest one; -1 where nothing leaves any host."""
        several = np.where((self.of_job > 0).sum(axis=0) > 1, self.share, 0.0)
        chosen = several if several.any() else self.share
        return int(np.argmax(np.round(chosen, 9))) if chosen.any() else -1


def link_loads(clock: Clock, timed: Timed) -> LinkLoads:
    """The loads of a choice."""
    fabric, choice = clock.fabric, timed.choice
    able = np.where((fabric.tier > SCALE_UP) & fabric.up, fabric.capacity_Bps, np.inf)
    rows = [
        clock.carried(choice.hosts, choice.router, job) / float(seconds) / able
        for job, seconds in enumerate(timed.iteration_s)
    ]
    return LinkLoads(of_job=np.array(rows))


PARTS = 720
"""Parts of a window in which loads are told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Some steady seconds of a site; times count from their begin.

    ``sends[job]`` are the spans in which a job sends between hosts (begin, end), ``ends[job]`` the moments at which
    its iterations end.  ``share[n]`` is what a link carries in part ``n`` of ``PARTS``, over what it can.
    """

    seconds: float
    sends: tuple[Floats, ...]
    ends: tuple[Floats, ...]
    link: int
    share: Floats


def window(clock: Clock, timed: Timed, link: int, seconds: float) -> Window:
    """The last seconds that all jobs run together, from where an iteration of the longest one begins.

    Args:
        link: whose load is wanted; -1 for none.
        seconds: how long; less where all jobs do not run together for so long.
    """
    jobs = range(len(clock.templates))
    result = run(clock.fabric.capacity_Bps, *clock.together(timed.choice, jobs), sample=True)
    first = np.cumsum([0] + [len(one.phases) for one in clock.repeats])
    finished = [result.phase_end_s[first[job] + clock.repeats[job].ends] for job in jobs]
    until = min(float(one[-1]) for one in finished)
    longest = finished[int(np.argmax(timed.iteration_s))]
    fits = longest[longest + seconds <= until * (1 + 1e-9)]
    begin = float(fits[-1]) if len(fits) else 0.0
    seconds = min(seconds, until - begin)
    sends, ends = [], []
    for job in jobs:
        phases = first[job] + np.unique(clock.repeats[job].phase)
        spans = covered(result.phase_begin_s[phases] - begin, result.phase_end_s[phases] - begin)
        sends.append(np.clip(spans[(spans[:, 1] > 0) & (spans[:, 0] < seconds)], 0.0, seconds))
        after = finished[job] - begin
        ends.append(after[(after > 0) & (after < seconds * (1 + 1e-9))])
    share = np.zeros(PARTS)
    rates = result.rates
    if link >= 0 and rates is not None:
        mine = rates.link == link
        edges = begin + np.linspace(0.0, seconds, PARTS + 1)
        moved = np.diff(sent(rates.time_s[mine], rates.rate_Bps[mine], result.makespan_s, edges))
        share = moved / (clock.fabric.capacity_Bps[link] * seconds / PARTS)
    return Window(seconds=seconds, sends=tuple(sends), ends=tuple(ends), link=link, share=share)


def covered(begin: Floats, end: Floats) -> Floats:
    """What some spans of time cover together, as spans apart from each other (begin, end), in order."""
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]])[: len(begin)])
    last = np.append(first[1:], len(begin))[: len(first)] - 1
    return np.stack([begin[first], reach[last]], axis=1)
