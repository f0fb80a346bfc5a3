"""A training job under failures as a stochastic process, in seconds: what the renewal model takes and gives.

Time is of two kinds.  In *running* time the job trains, saves or restarts, and failures come as Poisson processes.
In *frozen* time nothing can fail: the job waits for a repair, or a planned pause lasts.  Repairs go on in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum


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
