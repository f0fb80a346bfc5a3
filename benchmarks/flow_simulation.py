"""How fast flow-level simulation is, beside SimGrid on the same flows.

Scenarios: a fat-tree of three tiers, 1:1, all links 100 Gb/s, a random equal-cost path per flow, all flows
at 0: the ten scenarios whose makespans several simulators agree on (read from files), and larger ones made
here.

Run: ``python benchmarks/flow_simulation.py [--scenarios DIR] [--simgrid PROGRAM] [--repeat N]``.

``--scenarios`` holds ``sc_<k>_<kind>.txt``; ``--generator`` is the script that writes them where they are
missing.  ``--simgrid`` is a program that takes such a file and prints ``run_s=<seconds>``; it is looked for
beside the scenarios as ``sg_flows``.  Kernel time is the event loop alone, compiled code warm, the best of
some runs; total time adds checks and the making of arrays.  One process, one thread.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np

from weft.fabric.spec import Floats
from weft.fabric.traffic import Phases, Routes, Traffic, at_once
from weft.simulation.flows._clock import FAIR, advance
from weft.simulation.flows._run import new_clock
from weft.simulation.flows._state import READY, new_net
from weft.simulation.flows.engine import run
from weft.simulation.flows.scenario import read_scenario
from weft.solvers._filling import fill, new_problem

Case = tuple[Floats, Traffic, Routes]
LINE_RATE = 12.5e9
LOCAL = 0.25
GOLDEN = {
    (8, "ring"): 0.08,
    (8, "ringshuf"): 0.4,
    (8, "perm"): 0.24,
    (8, "permmix"): 0.344262,
    (8, "perm8"): 1.12,
    (16, "ring"): 0.08,
    (16, "ringshuf"): 0.4,
    (16, "perm"): 0.48,
    (16, "permmix"): 0.549085,
    (16, "perm8"): 1.44,
}
SIMGRID = (
    "--cfg=network/model:CM02",
    "--cfg=network/crosstraffic:0",
    "--cfg=network/TCP-gamma:0",
    "--log=root.thres:error",
)


def kernel_time(case: Case) -> float:
    """Seconds of the event loop."""
    capacity, traffic, routes = case
    net = new_net(capacity, traffic, routes)
    clock, net.counter[READY] = new_clock(traffic, routes, (), 0)
    begin = time.perf_counter()
    advance(net, clock, FAIR, LOCAL, np.inf)
    return time.perf_counter() - begin


def seconds(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def simgrid_time(program: Path | None, path: Path, steps: int, repeat: int) -> float:
    """Seconds of SimGrid's run phase, the best of some; nan where it is not there."""
    if program is None:
        return float("nan")
    best = float("inf")
    for _ in range(repeat):
        done = subprocess.run([program, path, str(steps), *SIMGRID], capture_output=True, text=True, check=True)
        found = re.search(r"run_s=([0-9.]+)", done.stdout)
        best = min(best, float(found[1])) if found else float("nan")
        if best > 1:
            break
    return best


def rounds(case: Case, count: int) -> Case:
    """The same flows again and again with a barrier between."""
    capacity, traffic, routes = case
    flows = len(traffic)
    phases = Phases(
        delay_s=np.zeros(count),
        start_s=np.zeros(count),
        indptr=np.concatenate([[0], np.arange(count)]),
        waits=np.arange(count - 1),
        label=np.zeros(count, dtype=np.int64),
        labels=("round",),
        job=np.zeros(count, dtype=np.int64),
    )
    every = Traffic(
        source=np.tile(traffic.source, count),
        target=np.tile(traffic.target, count),
        bytes=np.tile(traffic.bytes, count),
        phase=np.repeat(np.arange(count), flows),
        weight=np.tile(traffic.weight, count),
        cap_Bps=np.tile(traffic.cap_Bps, count),
        phases=phases,
    )
    return (
        capacity,
        every,
        Routes(
            indptr=np.concatenate([[0], np.cumsum(np.tile(np.diff(routes.indptr), count))]),
            links=np.tile(routes.links, count),
            usage=np.tile(routes.usage, count),
            latency_s=np.tile(routes.latency_s, count),
        ),
    )


def permutations(pods: int, half: int, times: int, seed: int = 1) -> Case:
    """Random permutations of the hosts of a 1:1 fat-tree of ``pods`` pods with ``half * half`` hosts each.

    Links: host to edge and back (2 per host), edge to aggregation and back, aggregation to core and back.
    """
    hosts = pods * half * half
    rng = np.random.default_rng(seed)
    source = np.tile(np.arange(hosts), times)
    target = np.concatenate([rng.permutation(hosts) for _ in range(times)])
    move = source != target
    source, target = source[move], target[move]
    up, spine = rng.integers(0, half, len(source)), rng.integers(0, half, len(source))
    edge, other_edge = source // half, target // half
    pod, other_pod = edge // half, other_edge // half
    steps = np.stack(
        [
            source,
            2 * hosts + edge * half + up,
            4 * hosts + (pod * half + up) * half + spine,
            5 * hosts + (other_pod * half + up) * half + spine,
            3 * hosts + other_edge * half + up,
            hosts + target,
        ],
        axis=1,
    )
    used = np.ones(steps.shape, dtype=bool)
    used[:, 1] = used[:, 4] = edge != other_edge
    used[:, 2] = used[:, 3] = pod != other_pod
    routes = Routes(
        indptr=np.concatenate([[0], np.cumsum(used.sum(axis=1))]),
        links=steps[used],
        usage=np.ones(int(used.sum())),
        latency_s=np.zeros(len(source)),
    )
    return np.full(6 * hosts, LINE_RATE), at_once(source, target, np.full(len(source), 1e9)), routes


def scenario_file(folder: Path, generator: Path, radix: int, kind: str) -> Path | None:
    """Path of a scenario, written where it is missing; None where it cannot be."""
    path = folder / f"sc_{radix}_{kind}.txt"
    if not path.exists() and generator.exists():
        subprocess.run([sys.executable, generator, str(radix), kind, "1", path], check=True)
    return path if path.exists() else None


def row(name: str, flows: int, makespan: float, golden: float, times: tuple[float, float, float]) -> None:
    """Print one line of the table."""
    kernel, total, simgrid = times
    error = f"{makespan - golden:+.1e}" if np.isfinite(golden) else ""
    peer = f"{simgrid:11.4f}{simgrid / kernel:9.1f}x" if np.isfinite(simgrid) else ""
    print(f"{name:24}{flows:>10,}{makespan:14.6f}{error:>10}{kernel:11.5f}{total:10.4f}{peer}", flush=True)


def golden_table(options: argparse.Namespace, program: Path | None) -> None:
    """The ten scenarios, and whole rings of the scattered ones."""
    for (radix, kind), golden in GOLDEN.items():
        path = scenario_file(options.scenarios, options.generator, radix, kind)
        if path is None:
            continue
        case = read_scenario(path)
        makespan = run(*case).makespan_s
        times = (
            min(kernel_time(case) for _ in range(options.repeat)),
            min(seconds(partial(run, *case)) for _ in range(options.repeat)),
            simgrid_time(program, path, 1, options.repeat),
        )
        row(f"k={radix} {kind}", len(case[1]), makespan, golden, times)
    for radix, count in ((8, 254), (16, 2046)):
        path = scenario_file(options.scenarios, options.generator, radix, "ringshuf")
        if path is not None:
            whole_ring(path, radix, count, program)


def whole_ring(path: Path, radix: int, count: int, program: Path | None) -> None:
    """All rounds of a ring all-reduce: each by itself, and equal ones once."""
    case = rounds(read_scenario(path), count)
    golden, simgrid = count * GOLDEN[radix, "ringshuf"], simgrid_time(program, path, count, 1)
    result = run(*case, reuse=False)
    each = seconds(partial(run, *case, reuse=False))
    row(
        f"k={radix} ring, {count} rounds",
        len(case[1]),
        result.makespan_s,
        golden,
        (min(kernel_time(case) for _ in range(2)), each, simgrid),
    )
    once = min(seconds(partial(run, *case)) for _ in range(5))
    row("  equal rounds once", len(case[1]), run(*case).makespan_s, golden, (once, once, simgrid))


def large_table() -> None:
    """Larger networks to completion, and one solution of a million flows."""
    for pods, half, times in ((16, 32, 1), (16, 32, 8), (64, 32, 1)):
        case = permutations(pods, half, times)
        mixed = np.random.default_rng(2).uniform(0.5e9, 1.5e9, len(case[1]))
        for words, traffic in (("", case[1]), (" mixed sizes", replace(case[1], bytes=mixed))):
            whole = (case[0], traffic, case[2])
            total = seconds(partial(run, *whole))
            name = f"{pods * half * half:,} hosts x{times}{words}"
            times_of = (kernel_time(whole), total, float("nan"))
            row(name, len(traffic), run(*whole).makespan_s, float("nan"), times_of)
    for hosts, case in ((65536, permutations(64, 32, 1)), (65536, permutations(64, 32, 16))):
        capacity, traffic, routes = case
        best = float("inf")
        for _ in range(5):
            problem = new_problem(capacity, routes.indptr, routes.links, routes.usage, traffic.weight, traffic.cap_Bps)
            best = min(best, seconds(partial(fill, problem)))
        print(f"one solution of {len(traffic):,} flows on {hosts:,} hosts: {best:.4f} s")


def main() -> None:
    shared = Path(os.environ.get("WEFT_SHARED", Path(__file__).parents[1] / ".." / "shared")) / "bench" / "simgrid"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scenarios", type=Path, default=Path.cwd() / "scenarios")
    parser.add_argument("--generator", type=Path, default=shared / "gen_scenario.py")
    parser.add_argument("--simgrid", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    options.scenarios.mkdir(exist_ok=True)
    found = options.simgrid or options.scenarios / "sg_flows"
    program = found.resolve() if found.exists() else None
    run(*permutations(2, 2, 1))
    print("kernel = event loop; total = with checks and arrays; both in seconds, as SimGrid's run phase")
    head = ("scenario", "flows", "makespan s", "- golden", "kernel", "total", "SimGrid", "ratio")
    print("{:24}{:>10}{:>14}{:>10}{:>11}{:>10}{:>11}{:>10}".format(*head))
    golden_table(options, program)
    large_table()


if __name__ == "__main__":
    main()
