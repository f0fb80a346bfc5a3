"""The comparison of networks: bills, bytes beyond the leaves, failures, and the frontier."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import weft
from weft.cluster import Cluster
from weft.cluster import load as load_cluster
from weft.cluster.catalogue import with_domain
from weft.cluster.files import read_cluster
from weft.errors import BadInput
from weft.fabric.catalogue import for_cluster
from weft.fabric.cost import bill, preset, prices_from_toml, scale_up_usd
from weft.layout import Layout
from weft.model import RecipeChanges, resolve_job
from weft.reliability.job import stranded_accelerators
from weft.search.design import OVERSUBSCRIPTIONS, DesignTerms, design
from weft.search.ranking import plan

JOB = resolve_job("llama-3.2-1b", RecipeChanges(global_batch=64, sequence=2048))
CLUSTER = load_cluster("h100-64")
RAIL_ALIGNED = Layout(x=8, data=8, sequence_parallel=True)


def study(**changes: object):
    options = DesignTerms(prices=preset("rail-only-v5"), radix=8, layout=RAIL_ALIGNED, **changes)
    return design(JOB, CLUSTER, ("rail-only", "rail-optimized", "fat-tree"), options)


@pytest.mark.slow
def test_rail_only_is_as_fast_for_less() -> None:
    """A10: rail-aligned training sends nothing between rails, and takes the same time without spines."""
    only, optimized, tree = study(routing="spray").designs
    assert only.simulated_s == pytest.approx(optimized.simulated_s, rel=1e-9)
    assert only.simulated_s == pytest.approx(tree.simulated_s, rel=1e-9)
    assert only.bill.usd < optimized.bill.usd
    assert only.bill.watts < optimized.bill.watts
    assert only.spine_bytes == 0
    assert only.nic_bytes > 0


def test_bills_are_those_of_the_built_fabrics() -> None:
    for one in study(simulate=False).designs:
        fabric = for_cluster(one.kind, CLUSTER, radix=8)
        assert one.bill == bill(fabric, preset("rail-only-v5"), radix=8)
        assert one.simulated_s is None
        assert one.failures == ()
        assert one.tokens_per_s == 64 * 2048 / one.closed_form_s


@pytest.mark.parametrize(
    ("radix", "saved"), [(32, 54.5), (64, 37.5), (128, 75.0), pytest.param(256, 60.0, marks=pytest.mark.slow)]
)
def test_rail_only_in_place_of_a_clos_saves_what_the_paper_says(radix: int, saved: float) -> None:
    """Table 2 of arXiv 2307.12169v1 at 32,768 accelerators, domains of 256, from the built networks."""
    found = weft.design(
        "gpt-3-175b",
        "gh200-rail-only-32768",
        fabrics="rail-only",
        against="fat-tree",
        radix=radix,
        prices="rail-only-v1",
        layout="tp=16,pp=4,dp=512",
        no_simulate=True,
    )
    (one,) = found.instead
    assert round(100 * one.usd_saved_share, 1) == saved
    assert abs(one.longer) < 1e-12
    only, clos = found.designs
    assert one.usd_saved == clos.bill.usd - only.bill.usd
    if radix == 32:
        assert (only.bill.switches, clos.bill.switches) == (3072, 7168)
        assert (only.bill.transceivers, clos.bill.transceivers) == (131072, 262144)


def test_larger_domains_come_nearer_to_one_domain() -> None:
    """The one-domain line is the closed form's plan for all accelerators in one domain."""
    found = weft.design(
        "llama-3.2-1b", "h100-rail-only-256", fabrics="rail-only", sizes="8,64,256", batch=256, no_simulate=True
    )
    shares = [one.over_one_domain for one in found.designs]
    whole = plan(found.job, with_domain(found.cluster, 256), top=1).layouts[0].iteration_s
    assert [one.iteration_s / whole - 1 for one in found.designs] == pytest.approx(shares)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0
    assert shares[-1] == 0


def test_a_whole_run_counts_failures_and_the_network_that_it_uses_up() -> None:
    asked = {"layout": RAIL_ALIGNED, "batch": 64, "sequence": 2048, "tokens": "1T"}
    found = weft.design("llama-3.2-1b", CLUSTER, no_simulate=True, usd_per_hour=3.0, network_life="1y", **asked)
    for one in found.designs:
        alone = weft.goodput("llama-3.2-1b", CLUSTER, fabric=None, usd_per_hour=3.0, **asked)
        assert one.after is not None
        assert one.after.network_usd == pytest.approx(one.bill.usd * one.after.expected_s / (365.25 * 86400), rel=1e-2)
        assert one.after.run_usd == pytest.approx(3.0 * one.after.accelerator_hours + one.after.network_usd)
        assert one.after.tokens_per_usd == pytest.approx(alone.run.tokens / one.after.run_usd)
        if one.kind == alone.fabric.name:
            assert one.after.goodput == alone.goodput
    assert {one.kind for one in found.designs} & {alone.fabric.name}
    for row, one in zip(found.to_dicts(), found.designs, strict=True):
        assert (row["usd"], row["run_usd"]) == (one.bill.usd, one.after.run_usd)
    more = weft.design("llama-3.2-1b", CLUSTER, no_simulate=True, **(asked | {"tokens": None}))
    assert all(one.after is None for one in more.designs)
    with pytest.raises(BadInput, match="needs --tokens"):
        weft.design("llama-3.2-1b", CLUSTER, usd_per_hour=3.0)


def test_runs_take_as_long_as_their_simulated_iterations() -> None:
    asked = {"layout": RAIL_ALIGNED, "batch": 64, "sequence": 2048, "tokens": "1T"}
    fabric = for_cluster("fat-tree", CLUSTER, radix=8)
    found = weft.goodput("llama-3.2-1b", CLUSTER, fabric=fabric, **asked)
    alone = weft.simulate("llama-3.2-1b", CLUSTER, RAIL_ALIGNED, fabric=fabric, batch=64, sequence=2048)
    assert found.iteration_s == alone.iteration_s
    assert found.run.training_s == pytest.approx(found.run.iterations * alone.iteration_s)


@pytest.mark.slow
def test_failures_go_around_or_strand() -> None:
    """With scale-up domains a dead NIC or rail switch is passed through the domain; nothing gets faster."""
    for one in study(routing="spray").designs:
        assert {failure.component for failure in one.failures} >= {"NIC"}
        for failure in one.failures:
            assert (failure.iteration_s is None) == (failure.stranded > 0)
            if failure.slowdown is not None:
                assert failure.slowdown >= 1 - 1e-9


def test_the_frontier_is_not_beaten() -> None:
    found = study(failures=False)
    points = [(one.bill.usd, one.simulated_s) for one in found.designs]
    for i, (usd, seconds) in enumerate(points):
        beaten = any((u <= usd and s <= seconds and (u, s) != (usd, seconds)) for u, s in points)
        assert (i in found.pareto) == (not beaten)


def test_stranded_accelerators_are_those_cut_off() -> None:
    fabric = for_cluster("fat-tree", CLUSTER, radix=8)
    assert len(stranded_accelerators(fabric)) == 0
    leaf = fabric.nodes_of("leaf")[:1]
    below = fabric.source[(fabric.target == leaf[0]) & (fabric.source < fabric.accelerators)]
    no_domains = fabric.failed(nodes=np.concatenate([leaf, fabric.nodes_of("scale-up")]))
    assert stranded_accelerators(no_domains).tolist() == sorted(below.tolist())


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("gpt2-124m", "h100-32"),
        pytest.param("llama-3.1-8b", "h100-64", marks=pytest.mark.slow),
        pytest.param("llama-3.1-70b", "h100-512", marks=pytest.mark.slow),
        pytest.param("mixtral-8x22b", "h100-512", marks=pytest.mark.slow),
        pytest.param("mixtral-8x7b", "a100-256", marks=pytest.mark.slow),
    ],
)
def test_no_network_is_slower_than_a_narrower_one_of_its_kind(model: str, cluster: str) -> None:
    """At 1:1 the closed form's first layout of llama-3.1-70b is simulated at 7.66 s, the one for 2:1 at 7.51 s."""
    wide, job = load_cluster(cluster), resolve_job(model, RecipeChanges())
    options = DesignTerms(prices=preset("rail-only-v5"), radix=16, failures=False)
    wider_s = 0.0
    for ratio in OVERSUBSCRIPTIONS[:3]:
        one = replace(wide, tiers=(*wide.tiers[:-1], replace(wide.tiers[-1], oversubscription=ratio)))
        (found,) = design(job, one, ("fat-tree",), options).designs
        assert found.simulated_s is not None
        assert wider_s <= found.simulated_s * (1 + 1e-9)
        wider_s = found.simulated_s
        first = replace(options, layout=plan(job, one, space=options.space, top=1).layouts[0].layout)
        (alone,) = design(job, one, ("fat-tree",), first).designs
        assert found.simulated_s <= alone.simulated_s * (1 + 1e-9)


OWN = """
name = "mine"
count = {count}
accelerator = "h100"
tiers = [
  {{ name = "up", size = {size}, kind = "switch", bandwidth = "300 GB/s", latency = "1 us" }},
  {{ name = "out", size = {outer}, kind = "switch", bandwidth = 6.25e9, latency = "5 us", oversubscription = 2.0 }},
]
"""


def own(size: int, count: int = 64) -> Cluster:
    return read_cluster(OWN.format(count=count, size=size, outer=count // size))


@pytest.mark.parametrize("size", [2, 4, 16, 32])
def test_domains_of_other_sizes_are_those_of_the_file_written_by_hand(size: int) -> None:
    options = DesignTerms(
        prices=preset("rail-only-v5"), radix=8, failures=False, simulate=size == 16, layout=RAIL_ALIGNED
    )
    (found,) = design(JOB, own(8), ("rail-only",), options, domains=(size,)).designs
    (written,) = design(JOB, own(size), ("rail-only",), options).designs
    assert with_domain(own(8), size).tiers == own(size).tiers
    assert found == written
    with pytest.raises(BadInput, match="do not divide"):
        with_domain(own(8), 7)


def test_tiers_beyond_a_domain_join_the_same_accelerators() -> None:
    wide = load_cluster("h100-1024")
    assert wide.spans == (8, 256, 1024)
    assert with_domain(wide, 16).spans == (16, 256, 1024)
    assert with_domain(wide, 512).spans == (512, 1024)
    assert with_domain(wide, 512).tiers[1] == replace(wide.tiers[2], size=2)
    assert with_domain(wide, 1024).spans == (1024,)
    assert with_domain(wide, 8) is wide
    assert with_domain(load_cluster("h100-8"), 4).spans == (4, 8)


def test_a_larger_domain_is_switched_and_says_so() -> None:
    cluster = load_cluster("gh200-64")
    assert (cluster.tiers[0].size, cluster.tiers[0].kind) == (4, "fully-connected")
    options = DesignTerms(prices=preset("rail-only-v5"), radix=8, simulate=False, layout=RAIL_ALIGNED)
    found = design(JOB, cluster, ("rail-only",), options, domains=(2, 4, 16, 32))
    assert found.assumptions == (
        "scale-up domains of 16 are switched (those of 4 are fully-connected)",
        "scale-up domains of 32 are switched (those of 4 are fully-connected)",
    )
    times = [one.closed_form_s for one in found.designs]
    assert times == sorted(times, reverse=True)
    assert [one.scale_up_usd > 0 for one in found.designs] == [False, False, True, True]


def test_rows_compare_tokens_per_second_for_a_dollar() -> None:
    """A batch that is smaller does less work in its shorter iteration; one domain without a network is not free."""
    options = DesignTerms(prices=preset("rail-only-v5"), radix=8, simulate=False, layout=RAIL_ALIGNED)
    found = design(JOB, own(8), ("rail-only",), options, domains=(8, 64), batches=(64, 256))
    small, large, whole, _ = found.designs
    assert small.closed_form_s < large.closed_form_s
    assert large.tokens_per_s_usd > small.tokens_per_s_usd
    assert found.pareto == (1, 3)
    assert (small.scale_up_usd, small.total_usd) == (
        0,
        small.bill.usd,
    )  # boards of eight are in the accelerators' price
    assert whole.bill.usd == 0
    prices = options.prices
    assert whole.scale_up_usd == whole.total_usd == 64 * 300 * prices.usd_per_scale_up_GBps
    for one in found.designs:
        tokens = one.global_batch * JOB.recipe.sequence
        assert one.tokens_per_s_usd == pytest.approx(tokens / one.closed_form_s / (one.bill.usd + one.scale_up_usd))


def test_published_prices_of_scale_up_domains() -> None:
    """Of 900 GB/s: $9,563.20 an accelerator in an NVL-72, $30,417.60 in an NVL-576 (arXiv 2502.03885)."""
    prices = preset("rail-only-v1")
    tier = load_cluster("gb200-72").tiers[0]
    assert (tier.size, tier.bandwidth_Bps) == (72, 900e9)
    assert scale_up_usd(tier, 72, prices) / 72 == pytest.approx(18 / 72 * 28_000 + 72 * 35.60, rel=1e-4)
    assert scale_up_usd(replace(tier, size=576), 576, prices) / 576 == pytest.approx(30_417.60, rel=1e-4)
    assert scale_up_usd(replace(tier, kind="ring"), 72, prices) == 0.0
    assert scale_up_usd(replace(tier, size=8), 16, prices) == 0.0
    mine = prices_from_toml("usd_per_scale_up_GBps = 1.0\nscale_up_rack = 16")
    assert scale_up_usd(replace(tier, size=16), 16, mine) == 16 * 900
    assert scale_up_usd(tier, 72, mine) == pytest.approx(72 * 900 * prices.usd_per_wide_scale_up_GBps)


def test_networks_of_racks_are_priced_whole() -> None:
    """128 GPUs that use 64 of each rack's 72 need the network of 144, and pay for its NVLink switches."""
    options = DesignTerms(prices=preset("rail-only-v5"), layout=Layout(x=2, data=64), simulate=False)
    (used,) = design(JOB, load_cluster("gb200-128"), ("rail-only",), options).designs
    whole = for_cluster("rail-only", load_cluster("gb200-144"), radix=64)
    assert used.bill == bill(whole, preset("rail-only-v5"), radix=64)
    assert used.bill.nics == 144
    assert used.scale_up_usd == pytest.approx(scale_up_usd(load_cluster("gb200-144").tiers[0], 144, options.prices))
    assert weft.bill_of_materials("gb200-128", kind="rail-only").accelerators == 144


def test_a_run_pays_for_what_domains_cost_beyond_the_clusters_own() -> None:
    """Domains of more than a rack need optics."""
    asked = {"layout": "tp=8,dp=64,sp", "batch": 512, "sequence": 2048, "tokens": "1T", "fabrics": "rail-only"}
    found = weft.design("llama-3.2-1b", "h100-512", no_simulate=True, sizes="8,128", **asked)
    own, wide = found.designs
    assert own.after is not None
    assert wide.after is not None
    more = wide.scale_up_usd - own.scale_up_usd
    assert more > 0
    share = wide.after.expected_s / own.after.expected_s
    expected = own.after.network_usd * share * (wide.bill.usd + more) / own.bill.usd
    assert wide.after.network_usd == pytest.approx(expected)


def test_oversubscribed_networks_are_tried_beside() -> None:
    asked = {"layout": RAIL_ALIGNED, "batch": 64, "sequence": 2048, "radix": 8, "fabrics": "rail-only,fat-tree,torus"}
    found = weft.design("llama-3.2-1b", CLUSTER, no_simulate=True, **asked)
    names = [one.kind for one in found.designs]
    assert names == ["rail-only", "fat-tree", "fat-tree 2:1", "fat-tree 4:1", "fat-tree 7:1", "torus"]
    dollars = [one.bill.usd for one in found.designs[1:5]]
    assert dollars == sorted(dollars, reverse=True)
    own = weft.design("llama-3.2-1b", CLUSTER, no_simulate=True, oversubscription="none", **asked)
    assert [one.kind for one in own.designs] == ["rail-only", "fat-tree", "torus"]
    for text in ("0.5", "many", "1e9", "nan"):
        with pytest.raises(BadInput, match="not an oversubscription"):
            weft.design("llama-3.2-1b", CLUSTER, no_simulate=True, oversubscription=text, **asked)


def test_wider_networks_are_no_slower_and_failures_are_of_the_named_and_the_recommended() -> None:
    asked = {"layout": "tp=4,dp=16", "batch": 64, "sequence": 2048, "radix": 8}
    found = weft.design("llama-3.2-1b", CLUSTER, fabrics="fat-tree", **asked)
    times = [one.simulated_s for one in found.designs]
    assert len(times) == 4
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(times))
    studied = [one for one in found.designs if one.failures]
    assert studied == [found.designs[0], found.recommended]
    named = weft.design("llama-3.2-1b", CLUSTER, fabrics="fat-tree 4:1", **asked)
    assert [(one.kind, bool(one.failures)) for one in named.designs] == [("fat-tree 4:1", True)]
    assert named.designs[0].simulated_s == times[2]


def test_each_network_is_routed_as_its_kind_is() -> None:
    asked = {"layout": "tp=4,dp=16", "batch": 64, "sequence": 2048, "radix": 16, "oversubscription": "none"}
    kinds = {"fat-tree": "ecmp", "torus": "dimension-order", "dragonfly": "ugal", "dragonfly+": "ugal"}
    own = weft.design("llama-3.2-1b", CLUSTER, fabrics=tuple(kinds), no_failures=True, routing="own", **asked)
    assert own.routings == ("ecmp", "dimension-order", "ugal")
    for one in own.designs:
        alone = weft.simulate(
            *("llama-3.2-1b", CLUSTER, "tp=4,dp=16"),
            fabric=one.kind,
            routing=kinds[one.kind],
            batch=64,
            sequence=2048,
            radix=16,
        )
        assert one.simulated_s == alone.iteration_s
    failed = weft.design("llama-3.2-1b", CLUSTER, fabrics="torus,dragonfly+", **asked)
    assert [one.kind for one in failed.designs] == ["torus", "dragonfly+"]
    assert all(failure.iteration_s for failure in failed.designs[0].failures)
