"""How busy dimensions are over time, against the seconds of work."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.policies import schedule
from weft.collectives.schedules.timing import activity, busy_intervals
from weft.fabric.dimension import Dimension

networks = st.lists(
    st.tuples(
        st.sampled_from(["ring", "switch", "fully-connected", "line"]),
        st.integers(1, 6),
        st.sampled_from([1e9, 20e9, 100e9]),
        st.sampled_from([0.0, 1e-6, 1e-4]),
    ),
    min_size=1,
    max_size=3,
).map(
    lambda parts: [
        Dimension(kind=kind, size=size, bandwidth_Bps=Bps, latency_s=latency_s) for kind, size, Bps, latency_s in parts
    ]
)
POLICIES = ("baseline", "themis", "weft")
ACTIVE = (1, None, 3)
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def timed(network, kind, policy, active, chunks=6):
    assume(any(one.size > 1 for one in network))
    return schedule(request(kind, 1e7, network), policy, active=active, chunks=chunks)


@pytest.mark.parametrize("active", ACTIVE)
@given(networks, st.sampled_from(KINDS), st.sampled_from(POLICIES), st.integers(1, 250))
def test_activity_adds_up_to_the_work(active, network, kind, policy, bins):
    one = timed(network, kind, policy, active)
    shares = activity(one, bins=bins)
    assert shares.shape == (len(network), bins)
    assert (shares >= -1e-9).all()
    assert (shares <= 1 + 1e-9).all()
    assert shares.sum(axis=1) * one.time_s / bins == pytest.approx(one.busy_s, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("active", ACTIVE)
@given(networks, st.sampled_from(KINDS), st.sampled_from(POLICIES))
def test_intervals_are_apart_and_in_order(active, network, kind, policy):
    one = timed(network, kind, policy, active)
    for dimension in range(len(network)):
        begin, end = busy_intervals(one, dimension)
        assert len(begin) == len(end)
        assert (end >= begin).all()
        assert (begin[1:] > end[:-1]).all()
        assert (end - begin).sum() == pytest.approx(one.busy_s[dimension], rel=1e-6, abs=1e-12)
        if len(begin):
            assert begin[0] >= 0
            assert end[-1] <= one.time_s * (1 + 1e-9)
        else:
            assert network[dimension].size == 1


def test_latency_of_one_chunk_comes_first():
    """A ring of 3 takes two steps of 1 ms, then half of the bytes' third: 2/3 of 30 MB over 10 GB/s, 2 ms."""
    network = [Dimension(kind="ring", size=3, bandwidth_Bps=10e9, latency_s=1e-3)]
    for active in (1, 3):
        one = schedule(request("all-gather", 30e6, network), "baseline", chunks=1, active=active)
        begin, end = busy_intervals(one, 0)
        assert (begin, end) == (pytest.approx([2e-3]), pytest.approx([4e-3]))
        assert activity(one, bins=4)[0] == pytest.approx([0, 0, 1, 1])


def test_overlapped_latency_comes_behind():
    network = [Dimension(kind="ring", size=3, bandwidth_Bps=10e9, latency_s=1e-3)]
    one = schedule(request("all-gather", 30e6, network), "baseline", chunks=1, active=None)
    assert one.time_s == pytest.approx(4e-3)
    assert activity(one, bins=2)[0].sum() == pytest.approx(1.0)


def test_a_dimension_nobody_uses_is_never_busy():
    network = [Dimension(kind="ring", size=3, bandwidth_Bps=10e9), Dimension(kind="ring", size=1, bandwidth_Bps=10e9)]
    one = schedule(request("all-gather", 30e6, network), "baseline", chunks=4)
    assert activity(one, bins=7) == pytest.approx(np.array([[1.0] * 7, [0.0] * 7]))
