"""Policies by name: aliases, defaults, refusals, and the same answer every time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.schedules.chunks import MOST_CHUNKS, request
from weft.collectives.schedules.policies import ORDERS, POLICIES, compare, schedule
from weft.errors import BadInput, UnknownName
from weft.fabric.dimension import Dimension


def network(latency_s=1e-6):
    return [
        Dimension(kind="switch", size=8, bandwidth_Bps=150e9, latency_s=latency_s),
        Dimension(kind="ring", size=4, bandwidth_Bps=50e9, latency_s=latency_s),
    ]


def asked(kind="all-reduce", bytes_=64e6, latency_s=1e-6):
    return request(kind, bytes_, network(latency_s))


@pytest.mark.parametrize(
    ("policy", "order", "rule", "name"),
    [
        ("baseline", None, "fifo", "baseline"),
        ("baseline", "scf", "scf", "baseline"),
        ("baseline", "astra-fifo", "astra-fifo", "baseline"),
        ("themis", None, "scf", "themis"),
        ("themis", "fifo", "fifo", "themis"),
        ("themis", "astra-fifo", "astra-fifo", "themis (astra-sim)"),
        ("themis", "paper-scf", "paper-scf", "themis (astra-sim)"),
        ("themis", "astra-scf", "astra-scf", "themis (astra-sim)"),
        ("weft", None, "fixed", "weft"),
    ],
)
def test_orders(policy, order, rule, name):
    found = schedule(asked(), policy, order=order, chunks=8)
    assert (found.rule, found.schedule.policy) == (rule, name)


def test_defaults():
    assert len(schedule(asked(), "themis").schedule) == 64
    assert len(schedule(asked(), "baseline").schedule) == 64
    assert len(schedule(asked(bytes_=5.5), "themis").schedule) == 5
    assert len(schedule(asked(), "themis", chunks=3).schedule) == 3
    assert schedule(asked()).schedule.policy == "weft"


@pytest.mark.parametrize(
    ("policy", "order", "error", "words"),
    [
        *((policy, None, UnknownName, "unknown policy") for policy in ("tacos", "", "Baseline", "themis scf")),
        ("baseline", "lifo", UnknownName, "order"),
        ("themis", "lifo", UnknownName, "order"),
        ("themis", "fixed", BadInput, "fixes none"),
        ("weft", "fifo", BadInput, "drop it"),
    ],
)
def test_policies_and_orders_that_cannot_be(policy, order, error, words):
    with pytest.raises(error, match=words):
        schedule(asked(), policy, order=order)


@pytest.mark.parametrize("policy", POLICIES)
def test_chunks_and_active_chunks_that_cannot_be(policy):
    for chunks in (0, -1, MOST_CHUNKS + 1):
        with pytest.raises(BadInput, match="chunks"):
            schedule(asked(), policy, chunks=chunks)
    with pytest.raises(BadInput, match="give fewer"):
        schedule(asked(bytes_=10.0), policy, chunks=11)
    for active in (0, -1, 4097):
        with pytest.raises(BadInput, match="active"):
            schedule(asked(), policy, active=active, chunks=4)


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter", "all-gather"])
def test_compare_has_every_policy(kind):
    found = compare(asked(kind))
    assert list(found) == ["baseline", *(f"themis {order}" for order in ORDERS), "weft"]
    assert len({one.active for one in found.values()}) == 1
    assert found["weft"].time_s == min(one.time_s for one in found.values())
    for name, one in found.items():
        if name.startswith("themis"):
            assert one.rule == name.split()[1]


def test_compare_hears_chunks_and_active():
    found = compare(asked(), chunks=5, active=3)
    assert {one.active for one in found.values()} == {3}
    assert {len(one.schedule) for name, one in found.items() if name != "weft"} == {5}


@given(
    st.floats(-9, -3),
    st.sampled_from(["baseline", "themis"]),
    st.integers(1, 64),
    st.sampled_from(["all-reduce", "reduce-scatter", "all-gather"]),
)
def test_auto_is_one_where_latencies_in_a_row_cost_half_a_percent(power, policy, chunks, kind):
    """Steps of a chunk on the switch of 8 and the ring of 4: 3 each way, for every one of the chunks."""
    one = asked(kind, latency_s=10**power)
    both = 2 if kind == "all-reduce" else 1
    found = schedule(one, policy, chunks=chunks)
    longest_s = both * 3 * chunks * 10**power
    work_s = schedule(one, "themis", chunks=chunks, active=1).busy_s.mean()
    if abs(longest_s / work_s - 0.005) > 1e-6:
        assert found.active == (1 if longest_s < 0.005 * work_s else None)
