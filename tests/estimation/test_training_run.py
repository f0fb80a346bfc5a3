"""Training runs: published operation, brute force and Monte-Carlo as oracles."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import catalogue as clusters
from weft.errors import BadInput
from weft.estimation.result import Estimate
from weft.estimation.training import PUE, RESTART_S, training_run
from weft.layout.spec import Layout
from weft.model import Job, Recipe
from weft.model import catalogue as models
from weft.model.job import model_flops
from weft.reliability.renewal import daly_interval, young_interval

JOB = Job(model=models.load("llama-3.1-405b").model, recipe=Recipe(global_batch=2048, sequence=8192))
CLUSTER = clusters.load("h100-16384")
HOUR = 3600.0


def expected_seconds(training_s, interval_s, *, checkpoint_s, restart_s, mtbf_s) -> float:
    """M exp(R / M) (exp((tau + delta) / M) - 1) per interval (Daly 2006, the complete model)."""
    segment = math.expm1((interval_s + checkpoint_s) / mtbf_s)
    return mtbf_s * math.exp(restart_s / mtbf_s) * segment * training_s / interval_s


def timed(iteration_s: float, world: int = 16384) -> Estimate:
    return Estimate(
        layout=Layout(data=world),
        iteration_s=iteration_s,
        lower_bound_s=iteration_s,
        tokens_per_s=1.0,
        mfu=0.4,
        mfu_unmasked=0.38,
        hfu=0.4,
        model_tflops=400.0,
        memory_bytes=1.0,
        capacity_bytes=2.0,
        host_bytes=0.0,
        host_capacity_bytes=None,
        fullest_stage=0,
        time=(),
        memory=(),
        provenance="analytic",
        error=None,
    )


def test_llama_3_loses_less_than_ten_percent():
    """419 unexpected interruptions in 54 days on 16,384 GPUs, effective training time above 90 % (arXiv
    2407.21783, section 3.3.4)."""
    mtbf_s = 54 * 24 * HOUR / 419 * 16384
    run = training_run(timed(6.4), JOB, CLUSTER, tokens=15.6e12, mtbf_s=mtbf_s)
    assert run.failures.job_mtbf_s == pytest.approx(3.09 * HOUR, rel=0.01)
    assert 0.90 < run.failures.goodput < 0.97
    assert run.failures.expected_failures / run.expected_days == pytest.approx(419 / 54, rel=1e-9)


def test_llama_3_hours():
    """30.84 million H100-hours by the model card, at 400 TFLOP/s (arXiv 2407.21783, table 4)."""
    seconds = model_flops(JOB.model, JOB.recipe) / (16384 * 400e12)
    mtbf_s = 54 * 24 * HOUR / 419 * 16384
    run = training_run(timed(seconds), JOB, CLUSTER, tokens=15.6e12, mtbf_s=mtbf_s)
    assert run.accelerator_hours == pytest.approx(30.84e6, rel=0.1)


def test_sums():
    run = training_run(timed(2.0), JOB, CLUSTER, tokens=JOB.recipe.tokens * 900 - 1)
    assert run.iterations == 900
    assert run.training_s == run.expected_s == 1800.0
    assert run.accelerator_hours == 16384 / 2
    assert run.energy_mwh == pytest.approx(16384 * 700 * 0.5 * PUE / 1e6)
    assert run.usd == pytest.approx(run.accelerator_hours * CLUSTER.accelerator.usd_per_hour)
    assert any("price" in default for default in run.defaults)


def test_racks_are_paid_for_whole_and_spares_draw_no_power():
    """64 of 72 GPUs train: nine eighths of the hours and dollars, and the energy of 64."""
    racks = clusters.load("gb200-512")
    run = training_run(timed(10.0, 512), JOB, racks, tokens=1e12)
    plain = training_run(timed(10.0, 512), JOB, replace(racks, whole_domains=False), tokens=1e12)
    assert (run.accelerators, plain.accelerators) == (576, 512)
    assert run.accelerator_hours == pytest.approx(plain.accelerator_hours * 9 / 8)
    assert run.usd == pytest.approx(plain.usd * 9 / 8)
    assert run.energy_mwh == pytest.approx(plain.energy_mwh)


def test_no_price_no_dollars():
    chip = replace(CLUSTER.accelerator, usd_per_hour=0.0)
    run = training_run(timed(2.0), JOB, replace(CLUSTER, accelerator=chip), tokens=1e9)
    assert run.usd is None
    paid = training_run(timed(2.0), JOB, CLUSTER, tokens=1e9, usd_per_accelerator_hour=1.0)
    assert paid.usd == paid.accelerator_hours
    assert not any("price" in default for default in paid.defaults)


mtbfs = st.floats(600.0, 1e6)
checkpoints = st.floats(0.5, 200.0)


@given(mtbfs, checkpoints, st.floats(0.0, 1000.0))
def test_daly_is_within_a_thousandth_of_brute_force(mtbf_s, checkpoint_s, restart_s):
    def cost(interval_s: float) -> float:
        return expected_seconds(1e6, interval_s, checkpoint_s=checkpoint_s, restart_s=restart_s, mtbf_s=mtbf_s)

    grid = [math.exp(math.log(1.0) + i / 400 * math.log(1e7)) for i in range(401)]
    best = min(cost(interval) for interval in grid if interval < 50 * mtbf_s)
    assert cost(daly_interval(checkpoint_s, mtbf_s)) <= best * 1.001


@given(mtbfs)
def test_daly_tends_to_young_for_short_checkpoints(mtbf_s):
    assert daly_interval(1e-4, mtbf_s) == pytest.approx(young_interval(1e-4, mtbf_s), rel=1e-3)
    assert daly_interval(3 * mtbf_s, mtbf_s) == mtbf_s


@given(st.floats(0.1, 100.0), st.floats(3e7, 1e10), st.floats(1e9, 1e13))
def test_shares_add_up_and_the_interval_is_the_best_of_all_whole_ones(iteration_s, mtbf_s, tokens):
    run = training_run(timed(iteration_s), JOB, CLUSTER, tokens=tokens, mtbf_s=mtbf_s)
    found = run.failures
    shares = (found.goodput, found.checkpoint_share, found.rework_share, found.restart_share)
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) == pytest.approx(1.0, abs=1e-6)
    assert run.expected_s >= run.training_s
    for steps in {1, max(1, found.interval_iterations // 2), found.interval_iterations * 2, run.iterations}:
        interval_s = min(steps, run.iterations) * iteration_s
        if interval_s < 50 * found.job_mtbf_s:
            other = expected_seconds(
                run.training_s,
                interval_s,
                checkpoint_s=found.checkpoint_s,
                restart_s=RESTART_S,
                mtbf_s=found.job_mtbf_s,
            )
            assert run.expected_s <= other * 1.001


@pytest.mark.parametrize("name", ["tokens", "mtbf_s", "usd_per_accelerator_hour"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
def test_values_that_cannot_be_used(name, value):
    values = {"tokens": 1e9, "mtbf_s": 1e8} | {name: value}
    with pytest.raises(BadInput):
        training_run(timed(1.0), JOB, CLUSTER, **values)


def test_failures_faster_than_progress():
    with pytest.raises(BadInput, match="leaves no time"):
        training_run(timed(6.0), JOB, CLUSTER, tokens=1e12, mtbf_s=50_000)
