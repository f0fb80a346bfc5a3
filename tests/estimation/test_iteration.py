"""Properties of the closed-form clock over random layouts of dense, grouped-query, expert, latent and
windowed models."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from weft.cluster.calibration import Calibration, calibration
from weft.cluster.catalogue import load as load_cluster
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network, collective_s
from weft.errors import Unsupported
from weft.estimation.iteration import Estimator, estimate
from weft.estimation.result import MEMORY_PARTS, TIME_PARTS, EstimateTable
from weft.layout.check import explain
from weft.layout.mesh import Spread
from weft.layout.spec import ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.table import LayoutTable
from weft.model import Job, Recipe, resolve_job
from weft.model.catalogue import load as load_model
from weft.model.job import model_flops

RECIPE = Recipe(global_batch=64, sequence=4096)
WORKS = {
    "gpt-unfused": ("gpt-7.5b-sc21", replace(RECIPE, attention="unfused", dropout=True, precision="fp16")),
    "llama": ("llama-3-8b", RECIPE),
    "llama-fp8": ("llama-3-8b", replace(RECIPE, precision="fp8", gradient_bytes=2)),
    "mixtral": ("mixtral-8x7b", RECIPE),
    "deepseek": ("deepseek-v2-lite", RECIPE),
    "gemma": ("gemma-2-9b", RECIPE),
}
COUNT = 64


def job(name: str) -> Job:
    model, recipe = WORKS[name]
    return Job(model=load_model(model).model, recipe=recipe)


def cluster() -> Cluster:
    return load_cluster(f"h100-{COUNT}")


def random_layout(rng: np.random.Generator) -> Layout:
    """Any combination of fields whose degrees multiply to COUNT."""
    degrees = dict.fromkeys(("x", "y", "context", "z", "data", "pipeline"), 1)
    for _ in range(COUNT.bit_length() - 1):
        degrees[str(rng.choice(list(degrees)))] *= 2
    schedule = str(rng.choice(list(PipelineSchedule))) if degrees["pipeline"] > 1 else "1f1b"
    virtual = {"zbv": 2, "interleaved": int(rng.choice([2, 4]))}.get(schedule, 1)
    recompute = str(rng.choice(list(Recompute)))
    return Layout(
        **degrees,
        schedule=schedule,  # type: ignore[arg-type]
        virtual_stages=virtual,
        micro_batch=int(rng.choice([1, 2, 4])),
        zero=int(rng.integers(3)),
        recompute=recompute,  # type: ignore[arg-type]
        recompute_layers=int(rng.choice([0, 1])) if recompute == "full" else 0,
        expert=int(rng.choice([1, 2, 4, 8])),
        sequence_parallel=bool(rng.integers(2)),
        context_method=str(rng.choice(list(ContextMethod))),  # type: ignore[arg-type]
        overlap_tensor=str(rng.choice(list(TensorOverlap))),  # type: ignore[arg-type]
        overlap_reduce=bool(rng.integers(2)),
        overlap_gather=bool(rng.integers(2)),
        offload_optimizer=bool(rng.integers(2)),
        offload_activations=bool(rng.integers(2)),
    )


@cache
def layouts(name: str) -> tuple[Layout, ...]:
    """Valid random layouts."""
    rng, work, found = np.random.default_rng(7), job(name), []
    while len(found) < 250:
        layout = random_layout(rng)
        if work.model.kinds[-1].moe is None:
            layout = replace(layout, expert=1)
        if layout.x == 1 or layout.y > 1:
            layout = replace(layout, sequence_parallel=False)
        if explain(work, COUNT, layout) is None:
            found.append(layout)
    return tuple(found)


@cache
def results(name: str) -> EstimateTable:
    return Estimator(job(name), cluster()).evaluate(LayoutTable.of(layouts(name)))


def flat(table: EstimateTable) -> dict[str, np.ndarray]:
    """Every column by name."""
    return {f.name: getattr(table, f.name) for f in fields(table)}


LONG = ("llama-fp8", "gemma")
works = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in WORKS]
)


@pytest.mark.slow_but(1)
@works
def test_parts_add_up_and_no_time_is_below_its_bound(name: str) -> None:
    found = results(name)
    for column, values in flat(found).items():
        assert np.isfinite(values).all(), column
        assert (values >= 0).all(), column
    assert (found.lower_bound_s > 0).all()
    assert (found.iteration_s >= found.lower_bound_s).all()
    time = sum(getattr(found, part) for part in TIME_PARTS)
    memory = sum(getattr(found, part) for part in MEMORY_PARTS)
    assert np.allclose(time, found.iteration_s, rtol=1e-12)
    assert np.allclose(memory, found.memory_bytes, rtol=1e-12)


@pytest.mark.slow
@works
def test_a_table_equals_single_layouts_bit_for_bit(name: str) -> None:
    """Bit for bit, beside a row for which stages are listed in order, as some row of the table asks."""
    ordered = next(one for one in layouts(name) if one.recompute_layers)
    estimator, together = Estimator(job(name), cluster()), flat(results(name))
    for i in range(0, len(layouts(name)), 5):
        alone = flat(estimator.evaluate(LayoutTable.of([layouts(name)[i], ordered])))
        for column, values in alone.items():
            assert values[0] == together[column][i], (column, layouts(name)[i])


@pytest.mark.slow_but(1)
@works
def test_order_and_batches_do_not_matter(name: str) -> None:
    estimator, together = Estimator(job(name), cluster()), flat(results(name))
    table = LayoutTable.of(layouts(name))
    order = np.random.default_rng(3).permutation(len(table))
    for part in np.array_split(order, 3):
        for column, values in flat(estimator.evaluate(table.take(part))).items():
            assert np.array_equal(values, together[column][part]), column


def test_large_tables_are_pieces_of_the_same_rows() -> None:
    """Tables longer than one pass of the arithmetic."""
    estimator, name = Estimator(job("llama"), cluster()), "llama"
    times = 60
    repeated = np.tile(np.arange(len(layouts(name))), times)
    found = flat(estimator.evaluate(LayoutTable.of(layouts(name)).take(repeated)))
    for column, values in flat(results(name)).items():
        assert np.array_equal(found[column], np.tile(values, times)), column


@works
def test_model_flops_are_executed(name: str) -> None:
    """Without y (whose ranks repeat attention) and with sequence parallelism (or the latent projections
    repeat over x) exactly the model's FLOPs run, plus the replayed part."""
    work, found = job(name), results(name)
    causal = work.recipe.attention == "flash"
    expected = model_flops(work.model, work.recipe, causal=causal)
    plain = np.array([one.y == 1 and (one.x == 1 or one.sequence_parallel) for one in layouts(name)])
    useful = found.executed_flops - found.replayed_flops
    assert plain.any()
    assert np.allclose(useful[plain], expected, rtol=1e-9)
    assert (useful >= expected * (1 - 1e-9)).all()


@works
def test_full_recomputation_repeats_the_blocks(name: str) -> None:
    work, found = job(name), results(name)
    head = 2.0 * work.recipe.tokens * work.model.hidden * work.model.vocab
    useful = found.executed_flops - found.replayed_flops
    forward = useful / 3 - head
    share = found.replayed_flops / forward
    whole = np.array([one.recompute == "full" and one.recompute_layers == 0 for one in layouts(name)])
    none = np.array([one.recompute == "none" for one in layouts(name)])
    assert np.allclose(share[whole], 1.0)
    assert (share[none] == 0).all()
    assert (share < 1 + 1e-9).all()


@works
def test_rates_follow_from_the_time(name: str) -> None:
    work = job(name)
    for one in estimate(work, cluster(), layouts(name)[:5]):
        peak = cluster().accelerator.peak_flops(work.recipe.precision)
        assert one.tokens_per_s == pytest.approx(work.recipe.tokens / one.iteration_s)
        assert one.mfu == pytest.approx(model_flops(work.model, work.recipe) / one.iteration_s / peak / COUNT)
        assert one.hfu >= one.mfu
        assert one.model_tflops == pytest.approx(one.mfu * peak / 1e12)
        assert one.fits == (one.memory_bytes <= cluster().accelerator.memory_bytes)


# Directions -------------------------------------------------------------------------------------


def variants(name: str, field: str, values: tuple[object, ...]) -> list[EstimateTable]:
    """The same layouts with one field set to each value, where all are valid.

    Activations stay on board unless they are the question: their transfers hide behind whatever is exposed.
    """
    work = job(name)
    base = [replace(one, offload_activations=False) for one in layouts(name)]
    rows = [[replace(one, **{field: value}) for value in values] for one in base]  # type: ignore[arg-type]
    sound = [row for row in rows if all(explain(work, COUNT, one) is None for one in row)]
    assert sound
    estimator = Estimator(work, cluster())
    return [estimator.evaluate(LayoutTable.of(list(column))) for column in zip(*sound, strict=True)]


@pytest.mark.slow_but(2)
@works
@pytest.mark.parametrize("field", ["overlap_reduce", "overlap_gather"])
def test_overlap_never_loses(name: str, field: str) -> None:
    without, with_ = variants(name, field, (False, True))
    assert (with_.iteration_s <= without.iteration_s * (1 + 1e-12)).all()
    assert np.array_equal(with_.memory_bytes, without.memory_bytes)


@pytest.mark.slow_but(1)
@works
def test_tensor_overlap_never_loses(name: str) -> None:
    """Where weights are exposed instead, seconds of forward may become seconds of backward, for which zero-bubble
    schedules wait: there a little may be lost."""
    found = variants(name, "overlap_tensor", TensorOverlap)
    waits = np.array([one.z > 1 and one.schedule.splits_backward for one in layouts(name)])
    for slower, faster in pairwise(found):
        assert (faster.iteration_s <= slower.iteration_s * np.where(waits, 1.005, 1 + 1e-6)).all()


@pytest.mark.slow_but(1)
@works
def test_zero_stages_save_memory(name: str) -> None:
    for more, less in pairwise(variants(name, "zero", (0, 1, 2))):
        assert (less.memory_bytes <= more.memory_bytes * (1 + 1e-12)).all()


@pytest.mark.slow_but(1)
@works
def test_recomputation_saves_memory_and_costs_time(name: str) -> None:
    """Selective against none; full needs a block's working space, which stages of one layer do not save."""
    found = variants(name, "recompute", ("none", "selective"))
    assert (found[1].memory_bytes <= found[0].memory_bytes * (1 + 1e-12)).all()
    assert (found[1].iteration_s >= found[0].iteration_s * (1 - 1e-12)).all()


@pytest.mark.slow_but(1)
@works
def test_offloading_saves_memory(name: str) -> None:
    for field in ("offload_optimizer", "offload_activations"):
        on_board, offloaded = variants(name, field, (False, True))
        assert (offloaded.memory_bytes <= on_board.memory_bytes * (1 + 1e-12)).all()


@works
def test_sequence_parallelism_saves_memory(name: str) -> None:
    if job(name).model.kinds[-1].moe is not None:
        pytest.skip("experts need it")
    without, with_ = variants(name, "sequence_parallel", (False, True))
    assert (with_.memory_bytes <= without.memory_bytes * (1 + 1e-12)).all()


def doubled(base: Cluster) -> Cluster:
    """Twice every peak and bandwidth."""
    chip = base.accelerator
    names = [f.name for f in fields(chip) if f.name.endswith(("_flops", "_Bps"))]
    tiers = tuple(replace(tier, bandwidth_Bps=2 * tier.bandwidth_Bps) for tier in base.tiers)
    faster = replace(chip, **{name: 2 * getattr(chip, name) for name in names})
    return replace(base, accelerator=faster, tiers=tiers)


@works
def test_doubling_all_hardware_never_slows(name: str) -> None:
    faster = Estimator(job(name), doubled(cluster())).evaluate(LayoutTable.of(layouts(name)))
    assert (faster.iteration_s <= results(name).iteration_s * (1 + 1e-12)).all()
    assert (faster.lower_bound_s < results(name).lower_bound_s).all()


@works
def test_ideal_constants_never_slow(name: str) -> None:
    """Efficiencies of one and no fixed costs: still above the bound."""
    ideal = Calibration(
        gemm_efficiency=1.0,
        low_precision_efficiency=1.0,
        attention_efficiency=1.0,
        gemm_depth=0.0,
        memory_efficiency=1.0,
        kernel_s=0.0,
        launch_s=0.0,
        scale_up_efficiency=1.0,
        scale_up_reduction_efficiency=1.0,
        scale_out_efficiency=1.0,
        collective_s=0.0,
        overlap_cost=0.0,
        iteration_s=0.0,
        optimizer_efficiency=1.0,
        host_efficiency=1.0,
        host_update_Bps=1e15,
    )
    found = Estimator(job(name), cluster(), ideal).evaluate(LayoutTable.of(layouts(name)))
    assert (found.iteration_s <= results(name).iteration_s).all()
    assert (found.iteration_s >= found.lower_bound_s * (1 - 1e-12)).all()


# Schedules --------------------------------------------------------------------------------------


def schedules(micro_batches: int) -> dict[str, EstimateTable]:
    """One pipeline of 8 stages of 4 equal blocks under every schedule, with element-wise steps fused: what
    they take leaves weight gradients, which zero-bubble schedules defer, a smaller share."""
    work = Job(model=load_model("llama-2-7b").model, recipe=replace(RECIPE, global_batch=micro_batches))
    estimator = Estimator(work, load_cluster("h100-8"), calibration("h100", stack=None))
    pairs = {"1f1b": 1, "interleaved": 2, "zb1p": 1, "zbv": 2}
    return {
        name: estimator.evaluate(
            LayoutTable.of([Layout(pipeline=8, schedule=name, virtual_stages=virtual)])  # type: ignore[arg-type]
        )
        for name, virtual in pairs.items()
    }


def test_bubbles_of_the_schedules() -> None:
    """(p - 1) / m of the work for 1F1B, half of it with two chunks, half or less for zero-bubble."""
    found = {name: float(table.bubble_s[0]) for name, table in schedules(32).items()}
    plain = schedules(32)["1f1b"]
    busy = float(plain.forward_s[0] + plain.backward_s[0])
    assert found["1f1b"] == pytest.approx(busy * 7 / 32, rel=0.15)
    assert found["interleaved"] == pytest.approx(found["1f1b"] / 2, rel=0.2)
    assert found["zbv"] <= found["zb1p"] <= 0.5 * found["1f1b"]


def test_bubble_is_paid_once_per_iteration() -> None:
    short, long = (schedules(batch)["1f1b"] for batch in (16, 64))
    assert short.bubble_s[0] == pytest.approx(long.bubble_s[0])
    assert short.forward_s[0] * 4 == pytest.approx(long.forward_s[0])


def test_missing_precision_is_refused() -> None:
    work = Job(model=load_model("llama-3-8b").model, recipe=replace(RECIPE, precision="fp8"))
    with pytest.raises(Unsupported, match="fp8"):
        Estimator(work, load_cluster("a100-8"))


# Hand-worked parts ------------------------------------------------------------------------------


def one(layout: Layout, batch: int, cluster_name: str = "h100-64") -> EstimateTable:
    work = Job(model=load_model("llama-2-7b").model, recipe=replace(RECIPE, global_batch=batch))
    return Estimator(work, load_cluster(cluster_name)).evaluate(LayoutTable.of([layout]))


def test_plain_pipelines_wait_for_every_boundary() -> None:
    """Two messages a micro-batch, and two per boundary to fill and drain."""
    cluster_ = load_cluster("h100-8")
    network = Network.of(cluster_, calibration("h100"))
    pair = Spread(np.array([8.0]), (np.array([8.0]),))
    hop = float(collective_s("send", np.array([2.0 * 4096 * 4096]), pair, network)[0])
    for batch in (8, 32):
        found = one(Layout(pipeline=8), batch, "h100-8").stage_send_s[0]
        assert found == pytest.approx((2 * batch + 2 * 7) * hop)


def test_sharded_gradients_are_scattered_every_micro_batch() -> None:
    """ZeRO-2: m reduce-scatters where ZeRO-1 has one; both gather parameters once."""

    def exposed(zero: int, micro_batches: int) -> float:
        layout = Layout(data=64, zero=zero, overlap_reduce=False, overlap_gather=False)
        return float(one(layout, 64 * micro_batches).data_s[0])

    scatter = (exposed(2, 5) - exposed(2, 1)) / 4
    assert scatter > 0
    assert exposed(1, 1) == pytest.approx(exposed(1, 5))
    assert exposed(2, 1) == pytest.approx(exposed(1, 1))
    assert exposed(1, 1) > scatter


@pytest.mark.parametrize("field", ["overlap_gather", "overlap_reduce"])
def test_hidden_collectives_slow_the_work_that_hides_them(field: str) -> None:
    cost = calibration("h100").overlap_cost
    base = Layout(z=64, overlap_gather=False, overlap_reduce=False)
    without, with_ = (one(layout, 64) for layout in (base, replace(base, **{field: True})))  # type: ignore[arg-type]
    hidden = without.weights_s[0] - with_.weights_s[0]
    assert hidden > 0
    assert with_.backward_s[0] - without.backward_s[0] == pytest.approx(cost * hidden)


def test_a_rank_that_waits_for_its_host_communicates_meanwhile() -> None:
    """A network of any speed gives the same time where launches take longer than all that they launch."""
    slow_host = replace(calibration("h100"), launches_per_step=30.0)
    layout = Layout(x=4, data=16, sequence_parallel=True)
    model = replace(load_model("gpt2-124m").model, vocab=50304)
    small = Job(model=model, recipe=replace(RECIPE, global_batch=16, sequence=256))
    assert explain(small, COUNT, layout) is None
    times = [
        Estimator(small, cluster(), replace(slow_host, scale_up_efficiency=share)).evaluate(LayoutTable.of([layout]))
        for share in (0.4, 0.9)
    ]
    assert float(times[0].tensor_s[0]) == float(times[1].tensor_s[0]) == 0.0
    assert float(times[0].forward_s[0]) == float(times[1].forward_s[0])


def test_the_busiest_rank_of_experts_sets_the_pace() -> None:
    """Fewer experts on a rank average less of their loads out; on one rank there is nobody to wait for."""
    job = resolve_job("mixtral-8x7b")
    job = replace(job, recipe=replace(job.recipe, global_batch=64))
    table = LayoutTable.of([Layout(data=8, expert=expert) for expert in (1, 2, 8)])
    cluster, even = load_cluster("h100-8"), replace(calibration("h100"), expert_spread=0.0)
    plain, spread = (
        Estimator(job, cluster, replace(even, expert_spread=value)).evaluate(table).iteration_s for value in (0.0, 0.3)
    )
    slower = spread / plain
    assert slower[0] == pytest.approx(1.0)
    assert 1.0 < slower[1] < slower[2] < 1.5
