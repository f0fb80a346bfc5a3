"""One layout's estimate for a person, and what each hardware figure is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.cluster.calibration import Calibration
from weft.cluster.catalogue import Scales, scaled
from weft.cluster.spec import Cluster
from weft.estimation.iteration import Estimator
from weft.estimation.offload import pinned_capacity
from weft.estimation.result import MEMORY_PARTS, TIME_PARTS, Estimate, EstimateTable, Part
from weft.estimation.trust import widened_bar
from weft.layout.check import check_layout
from weft.layout.spec import Layout
from weft.layout.step import RUNTIME
from weft.layout.table import LayoutTable
from weft.model.flops import model_flops
from weft.model.job import Job

CORE_REPLAY = 3.0
"""Published HFU counts a recomputed attention core as often as the core itself, forward and backward: s/3h
for s/6h in arXiv 2205.05198, appendix A.  Only the reported HFU does; time replays the forward pass once."""


def estimate_of(estimator: Estimator, layout: Layout, results: EstimateTable, row: int) -> Estimate:
    """One row of a table of estimates with totals, rates and named parts."""
    job, cluster, chip = estimator.job, estimator.cluster, estimator.cluster.accelerator
    seconds = float(results.iteration_s[row])
    peak = cluster.accelerator.peak_flops(job.recipe.precision) * layout.world
    flops = model_flops(job.model, job.recipe)
    core = layout.recompute == "selective" and not estimator.software.by_product
    counted = CORE_REPLAY if core else 1.0
    replayed = counted * float(
        results.replayed_flops[row] / (results.executed_flops[row] - results.replayed_flops[row])
    )
    return Estimate(
        layout=layout,
        iteration_s=seconds,
        lower_bound_s=float(results.lower_bound_s[row]),
        tokens_per_s=job.recipe.tokens / seconds,
        mfu=flops / seconds / peak,
        mfu_unmasked=model_flops(job.model, job.recipe, causal=True) / seconds / peak,
        hfu=flops * (1 + replayed) / seconds / peak,
        model_tflops=flops / seconds / layout.world / 1e12,
        memory_bytes=float(results.memory_bytes[row]),
        capacity_bytes=cluster.accelerator.memory_bytes,
        host_bytes=float(results.memory.host_bytes[row]),
        host_capacity_bytes=None if cluster.accelerator.host_memory_bytes is None else pinned_capacity(chip),
        fullest_stage=int(results.memory.stage[row]),
        time=tuple(Part(name=name, value=float(getattr(results.time, name)[row])) for name in TIME_PARTS),
        memory=tuple(Part(name=name, value=float(getattr(results.memory, name)[row])) for name in MEMORY_PARTS),
        provenance=estimator.constants.provenance,
        error=widened_bar(job, cluster) if estimator.constants.shipped else None,
    )


def of_runtime(constants: Calibration) -> Calibration:
    """Constants of an accelerator for ``weft.runtime``: PyTorch's own kernels, whose loss keeps copies in fp32 (its
    logarithm, and two gradients; split over the vocabulary, the probabilities and their gradient)."""
    return replace(constants, software=RUNTIME.name, gradient_dummies=0.0, loss_copies=3.0, cut_loss_copies=2.0)


def estimate(
    job: Job, cluster: Cluster, layouts: Sequence[Layout], constants: Calibration | None = None
) -> tuple[Estimate, ...]:
    """Estimates of layouts of a job on a cluster.

    Raises:
        BadInput: a layout breaks a rule of ``weft.layout.check``.
    """
    for layout in layouts:
        check_layout(job, cluster.count, layout)
    estimator = Estimator(job, cluster, constants)
    results = estimator.evaluate(LayoutTable.of(layouts))
    return tuple(estimate_of(estimator, layout, results, i) for i, layout in enumerate(layouts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Iteration time with one hardware figure changed, everything else as it is."""

    change: str
    iteration_s: float
    speedup: float


def sensitivities(
    job: Job, cluster: Cluster, layout: Layout, constants: Calibration | None = None
) -> tuple[Sensitivity, ...]:
    """What twice each hardware figure would do to the iteration time of a layout."""
    base = estimate(job, cluster, [layout], constants)[0].iteration_s
    found = []
    for change, changed, changed_constants in _variants(cluster, constants):
        seconds = estimate(job, changed, [layout], changed_constants)[0].iteration_s
        found.append(Sensitivity(change=change, iteration_s=seconds, speedup=base / seconds))
    return tuple(found)


def _variants(cluster: Cluster, constants: Calibration | None) -> Sequence[tuple[str, Cluster, Calibration | None]]:
    first, outer = cluster.tiers[0], cluster.tiers[1:]
    variants = [
        ("matrix peak x2", scaled(cluster, Scales(peak=2)), constants),
        ("HBM bandwidth x2", scaled(cluster, Scales(hbm=2)), constants),
        (f"{first.name} bandwidth x2", scaled(cluster, Scales(scale_up=2)), constants),
    ]
    if outer:
        variants.append(("NIC bandwidth x2", scaled(cluster, Scales(nic=2)), constants))
        if (wider := _wider_domain(cluster)) is not None:
            variants.append((f"{first.name} domain x2", wider, constants))
    variants.append(("network latency x2", scaled(cluster, Scales(latency=2)), constants))
    return variants


def _wider_domain(cluster: Cluster) -> Cluster | None:
    """Twice as many accelerators in the scale-up domain, half as many domains; None where they do not pair
    up."""
    first, second, *outer = cluster.tiers
    if second.size % 2:
        return None
    pair = (replace(first, size=2 * first.size), replace(second, size=second.size // 2))
    return replace(cluster, tiers=(*pair, *outer))
