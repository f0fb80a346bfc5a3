"""Iterations whose all-reduces switches add up, where all tiers of the cluster can."""

from __future__ import annotations

from dataclasses import replace

import pytest

import weft
from weft.cluster import Cluster, resolve
from weft.cluster.calibration import calibration

LAYOUT = "tp=1,dp=64,zero=0,mbs=1"


def sharp(cluster: Cluster) -> Cluster:
    return replace(cluster, tiers=tuple(replace(tier, in_network_reduction=True) for tier in cluster.tiers))


def iteration(cluster: Cluster, fabric: str, **changes: object):
    return weft.simulate("llama-3.2-1b", cluster, layout=LAYOUT, fabric=fabric, radix=16, batch=64, **changes).result


def test_switches_add_up_where_all_tiers_can() -> None:
    plain, faster = (
        iteration(one, "fat-tree", routing="spray") for one in (resolve("h100-64"), sharp(resolve("h100-64")))
    )
    assert {row.algorithm for row in plain.collectives if row.kind == "all-reduce"} == {"rings"}
    assert {row.algorithm for row in faster.collectives if row.kind == "all-reduce"} == {"in-network"}
    assert faster.iteration_s < plain.iteration_s
    row = max((one for one in faster.collectives if one.kind == "all-reduce"), key=lambda one: one.bytes)
    assert row.slowdown == pytest.approx(1)
    assert row.alone_s == pytest.approx(max(row.bytes / 8 / out_Bps(), row.bytes * 9 / 8 / inside_Bps()), rel=1e-6)
    assert row.simulated_s >= row.closed_form_s * (1 - 1e-9)


def inside_Bps() -> float:
    return 450e9 * calibration("h100").scale_up_efficiency


def out_Bps() -> float:
    return 50e9 * calibration("h100").scale_out_efficiency


def test_the_switch_of_a_domain_stands_beside_the_ring() -> None:
    """NVLS: (P + 1) / P of the buffer over each port, where the ring sends 2 (P - 1) / P; in no total."""
    found = weft.simulate("llama-3.2-1b", "h100-16", layout="tp=8,dp=2", batch=64).result
    ring, switch = (
        next(row for row in found.collectives if row.axes == "x" and row.used == used and row.kind == "all-reduce")
        for used in (True, False)
    )
    assert (ring.algorithm, switch.algorithm) == ("ring", "in-network")
    assert switch.alone_s == pytest.approx(ring.alone_s * 9 / 14)
    assert switch.alone_s == pytest.approx(switch.bytes * 9 / 8 / inside_Bps())


def test_one_tree_a_slice_collides_where_spread_ones_do_not() -> None:
    spread, hashed = (iteration(sharp(resolve("h100-64")), "fat-tree", routing=one) for one in ("spray", "ecmp"))
    assert hashed.iteration_s >= spread.iteration_s


def test_every_flow_in_time_keeps_to_messages_between_ranks() -> None:
    found = iteration(sharp(resolve("h100-64")), "rail-only", routing="spray", full=True)
    assert "in-network" not in {row.algorithm for row in found.collectives}


@pytest.mark.slow
def test_the_search_on_a_network_knows_it_too() -> None:
    """The best layout's time is that of its simulation, and no better than the search's bound."""
    cluster = sharp(resolve("h100-64"))
    found = weft.plan("llama-3.2-1b", cluster, batch=64, fabric="fat-tree", radix=16, routing="spray", top=1)
    best = found.layouts[0]
    alone = weft.simulate(
        "llama-3.2-1b", cluster, layout=best.layout, fabric="fat-tree", radix=16, routing="spray", batch=64
    ).result
    assert best.iteration_s == pytest.approx(alone.iteration_s, rel=1e-9)
