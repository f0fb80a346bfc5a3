"""Collective schedules: beside ASTRA-sim's and the paper's figures, the bound, TACOS, and their cost.

    python benchmarks/schedules.py

Figures are those of Themis (arXiv 2110.04478v3, figures 8 and 12, read off its vector graphics), of
ASTRA-sim 1.0 (branch ASTRA-sim-1.0, 1 ns a hop, measured) and of TACOS 1.3.0 (measured).  Times of this program
are CPU seconds.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import bench

from weft.collectives.schedules.bound import best_shares
from weft.collectives.schedules.chunks import Request, request
from weft.collectives.schedules.policies import baseline, compare, schedule, themis
from weft.collectives.schedules.timing import TimedSchedule, time_schedule
from weft.fabric.dimension import Dimension
from weft.model.workload import Communication, Task, Workload, workload
from weft.simulation.workload import run_policies

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reproductions"))
from workloads import WORKLOADS

Figures = dict[str, float]
GB, MIB = 2.0**30, 2.0**20
KINDS = {"S": "switch", "F": "fully-connected", "R": "ring"}
PLATFORMS = {
    "2D-SW_SW": ("SS", (16, 64), (150, 100), (700, 1700)),
    "3D-SW_SW_SW_homo": ("SSS", (16, 8, 8), (100, 100, 100), (700, 700, 1700)),
    "3D-SW_SW_SW_hetero": ("SSS", (16, 8, 8), (200, 100, 50), (700, 700, 1700)),
    "3D-FC_Ring_SW": ("FRS", (8, 16, 8), (175, 100, 50), (700, 700, 1700)),
    "4D-Ring_SW_SW_SW": ("RSSS", (4, 4, 8, 8), (250, 200, 100, 50), (20, 700, 700, 1700)),
    "4D-Ring_FC_Ring_SW": ("RFRS", (4, 8, 4, 8), (375, 175, 150, 100), (20, 700, 700, 1700)),
}
"""Kinds, sizes, GB/s (2^30 bytes) per accelerator, ns per step: table 2."""
ASTRA_SIM_1 = {
    "2D-SW_SW": ((1222149, 884947, 807601), (12211077, 8833203, 8059455)),
    "3D-SW_SW_SW_homo": ((1832453, 759276, 665227), (18314501, 7582048, 6640848)),
    "3D-SW_SW_SW_hetero": ((916869, 569656, 565373), (9159301, 5687819, 5644915)),
    "3D-FC_Ring_SW": ((976901, 770899, 628583), (9766661, 7543007, 6353034)),
    "4D-Ring_SW_SW_SW": ((586501, 363075, 335904), (5864581, 3529629, 3414172)),
    "4D-Ring_FC_Ring_SW": ((391429, 281983, 257783), (3911557, 2815162, 2572949)),
}
"""ns of baseline, Themis FIFO and Themis SCF at 100 and at 1,000 MiB."""
NEAR = 0.005
"""Cases with a smaller error are counted apart: FIFO's order is chaotic on some platforms."""
FIGURE_8 = {
    "2D-SW_SW": (1241, 903, 817),
    "3D-SW_SW_SW_homo": (1847, 774, 694),
    "3D-SW_SW_SW_hetero": (932, 584, 588),
    "3D-FC_Ring_SW": (993, 787, 655),
    "4D-Ring_SW_SW_SW": (600, 376, 356),
    "4D-Ring_FC_Ring_SW": (401, 292, 267),
}
"""us at 100 MiB."""
FIGURE_12 = {
    "resnet-152": (1.399, 2.248, 1.409, 1.395, 1.394, 1.261),
    "gnmt": (1.263, 1.784, 1.246, 1.243, 1.213, 1.125),
    "dlrm": (1.262, 1.773, 1.248, 1.239, 1.214, 1.125),
    "transformer-1t": (1.309, 1.528, 1.195, 1.185, 1.212, 1.119),
}
TACOS = (
    ("mesh", (5, 5), 9606.0, 0.001),
    ("torus", (8, 8), 5321.0, 0.005),
    ("mesh", (8, 8), 10016.0, 0.027),
    ("mesh", (4, 4, 4), 6573.0, 0.020),
    ("torus", (4, 4, 4), 3443.0, 0.011),
    ("mesh", (16, 16), 10064.0, 0.59),
    ("torus", (16, 16), 5110.62, 0.42),
    ("mesh", (8, 8, 4), 6683.12, 0.51),
    ("torus", (8, 8, 4), 3380.88, 0.32),
    ("torus", (32, 16), 5143.12, 6.2),
    ("torus", (8, 8, 8), 3402.38, 4.9),
    ("torus", (16, 8, 8), 3425.34, 44.7),
    ("torus", (32, 32), 5168.06, 51.2),
    ("mesh", (32, 32), 10256.0, 57.8),
)
"""All-gather of 1 GiB at 50 GiB/s a link and 0.5 us: us, and seconds to find it."""


def dimensions(name: str, latency_ns: float | None = None) -> list[Dimension]:
    """A platform; with ``latency_ns`` a hop instead of table 2's latencies, a switch being two hops."""
    kinds, sizes, widths, latencies = PLATFORMS[name]
    return [
        Dimension(
            size=size,
            kind=KINDS[kind],  # type: ignore[arg-type]
            bandwidth_Bps=width * GB,
            latency_s=(latency if latency_ns is None else latency_ns * (1 + (kind == "S"))) * 1e-9,
        )
        for kind, size, width, latency in zip(kinds, sizes, widths, latencies, strict=True)
    ]


def platforms(tiny: bool) -> Figures:
    print("All-reduce on Themis' platforms, us; beside ASTRA-sim 1.0")
    heads = ("baseline", "Themis FIFO", "Themis SCF")
    print(f"{'':20} {'MiB':>5}", *(f"{head:>18}" for head in heads), f"{'weft':>9} {'bound':>9}")
    errors: list[float] = []
    runs: dict[str, list[TimedSchedule]] = {name: [] for name in ("baseline", "fifo", "scf", "weft")}
    for name in list(PLATFORMS)[: 1 if tiny else None]:
        for at, mib in enumerate((100, 1000)):
            asked = request("all-reduce", mib * MIB, dimensions(name, 1))
            variant = themis(asked, variant="astra-sim")
            once = {
                "baseline": time_schedule(baseline(asked), active=1),
                "fifo": time_schedule(variant, rule="astra-fifo", active=1),
                "scf": time_schedule(variant, rule="astra-scf", active=1),
                "weft": schedule(asked, "weft"),
            }
            cells = [
                f"{one.time_s * 1e6:9.1f} ({one.time_s * 1e9 / peer - 1:+.2%})"
                for one, peer in zip(once.values(), ASTRA_SIM_1[name][at], strict=False)
            ]
            pairs = zip(once.values(), ASTRA_SIM_1[name][at], strict=False)
            errors += [abs(one.time_s * 1e9 / peer - 1) for one, peer in pairs]
            bound_s = best_shares(asked).bound_s
            print(f"{name:20} {mib:5}", *cells, f"{once['weft'].time_s * 1e6:9.1f} {bound_s * 1e6:9.1f}")
            for key, one in once.items():
                runs[key].append(one)
    for key, found in runs.items():
        faster = [base.time_s / one.time_s for base, one in zip(runs["baseline"], found, strict=True)]
        print(
            f"{key}: speedup {statistics.geometric_mean(faster):.3f} in the geometric mean, {max(faster):.3f}"
            f" at most; mean utilization {statistics.mean(one.utilization for one in found):.2%}"
        )
    near = [error for error in errors if error < NEAR]
    return {
        "astra_sim_cases": len(errors),
        "astra_sim_near_cases": len(near),
        "astra_sim_near_error": max(near),
        "astra_sim_worst_error": max(errors),
    }


def latency(tiny: bool) -> Figures:
    print("All-reduce of 100 MiB with table 2's latencies, against figure 8")
    print("  baseline, FIFO, SCF: latencies overlap, the order within dimensions is found on the way")
    print("  FIFO*, SCF*: the order is found without latency and kept (Themis, section 4.6.2)")
    print("  once: the time without latency, and 1.5 times one pass through all dimensions, a ring's both ways")
    off: dict[str, list[float]] = {"baseline": [], "fifo_kept": [], "scf": [], "scf_kept": []}
    for name, figure in list(FIGURE_8.items())[: 1 if tiny else None]:
        asked = request("all-reduce", 100 * MIB, dimensions(name))
        still = request("all-reduce", 100 * MIB, dimensions(name, 1))
        orders = themis(still, variant="astra-sim")
        without = [time_schedule(baseline(still), active=1)]
        without += [time_schedule(orders, rule=rule, active=1) for rule in ("astra-fifo", "astra-scf")]
        on_the_way = [time_schedule(baseline(asked), active=None)]
        moved = replace(orders, request=asked)
        on_the_way += [time_schedule(moved, rule=rule, active=None) for rule in ("fifo", "scf")]
        kept = [time_schedule(replace(moved, ranks=one.ranks)) for one in without[1:]]
        one_pass = zip(asked.latencies_s("reduce-scatter"), asked.dimensions, strict=True)
        once_s = 1.5 * sum(
            one.size / 2 * one.latency_s if one.kind == "ring" else latency_s for latency_s, one in one_pass
        )
        print(
            f"{name:20}",
            *_off([one.time_s for one in on_the_way], figure),
            " *",
            *_off([one.time_s for one in kept], figure[1:]),
            " once",
            *_off([one.time_s + once_s for one in without], figure),
        )
        times = (on_the_way[0], kept[0], on_the_way[2], kept[1])
        for key, one, value in zip(off, times, (figure[0], *figure[1:], figure[2]), strict=True):
            off[key].append(abs(one.time_s * 1e6 / value - 1))
    return {f"figure_8_{key}_worst_error": max(values) for key, values in off.items()}


def _off(seconds: list[float], figure: tuple[int, ...]) -> list[str]:
    return [f"{one * 1e6 / value - 1:+6.1%}" for one, value in zip(seconds, figure, strict=True)]


def workloads(tiny: bool) -> Figures:
    print("Speedup of an iteration by Themis (SCF) over the baseline, 1 ns a hop; figure 12; and by Weft")
    chosen = {name: WORKLOADS.get(name) or workload(name) for name in (["gnmt"] if tiny else FIGURE_12)}
    found = {name: report_workload(name, work, FIGURE_12[name]) for name, work in chosen.items()}
    figures = {f"figure_12_{name}_worst_error": error for name, error in found.items()}
    if not tiny:
        other = report_workload("resnet-152 *", _resnet_like_the_paper(), FIGURE_12["resnet-152"])
        figures["figure_12_resnet-152_like_the_paper_worst_error"] = other
        print("* gradients of ResNet-152 reduced at once, computation as long as the public input's ResNet-50")
    return figures


def _resnet_like_the_paper() -> Workload:
    tasks = (
        Task(name="computation", seconds=workload("resnet-50").compute_s),
        Task(name="gradients", communication=Communication(kind="all-reduce", bytes=120.4e6), waits=(0,)),
    )
    return Workload(name="resnet-152", tasks=tasks)


def report_workload(name: str, workload: Workload, figure: tuple[float, ...]) -> float:
    """Print the speedups; the worst relative error against the figure."""
    ratios, ours, seconds = [], [], 0.0
    for platform in PLATFORMS:
        dims = dimensions(platform, 1)
        names = ["ring" if one.kind == "ring" else None for one in dims]
        if name == "dlrm":  # ASTRA-sim's all-to-all on a ring does not count hops
            dims = [replace(one, kind="switch") if one.kind == "ring" else one for one in dims]
        begin = time.process_time()
        run_policies(workload, dims, ("themis",), algorithms=names)  # type: ignore[arg-type]
        seconds = max(seconds, time.process_time() - begin)
        runs = run_policies(workload, dims, ("baseline", "themis", "weft"), algorithms=names)  # type: ignore[arg-type]
        ratios.append(runs["baseline"].iteration_s / runs["themis"].iteration_s)
        ours.append(runs["baseline"].iteration_s / runs["weft"].iteration_s)
    print(f"{name:15}", *(f"{one:6.3f} ({one / value - 1:+.1%})" for one, value in zip(ratios, figure, strict=True)))
    print(
        f"{'':15} geometric mean {statistics.geometric_mean(ratios):.3f}, figure"
        f" {statistics.geometric_mean(figure):.3f}, weft {statistics.geometric_mean(ours):.3f};"
        f" at most {seconds:.2f} s an iteration"
    )
    return max(abs(one / value - 1) for one, value in zip(ratios, figure, strict=True))


def random_requests(count: int, seed: int = 0) -> Iterator[Request]:
    """Random collectives on 2 to 5 dimensions."""
    rng = random.Random(seed)
    for _ in range(count):
        width, dims = rng.choice([50, 100, 200, 400, 900]) * 1e9, []
        for number in range(rng.randint(2, 5)):
            kind = rng.choice(["ring", "fully-connected", "switch"])
            size = rng.choice([2, 3, 4, 8] if kind == "ring" else [2, 4, 8, 16])
            width = width / rng.choice([0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128]) if number else width
            dims.append(
                Dimension(
                    size=size,
                    kind=kind,  # type: ignore[arg-type]
                    bandwidth_Bps=min(max(width, 0.5e9), 2e12),
                    latency_s=rng.choice([20e-9, 700e-9, 1.7e-6]),
                )
            )
        kind = rng.choice(["all-reduce", "all-reduce", "reduce-scatter", "all-gather"])
        yield request(kind, rng.choice([1, 10, 100, 500, 1000, 10240]) * MIB, dims)


def grid(tiny: bool) -> Figures:
    count = 5 if tiny else 500
    print(f"{count} random networks and collectives, latencies overlapped")
    gaps, themis_gaps, slower, seconds = [], [], 0, []
    for asked in random_requests(count):
        begin = time.process_time()
        ours = schedule(asked, "weft", active=None)
        seconds.append(time.process_time() - begin)
        bound_s = best_shares(asked).bound_s
        peers = [one.time_s for name, one in compare(asked, active=None).items() if name != "weft"]
        slower += ours.time_s > min(peers) * (1 + 1e-9)
        assert ours.time_s >= bound_s * (1 - 1e-9)
        if asked.bytes >= 100 * MIB:
            gaps.append(ours.time_s / bound_s - 1)
            themis_gaps.append(min(peers) / bound_s - 1)
    print(f"slower than the baseline or a variant of Themis: {slower} of {count}")
    print(
        f"over the bound at 100 MiB and more ({len(gaps)}): mean {statistics.mean(gaps):.2%},"
        f" median {statistics.median(gaps):.2%}, worst {max(gaps):.1%};"
        f" the best of the others: mean {statistics.mean(themis_gaps):.1%}, worst {max(themis_gaps):.0%}"
    )
    print(f"seconds to schedule: median {statistics.median(seconds):.3f}, most {max(seconds):.3f}")
    return {
        "random_networks": count,
        "random_slower": slower,
        "random_over_bound_mean": statistics.mean(gaps),
        "random_over_bound_worst": max(gaps),
        "random_others_over_bound_mean": statistics.mean(themis_gaps),
    }


def tacos(tiny: bool) -> Figures:
    print("All-gather of 1 GiB, 50 GiB/s a link and direction, 0.5 us: beside TACOS 1.3.0")
    faster, slowest_s = [], 0.0
    for kind, shape, us, solve_s in TACOS[: 1 if tiny else None]:
        dims = [
            Dimension(size=size, kind="ring" if kind == "torus" else "line", bandwidth_Bps=100 * GB, latency_s=0.5e-6)
            for size in shape
        ]
        asked = request("all-gather", GB, dims)
        begin = time.process_time()
        ours = schedule(asked, "weft")
        seconds = time.process_time() - begin
        took = ours.time_s * 1e6
        faster.append(us / took - 1)
        slowest_s = max(slowest_s, seconds)
        print(
            f"{kind:6} {'x'.join(map(str, shape)):8} {took:9.2f} us ({took / us - 1:+.2%}),"
            f" bound {best_shares(asked).bound_s * 1e6:9.2f}; found in {seconds:.3f} s (TACOS {solve_s} s)"
        )
    return {
        "tacos_cases": len(faster),
        "tacos_least_faster": min(faster),
        "tacos_most_faster": max(faster),
        "tacos_slowest_cpu_s": slowest_s,
    }


def anew(asked: Request, chunks: int | None) -> None:
    """Schedule without the bound that is remembered."""
    best_shares.cache_clear()
    schedule(asked, "weft", chunks=chunks)


def speed(tiny: bool) -> Figures:
    asked = request("all-reduce", 1000 * MIB, dimensions("4D-Ring_SW_SW_SW"))
    order = themis(asked)
    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "themis": ("Themis' orders, 64 chunks x 4 dimensions", partial(themis, asked)),
        "simulation": ("one simulation of them, ranks alike", partial(time_schedule, order, rule="scf")),
        "weft_64_chunks": ("Weft's schedule, 64 chunks", partial(anew, asked, 64)),
        "weft": ("Weft's schedule, any number of chunks", partial(anew, asked, None)),
    }
    figures = {}
    for key, (title, call) in calls.items():
        call()
        figures[f"{key}_cpu_ms"] = 1e3 * statistics.median(bench.cpu_s(call) for _ in range(1 if tiny else 15))
        print(f"{title:45} {figures[f'{key}_cpu_ms']:8.2f} ms")
    return figures


SECTIONS = (platforms, latency, workloads, grid, tacos, speed)


def main() -> None:
    options, figures = bench.parser(__doc__).parse_args(), {}
    for section in SECTIONS:
        figures |= section(options.tiny)
        print()
    bench.record(options, figures)


if __name__ == "__main__":
    main()
