"""Themis' orders, against algorithm 1 of the paper written out once more, and against what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.policies import baseline, themis
from weft.collectives.schedules.timing import time_schedule
from weft.collectives.stages import STAGE_KINDS
from weft.fabric.dimension import Dimension

KINDS = ("all-reduce", "reduce-scatter", "all-gather")


def by_the_paper(kind, bytes_, dimensions, chunks):
    """Orders of the chunks: the least loaded dimension first, an all-gather's last."""
    steps = {
        "ring": lambda size: size - 1,
        "fully-connected": lambda size: 1,
        "switch": lambda size: round(np.log2(size)),
    }
    A = [one.latency_s * steps[one.kind](one.size) for one in dimensions]
    every = range(len(dimensions))
    load, orders = list(A), []
    gathers = kind == "all-gather"
    chunk = bytes_ / chunks
    for _ in range(chunks):
        least = min(every, key=lambda d: load[d])
        one = dimensions[least]
        threshold = A[least] + chunk / 16 * (one.size - 1) / one.size / one.bandwidth_Bps
        if max(load) - min(load) < threshold:
            order = sorted(every, reverse=gathers)
        else:
            order = sorted(every, key=lambda d: load[d], reverse=gathers)
        holds = chunk / np.prod([one.size for one in dimensions]) if gathers else chunk
        for d in order:
            P = dimensions[d].size
            n = holds * (P - 1) if gathers else holds * (P - 1) / P
            load[d] += n / dimensions[d].bandwidth_Bps
            holds = holds * P if gathers else holds / P
        orders.append(order)
    return orders


def some_dimensions(rng, most=5):
    def one():
        return Dimension(
            size=int(rng.choice([2, 4, 8, 16])),
            kind=str(rng.choice(["ring", "fully-connected", "switch"])),
            bandwidth_Bps=float(10 ** rng.uniform(10, 11.5)),
            latency_s=float(10 ** rng.uniform(-8, -5.5)),
        )

    return [one() for _ in range(int(rng.integers(1, most + 1)))]


@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS))
def test_orders_are_the_algorithms(seed, kind):
    rng = np.random.default_rng(seed)
    dimensions, bytes_ = some_dimensions(rng), float(10 ** rng.uniform(4, 9))
    chunks = int(rng.choice([1, 4, 16, 64]))
    schedule = themis(request(kind, bytes_, dimensions), chunks=chunks)
    assert schedule.orders.tolist() == by_the_paper(kind, bytes_, dimensions, chunks)
    if kind == "all-reduce":
        assert schedule.gathers is not None
        assert (schedule.gathers == schedule.orders[:, ::-1]).all()
    else:
        assert schedule.gathers is None


@pytest.mark.parametrize("kind", [kind for kind in STAGE_KINDS if kind not in KINDS])
def test_others_are_left_to_the_baseline(kind):
    rng = np.random.default_rng(1)
    asked = request(kind, 1e6, some_dimensions(rng))
    assert (themis(asked).orders == baseline(asked).orders).all()


def test_a_just_enough_network_keeps_the_usual_order():
    """BW1 = P1 BW2 = P1 P2 BW3 loads all alike: Themis has nothing to do (section 6.3)."""
    dimensions = [Dimension(size=8, kind="switch", bandwidth_Bps=bandwidth) for bandwidth in (640e9, 80e9, 10e9)]
    for kind in KINDS:
        asked = request(kind, 1e9, dimensions)
        assert (themis(asked).orders == baseline(asked).orders).all()
        busy = time_schedule(themis(asked), active=1).dimension_utilization
        assert busy.min() > 0.9
