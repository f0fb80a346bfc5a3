"""Seconds of an iteration that a source states, or that follow from the rate that it states."""

from __future__ import annotations

from weft.cluster.spec import Accelerator
from weft.estimation.single import CORE_REPLAY
from weft.layout.spec import Layout
from weft.model.flops import attention_forward_flops, block_forward_flops, model_flops
from weft.model.job import Job
from weft.validation.runs import Run
from weft.validation.stack import Stack


def stated_seconds(run: Run, job: Job) -> tuple[float | None, str]:
    """The time that a source states, directly or as tokens/s, and what was assumed."""
    seconds = run.measured_iter_s or run.iter_s
    if seconds is not None:
        return seconds, ""
    if run.tokens_s_gpu is None:
        return None, ""
    return job.recipe.tokens / (run.tokens_s_gpu * (run.gpus or 1)), "time from tokens/s"


def seconds_from_rate(run: Run, stack: Stack, job: Job, layout: Layout, chip: Accelerator) -> tuple[float | None, str]:
    """The time that follows from stated TFLOP/s or MFU, and how FLOPs were counted."""
    rate = run.tflops_per_gpu and 1e12 * run.tflops_per_gpu
    unit = "TFLOP/s"
    if rate is None and run.mfu is not None:
        rate, unit = run.mfu * chip.peak_flops(job.recipe.precision), "MFU"
    if rate is None:
        return None, ""
    counted, how = counted_flops(run, stack, job, layout)
    return counted / (rate * layout.world), f"time from stated {unit}, {how}"


def counted_flops(run: Run, stack: Stack, job: Job, layout: Layout) -> tuple[float, str]:
    """FLOPs of an iteration as the source counts them, and how that is.

    With recomputation (arXiv 2104.04473, eq. 3; 2205.05198, appendix A): the blocks' forward pass once more,
    or, selective, their attention as often as the core itself.
    """
    flops = model_flops(job.model, job.recipe, causal=stack.flops == "causal")
    attention = f"attention counted {stack.flops}"
    if not run.counts_recompute or layout.recompute == "none":
        return flops, f"model FLOPs, {attention}"
    replayed = 0.0
    for kind in job.model.runs:
        if layout.recompute == "full":
            replayed += kind.count * block_forward_flops(kind.block, job.recipe)
        else:
            replayed += CORE_REPLAY * kind.count * attention_forward_flops(kind.block, job.recipe)
    return flops + replayed, f"FLOPs with recomputation, {attention}"
