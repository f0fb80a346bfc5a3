"""How fast flow-level simulation is, beside SimGrid 3.32 on the same flows.

Scenarios: a fat-tree of three tiers, 1:1, all links 100 Gb/s, a random equal-cost path per flow, all flows
at 0: ten scenarios whose makespans several simulators agree on, whole rings of the scattered ones, and larger
networks.

Run: ``python benchmarks/flow_simulation.py``.

Kernel time is the event loop alone, compiled code warm, the best of some runs; total time adds checks and the
making of arrays; both in CPU seconds.  SimGrid's are those of its run phase, measured on a quiet machine of two
cores (C++, CM02 without cross-traffic and TCP's window).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import bench
import numpy as np

from weft.fabric.spec import Floats
from weft.fabric.traffic import Phases, Routes, Traffic, at_once
from weft.simulation.flows._clock import advance
from weft.simulation.flows.engine import LOCAL, net_of, new_clock, run
from weft.solvers._filling import READY, new_net, share_all

Case = tuple[Floats, Traffic, Routes]
LINE_RATE = 12.5e9
SCENARIOS = {
    (8, "ring"): (0.08, 0.0006),
    (8, "ringshuf"): (0.4, 0.0008),
    (8, "perm"): (0.24, 0.0008),
    (8, "permmix"): (0.344262, 0.0009),
    (8, "perm8"): (1.12, 0.059),
    (16, "ring"): (0.08, 0.0049),
    (16, "ringshuf"): (0.4, 0.0104),
    (16, "perm"): (0.48, 0.0104),
    (16, "permmix"): (0.549085, 0.0184),
    (16, "perm8"): (1.44, 18.3),
}
"""Radix and kind; makespan and SimGrid's seconds."""
RINGS = {8: (254, 0.066), 16: (2046, 15.7)}
"""Radix; rounds of the ring all-reduce, and SimGrid's seconds."""

HEADS = ("scenario", "flows", "makespan s", "kernel", "total", "SimGrid", "ratio")


def kernel_time(case: Case) -> float:
    """CPU seconds of the event loop."""
    capacity, traffic, routes = case
    net = net_of(capacity, traffic, routes)
    clock, net.counter[READY] = new_clock(traffic, routes, 0)
    return bench.cpu_s(partial(advance, net, clock, LOCAL))


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


def scenario(radix: int, kind: str, seed: int = 1) -> Case:
    """A scenario that other simulators have been given: hosts of a fat-tree in a ring or a permutation.

    ``ring`` is in the order of hosts, ``ringshuf`` in a random one; ``perm`` is a random permutation, ``perm8``
    eight of them, ``permmix`` one with sizes of 0.5 to 1.5 GB instead of 1 GB.
    """
    draw, half = random.Random(seed), radix // 2
    hosts = radix * half * half
    pairs = _pairs(kind, hosts, draw)
    links: dict[tuple[object, object], int] = {}
    sizes, indptr, path = [], [0], []
    for source, target in pairs:
        sizes.append(int(1e9 * (draw.uniform(0.5, 1.5) if kind == "permmix" else 1.0)))
        nodes = list(_nodes(source, target, half, draw))
        path += [links.setdefault(hop, len(links)) for hop in pairwise(nodes)]
        indptr.append(len(path))
    ends = np.array(pairs)
    routes = Routes(
        indptr=np.array(indptr), links=np.array(path), usage=np.ones(len(path)), latency_s=np.zeros(len(pairs))
    )
    return np.full(len(links), LINE_RATE), at_once(ends[:, 0], ends[:, 1], np.array(sizes, dtype=float)), routes


def _pairs(kind: str, hosts: int, draw: random.Random) -> list[tuple[int, int]]:
    order = list(range(hosts))
    if kind == "ringshuf":
        draw.shuffle(order)
    if kind.startswith("ring"):
        return [(order[i], order[(i + 1) % hosts]) for i in range(hosts)]
    return [pair for _ in range(8 if kind == "perm8" else 1) for pair in _permutation(hosts, draw)]


def _permutation(hosts: int, draw: random.Random) -> list[tuple[int, int]]:
    """A permutation without fixed points, which are mended by swaps."""
    while True:
        target = list(range(hosts))
        draw.shuffle(target)
        for i in range(hosts):
            if target[i] == i:
                other = (i + 1) % hosts
                target[i], target[other] = target[other], target[i]
        if all(target[i] != i for i in range(hosts)):
            return list(enumerate(target))


def _nodes(source: int, target: int, half: int, draw: random.Random) -> Iterator[tuple[object, ...]]:
    """Hosts and switches of a random shortest path."""
    (pod, edge), (other_pod, other_edge) = (divmod(host // half, half) for host in (source, target))
    yield "host", source
    yield "edge", pod, edge
    if (pod, edge) != (other_pod, other_edge):
        middle = draw.randrange(half)
        yield "aggregation", pod, middle
        if pod != other_pod:
            yield "core", middle, draw.randrange(half)
            yield "aggregation", other_pod, middle
        yield "edge", other_pod, other_edge
    yield "host", target


def row(name: str, flows: int, makespan: float, kernel: float, total: float, simgrid: float | None = None) -> None:
    """Print one line of the table."""
    peer = "" if simgrid is None else f"{simgrid:11.4f}{simgrid / kernel:9.1f}x"
    print(f"{name:24}{flows:>10,}{makespan:14.6f}{kernel:11.5f}{total:10.4f}{peer}", flush=True)


def golden_table(tiny: bool) -> dict[str, float]:
    """The ten scenarios, and whole rings of the scattered ones."""
    figures, errors, ratios = {}, [], {}
    for (radix, kind), (golden, simgrid) in SCENARIOS.items():
        if tiny and radix > 8:
            continue
        case = scenario(radix, kind)
        makespan = run(*case).makespan_s
        errors.append(abs(makespan - golden))
        kernel = min(kernel_time(case) for _ in range(5))
        row(f"k={radix} {kind}", len(case[1]), makespan, kernel, bench.cpu_s(partial(run, *case), 5), simgrid)
        ratios[radix, kind] = simgrid / kernel
        figures[f"{kind}_{radix}_kernel_cpu_s"] = kernel
    crossing = ratios.pop((16, "perm8"), 0.0)
    figures |= {"worst_makespan_error_s": max(errors), "crossing_8192_times_simgrid": crossing}
    for radix, (count, simgrid) in RINGS.items():
        if not tiny:
            ratios[radix, "rounds"] = whole_ring(radix, count, simgrid)
    return figures | {"least_times_simgrid": min(ratios.values()), "most_times_simgrid": max(ratios.values())}


def whole_ring(radix: int, count: int, simgrid: float) -> float:
    """All rounds of a ring all-reduce; SimGrid's seconds over those of the kernel."""
    case = rounds(scenario(radix, "ringshuf"), count)
    result = run(*case)
    total, kernel = bench.cpu_s(partial(run, *case)), min(kernel_time(case) for _ in range(2))
    row(f"k={radix} ring, {count} rounds", len(case[1]), result.makespan_s, kernel, total, simgrid)
    return simgrid / kernel


def large_table(shapes: tuple[tuple[int, int, int], ...]) -> dict[str, float]:
    """Larger networks to completion, and one solution for the last, once and sixteen times its flows.

    A shape has pods, half of a switch's ports, and permutations.
    """
    figures = {}
    for pods, half, times in shapes:
        case = permutations(pods, half, times)
        mixed = np.random.default_rng(2).uniform(0.5e9, 1.5e9, len(case[1]))
        for words, traffic in (("", case[1]), (" mixed sizes", replace(case[1], bytes=mixed))):
            whole = (case[0], traffic, case[2])
            total, kernel = bench.cpu_s(partial(run, *whole)), kernel_time(whole)
            name = f"{pods * half * half}_hosts_{times}{'_mixed' if words else ''}"
            figures |= {f"{name}_cpu_s": total, f"{name}_flows": len(traffic)}
            title = f"{pods * half * half:,} hosts x{times}{words}"
            row(title, len(traffic), run(*whole).makespan_s, kernel, total)
    pods, half, _ = shapes[-1]
    for times in (1, 16):
        capacity, traffic, routes = permutations(pods, half, times)
        best = min(
            bench.cpu_s(
                partial(
                    share_all,
                    new_net(capacity, routes.indptr, routes.links, routes.usage, traffic.weight, traffic.cap_Bps),
                )
            )
            for _ in range(5)
        )
        print(f"one solution of {len(traffic):,} flows: {best:.4f} CPU-s")
        figures[f"one_solution_{times}_cpu_s"] = best
    return figures


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    run(*permutations(2, 2, 1))
    print("kernel = event loop; total = with checks and arrays; CPU seconds, beside SimGrid's run phase")
    print("{:24}{:>10}{:>14}{:>11}{:>10}{:>11}{:>10}".format(*HEADS))
    figures = golden_table(options.tiny)
    shapes = ((4, 2, 1),) if options.tiny else ((16, 32, 1), (16, 32, 8), (64, 32, 1))
    bench.record(options, figures | large_table(shapes))


if __name__ == "__main__":
    main()
