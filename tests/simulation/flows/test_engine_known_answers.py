"""The flow engine on cases whose answer is known, and against another simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.spec import Floats
from weft.fabric.traffic import Phases, Routes, Traffic, at_once
from weft.simulation.flows.engine import run, simulate


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


def test_a_flow_that_never_ends_has_its_own_number_in_a_chain() -> None:
    flows = at_once(np.arange(4), np.arange(4) + 1, np.ones(4))
    chain = replace(flows, phase=np.array([0, 1, 2, 3]), phases=phases_waiting([], [0], [1], [2]))
    routes = single_paths([0], [0], [0], [1])
    words = []
    for simulated in (run, simulate):
        with pytest.raises(BadInput) as error:
            simulated(np.array([1.0, 0.0]), chain, routes)
        words.append(str(error.value))
    assert "3 (3 -> 4)" in words[0]
    assert words[0] == words[1]


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
    for local in (0.0, 0.25, 1.0):
        found = simulate(capacity, traffic, routes, local=local)
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
    for simulated in (run, simulate):
        found = simulated(capacity, traffic, routes)
        assert found.makespan_s == pytest.approx(times * 0.4, abs=1e-6)
