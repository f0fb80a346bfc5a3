"""One iteration on a fabric: the published claims on rail-only networks, and the closed form's own terms."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load as load_cluster
from weft.collectives.messages import expand
from weft.errors import BadInput, UnknownName
from weft.estimation.iteration import estimate
from weft.fabric.catalogue import for_cluster
from weft.fabric.paths import Paths
from weft.fabric.placement import Placement
from weft.layout.check import explain
from weft.layout.spec import Layout
from weft.model import Job, Recipe
from weft.model.catalogue import load as load_model
from weft.routing.plan import flow_rates, plan
from weft.simulation.flows.symmetry import transfer
from weft.simulation.iteration import contention
from weft.simulation.iteration.contention import FlowRoutes, reached
from weft.simulation.iteration.evaluator import planned_routes, planned_traffic
from weft.simulation.iteration.simulate import simulate_iteration

RADIX = 8
"""Small switches, so that 128 accelerators need a spine."""
DENSE = Layout(x=8, data=8, pipeline=2, sequence_parallel=True)


@cache
def cluster_of(name):
    return load_cluster(name)


@cache
def fabric_of(kind, name="h100-128"):
    return for_cluster(kind, cluster_of(name), radix=RADIX)


@cache
def job_of(model, batch=64):
    found = load_model(model)
    return Job(model=getattr(found, "model", found), recipe=Recipe(global_batch=batch, sequence=4096))


@cache
def dense(kind, **changes):
    options = dict(changes)
    job = job_of("llama-3-8b")
    assert explain(job, 128, DENSE) is None
    return simulate_iteration(job, cluster_of("h100-128"), DENSE, fabric_of(kind), **options)


@pytest.mark.slow
def test_dense_training_is_as_fast_on_rail_only_as_on_a_clos():
    """arXiv 2307.12169: rail-aligned training sends nothing between rails."""
    runs = [dense(kind, routing="spray") for kind in ("rail-only", "rail-optimized", "fat-tree")]
    assert [run.cross_rail_bytes for run in runs] == [0.0, 0.0, 0.0]
    assert runs[1].iteration_s == pytest.approx(runs[0].iteration_s, rel=1e-9)
    assert runs[2].iteration_s == pytest.approx(runs[0].iteration_s, rel=1e-9)
    assert runs[0].iteration_s == pytest.approx(runs[0].scheduled_s, rel=1e-9)
    names = {tier.tier for tier in runs[2].tiers if tier.bytes > 0}
    assert {0, 1, 2} <= names


def test_hashed_routes_slow_the_clos():
    hashed = dense("fat-tree", routing="ecmp")
    assert hashed.iteration_s > dense("fat-tree", routing="spray").iteration_s * 1.0001
    slow = [row for row in hashed.collectives if row.slowdown > 1.5]
    assert slow
    assert all(row.bottlenecks for row in slow)


def test_never_below_the_bound_and_near_the_closed_form():
    for kind in ("rail-only", "fat-tree"):
        run = dense(kind)
        assert run.lower_bound_s <= run.iteration_s
        assert run.scheduled_s == pytest.approx(run.closed_form_s, rel=0.05)


def test_ring_bandwidth_is_the_closed_form_term():
    run = dense("rail-only")
    cluster = cluster_of("h100-128")
    constants = calibration(cluster.accelerator.name)
    inside = cluster.tiers[0].effective_Bps * constants.scale_up_efficiency
    outside = cluster.tiers[1].effective_Bps * constants.scale_out_efficiency
    checked = 0
    for row in run.collectives:
        if row.kind in ("all-gather", "reduce-scatter", "all-reduce") and row.algorithm == "ring":
            rounds = 2 if row.kind == "all-reduce" else 1
            Bps = inside if row.axes == "x" else outside
            term = rounds * row.bytes * (row.size - 1) / row.size / Bps
            assert row.everybody_s == pytest.approx(term, rel=1e-9)
            assert row.alone_s == pytest.approx(term, rel=1e-9)
            assert row.ideal_s == pytest.approx(term, rel=1e-9)
            assert row.simulated_s == pytest.approx(row.closed_form_s, rel=1e-9)
            assert row.closed_form_s >= 0.8 * term
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize(("name", "published"), [("a100-64", 0.0833), ("h100-64", 0.1111)])
def test_forwarding_overhead_of_experts(name, published):
    """v5's abstract: 8.2 and 11.2 % in the closed form; hop after hop only (K - 1) / K changes rail."""
    cluster = cluster_of(name)
    nic, domain = cluster.tiers[1].bandwidth_Bps, cluster.tiers[0].bandwidth_Bps
    assert nic / domain == pytest.approx(published, abs=1e-3)
    rails, clos = (for_cluster(kind, cluster) for kind in ("rail-only", "rail-optimized"))

    def seconds(fabric, steps):
        total = 0.0
        for one in steps:
            routes = Paths(fabric).routes(one.source, one.target, mode="spray")
            moved = transfer(fabric.capacity_Bps, one.source, one.target, one.bytes, routes)
            total += moved.end_s.max()
        return total

    ranks = np.arange(64)
    direct = expand("all-to-all", "direct", ranks, 1e9)
    hops = expand("all-to-all", "hierarchical", ranks, 1e9, domain=rails.domain)
    free = seconds(clos, [direct])
    assert seconds(rails, hops.one_by_one()) / free - 1 == pytest.approx(published * 7 / 8, abs=5e-4)
    assert seconds(rails, [hops.pipelined()]) == pytest.approx(free, rel=1e-9)
    assert seconds(rails, [direct]) == pytest.approx(free, rel=0.02)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("routing", ["ecmp", "spray"])
@pytest.mark.parametrize("kind", ["fat-tree", "rail-only"])
def test_equal_groups_solved_once_are_all_groups_solved(kind, routing):
    once = dense(kind, routing=routing)
    every = dense(kind, routing=routing, symmetry=False)
    assert once.iteration_s == pytest.approx(every.iteration_s, rel=1e-9)
    for a, b in zip(once.collectives, every.collectives, strict=True):
        assert a.everybody_s == pytest.approx(b.everybody_s, rel=1e-9)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb1p"])
def test_every_flow_in_time_agrees_without_contention(schedule):
    virtual = 2 if schedule == "interleaved" else 1
    layout = Layout(x=4, data=2, pipeline=2, schedule=schedule, virtual_stages=virtual, sequence_parallel=True)
    job, cluster = job_of("llama-3-8b", 16), cluster_of("h100-16")
    assert explain(job, 16, layout) is None
    fabric = for_cluster("rail-only", cluster)
    quick = simulate_iteration(job, cluster, layout, fabric)
    exact = simulate_iteration(job, cluster, layout, fabric, full=True)
    assert exact.exact
    assert not quick.exact
    assert exact.iteration_s == pytest.approx(quick.iteration_s, rel=0.02)


def test_accelerators_beyond_the_job_belong_to_no_stage():
    """A pipelined job on part of a fabric takes as long as on a fabric of its own, flow by flow."""
    layout = Layout(x=4, data=2, pipeline=2, sequence_parallel=True)
    job, cluster = job_of("llama-3-8b", 4), cluster_of("h100-16")
    own, larger = (for_cluster("rail-only", cluster_of(name)) for name in ("h100-16", "h100-32"))
    alone, beside = (simulate_iteration(job, cluster, layout, one, full=True) for one in (own, larger))
    assert beside.iteration_s == pytest.approx(alone.iteration_s, rel=1e-9)


@pytest.mark.parametrize("failed", [False, True])
def test_sprayed_flows_hold_no_link_of_each_of_their_paths(monkeypatch, failed):
    """Otherwise links per flow, and so the cost, grow with the number of spines."""
    longest = []

    def counted(capacity_Bps, source, target, bytes_, routes, *, symmetry):
        away = fabric.domain[source] != fabric.domain[target]
        longest.append(int(np.diff(routes.indptr)[away].max(initial=0)))
        return transfer(capacity_Bps, source, target, bytes_, routes, symmetry=symmetry)

    monkeypatch.setattr(contention, "transfer", counted)
    job, cluster, layout = job_of("llama-3-8b"), cluster_of("h100-256"), Layout(x=8, data=32, sequence_parallel=True)
    fabric = for_cluster("fat-tree", cluster, radix=32)
    if failed:
        fabric = fabric.failed(nodes=fabric.nodes_of("spine")[:1])
    merged = simulate_iteration(job, cluster, layout, fabric, routing="spray")
    assert max(longest) == 4
    every = simulate_iteration(job, cluster, layout, fabric, routing="spray", symmetry=False)
    assert max(longest) == (16 if failed else 18)
    assert merged.iteration_s == pytest.approx(every.iteration_s, rel=1e-12)
    np.testing.assert_allclose(merged.link_bytes, every.link_bytes, rtol=1e-12)
    assert {row.bottlenecks[0] for row in merged.collectives} == {row.bottlenecks[0] for row in every.collectives}


def test_bytes_on_links_add_up():
    run = dense("rail-only")
    assert run.link_bytes.sum() == pytest.approx(sum(tier.bytes for tier in run.tiers))
    send = next(row for row in run.collectives if row.kind == "send")
    assert send.calls == 8
    nics = sum(row.calls * row.bytes * 2 * 7 / 8 for row in run.collectives if row.axes == "data")
    up_and_down = 2 * 128 * (nics / 2 + send.calls * send.bytes)
    assert sum(tier.bytes for tier in run.tiers if tier.tier > 0) >= up_and_down * (1 - 1e-9)
    assert run.busiest[0].utilization <= 1.0
    assert {span.stage for span in run.timeline} == {0, 1}
    assert max(span.end_s for span in run.timeline) <= run.iteration_s + 1e-9


def test_bad_input():
    job, cluster, fabric = job_of("llama-3-8b"), cluster_of("h100-128"), fabric_of("rail-only")
    with pytest.raises(UnknownName, match="routing"):
        simulate_iteration(job, cluster, DENSE, fabric, routing="magic")
    with pytest.raises(BadInput, match="not a multiple"):
        simulate_iteration(job, cluster, Layout(data=128), fabric)
    with pytest.raises(BadInput, match="do not fit"):
        simulate_iteration(job, cluster, DENSE, fabric_of("rail-only", "h100-64"))
    twice = Placement(accelerators=np.zeros(128, dtype=np.int64))
    with pytest.raises(BadInput, match="different accelerators"):
        simulate_iteration(job, cluster, DENSE, fabric, placement=twice)
    with pytest.raises(BadInput, match="different accelerators"):
        simulate_iteration(job, cluster, DENSE, fabric, placement=Placement(accelerators=np.arange(127)))


def test_calls_add_up_to_the_closed_form():
    """Calls times closed-form seconds of the tensor axis are what the estimate charges without overlap, and without a
    host to wait for, behind which collectives would hide."""
    job, cluster = job_of("llama-3-8b"), cluster_of("h100-128")
    layout = Layout(x=8, data=16, sequence_parallel=True, overlap_tensor="none", recompute="full")
    swift = replace(calibration("h100"), launches_per_step=0.1)
    run = simulate_iteration(job, cluster, layout, fabric_of("rail-only"), constants=swift)
    charged = {part.name: part.value for part in estimate(job, cluster, [layout], swift)[0].time}
    tensor = sum(row.calls * row.closed_form_s for row in run.collectives if row.axes == "x")
    assert tensor == pytest.approx(charged["tensor_s"], rel=0.01)


def test_sharded_weights_are_counted():
    job, cluster = job_of("llama-3-8b", 256), cluster_of("h100-128")
    layout = Layout(z=16, data=8, overlap_gather=False, overlap_reduce=False)
    run = simulate_iteration(job, cluster, layout, fabric_of("rail-only"), routing="spray")
    charged = {part.name: part.value for part in estimate(job, cluster, [layout])[0].time}
    weights = sum(row.calls * row.closed_form_s for row in run.collectives if row.axes == "z")
    assert weights == pytest.approx(charged["weights_s"], rel=0.05)
    assert {row.algorithm for row in run.collectives if row.axes == "z"} == {"rings"}
    assert run.iteration_s == pytest.approx(run.scheduled_s, rel=1e-9)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("routing", ["ecmp", "spray"])
def test_every_flow_in_time_is_near_with_contention(routing):
    """Axes and stages that meet, or miss each other, on links move the time by a few per cent."""
    job, cluster = job_of("llama-3-8b"), cluster_of("h100-64")
    layout = Layout(x=4, z=2, data=4, pipeline=2, sequence_parallel=True)
    fabric = fabric_of("fat-tree", "h100-64")
    quick = simulate_iteration(job, cluster, layout, fabric, routing=routing)
    exact = simulate_iteration(job, cluster, layout, fabric, routing=routing, full=True)
    assert exact.iteration_s == pytest.approx(quick.iteration_s, rel=0.05)
    assert (exact.iteration_s > exact.scheduled_s * 1.05) == (routing == "ecmp")


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb1p", "zbv"])
def test_stages_hold_no_more_micro_batches_than_memory_is_charged_for(schedule):
    virtual = {"interleaved": 2, "zbv": 2}.get(schedule, 1)
    layout = Layout(pipeline=8, schedule=schedule, virtual_stages=virtual)
    job, cluster = job_of("llama-2-7b", 64), cluster_of("h100-8")
    run = simulate_iteration(job, cluster, layout, for_cluster("rail-only", cluster))
    last = "weight-gradient" if schedule in ("zb1p", "zbv") else "backward"
    for stage in range(8):
        charged = {"1f1b": 8 - stage, "interleaved": (2 * (8 - stage) - 1 + 8) / 2}.get(schedule, 8)
        spans = [span for span in run.timeline if span.stage == stage and span.kind in ("forward", last)]
        steps = sorted((span.end_s if span.kind == last else span.begin_s, span.kind == "forward") for span in spans)
        held = np.cumsum([1 if forward else -1 for _, forward in steps]) / virtual
        assert held.max() == charged


def test_the_order_of_servers_that_a_caller_gives_is_that_of_the_rings():
    """A leaf and its uplinks serve 4 servers.  Rings in order cross them once in 4 hops, interleaved ones at every
    hop, which an oversubscription of 4 makes 4 times as slow."""
    job, cluster = job_of("llama-3.2-1b"), cluster_of("h100-64")
    fabric = narrowed(for_cluster("rail-optimized", cluster, radix=8), 4.0)
    layout = Layout(data=64)
    orders = {
        "in order": [0, 1, 2, 3, 4, 5, 6, 7],
        "reversed": [7, 6, 5, 4, 3, 2, 1, 0],
        "interleaved": [0, 4, 1, 5, 2, 6, 3, 7],
    }
    runs = {}
    for name, order in orders.items():
        placement = Placement(accelerators=(np.array(order)[:, None] * 8 + np.arange(8)).ravel())
        run = simulate_iteration(job, cluster, layout, fabric, routing="spray", placement=placement)
        rows = [row for row in run.collectives if row.axes == "data"]
        assert {row.algorithm for row in rows} == {"rings"}
        runs[name] = sum(row.calls * row.everybody_s for row in rows)
    plain = simulate_iteration(job, cluster, layout, fabric, routing="spray")
    expected = sum(row.calls * row.everybody_s for row in plain.collectives)
    assert runs["in order"] == pytest.approx(expected, rel=1e-12)
    assert runs["reversed"] == pytest.approx(expected, rel=1e-9)
    assert runs["interleaved"] == pytest.approx(4 * expected, rel=1e-9)


def narrowed(fabric, factor):
    """The fabric with the links between its switches that much slower."""
    inner = (fabric.source >= fabric.accelerators) & (fabric.target >= fabric.accelerators)
    return replace(fabric, capacity_Bps=np.where(inner, fabric.capacity_Bps / factor, fabric.capacity_Bps))


@pytest.mark.slow
def test_planned_routes_do_not_collide_where_hashed_ones_do():
    """Rings that a Clos can carry without collision are as fast as on their own, whatever hashes do to them."""
    job, cluster, fabric = job_of("llama-3-8b"), cluster_of("h100-128"), fabric_of("fat-tree")
    layout = Layout(x=8, data=16, sequence_parallel=True)
    planned = simulate_iteration(job, cluster, layout, fabric, routes=planned_routes(job, cluster, layout, fabric))
    hashed, sprayed = (simulate_iteration(job, cluster, layout, fabric, routing=mode) for mode in ("ecmp", "spray"))
    assert planned.routing == "planned"
    assert planned.iteration_s < hashed.iteration_s * 0.99
    assert planned.iteration_s == pytest.approx(sprayed.iteration_s, rel=1e-9)
    assert planned.link_bytes.sum() == pytest.approx(hashed.link_bytes.sum(), rel=1e-12)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("radix", "cables"), [(8, 2), (16, 2), (32, 8)])
def test_planned_routes_use_every_parallel_cable(radix, cables):
    """A non-blocking network with 2 or 8 cables between two switches: as fast as sprayed, over all of them."""
    job, cluster = job_of("llama-3-8b", 16), cluster_of("h100-64")
    fabric = for_cluster("fat-tree", cluster, radix=radix)
    between = (fabric.source >= 64) & (fabric.target >= 64) & (fabric.tier > 0)
    ends = fabric.source[between] * fabric.nodes + fabric.target[between]
    assert np.unique(ends, return_counts=True)[1].max() == cables
    layout = Layout(x=8, data=8, sequence_parallel=True)
    planned = simulate_iteration(job, cluster, layout, fabric, routes=planned_routes(job, cluster, layout, fabric))
    sprayed = simulate_iteration(job, cluster, layout, fabric, routing="spray")
    assert planned.iteration_s == pytest.approx(sprayed.iteration_s, rel=1e-9)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("router", ["ecmp", "split", "spray"])
def test_a_simulated_collective_takes_as_long_as_its_routed_flows(router):
    """One rule for what links reach: alone on the network, a ring's transfer is the router's all-reduce."""
    job, cluster, layout = job_of("llama-3-8b"), cluster_of("h100-64"), Layout(x=8, data=8, overlap_reduce=False)
    constants = calibration(cluster.accelerator.name)
    fabric = fabric_of("fat-tree", "h100-64")
    traffic = planned_traffic(job, cluster, layout, reached(fabric, constants))
    found = plan(reached(fabric, constants), traffic, router=router)
    routes = FlowRoutes(fabric, found.traffic, found.routes, name="by hand")
    run = simulate_iteration(job, cluster, layout, fabric, routes=routes)
    rows = [row for row in run.collectives if row.axes == "data"]
    assert len(rows) == 2
    uncapped = replace(found.traffic, cap_Bps=np.full(len(found.traffic), np.inf))
    seconds = 0.0
    for kind in {row.kind for row in rows}:
        named = np.array([name.startswith(kind) for name in uncapped.names])
        flows = np.flatnonzero(named[uncapped.collective])
        part, taken = uncapped.select(flows), found.routes.of(flows)
        rates = flow_rates(found.fabric, part, taken)
        if router == "split":
            rates = np.repeat(rates.reshape(-1, 2).sum(axis=1), 2) / 2
        seconds += float((part.bytes / rates).max())
    assert sum(row.calls * row.everybody_s for row in rows) == pytest.approx(seconds, rel=1e-9)


def test_routes_of_another_job_are_refused():
    job, cluster, fabric = job_of("llama-3-8b"), cluster_of("h100-64"), fabric_of("fat-tree", "h100-64")
    routes = planned_routes(job, cluster, Layout(x=8, data=8), fabric)
    with pytest.raises(BadInput, match=r"planned: .* messages of .* have no route: accelerator-"):
        simulate_iteration(job, cluster, Layout(x=4, data=4, pipeline=4), fabric, routes=routes)


@pytest.mark.slow
def test_every_flow_in_time_takes_the_routes_that_are_given():
    job, cluster = job_of("llama-3-8b", 16), cluster_of("h100-64")
    layout = Layout(x=8, data=4, pipeline=2, sequence_parallel=True)
    fabric = fabric_of("fat-tree", "h100-64")
    routes = planned_routes(job, cluster, layout, fabric)
    quick = simulate_iteration(job, cluster, layout, fabric, routes=routes)
    exact = simulate_iteration(job, cluster, layout, fabric, routes=routes, full=True)
    hashed = simulate_iteration(job, cluster, layout, fabric, full=True)
    assert exact.iteration_s == pytest.approx(quick.iteration_s, rel=0.02)
    assert exact.iteration_s < hashed.iteration_s * 0.99


def test_tensor_parallelism_over_nics_is_charged_for_them():
    """The closed form sees rank r on accelerator r; ranks of a tensor group that lie on 8 hosts send over NICs."""
    job, cluster, fabric = job_of("llama-3-8b"), cluster_of("h100-64"), fabric_of("fat-tree", "h100-64")
    layout = Layout(x=8, data=8, sequence_parallel=True)
    scattered = Placement(accelerators=np.arange(64).reshape(8, 8).T.ravel())
    plain = simulate_iteration(job, cluster, layout, fabric, routing="spray")
    run = simulate_iteration(job, cluster, layout, fabric, routing="spray", placement=scattered)
    rows = [next(row for row in one.collectives if row.axes == "x") for one in (plain, run)]
    constants = calibration(cluster.accelerator.name)
    ports = 450e9 * constants.scale_up_efficiency / (50e9 * constants.scale_out_efficiency)
    assert rows[1].everybody_s == pytest.approx(rows[0].everybody_s * ports, rel=1e-9)
    assert rows[1].ideal_s == rows[0].ideal_s
    assert run.iteration_s > 2 * plain.iteration_s
