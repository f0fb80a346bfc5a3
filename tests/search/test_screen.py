"""Screening leaves a plan as it is when every layout is timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cluster.catalogue import accelerator, default_tiers
from weft.cluster.spec import Cluster
from weft.estimation.iteration import Estimator
from weft.model import Attention, Block, BlockRun, FeedForward, Job, MixtureOfExperts, Model, Recipe
from weft.search import screen
from weft.search.enumeration import FOUR_D, STANDARD, WIDE, ZERO_BUBBLE, Enumeration, Space
from weft.search.screen import HOPELESS, Ease, Fold, Scale, Screening

DENSE = FeedForward(intermediate=2048)
ROUTED = MixtureOfExperts(experts=4, top_k=2, expert=FeedForward(intermediate=512))
FEWER = replace(WIDE, zero=(0, 2), recompute=("none", "full"), offload_activations=(True,), overlap_gather=(True,))
SPACES = (STANDARD, ZERO_BUBBLE, FOUR_D, FEWER, STANDARD.constrained({"recompute_layers": 1}, {}))

HALF = settings(max_examples=settings().max_examples // 2)
"""An example enumerates a space."""


def problem(kinds: list[bool], count: int, batch: int, memory_GB: float) -> tuple[Job, Cluster]:
    """A model with a run of blocks for each of ``kinds`` (routed or not), on a small cluster."""
    attention = Attention(heads=8, kv_heads=4, head_dim=64)
    blocks = [Block(hidden=512, attention=attention, feed_forward=ROUTED if one else DENSE) for one in kinds]
    runs = tuple(BlockRun(block=block, count=2 + i) for i, block in enumerate(blocks))
    job = Job(
        model=Model(name="m", hidden=512, vocab=8192, runs=runs), recipe=Recipe(global_batch=batch, sequence=1024)
    )
    chip = replace(accelerator("h100"), scale_up_size=2, memory_bytes=memory_GB * 1e9)
    return job, Cluster(name="c", accelerator=chip, count=count, tiers=default_tiers(chip, count))


def unscreened(estimator: Estimator, space: Space, scale: Scale) -> tuple[Fold, int, int]:
    """Every layout that is not hopeless, timed: what is kept, how many there are and fit."""
    fold, compared, feasible = Fold(scale), 0, 0
    for part in Enumeration(estimator.job, estimator.cluster.count, space).parts():
        enough = HOPELESS * scale.capacity_bytes
        frames = np.flatnonzero(part.least_bytes(estimator.memory_bytes, enough) <= enough)
        for batch in part.batches(frames):
            if len(batch.table):
                found = estimator.evaluate(batch.table)
                fold.add(batch, found)
                on_device, pinned = scale.fits(found.memory_bytes, found.host_bytes)
                compared, feasible = compared + len(batch.table), feasible + int((on_device & pinned).sum())
    return fold, compared, feasible


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("space", SPACES, ids=("standard", "zero-bubble", "4d", "wide", "fixed"))
@HALF
@given(
    kinds=st.lists(st.booleans(), min_size=1, max_size=2, unique=True),
    count=st.sampled_from((2, 4, 6)),
    batch=st.sampled_from((4, 6, 8)),
    memory_GB=st.floats(0.2, 3.0),
    top=st.sampled_from((1, 3, 1000)),
    per_mesh=st.booleans(),
    eased=st.booleans(),
)
def test_screening_changes_nothing(
    space: Space, kinds: list[bool], count: int, batch: int, memory_GB: float, top: int, per_mesh: bool, eased: bool
) -> None:
    job, cluster = problem(kinds, count, batch, memory_GB)
    estimator = Estimator(job, cluster)
    capacity = cluster.accelerator.memory_bytes
    scale = Scale(top, per_mesh, capacity, 2e9, Ease(job, cluster, "megatron-core", capacity) if eased else None)
    expected, compared, feasible = unscreened(estimator, space, scale)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SHARE": 3, "MESHES": 2, "ROWS": 64, "FEW": 16}.items():
            patch.setattr(screen, name, value)
        found = Screening(estimator, scale)
        found.sample(enumeration := Enumeration(job, count, space))
        for part in enumeration.parts(frames=40):
            found.add(part)
    assert found.fold.best == expected.best
    assert found.fold.front == expected.front
    assert found.feasible == feasible
    if feasible:
        assert found.compared == compared
        faster = [kept for kept in expected.misfits if kept.key < expected.limit_s]
        assert [kept for kept in found.fold.misfits if kept.key < found.fold.limit_s] == faster


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("space", SPACES, ids=("standard", "zero-bubble", "4d", "wide", "fixed"))
@HALF
@given(kinds=st.lists(st.booleans(), min_size=1, max_size=2, unique=True), batch=st.sampled_from((6, 8)))
def test_peaks_and_bounds_are_those_of_single_layouts(space: Space, kinds: list[bool], batch: int) -> None:
    """Memory on grids is the same to the bit; no layout is faster than its bound."""
    job, cluster = problem(kinds, 4, batch, 80.0)
    estimator = Estimator(job, cluster)
    for part in Enumeration(job, 4, space).parts():
        every = np.arange(len(part.frames))
        for flag in (0, 1):
            frames, table = part.flagged(every, flag)
            whole = estimator.frame(table, ordered=part.switches.partial)
            for grid in part.grids(frames, flag) if len(frames) else ():
                switches, place = grid.axes(*screen.MEMORY)
                shape = -1, len(grid.frames)
                held, hosted = (one.reshape(shape)[place] for one in whole.peaks(grid.frames, switches))
                at, entry = np.divmod(np.arange(held.size), len(grid.entries))
                layouts = part.batch(frames[grid.frames[at]], grid.entries[entry]).table
                single = estimator.evaluate(layouts)
                assert np.array_equal(held[entry, at], single.memory_bytes)
                assert np.array_equal(hosted[entry, at], single.host_bytes)
                least = screen.least_s(part, whole)[:, grid.frames[at]]
                some = layouts.recompute_layers > 0
                code = np.where(some, 0, layouts.recompute)
                assert np.all(least[code, np.arange(len(at))] < single.iteration_s)
