"""The renewal model: Daly's formula, hand chains, Erlang's formula and the Monte Carlo as oracles."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.reliability.renewal import Pause, Process, Saving, Slow, Stop, best_saving, outcome

HOUR = 3600.0
SHARES = ("goodput", "saving", "rework", "restart", "waiting", "reduced", "planned")


# The oracle: the process played by dice ------------------------------------------------------------

Kind = TypeVar("Kind", Stop, Slow, Pause)


@dataclass(slots=True)
class Stretch:
    """Training between two stops: its pieces of constant speed, each with the seconds from the last restart."""

    begins: list[float] = field(default_factory=lambda: [0.0])
    speeds: list[float] = field(default_factory=list)
    length: float = 0.0

    def speed_is(self, speed: float) -> None:
        if not self.speeds:
            self.speeds.append(speed)
        elif speed != self.speeds[-1]:
            self.begins.append(self.length)
            self.speeds.append(speed)

    def work(self, until: float) -> float:
        """Seconds at full speed from the last restart until then, stalls not taken off."""
        done = 0.0
        for i, (begin, speed) in enumerate(zip(self.begins, self.speeds, strict=True)):
            if begin >= until:
                break
            end = self.begins[i + 1] if i + 1 < len(self.begins) else until
            done += speed * (min(end, until) - begin)
        return done


@dataclass(slots=True)
class Book:
    """Work that is safe, and work that only peers hold."""

    saving: Saving
    safe: float = 0.0
    held: float = 0.0
    segments: int = 0

    def close(self, stretch: Stretch, severe: bool) -> None:
        """A stop ends a stretch: what of it, and of what peers held, is kept."""
        saving, segment = self.saving, self.saving.segment_s
        share = saving.interval_s / segment
        done = int(stretch.length / segment)
        usable = max(0.0, stretch.length - saving.lag_s) if severe else stretch.length
        units = (self.segments + int(usable / segment)) // saving.every
        if units > 0:
            inside = units * saving.every - self.segments
            self.safe += self.held + share * stretch.work(inside * segment)
            spent, self.held, self.segments = inside, 0.0, 0
        else:
            spent = 0
        if severe:
            self.held, self.segments = 0.0, 0
        else:
            self.held += share * (stretch.work(done * segment) - stretch.work(spent * segment))
            self.segments += done - spent


class Play:
    """One run."""

    def __init__(self, process: Process, saving: Saving, dice: random.Random) -> None:
        self.process, self.dice = process, dice
        self.book = Book(saving)
        self.clock = 0.0
        self.repairs: list[float] = []
        self.spells: list[tuple[float, float]] = []
        self.slow_rate = math.fsum(slow.rate for slow in process.slows)
        self.next_spell = self._after(self.slow_rate)
        self.pause_rate = math.fsum(pause.rate for pause in process.pauses)

    def _after(self, rate: float) -> float:
        return self.clock + self.dice.expovariate(rate) if rate > 0 else math.inf

    def _one_of(self, kinds: Sequence[Kind], rate: float) -> Kind:
        at = self.dice.random() * rate
        for event in kinds:
            at -= event.rate
            if at < 0:
                return event
        return kinds[-1]

    def run(self, work_s: float) -> float:
        """Seconds until ``work_s`` of training are safe."""
        stretch = Stretch()
        while True:
            before = self.clock
            stop = self._train(stretch)
            if stop is None:  # nothing can stop it: count what one long stretch keeps
                done = self.book.saving.interval_s / self.book.saving.segment_s * stretch.work(stretch.length)
                return before + (self.clock - before) * work_s / done if done > 0 else math.inf
            safe = self.book.safe
            self.book.close(stretch, stop.severe)
            if self.book.safe >= work_s:
                gained = self.book.safe - safe
                return self.clock - (self.clock - before) * (self.book.safe - work_s) / gained
            self._recover(stop)
            stretch = Stretch()

    def _train(self, stretch: Stretch) -> Stop | None:
        """Train until a stop; pauses and changes of speed on the way."""
        rate = self.process.rate
        left = self.dice.expovariate(rate) if rate > 0 else 1e4 / max(self.slow_rate, self.pause_rate, 1e-9)
        while True:
            slowest = min((speed for _, speed in self.spells), default=1.0)
            stretch.speed_is(slowest * self.process.speed(len(self.repairs)))
            ends = min((end for end, _ in self.spells), default=math.inf)
            back = self.repairs[0] if self.repairs else math.inf
            pause = self._after(self.pause_rate)
            event = min(self.next_spell, ends, back, pause)
            if self.clock + left <= event:
                stretch.length += left
                self.clock += left
                return self._one_of(self.process.stops, rate) if rate > 0 else None
            step = event - self.clock
            stretch.length, left, self.clock = stretch.length + step, left - step, event
            if event == pause:
                self._freeze(self._one_of(self.process.pauses, self.pause_rate).pause_s)
            elif event == back:
                heapq.heappop(self.repairs)
                if self.process.speed(len(self.repairs)) > self.process.speed(len(self.repairs) + 1):
                    self._freeze(self.process.regrow_s)
            self._turn()

    def _turn(self) -> None:
        """Spells of slow network that began or ended by now."""
        while self.next_spell <= self.clock:
            slow = self._one_of(self.process.slows, self.slow_rate)
            self.spells.append((self.next_spell + self.dice.expovariate(1.0 / slow.duration_s), slow.speed))
            self.next_spell += self.dice.expovariate(self.slow_rate)
        if self.spells:
            self.spells = [spell for spell in self.spells if spell[0] > self.clock]

    def _freeze(self, seconds: float) -> None:
        """Time in which nothing fails, but repairs go on and slow spells come and go."""
        self.clock += seconds
        while self.repairs and self.repairs[0] <= self.clock:
            heapq.heappop(self.repairs)

    def _recover(self, stop: Stop) -> None:
        """From a stop until training goes on; further stops on the way start it again."""
        process, rate = self.process, self.process.rate
        while True:
            self._lose(stop)
            broken = self.dice.expovariate(rate)
            if broken >= stop.restart_s:
                self.clock += stop.restart_s
                self._freeze(0.0)
                self._turn()
                return
            self.clock += broken
            self._freeze(0.0)
            stop = self._one_of(process.stops, rate)
            if stop.severe:
                self.book.held, self.book.segments = 0.0, 0

    def _lose(self, stop: Stop) -> None:
        """Hosts go into repair; wait where there are too few."""
        process = self.process
        if process.waited(stop):
            self._freeze(self.dice.expovariate(1.0 / stop.repair_s) if stop.repair_s > 0 else 0.0)
        elif stop.hosts and stop.repair_s > 0:
            for _ in range(stop.hosts):
                heapq.heappush(self.repairs, self.clock + self.dice.expovariate(1.0 / stop.repair_s))
        while process.speed(len(self.repairs)) == 0.0:
            self.clock = heapq.heappop(self.repairs)
        self._turn()


def play(process: Process, saving: Saving, work_s: float, *, seed: int) -> float:
    """Seconds that a run of ``work_s`` of training takes under one draw of failures."""
    return Play(process, saving, random.Random(seed)).run(work_s)


# Tests ------------------------------------------------------------------------------------------


def setting(seed: int) -> tuple[Process, Saving]:
    """Failures every 2 to 8 hours, restarts of minutes, repairs of hours; spares, shrinking, slow networks, pauses
    and peers' checkpoints each in about half of them."""
    dice = random.Random(seed)
    mtbf_s = dice.uniform(2.0, 8.0) * HOUR
    peers = dice.random() < 0.5
    stops = []
    kinds = dice.randint(1, 4)
    for i in range(kinds):
        hosts = dice.choice((0, 0, 1, 1, 1, 2))
        stops.append(
            Stop(
                name=f"stop {i}",
                rate=dice.uniform(0.3, 1.7) / kinds / mtbf_s,
                restart_s=dice.uniform(60.0, 900.0),
                hosts=hosts,
                repair_s=dice.uniform(0.5, 4.0) * HOUR if hosts else 0.0,
                severe=not peers or dice.random() < 0.3,
            )
        )
    slow = dice.random() < 0.5
    slows = [Slow(name="link", rate=1 / dice.uniform(2 * HOUR, 40 * HOUR), duration_s=dice.uniform(600.0, 4 * HOUR),
                  speed=dice.uniform(0.6, 1.0)) for _ in range(dice.randint(1, 2) if slow else 0)]  # fmt: skip
    pause = [Pause(name="maintenance", rate=1 / (24 * HOUR), pause_s=dice.uniform(300.0, 1200.0))]
    replicas = dice.choice((0, 0, 16, 32, 64))
    stall_s = dice.uniform(1.0, 60.0)
    interval_s = dice.uniform(200.0, 1500.0)
    process = Process(
        stops=tuple(stops),
        slows=tuple(slows),
        pauses=tuple(pause if dice.random() < 0.5 else ()),
        spares=dice.randint(2 if replicas == 0 else 0, 6),
        speeds=tuple(1.0 - k / replicas for k in range(replicas // 2)) if replicas else (1.0,),
        regrow_s=dice.uniform(60.0, 300.0),
    )
    lag_s = dice.uniform(0.0, 1.0) * min(interval_s, 300.0) if dice.random() < 0.5 else 0.0
    every = dice.choice((2, 4, 8)) if peers else 1
    return process, Saving(interval_s=interval_s, stall_s=stall_s, lag_s=lag_s, every=every)


def daly(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Goodput of Daly's complete model (Future Generation Computer Systems 22, 2006)."""
    segment = math.expm1((interval_s + checkpoint_s) / mtbf_s)
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * segment)


@given(st.floats(10.0, 5000.0), st.floats(0.0, 300.0), st.floats(0.0, 2000.0), st.floats(1000.0, 1e7))
def test_one_kind_of_failure_is_dalys_model(interval_s, checkpoint_s, restart_s, mtbf_s):
    process = Process(stops=(Stop(name="any", rate=1 / mtbf_s, restart_s=restart_s),))
    found = outcome(process, Saving(interval_s=interval_s, stall_s=checkpoint_s))
    assert found.goodput == pytest.approx(daly(interval_s, checkpoint_s, restart_s, mtbf_s), rel=1e-9)


def test_two_levels_by_a_chain_of_states():
    """Expected time to pass four segments when mild stops repeat one and severe ones all: a linear system, with a
    state for every number of segments passed and one for a restart after each."""
    mild, severe, length, restart_s = 1 / 5000.0, 1 / 20000.0, 500.0, 200.0
    rate, levels = mild + severe, 4
    passed, held = math.exp(-rate * length), math.exp(-rate * restart_s)
    lasts, again = (1 - passed) / rate, (1 - held) / rate
    matrix, right = np.eye(2 * levels), np.zeros(2 * levels)
    for i in range(levels):  # i: training after i segments; levels + i: restarting with i held
        right[i], right[levels + i] = lasts, again
        if i + 1 < levels:
            matrix[i, i + 1] -= passed
        for row, chance in ((i, 1 - passed), (levels + i, 1 - held)):
            matrix[row, levels + i] -= chance * mild / rate
            matrix[row, levels] -= chance * severe / rate
        matrix[levels + i, i] -= held
    unit_s = np.linalg.solve(matrix, right)[0]
    stops = (
        Stop(name="mild", rate=mild, restart_s=restart_s, severe=False),
        Stop(name="severe", rate=severe, restart_s=restart_s),
    )
    found = outcome(Process(stops=stops), Saving(interval_s=480.0, stall_s=20.0, every=levels))
    assert found.goodput == pytest.approx(levels * 480.0 / unit_s, rel=1e-9)


def erlang_b(load: float, servers: int) -> float:
    terms = [load**n / math.factorial(n) for n in range(servers + 1)]
    return terms[-1] / sum(terms)


@given(st.integers(0, 8), st.floats(1.0, 48.0))
def test_waiting_for_spares_is_erlangs_loss_formula(spares, repair_hours):
    stop = Stop(name="host", rate=1 / (6 * HOUR), restart_s=300.0, hosts=1, repair_s=repair_hours * HOUR)
    found = outcome(Process(stops=(stop,), spares=spares), Saving(interval_s=600.0, stall_s=5.0))
    assert found.waiting == pytest.approx(erlang_b(repair_hours / 6, spares + 1), rel=1e-9)


def test_hosts_in_repair_by_a_matrix():
    """Pairs and single hosts fail; the generator's null vector gives the shares of the states."""
    single, pair, repair_s = 1 / (5 * HOUR), 1 / (20 * HOUR), 3 * HOUR
    states, bearable = 8, 5  # three spares, two short at the most, and two waiting
    matrix = np.zeros((states, states))
    for n in range(states):
        if n > 0:
            matrix[n, n - 1] += n / repair_s
        if n <= bearable:
            matrix[n, n + 1] += single
            matrix[n, n + 2] += pair
    matrix -= np.diag(matrix.sum(axis=1))
    system = np.vstack([matrix.T, np.ones(states)])
    chance = np.linalg.lstsq(system, np.r_[np.zeros(states), 1.0], rcond=None)[0]
    stops = (
        Stop(name="single", rate=single, restart_s=0.0, hosts=1, repair_s=repair_s),
        Stop(name="pair", rate=pair, restart_s=0.0, hosts=2, repair_s=repair_s),
    )
    process = Process(stops=stops, spares=3, speeds=(1.0, 0.75, 0.5))
    found = outcome(process, Saving(interval_s=1.0, stall_s=0.0))
    assert found.waiting == pytest.approx(chance[6] + chance[7], rel=1e-6)
    speed = (chance[:4].sum() + 0.75 * chance[4] + 0.5 * chance[5]) / chance[:6].sum()
    assert found.goodput / (found.goodput + found.reduced) == pytest.approx(speed, rel=1e-6)


def test_the_slowest_spell_counts():
    slows = (
        Slow(name="a", rate=1 / HOUR, duration_s=HOUR, speed=0.5),
        Slow(name="b", rate=1 / HOUR, duration_s=2 * HOUR, speed=0.8),
    )
    found = outcome(Process(slows=slows), Saving(interval_s=600.0, stall_s=0.0))
    a, b = 1 - math.exp(-1.0), 1 - math.exp(-2.0)
    assert found.goodput == pytest.approx(a * 0.5 + (1 - a) * b * 0.8 + (1 - a) * (1 - b), rel=1e-9)
    assert sum(one.share for one in found.classes) == pytest.approx(1 - found.goodput, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_shares_and_costs_add_up(seed):
    process, saving = setting(seed)
    found = outcome(process, saving)
    assert all(getattr(found, name) >= 0 for name in SHARES)
    assert sum(getattr(found, name) for name in SHARES) == pytest.approx(1.0, abs=1e-9)
    for name in ("rework", "restart", "waiting", "reduced", "planned"):
        assert sum(getattr(one, name) for one in found.classes) == pytest.approx(getattr(found, name), abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_interval_is_the_best_of_all(seed):
    process, saving = setting(seed)
    steps, best = best_saving(process, saving, 20.0, 100_000)
    assert best.interval_s == steps * 20.0
    assert best.segment_s >= best.lag_s
    top = outcome(process, best).goodput
    least = max(1, math.ceil((saving.lag_s - saving.stall_s) / 20.0))
    for other in {least, *range(max(least, steps - 3), steps + 4), 2 * steps, 5 * steps}:
        for every in (1, 2, 4, 16, best.every) if saving.every > 1 else (1,):
            tried = replace(saving, interval_s=other * 20.0, every=every)
            assert outcome(process, tried).goodput <= top * (1 + 1e-12)


@pytest.mark.parametrize(
    ("seed", "stops"),
    [
        *((seed, 6_000) for seed in range(12)),
        *(pytest.param(n, 40_000, marks=pytest.mark.slow) for n in range(12, 212)),
    ],
)
def test_a_monte_carlo_agrees(seed, stops):
    process, saving = setting(seed)
    found = outcome(process, saving)
    work_s = found.goodput / found.stops * stops
    assert work_s / play(process, saving, work_s, seed=seed) == pytest.approx(found.goodput, rel=0.005)


def test_failures_too_fast():
    process = Process(stops=(Stop(name="any", rate=1.0, restart_s=60.0),))
    with pytest.raises(BadInput, match="leaves no time"):
        outcome(process, Saving(interval_s=10.0, stall_s=1.0))
