"""Exports to htsim, read back as it reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.errors import BadInput, Unsupported
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, torus
from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.simulators import htsim
from weft.interop.traffic.flow_tables import read_matrix
from weft.routing.traffic import JobTraffic, job_traffic

TREES = [
    clos.build(16, radix=4, tiers=3, bandwidth_Bps=12.5e9),
    clos.build(54, radix=6, tiers=3, bandwidth_Bps=50e9),
    clos.build(8, radix=4, tiers=2, bandwidth_Bps=25e9),
    clos.build(24, radix=8, tiers=2, bandwidth_Bps=25e9, oversubscription=3.0),
    clos.build(16, radix=16, tiers=2, bandwidth_Bps=25e9),
]


def ring(fabric: Fabric, bytes_: float = 1e6) -> JobTraffic:
    hosts = np.arange(fabric.accelerators)
    return job_traffic(hosts, np.roll(hosts, 3), np.full(len(hosts), bytes_))


def settings(text: str) -> tuple[dict[str, int], list[dict[str, int]]]:
    """The head of a topology file, and its tiers."""
    head: dict[str, int] = {}
    tiers: list[dict[str, int]] = []
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "Tier":
            tiers.append({})
        elif name:
            (tiers[-1] if tiers else head)[name] = int(value)
    return head, tiers


@pytest.mark.parametrize("fabric", TREES, ids=lambda one: f"{one.accelerators}-{one.nodes}")
def test_htsim_builds_as_many_switches_and_cables(fabric: Fabric) -> None:
    head, tiers = settings(htsim.write_topology(htsim.tree_of(fabric)))
    below, cables = head["Nodes"], 0
    assert head["Tiers"] == len(tiers)
    for number, tier in enumerate(tiers):
        up = 1 if number == 0 else tiers[number - 1]["Radix_Up"]
        assert below * up % tier["Radix_Down"] == 0
        cables += below * up
        below = below * up // tier["Radix_Down"]
        links = fabric.tier == number + 1
        assert tier["Downlink_speed_Gbps"] * 1e9 / 8 == fabric.capacity_Bps[links][0]
        ends = np.unique(np.stack([fabric.source[links], fabric.target[links]]), axis=1)
        assert ends.shape[1] * tier.get("Bundle", 1) == links.sum()
    outside = fabric.tier > SCALE_UP
    assert cables == fabric.cables[outside].sum() // 2
    assert head["Nodes"] % head["Podsize"] == 0
    assert tiers[0].get("Oversubscribed", 1) == (3 if fabric.accelerators == 24 else 1)


def test_hosts_are_numbered_leaf_by_leaf(tmp_path: Path) -> None:
    fabric = TREES[0]
    order = np.random.default_rng(1).permutation(16)
    number = np.concatenate([order, np.arange(16, fabric.nodes)])
    mixed = replace(fabric, source=number[fabric.source], target=number[fabric.target])
    traffic = ring(mixed)
    tree = htsim.tree_of(mixed)
    leaf = np.full(16, -1)
    first = mixed.source < 16
    leaf[mixed.source[first]] = mixed.target[first]
    assert len(np.unique(leaf[tree.hosts].reshape(-1, 2)[:, 0])) == 8
    assert (leaf[tree.hosts].reshape(-1, 2) == leaf[tree.hosts].reshape(-1, 2)[:, :1]).all()
    path = tmp_path / "a.cm"
    path.write_text(htsim.write_matrix(mixed, traffic, tree))
    found = read_matrix(path)
    assert tree.hosts[found.source].tolist() == traffic.source.tolist()
    assert tree.hosts[found.target].tolist() == traffic.target.tolist()
    assert found.bytes.tolist() == traffic.bytes.tolist()


def test_fabrics_that_htsim_does_not_build() -> None:
    domain = Dimension(size=2, kind="switch", bandwidth_Bps=1e11, latency_s=0.0)
    broken = TREES[0].failed(links=np.array([TREES[0].links - 1]))
    short = clos.build(14, radix=4, tiers=3, bandwidth_Bps=12.5e9)
    slow = replace(TREES[0], capacity_Bps=TREES[0].capacity_Bps * 0.8623)
    grid = torus.build((4, 4), bandwidth_Bps=12.5e9)
    for fabric, words in (
        (broken, "down"),
        (short, "cables|joins"),
        (slow, "not alike or of 86.23 Gb/s"),
        (grid, "no fat-tree"),
    ):
        with pytest.raises(Unsupported, match=words):
            htsim.write(fabric, ring(fabric))
    with pytest.raises(Unsupported, match="no whole ratio"):
        htsim.write_topology(htsim.tree_of(TREES[0])._replace(up=(3, 2)))
    with pytest.raises(Unsupported, match="over 2,147,483,647"):
        htsim.write(TREES[0], ring(TREES[0], 3e9))
    inside = clos.build(16, radix=4, tiers=3, bandwidth_Bps=12.5e9, scale_up=domain)
    near = job_traffic(np.array([0]), np.array([1]), np.array([1e6]))
    with pytest.raises(BadInput, match="leaves a scale-up domain"):
        htsim.write(inside, near)
