"""Rejections: one example of each code, with its numbers, and what every accepted layout guarantees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.layout.check import CODES, REASONS, explain, reject
from weft.layout.spec import ContextMethod, Layout, PipelineSchedule, Recompute
from weft.layout.table import LayoutTable
from weft.model import Attention, Block, BlockRun, FeedForward, Job, MixtureOfExperts, Model, Recipe
from weft.model.spec import StateSpace

DENSE = Block(
    hidden=96, attention=Attention(heads=8, kv_heads=4, head_dim=12), feed_forward=FeedForward(intermediate=256)
)
ROUTED = replace(DENSE, feed_forward=MixtureOfExperts(experts=8, top_k=2, expert=FeedForward(intermediate=64)))
RECURRENT = replace(DENSE, attention=None, state_space=StateSpace(heads=8, head_dim=12, groups=2, state=16, chunk=16))


def job(block: Block = DENSE, *, layers: int = 8, batch: int = 16, sequence: int = 64) -> Job:
    model = Model(name="m", hidden=96, vocab=512, runs=(BlockRun(block=block, count=layers),))
    return Job(model=model, recipe=Recipe(global_batch=batch, sequence=sequence))


REFUSED = [
    ("world-mismatch", Layout(x=2, data=2), job(), "= 4, cluster has 8"),
    ("batch-not-divisible", Layout(data=8), job(batch=12), "global batch 12"),
    ("batch-not-divisible", Layout(data=8, micro_batch=4), job(), "= 32"),
    ("heads-not-divisible", Layout(x=8), job(), "8 heads, 4 key-value heads, tp = 8"),
    (
        "features-not-divisible",
        Layout(x=4, data=2),
        job(replace(DENSE, feed_forward=FeedForward(intermediate=250))),
        "hidden 96, tp = 4",
    ),
    (
        "state-heads",
        Layout(x=4, data=2, sequence_parallel=True),
        job(RECURRENT),
        "8 heads in 2 groups, tp = 4, cp = 1",
    ),
    ("sequence-not-divisible", Layout(context=8), job(sequence=72), "72 tokens, cp = 8"),
    ("sequence-not-divisible", Layout(x=4, data=2, sequence_parallel=True), job(sequence=66), "66 tokens"),
    ("ulysses-heads", Layout(x=2, context=4, context_method="ulysses"), job(), "tp * cp = 8"),
    ("too-many-stages", Layout(pipeline=8), job(layers=6), "8 * 1 chunks, 6 layers"),
    (
        "too-many-stages",
        Layout(pipeline=4, data=2, virtual_stages=3, schedule="interleaved"),
        job(),
        "4 * 3 chunks, 8 layers",
    ),
    ("schedule-mismatch", Layout(data=8, schedule="zb1p"), job(), "pp = 1"),
    ("schedule-mismatch", Layout(pipeline=4, data=2, virtual_stages=2), job(), "vpp = 2"),
    ("schedule-mismatch", Layout(pipeline=4, data=2, schedule="interleaved"), job(), "interleaved"),
    ("schedule-mismatch", Layout(pipeline=4, data=2, schedule="zbv"), job(), "zbv"),
    (
        "interleaving-rounds",
        Layout(pipeline=4, data=2, virtual_stages=2, schedule="interleaved"),
        job(batch=12),
        "6 micro-batches, pp = 4",
    ),
    ("pipeline-starved", Layout(pipeline=8, schedule="zb1p"), job(batch=4), "4 micro-batches, pp = 8"),
    ("experts-not-divisible", Layout(data=8, expert=2), job(), "ep 2"),
    ("experts-not-divisible", Layout(data=2, pipeline=4, expert=4), job(ROUTED), "on 2 ranks of a stage"),
    ("experts-need-sequence-parallel", Layout(x=2, data=4, expert=4), job(ROUTED), "tp = 2"),
    ("sequence-not-divisible", Layout(x=2, y=2, data=2), job(ROUTED, sequence=66), "66 tokens, cp = 1, tp = 2, y"),
    ("sequence-parallel-misused", Layout(data=8, sequence_parallel=True), job(), "tp = 1"),
    ("recompute-layers", Layout(data=8, recompute_layers=2), job(), "recompute_layers = 2"),
    (
        "recompute-layers",
        Layout(pipeline=4, data=2, recompute="full", recompute_layers=3),
        job(),
        "recompute_layers = 3",
    ),
]


@pytest.mark.parametrize(
    ("code", "layout", "work", "numbers"), REFUSED, ids=[f"{i}-{case[0]}" for i, case in enumerate(REFUSED)]
)
def test_each_code_says_why(code: str, layout: Layout, work: Job, numbers: str) -> None:
    found = explain(work, 8, layout)
    assert found is not None
    assert found.code == code
    assert found.reason.startswith(REASONS[code])
    assert numbers in found.reason


def test_every_static_code_has_an_example() -> None:
    assert {case[0] for case in REFUSED} == set(CODES) - {"does-not-fit", "host-memory"}


@pytest.mark.parametrize(
    ("layout", "work"),
    [
        (Layout(data=8), job()),
        (Layout(x=4, data=2, sequence_parallel=True), job()),
        (Layout(x=2, y=2, z=2), job()),
        (Layout(pipeline=4, data=2, virtual_stages=2, schedule="interleaved"), job()),
        (Layout(pipeline=4, data=2, virtual_stages=2, schedule="zbv"), job()),
        (Layout(context=4, data=2, context_method="ulysses"), job()),
        (Layout(x=2, data=4, expert=8, sequence_parallel=True), job(ROUTED)),
        (Layout(x=2, data=4, expert=4, expert_tensor=2, sequence_parallel=True), job(ROUTED)),
        (Layout(x=2, y=2, data=2, expert=4, expert_tensor=2), job(ROUTED)),
    ],
)
def test_sound_layouts_pass(layout: Layout, work: Job) -> None:
    assert explain(work, 8, layout) is None


degree = st.sampled_from([1, 2, 3, 4])
layouts = st.builds(
    Layout,
    x=degree,
    y=st.sampled_from([1, 2]),
    z=degree,
    data=degree,
    pipeline=degree,
    context=degree,
    expert=st.sampled_from([1, 2, 4]),
    micro_batch=degree,
    virtual_stages=st.sampled_from([1, 2, 3]),
    schedule=st.sampled_from(PipelineSchedule),
    recompute=st.sampled_from(Recompute),
    sequence_parallel=st.booleans(),
    context_method=st.sampled_from(ContextMethod),
)


@given(layouts, st.sampled_from([DENSE, ROUTED]))
def test_accepted_layouts_divide_everything(layout: Layout, block: Block) -> None:
    work = job(block, batch=48, sequence=96)
    if explain(work, layout.world, layout) is not None:
        return
    micro_batches = 48 / (layout.micro_batch * layout.dp)
    assert micro_batches == int(micro_batches)
    assert 8 % layout.x == 4 % layout.x == 96 % layout.y == 0
    assert 96 % layout.context == 0
    assert layout.pipeline * layout.virtual_stages <= 8
    if layout.schedule == "interleaved":
        assert micro_batches % layout.pipeline == 0
    if block.moe is None:
        assert layout.expert == 1
    else:
        assert layout.expert * layout.expert_tensor * layout.expert_data == layout.stage_ranks
        assert layout.x == 1 or layout.sequence_parallel


@given(st.lists(layouts, min_size=1, max_size=10))
def test_tables_decide_row_by_row(rows: list[Layout]) -> None:
    work = job(batch=48, sequence=96)
    verdict = reject(work, 16, LayoutTable.of(rows))
    mesh = reject(work, 16, LayoutTable.of(rows), mesh_alone=True)
    for i, layout in enumerate(rows):
        found = explain(work, 16, layout)
        assert found is None if verdict[i] < 0 else found is not None and found.code == CODES[verdict[i]]
        assert mesh[i] < 0 or mesh[i] == verdict[i]
