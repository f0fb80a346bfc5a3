"""Costs of collectives: bounds, monotony and closed forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Accelerator, Cluster, Tier, TierKind
from weft.collectives.cost import Network, collective_s, lower_bound_s
from weft.layout.mesh import Spread, spread
from weft.layout.operations import CollectiveKind
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable

KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
GROUPED: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
CONSTANTS = Calibration()
CHIP = Accelerator(
    name="chip",
    vendor="v",
    fp32_flops=1e14,
    fp16_flops=1e15,
    bf16_flops=1e15,
    fp8_flops=2e15,
    fp4_flops=0.0,
    memory_bytes=8e10,
    memory_Bps=3e12,
    scale_up_size=8,
    scale_up_Bps=4.5e11,
    nic_Bps=5e10,
    host_Bps=5e10,
    multiprocessors=132,
    power_w=700.0,
)


def network(
    sizes: tuple[int, ...], bandwidths: tuple[float, ...], *, reduces: tuple[bool, ...] | None = None
) -> Network:
    """Switch tiers of the given sizes and bytes/s, 1 us a hop."""
    tiers = tuple(
        Tier(
            name=f"t{i}",
            size=size,
            kind="switch",
            bandwidth_Bps=Bps,
            latency_s=1e-6,
            in_network_reduction=reduces[i] if reduces else False,
        )
        for i, (size, Bps) in enumerate(zip(sizes, bandwidths, strict=True))
    )
    count = int(np.prod(sizes))
    return Network.of(Cluster(name="c", accelerator=CHIP, count=count, tiers=tiers), CONSTANTS)


RAILS = network((8, 128), (4.5e11, 5e10))


def group(size: int, *members: int) -> Spread:
    return Spread(np.array([float(size)]), tuple(np.array([float(m)]) for m in members))


def seconds(kind: CollectiveKind, bytes_: float, where: Spread, net: Network = RAILS) -> float:
    return float(collective_s(kind, np.array([float(bytes_)]), where, net)[0])


def bound(kind: CollectiveKind, bytes_: float, where: Spread, net: Network = RAILS) -> float:
    return float(lower_bound_s(kind, np.array([float(bytes_)]), where, net)[0])


@st.composite
def placed(draw: st.DrawFn) -> tuple[Spread, Network]:
    """A group of a random mesh on random tiers of any speed, with or without reducing switches."""
    sizes = tuple(draw(st.lists(st.sampled_from([2, 3, 4, 8, 16]), min_size=1, max_size=3)))
    count = int(np.prod(sizes))
    bandwidths = tuple(draw(st.floats(1e8, 2e12)) for _ in sizes)
    reduces = tuple(draw(st.booleans()) for _ in sizes)
    x = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
    rest = count // x
    z = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    layout = Layout(x=x, z=z, data=rest // z)
    axes = draw(st.sampled_from([("x",), ("z",), ("data",), ("x", "z"), ("z", "data"), ("x", "data")]))
    net = network(sizes, bandwidths, reduces=reduces)
    return spread(LayoutTable.of([layout]), axes, net.spans), net


volumes = st.one_of(st.floats(0.0, 1e3), st.floats(1e3, 1e12))


@given(st.sampled_from(KINDS), placed(), volumes)
def test_never_below_the_lower_bound(kind: CollectiveKind, where: tuple[Spread, Network], bytes_: float) -> None:
    spent, least = seconds(kind, bytes_, *where), bound(kind, bytes_, *where)
    assert np.isfinite(spent)
    if where[0].size[0] > 1:
        assert spent >= least >= 0


@given(st.sampled_from(KINDS), placed(), volumes, st.floats(1.0, 100.0))
def test_more_bytes_never_cost_less(
    kind: CollectiveKind, where: tuple[Spread, Network], bytes_: float, factor: float
) -> None:
    assert seconds(kind, bytes_, *where) <= seconds(kind, bytes_ * factor, *where) * (1 + 1e-12)


@given(st.sampled_from(KINDS), placed(), volumes, st.integers(0, 2))
def test_a_faster_tier_never_costs_more(
    kind: CollectiveKind, where: tuple[Spread, Network], bytes_: float, tier: int
) -> None:
    where_, net = where
    tier = tier % len(net.spans)
    faster = replace(
        net,
        achieved_Bps=tuple(b * (2 if i == tier else 1) for i, b in enumerate(net.achieved_Bps)),
        peak_Bps=tuple(b * (2 if i == tier else 1) for i, b in enumerate(net.peak_Bps)),
    )
    assert seconds(kind, bytes_, where_, faster) <= seconds(kind, bytes_, where_, net) * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_do_costs_nothing(kind: CollectiveKind) -> None:
    assert seconds(kind, 1e9, group(1, 1, 1)) == 0.0
    assert seconds(kind, 0.0, group(8, 8, 8)) == 0.0


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
def test_large_gathers_in_a_domain_reach_the_ring_bandwidth(kind: CollectiveKind) -> None:
    bytes_ = 1e13
    ideal = bytes_ * 7 / 8 / (4.5e11 * CONSTANTS.scale_up_efficiency)
    assert seconds(kind, bytes_, group(8, 8, 8)) == pytest.approx(ideal, rel=1e-3)


@pytest.mark.parametrize("members", [1, 2, 4, 8])
def test_large_gathers_over_two_levels_share_the_nics(members: int) -> None:
    """(g - 1) / g of the buffer over ``members`` NICs, the scale-up side being faster."""
    bytes_, size = 1e13, 16 * members
    ideal = bytes_ * (size - 1) / size / (members * 5e10 * CONSTANTS.scale_out_efficiency)
    assert seconds("all-gather", bytes_, group(size, members, size)) == pytest.approx(ideal, rel=1e-3)


def test_large_gathers_with_many_nics_are_bound_inside() -> None:
    """Eight 400 Gb/s NICs a domain against 100 GB/s inside: the inner tier is the narrower."""
    net = network((8, 16), (1e11, 5e10))
    bytes_ = 1e13
    ideal = bytes_ * 127 / 128 / (1e11 * CONSTANTS.scale_up_efficiency)
    assert seconds("all-gather", bytes_, group(128, 8, 128), net) == pytest.approx(ideal, rel=1e-3)


def test_rail_only_equation_1_is_met_without_efficiencies_and_latencies() -> None:
    """The two stages of arXiv 2307.12169 add up to 1 to 2 times the pipelined ring's slowest stage."""
    inside, outside, domain, rails, bytes_ = 4.5e11, 5e10, 8, 16, 1e12
    stages = ((domain - 1) * bytes_ / (domain * inside), (rails - 1) * bytes_ / (domain * rails * outside))
    least = bound("all-gather", bytes_, group(128, 8, 128))
    assert max(stages) * 0.99 <= least <= sum(stages)


@given(st.sampled_from(["all-gather", "reduce-scatter", "all-reduce"]), placed())
def test_the_bound_allows_hierarchical_algorithms(kind: CollectiveKind, where: tuple[Spread, Network]) -> None:
    """Tier by tier from the outside, a gather takes (u - 1) D / members over each tier of u units."""
    group_, net = where
    net = replace(net, reduces=tuple(False for _ in net.reduces))
    members = [1.0, *(float(m[0]) for m in group_.members)]
    if any(outer % inner for inner, outer in pairwise(members)):
        return
    stages = sum(
        (outer / inner - 1) * 1e12 / outer / Bps
        for (inner, outer), Bps in zip(pairwise(members), net.peak_Bps, strict=True)
    )
    rounds = 2 if kind == "all-reduce" else 1
    assert bound(kind, 1e12, group_, net) <= rounds * stages * (1 + 1e-12)


@given(placed(), st.floats(1e6, 1e12))
def test_all_reduce_carries_at_least_scatter_and_gather(where: tuple[Spread, Network], bytes_: float) -> None:
    """Without reduction in switches the bandwidth term is that of both halves (launches apart)."""
    spread_, net = where
    net = replace(net, reduces=tuple(False for _ in net.reduces))
    if spread_.size[0] == 1:
        return
    halves = bound("reduce-scatter", bytes_, spread_, net) + bound("all-gather", bytes_, spread_, net)
    assert bound("all-reduce", bytes_, spread_, net) <= halves * (1 + 1e-12)
    whole = seconds("all-reduce", bytes_ * 1e6, spread_, net)
    two = seconds("reduce-scatter", bytes_ * 1e6, spread_, net) + seconds("all-gather", bytes_ * 1e6, spread_, net)
    assert whole == pytest.approx(two, rel=0.02)


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
def test_switch_reduction_helps_only_inside_the_domain(kind: CollectiveKind) -> None:
    plain = network((8, 128), (4.5e11, 5e10))
    nvls = network((8, 128), (4.5e11, 5e10), reduces=(True, False))
    inside, across = group(8, 8, 8), group(64, 8, 64)
    assert seconds(kind, 1e9, inside, nvls) <= seconds(kind, 1e9, inside, plain)
    assert seconds(kind, 1e9, across, nvls) == seconds(kind, 1e9, across, plain)


def test_switch_reduction_nearly_halves_a_large_all_reduce() -> None:
    """(g + 1) / g against 2 (g - 1) / g of the buffer, at the efficiency of each."""
    nvls = network((8, 128), (4.5e11, 5e10), reduces=(True, False))
    ratio = seconds("all-reduce", 1e12, group(8, 8, 8), nvls) / seconds("all-reduce", 1e12, group(8, 8, 8))
    expected = (9 / 8) / (14 / 8) * CONSTANTS.scale_up_efficiency / CONSTANTS.scale_up_reduction_efficiency
    assert ratio == pytest.approx(expected, rel=1e-3)


def test_reduction_on_the_whole_way_carries_each_byte_once() -> None:
    sharp = network((8, 128), (4.5e11, 5e10), reduces=(True, True))
    where = group(1024, 8, 1024)
    assert seconds("all-reduce", 1e12, where, sharp) == pytest.approx(
        1e12 / (8 * 5e10 * CONSTANTS.scale_out_efficiency), rel=1e-3
    )
    assert seconds("all-reduce", 1e12, where) > 1.9 * seconds("all-reduce", 1e12, where, sharp)


def test_latency_grows_like_a_logarithm_not_like_the_ring() -> None:
    """8 bytes over 16 and over 1024 domains: trees take over from rings."""
    few, many = (seconds("all-reduce", 8, group(n, 1, n)) for n in (16, 1024))
    assert many < 4 * few
    ring_steps = 2 * 1023 * 2.7e-6
    assert many < ring_steps / 10


def test_all_to_all_leaves_through_every_nic() -> None:
    """Each rank sends (g - m) / g of its bytes through its own NIC."""
    bytes_ = 1e11
    ideal = bytes_ * (64 - 8) / 64 / (5e10 * CONSTANTS.scale_out_efficiency)
    assert seconds("all-to-all", bytes_, group(64, 8, 64)) == pytest.approx(ideal, rel=1e-2)
    inside = bytes_ * 7 / 8 / (4.5e11 * CONSTANTS.scale_up_efficiency)
    assert seconds("all-to-all", bytes_, group(8, 8, 8)) == pytest.approx(inside, rel=1e-2)


@pytest.mark.parametrize(("ranks", "copies"), [(8, 8), (8, 2), (64, 8)])
def test_copies_to_one_rank_are_sent_once(ranks: int, copies: int) -> None:
    """Of copies for random ranks, what is left when every rank gets at most one: drawn at random."""
    net = network((ranks,), (1e11,))
    table = LayoutTable.of([Layout(data=ranks)])
    whole = spread(table, ("data",), net.spans)
    bytes_ = np.array([1e13])
    share = collective_s("all-to-all", bytes_, whole, net, copies=copies) / collective_s(
        "all-to-all", bytes_, whole, net
    )
    drawn = np.random.default_rng(0).integers(0, ranks, (20_000, copies))
    others = [np.unique(row[row != 0]).size for row in drawn]
    assert share[0] == pytest.approx(np.mean(others) / (copies * (1 - 1 / ranks)), rel=0.02)


@pytest.mark.parametrize(("members", "Bps"), [(8, 4.5e11 * 0.78), (1, 5e10 * 0.85)])
def test_sends_take_one_accelerators_path(members: int, Bps: float) -> None:
    assert seconds("send", 1e12, group(8, members, 8)) == pytest.approx(1e12 / Bps, rel=1e-3)


@pytest.mark.parametrize("kind", GROUPED)
def test_oversubscription_divides_the_outer_bandwidth(kind: CollectiveKind) -> None:
    tiers = (
        Tier(name="in", size=8, kind="switch", bandwidth_Bps=4.5e11, latency_s=1e-6),
        Tier(name="out", size=8, kind="switch", bandwidth_Bps=5e10, latency_s=1e-6, oversubscription=4.0),
    )
    cluster = Cluster(name="c", accelerator=CHIP, count=64, tiers=tiers)
    where = group(8, 1, 8)
    ratio = seconds(kind, 1e12, where, Network.of(cluster, CONSTANTS)) / seconds(kind, 1e12, where)
    assert ratio == pytest.approx(4.0, rel=1e-2)


def shaped(kind: TierKind) -> Network:
    """One tier of eight."""
    tier = Tier(name="t", size=8, kind=kind, bandwidth_Bps=4.48e11, latency_s=1e-6)
    return Network.of(Cluster(name="c", accelerator=CHIP, count=8, tiers=(tier,)), CONSTANTS)


@pytest.mark.parametrize("kind", GROUPED)
def test_all_of_a_fully_connected_domain_use_every_link(kind: CollectiveKind) -> None:
    whole = group(8, 8)
    assert seconds(kind, 1e12, whole, shaped("fully-connected")) == pytest.approx(
        seconds(kind, 1e12, whole, shaped("switch")), rel=1e-9
    )


@pytest.mark.parametrize(("members", "share"), [(2, 1 / 7), (4, 3 / 7), (8, 1.0)])
def test_part_of_a_fully_connected_domain_uses_its_own_links(members: int, share: float) -> None:
    part = group(members, members)
    ratio = seconds("all-gather", 1e13, part, shaped("fully-connected")) / seconds(
        "all-gather", 1e13, part, shaped("switch")
    )
    assert ratio == pytest.approx(1 / share, rel=1e-3)


def test_a_message_between_two_takes_one_link() -> None:
    whole = group(8, 8)
    switch, mesh, ring = (seconds("send", 1e13, whole, shaped(kind)) for kind in ("switch", "fully-connected", "ring"))
    assert mesh / switch == pytest.approx(7, rel=1e-3)
    assert ring / switch == pytest.approx(2, rel=1e-3)


def test_all_pairs_on_a_ring_take_a_quarter_of_the_way_round() -> None:
    """Eight ranks: 8 / 4 hops a message on average, both ways round."""
    whole = group(8, 8)
    ratio = seconds("all-to-all", 1e13, whole, shaped("ring")) / seconds("all-to-all", 1e13, whole, shaped("switch"))
    assert ratio == pytest.approx(2, rel=0.02)


@given(st.sampled_from(KINDS), st.sampled_from([2, 4, 8]), st.sampled_from(["ring", "fully-connected"]), volumes)
def test_no_shape_beats_a_switch(kind: CollectiveKind, members: int, shape: TierKind, bytes_: float) -> None:
    part = group(members, members)
    assert seconds(kind, bytes_, part, shaped(shape)) >= seconds(kind, bytes_, part, shaped("switch"))
