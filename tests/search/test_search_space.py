"""Spaces and their enumeration: batches, constraints, rejections, empty searches, advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load as load_cluster
from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.estimation.iteration import estimate
from weft.layout.check import explain
from weft.layout.spec import Layout
from weft.layout.table import COLUMNS
from weft.model import Job, Recipe
from weft.model.catalogue import load as load_model
from weft.search.enumeration import STANDARD, Batch, Enumeration, Space
from weft.search.ranking import Plan, fitting_layout, plan, single_changes

JOB = Job(model=load_model("llama-3-8b").model, recipe=Recipe(global_batch=64, sequence=4096))
MIXTRAL = Job(model=load_model("mixtral-8x7b").model, recipe=Recipe(global_batch=64, sequence=4096))


def everything(enumeration: Enumeration, rows: int = 10**9) -> Iterator[Batch]:
    """All batches of all frames, in parts and batches of a size."""
    for part in enumeration.parts(frames=rows):
        yield from part.batches(np.arange(len(part.frames)), rows)


def columns(job: Job, count: int, space: Space, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """All batches put together: columns, mesh numbers, rejections."""
    enumeration = Enumeration(job, count, space)
    batches = list(everything(enumeration, rows))
    joined = {name: np.concatenate([b.table.column(name) for b in batches]) for name in COLUMNS}
    rejected = enumeration.rejected + sum(b.rejected for b in batches)
    return joined, np.concatenate([b.mesh for b in batches]), rejected


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("job", [JOB, MIXTRAL], ids=["dense", "experts"])
@pytest.mark.parametrize("rows", [1, 97, 4096])
def test_batches_are_pieces_of_one_list(job: Job, rows: int) -> None:
    whole, whole_mesh, whole_rejected = columns(job, 16, STANDARD, 10**9)
    pieces, mesh, rejected = columns(job, 16, STANDARD, rows)
    for name in COLUMNS:
        assert np.array_equal(whole[name], pieces[name]), name
    assert np.array_equal(whole_mesh, mesh)
    assert np.array_equal(whole_rejected, rejected)


def search(job: Job = JOB, cluster: str = "h100-16", **options: object) -> Plan:
    return plan(job, load_cluster(cluster), **options)  # type: ignore[arg-type]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("top", [1, 3, 50])
def test_a_shorter_list_is_part_of_a_longer(top: int) -> None:
    """The layouts to show are chosen by time and ease, and shown by time behind the first."""
    shorter, longer = search(top=top).layouts, search(top=200).layouts
    assert len(shorter) == top
    assert shorter[0] == longer[0]
    assert shorter == tuple(layout for layout in longer if layout in shorter)
    assert search(top=top, order="time").layouts == search(top=200, order="time").layouts[:top]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    ("fixed", "maximum"),
    [
        ({"x": 4}, {}),
        ({"pipeline": 2, "schedule": "1f1b"}, {}),
        ({"recompute": "full", "recompute_layers": 4}, {}),
        ({"recompute_layers": 2}, {}),
        ({"sequence_parallel": True, "zero": 2}, {}),
        ({"micro_batch": 2, "context": 2, "context_method": "ulysses"}, {}),
        ({"data_parallel": 8}, {}),
        ({"y": 2}, {}),
        ({"overlap_tensor": "full"}, {"x": 4}),
        ({}, {"x": 2, "z": 4, "virtual_stages": 2}),
    ],
)
def test_constraints_hold_in_every_result(fixed: dict[str, object], maximum: dict[str, int]) -> None:
    found = search(space=STANDARD.constrained(fixed, maximum), top=100).layouts  # type: ignore[arg-type]
    assert found
    for one in found:
        for name, value in fixed.items():
            assert getattr(one.layout, "dp" if name == "data_parallel" else name) == value, name
        for name, most in maximum.items():
            assert getattr(one.layout, name) <= most
        assert "recompute_layers" not in fixed or one.layout.recompute == "full"
        assert explain(JOB, 16, one.layout) is None


def test_contradictory_constraints_are_refused() -> None:
    with pytest.raises(BadInput, match="recompute = full"):
        STANDARD.constrained({"recompute": "none", "recompute_layers": 2}, {})


@pytest.mark.parametrize("fixed", [{"x": 3}, {"x": 16, "pipeline": 2}, {"micro_batch": 5}, {"expert": 4}])
def test_impossible_searches_come_back_empty(fixed: dict[str, int | str | bool]) -> None:
    found = search(space=STANDARD.constrained(fixed, {}), top=5)
    assert found.layouts == ()
    assert found.pareto == ()
    assert found.feasible == 0


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("count", "batch", "sequence"), [(6, 9, 1536), (24, 36, 3000), (8, 5, 77), (1, 3, 1)])
def test_odd_counts_and_batches(count: int, batch: int, sequence: int) -> None:
    """No powers of two."""
    recipe = Recipe(global_batch=batch, sequence=sequence)
    job = Job(model=load_model("llama-3.2-1b").model, recipe=recipe)
    found = search(job, f"h100-{count}", top=1000)
    for one in found.layouts:
        layout = one.layout
        assert layout.world == count
        assert batch % (layout.micro_batch * layout.dp) == 0
        assert explain(job, count, layout) is None
        assert one.iteration_s >= one.lower_bound_s
    assert bool(found.layouts) == (found.feasible > 0)
    assert found.layouts


def test_margin_shrinks_the_memory() -> None:
    capacity = load_cluster("h100-16").accelerator.memory_bytes
    free, tight = search(top=1), search(top=500, memory_margin=0.7)
    assert tight.feasible < free.feasible
    assert all(one.memory_bytes <= 0.3 * capacity for one in tight.layouts)


def test_nothing_fits_and_the_advice_says_what_would() -> None:
    """A 70B model on 8 accelerators: no layout fits without offload."""
    job = Job(model=load_model("llama-3-70b").model, recipe=Recipe(global_batch=8, sequence=4096))
    found = search(job, "h100-8", top=3)
    assert found.layouts == ()
    assert found.rejected[0].layouts > 0
    assert {one.code for one in found.rejected} >= {"does-not-fit"}
    assert found.advice is not None
    assert not found.advice.rejected.fits
    if found.advice.accepted is None:
        missing = found.advice.rejected.memory_bytes - found.advice.rejected.capacity_bytes
        assert f"{missing / 2**30:,.1f} GiB" in found.advice.change
    else:
        assert found.advice.accepted.fits


def check_advice(found: Plan, cluster: Cluster) -> None:
    """The rejected layout is faster and too large; an accepted one differs in one thing and fits."""
    assert found.advice is not None
    rejected, accepted = found.advice.rejected, found.advice.accepted
    assert not rejected.fits
    if found.layouts:
        assert rejected.iteration_s < found.layouts[0].iteration_s
    if accepted is None:
        missing = rejected.memory_bytes - cluster.accelerator.memory_bytes
        assert f"{missing / 2**30:,.1f} GiB" in found.advice.change
        return
    changed = [name for name in COLUMNS if getattr(rejected.layout, name) != getattr(accepted.layout, name)]
    assert len(changed) == 1
    assert accepted.fits
    assert accepted == estimate(JOB, cluster, [accepted.layout])[0]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("gigabytes", [10, 25, 40, 60])
def test_advice_is_true(gigabytes: float) -> None:
    cluster = load_cluster("h100-8")
    cluster = replace(cluster, accelerator=replace(cluster.accelerator, memory_bytes=gigabytes * 1e9))
    check_advice(plan(JOB, cluster, top=1), cluster)


@pytest.mark.parametrize("gigabytes", [20, 28, 40, 50])
def test_a_layout_is_made_to_fit_by_the_fewest_changes(gigabytes: float) -> None:
    """What is named fits, and where one change does, no single change that fits is faster."""
    cluster = load_cluster("h100-8")
    cluster = replace(cluster, accelerator=replace(cluster.accelerator, memory_bytes=gigabytes * 1e9))
    layout, constants = Layout(x=2, data=4), calibration("h100")
    fitting = fitting_layout(JOB, cluster, layout, constants)
    assert not estimate(JOB, cluster, [layout], constants)[0].fits
    singles = [each for _, each in single_changes(layout) if explain(JOB, cluster.count, each) is None]
    fits = [each.iteration_s for each in estimate(JOB, cluster, singles, constants) if each.fits]
    if fitting is None:
        assert not fits
        return
    assert fitting == estimate(JOB, cluster, [fitting.layout], constants)[0]
    assert fitting.fits
    if fits:
        assert fitting.iteration_s <= min(fits)


def test_advice_finds_the_switch_that_was_forbidden() -> None:
    """Plain data parallelism of 8B parameters needs 144 GB; sharding its states fits."""
    cluster = load_cluster("h100-8")
    space = STANDARD.constrained({"data": 8, "zero": 0, "micro_batch": 1, "recompute": "none"}, {})
    found = plan(JOB, cluster, space=space, top=1)
    assert found.layouts == ()
    check_advice(found, cluster)
    assert found.advice is not None
    assert found.advice.change.startswith("zero = ")
