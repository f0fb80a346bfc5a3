"""The search on a network against brute force, and what it promises against the simulation."""

import json
from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest

import weft
from weft.cluster import load
from weft.errors import BadInput
from weft.fabric.dimension import from_tier
from weft.fabric.families import clos
from weft.fabric.files import fabric_to_json
from weft.model import resolve_job
from weft.search import plan as closed_plan
from weft.search.enumeration import STANDARD, ZERO_BUBBLE, Enumeration
from weft.search.network_plan import NetworkPlan, plan_on_fabric, search_on_fabric
from weft.search.screen import least_s
from weft.simulation.iteration.evaluator import Evaluator, planned_routes
from weft.simulation.iteration.simulate import simulate_iteration

CLUSTER = load("h100-32")
SMALL = STANDARD.constrained(
    {"micro_batch": 1, "recompute": "none", "zero": 1, "sequence_parallel": False, "context_method": "ring"},
    {"x": 2, "context": 2, "z": 2, "virtual_stages": 2, "pipeline": 4},
)


@cache
def job_of(model):
    job = resolve_job(model)
    return replace(job, recipe=replace(job.recipe, global_batch=64))


@cache
def narrow(ratio=3):
    """A Clos in which leaves pass on a third of what they get, so that where ranks lie matters."""
    inner, outer = CLUSTER.tiers[:2]
    return clos.build(
        32,
        radix=8,
        tiers=3,
        oversubscription=(ratio, 1),
        bandwidth_Bps=outer.bandwidth_Bps,
        scale_up=replace(from_tier(inner), size=4),
    )


def every_layout(job, space, capacity_bytes, evaluator):
    """All layouts of a space that fit, in all orders that differ in what they mean."""
    seen = set()
    for part in Enumeration(job, CLUSTER.count, space).parts():
        for batch in part.batches(np.arange(len(part.frames))):
            fits = evaluator.closed.evaluate(batch.table).memory_bytes <= capacity_bytes
            for row in np.flatnonzero(fits).tolist():
                layout = batch.table.row(row)
                for order in permutations(space.order):
                    long = tuple(axis for axis in order if getattr(layout, axis) > 1)
                    if (layout, long) not in seen:
                        seen.add((layout, long))
                        yield replace(layout, order=order)


def simulated_s(job, layout, fabric, routing):
    routes = planned_routes(job, CLUSTER, layout, fabric) if routing == "planned" else None
    mode = "ecmp" if routing == "planned" else routing
    return simulate_iteration(job, CLUSTER, layout, fabric, routing=mode, routes=routes).iteration_s


TWO = SMALL.constrained({"z": 1}, {"pipeline": 2})
FEW = TWO.constrained({"virtual_stages": 1}, {})
EXPERTS = FEW.constrained({"expert": 4, "sequence_parallel": True}, {})
LONG = [
    ("gpt2-124m", SMALL, "ecmp"),
    ("gpt2-124m", TWO, "spray"),
    ("gpt2-124m", TWO, "planned"),
    ("mixtral-8x7b", EXPERTS, "ecmp"),
    ("mixtral-8x7b", EXPERTS, "planned"),
]


@pytest.mark.parametrize(
    ("model", "space", "routing"),
    [("gpt2-124m", FEW, "ecmp"), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
)
def test_small_spaces_as_brute_force(model, space, routing):
    job, fabric = job_of(model), narrow()
    evaluator = Evaluator(job, CLUSTER, fabric, routing=routing)
    capacity = CLUSTER.accelerator.memory_bytes * 4
    tried = list(every_layout(job, space, capacity, evaluator))
    found = search_on_fabric(evaluator, space, capacity_bytes=capacity)
    assert found.proof.considered == len(tried) > 40
    assert found.proof.evaluated < len(tried)
    assert found.proof.proved
    best = min(simulated_s(job, layout, fabric, routing) for layout in tried)
    layout, seconds = found.layouts[0]
    assert seconds == simulated_s(job, layout, fabric, routing)
    assert seconds == pytest.approx(best, rel=1e-9)
    assert found.proof.bound_s == seconds


@pytest.mark.slow
def test_a_fabric_that_the_cluster_does_not_describe_is_searched_all_the_same():
    job, inner = job_of("gpt2-124m"), CLUSTER.tiers[0]
    fabric = clos.build(
        32, radix=8, tiers=3, oversubscription=(3, 1), bandwidth_Bps=100e9, scale_up=replace(from_tier(inner), size=16)
    )
    space = FEW
    evaluator, capacity = Evaluator(job, CLUSTER, fabric), CLUSTER.accelerator.memory_bytes
    assert not evaluator.sound
    found = search_on_fabric(evaluator, space, capacity_bytes=capacity)
    tried = every_layout(job, space, capacity, evaluator)
    assert found.layouts[0][1] == pytest.approx(min(evaluator.seconds(one) for one in tried), rel=1e-9)


@pytest.fixture(scope="module")
def closed():
    return closed_plan(job_of("gpt2-124m"), CLUSTER, space=SMALL, top=20, per_mesh=True)


@pytest.fixture(scope="module")
def whole(closed):
    return plan_on_fabric(closed, narrow())


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("routing", ["ecmp", "planned", "spray"])
def test_simulate_gives_what_the_plan_promised(closed, whole, routing, tmp_path):
    fabric, path = tmp_path / "fabric.json", tmp_path / "plan.json"
    fabric.write_text(fabric_to_json(narrow()))
    found = plan_on_fabric(closed, narrow(), routing=routing)
    assert routing != "ecmp" or found.to_json() == whole.to_json(), "twice the same"
    found.save(path)
    assert weft.read(path) == found
    for rank, seconds in enumerate([row.simulated_s for row in found.ranked[:3]], 1):
        made = weft.simulate(plan=str(path), rank=rank, fabric=str(fabric), routing=routing)
        assert made.iteration_s == seconds
    document = json.loads(path.read_text())
    assert document["proof"]["gap"] == 0.0
    text = document["layouts"][0]["layout_text"]
    again = weft.simulate(job_of("gpt2-124m"), CLUSTER, text, fabric=narrow(), routing=routing)
    assert again.iteration_s == document["layouts"][0]["simulated_s"] == document["proof"]["bound_s"]
    assert [row.iteration_s for row in found.ranked] == sorted(row.iteration_s for row in found.ranked)
    assert found.first_choice_s >= found.ranked[0].simulated_s


def test_a_budget_leaves_a_gap_that_holds(closed, whole):
    cut = plan_on_fabric(closed, narrow(), budget_s=0.0)
    assert not cut.proof.proved
    assert cut.proof.bound_s <= whole.ranked[0].iteration_s <= cut.ranked[0].iteration_s
    assert cut.proof.gap == pytest.approx(cut.ranked[0].iteration_s / cut.proof.bound_s - 1)
    assert (cut.proof.stopped_by, whole.proof.stopped_by) == ("budget", None)
    assert cut.proof.considered == 0  # no layout was looked at beside the first
    assert NetworkPlan.from_dict(cut.to_dict()).proof == cut.proof


@pytest.mark.parametrize("space", [STANDARD, ZERO_BUBBLE], ids=lambda space: space.name)
def test_what_is_left_out_is_bounded(closed, space):
    """The bound of parts that no time is left for is below the floor of each of their layouts."""
    evaluator = Evaluator(closed.job, closed.cluster, narrow())
    for part in Enumeration(closed.job, closed.cluster.count, space).parts():
        for batch in part.batches(np.arange(0, len(part.frames), 3)):
            for flag in (0, 1):
                rows = np.flatnonzero(batch.table.sequence_parallel == flag)
                found = list(evaluator.unblocked(batch.table.take(rows).ordered(()))) if len(rows) else []
                frames, table = part.flagged(np.arange(len(part.frames)), flag)
                if found:
                    least = least_s(part, evaluator.bounding.frame(table.ordered(()), ordered=False), bubble=False)
                    assert least.min() < min(one.floor_s.min() for one in found)
                    assert len(frames) == least.shape[1]


def test_the_usual_order_is_no_faster_than_any(closed, whole):
    usual = plan_on_fabric(closed, narrow(), orders=False)
    assert {one.layout.order for one in usual.layouts} == {SMALL.order}
    assert usual.ranked[0].iteration_s >= whole.ranked[0].iteration_s
    assert usual.proof.considered < whole.proof.considered


def test_options_of_networks_need_one():
    for name, value in (("routing", "spray"), ("budget", "5s"), ("axis_order", "usual")):
        with pytest.raises(BadInput, match="needs --fabric"):
            weft.plan("gpt2-124m", "a100-8", **{name: value})


def test_a_fabric_that_is_too_small_is_refused():
    with pytest.raises(BadInput, match="do not fit"):
        weft.plan("gpt2-124m", "h100-64", fabric=narrow(), batch=64)
