"""One step operation by operation: programs timed by hand, the list of collectives, and what always holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.layout.step
from weft.cluster.calibration import Calibration
from weft.cluster.catalogue import load as load_cluster
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import estimate
from weft.layout.operations import Gemm
from weft.layout.spec import Layout
from weft.layout.step import Issue, StepOptions, step_collectives
from weft.model import resolve_job
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.simulation.step import UPDATE, Program, play, predict_on, predict_step, step_program


def gpt(layers=1, **fields):
    block = Block(
        hidden=32,
        attention=Attention(heads=8, kv_heads=8, head_dim=4, qkv_bias=True, out_bias=True, rotary=False),
        feed_forward=FeedForward(intermediate=128, gated=False, bias=True),
        norm_bias=True,
    )
    runs = (BlockRun(block=block, count=layers),)
    return Model(name="gpt", hidden=32, vocab=64, runs=runs, positions=16, norm_bias=True, **fields)


def llama(layers=2):
    block = Block(
        hidden=32, attention=Attention(heads=16, kv_heads=8, head_dim=4), feed_forward=FeedForward(intermediate=48)
    )
    return Model(name="llama", hidden=32, vocab=64, runs=(BlockRun(block=block, count=layers),))


RECIPE = Recipe(global_batch=16, sequence=16, precision="fp32")
OFF = {"overlap_tensor": "none", "overlap_reduce": False, "overlap_gather": False}
X, Y, Z = ("x",), ("y",), ("z",)


# By hand ------------------------------------------------------------------------------------------


def product_of(seconds):
    one = np.array([1.0])
    return Gemm(name="p", phase="forward", m=seconds * one, n=one, k=one)


def timed(program, other_s=0.0):
    """A product of m takes m seconds, a collective of b bytes b seconds."""
    return play(
        program,
        computation_s=lambda gemm: float(gemm.m[0]),
        collective_s=lambda kind, axes, bytes_: float(bytes_),
        other_s=other_s,
    )


def of(axes, seconds):
    return Issue("all-reduce", axes, seconds, 1)


def test_a_link_serves_in_order_and_links_serve_beside_each_other():
    """0-2 product; 2-7 first on x; 7-10 second on x, 2-6 on y; the product of 1 s hides in them."""
    program = Program()
    program.instructions.append(product_of(2))
    first, second = program.start(of(X, 5)), program.start(of(X, 3))
    other = program.start(of(Y, 4))
    program.instructions.append(product_of(1))
    program.wait(other)
    program.wait(second)
    program.wait(first)
    program.instructions.append(UPDATE)
    found = timed(program, other_s=0.5)
    assert (found.seconds, found.compute_s, found.other_s) == (10.5, 3, 0.5)
    assert found.exposed_s == {X: 4, Y: 3}
    assert found.busy_s == {X: 8, Y: 4}
    assert found.collectives == Counter({of(X, 5): 1, of(X, 3): 1, of(Y, 4): 1})


def test_a_collective_that_computation_outlasts_costs_nothing():
    program = Program()
    number = program.start(of(X, 2))
    program.instructions.append(product_of(3))
    program.wait(number)
    program.wait(number)
    program.wait(program.start(None))
    found = timed(program)
    assert (found.seconds, found.exposed_s, found.busy_s) == (3, {X: 0}, {X: 2})


def constant(layout, *, collective, model=None, options=None):
    """Every product takes a second."""
    job = Job(model=model or gpt(), recipe=RECIPE)
    found = predict_step(job, layout, gemm_s=lambda m, n, k: 1.0, collective_s=lambda *_: collective, options=options)
    return found.seconds


@pytest.mark.parametrize("c", [0.25, 0.75, 1.5])
def test_tensor_parallelism_by_hand(c):
    """One block over x: 15 products; the sums of embedding, projection and second layer, three of the
    cross-entropy and one of the norm wait; of logits, first layer and queries those of the input gradient
    hide behind one product each."""
    layout = Layout(x=8, micro_batch=16)
    assert constant(layout, collective=c) == pytest.approx(15 + 7 * c + 3 * max(c - 1, 0))
    assert constant(replace(layout, **OFF), collective=c) == pytest.approx(15 + 10 * c)


@pytest.mark.parametrize("c", [0.25, 0.5])
def test_sharding_over_z_by_hand(c):
    """One block over z: 6 scatters and 11 gathers (the embedding's one, two of the rest), sums of vectors,
    loss and norm.  With overlap the first two gathers wait, as nothing computes before them, and the last
    scatter, of the embedding; each product of a weight's gradient hides its scatter and the next gather."""
    layout = Layout(z=8, micro_batch=2)
    assert constant(layout, collective=c) == pytest.approx(15 + 6 * c)
    assert constant(replace(layout, **OFF), collective=c) == pytest.approx(15 + 20 * c)


@pytest.mark.parametrize("c", [0.25, 0.5])
def test_single_overlaps_over_z_by_hand(c):
    """Prefetching alone exposes the first two gathers, and all scatters.  Scatters alone expose all gathers;
    as that for a layer's input gradient comes right behind the scatter of its weight's, the scatters of all
    four layers; and that of the embedding, but not that of the logits."""
    layout = replace(Layout(z=8, micro_batch=2), **OFF)
    gathers = replace(layout, overlap_gather=True)
    assert constant(gathers, collective=c) == pytest.approx(15 + (2 + 6 + 3) * c)
    scatters = replace(layout, overlap_reduce=True)
    assert constant(scatters, collective=c) == pytest.approx(15 + (11 + 4 + 1 + 3) * c)


def test_data_parallelism_by_hand():
    """One bucket, complete after the embedding's gradient: nothing hides; vectors, loss and norm; with
    ZeRO-1 values are gathered."""
    layout = Layout(data=8, micro_batch=2)
    assert constant(layout, collective=0.5) == pytest.approx(15 + 0.5 * 5)
    assert constant(replace(layout, zero=0), collective=0.5) == pytest.approx(15 + 0.5 * 4)


def test_buckets_that_are_complete_hide_behind_the_rest(monkeypatch):
    """Three buckets of four blocks, 51 products: of one second each, only that of the first matrices, which
    the backward pass reaches last, is waited for."""
    monkeypatch.setattr(weft.layout.step, "BUCKET_ELEMENTS", 20_000.0)
    monkeypatch.setattr(weft.layout.step, "BUCKET_ELEMENTS_PER_RANK", 1.0)
    layout = Layout(data=8, micro_batch=2, zero=0)
    late = constant(replace(layout, overlap_reduce=False), collective=1.0, model=gpt(layers=4))
    assert late == pytest.approx(51 + 3 + 3)
    assert constant(layout, collective=1.0, model=gpt(layers=4)) == pytest.approx(51 + 1 + 3)


# What always holds --------------------------------------------------------------------------------


@st.composite
def layouts(draw):
    """Of eight ranks, that the runtime can train."""
    x = draw(st.sampled_from([1, 2, 4, 8]))
    y = draw(st.sampled_from([d for d in (1, 2, 4, 8) if x * d <= 8]))
    z = draw(st.sampled_from([d for d in (1, 2, 4, 8) if x * y * d <= 8]))
    data = 8 // (x * y * z)
    return Layout(
        x=x,
        y=y,
        z=z,
        data=data,
        micro_batch=draw(st.sampled_from([m for m in (1, 2, 4, 8, 16) if m <= 16 // (z * data)])),
        zero=draw(st.sampled_from([0, 1])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sequence_parallel=draw(st.booleans()) if x > 1 and y == 1 else False,
        overlap_tensor=draw(st.sampled_from(["none", "backward"])),
        overlap_reduce=draw(st.booleans()),
        overlap_gather=draw(st.booleans()),
    )


MODELS = [gpt(), gpt(layers=3, tied_embeddings=True), gpt(layers=2, head_bias=True), llama()]
JOBS = st.sampled_from([Job(model=model, recipe=RECIPE) for model in MODELS])
OPTIONS = st.builds(StepOptions, clip=st.booleans())
SPEEDS = st.tuples(st.sampled_from([0.0, 1e-6, 1e-4]), st.sampled_from([1e6, 1e8, 1e10]), st.sampled_from([1e8, 1e10]))


def predicted(job, layout, options, speeds, faster=1.0):
    latency_s, Bps, flops = speeds
    return predict_step(
        job,
        layout,
        gemm_s=lambda m, n, k: 2 * m * n * k / flops,
        collective_s=lambda kind, axes, bytes_: latency_s + bytes_ / (Bps * faster),
        options=options,
        other_s=1e-3,
    )


@given(JOBS, layouts(), OPTIONS, SPEEDS)
def test_the_parts_of_a_step(job, layout, options, speeds):
    found = predicted(job, layout, options, speeds)
    assert found.collectives == step_collectives(job.model, job.recipe, layout, options=options)
    exposed, busy = sum(found.exposed_s.values()), sum(found.busy_s.values())
    assert found.seconds == pytest.approx(found.compute_s + found.other_s + exposed)
    assert found.seconds <= (found.compute_s + found.other_s + busy) * (1 + 1e-12)
    assert found.exposed_s.keys() == found.busy_s.keys() == {one.axes for one in found.collectives}
    for axes, seconds in found.busy_s.items():
        assert found.exposed_s[axes] <= seconds * (1 + 1e-9)
        assert seconds <= found.seconds * (1 + 1e-12)


@pytest.mark.slow
@given(JOBS, layouts(), OPTIONS, SPEEDS)
def test_overlaps_and_bandwidth_only_help(job, layout, options, speeds):
    found = predicted(job, layout, options, speeds).seconds
    assert found <= predicted(job, replace(layout, **OFF), options, speeds).seconds * (1 + 1e-12)
    assert predicted(job, layout, options, speeds, faster=2.0).seconds <= found
    replayed = replace(layout, recompute="full")
    assert found <= predicted(job, replayed, options, speeds).seconds * (1 + 1e-12)


@given(JOBS, layouts(), OPTIONS, st.integers(500, 40_000))
def test_the_collectives_of_many_buckets(job, layout, options, elements):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weft.layout.step, "BUCKET_ELEMENTS", float(elements))
        patch.setattr(weft.layout.step, "BUCKET_ELEMENTS_PER_RANK", 1.0)
        found = Counter(step_program(job, layout, options).issued)
        assert found == step_collectives(job.model, job.recipe, layout, options=options)


@given(JOBS, layouts(), OPTIONS)
def test_every_collective_is_waited_for_once_it_was_issued(job, layout, options):
    started, waited = 0, set()
    for one in step_program(job, layout, options).instructions:
        if isinstance(one, Issue):
            started += 1
        elif isinstance(one, int):
            assert one < started
            waited.add(one)
    assert waited == set(range(started))


# On a cluster -------------------------------------------------------------------------------------

PLAIN = replace(Calibration(), launch_s=1e-6, overlap_cost=0.0)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_computation_is_the_estimator_s(recompute, attention):
    job = resolve_job("llama-3.1-8b")
    job = replace(job, recipe=replace(job.recipe, global_batch=64, attention=attention))
    layout = Layout(x=8, data=8, micro_batch=2, recompute=recompute)
    cluster = load_cluster("h100-64")
    found = predict_on(job, cluster, layout, PLAIN)
    time = {part.name: part.value for part in estimate(job, cluster, [layout], PLAIN)[0].time}
    assert found.compute_s == pytest.approx(time["forward_s"] + time["backward_s"] + time["recompute_s"])
    assert found.other_s == pytest.approx(time["optimizer_s"] + time["host_s"])


@pytest.mark.parametrize("degrees", [{"x": 8, "data": 8}, {"y": 2, "data": 32}, {"data": 64}])
def test_unhidden_communication_is_the_estimator_s(degrees):
    """But for scalars, which the estimator does not count."""
    job = resolve_job("llama-3.1-8b")
    job = replace(job, recipe=replace(job.recipe, global_batch=64))
    cluster = load_cluster("h100-64")
    layout = Layout(micro_batch=1, **degrees, **OFF)
    found = predict_on(job, cluster, layout, PLAIN)
    assert found.seconds == pytest.approx(estimate(job, cluster, [layout], PLAIN)[0].iteration_s, rel=1e-3)


def test_weights_are_gathered_one_by_one():
    """The estimator gathers a block's weights at once, which has fewer latencies."""
    job = resolve_job("llama-3.1-8b")
    job = replace(job, recipe=replace(job.recipe, global_batch=64))
    cluster = load_cluster("h100-64")
    layout = Layout(micro_batch=1, z=64, **OFF)
    found = predict_on(job, cluster, layout, PLAIN)
    whole = estimate(job, cluster, [layout], PLAIN)[0]
    assert whole.iteration_s < found.seconds < 1.1 * whole.iteration_s


@pytest.mark.slow
def test_hidden_collectives_slow_computation_down():
    job = resolve_job("llama-3.1-8b")
    cluster = load_cluster("h100-64")
    layout = Layout(x=8, z=8, micro_batch=1)
    free, costly = (predict_on(job, cluster, layout, replace(PLAIN, overlap_cost=c)) for c in (0.0, 0.1))
    hidden = sum(free.busy_s.values()) - sum(free.exposed_s.values())
    assert hidden > 0
    assert costly.seconds == pytest.approx(free.seconds + 0.1 * hidden)
    assert costly.seconds == pytest.approx(costly.compute_s + costly.other_s + sum(costly.exposed_s.values()))


def test_refusals():
    job = Job(model=gpt(layers=2), recipe=RECIPE)
    with pytest.raises(Unsupported, match="pipeline"):
        constant(Layout(pipeline=2, data=4, micro_batch=1), collective=1.0)
    with pytest.raises(BadInput, match="multiple"):
        constant(Layout(data=8, micro_batch=3), collective=1.0)
    with pytest.raises(BadInput, match="accelerators"):
        predict_on(job, load_cluster("h100-64"), Layout(data=8, micro_batch=1))
