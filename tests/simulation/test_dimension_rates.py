"""What ranks reach on each dimension of a schedule, on fabrics with all of its links and on others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import catalogue as clusters
from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.per_rank import play_ranks, rank_bandwidths
from weft.collectives.schedules.themis import baseline
from weft.collectives.schedules.timing import time_schedule
from weft.errors import BadInput
from weft.fabric import catalogue
from weft.fabric.catalogue import for_cluster
from weft.fabric.dimension import KINDS, Dimension
from weft.fabric.families import torus
from weft.fabric.placement import Placement
from weft.simulation.dimension_rates import dimension_rates


def nominal(asked):
    one = np.array([dimension.bandwidth_Bps for dimension in asked.dimensions])
    return np.repeat(one[:, None], asked.accelerators, axis=1)


@given(st.integers(0, 2**32 - 1))
def test_a_fabric_of_the_dimensions_has_their_bandwidths(seed):
    """Links of its own for every dimension: no two stages meet."""
    rng = np.random.default_rng(seed)
    dimensions = [
        Dimension(
            size=int(rng.integers(1, 7)), kind=str(rng.choice(KINDS)), bandwidth_Bps=float(10 ** rng.uniform(9, 11.5))
        )
        for _ in range(int(rng.integers(1, 4)))
    ]
    dimensions.append(replace(dimensions[0], size=2))
    wanted = [
        str(rng.choice(["direct", "ring", "halving-doubling"])) if one.kind == "switch" else None for one in dimensions
    ]
    asked = request("all-reduce", 1e6, dimensions, algorithms=wanted)
    found = dimension_rates(asked, catalogue.hierarchical(dimensions))
    np.testing.assert_allclose(found, nominal(asked), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_each_kind_alone(kind, size):
    asked = request("all-reduce", 1e6, [Dimension(size=size, kind=kind, bandwidth_Bps=40e9)])
    np.testing.assert_allclose(dimension_rates(asked, catalogue.hierarchical(asked.dimensions)), 40e9, rtol=1e-9)


def test_the_platforms_of_themis_with_rings_and_all_pairs():
    dimensions = (
        Dimension(size=4, kind="ring", bandwidth_Bps=375e9),
        Dimension(size=8, kind="fully-connected", bandwidth_Bps=175e9),
        Dimension(size=4, kind="ring", bandwidth_Bps=150e9),
        Dimension(size=2, kind="switch", bandwidth_Bps=100e9),
    )
    asked = request("all-reduce", 1e8, dimensions)
    np.testing.assert_allclose(dimension_rates(asked, catalogue.hierarchical(dimensions)), nominal(asked), rtol=1e-9)


def on_an_h100_cluster(*outer):
    """Scale-up domains of 8, and 32 accelerators with a NIC of 50 GB/s each."""
    cluster = clusters.load("h100-32")
    inside, nic = cluster.tiers[0].bandwidth_Bps, cluster.tiers[1].bandwidth_Bps
    dimensions = [
        Dimension(size=8, kind="switch", bandwidth_Bps=inside),
        *(Dimension(size=size, kind="switch", bandwidth_Bps=nic) for size in outer),
    ]
    return cluster, request("all-reduce", 1e8, dimensions)


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized", "fat-tree"])
def test_two_dimensions_on_one_nic_have_half_each(kind):
    cluster, asked = on_an_h100_cluster(2, 2)
    fabric = for_cluster(kind, cluster)
    found = dimension_rates(asked, fabric)
    np.testing.assert_allclose(found[0], cluster.tiers[0].bandwidth_Bps, rtol=1e-9)
    np.testing.assert_allclose(found[1:], cluster.tiers[1].bandwidth_Bps / 2, rtol=1e-9)
    cluster, alone = on_an_h100_cluster(4)
    np.testing.assert_allclose(dimension_rates(alone, fabric), nominal(alone), rtol=1e-9)


def test_contention_takes_time():
    """With half of the rate on the outer dimensions a schedule takes longer, twice as long at most."""
    cluster, asked = on_an_h100_cluster(2, 2)
    timed = time_schedule(baseline(asked), active=1)
    speeds = dimension_rates(asked, for_cluster("rail-only", cluster))
    assert (speeds <= rank_bandwidths(timed) * (1 + 1e-9)).all()
    ratio = play_ranks(timed, bandwidth_Bps=speeds).time_s / timed.time_s
    assert 1.2 < ratio <= 2.0 + 1e-9


def test_a_slow_link_slows_its_own_rank():
    """Half of the capacity from rank 3 to its switch: the others keep theirs."""
    dimensions = [Dimension(size=4, kind="switch", bandwidth_Bps=40e9)] * 2
    asked = request("all-reduce", 1e6, dimensions)
    fabric = catalogue.hierarchical(dimensions)
    slow = (fabric.source == 3) & (fabric.tier == 1)
    assert slow.sum() == 1
    hurt = replace(fabric, capacity_Bps=np.where(slow, fabric.capacity_Bps / 2, fabric.capacity_Bps))
    expected = nominal(asked)
    expected[1, 3] /= 2
    np.testing.assert_allclose(dimension_rates(asked, hurt), expected, rtol=1e-9)


def test_a_torus_has_its_rings_and_no_others():
    """Rings along the torus have their links; a ring over 16 in a row of a 4 x 4 torus has to share some."""
    fabric = torus.build((4, 4), bandwidth_Bps=20e9)
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=40e9)
    along = request("all-gather", 1e6, [ring, ring])
    np.testing.assert_allclose(dimension_rates(along, fabric), 40e9, rtol=1e-9)
    across = request("all-gather", 1e6, [replace(ring, size=16)])
    found = dimension_rates(across, fabric)
    assert found.min() < 40e9 * (1 - 1e-9)
    assert (found <= 40e9 * (1 + 1e-9)).all()


def test_a_torus_in_another_order_shares_links():
    """Ranks in the order of the columns still have rings of their own; shuffled ones do not."""
    fabric = torus.build((4, 4), bandwidth_Bps=20e9)
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=40e9)
    along = request("all-gather", 1e6, [ring, ring])
    columns = Placement(accelerators=np.arange(16).reshape(4, 4).T.ravel())
    np.testing.assert_allclose(dimension_rates(along, fabric, placement=columns), 40e9, rtol=1e-9)
    shuffled = Placement(accelerators=np.random.default_rng(1).permutation(16))
    assert dimension_rates(along, fabric, placement=shuffled).min() < 20e9


def test_dimensions_of_one_rank_cost_nothing():
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=40e9)
    asked = request("all-reduce", 1e6, [replace(ring, size=1), ring])
    np.testing.assert_allclose(dimension_rates(asked, catalogue.hierarchical(asked.dimensions)), 40e9, rtol=1e-9)


def test_fewer_ranks_than_the_fabric_has():
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=40e9)
    asked = request("all-reduce", 1e6, [ring])
    np.testing.assert_allclose(dimension_rates(asked, catalogue.hierarchical([ring, ring])), 40e9, rtol=1e-9)


def test_more_ranks_than_the_fabric_has():
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=40e9)
    asked = request("all-reduce", 1e6, [ring, ring])
    with pytest.raises(BadInput, match="16 ranks do not fit on the 4 accelerators"):
        dimension_rates(asked, catalogue.hierarchical([ring]))
