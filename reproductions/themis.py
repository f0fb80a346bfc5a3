"""Themis (arXiv 2110.04478, version 3): all-reduces and training iterations on six platforms, beside the paper.

    python reproductions/themis.py

The paper's figures are read off its vector graphics; its averages are geometric means.  Platforms are those of its
table 2, all of 1,024 accelerators.  Each link takes 1 ns a hop, as in the inputs that the authors published: with
table 2's latencies and one chunk at a time nobody's simulator comes near the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from paper import show
from workloads import WORKLOADS

import weft

MIB = 2**20
KINDS = {"S": "switch", "F": "fully-connected", "R": "ring"}
PLATFORMS = {
    "2D": ("SS", (16, 64), (150, 100)),
    "3D homo": ("SSS", (16, 8, 8), (100, 100, 100)),
    "3D hetero": ("SSS", (16, 8, 8), (200, 100, 50)),
    "3D FC-ring": ("FRS", (8, 16, 8), (175, 100, 50)),
    "4D RSSS": ("RSSS", (4, 4, 8, 8), (250, 200, 100, 50)),
    "4D RFRS": ("RFRS", (4, 8, 4, 8), (375, 175, 150, 100)),
}
"""Kinds, sizes, and GB/s (2^30 bytes) of an accelerator and direction: table 2 (S: switch, F: all pairs, R: ring)."""
CURRENT = ("SS", (16, 64), (150, 12.5))
"""The network of today of figure 4."""
POLICIES = {"baseline": "baseline", "FIFO": "themis fifo", "SCF": "themis paper-scf", "Weft": "weft"}
FIGURE_8_US = {
    100: ((1241, 903, 817), (1847, 774, 694), (932, 584, 588), (993, 787, 655), (600, 376, 356), (401, 292, 267)),
    500: (
        *((6125, 4437, 4014), (9171, 3806, 3403), (4595, 2859, 2883)),
        *((4899, 3786, 3155), (2946, 1779, 1726), (1966, 1418, 1305)),
    ),
    1000: (
        *((12230, 8853, 8008), (18327, 7596, 6790), (9175, 5703, 5750)),
        *((9782, 7558, 6292), (5878, 3543, 3439), (3922, 2825, 2600)),
    ),
}
"""Microseconds of an all-reduce of so many MiB: baseline, FIFO, SCF, by platform."""
FIGURE_10 = {
    "3D hetero": ((47.3, 61.9, 53.8, 67.1, 93.0, 91.0, 91.5, 93.2), (57.8, 74.0, 76.4, 88.7, 92.5, 93.1, 92.6, 93.2)),
    "4D RFRS": ((38.9, 76.3, 67.3, 83.5, 80.8, 86.0, 87.5, 82.4), (39.4, 59.2, 75.3, 81.8, 88.0, 89.7, 90.7, 89.2)),
}
"""Bandwidth used in percent by FIFO and SCF, all-reduce of 100 MiB in 4 to 512 chunks."""
CHUNKS = (4, 8, 16, 32, 64, 128, 256, 512)
FIGURE_12 = {
    "resnet-152": (1.399, 2.248, 1.409, 1.395, 1.394, 1.261),
    "gnmt": (1.263, 1.784, 1.246, 1.243, 1.213, 1.125),
    "dlrm": (1.262, 1.773, 1.248, 1.239, 1.214, 1.125),
    "transformer-1t": (1.309, 1.528, 1.195, 1.185, 1.212, 1.119),
}
"""Speedup of an iteration by Themis with SCF, by platform."""


Shape = tuple[str, tuple[int, ...], tuple[float, ...]]


def dimensions(shape: Shape) -> str:
    """The dimensions of a platform, inner to outer; a switch is two hops."""
    return ",".join(
        f"{KINDS[kind]}:{size}:{width}GiB/s:{2 if kind == 'S' else 1}ns"
        for kind, size, width in zip(*shape, strict=True)
    )


def policies(shape: Shape, mib: int, chunks: int = 64) -> dict[str, Any]:
    """An all-reduce under each policy, one chunk at a time."""
    found: Any = weft.schedule(
        "all-reduce", mib * MIB, dims=dimensions(shape), policy="baseline", chunks=chunks, active=1, compare=True
    )
    return {name: found.others[policy] for name, policy in POLICIES.items()}


def ratio(value: float, figure: float) -> str:
    """A value, and how far it is from the paper's."""
    return f"{value:.3f} ({value / figure - 1:+.1%})"


def figures_4_8_11() -> None:
    """Times, speedups and bandwidth used of all-reduces."""
    times, speedups, used = [], {"FIFO": [], "SCF": [], "Weft": []}, {name: [] for name in POLICIES}
    for mib, by_platform in FIGURE_8_US.items():
        for (name, shape), paper in zip(PLATFORMS.items(), by_platform, strict=True):
            runs = policies(shape, mib)
            row = {"platform": name, "MiB": str(mib)}
            for policy, microseconds in zip(("baseline", "FIFO", "SCF"), paper, strict=True):
                ours = runs[policy].time_s * 1e6
                row |= {
                    f"{policy}, paper": str(microseconds),
                    "Weft's": f"{ours:.0f} ({ours / microseconds - 1:+.1%})",
                }
                row[f"{policy}"] = row.pop("Weft's")
            row["Weft's own schedule"] = f"{runs['Weft'].time_s * 1e6:.0f}"
            times.append(row)
            for policy in speedups:
                speedups[policy].append(runs["baseline"].time_s / runs[policy].time_s)
            for policy in used:
                used[policy].append(runs[policy].utilization)
    show("Time of an all-reduce in microseconds", "figure 8", ["64 chunks, 1 ns a hop, one chunk at a time"], times)
    paper_speedup = {"FIFO": 1.58, "SCF": 1.72, "Weft": None}
    paper_used = {"baseline": "56.31 %", "FIFO": "87.67 %", "SCF": "95.14 %", "Weft": "-"}
    show(
        "Speedup over the baseline (geometric mean), and bandwidth used (mean)",
        "section 6.1, figure 11",
        ["the 18 all-reduces above"],
        [
            {
                "policy": policy,
                "speedup, paper": "1" if policy == "baseline" else str(paper_speedup[policy] or "-"),
                "speedup": "1" if policy == "baseline" else f"{statistics.geometric_mean(speedups[policy]):.3f}",
                "at most, paper": "2.70" if policy == "SCF" else "-",
                "at most": "1" if policy == "baseline" else f"{max(speedups[policy]):.3f}",
                "used, paper": paper_used[policy],
                "used": f"{statistics.mean(used[policy]):.1%}",
            }
            for policy in used
        ],
    )
    current = policies(CURRENT, 1000)["baseline"].utilization
    show(
        "Bandwidth that the baseline uses",
        "figure 4",
        [],
        [
            {"network": "of today, 16 x 64 at 1,200 and 100 Gb/s", "paper": "97.7 %", "Weft": f"{current:.1%}"},
            {"network": "the six, mean", "paper": "59.7 %", "Weft": f"{statistics.mean(used['baseline']):.1%}"},
            {"network": "the six, least", "paper": "35.1 %", "Weft": f"{min(used['baseline']):.1%}"},
        ],
        ["Over the sizes of figure 8; which sizes figure 4 takes is not said."],
    )


def figure_10() -> None:
    """Bandwidth used by the number of chunks."""
    rows = []
    for name, paper in FIGURE_10.items():
        for policy, percents in zip(("FIFO", "SCF"), paper, strict=True):
            runs = [policies(PLATFORMS[name], 100, chunks)[policy].utilization for chunks in CHUNKS]
            rows.append({"platform": name, "policy": f"{policy}, paper"} | _cells(percents))
            rows.append({"platform": "", "policy": policy} | _cells([100 * run for run in runs]))
    show("Bandwidth used in percent, by the number of chunks", "figure 10", ["an all-reduce of 100 MiB"], rows)


def _cells(percents: Sequence[float]) -> dict[str, str]:
    return {str(chunks): f"{percent:.1f}" for chunks, percent in zip(CHUNKS, percents, strict=True)}


def figure_12() -> None:
    """Speedup of training iterations."""
    rows = []
    for name, paper in FIGURE_12.items():
        ours = [iteration_speedup(name, shape) for shape in PLATFORMS.values()]
        row = {"workload": name}
        row |= {place: ratio(value, figure) for place, value, figure in zip(PLATFORMS, ours, paper, strict=True)}
        row["mean, paper"] = f"{statistics.geometric_mean(paper):.2f}"
        row["mean"] = f"{statistics.geometric_mean(ours):.2f}"
        rows.append(row)
    show(
        "Speedup of an iteration by Themis with SCF",
        "figure 12",
        [
            "a layer's gradients are reduced when they are there; computation as in the authors' public inputs",
            "ResNet-152's layers are not public: those of the model, its time scaled from the public ResNet-50",
            "an all-to-all on a ring does not count hops, as in the authors' simulator",
        ],
        rows,
        ["ResNet-152 does not agree on every platform: what hides behind its computation hangs on unpublished times."],
    )


def iteration_speedup(name: str, shape: Shape) -> float:
    """The baseline's iteration over Themis'."""
    algorithms = ",".join("ring" if kind == "R" else "-" for kind in shape[0])
    if name == "dlrm":
        shape = (shape[0].replace("R", "S"), *shape[1:])
    found: Any = weft.schedule(workload=WORKLOADS.get(name, name), dims=dimensions(shape), algorithms=algorithms)
    return float(found.runs["baseline"].iteration_s / found.runs["themis"].iteration_s)


if __name__ == "__main__":
    figures_4_8_11()
    figure_10()
    figure_12()
