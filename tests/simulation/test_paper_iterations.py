"""The speedup of an iteration by Themis (SCF) over the baseline on the platforms of arXiv 2110.04478v3, table 2;
``tests/reproductions`` has its figure 12."""

import pytest

from weft.fabric.dimension import Dimension
from weft.model.workload import workload
from weft.simulation.workload import run_policies

KINDS = {"SW": "switch", "FC": "fully-connected", "Ring": "ring"}
TABLE_2 = {
    "SW_SW": ((16, 64), (1200, 800)),
    "SW_SW_SW homo": ((16, 8, 8), (800, 800, 800)),
    "SW_SW_SW hetero": ((16, 8, 8), (1600, 800, 400)),
    "FC_Ring_SW": ((8, 16, 8), (1400, 800, 400)),
    "Ring_SW_SW_SW": ((4, 4, 8, 8), (2000, 1600, 800, 400)),
    "Ring_FC_Ring_SW": ((4, 8, 4, 8), (3000, 1400, 1200, 800)),
}
"""Sizes, and Gb/s (2^30 bits) an accelerator and direction."""
RESNET_50 = (1.307, 1.934, 1.305, 1.306, 1.280, 1.166)
"""Speedups that an independent computation found for the public input."""


def hops_of(kinds):
    return [2 if kind == "switch" else 1 for kind in kinds]


def platform(name):
    """A platform with the 1 ns a hop of the published inputs; a switch is two hops."""
    kinds = [KINDS[part] for part in name.split()[0].split("_")]
    return [
        Dimension(size=size, kind=kind, bandwidth_Bps=gbit * 2**30 / 8, latency_s=hops * 1e-9)
        for kind, size, gbit, hops in zip(kinds, *TABLE_2[name], hops_of(kinds), strict=True)
    ]


def speedup(name, network):
    algorithms = ["ring" if one.kind == "ring" else None for one in network]
    runs = run_policies(workload(name), network, ("baseline", "themis"), algorithms=algorithms)
    return runs["baseline"].iteration_s / runs["themis"].iteration_s


def test_resnet_50_of_the_first_version():
    """arXiv 2110.04478v1 has 1.49 on average and 1.96 at most; on the platforms of v3 the most is near."""
    assert [speedup("resnet-50", platform(one)) for one in TABLE_2] == pytest.approx(RESNET_50, abs=0.005)


def test_weft_is_between_themis_and_the_ideal():
    network = platform("FC_Ring_SW")
    runs = {policy: run.iteration_s for policy, run in run_policies(workload("gnmt"), network).items()}
    assert runs["ideal"] <= runs["weft"] <= runs["themis"] < runs["baseline"]
