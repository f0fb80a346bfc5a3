"""The process of ``weft.reliability.process`` played by dice: what the renewal model is checked against."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from weft.reliability.process import Pause, Process, Saving, Slow, Stop

_Kind = TypeVar("_Kind", Stop, Slow, Pause)


@dataclass(slots=True)
class _Stretch:
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
class _Book:
    """Work that is safe, and work that only peers hold."""

    saving: Saving
    safe: float = 0.0
    held: float = 0.0
    segments: int = 0

    def close(self, stretch: _Stretch, severe: bool) -> None:
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


class _Play:
    """One run."""

    def __init__(self, process: Process, saving: Saving, dice: random.Random) -> None:
        self.process, self.dice = process, dice
        self.book = _Book(saving)
        self.clock = 0.0
        self.repairs: list[float] = []
        self.spells: list[tuple[float, float]] = []
        self.slow_rate = math.fsum(slow.rate for slow in process.slows)
        self.next_spell = self._after(self.slow_rate)
        self.pause_rate = math.fsum(pause.rate for pause in process.pauses)

    def _after(self, rate: float) -> float:
        return self.clock + self.dice.expovariate(rate) if rate > 0 else math.inf

    def _one_of(self, kinds: Sequence[_Kind], rate: float) -> _Kind:
        at = self.dice.random() * rate
        for event in kinds:
            at -= event.rate
            if at < 0:
                return event
        return kinds[-1]

    def run(self, work_s: float) -> float:
        """Seconds until ``work_s`` of training are safe."""
        stretch = _Stretch()
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
            stretch = _Stretch()

    def _train(self, stretch: _Stretch) -> Stop | None:
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
    return _Play(process, saving, random.Random(seed)).run(work_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRuns:
    """Seconds of several draws of the same run: their mean and standard deviation."""

    runs: int
    mean_s: float
    deviation_s: float


def spread(process: Process, saving: Saving, work_s: float, *, runs: int, seed: int) -> DrawnRuns:
    """What chance does to a run: ``runs`` draws with seeds that follow from ``seed``."""
    dice = random.Random(seed)
    result = [play(process, saving, work_s, seed=dice.getrandbits(48)) for _ in range(runs)]
    mean = math.fsum(result) / runs
    variance = math.fsum((run - mean) ** 2 for run in result) / max(1, runs - 1)
    return DrawnRuns(runs=runs, mean_s=mean, deviation_s=math.sqrt(variance))
