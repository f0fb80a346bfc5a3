"""Policies one under the other: every second of every dimension is where the simulation has it."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("altair")

from weft.collectives.schedules.bound import best_shares
from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.policies import beside, schedule
from weft.collectives.stages import STAGE_KINDS
from weft.fabric.dimension import Dimension
from weft.views.charts import COLOURS, GRID
from weft.views.collective import policies_chart

NETWORK = tuple(
    Dimension(kind=kind, size=size, bandwidth_Bps=rate, latency_s=1e-6)
    for kind, size, rate in (("switch", 4, 150e9), ("ring", 1, 1e9), ("ring", 4, 50e9))
)
WIDTH = 760


def asked(kind="all-reduce"):
    return request(kind, 64e6, NETWORK)


def busy_intervals(timed, dimension):
    """Begins and ends of the spans in which a dimension moves bytes, in order and apart."""
    stages = timed.stages.dimension == dimension
    latency = timed.stages.latency_s[stages] if timed.active is None else 0.0
    begin, end = timed.chart.moving_s[stages], timed.chart.end_s[stages] - latency
    order = np.argsort(begin, kind="stable")
    # Sorted by begin, a span ends before the next one if no earlier span reaches further: the running maximum says so.
    begin, end = begin[order], np.maximum.accumulate(end[order])
    if not len(begin):
        return begin, end
    apart = begin[1:] > end[:-1]
    return begin[np.concatenate([[True], apart])], end[np.concatenate([apart, [True]])]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("chunks", [4, 64, 1024])
def test_lanes_hold_the_time_and_bars_the_work(drawn, chunks):
    one = asked()
    policies = beside(schedule(one, chunks=chunks), chunks=chunks)
    assert list(policies) == ["baseline", "themis", "weft"]
    longest = max(timed.time_s for timed in policies.values())
    items = drawn(policies_chart(policies, best_shares(one).bound_s))
    rects = [item for item in items if item.kind == "rect" and item.role == "mark"]
    lanes = [item for item in rects if item.look.get("fill") == GRID]
    colours = {COLOURS[STAGE_KINDS.index(kind)] for kind in ("reduce-scatter", "all-gather")}
    bars = [item for item in rects if item.look.get("fill") in colours]
    assert len(lanes) == len(policies) * len(one.used) == 6
    assert [lane.y for lane in lanes] == sorted(lane.y for lane in lanes)
    found = iter(lanes)
    for timed in policies.values():
        for dimension in one.used:
            lane = next(found)
            here = sorted((bar for bar in bars if bar.y == lane.y), key=lambda bar: bar.x)
            begin, end = busy_intervals(timed, dimension)
            assert lane.look["width"] / WIDTH == pytest.approx(timed.time_s / longest)
            moved = sum(bar.look["width"] for bar in here)
            # Gaps of up to a quarter of a pixel between narrow bars are not drawn.
            assert moved / WIDTH * longest == pytest.approx((end - begin).sum(), rel=0.02 if chunks > 4 else 1e-6)
            assert here[0].x - lane.x == pytest.approx(begin[0] / longest * WIDTH, abs=0.3)
            assert here[-1].x + here[-1].look["width"] - lane.x == pytest.approx(end[-1] / longest * WIDTH, abs=0.3)
            assert all(a.x + a.look["width"] <= b.x + 1e-6 for a, b in pairwise(here))
            assert chunks > 4 or len(here) == int((timed.stages.dimension == dimension).sum())


def test_words_say_times_and_the_bound(drawn):
    one = asked("all-to-all")
    policies = beside(schedule(one, "baseline"))
    assert list(policies) == ["baseline", "weft"]
    bound_s = best_shares(one).bound_s
    items = drawn(policies_chart(policies, bound_s))
    words = [item.words for item in items if item.kind == "text"]
    for timed in policies.values():
        assert sum(f"{timed.time_s / bound_s:.2f} x the bound" in word for word in words) >= 1
    assert {"1: switch 4 x 150 GB/s", "3: ring 4 x 50 GB/s", "all-to-all", "idle"} <= set(words)
    rules = [item for item in items if item.kind == "rule" and item.look.get("strokeDash")]
    lane = next(item for item in items if item.kind == "rect" and item.look.get("fill") == GRID)
    longest = max(timed.time_s for timed in policies.values())
    assert [rule.x - lane.x for rule in rules] == pytest.approx([bound_s / longest * WIDTH] * 2)
