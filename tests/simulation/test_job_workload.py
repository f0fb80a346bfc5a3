"""Planned jobs as workloads: as long as the closed form says, and with the demand's bytes."""

from collections import defaultdict

import numpy as np
import pytest

from weft.cluster import resolve
from weft.collectives.dimensions import dimensions_of
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import Estimator, estimate
from weft.layout.table import LayoutTable
from weft.layout.text import parse_layout
from weft.model import RecipeChanges, resolve_job
from weft.simulation.iteration.demand import demand
from weft.simulation.workload import job_workload, run_policies

CASES = {
    "tensor": ("llama-3.1-8b", "h100-64", "tp=8,sp,mbs=1"),
    "sharded": ("llama-3.1-8b", "h100-64", "fsdp=64,mbs=1"),
    "pipeline": ("llama-3.1-8b", "h100-64", "tp=4,pp=4,dp=4,sp,mbs=1"),
    "pipeline of two turns": ("llama-3.1-8b", "h100-64", "tp=2,pp=4,vpp=2,dp=8,sp,mbs=1"),
    "context": ("llama-3.1-8b", "h100-64", "tp=2,cp=4,dp=8,sp,mbs=1"),
    "zero-2": ("llama-3.1-8b", "h100-64", "tp=4,dp=16,zero=2,sp,mbs=1"),
    "experts": ("deepseek-v2-lite", "h100-64", "ep=8,dp=64,mbs=1"),
}
COMPARED = ("tensor", "sharded", "pipeline", "zero-2")


def made(name, **changes):
    model, cluster_name, text = CASES[name]
    job = resolve_job(model, RecipeChanges(**{"global_batch": 256, "sequence": 4096} | changes))
    cluster = resolve(cluster_name)
    return job, cluster, parse_layout(text).complete(cluster.count)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("name", COMPARED)
def test_the_baseline_is_near_the_closed_form(name):
    job, cluster, layout = made(name)
    workload = job_workload(job, cluster, layout)
    dimensions = dimensions_of(cluster)[0]
    found = run_policies(workload, dimensions, ["baseline"], chunks=16)["baseline"]
    closed = estimate(job, cluster, [layout])[0].iteration_s
    assert found.iteration_s == pytest.approx(closed, rel=0.15)
    assert workload.compute_s <= found.iteration_s


def asked(job, cluster, layout):
    """Bytes of each kind that the slowest stage's rank asks for in an iteration."""
    table = LayoutTable.of([layout])
    frame = next(iter(Estimator(job, cluster).frames(table)))
    return demand(layout, frame)


def stage_bytes(found, stage):
    total = defaultdict(float)
    for chunk in found.chunks:
        if chunk.stage == stage:
            for amounts in (chunk.forward, chunk.backward):
                for (kind, _), amount in amounts.items():
                    total[kind] += amount.bytes * found.micro_batches
    once = found.stages[stage]
    for amounts in (once.reduce, once.gather, once.tied, once.scalars):
        for (kind, _), amount in amounts.items():
            total[kind] += amount.bytes
    if "exchange" in total:
        total["send"] += total.pop("exchange")
    return {kind: bytes_ for kind, bytes_ in total.items() if bytes_ > 0}


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_demand(name):
    job, cluster, layout = made(name)
    found = defaultdict(float)
    for task in job_workload(job, cluster, layout).tasks:
        if task.communication is not None:
            found[task.communication.kind] += task.communication.bytes
    wanted = asked(job, cluster, layout)
    stages = [stage_bytes(wanted, stage) for stage in range(layout.pipeline)]
    assert any(
        set(found) == set(one) and all(found[kind] == pytest.approx(one[kind]) for kind in one) for one in stages
    ), (dict(found), stages)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("name", CASES)
def test_groups_fit_on_the_cluster(name):
    """Every policy runs it, and Weft is not slower than the others."""
    job, cluster, layout = made(name, global_batch=64)
    workload = job_workload(job, cluster, layout)
    dimensions = dimensions_of(cluster)[0]
    times = {policy: run.iteration_s for policy, run in run_policies(workload, dimensions, chunks=4).items()}
    assert times["weft"] <= min(times["baseline"], times["themis"]) * (1 + 1e-12)
    assert times["ideal"] >= workload.compute_s * (1 - 1e-9)
    sizes = {
        np.prod([size for size, _ in task.communication.factors])
        for task in workload.tasks
        if task.communication is not None
    }
    assert sizes <= {2, 4, 8, 16, 32, 64}


def test_twice_the_batch_is_twice_the_computation():
    one, two = (job_workload(*made("sharded", global_batch=batch)) for batch in (64, 128))
    assert len(two.tasks) > 1.9 * len(one.tasks)
    assert two.compute_s == pytest.approx(2 * one.compute_s, rel=0.05)


def test_weights_travel_a_layer_ahead():
    workload = job_workload(*made("sharded"))
    first = next(i for i, task in enumerate(workload.tasks) if task.name == "weights all-gather")
    second = next(i for i, task in enumerate(workload.tasks) if task.name == "weights all-gather" and i > first)
    computation = next(i for i, task in enumerate(workload.tasks) if first in task.waits)
    assert second not in workload.tasks[computation].waits
    assert workload.tasks[second].waits == workload.tasks[computation].waits


def test_one_rank_has_nobody_to_talk_to():
    job = resolve_job("llama-3.2-1b", RecipeChanges(global_batch=2, sequence=1024))
    cluster = resolve("h100-1")
    workload = job_workload(job, cluster, parse_layout("dp=1,mbs=1").complete(1))
    assert all(task.communication is None for task in workload.tasks)
    closed = estimate(job, cluster, [parse_layout("dp=1,mbs=1").complete(1)])[0].iteration_s
    assert workload.compute_s == pytest.approx(closed, rel=1e-6)


def test_errors():
    job, cluster, _ = made("tensor")
    with pytest.raises(BadInput, match="layout"):
        job_workload(job, cluster, parse_layout("tp=64").complete(64))
    job, cluster, layout = made("sharded", global_batch=64 * 5000)
    with pytest.raises(Unsupported, match="micro-batches"):
        job_workload(job, cluster, layout)


@pytest.mark.parametrize("schedule", ["", ",schedule=zb1p", ",schedule=zbv", ",vpp=2"])
def test_the_bubble_is_the_estimates(schedule):
    job = resolve_job("llama-2-7b", RecipeChanges(global_batch=64, sequence=4096))
    cluster = resolve("h100-8")
    layout = parse_layout(f"pp=8{schedule}").complete(cluster.count)
    (bubble,) = [task for task in job_workload(job, cluster, layout).tasks if task.name == "bubble"]
    parts = {part.name: part.value for part in estimate(job, cluster, [layout])[0].time}
    assert bubble.seconds == pytest.approx(parts["bubble_s"])
