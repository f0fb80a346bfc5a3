"""Fabrics with alike switches as one: sprayed flows fare as on the fabric itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.cluster import load
from weft.errors import BadInput
from weft.fabric import Fabric
from weft.fabric.catalogue import for_cluster, kinds
from weft.fabric.lump import lumped, trunked
from weft.fabric.paths import routes
from weft.reliability.job import stranded_accelerators
from weft.routing.ways import climbs
from weft.simulation.flows.symmetry import transfer

KINDS = kinds()


def fares(fabric: Fabric, source: np.ndarray, target: np.ndarray, bytes_: np.ndarray) -> tuple[np.ndarray, ...]:
    """When flows end, how late their paths are, and what passes each tier."""
    way = routes(fabric, source, target, mode="spray")
    load_bytes = np.bincount(way.links, np.repeat(bytes_, np.diff(way.indptr)) * way.usage, fabric.links)
    end_s = transfer(fabric.capacity_Bps, source, target, bytes_, way).end_s
    return end_s, way.latency_s, np.bincount(fabric.tier, load_bytes, 8)


@given(st.sampled_from(KINDS), st.integers(0, 2**31), st.sampled_from([4, 8, 16]), st.booleans())
def test_sprayed_flows_fare_the_same(kind: str, seed: int, radix: int, broken: bool) -> None:
    """Also where a switch or a NIC has failed."""
    draw = np.random.default_rng(seed)
    fabric = for_cluster(kind, load("h100-64"), radix=16 if kind.startswith("dragonfly") else radix)
    if broken:
        switches = np.arange(fabric.accelerators, fabric.nodes)
        switches = switches[[fabric.roles[role] != "scale-up" for role in fabric.role[switches]]]
        if len(switches):
            fabric = fabric.failed(nodes=draw.choice(switches, 1))
        fabric = fabric.failed(links=np.flatnonzero(fabric.source == 3)[-1:])
    assume(not len(stranded_accelerators(fabric)))
    source, target = draw.integers(0, 64, 40), draw.integers(0, 63, 40)
    target = np.where(target >= source, target + 1, target)
    bytes_ = draw.integers(1, 5, 40) * 1e9
    few = lumped(fabric).fabric
    assert few.nodes <= fabric.nodes
    assert few.capacity_Bps[few.up].sum() == pytest.approx(fabric.capacity_Bps[fabric.up].sum())
    assert few.cables[few.up].sum() == fabric.cables[fabric.up].sum()
    for one, other in zip(fares(fabric, source, target, bytes_), fares(few, source, target, bytes_), strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


def test_a_fabric_without_symmetry_stays_as_it_is() -> None:
    fabric = for_cluster("rail-only", load("h100-64"), radix=8)
    assert lumped(fabric).fabric is fabric


@pytest.mark.parametrize("radix", [8, 16, 32])
def test_parallel_cables_as_one_link(radix: int) -> None:
    """Sprayed flows fare as over each cable; others would take a whole bundle at once, and are refused."""
    fabric = for_cluster("fat-tree", load("h100-64"), radix=radix)
    failed = np.flatnonzero((fabric.source >= 64) & (fabric.target >= 64) & (fabric.tier > 0))[:1]
    fabric = fabric.failed(links=failed)
    few = trunked(fabric).fabric
    ends = few.source * few.nodes + few.target
    assert few.nodes == fabric.nodes
    assert len(np.unique(ends[few.up])) == few.up.sum() < fabric.links
    draw = np.random.default_rng(radix)
    source = draw.integers(0, 64, 60)
    target = (source + draw.integers(1, 64, 60)) % 64
    bytes_ = draw.integers(1, 5, 60) * 1e9
    for one, other in zip(fares(fabric, source, target, bytes_), fares(few, source, target, bytes_), strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    for mode in ("ecmp", "random"):
        with pytest.raises(BadInput, match="has links of several cables"):
            routes(few, source, target, mode=mode)
    with pytest.raises(BadInput, match="has links of several cables"):
        climbs(few)
