"""The evaluator of many layouts against the simulation of one, and its floors against both."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cluster import load
from weft.fabric.catalogue import for_cluster
from weft.fabric.dimension import from_tier
from weft.fabric.families import clos
from weft.fabric.placement import Placement
from weft.layout.spec import AXES
from weft.layout.table import LayoutTable
from weft.model import resolve_job
from weft.search.enumeration import SPACES, Enumeration
from weft.simulation.iteration.evaluator import Evaluator, planned_routes
from weft.simulation.iteration.simulate import simulate_iteration

CLUSTER = load("h100-32")
KINDS = ("fat-tree", "rail-optimized", "rail-only", "torus", "dragonfly", "hierarchical")


@cache
def job_of(model):
    return resolve_job(model)


@cache
def layouts_of(model):
    """A few hundred layouts of a space, in their table."""
    job, found = job_of(model), []
    draw = np.random.default_rng(3)
    for part in Enumeration(job, CLUSTER.count, SPACES["wide"]).parts(20_000):
        frames = np.sort(draw.choice(len(part.frames), min(len(part.frames), 10), replace=False))
        for batch in part.batches(frames):
            rows = draw.choice(len(batch.table), min(len(batch.table), 8), replace=False)
            found += [batch.table.row(int(row)) for row in rows]
    few = job.recipe.global_batch
    return [one for one in found if few // (one.dp * one.micro_batch) * one.pipeline < 512]


@st.composite
def networks(draw):
    if draw(st.booleans()):
        return for_cluster(draw(st.sampled_from(KINDS)), CLUSTER, radix=draw(st.sampled_from([8, 16, 64])))
    inner, outer = CLUSTER.tiers[:2]
    faster = draw(st.sampled_from([0.5, 1.0, 2.0]))
    return clos.build(
        CLUSTER.count,
        radix=8,
        tiers=3,
        oversubscription=(draw(st.sampled_from([1, 2, 3])), 1),
        bandwidth_Bps=faster * outer.bandwidth_Bps,
        scale_up=replace(from_tier(inner), size=draw(st.sampled_from([4, 8]))),
    )


@st.composite
def cases(draw):
    model = draw(st.sampled_from(["gpt2-124m", "mixtral-8x7b"]))
    layout = draw(st.sampled_from(layouts_of(model)))
    layout = replace(layout, order=tuple(draw(st.permutations(AXES))))
    placement = None
    if draw(st.booleans()):
        hosts = draw(st.permutations(range(CLUSTER.count // 8)))
        placement = Placement(accelerators=(np.array(hosts)[:, None] * 8 + np.arange(8)).ravel())
    routing = draw(st.sampled_from(["ecmp", "spray", "random", "planned"]))
    return model, layout, draw(networks()), placement, routing


def simulated_s(model, layout, fabric, placement, routing):
    routes = None
    if routing == "planned":
        routes = planned_routes(job_of(model), CLUSTER, layout, fabric, placement=placement)
        routing = "ecmp"
    made = simulate_iteration(
        job_of(model), CLUSTER, layout, fabric, placement=placement, routing=routing, routes=routes
    )
    return made.iteration_s


@settings(max_examples=4)
@given(cases())
def test_seconds_are_those_of_the_simulation_and_above_all_floors(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(cases())
def test_seconds_are_above_all_floors_on_many_cases(case):
    check(case)


def check(case):
    model, layout, fabric, placement, routing = case
    evaluator = Evaluator(job_of(model), CLUSTER, fabric, routing=routing, placement=placement)
    wanted = simulated_s(*case)
    assert evaluator.seconds(layout) == pytest.approx(wanted, rel=1e-12)
    table = LayoutTable.of([layout])
    (anywhere,) = evaluator.unblocked(table.ordered(()))
    (unblocked,) = evaluator.unblocked(table)
    (cut,) = evaluator.under(table, evaluator.least_extras(table))
    few = 1 + 1e-9
    assert anywhere.floor_s[0] <= unblocked.floor_s[0] * few
    assert unblocked.floor_s[0] <= wanted * few
    assert cut.floor_s[0] <= wanted * few
    assert cut.stepped_s(0) <= wanted * few
    if evaluator.sound:
        assert unblocked.floor_s[0] <= cut.floor_s[0] * few


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("routing", ["ecmp", "spray"])
@pytest.mark.parametrize("model", ["gpt2-124m", "mixtral-8x7b"])
def test_layouts_whose_collectives_are_alike_are_evaluated_together(model, routing):
    fabric = for_cluster("fat-tree", CLUSTER, radix=8, oversubscription=3.0)
    evaluator = Evaluator(job_of(model), CLUSTER, fabric, routing=routing)
    table = LayoutTable.of(layouts_of(model))
    columns = np.stack(evaluator.alike(table))
    _, group, sizes = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    largest = np.argsort(-sizes)[:3]
    for number in largest.tolist():
        rows = table.take(np.flatnonzero(group.reshape(-1) == number)[:6])
        for part in evaluator.under(rows, evaluator.extras(rows)):
            for at, row in enumerate(part.rows.tolist()):
                assert part.stepped_s(at) == pytest.approx(evaluator.seconds(rows.row(row)), rel=1e-12)


def test_a_fabric_with_faster_ports_than_the_cluster_is_not_bounded_by_them():
    inner, outer = CLUSTER.tiers[:2]
    made = {
        speed: Evaluator(
            job_of("gpt2-124m"),
            CLUSTER,
            clos.build(32, radix=16, bandwidth_Bps=speed * outer.bandwidth_Bps, scale_up=from_tier(inner)),
        ).sound
        for speed in (1.0, 2.0)
    }
    assert made == {1.0: True, 2.0: False}
