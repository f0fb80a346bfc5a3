"""A whole training run: days, accelerator-hours, dollars and energy, with failures and checkpoints.

Failures are Poisson processes: one loses the work since the last checkpoint, and a restart may fail again.
The expected time and the best interval are those of ``weft.reliability.renewal``, which is Daly's complete model where
all failures are alike; Daly's and Young's optima are given too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.estimation.result import Estimate, Failures, TrainingRun
from weft.model.job import Job
from weft.reliability import renewal
from weft.reliability.renewal import Process, Recovery, Saving, Stop, TimeShares
from weft.units import format_seconds, format_si

CHECKPOINT_BYTES_PER_PARAMETER = 14.0
"""Weights in 16 bits, and Adam's state in fp32: master weights and two moments."""
RESTART_S = 600.0
"""Detect a failure, replace the node, start the processes and load the checkpoint; an assumption that agrees
with the effective training time above 90 % of Llama 3 (arXiv 2407.21783, section 3.3.4)."""
PUE = 1.25
"""Power of the data centre over that of the accelerators at their board limit; hosts are not counted."""
LARGEST = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Failures told apart: the name of their rates, the process, its checkpoints, accelerators paid for as spares, and
    what was assumed."""

    name: str
    process: Process
    saving: Saving
    checkpoint_bytes: float
    spare_accelerators: int = 0
    defaults: tuple[str, ...] = ()


def training_run(
    estimate: Estimate,
    job: Job,
    cluster: Cluster,
    *,
    tokens: float,
    mtbf_s: float | None = None,
    usd_per_accelerator_hour: float | None = None,
    failing: Failing | None = None,
) -> TrainingRun:
    """The run over ``tokens`` at an estimate's iteration time.

    Args:
        estimate: of the job on the cluster.
        tokens: to train on; the last iteration is a whole one.
        mtbf_s: mean time between failures of one accelerator with its share of host and network; None: no
            failures and no checkpoints.
        usd_per_accelerator_hour: price; the accelerator's own where it has one.
        failing: classes of failures, instead of ``mtbf_s``.

    Raises:
        BadInput: a value is not positive and finite, or failures come too fast for the run to end.
    """
    defaults = [f"pue: {PUE:g} (power of the data centre over its accelerators')"]
    count = estimate.layout.world
    powered = count if failing is None else count + failing.spare_accelerators
    paid = powered + cluster.spares
    iterations = math.ceil(positive(tokens, "tokens") / job.recipe.tokens)
    training_s = iterations * positive(estimate.iteration_s, "iteration time")
    failures, expected_s = None, training_s
    # One mean time between failures is the simplest process: every stop alike.
    if failing is None and mtbf_s is not None:
        failing = _alike(job, count, mtbf_s)
    if failing is not None:
        failures, _, result = failures_of(failing, count, (estimate.iteration_s, iterations))
        expected_s = training_s / result.goodput
        defaults += failing.defaults
    price = None
    if usd_per_accelerator_hour is not None:
        price = positive(usd_per_accelerator_hour, "price per accelerator-hour", zero=True)
    elif cluster.accelerator.usd_per_hour > 0:
        price = cluster.accelerator.usd_per_hour
        defaults.append(f"price: ${price:g} per accelerator-hour ({cluster.accelerator.name})")
    hours = paid * expected_s / 3600.0
    return TrainingRun(
        tokens=float(tokens),
        iterations=iterations,
        accelerators=paid,
        training_s=training_s,
        expected_s=expected_s,
        accelerator_hours=hours,
        usd_per_accelerator_hour=price,
        usd=None if price is None else hours * price,
        pue=PUE,
        energy_mwh=powered / paid * hours * cluster.accelerator.power_w * PUE / 1e6,
        failures=failures,
        defaults=tuple(defaults),
    )


def _alike(job: Job, count: int, mtbf_s: float) -> Failing:
    """Failures that are all alike; all accelerators write equal shares of a checkpoint while training waits."""
    size_bytes, write_Bps = checkpoint_size(job), Recovery().storage_Bps_per_accelerator
    stop = Stop(name="failure", rate=count / positive(mtbf_s, "mtbf"), restart_s=RESTART_S)
    return Failing(
        name=f"one in {format_seconds(mtbf_s)} per GPU",
        process=Process(stops=(stop,)),
        saving=Saving(interval_s=1.0, stall_s=size_bytes / (write_Bps * count)),
        checkpoint_bytes=size_bytes,
        defaults=(
            f"checkpoint size: {format_si(size_bytes, 'B')} (14 bytes per parameter)",
            f"checkpoint bandwidth: {format_si(write_Bps, 'B/s')} per accelerator",
            f"restart time: {format_seconds(RESTART_S)}",
        ),
    )


def failures_of(failing: Failing, count: int, run: tuple[float, int]) -> tuple[Failures, Saving, TimeShares]:
    """Costs at the best whole number of iterations between checkpoints.

    Args:
        failing: whose saving has stalls, lag and levels; its interval does not count.
        count: accelerators that train.
        run: seconds of an iteration, and iterations.

    Raises:
        BadInput: failures come too fast for the run to end.
    """
    process, saving = failing.process, failing.saving
    iteration_s, iterations = run
    # The interval is a whole number of iterations; shares of the time follow exactly from the renewal process.
    steps, best = renewal.best_saving(process, saving, iteration_s, iterations)
    result = renewal.outcome(process, best)
    job_mtbf_s, stall_s = 1.0 / process.rate, best.segment_s - best.interval_s
    failures = Failures(
        mtbf_s=count * job_mtbf_s,
        job_mtbf_s=job_mtbf_s,
        checkpoint_bytes=failing.checkpoint_bytes,
        checkpoint_s=stall_s,
        restart_s=math.fsum(stop.rate * stop.restart_s for stop in process.stops) / process.rate,
        young_interval_s=renewal.young_interval(stall_s, job_mtbf_s),
        daly_interval_s=renewal.daly_interval(stall_s, job_mtbf_s),
        interval_iterations=steps,
        interval_s=best.interval_s,
        expected_failures=result.stops * iterations * iteration_s / result.goodput,
        goodput=result.goodput,
        checkpoint_share=result.saving,
        rework_share=result.rework,
        restart_share=result.restart,
        other_share=max(0.0, 1.0 - result.goodput - result.saving - result.rework - result.restart),
        source=failing.name,
        classes=result.classes,
    )
    return failures, best, result


def checkpoint_size(job: Job) -> float:
    """Bytes of a checkpoint: weights and the state of the optimizer of every parameter."""
    return CHECKPOINT_BYTES_PER_PARAMETER * (job.model.parameters + job.model.prediction_parameters)


def positive(value: float, name: str, *, zero: bool = False) -> float:
    """The value, where it is finite and above (with ``zero``: not below) zero."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "zero or more" if zero else "more than zero"
        raise BadInput(f"{value:g} is not {least} and finite", where=name)
    if value > LARGEST:
        raise BadInput(f"{value:g} is more than {LARGEST:g}", where=name, remedy="check its unit")
    return float(value)
