"""Goodput in closed form: a renewal process of checkpoints, and a Markov chain of hosts in repair.

Time, in seconds, is of two kinds.  In *running* time the job trains, saves or restarts, and failures come as Poisson
processes.  In *frozen* time nothing can fail: the job waits for a repair, or a planned pause lasts.  Repairs go on in
both.

With one kind of failure, one level of checkpoints and neither repairs nor slow spells this is Daly's complete model
(J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22, 2006).  J. W. Young's interval is of Communications of the ACM 17(9), 1974.

Exact: stops of many kinds, each with its restart time, two levels of checkpoints, pauses, and waiting for repairs
of single hosts (an Erlang loss system, whatever the distribution of repairs).  Not exact: the state of repairs and
the time since the last stop are taken as independent, and hosts that fail together return one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import fsum
from typing import Annotated

from weft.codec import Document, Range
from weft.errors import BadInput
from weft.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Failures that stop the job.

    They come ``rate`` times a second of running time.  Each loses the work since the last usable checkpoint and
    needs ``restart_s`` without another failure.  It takes ``hosts`` out of use, each for an exponential time of
    mean ``repair_s``; where spares and shrinking can never make up for so many, the job waits until all are back
    at once.  ``severe`` failures also lose the copies that peers hold in memory.
    """

    name: str
    rate: float
    restart_s: float
    hosts: int = 0
    repair_s: float = 0.0
    severe: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Failures that the job survives: it runs at ``speed`` for an exponential time of mean ``duration_s`` each.

    Where several last at once the slowest counts: they narrow one bottleneck, not each other.
    """

    name: str
    rate: float
    duration_s: float
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Planned pauses of ``pause_s`` each, ``rate`` times a second of training: state is saved, nothing is lost."""

    name: str
    rate: float
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Checkpoints: ``interval_s`` of training, then a stall of ``stall_s``; every ``every``-th goes to storage.

    The others stay in the memory of peers.  Those to storage stall training for ``storage_s`` more, which is spread
    over all, and can be used ``lag_s`` after their stall: an asynchronous write takes that long.
    """

    interval_s: float
    stall_s: float
    storage_s: float = 0.0
    lag_s: float = 0.0
    every: int = 1

    @property
    def segment_s(self) -> float:
        """Training and stall of one checkpoint."""
        return self.interval_s + self.stall_s + self.storage_s / self.every


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A job's failures and what it does about them.

    ``speeds`` are the speeds with 0, 1, 2, ... hosts more in repair than there are ``spares``; beyond them the job
    waits.  When a repair makes it faster while it trains, it pauses for ``regrow_s`` to take the host in.
    """

    stops: tuple[Stop, ...] = ()
    slows: tuple[Slow, ...] = ()
    pauses: tuple[Pause, ...] = ()
    spares: int = 0
    speeds: tuple[float, ...] = (1.0,)
    regrow_s: float = 0.0

    @property
    def bearable(self) -> int:
        """The most hosts in repair with which the job still runs."""
        return self.spares + len(self.speeds) - 1

    @property
    def rate(self) -> float:
        """Stops a second of running time."""
        return fsum(stop.rate for stop in self.stops)

    def pooled(self, stop: Stop) -> bool:
        """Whether its hosts join those that spares replace."""
        return 0 < stop.hosts <= self.bearable

    def waited(self, stop: Stop) -> bool:
        """Whether the job waits for its repair alone."""
        return stop.hosts > 0 and not self.pooled(stop)

    def speed(self, down: int) -> float:
        """Speed with ``down`` hosts in repair; 0 where the job waits."""
        short = max(0, down - self.spares)
        return self.speeds[short] if short < len(self.speeds) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCost:
    """What one class of failures costs: events a second of the run, and shares of the run's time by what is lost."""

    name: str
    rate: float = 0.0
    rework: float = 0.0
    restart: float = 0.0
    waiting: float = 0.0
    reduced: float = 0.0
    planned: float = 0.0

    @property
    def share(self) -> float:
        """All of it."""
        return self.rework + self.restart + self.waiting + self.reduced + self.planned


Delay = Annotated[float, Range(0, 1e9)]
Rate = Annotated[float, Range(0, 1e15, above=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from a failure until training goes on, and where checkpoints go.

    ``detect_s`` to notice and diagnose, ``swap_s`` to take in a spare that is not hot, ``start_s`` and
    ``start_s_per_1000_accelerators`` to start the processes and their communicators, ``heal_s`` until a link that
    heals by itself carries traffic again.  All accelerators together write and read ``storage_Bps``, by default
    ``storage_Bps_per_accelerator`` each: 2 TB/s over 16,384 (Llama 3, arXiv 2407.21783, section 3.3.1).
    """

    detect_s: Delay = 300.0
    swap_s: Delay = 120.0
    start_s: Delay = 180.0
    start_s_per_1000_accelerators: Delay = 0.0
    heal_s: Delay = 10.0
    storage_Bps: Rate | None = None
    storage_Bps_per_accelerator: Rate = 1.2e8
    accelerators_per_host: Annotated[int, Range(1, 1024)] | None = None

    def start(self, accelerators: int) -> float:
        """Seconds to start so many."""
        return self.start_s + self.start_s_per_1000_accelerators * accelerators / 1000.0

    def write_Bps(self, accelerators: int) -> float:
        """Bytes/s that so many write to storage together."""
        return self.storage_Bps or self.storage_Bps_per_accelerator * accelerators


MOST_EXPONENT = 50.0
"""Segments of more mean times between failures than this never end."""
LARGEST_EXPONENT = 600.0
MOST_LEVELS = 4096
"""Checkpoints with peers per checkpoint in storage, at most."""


def young_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """First-order optimum of the training time between checkpoints, sqrt(2 delta M)."""
    return math.sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """Higher-order optimum: sqrt(2 delta M) (1 + sqrt(r) / 3 + r / 9) - delta with r = delta / 2M, and M from
    delta >= 2M on."""
    ratio = checkpoint_s / (2.0 * mtbf_s)
    if ratio >= 1.0:
        return mtbf_s
    series = 1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0
    return young_interval(checkpoint_s, mtbf_s) * series - checkpoint_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares(Document):
    """Where the time of a long run goes, as shares that add up to one.

    ``goodput`` is useful training over time, ``saving`` the stalls of checkpoints that count, ``rework`` the work and
    stalls done in vain, ``restart`` from a stop until training goes on, ``waiting`` for repairs, ``reduced`` what
    slow networks and missing replicas take, ``planned`` pauses, those to take hosts in again included.  ``stops`` come
    a second of the run.
    """

    DOCUMENT = "goodput saving rework restart waiting reduced planned"

    goodput: float
    saving: float
    rework: float
    restart: float
    waiting: float
    reduced: float
    planned: float
    stops: float
    classes: tuple[ClassCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repairs:
    """What repairs do.

    Share of time waited for them, mean speed while training, pauses to take hosts in again a second of running time,
    and what each stop adds to the hosts in repair.
    """

    waiting: float
    speed: float
    regrows: float
    load: tuple[float, ...]


class _Renewal:
    """Checkpoints under stops, in running time.  Formulas are in docs/goodput.md."""

    def __init__(self, stops: tuple[Stop, ...]) -> None:
        self.rate = math.fsum(stop.rate for stop in stops)
        shares = [stop.rate / self.rate for stop in stops] if self.rate > 0 else []
        survive = [math.exp(-self.rate * stop.restart_s) for stop in stops]
        self.up = math.fsum(f * r for f, r in zip(shares, survive, strict=True)) if shares else 1.0
        """Share of running time that is not a restart."""
        mild = [(f, r) for f, r, stop in zip(shares, survive, stops, strict=True) if not stop.severe]
        self.severe = 1.0 - math.fsum(f for f, _ in mild) if shares else 0.0
        """Share of the stops that are severe."""
        if len(mild) == len(shares):
            self.severe = 0.0
        again = math.fsum(f * (1.0 - r) for f, r in mild)
        self.held = math.fsum(f * r for f, r in mild) / (1.0 - again) if mild else 0.0
        """Probability that no severe stop comes before training goes on."""

    def kept(self, saving: Saving) -> float:
        """Training that is never lost, over running time."""
        length, rate = saving.segment_s, self.rate
        if rate * length < 1e-12:
            return saving.interval_s / length * self.up
        fail = -math.expm1(-rate * length)
        leave = 1.0 - fail * self.held
        back = fail * (1.0 - self.held) / leave
        attempt = fail / (rate * self.up * leave)  # a try and its restart, per try that does not come back
        tries = -saving.every * math.log1p(-back) if back < 1.0 else math.inf
        if tries > LARGEST_EXPONENT:
            return 0.0
        unit_s = attempt * (saving.every if back < 1e-9 else math.expm1(tries) / back)
        return saving.every * saving.interval_s / unit_s * math.exp(-rate * self.severe * saving.lag_s)


def outcome(process: Process, saving: Saving) -> TimeShares:
    """Shares of a long run's time."""
    renewal = _Renewal(process.stops)
    check_pace(process, saving)
    repairs = _repairs(process, renewal.up)
    frozen = renewal.up * math.fsum(pause.rate * pause.pause_s for pause in process.pauses)
    waited = math.fsum(stop.rate * stop.repair_s for stop in process.stops if process.waited(stop))
    regrow = repairs.regrows * process.regrow_s
    live = (1.0 - repairs.waiting) / (1.0 + frozen + waited + regrow)
    useful, speed = renewal.kept(saving), _mean_speed(process)
    stalls = useful * (saving.segment_s / saving.interval_s - 1.0)
    goodput = live * useful * repairs.speed * speed
    shares = {
        "goodput": goodput,
        "saving": live * stalls,
        "rework": live * max(0.0, renewal.up - useful - stalls),
        "restart": live * (1.0 - renewal.up),
        "waiting": repairs.waiting + live * waited,
        "reduced": live * useful - goodput,
        "planned": live * (frozen + regrow),
    }
    return TimeShares(
        **shares, stops=live * renewal.rate, classes=tuple(_classes(process, saving, repairs, renewal, live, shares))
    )


def check_pace(process: Process, saving: Saving) -> None:
    """Refuse failures so fast that nothing is ever saved."""
    rate = process.rate
    restart_s = max((stop.restart_s for stop in process.stops), default=0.0)
    stall_s = saving.segment_s - saving.interval_s
    if rate * (saving.segment_s + saving.lag_s + restart_s) > MOST_EXPONENT:
        raise BadInput(
            f"a failure every {format_seconds(1.0 / rate)} leaves no time for an iteration"
            f" ({format_seconds(saving.interval_s)}), a checkpoint ({format_seconds(stall_s)})"
            f" and a restart ({format_seconds(restart_s)})",
            where="mtbf",
            remedy="give the mean time between failures of one accelerator, in hours (like 50000 h)",
        )


def best_saving(process: Process, saving: Saving, iteration_s: float, iterations: int) -> tuple[int, Saving]:
    """The best whole number of iterations between checkpoints, and, where ``every`` is above 1, between those in
    storage; stalls and lag are those of ``saving``, whose interval does not count.
    """
    renewal = _Renewal(process.stops)
    least = min(iterations, max(1, math.ceil((saving.lag_s - saving.stall_s) / iteration_s)))
    check_pace(process, replace(saving, interval_s=least * iteration_s))

    def at(steps: int, every: int) -> Saving:
        return replace(saving, interval_s=steps * iteration_s, every=every)

    def steps_for(every: int) -> int:
        low, high = least, iterations
        if renewal.rate > 0:
            high = min(high, max(least, math.ceil(MOST_EXPONENT / 2 / renewal.rate / iteration_s)))
        while low < high:  # the kept share has one maximum
            middle = (low + high) // 2
            if renewal.kept(at(middle, every)) < renewal.kept(at(middle + 1, every)):
                low = middle + 1
            else:
                high = middle
        return low

    levels = [1] if saving.every == 1 else [2**i for i in range(MOST_LEVELS.bit_length())]
    choices = [(steps_for(every), every) for every in levels]
    steps, every = max(choices, key=lambda choice: renewal.kept(at(*choice)))
    return steps, at(steps, every)


def _repairs(process: Process, up: float) -> _Repairs:
    """What repairs do in the long run.

    While the job trains nothing has failed for a restart's time, in which repairs went on: then fewer are out.
    """
    pooled = [stop for stop in process.stops if process.pooled(stop)]
    if not pooled:
        return _Repairs(waiting=0.0, speed=1.0, regrows=0.0, load=tuple(0.0 for _ in process.stops))
    frozen = 1.0 + up * math.fsum(pause.rate * pause.pause_s for pause in process.pauses)
    frozen += math.fsum(stop.rate * stop.repair_s for stop in process.stops if process.waited(stop))
    speeds = [process.speed(n) for n in range(process.bearable + 1)]
    grown = [n for n in range(1, process.bearable + 1) if speeds[n - 1] > speeds[n]]
    restart_s = math.fsum(stop.rate * stop.restart_s for stop in process.stops) / process.rate
    chance, waiting = _running(process, pooled, frozen)
    trained, regrows = chance, 0.0
    if grown:
        trained, _ = _running(process, pooled, frozen, restart_s)
        crossed = up * _crossings(pooled, chance, trained, grown)
        regrows = crossed / (frozen + crossed * process.regrow_s)
        frozen += regrows * process.regrow_s
        chance, waiting = _running(process, pooled, frozen)
        trained, _ = _running(process, pooled, frozen, restart_s)
    return _Repairs(
        waiting=waiting,
        speed=math.fsum(p * v for p, v in zip(trained, speeds, strict=True)),
        regrows=regrows,
        load=tuple(stop.rate * stop.hosts * stop.repair_s if process.pooled(stop) else 0.0 for stop in process.stops),
    )


def _running(process: Process, pooled: list[Stop], frozen: float, since_s: float = 0.0) -> tuple[list[float], float]:
    """Shares of 0, 1, ... hosts in repair while the job does not wait for them, and the share of time that it waits.

    ``frozen`` is all time over running time; nothing has failed for ``since_s``.
    """
    loads = dict[int, float]()
    for stop in pooled:
        left = math.exp(-since_s / stop.repair_s) if stop.repair_s > 0 else 0.0
        loads[stop.hosts] = loads.get(stop.hosts, 0.0) + left * stop.rate * stop.repair_s / frozen
    # Stationary shares: each cut between n - 1 and n hosts is crossed up and down equally often.  Only the load counts
    # where nothing waits, so that repairs of different lengths share a chain.
    chance = [1.0]
    for n in range(1, process.bearable + max(loads) + 1):
        up = math.fsum(
            load * chance[j]
            for hosts, load in loads.items()
            for j in range(max(0, n - hosts), min(n, process.bearable + 1))
        )
        chance.append(up / n)
        if chance[-1] > 1e200:
            chance = [value * 1e-200 for value in chance]
    whole = math.fsum(chance)
    chance = [value / whole for value in chance]
    running = chance[: process.bearable + 1]
    total = math.fsum(running)
    return [value / total for value in running], max(0.0, 1.0 - total)


def _crossings(pooled: list[Stop], chance: list[float], trained: list[float], levels: list[int]) -> float:
    """How often a second of training the hosts in repair come to be fewer than each level.

    In the long run as often as they come to be more; of that the part when the job trains, when fewer are in repair.
    """
    below = [0.0]
    for value in chance:
        below.append(below[-1] + value)
    return math.fsum(
        stop.rate * (below[n] - below[max(0, n - stop.hosts)]) * trained[n] / chance[n]
        for stop in pooled
        for n in levels
        if chance[n] > 0
    )


def _mean_speed(process: Process) -> float:
    """Mean over time of the speed of the slowest spell that lasts; spells are an M/G/infinity queue each."""
    mean, none_worse = 0.0, 1.0
    for slow in sorted(process.slows, key=lambda slow: slow.speed):
        during = none_worse * -math.expm1(-slow.rate * slow.duration_s)
        mean += during * slow.speed
        none_worse -= during
    return mean + none_worse


def _classes(
    process: Process, saving: Saving, repairs: _Repairs, renewal: _Renewal, live: float, shares: dict[str, float]
) -> list[ClassCost]:
    """Each share split over the classes that cause it, by the mean loss of one of their events."""
    names = dict.fromkeys(cost.name for kind in (process.stops, process.slows, process.pauses) for cost in kind)
    parts = {
        name: dict.fromkeys(("rate", "rework", "restart", "waiting", "reduced", "planned"), 0.0) for name in names
    }
    half, unit = saving.segment_s / 2, saving.every * saving.segment_s / 2 + saving.lag_s
    weights = [stop.rate * (unit if stop.severe else half) for stop in process.stops]
    restarts = [stop.rate * -math.expm1(-renewal.rate * stop.restart_s) for stop in process.stops]
    hosts = math.fsum(repairs.load)
    missing = live * renewal.kept(saving) * (1.0 - repairs.speed)
    for stop, weight, again, load in zip(process.stops, weights, restarts, repairs.load, strict=True):
        part = parts[stop.name]
        part["rate"] += stop.rate * live
        part["rework"] += _portion(shares["rework"], weight, math.fsum(weights))
        part["restart"] += _portion(shares["restart"], again, math.fsum(restarts))
        part["waiting"] += _portion(repairs.waiting, load, hosts)
        part["waiting"] += live * stop.rate * stop.repair_s if process.waited(stop) else 0.0
        part["reduced"] += _portion(missing, load, hosts)
        part["planned"] += _portion(live * repairs.regrows * process.regrow_s, load, hosts)
    slowed = shares["reduced"] - missing
    spells = [slow.rate * slow.duration_s * (1.0 - slow.speed) for slow in process.slows]
    stopping = {stop.name for stop in process.stops}
    for spell, weight in zip(process.slows, spells, strict=True):
        parts[spell.name]["reduced"] += _portion(slowed, weight, math.fsum(spells))
        if spell.name not in stopping:
            parts[spell.name]["rate"] += spell.rate * live
    for pause in process.pauses:
        parts[pause.name]["rate"] += pause.rate * live * renewal.up
        parts[pause.name]["planned"] += pause.rate * live * renewal.up * pause.pause_s
    return [ClassCost(name=name, **part) for name, part in parts.items()]


def _portion(total_s: float, part: float, of: float) -> float:
    return total_s * part / of if of > 0 else 0.0
