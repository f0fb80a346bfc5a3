"""When the next collective of a job begins, from the regularity of the past ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

REMEMBERED = 16
"""Past beginnings of a collective that count."""
FEWEST = 3
"""Beginnings from which on a period is taken for one."""
STEADY = 0.1
"""Largest deviation of an interval from the median one, as a share of it, that is still regular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Past beginnings of one collective, in s, oldest first, and the bytes of the last."""

    times_s: tuple[float, ...] = ()
    bytes: float = 0.0

    def add(self, time_s: float, bytes_: float) -> Seen:
        """One more beginning; the oldest are forgotten."""
        return Seen(times_s=(*self.times_s, time_s)[-REMEMBERED:], bytes=bytes_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next beginning expected, the period, and how far past ones were off at most (all in s)."""

    next_s: float
    period_s: float
    off_s: float
    bytes: float


def forecast(seen: Seen) -> Forecast | None:
    """What is expected next; None while too little was seen, or it is irregular."""
    gaps = [later - earlier for earlier, later in zip(seen.times_s, seen.times_s[1:], strict=False)]
    if len(seen.times_s) < FEWEST or min(gaps) <= 0:
        return None
    period = median(gaps)
    off = max(abs(gap - period) for gap in gaps)
    if off > STEADY * period:
        return None
    return Forecast(next_s=seen.times_s[-1] + period, period_s=period, off_s=off, bytes=seen.bytes)


def earliest(forecasts: Sequence[Forecast | None], now_s: float) -> float | None:
    """The first time after ``now_s`` at which one of some collectives is expected again; None if unknown."""
    known = [one for one in forecasts if one]
    times = [max(one.next_s, now_s + min(one.next_s - now_s, 0.0) % one.period_s) for one in known]
    return min(times, default=None)
