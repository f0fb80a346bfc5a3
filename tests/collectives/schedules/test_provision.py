"""What bandwidths are worth: Themis' rule (section 6.3), and the LP's."""

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.schedules.bound import best_shares, ideal_s
from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.policies import baseline
from weft.collectives.schedules.result import provision
from weft.collectives.schedules.timing import time_schedule
from weft.fabric.dimension import Dimension


def asked(sizes, widths, kind="all-reduce", dimension="switch", latency_s=0.0):
    network = [
        Dimension(size=size, kind=dimension, bandwidth_Bps=Bps, latency_s=latency_s)
        for size, Bps in zip(sizes, widths, strict=True)
    ]
    return request(kind, 1e9, network)


networks = st.lists(
    st.tuples(st.sampled_from([2, 4, 8, 16]), st.sampled_from([1e9, 5e9, 25e9, 100e9, 400e9])), min_size=2, max_size=4
).map(lambda parts: ([size for size, _ in parts], [Bps for _, Bps in parts]))


def sent(sizes):
    """Of a chunk that goes outwards, what an accelerator sends on each dimension, for the buffer it starts
    with."""
    return [(size - 1) / size / prod(sizes[:i]) for i, size in enumerate(sizes)]


@pytest.mark.slow
@given(networks)
def test_verdicts_say_whether_the_baseline_waits_for_the_outer_dimension(network):
    sizes, widths = network
    found = provision(asked(sizes, widths)).pairs
    assert [(pair.inner, pair.outer) for pair in found] == list(pairwise(range(1, len(sizes) + 1)))
    seconds = [bytes_ / Bps for bytes_, Bps in zip(sent(sizes), widths, strict=True)]
    for pair in found:
        longer = seconds[pair.outer - 1] / seconds[pair.inner - 1]
        assert pair.needed_Bps == pytest.approx(widths[pair.outer - 1] * longer)
        assert pair.Bps == widths[pair.outer - 1]
        if abs(longer - 1) > 0.011:
            assert pair.verdict == ("under-provisioned" if longer > 1 else "over-provisioned")
        elif abs(longer - 1) < 0.009:
            assert pair.verdict == "just enough"


def test_equal_sizes_follow_the_rule_of_the_paper():
    """BW(K) = P_K BW(L) is just enough (section 6.3)."""
    for outer, verdict in ((1, "just enough"), (1.05, "over-provisioned"), (0.95, "under-provisioned")):
        (pair,) = provision(asked((16, 16), (160e9, outer * 10e9))).pairs
        assert pair.verdict == verdict
        assert pair.needed_Bps == pytest.approx(10e9)


def test_dimensions_of_one_do_not_count():
    (pair,) = provision(asked((4, 1, 4), (100e9, 1e9, 25e9))).pairs
    assert (pair.inner, pair.outer, pair.verdict) == (1, 3, "just enough")
    assert provision(asked((4, 1), (100e9, 1e9))).pairs == ()


@pytest.mark.slow
@given(networks)
def test_just_enough_makes_every_pair_just_enough(network):
    sizes, widths = network
    split = provision(asked(sizes, widths)).just_enough_Bps
    assert split.sum() == pytest.approx(sum(widths))
    assert split / split.sum() == pytest.approx(np.array(sent(sizes)) / sum(sent(sizes)))
    again = provision(asked(sizes, split))
    assert {pair.verdict for pair in again.pairs} == {"just enough"}
    assert again.just_enough_Bps == pytest.approx(split)


def test_just_enough_keeps_every_dimension_busy_under_the_baseline():
    """The stages of a chunk take about as long on every dimension: (P - 1)/P of the same bytes over width."""
    sizes = (16, 16, 16)
    split = provision(asked(sizes, (100e9, 100e9, 100e9))).just_enough_Bps
    found = time_schedule(baseline(asked(sizes, split), chunks=512), active=1)
    assert found.utilization > 0.98
    equal = time_schedule(baseline(asked(sizes, [split.sum() / 3] * 3), chunks=512), active=1)
    assert equal.time_s > 2 * found.time_s


# Too slow ---------------------------------------------------------------------------------------


def with_widths(one, widths):
    changed = [
        replace(dimension, bandwidth_Bps=float(Bps)) for dimension, Bps in zip(one.dimensions, widths, strict=True)
    ]
    return replace(one, dimensions=tuple(changed))


def over_ideal(one):
    return best_shares(one).bandwidth_s / ideal_s(one) - 1


@pytest.mark.slow
@given(networks, st.sampled_from(["all-reduce", "reduce-scatter", "all-gather"]))
def test_enough_is_enough_and_a_little_less_is_not(network, kind):
    sizes, widths = network
    one = asked(sizes, widths, kind)
    found = provision(one)
    if not found.too_slow:
        assert found.enough_Bps is None
        assert over_ideal(one) <= 0.0101
        return
    assert over_ideal(one) > 1e-4
    if found.enough_Bps is None:
        return
    slow = [number - 1 for number in found.too_slow]
    fast = [i for i in range(len(sizes)) if i not in slow]
    before = np.array(widths)
    assert (found.enough_Bps[slow] > before[slow]).all()
    assert (found.enough_Bps[fast] == before[fast]).all()
    assert over_ideal(with_widths(one, found.enough_Bps)) < 1e-3
    less = found.enough_Bps.copy()
    less[slow] *= 0.98
    assert over_ideal(with_widths(one, less)) > 1e-3


def test_two_dimensions_by_hand():
    """Two dimensions of 16, 100 and x GB/s.  Dimension 2 is idle least when it comes last: its stages then
    have 1/16 of the bytes, so it keeps up from 100 / 16 on."""
    found = provision(asked((16, 16), (100e9, 1e9)))
    assert found.too_slow == (2,)
    assert found.enough_Bps == pytest.approx([100e9, 100e9 / 16], rel=1e-3)
    assert provision(asked((16, 16), (100e9, 6.3e9))).too_slow == ()


def test_other_collectives_do_not_shrink():
    found = provision(asked((8, 8), (100e9, 100e9), "all-to-all"))
    assert found.pairs[0].verdict == "just enough"
    assert found.just_enough_Bps == pytest.approx([100e9, 100e9])
    assert found.too_slow == ()
    assert provision(asked((8, 8), (100e9, 50e9), "broadcast")).too_slow == (2,)
