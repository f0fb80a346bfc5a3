"""Predicted against published: Korthikanti et al.'s eight A100 runs, Llama 3.1 405B's three, and all that Weft ships.

Figures of the papers (arXiv 2205.05198, table 5; arXiv 2407.21783, table 4) stand here as small tables.
Constants are those that `weft validate --fit` set with all published runs, these among them; Meta does not state
the virtual stages of the Llama runs.

Run: ``python benchmarks/accuracy.py``.
"""

from __future__ import annotations

from statistics import mean

import bench

import weft
from weft.cluster import load as load_cluster
from weft.cluster.calibration import calibration
from weft.estimation import Estimate, estimate
from weft.layout import Layout
from weft.layout.check import explain
from weft.model import RecipeChanges, model_flops, resolve_job

KORTHIKANTI = (
    ("22b", 8, 1, 1, 4, 4, 1.42, 1.10, 41.5, 43.7),
    ("175b", 64, 8, 3, 1, 64, 18.13, 13.75, 51.4, 52.8),
    ("530b", 280, 35, 3, 1, 280, 49.05, 37.83, 56.0, 57.0),
    ("1t", 512, 64, 1, 1, 512, 94.42, 71.49, 56.3, 57.0),
)
"""Size, A100s, pipeline, virtual stages, micro-batch, batch, seconds with full and with selective
recomputation, MFU and HFU of the latter."""

LLAMA = ((8192, 8192, 2048, 1, 64, 430), (16384, 8192, 2048, 1, 128, 400), (16384, 131072, 128, 16, 8, 380))
"""H100s, sequence, batch, context, data, TFLOP/s per GPU; TP 8 and PP 16 in all."""


def predicted(model: str, cluster: str, layout: Layout, changes: RecipeChanges, stack: str) -> Estimate:
    """The estimate of a layout that must be valid."""
    job, where = resolve_job(model, changes), load_cluster(cluster)
    assert (broken := explain(job, where.count, layout)) is None, broken
    return estimate(job, where, [layout], calibration(where.accelerator.name, stack))[0]


def korthikanti() -> dict[str, float]:
    """Iteration time of the eight runs, and MFU/HFU at the measured time."""
    errors, points = [], []
    for size, gpus, pipeline, virtual, micro_batch, batch, full, selective, mfu, hfu in KORTHIKANTI:
        for recompute, measured in (("full", full), ("selective", selective)):
            layout = Layout(
                x=8,
                pipeline=pipeline,
                virtual_stages=virtual,
                schedule="interleaved" if virtual > 1 else "1f1b",
                micro_batch=micro_batch,
                zero=0,
                recompute=recompute,
                sequence_parallel=recompute == "selective",
            )
            one = predicted(
                f"gpt-{size}-korthikanti",
                f"a100-{gpus}",
                layout,
                RecipeChanges(global_batch=batch),
                "megatron-lm-2022",
            )
            error = one.iteration_s / measured - 1
            errors.append(abs(error))
            line = f"{size:5s} {recompute:9s} measured {measured:6.2f} s"
            line += f"  predicted {one.iteration_s:6.2f} s {error:+6.1%}"
            if recompute == "selective":
                at = one.iteration_s / measured
                points += [abs(100 * one.mfu * at - mfu), abs(100 * one.hfu * at - hfu)]
                line += f"   at the measured time MFU {one.mfu * at:.1%} ({mfu}), HFU {one.hfu * at:.1%} ({hfu})"
            print(line)
    print(f"mean absolute error {mean(errors):.1%}, largest {max(errors):.1%}\n")
    return {
        "korthikanti_mean_error": mean(errors),
        "korthikanti_largest_error": max(errors),
        "korthikanti_mfu_error_points": max(points),
    }


def llama() -> dict[str, float]:
    """TFLOP/s per GPU of the three runs, over the virtual stages that Meta may have used."""
    figures = {}
    for gpus, sequence, batch, context, data, published in LLAMA:
        changes = RecipeChanges(global_batch=batch, sequence=sequence)
        cells = []
        for virtual in (1, 2, 4, 7):
            layout = Layout(
                x=8,
                pipeline=16,
                context=context,
                data=data,
                virtual_stages=virtual,
                schedule="interleaved" if virtual > 1 else "1f1b",
                sequence_parallel=True,
            )
            one = predicted("llama-3.1-405b", f"h100-{gpus}", layout, changes, "meta-llama")
            job = resolve_job("llama-3.1-405b", changes)
            causal = model_flops(job.model, job.recipe, causal=True) / one.iteration_s / gpus / 1e12
            fits = "" if one.fits else ", too large"
            key = f"llama_{gpus}_gpus_{sequence}_tokens_{virtual}_virtual"
            figures |= {f"{key}_tflops": one.model_tflops, f"{key}_causal_tflops": causal}
            cells.append(f"v={virtual}: {one.model_tflops:3.0f} ({causal:3.0f} causal{fits})")
        print(f"405B on {gpus} at {sequence} tokens, CP {context}: published {published}; {'; '.join(cells)}")
    return figures


def shipped() -> dict[str, float]:
    """Mean absolute error of each family of the runs that Weft ships, as ``weft validate`` has it."""
    found = weft.validate()
    print(f"all families: {found.headline:.1%}")
    return {f"validate_{one.family}_error": one.mape for one in found.families if one.mape is not None}


if __name__ == "__main__":
    bench.record(bench.parser(__doc__).parse_args(), korthikanti() | llama() | shipped())
