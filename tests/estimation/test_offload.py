"""Offloading: bytes are kept, time is paid for, and host memory ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load as load_cluster
from weft.cluster.spec import Cluster
from weft.estimation.costs import block_activations
from weft.estimation.frame import PINNED_SHARE
from weft.estimation.iteration import Estimator, estimate
from weft.estimation.result import EstimateTable
from weft.layout.operations import Sizes
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.model import Job, Recipe
from weft.model.catalogue import load as load_model
from weft.search.enumeration import STANDARD
from weft.search.ranking import plan

RECIPE = Recipe(global_batch=64, sequence=4096)
JOB = Job(model=load_model("llama-3-8b").model, recipe=RECIPE)
LAYOUTS = [
    Layout(z=8),
    Layout(x=8, sequence_parallel=True),
    Layout(x=2, data=4),
    Layout(pipeline=4, data=2),
    Layout(pipeline=8, recompute="full"),
    Layout(z=8, micro_batch=4, recompute="selective"),
]


def evaluate(layouts: list[Layout], cluster: Cluster) -> EstimateTable:
    return Estimator(JOB, cluster).evaluate(LayoutTable.of(layouts))


def linked(host_Bps: float, host_memory_bytes: float | None = None) -> Cluster:
    cluster = load_cluster("h100-8")
    chip = replace(cluster.accelerator, host_Bps=host_Bps, host_memory_bytes=host_memory_bytes)
    return replace(cluster, accelerator=chip)


@given(st.sampled_from(LAYOUTS), st.floats(1e9, 1e12))
def test_offloading_is_never_free_and_loses_no_byte(layout: Layout, host_Bps: float) -> None:
    plain, moved = (evaluate([replace(layout, offload_activations=flag)], linked(host_Bps)) for flag in (False, True))
    assert moved.iteration_s[0] > plain.iteration_s[0]
    assert moved.memory_bytes[0] < plain.memory_bytes[0]
    assert plain.host_bytes[0] == 0
    first = moved.activations_bytes[0] + moved.host_bytes[0]
    assert first >= plain.activations_bytes[0] * (1 - 1e-9) or layout.pipeline > 1


@given(st.sampled_from(LAYOUTS), st.floats(1e9, 1e12), st.floats(1.01, 100.0))
def test_a_faster_link_costs_no_more(layout: Layout, host_Bps: float, faster: float) -> None:
    rows = [replace(layout, offload_activations=True, offload_optimizer=True)]
    slow, fast = (evaluate(rows, linked(Bps)).offload_s[0] for Bps in (host_Bps, faster * host_Bps))
    assert fast <= slow * (1 + 1e-12)


def test_a_slow_link_is_waited_for() -> None:
    """One stage: all blocks but two leave and return; nothing of that hides where the link takes far longer than
    the passes, but for the passes themselves."""
    layout, host_Bps = Layout(z=8, offload_activations=True), 1e7
    cluster = linked(host_Bps)
    found = evaluate([layout], cluster)
    block = block_activations(JOB.model.runs[0].block, RECIPE, Sizes.of(LayoutTable.of([layout]), RECIPE)).none[0]
    constants, micro_batches = calibration("h100"), 8
    moved = micro_batches * (JOB.model.layers - 2) * block
    waited = 2 * moved / (host_Bps * constants.host_efficiency)
    slowed = 2 * moved / (cluster.accelerator.memory_Bps * constants.memory_efficiency)
    passes = found.forward_s[0] + found.backward_s[0]
    assert found.offload_s[0] == pytest.approx(waited + slowed - passes, rel=1e-3)


def test_the_network_takes_its_share_of_the_link() -> None:
    """Gradients of domains that a NIC joins cross the link that activations take; within one domain they do not."""
    job = replace(JOB, recipe=replace(RECIPE, global_batch=512))
    layout = Layout(z=64, offload_activations=True)
    cluster = load_cluster("h100-64")
    wide = replace(
        cluster,
        accelerator=replace(cluster.accelerator, scale_up_size=64),
        tiers=(replace(cluster.tiers[0], size=64),),
    )
    shared, alone = (Estimator(job, one).evaluate(LayoutTable.of([layout])).offload_s[0] for one in (cluster, wide))
    assert shared > alone


def test_host_memory_ends() -> None:
    layout = Layout(z=8, offload_activations=True)
    needed = estimate(JOB, linked(5e10), [layout])[0].host_bytes
    assert needed == pytest.approx((JOB.model.layers - 2) / JOB.model.layers * activations(Layout(z=8)))
    enough, short = (
        estimate(JOB, linked(5e10, share * needed / PINNED_SHARE), [layout])[0] for share in (1.001, 0.999)
    )
    assert enough.fits
    assert not short.fits
    assert short.memory_bytes <= short.capacity_bytes


def activations(layout: Layout) -> float:
    return float(evaluate([layout], load_cluster("h100-8")).activations_bytes[0])


def test_the_search_counts_what_the_host_cannot_hold() -> None:
    space = replace(STANDARD, fixed={"z": (8,)}, offload_activations=(False, True))
    with_room, without = (plan(JOB, linked(5e10, size), space=space) for size in (1e12, 0.0))
    counts = {count.code: count.layouts for count in without.rejected}
    assert counts["host-memory"] == with_room.feasible - without.feasible > 0
    assert not any(one.layout.offload_activations for one in without.layouts)


def test_optimizer_on_the_host_is_counted_there() -> None:
    plain, moved = (evaluate([Layout(z=8, offload_optimizer=flag)], load_cluster("h100-8")) for flag in (0, 1))
    states = plain.optimizer_bytes[0]
    assert moved.optimizer_bytes[0] == 0
    assert moved.host_bytes[0] == pytest.approx(states * (12 + 4 + 2) / 12)
    assert np.all(moved.memory_bytes < plain.memory_bytes)
