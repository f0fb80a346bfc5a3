"""The event loop: cases by hand, and errors."""

from dataclasses import replace

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.traffic import Phases, Routes, at_once
from weft.simulation.flows.engine import run


def routes_of(paths, usage=None, latency=None):
    indptr = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
    links = np.array([link for path in paths for link in path], dtype=np.int64)
    return Routes(
        indptr=indptr,
        links=links,
        usage=np.ones(len(links)) if usage is None else np.array(usage, dtype=float),
        latency_s=np.zeros(len(paths)) if latency is None else np.array(latency, dtype=float),
    )


def flows_of(sizes):
    ends = np.zeros(len(sizes), dtype=np.int64)
    return at_once(ends, ends + 1, np.array(sizes, dtype=float))


def phases_of(waits, delay=None, start=None):
    count = len(waits)
    return Phases(
        delay_s=np.zeros(count) if delay is None else np.array(delay, dtype=float),
        start_s=np.zeros(count) if start is None else np.array(start, dtype=float),
        indptr=np.concatenate([[0], np.cumsum([len(wait) for wait in waits])]).astype(np.int64),
        waits=np.array([other for wait in waits for other in wait], dtype=np.int64),
        label=np.arange(count),
        labels=tuple(f"step {number}" for number in range(count)),
        job=np.zeros(count, dtype=np.int64),
    )


def test_the_rest_speeds_up_when_a_flow_ends():
    """Link of 10: both at 5 until the 10 bytes end at 2; the other has 20 left at 10: ends at 4."""
    result = run(np.array([10.0]), flows_of([10, 30]), routes_of([[0], [0]]))
    assert result.completion_s.tolist() == [2.0, 4.0]
    assert result.makespan_s == 4.0
    assert result.link_bytes.tolist() == [40.0]
    assert result.bottleneck.tolist() == [0, 0]


def test_latency_delay_start_and_computation():
    """Phase 0 ends at 0.5 + 1; phase 1 computes for 2; phase 2 begins no sooner than 5."""
    traffic = replace(
        flows_of([10, 10]), phase=np.array([0, 2]), phases=phases_of([[], [0], [1]], delay=[0, 2, 1], start=[0, 0, 5])
    )
    result = run(np.array([10.0]), traffic, routes_of([[0], [0]], latency=[0.5, 0.25]))
    assert result.begin_s.tolist() == [0.5, 5.25]
    assert result.completion_s.tolist() == [1.5, 6.25]
    assert result.phase_begin_s.tolist() == [0.0, 3.5, 5.0]
    assert result.phase_end_s.tolist() == [1.5, 3.5, 6.25]


def test_flows_without_bytes_or_links():
    """No bytes: over at once.  No links: at the cap's rate, or over at once without one."""
    traffic = replace(flows_of([0, 10, 10]), cap_Bps=np.array([np.inf, 5.0, np.inf]))
    result = run(np.array([10.0]), traffic, routes_of([[0], [], []], latency=[1, 0, 0]))
    assert result.completion_s.tolist() == [1.0, 2.0, 0.0]
    assert result.bottleneck.tolist() == [-1, -1, -1]


def test_link_rates_in_time():
    result = run(np.array([10.0]), flows_of([10, 30]), routes_of([[0], [0]]), sample=True)
    assert result.rates.time_s.tolist() == [0.0, 4.0]
    assert result.rates.rate_Bps.tolist() == [10.0, 0.0]


def test_phases_in_a_circle_are_named():
    traffic = replace(flows_of([1]), phases=phases_of([[2], [0], [1], [0]]))
    with pytest.raises(BadInput, match="phases 0, 1, 2, 3 never begin"):
        run(np.array([1.0]), traffic, routes_of([[0]]))


def test_stalled_flows_and_links_are_named():
    routes, traffic = routes_of([[0], [0, 1]]), flows_of([10, 10])
    with pytest.raises(BadInput, match=r"flows 1 \(0 -> 1\) can never end: links 1 let nothing pass"):
        run(np.array([1.0, 0.0]), traffic, routes)


def test_bad_capacity_is_named():
    with pytest.raises(BadInput, match="capacity_Bps"):
        run(np.array([-1.0]), flows_of([1]), routes_of([[0]]))
