"""What a layout is to run, and which layouts cannot be told apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.cluster.catalogue import load
from weft.estimation.trust import shipped_contrast
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.model import resolve_job
from weft.search import SPACES, plan
from weft.search.screen import CHUNKS, EXPERTS, FULLY_SHARDED, MECHANISM, SLICE, UNUSUAL, ZERO_BUBBLE, Ease
from weft.validation.inputs import Prepared, prepare_all
from weft.validation.runs import shipped_runs, stacks

JOB, CLUSTER = resolve_job("llama-3.1-70b"), load("h100-64")


def ease(stack="megatron-core"):
    return Ease(JOB, CLUSTER, stack, CLUSTER.accelerator.memory_bytes)


def effort(layout, stack="megatron-core"):
    return float(ease(stack).efforts(LayoutTable.of([layout]), np.zeros(1))[0])


PLAIN = Layout(x=8, pipeline=8)


@pytest.mark.parametrize(
    ("harder", "price"),
    [
        (replace(PLAIN, virtual_stages=2, schedule="interleaved"), MECHANISM),
        (replace(PLAIN, recompute="selective"), MECHANISM),
        (replace(PLAIN, recompute="full", recompute_layers=2), 2 * MECHANISM),
        (Layout(x=8, pipeline=4, context=2), MECHANISM),
        (Layout(x=8, pipeline=2, context=4), MECHANISM + UNUSUAL),
        (Layout(x=16, pipeline=4), UNUSUAL),
        (replace(PLAIN, zero=2), MECHANISM + UNUSUAL),
        (replace(PLAIN, schedule="zb1p"), UNUSUAL),
        (replace(PLAIN, virtual_stages=20, schedule="interleaved"), 2 * MECHANISM + UNUSUAL),
        (Layout(x=8, pipeline=4, z=2, zero=0), MECHANISM + UNUSUAL),
    ],
)
def test_what_a_layout_does_has_a_price(harder, price) -> None:
    assert effort(harder) - effort(PLAIN) == pytest.approx(price)


def test_memory_left_breaks_ties() -> None:
    table = LayoutTable.of([PLAIN] * 3)
    found = ease().efforts(table, np.array([0.5, 0.9, 1.0]) * CLUSTER.accelerator.memory_bytes)
    assert found[0] < found[1] < found[2] < found[0] + 2 * MECHANISM


def test_software_has_its_own_ways() -> None:
    assert effort(Layout(z=64, zero=0), "torchtitan") < effort(Layout(z=64, zero=0)) == MECHANISM
    assert effort(Layout(data=64), "torchtitan") == UNUSUAL
    assert effort(replace(PLAIN, schedule="zbv", virtual_stages=2), "hai-llm") < UNUSUAL
    assert {*FULLY_SHARDED, *ZERO_BUBBLE} <= set(stacks())


@pytest.mark.slow
def test_what_is_called_unusual_is_rare_in_published_runs() -> None:
    runs = [one for one in prepare_all(shipped_runs()) if isinstance(one, Prepared)]
    layouts = [one.layout for one in runs]
    assert sum(one.zero == 2 and one.pipeline > 1 for one in layouts) == 0
    assert sum(one.virtual_stages > CHUNKS for one in layouts) <= 1
    slices = [one.job.recipe.sequence // one.layout.context for one in runs if one.layout.context > 1]
    assert len(slices) > 40
    assert sum(tokens < SLICE for tokens in slices) <= 2
    assert sum(one.layout.x > one.cluster.tiers[0].size for one in runs) <= 1
    held = [kind.moe.experts / one.layout.expert for one in runs for kind in one.job.model.kinds if kind.moe]
    assert len(held) > 90
    assert max(held) <= EXPERTS
    mixed = [one for one in runs if one.layout.z > 1 and (one.layout.x > 1 or one.layout.context > 1)]
    assert sum(one.stack.name not in FULLY_SHARDED for one in mixed) <= 1


PLANNED = [
    ("gpt2-124m", "a100-8"),
    ("llama-3.1-8b", "h100-64"),
    ("mixtral-8x7b", "h100-64"),
    ("llama-3.1-70b", "h100-256"),
]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("model", "cluster"), PLANNED)
def test_a_layout_says_the_same_however_many_are_shown(model: str, cluster: str) -> None:
    """The first, the order of the others, and the tie of each."""
    plans = [weft.plan(model, cluster, top=top) for top in (1, 3, 10)]
    rows = [[(row.estimate.layout, row.tied, row.slower, row.layout_error) for row in plan.ranked] for plan in plans]
    assert rows[2][: len(rows[1])] == rows[1]
    assert rows[1][:1] == rows[0]
    assert len({plan.choice for plan in plans}) == 1


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(("model", "cluster"), PLANNED)
def test_ties_are_inside_the_error_between_two_layouts(model: str, cluster: str) -> None:
    plan = weft.plan(model, cluster, top=20, variants=True)
    fastest, contrast = plan.choice.fastest, shipped_contrast()
    assert plan.best == plan.ranked[0].estimate
    assert plan.ranked[0].tied
    for row in plan.ranked:
        assert row.estimate.iteration_s == pytest.approx((1 + row.slower) * fastest.iteration_s)
        assert row.layout_error == contrast.covered([row.estimate.layout, fastest.layout])[0, 1]
        assert row.tied == (row.slower <= row.layout_error)
    seconds = [layout.iteration_s for layout in plan.layouts[1:]]
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_unusual_layouts_come_first_only_where_told_apart() -> None:
    """Llama 3.1 405B on 32,768 H100s: without ease the first has context slices of 2,048 tokens."""
    job, cluster = resolve_job("llama-3.1-405b"), load("h100-32768")
    by_time = plan(job, cluster, space=SPACES["standard"], per_mesh=True, memory_margin=0.05, order="time")
    found = plan(job, cluster, space=SPACES["standard"], per_mesh=True, memory_margin=0.05)
    assert job.recipe.sequence < SLICE * by_time.best.layout.context
    assert found.choice.unusual == ()
    assert found.choice.fastest == by_time.best
    assert (found.best.layout.x, found.best.layout.pipeline, found.best.layout.schedule) == (8, 16, "interleaved")
