"""The flow engine on cases whose answer is known: fractions, brute force, another simulator, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.spec import Floats
from weft.fabric.traffic import Phases, Routes, Traffic, at_once
from weft.simulation.flows.engine import MODES, LinkEvent, Mode, run


def phases_waiting(*waits: Sequence[int]) -> Phases:
    count = len(waits)
    return Phases(
        delay_s=np.zeros(count),
        start_s=np.zeros(count),
        indptr=np.cumsum([0, *map(len, waits)]).astype(np.int64),
        waits=np.array([other for row in waits for other in row], dtype=np.int64),
        label=np.arange(count),
        labels=tuple(f"step-{chr(97 + i)}" if i < 26 else f"step-{i}" for i in range(count)),
        job=np.zeros(count, dtype=np.int64),
    )


def single_paths(*paths: Sequence[int], latency: Sequence[float] | None = None) -> Routes:
    return Routes(
        indptr=np.cumsum([0, *map(len, paths)]).astype(np.int64),
        links=np.array([link for path in paths for link in path], dtype=np.int64),
        usage=np.ones(sum(map(len, paths))),
        latency_s=np.zeros(len(paths)) if latency is None else np.array(latency, dtype=float),
    )


@pytest.mark.parametrize(
    ("waits", "named", "unnamed"),
    [(([1], [2], [0], []), "abc", "d"), (([], [0], [1, 3], [2], [3]), "cd", "abe"), (([], [1]), "b", "a")],
)
def test_phases_in_a_circle_are_named(waits: tuple[list[int], ...], named: str, unnamed: str) -> None:
    flows = at_once(np.array([0]), np.array([1]), np.array([1.0]))
    circular = replace(flows, phases=phases_waiting(*waits))
    with pytest.raises(BadInput) as error:
        run(np.ones(1), circular, single_paths([0]))
    assert all(f"step-{letter}" in str(error.value) for letter in named)
    assert not any(f"step-{letter}" in str(error.value) for letter in unnamed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failing", [False, True])
def test_flows_that_never_end_are_named_with_their_links(mode: Mode, failing: bool) -> None:
    flows = at_once(np.array([4, 5, 6]), np.array([14, 15, 16]), np.array([8.0, 8.0, 8.0]))
    capacity = np.array([2.0, 1.0, 2.0 if failing else 0.0, 1.0])
    down = LinkEvent(time_s=1.0, link=2, capacity_Bps=0.0)
    routes, events = single_paths([0, 1], [0, 2, 3], [1]), [down] if failing else []
    with pytest.raises(BadInput) as error:
        run(capacity, flows, routes, mode=mode, events=events)
    words = str(error.value)
    assert "1 (5 -> 15)" in words
    assert "links 2 " in words
    assert "4 -> 14" not in words
    assert "6 -> 16" not in words
    up = LinkEvent(time_s=100.0, link=2, capacity_Bps=1.0)
    found = run(capacity, flows, routes, mode=mode, events=[*events, up])
    assert found.makespan_s > 100.0


def test_a_flow_that_never_ends_has_its_own_number_in_a_chain() -> None:
    flows = at_once(np.arange(4), np.arange(4) + 1, np.ones(4))
    chain = replace(flows, phase=np.array([0, 1, 2, 3]), phases=phases_waiting([], [0], [1], [2]))
    routes = single_paths([0], [0], [0], [1])
    words = []
    for reuse in (True, False):
        with pytest.raises(BadInput) as error:
            run(np.array([1.0, 0.0]), chain, routes, reuse=reuse)
        words.append(str(error.value))
    assert "3 (3 -> 4)" in words[0]
    assert words[0] == words[1]


def exact_shortest(arrival: list[int], size: list[int], speed: int) -> list[Fraction]:
    """One link: who has least left is served, equals share; the order is made at arrivals and completions."""
    left, now, end = [Fraction(one) for one in size], Fraction(0), dict[int, Fraction]()
    while len(end) < len(size):
        here = [flow for flow in range(len(size)) if arrival[flow] <= now and flow not in end]
        later = [Fraction(time) for time in arrival if time > now]
        if not here:
            now = min(later)
            continue
        least = min(left[flow] for flow in here)
        served = [flow for flow in here if left[flow] == least]
        step = min([least * len(served) / speed, *(time - now for time in later)])
        now += step
        for flow in served:
            left[flow] -= step * speed / len(served)
            if left[flow] == 0:
                end[flow] = now
    return [end[flow] for flow in range(len(size))]


def on_one_link(arrival: Sequence[int], size: Sequence[int], speed: float) -> Floats:
    """When each flow completes."""
    ends = np.arange(len(size))
    flows = at_once(ends, ends + 1, np.array(size, dtype=float))
    routes = single_paths(*([0] for _ in size), latency=arrival)
    return run(np.array([speed]), flows, routes, mode="shortest-remaining").completion_s


def test_shortest_remaining_on_one_link_is_exact() -> None:
    rng, preempted = np.random.default_rng(14), 0
    for _ in range(300):
        count, speed = int(rng.integers(1, 8)), int(rng.integers(1, 4))
        size, arrival = rng.integers(1, 9, count).tolist(), rng.integers(0, 7, count).tolist()
        expected = [float(end) for end in exact_shortest(arrival, size, speed)]
        found = on_one_link(arrival, size, speed)
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=f"{arrival} {size} {speed}")
        preempted += any(
            first < second < end and one > other
            for first, one, end in zip(arrival, size, expected, strict=True)
            for second, other in zip(arrival, size, strict=True)
        )
    assert preempted > 100


def test_shortest_remaining_has_the_least_mean_completion() -> None:
    rng = np.random.default_rng(15)
    for _ in range(40):
        size = rng.choice(np.arange(1, 30), 5, replace=False).tolist()
        found = on_one_link([0] * 5, size, 1.0)
        best = min(np.cumsum(order).sum() for order in permutations(size))
        np.testing.assert_allclose(found.sum(), best, rtol=1e-12)


SCENARIOS = {
    (8, "ring"): 0.080000,
    (8, "ringshuf"): 0.400000,
    (8, "perm"): 0.240000,
    (8, "permmix"): 0.344262,
    (8, "perm8"): 1.120000,
    (16, "ring"): 0.080000,
    (16, "ringshuf"): 0.400000,
    (16, "perm"): 0.480000,
    (16, "permmix"): 0.549085,
    (16, "perm8"): 1.440000,
}
"""Makespans by another simulator (SimGrid 3.32), in seconds."""


def scenario(radix: int, kind: str, folder: Path) -> tuple[Floats, Traffic, Routes]:
    """What the generator of the shared folder writes; skips the test where there is none."""
    shared = Path(os.environ.get("WEFT_SHARED", Path(__file__).parents[2].parent / "shared"))
    script = shared / "bench" / "simgrid" / "gen_scenario.py"
    if not script.is_file():
        pytest.skip("no generator of scenarios")
    made = folder / "scenario.txt"
    subprocess.run([sys.executable, str(script), str(radix), kind, "1", str(made)], check=True)
    head, *lines = made.read_text().splitlines()
    _, links, flows, speed = head.split()
    rows = [line.split() for line in lines[: int(flows)]]
    column = np.array([row[:3] for row in rows], dtype=np.int64)
    traffic = at_once(column[:, 0], column[:, 1], column[:, 2].astype(float))
    return np.full(int(links), float(speed)), traffic, single_paths(*([*map(int, row[4:])] for row in rows))


@pytest.mark.parametrize(("radix", "kind"), list(SCENARIOS))
def test_makespans_of_another_simulator(radix: int, kind: str, tmp_path: Path) -> None:
    capacity, traffic, routes = scenario(radix, kind, tmp_path)
    for local_share in (0.0, 0.25, 1.0):
        found = run(capacity, traffic, routes, local_share=local_share)
        assert found.makespan_s == pytest.approx(SCENARIOS[radix, kind], abs=1e-6)


def test_all_rounds_of_a_scattered_ring(tmp_path: Path) -> None:
    capacity, one, paths = scenario(8, "ringshuf", tmp_path)
    times, flows = 254, len(one)
    chain = phases_waiting([], *([before] for before in range(times - 1)))
    every = at_once(np.tile(one.source, times), np.tile(one.target, times), np.tile(one.bytes, times))
    traffic = replace(every, phase=np.repeat(np.arange(times), flows), phases=chain)
    routes = Routes(
        indptr=np.append(0, np.cumsum(np.tile(np.diff(paths.indptr), times))),
        links=np.tile(paths.links, times),
        usage=np.tile(paths.usage, times),
        latency_s=np.zeros(len(traffic)),
    )
    for reuse in (True, False):
        found = run(capacity, traffic, routes, reuse=reuse)
        assert found.makespan_s == pytest.approx(times * 0.4, abs=1e-6)
