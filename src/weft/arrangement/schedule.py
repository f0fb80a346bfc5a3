"""When jobs communicate, and who goes first: offsets on a circle of one common period, and orders of classes.

Offsets follow the geometric idea of CASSINI (Rajasekaran et al., NSDI 2024): each job's demand for links is laid
around a circle of the common period, and circles are turned until demands fit beside each other.  Orders of jobs are
searched by branch and bound; with more than ``EXACT`` jobs they follow Crux's intensity (Cao et al., SIGCOMM 2024).
Both papers' policies are implemented here from their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.arrangement.clock import Assignment, Clock, Timed
from weft.fabric.spec import SCALE_UP, Floats, Ints, Mask
from weft.model.job import model_flops

BINS = 96
"""Parts of the circle."""
MOST_LINKS = 96
"""Busiest shared links that the circle looks at."""
MOST_TURNS = 6
"""Iterations of the longest job around the circle."""
MISFIT = 0.01
"""Share of an iteration by which it may miss its place on the circle: about one part."""
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


def periods(seconds: Floats) -> list[float]:
    """Lengths of the circle that are worth a try: the longest iteration, and its multiple that all others divide.

    CASSINI's circle has the least common multiple of all iteration times (section 3).  Measured times have none, so
    this is the first of ``MOST_TURNS`` multiples in which each iteration fits to within ``MISFIT`` of itself, or
    the one where the worst fits best.
    """
    longest = float(seconds.max())
    # How far each multiple of the longest iteration is from whole numbers of the others.
    misfits = []
    for turns in range(1, MOST_TURNS + 1):
        times = turns * longest / seconds
        misfits.append(float(np.abs(times / np.rint(times) - 1.0).max()))
    fits = [at for at, misfit in enumerate(misfits) if misfit <= MISFIT]
    best = fits[0] if fits else int(np.argmin(misfits))
    return [longest, (best + 1) * longest] if best else [longest]


def demands(clock: Clock, choice: Assignment) -> list[tuple[Floats, float, Floats]]:
    """For each circle: the share of each shared link's capacity that each job wants in each part (job, link, part),
    its seconds, and how often it holds each job's iteration.

    Without any where no link is wanted by more than it can carry.
    """
    alone = [clock.alone(choice.hosts, choice.router, job, sample=True) for job in range(len(clock.templates))]
    seconds = np.array([seconds_alone for seconds_alone, _ in alone])
    outer = clock.fabric.tier > 0
    used = np.zeros((len(alone), clock.fabric.links))
    for job, (_, rates) in enumerate(alone):
        sampled: Any = rates
        np.maximum.at(used[job], sampled.link, sampled.rate_Bps)
    capacity = clock.fabric.capacity_Bps
    # Only links that several jobs use, and that cannot carry all at their peaks, can make jobs wait for each other.
    wanted = used.sum(axis=0)
    tight = np.flatnonzero(outer & ((used > 0).sum(axis=0) > 1) & (wanted > capacity * (1 + 1e-9)))
    if not len(tight):
        return []
    over = wanted[tight] / capacity[tight]
    tight = np.sort(tight[np.argsort(-over, kind="stable")[:MOST_LINKS]])
    circles = []
    # Each iteration is repeated a whole number of times (rounded) around the circle, so that a turn of it is an offset
    # of the job.
    for period in periods(seconds):
        times = np.rint(period / seconds)
        shares = [
            _around(rates, tight, seconds_alone, int(turns)) / capacity[tight, None]
            for (seconds_alone, rates), turns in zip(alone, times, strict=True)
        ]
        circles.append((np.array(shares), period, times))
    return circles


def _around(rates: Any, links: np.ndarray, seconds: float, times: int) -> Floats:
    """Mean rate of some links in each part of the circle, the iteration repeated ``times`` around it."""
    place = np.full(int(rates.link.max(initial=0)) + 1, -1, dtype=np.int64)
    known = links[links < len(place)]
    place[known] = np.arange(len(links))[links < len(place)]
    edges = np.linspace(0.0, 1.0, BINS + 1)
    means = np.zeros((len(links), BINS))
    for at in range(len(links)):
        mine = np.flatnonzero(place[rates.link] == at)
        if not len(mine):
            continue
        time, rate = rates.time_s[mine], rates.rate_Bps[mine]
        # Bytes up to an edge: whole iterations before it, and a part of one.
        turns = edges * times
        full_turns = np.floor(turns)
        each = sent(time, rate, seconds, np.array([seconds]))
        means[at] = np.diff(full_turns * each + sent(time, rate, seconds, (turns - full_turns) * seconds))
    return means / (seconds * times / BINS)


def sent(time_s: Floats, rate_Bps: Floats, end_s: float, at_s: Floats) -> Floats:
    """Bytes sent by some moments at rates that hold from ``time_s`` on, the last until ``end_s``."""
    stops = np.append(time_s[1:], end_s)
    total = np.concatenate([[0.0], np.cumsum(rate_Bps * (stops - time_s))])
    return np.asarray(np.interp(at_s, np.append(time_s, end_s), total))


def turned(wanted: Floats, turns: np.ndarray) -> float:
    """What all jobs want beyond capacity, summed over links and parts, when circles are turned."""
    # Demand beyond capacity has to wait: what is summed is the work that is late.
    total = np.zeros(wanted.shape[1:])
    for job, turn in enumerate(turns.tolist()):
        total += np.roll(wanted[job], turn, axis=1)
    return float(np.maximum(total - 1.0, 0.0).sum())


def circle(wanted: Floats, seed: int, late: Stop = lambda: False) -> list[np.ndarray]:
    """Turns of all circles in parts, best first: coordinate descent from several starts; the first job's is 0."""
    jobs = len(wanted)
    draw = np.random.default_rng(seed)
    costs_by_turns: dict[tuple[int, ...], float] = {}
    every = np.arange(BINS)
    rolled = (every[None, :] - every[:, None]) % BINS
    # A job's circle matters on the links that it wants, and only beside the jobs that want them, too.
    wants = np.asarray(wanted.any(axis=2))
    links = [np.flatnonzero(row) for row in wants]
    partners = [[at for at in np.flatnonzero(wants[:, links[job]].any(axis=1)) if at != job] for job in range(jobs)]
    for start in range(RESTARTS):
        if start and late():
            break
        turns = np.zeros(jobs, dtype=np.int64) if start == 0 else draw.integers(0, BINS, jobs)
        # Only differences of turns count, so the first job stays.
        turns[0] = 0
        better = True
        while better and not late():
            better = False
            for job in range(1, jobs):
                # What the others want stays while this job's circle turns: all of its turns are judged in one go.
                beside = np.zeros((len(links[job]), BINS))
                for partner in partners[job]:
                    beside += wanted[partner][links[job]][:, rolled[turns[partner]]]
                costs = np.maximum(beside[:, None, :] + wanted[job][links[job]][:, rolled] - 1.0, 0.0).sum(axis=(0, 2))
                best = int(np.argmin(costs))
                # The cost falls by more than rounding with every turn, so that the descent ends.
                if costs[best] < costs[turns[job]] - 1e-9:
                    turns[job], better = best, True
        costs_by_turns[tuple(turns.tolist())] = turned(wanted, turns)
    return [np.array(turns) for turns, _ in sorted(costs_by_turns.items(), key=lambda pair: (pair[1], pair[0]))]


def with_offsets(clock: Clock, now: Timed, seed: int, stop: Stop, late: Stop = lambda: False) -> Timed:
    """The best offsets found for a choice: those of the circle, then coordinate descent by the clock.

    Only improvements are accepted.  ``stop`` is called after each step of the clock, ``late`` also while circles turn.
    """
    if len(clock.templates) < 2:
        return now
    circles = demands(clock, now.choice)
    if not circles:
        return now
    best = now
    for wanted, period, times in circles:
        for turns in circle(wanted, seed, late)[:3]:
            # Turning a circle by a whole iteration of its job changes nothing.
            offsets = tuple((turns * period / BINS % (period / times)).tolist())
            best = min(best, clock.timed(replace(now.choice, offset_s=offsets)), key=_cost)
            if stop():
                return best
    # The circle knows no sharing of links; the clock does.  So the best turns are a start: offsets of one job at a
    # time are tried over its whole period, then over a quarter around the best, then over a sixteenth.
    wanted, longest, _ = circles[0]
    active = [job for job in range(len(clock.templates)) if wanted[job].any()]
    width = 1.0
    for _ in range(3):
        for job in active[1:]:
            centre = best.choice.offset_s[job]
            seconds = clock.templates[job].alone_s
            for step in range(STEPS):
                shift = seconds * width * (step / STEPS - (0.0 if width == 1.0 else 0.5))
                moved = list(best.choice.offset_s)
                moved[job] = (centre + shift) % longest
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
    # Few jobs: every order, by branch and bound. More: Crux's order, where it is better than none.
    if jobs <= EXACT:
        return _Branches(clock, now, stop).best
    worth, meets = intensities(clock, now.choice)
    order = compressed(crux_order(worth), worth, meets, clock.site.classes)
    return min(now, clock.timed(replace(now.choice, order=order)), key=_cost)


def intensities(clock: Clock, choice: Assignment) -> tuple[Floats, Mask]:
    """Crux's GPU intensity of each job (section 3, equation 2), and which pairs of jobs share a link.

    The intensity is the work of an iteration (FLOPs of the model) over the seconds that its bytes keep the job's
    busiest link between hosts.
    """
    fabric = clock.fabric
    # Only links outside hosts count, where jobs can meet.
    worth, used = [], []
    for job in range(len(clock.templates)):
        carried = clock.carried(choice.hosts, choice.router, job) * (fabric.tier > 0)
        busiest_s = float((carried / np.maximum(fabric.capacity_Bps, 1e-300)).max(initial=0.0))
        trained = clock.site.jobs[job].job
        worth.append(model_flops(trained.model, trained.recipe) / max(busiest_s, 1e-9))
        used.append(carried > 0)
    shared = np.array(used).astype(np.float64)
    return np.array(worth), shared @ shared.T > 0


def crux_order(worth: Floats) -> tuple[int, ...]:
    """The place of each job by falling intensity, the first of equal ones first (Crux, section 4.2, without its
    correction by measured runs)."""
    order = np.argsort(-worth, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return tuple(place.tolist())


def compressed(order: Sequence[int], worth: Floats, meets: Mask, classes: int) -> tuple[int, ...]:
    """The class of each job, 0 first, when there are fewer classes than jobs (Crux, section 4.3).

    Jobs that are neighbours in the order share a class.  Where two of a class meet on a link, the intensity of the
    first counts as lost; the least loss is found by dynamic programming over the places where classes part.  (Crux
    also tries other orders in which jobs that meet keep theirs.)
    """
    jobs = len(order)
    chain = np.argsort(np.array(order), kind="stable")
    # What is lost where jobs i < j of one class meet; two-dimensional sums give the loss of any run of jobs at once.
    lost = np.triu(meets[np.ix_(chain, chain)] * worth[chain, None], 1)
    total = np.zeros((jobs + 1, jobs + 1))
    total[1:, 1:] = lost.cumsum(axis=0).cumsum(axis=1)
    diagonal = np.diag(total)
    # within[b, a]: what jobs a to b - 1 lose in one class.  Nothing lies below the diagonal of lost.
    within = np.where(np.tri(jobs + 1, k=-1) > 0, diagonal[:, None] - total.T, np.inf)
    # least[n]: of the first n jobs in some classes; cuts[c][n]: where the last of c + 1 classes begins.
    least = np.concatenate([[0.0], np.full(jobs, np.inf)])
    cuts = []
    # One class more in every round: the last class takes jobs a to b - 1, the classes before it jobs up to a at their
    # least loss.
    for _ in range(min(classes, jobs)):
        every = least[None, :] + within
        cuts.append(np.argmin(every, axis=1))
        least = every.min(axis=1)
    levels_of_jobs = np.zeros(jobs, dtype=np.int64)
    # Walk back from all jobs: each step gives the run of jobs of the last class that is left.
    end = jobs
    for level in range(len(cuts) - 1, -1, -1):
        begin = int(cuts[level][end])
        levels_of_jobs[chain[begin:end]] = level
        end = begin
    return tuple(levels_of_jobs.tolist())


class _Branches:
    """Orders of jobs, the first served first.

    The jobs at the head of an order hardly feel those behind.  So they take what they take among themselves, and the
    rest at least what they take alone: a bound on every order with this head.
    """

    def __init__(self, clock: Clock, now: Timed, stop: Stop) -> None:
        self.clock, self.now, self.best, self.stop = clock, now, now, stop
        jobs = range(len(clock.templates))
        self.alone_s = np.array([clock.timed(now.choice, [job]).iteration_s[job] for job in jobs])
        self._below([], np.argsort(crux_order(intensities(clock, now.choice)[0])).tolist())

    def _below(self, head: list[int], left: list[int]) -> None:
        if self.stop():
            return
        if len(left) <= 1:
            order = [0] * (len(head) + len(left))
            for place, job in enumerate([*head, *left]):
                order[job] = place
            self.best = min(self.best, self.clock.timed(replace(self.now.choice, order=tuple(order))), key=_cost)
            return
        # Heads with a bound above the best order are left out with all orders that begin so.
        for job in left:
            first = [*head, job]
            behind = [candidate for candidate in left if candidate != job]
            if self._bound(first) < self.best.cost - 1e-9:
                self._below(first, behind)

    def _bound(self, head: list[int]) -> float:
        # Jobs behind the head share the last place: they do not count here.
        order = [len(head)] * len(self.alone_s)
        for place, job in enumerate(head):
            order[job] = place
        least_s, objective = self.alone_s.copy(), self.clock.objective
        # Until the last job ends others do, so that those at the head may have more room than among themselves.
        if len(head) > 1 and objective.kind != "makespan":
            least_s[head] = self.clock.timed(replace(self.now.choice, order=tuple(order)), head).iteration_s[head]
        return objective.cost(least_s, least_s / objective.against_s) * (1 - SLACK)


def _cost(timed: Timed) -> float:
    return timed.cost


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


def link_loads(clock: Clock, timed: Timed) -> LinkLoads:
    """The loads of a choice."""
    fabric, choice = clock.fabric, timed.choice
    able = np.where((fabric.tier > SCALE_UP) & fabric.up, fabric.capacity_Bps, np.inf)
    rows = [
        clock.carried(choice.hosts, choice.router, job) / float(seconds) / able
        for job, seconds in enumerate(timed.iteration_s)
    ]
    return LinkLoads(of_job=np.array(rows))
