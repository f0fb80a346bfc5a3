"""The dimensions of a cluster: tiers one after the other where they share the NIC."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cluster import catalogue as clusters
from weft.cluster.spec import Tier
from weft.collectives.dimensions import dimensions_of
from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.policies import baseline
from weft.collectives.schedules.timing import time_schedule


def cluster_of(*tiers):
    whole = replace(clusters.load("h100-32"), tiers=tiers)
    return replace(whole, count=whole.spans[-1])


def tier(kind, size, bandwidth_Bps, **more):
    return Tier(name=f"{kind} of {size}", size=size, kind=kind, bandwidth_Bps=bandwidth_Bps, latency_s=1e-6, **more)


def one_by_one_s(kind, bytes_, tiers):
    """Tiers as dimensions of their own, one chunk: no two are at work at the same time."""
    dimensions, _ = dimensions_of(cluster_of(tiers[0]))
    for other in tiers[1:]:
        dimensions += dimensions_of(cluster_of(other))[0]
    return time_schedule(baseline(request(kind, bytes_, dimensions), chunks=1), active=1).time_s


def test_a_tier_is_a_dimension_with_what_its_oversubscription_leaves():
    (inside, outside), notes = dimensions_of(
        cluster_of(tier("switch", 8, 450e9, in_network_reduction=True), tier("switch", 4, 50e9, oversubscription=2.0))
    )
    assert (inside.size, inside.kind, inside.bandwidth_Bps, inside.reduces) == (8, "switch", 450e9, True)
    assert (outside.size, outside.kind, outside.bandwidth_Bps, outside.reduces) == (4, "switch", 25e9, False)
    assert inside.latency_s == outside.latency_s == 1e-6
    assert notes == ()


@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather", "all-reduce"])
@pytest.mark.parametrize("sizes", [(4, 8), (2, 3), (4, 4, 2), (3, 5)])
def test_tiers_that_share_the_nic_take_as_long_as_one_after_the_other(kind, sizes):
    outer = [
        tier("switch", size, 50e9, oversubscription=ratio) for size, ratio in zip(sizes, (1.0, 2.0, 4.0), strict=False)
    ]
    found, notes = dimensions_of(cluster_of(tier("switch", 8, 450e9), *outer))
    assert len(found) == 2
    assert len(notes) == 1
    assert "share the NIC" in notes[0]
    together = time_schedule(baseline(request(kind, 1e8, found[1:]), chunks=1), active=1).time_s
    assert together == pytest.approx(one_by_one_s(kind, 1e8, outer), rel=1e-9)


def test_direct_links_are_dimensions_of_their_own():
    found, notes = dimensions_of(cluster_of(tier("fully-connected", 4, 300e9), tier("ring", 6, 100e9)))
    assert [one.kind for one in found] == ["fully-connected", "ring"]
    assert notes == ()
