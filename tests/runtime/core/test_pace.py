"""A slow rank's pace, by a clock of the test's own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from weft.runtime.core import collectives
from weft.runtime.core.collectives import Pace

LATE_S = 0.01
"""Sleeps last longer than asked for."""


class Clock:
    def __init__(self) -> None:
        self.now = self.slept = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + LATE_S
        self.slept += seconds + LATE_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(collectives, "time", made)
    return made


def test_only_computation_is_stretched_and_late_awakenings_are_made_up(clock: Clock) -> None:
    slow = Pace(1.5)
    slow.resume()
    for _ in range(10):
        clock.now += 1.0  # computes
        slow.pay()
        clock.now += 5.0  # waits
        slow.resume()
    assert clock.slept == pytest.approx(10 * 0.5, abs=2 * LATE_S)
    with slow.computing():
        clock.now += 1.0
    assert clock.slept == pytest.approx(11 * 0.5, abs=2 * LATE_S)


def test_others_do_not_sleep(clock: Clock) -> None:
    usual = Pace()
    usual.resume()
    clock.now += 1.0
    usual.pay()
    assert clock.slept == 0.0
