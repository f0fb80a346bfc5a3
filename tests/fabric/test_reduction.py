"""Trees of switches that add up: each joins all its ranks to one root, over links that lead up and back."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import resolve
from weft.errors import Unsupported
from weft.fabric import Fabric
from weft.fabric.catalogue import for_cluster
from weft.fabric.reduction import Reductions, Trees

KINDS = ("rail-optimized", "fat-tree", "rail-only")


def fabric(kind: str, count: int = 64, radix: int = 8) -> Fabric:
    return for_cluster(kind, resolve(f"h100-{count}"), radix=radix)


def taken(found: Reductions, one: int) -> tuple[np.ndarray, np.ndarray]:
    at = slice(found.routes.indptr[one], found.routes.indptr[one + 1])
    return found.routes.links[at], found.routes.usage[at]


@given(st.sampled_from(KINDS), st.integers(0, 2**20), st.data())
def test_a_tree_joins_its_ranks_over_as_few_links_as_a_tree_has(kind: str, seed: int, data: st.DataObject) -> None:
    net = fabric(kind)
    rail = data.draw(st.integers(0, 7))
    domains = data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=8, unique=True))
    ranks = np.array(domains) * 8 + rail
    found = Trees(net, seed=seed).reductions(ranks[None], len(ranks))
    assert len(found.group) == 1
    links, usage = taken(found, 0)
    assert (usage == 1).all()
    pairs = set(zip(net.source[links].tolist(), net.target[links].tolist(), strict=True))
    assert {(b, a) for a, b in pairs} == pairs
    graph = networkx.Graph(pairs)
    assert networkx.is_tree(graph)
    leaves = {node for node in graph if node < net.accelerators}
    assert leaves == set(ranks.tolist())
    assert all(graph.degree(node) == 1 for node in leaves)


@pytest.mark.parametrize("kind", KINDS)
def test_several_ranks_of_a_domain_have_a_slice_each(kind: str) -> None:
    """Each port of the domain carries (m + 1) / m of the buffer each way, each NIC 1 / m of it."""
    net = fabric(kind)
    found = Trees(net).reductions(np.arange(64)[None], 8)
    assert found.bytes.tolist() == [1 / 8] * 8
    assert found.source.tolist() == list(range(8))
    carried = np.bincount(
        found.routes.links,
        weights=np.repeat(found.bytes, np.diff(found.routes.indptr)) * found.routes.usage,
        minlength=net.links,
    )
    port = (net.source < 64) | (net.target < 64)
    inside = net.tier == -1 if (net.tier == -1).any() else net.tier == net.tier.min()
    assert carried[port & inside] == pytest.approx(9 / 8)
    assert carried[port & ~inside] == pytest.approx(1 / 8)


def test_spread_trees_take_every_root_alike() -> None:
    """On a Clos of two tiers each leaf sends 1 / spines of a slice to every spine, an even part over each cable."""
    net = fabric("fat-tree", radix=16)
    spines = net.nodes_of("spine")
    found = Trees(net, spread=True).reductions(np.arange(0, 64, 8)[None], 8)
    links, usage = taken(found, 0)
    up = np.isin(net.target[links], spines)
    assert set(net.target[links[up]].tolist()) == set(spines.tolist())
    cables = np.count_nonzero(net.source == spines[0]) // len(net.nodes_of("leaf"))
    assert cables == 2
    assert usage[up] == pytest.approx(1 / len(spines) / cables)
    drawn = Trees(net, seed=3).reductions(np.arange(64)[None], 8).routes.links
    drawn = np.unique(drawn[np.isin(net.target[drawn], spines)])
    assert len(drawn) > len(np.unique(net.source[drawn] * net.nodes + net.target[drawn]))


def test_failed_links_are_not_taken_and_what_no_switch_joins_is_refused() -> None:
    net = fabric("fat-tree", radix=16)
    spines = net.nodes_of("spine")
    left = net.failed(nodes=spines[1:])
    found = Trees(left, seed=3).reductions(np.arange(0, 64, 8)[None], 8)
    assert left.up[found.routes.links].all()
    assert np.isin(spines[0], net.target[found.routes.links])
    with pytest.raises(Unsupported, match="no switch"):
        Trees(net.failed(nodes=spines)).reductions(np.arange(0, 64, 8)[None], 8)
    torus = for_cluster("rail-only", resolve("gh200-64"), radix=64)
    with pytest.raises(Unsupported, match="no switch joins the ranks of a scale-up domain"):
        Trees(torus).reductions(np.arange(64)[None], 16)
