"""Why a part of the time or of the memory differs between two estimates: what changed that the part depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.estimation.iteration import Estimator
from weft.layout.mesh import spread
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.units import counted, format_si

SMALL = 0.01
"""Relative changes of FLOPs and of their rate that are not worth a word."""
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "compute": ("tp", "y", "cp", "pp", "mbs", "ep"),
    "recompute_s": ("recompute", "layers recomputed"),
    "tensor_s": ("tp", "y", "mbs", "sp", "overlap of tp", "order"),
    "context_s": ("cp", "tp", "cp by", "order"),
    "expert_s": ("ep", "etp", "tp", "mbs", "order"),
    "weights_s": ("fsdp", "cp", "tp", "pp", "micro-batches", "gathering overlapped", "order"),
    "stage_send_s": ("pp", "virtual stages", "schedule", "micro-batches", "tp"),
    "bubble_s": ("pp", "virtual stages", "schedule", "micro-batches"),
    "data_s": ("dp", "fsdp", "tp", "pp", "ep", "ZeRO", "reducing overlapped", "order"),
    "optimizer_s": ("tp", "pp", "fsdp", "dp", "ep", "ZeRO", "optimizer offloaded"),
    "offload_s": ("optimizer offloaded", "activations offloaded"),
    "host_s": ("micro-batches",),
    "weights_bytes": ("tp", "y", "pp", "fsdp", "ep", "etp"),
    "gradients_bytes": ("tp", "y", "pp", "fsdp", "ep", "etp", "ZeRO"),
    "optimizer_bytes": ("tp", "y", "pp", "dp", "fsdp", "ep", "ZeRO", "optimizer offloaded"),
    "activations_bytes": (
        *("tp", "sp", "cp", "pp", "mbs", "virtual stages", "schedule"),
        *("recompute", "layers recomputed", "activations offloaded"),
    ),
    "buffers_bytes": ("tp", "cp", "fsdp", "pp", "ep", "mbs"),
    "communicators_bytes": ("tp", "sp", "y", "cp", "fsdp", "dp", "pp", "ep", "etp", "ZeRO", "order"),
    "reserve_bytes": (),
}
"""What each part depends on, by the words of ``settings``."""
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tensor_s": ("x", "y"),
    "context_s": ("context",),
    "expert_s": ("expert",),
    "weights_s": ("shard",),
    "stage_send_s": ("pipeline",),
    "data_s": ("replica",),
}
"""The axes over which each kind of communication goes."""
_COMPUTE = ("forward_s", "backward_s", "recompute_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """An estimated layout with the figures that its parts follow from."""

    job: Job
    cluster: Cluster
    layout: Layout
    stack: str
    flops: float
    """That an accelerator executes for a token of the batch, recomputation included."""
    rate_flops: float
    """FLOP/s of an accelerator while it computes."""

    @classmethod
    def of(cls, job: Job, cluster: Cluster, layout: Layout, constants: Calibration | None, stack: str) -> Traced:
        """The figures of one layout."""
        found = Estimator(job, cluster, constants).evaluate(LayoutTable.of([layout]))
        each = float(found.executed_flops[0]) / layout.world
        seconds = fsum(float(getattr(found.time, name)[0]) for name in _COMPUTE)
        return cls(
            job=job,
            cluster=cluster,
            layout=layout,
            stack=stack,
            flops=each / job.recipe.tokens,
            rate_flops=each / seconds,
        )

    @property
    def settings(self) -> dict[str, object]:
        """What a part may depend on, in the field's words."""
        one = self.layout
        return {
            "tp": one.x,
            "y": one.y,
            "cp": one.context,
            "pp": one.pipeline,
            "dp": one.data_parallel,
            "fsdp": one.z,
            "ep": one.expert,
            "etp": one.expert_tensor,
            "mbs": one.micro_batch,
            "sp": "on" if one.sequence_parallel else "off",
            "virtual stages": one.virtual_stages,
            "schedule": str(one.schedule),
            "micro-batches": self.job.recipe.global_batch // (one.micro_batch * one.data_parallel),
            "ZeRO": one.zero,
            "recompute": str(one.recompute),
            "layers recomputed": one.recompute_layers,
            "cp by": str(one.context_method),
            "overlap of tp": str(one.overlap_tensor),
            "reducing overlapped": "yes" if one.overlap_reduce else "no",
            "gathering overlapped": "yes" if one.overlap_gather else "no",
            "optimizer offloaded": "yes" if one.offload_optimizer else "no",
            "activations offloaded": "yes" if one.offload_activations else "no",
            "order": "/".join(one.order),
        }

    def reach(self, axes: tuple[str, ...]) -> tuple[str, float] | None:
        """The tier that the groups of some axes reach, and its bytes/s per accelerator; None for groups of one."""
        spans = np.cumprod([tier.size for tier in self.cluster.tiers]).tolist()
        found = spread(LayoutTable.of([self.layout]), axes, spans)
        size = float(found.size[0])
        if size <= 1:
            return None
        for tier, members in zip(self.cluster.tiers, found.members, strict=True):
            if float(members[0]) >= size:
                return tier.name, tier.effective_Bps
        last = self.cluster.tiers[-1]
        return last.name, last.effective_Bps


def causes(part: str, one: Traced, other: Traced) -> tuple[str, ...]:
    """What differs between two layouts that a part of the time or memory depends on, weightiest first."""
    found = []
    if part in _COMPUTE:
        found += _computing(one, other)
    if part in _GROUPS:
        found += _reach(_GROUPS[part], one, other)
    if part == "optimizer_s" or part in _COMPUTE:
        a, b = (each.cluster.accelerator.memory_Bps for each in (one, other))
        found += [] if a == b else [f"HBM {format_si(a, 'B/s')} -> {format_si(b, 'B/s')}"]
    before, after = one.settings, other.settings
    names = _FIELDS["recompute_s"] if part == "recompute_s" else ()
    names += _FIELDS["compute" if part in _COMPUTE else part]
    found += [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]
    found += _recipe(one, other)
    if one.stack != other.stack:
        found.append(f"software {one.stack} -> {other.stack}")
    return tuple(found)


def _computing(one: Traced, other: Traced) -> list[str]:
    """The work of an accelerator, and how fast it does it."""
    found = []
    work, rate = other.flops / one.flops, other.rate_flops / one.rate_flops
    if abs(work - 1) > SMALL:
        count = f" ({one.layout.world:,} -> {counted(other.layout.world, 'accelerator')})"
        found.append(f"{work:.2f}x the FLOPs per accelerator" + count * (one.layout.world != other.layout.world))
    if abs(rate - 1) > SMALL:
        shown = f"{one.rate_flops / 1e12:,.0f} -> {other.rate_flops / 1e12:,.0f} TFLOP/s while it computes"
        peaks = [each.cluster.accelerator.peak_flops(each.job.recipe.precision) / 1e12 for each in (one, other)]
        found.append(shown + (f" (peak {peaks[0]:,.0f} -> {peaks[1]:,.0f})" if peaks[0] != peaks[1] else ""))
    return found


def _reach(axes: tuple[str, ...], one: Traced, other: Traced) -> list[str]:
    """Where the groups of some axes lie, if that differs."""
    a, b = one.reach(axes), other.reach(axes)
    if a == b:
        return []
    return [" -> ".join("no group" if each is None else f"{each[0]} {each[1] / 1e9:g} GB/s" for each in (a, b))]


def _recipe(one: Traced, other: Traced) -> list[str]:
    """How the jobs differ."""
    if one.job is other.job:
        return []
    a, b = one.job, other.job
    pairs = [
        ("model", a.model.name, b.model.name),
        ("sequence", a.recipe.sequence, b.recipe.sequence),
        ("batch", a.recipe.global_batch, b.recipe.global_batch),
        ("precision", a.recipe.precision, b.recipe.precision),
        ("attention", a.recipe.attention, b.recipe.attention),
    ]
    return [f"{name} {before} -> {after}" for name, before, after in pairs if before != after]
