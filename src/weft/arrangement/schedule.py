"""When jobs communicate, and who goes first: offsets on a circle of one common period, and orders of classes.

Offsets follow the geometric idea of CASSINI (Rajasekaran et al., NSDI 2024): each job's demand for links is laid
around a circle of the common period, and circles are turned until demands fit beside each other.  Orders of jobs are
searched by branch and bound; with more than ``EXACT`` jobs they follow Crux's intensity (Cao et al., SIGCOMM 2024).
Both papers' policies are made anew here, from their texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.arrangement.clock import Choice, Clock, Timed
from weft.fabric.spec import Floats

BINS = 96
"""Parts of the circle."""
MOST_LINKS = 96
"""Busiest shared links that the circle looks at."""
RESTARTS = 8
STEPS = 12
"""Offsets that the clock tries for a job in one pass, over its period."""
EXACT = 6
"""Jobs up to which orders are searched."""
SLACK = 2e-3
"""A job of a lower class takes at most this share from those above, which bounds by the jobs above let pass."""
DONE = 5e-4
"""Share above the bound that is not worth another step."""
Stop = Callable[[], bool]


def demands(clock: Clock, choice: Choice) -> tuple[Floats, float]:
    """Share of each shared link's capacity that each job wants in each part of the circle (job, link, part), and the
    common period in seconds: that of the longest iteration, which others divide."""
    taken = [clock.alone(choice.hosts, choice.router, job, sample=True) for job in range(len(clock.templates))]
    period = max(seconds for seconds, _ in taken)
    outer = clock.fabric.tier > 0
    used = np.zeros((len(taken), clock.fabric.links))
    for job, (_, rates) in enumerate(taken):
        sampled: Any = rates
        np.maximum.at(used[job], sampled.link, sampled.rate_Bps)
    capacity = clock.fabric.capacity_Bps
    wanted = used.sum(axis=0)
    tight = np.flatnonzero(outer & ((used > 0).sum(axis=0) > 1) & (wanted > capacity * (1 + 1e-9)))
    over = wanted[tight] / capacity[tight]
    tight = np.sort(tight[np.argsort(-over, kind="stable")[:MOST_LINKS]])
    found = np.zeros((len(taken), len(tight), BINS))
    for job, (seconds, rates) in enumerate(taken):
        found[job] = _around(rates, tight, seconds, max(1, round(period / seconds))) / capacity[tight, None]
    return found, period


def _around(rates: Any, links: np.ndarray, seconds: float, times: int) -> Floats:
    """Mean rate of some links in each part of the circle, the iteration repeated ``times`` around it."""
    place = np.full(int(rates.link.max(initial=0)) + 1, -1, dtype=np.int64)
    known = links[links < len(place)]
    place[known] = np.arange(len(links))[links < len(place)]
    edges = np.linspace(0.0, 1.0, BINS + 1)
    found = np.zeros((len(links), BINS))
    for at in range(len(links)):
        mine = np.flatnonzero(place[rates.link] == at)
        if not len(mine):
            continue
        time, rate = rates.time_s[mine], rates.rate_Bps[mine]
        stops = np.append(time[1:], seconds)
        total = np.concatenate([[0.0], np.cumsum(rate * (stops - time))])
        moments = np.append(time, seconds)
        turns = edges * times
        whole = np.floor(turns)
        sent = whole * total[-1] + np.interp((turns - whole) * seconds, moments, total)
        found[at] = np.diff(sent) / (seconds * times / BINS)
    return found


def turned(wanted: Floats, turns: np.ndarray) -> float:
    """What all jobs want beyond capacity, summed over links and parts, when circles are turned."""
    total = np.zeros(wanted.shape[1:])
    for job, turn in enumerate(turns.tolist()):
        total += np.roll(wanted[job], turn, axis=1)
    return float(np.maximum(total - 1.0, 0.0).sum())


def circle(wanted: Floats, seed: int) -> list[np.ndarray]:
    """Turns of all circles in parts, best first: coordinate descent from several starts; the first job's is 0."""
    jobs = len(wanted)
    draw = np.random.default_rng(seed)
    found: dict[tuple[int, ...], float] = {}
    every = np.arange(BINS)
    rolled = (every[None, :] - every[:, None]) % BINS
    for start in range(RESTARTS):
        turns = np.zeros(jobs, dtype=np.int64) if start == 0 else draw.integers(0, BINS, jobs)
        turns[0] = 0
        cost = turned(wanted, turns)
        better = True
        while better:
            better = False
            for job in range(1, jobs):
                rest = np.zeros(wanted.shape[1:])
                for other in range(jobs):
                    if other != job:
                        rest += np.roll(wanted[other], int(turns[other]), axis=1)
                costs = np.maximum(rest[:, None, :] + wanted[job][:, rolled] - 1.0, 0.0).sum(axis=(0, 2))
                best = int(np.argmin(costs))
                if costs[best] < cost - 1e-9:
                    turns[job], cost, better = best, float(costs[best]), True
        found[tuple(turns.tolist())] = cost
    return [np.array(turns) for turns, _ in sorted(found.items(), key=lambda one: (one[1], one[0]))]


def with_offsets(clock: Clock, now: Timed, seed: int, stop: Stop) -> Timed:
    """The best offsets found for a choice: those of the circle, then coordinate descent by the clock.

    Only improvements are accepted.
    """
    if len(clock.templates) < 2:
        return now
    wanted, period = demands(clock, now.choice)
    if not wanted.shape[1]:
        return now
    best = now
    for turns in circle(wanted, seed)[:3]:
        offsets = tuple(float(turn) * period / BINS for turn in turns)
        best = min(best, clock.timed(replace(now.choice, offset_s=offsets)), key=_cost)
        if stop():
            return best
    active = [job for job in range(len(clock.templates)) if wanted[job].any()]
    width = 1.0
    for _ in range(3):
        for job in active[1:]:
            centre = best.choice.offset_s[job]
            seconds = clock.templates[job].alone_s
            for step in range(STEPS):
                shift = seconds * width * (step / STEPS - (0.0 if width == 1.0 else 0.5))
                moved = list(best.choice.offset_s)
                moved[job] = (centre + shift) % max(seconds, period)
                best = min(best, clock.timed(replace(best.choice, offset_s=tuple(moved))), key=_cost)
                if stop() or best.cost <= 1.0 + DONE:
                    return best
        width /= 4
    return best


def with_order(clock: Clock, now: Timed, stop: Stop) -> Timed:
    """The best order of classes found for a choice; the choice itself where none is better, or there is one class."""
    jobs = len(clock.templates)
    if clock.site.classes < 2 or jobs < 2:
        return now
    if jobs > EXACT:
        return min(now, clock.timed(replace(now.choice, order=crux_order(clock, now))), key=_cost)
    return _Branches(clock, now, stop).best


def crux_order(clock: Clock, now: Timed) -> tuple[int, ...]:
    """The place of each job by falling intensity: computation of all its accelerators over its seconds of
    communication (Crux)."""
    intensity = []
    for one in clock.templates:
        busy = max(one.network_s, 1e-9)
        intensity.append(one.ranks * max(one.alone_s - one.network_s, 0.0) / busy)
    order = np.argsort(-np.array(intensity), kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return tuple(place.tolist())


class _Branches:
    """Orders of jobs, the first served first.

    The jobs at the head of an order hardly feel those behind.  So they take what they take among themselves, and the
    rest at least what they take alone: a bound on every order with this head.
    """

    def __init__(self, clock: Clock, now: Timed, stop: Stop) -> None:
        self.clock, self.now, self.best, self.stop = clock, now, now, stop
        jobs = range(len(clock.templates))
        self.alone_s = np.array([clock.timed(now.choice, [job]).iteration_s[job] for job in jobs])
        self._below([], sorted(jobs, key=lambda job: crux_order(clock, now)[job]))

    def _below(self, head: list[int], rest: list[int]) -> None:
        if self.stop():
            return
        if len(rest) <= 1:
            order = [0] * (len(head) + len(rest))
            for place, job in enumerate([*head, *rest]):
                order[job] = place
            self.best = min(self.best, self.clock.timed(replace(self.now.choice, order=tuple(order))), key=_cost)
            return
        for job in rest:
            first = [*head, job]
            others = [one for one in rest if one != job]
            if self._bound(first) < self.best.cost - 1e-9:
                self._below(first, others)

    def _bound(self, head: list[int]) -> float:
        order = [len(head)] * len(self.alone_s)
        for place, job in enumerate(head):
            order[job] = place
        least_s, objective = self.alone_s.copy(), self.clock.objective
        # Until the last job ends others do, so that those at the head may have more room than among themselves.
        if len(head) > 1 and objective.kind != "makespan":
            least_s[head] = self.clock.timed(replace(self.now.choice, order=tuple(order)), head).iteration_s[head]
        return objective.cost(least_s, least_s / objective.against_s) * (1 - SLACK)


def _cost(one: Timed) -> float:
    return one.cost
