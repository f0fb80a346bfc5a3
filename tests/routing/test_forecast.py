"""Forecasts: a period for what is regular, nothing for what is not, and times that are still to come."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.routing.forecast import REMEMBERED, STEADY, Forecast, Seen, earliest, forecast


def seen(times: list[float], bytes_: float = 1.0) -> Seen:
    found = Seen()
    for time in times:
        found = found.add(time, bytes_)
    return found


@given(st.floats(0, 1e6), st.floats(1e-3, 1e4), st.integers(3, 40), st.floats(0, 1e12))
def test_regular_beginnings_have_their_period(start: float, period: float, count: int, size: float) -> None:
    found = forecast(seen([start + period * i for i in range(count)], size))
    assert found is not None
    assert found.period_s == pytest.approx(period, rel=1e-5)
    assert found.next_s == pytest.approx(start + period * count)
    assert found.off_s == pytest.approx(0, abs=1e-6 * max(period, start))
    assert found.bytes == size


@given(st.lists(st.floats(0.95, 1.05), min_size=2, max_size=15))
def test_a_little_jitter_is_regular(gaps: list[float]) -> None:
    found = forecast(seen(list(accumulate(gaps, initial=0.0))))
    assert found is not None
    assert min(gaps) * 0.999 <= found.period_s <= max(gaps) * 1.001
    assert found.off_s <= max(gaps) - min(gaps) + 1e-9


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=15), st.integers(0, 14), st.floats(3, 100))
def test_one_late_beginning_is_irregular(gaps: list[float], place: int, late: float) -> None:
    gaps[place % len(gaps)] = late
    assert STEADY < 0.5
    assert forecast(seen(list(accumulate(gaps, initial=0.0)))) is None


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 2.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 2.0]])
def test_too_little_is_no_period(times: list[float]) -> None:
    assert forecast(seen(times)) is None


def test_the_distant_past_is_forgotten() -> None:
    found = seen([0.0, 1.0, 50.0, *(100.0 + 7 * i for i in range(REMEMBERED))])
    assert len(found.times_s) == REMEMBERED
    assert forecast(found) == Forecast(next_s=100.0 + 7 * REMEMBERED, period_s=7.0, off_s=0.0, bytes=1.0)


FORECASTS = st.builds(
    Forecast, next_s=st.floats(0, 1e6), period_s=st.floats(1e-3, 1e4), off_s=st.just(0.0), bytes=st.just(1.0)
)


@given(st.lists(st.none() | FORECASTS, max_size=4), st.floats(0, 1e7))
@example([Forecast(next_s=0.3, period_s=0.1, off_s=0.0, bytes=1.0)], 0.7000000000000001)
@example([Forecast(next_s=1.5e-323, period_s=5e-324, off_s=0.0, bytes=1.0)], 1e9)
def test_the_earliest_is_to_come_and_whole_periods_on(forecasts: list[Forecast | None], now_s: float) -> None:
    found = earliest(forecasts, now_s)
    known = [one for one in forecasts if one is not None]
    if not known:
        assert found is None
        return
    assert found is not None
    assert now_s <= found < float("inf")
    near = 1e-9 * max(found, 1.0)

    def next_of(one: Forecast) -> bool:
        periods = (found - one.next_s) / one.period_s
        return abs(periods - round(periods)) * one.period_s <= near if periods < 1e12 else True

    assert any(next_of(one) for one in known)
    for one in known:
        assert found <= max(one.next_s, now_s + one.period_s) + near


def test_a_time_that_is_still_to_come_stays_as_it_is() -> None:
    one = Forecast(next_s=0.3, period_s=0.1, off_s=0.0, bytes=1.0)
    assert earliest([one], 0.29) == earliest([one], 0.3) == 0.3
    assert earliest([one], 0.31) == pytest.approx(0.4)
