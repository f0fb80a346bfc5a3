"""AxoNN (arXiv 2305.13525, 2502.08145) beside Weft: its communication model, and its claims against Megatron-LM.

    python reproductions/axonn.py

The communication model gives seconds of communication of a 4D layout, to rank candidate layouts.  It follows the
public cost-model script of AxoNN's authors, with one correction (``buffers``).
Ring collectives, bandwidth terms only, no overlap, no compute.  A layout is (x, y, z, data), AxoNN's (row,
column, depth, data): x splits the output features of a normal linear layer and the input features of a
transposed one, y the other way round, z the batch and the stored weights, data replicates.  Placement from
the inside: y, x, z, data.  Layouts are rows of an (n, 4) array of integers; results have n entries.

The claims: 80B parameters on 1,024 A100 of Perlmutter at 57 % of peak (182 PFLOP/s, recomputation counted), 26 %
faster than Megatron-LM.  The paper's batch is not in the texts at hand, so that several are tried.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import fsum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from paper import show

import weft
from weft import BadInput, Estimate

Layouts = NDArray[np.int64]
Values = NDArray[np.float64]

WEIGHT_BYTES = 2.0
"""Bytes of a weight and of an activation."""
GRADIENT_BYTES = 4.0
"""Bytes of a weight's gradient when it is reduced over data."""
X, Y, Z, DATA = range(4)
PLACEMENT = (Y, X, Z, DATA)
"""Axes from the innermost."""


@dataclass(frozen=True)
class Supercomputer:
    """A machine of the paper: nodes of ``node`` accelerators and the bandwidths that its authors measured.

    The script divides bytes by 2**30 and by a figure in "GB/s"; the figures here are therefore GiB/s.
    ``intra_GiBps`` maps (product of the axes inside this one, size of the axis) to the bandwidth within a
    node; ``inter_GiBps`` is that of a node, shared by the rings that leave it.
    """

    name: str
    node: int
    inter_GiBps: float
    intra_GiBps: Mapping[tuple[int, int], float]

    @cached_property
    def table(self) -> Values:
        """``intra_GiBps`` as a matrix; NaN where nothing was measured, infinity for axes of size 1."""
        matrix = np.full((self.node + 1, self.node + 1), np.nan)
        matrix[:, 1] = np.inf
        for (inner, size), value in self.intra_GiBps.items():
            matrix[inner, size] = value
        return matrix

    def bandwidth_Bps(self, inner: NDArray[np.int64], size: NDArray[np.int64]) -> Values:
        """Bytes/s of a ring over an axis of ``size`` whose inner axes multiply to ``inner``.

        Raises:
            BadInput: the axis lies within a node and was not measured.
        """
        inside = inner * size <= self.node
        measured = self.table[np.where(inside, inner, 0), np.where(inside, size, 1)]
        if np.isnan(measured).any():
            raise BadInput(
                f"no measured bandwidth on {self.name} for an axis within a node",
                where="axonn model",
                remedy="use axes that are powers of two",
            )
        shared = self.inter_GiBps / np.minimum(self.node, inner)
        return np.where(inside, measured, np.where(size == 1, np.inf, shared)) * 2.0**30


PERLMUTTER = Supercomputer(
    name="Perlmutter",
    node=4,
    inter_GiBps=80.0,
    intra_GiBps=MappingProxyType({(1, 2): 76.0, (1, 4): 225.0, (2, 2): 76.0}),
)
FRONTIER = Supercomputer(
    name="Frontier",
    node=8,
    inter_GiBps=40.0,
    intra_GiBps=MappingProxyType(
        {(1, 2): 129.0, (1, 4): 52.0, (1, 8): 135.0, (2, 2): 50.0, (2, 4): 72.0, (4, 2): 36.0}
    ),
)


@dataclass(frozen=True, slots=True)
class GptShape:
    """A GPT of the authors' launcher; ``min_tensor`` is the least x * y * z that they tried (40 GB A100)."""

    layers: int
    hidden: int
    min_tensor: int


SHAPES: Mapping[str, GptShape] = MappingProxyType(
    {
        "5B": GptShape(24, 4096, 4),
        "10B": GptShape(32, 5120, 8),
        "20B": GptShape(32, 7168, 16),
        "40B": GptShape(38, 9216, 32),
        "50B": GptShape(48, 9216, 32),
        "60B": GptShape(56, 9216, 64),
        "80B": GptShape(42, 12288, 64),
        "100B": GptShape(53, 12288, 64),
        "160B": GptShape(84, 12288, 128),
        "175B": GptShape(96, 12288, 128),
    }
)


@dataclass(frozen=True, slots=True)
class MeshLinear:
    """One linear layer; a transposed one swaps the roles of x and y."""

    out_features: int
    in_features: int
    transposed: bool

    @property
    def out_axis(self) -> int:
        return Y if self.transposed else X

    @property
    def contraction_axis(self) -> int:
        return X if self.transposed else Y


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCounts:
    """Collectives of one linear layer per iteration.

    The default is the paper's set-up: full recomputation, and the gathered weight kept for the backward pass.
    Without recomputation ``gather`` is 1 (kept) or 2 (gathered again) and ``forward`` is 1.
    """

    gather: int = 2
    scatter: int = 1
    forward: int = 2
    backward: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearBuffers:
    """What the collectives of one linear layer move: buffers, before the ring factors."""

    shard_elements: Values
    gathered_bytes: Values
    forward_bytes: Values
    backward_bytes: Values
    gradient_bytes: Values


def block(hidden: int) -> tuple[MeshLinear, MeshLinear, MeshLinear, MeshLinear]:
    """The linear layers of a GPT block: QKV, projection, h to 4h and 4h to h."""
    return (
        MeshLinear(3 * hidden, hidden, False),
        MeshLinear(hidden, hidden, True),
        MeshLinear(4 * hidden, hidden, False),
        MeshLinear(hidden, 4 * hidden, True),
    )


def buffers(layer: MeshLinear, layouts: Layouts, tokens: int, *, script_form: bool = False) -> LinearBuffers:
    """Buffers of the collectives of ``layer`` for a batch of ``tokens`` tokens.

    ``script_form`` keeps the authors' slip: for 4h to h their script all-reduces 4h wide in the forward pass
    and h wide in the backward pass.
    """
    x, y, z, data = (layouts[:, axis] for axis in (X, Y, Z, DATA))
    rows = tokens / (data * z)
    gathered = layer.out_features * layer.in_features / (x * y)
    wide_out, wide_in = layer.out_features, layer.in_features
    if script_form and wide_in > wide_out:
        wide_out, wide_in = wide_in, wide_out
    shard = gathered / z
    return LinearBuffers(
        shard_elements=shard,
        gathered_bytes=gathered * WEIGHT_BYTES,
        forward_bytes=rows * wide_out / layouts[:, layer.out_axis] * WEIGHT_BYTES,
        backward_bytes=rows * wide_in / layouts[:, layer.contraction_axis] * WEIGHT_BYTES,
        gradient_bytes=shard * GRADIENT_BYTES,
    )


def ring_bytes(
    layer: MeshLinear,
    layouts: Layouts,
    tokens: int,
    *,
    counts: CollectiveCounts | None = None,
    script_form: bool = False,
) -> Values:
    """Bytes that each rank sends per iteration for ``layer``, as an (n, 4) array by axis."""
    counts = counts or CollectiveCounts()
    moved = buffers(layer, layouts, tokens, script_form=script_form)
    ring = (layouts - 1) / layouts
    total = np.zeros(layouts.shape)
    total[:, Z] = (counts.gather + counts.scatter) * ring[:, Z] * moved.gathered_bytes
    contraction, out = layer.contraction_axis, layer.out_axis
    total[:, contraction] = 2 * counts.forward * ring[:, contraction] * moved.forward_bytes
    total[:, out] = 2 * counts.backward * ring[:, out] * moved.backward_bytes
    total[:, DATA] = 2 * ring[:, DATA] * moved.gradient_bytes
    return total


def axis_bandwidths(machine: Supercomputer, layouts: Layouts) -> Values:
    """Effective bytes/s of every axis, as an (n, 4) array: measured within a node, the shared NICs beyond."""
    result = np.empty(layouts.shape)
    inner = np.ones(len(layouts), np.int64)
    for axis in PLACEMENT:
        result[:, axis] = machine.bandwidth_Bps(inner, layouts[:, axis])
        inner = inner * layouts[:, axis]
    return result


def communication_time(
    shape: GptShape,
    machine: Supercomputer,
    layouts: Layouts,
    *,
    batch: int,
    sequence: int = 2048,
    counts: CollectiveCounts | None = None,
    script_form: bool = False,
) -> Values:
    """Seconds of communication of one iteration for each layout.

    Args:
        batch: sequences in the global batch.
        script_form: reproduce the authors' script with its slip (see ``buffers``).

    Raises:
        BadInput: an empty batch, a degree below 1, or an axis within a node that was not measured.
    """
    _check_batch(batch * sequence)
    layouts = _checked(layouts)
    total = np.zeros(layouts.shape)
    for layer in block(shape.hidden):
        total += ring_bytes(layer, layouts, batch * sequence, counts=counts, script_form=script_form)
    seconds: Values = (total / axis_bandwidths(machine, layouts)).sum(axis=1) * shape.layers
    return seconds


def candidates(accelerators: int, batch: int, min_tensor: int) -> Layouts:
    """Layouts of powers of two that multiply to ``accelerators``.

    As in the script: x * y * z is at least ``min_tensor``, and z * data divides the batch.

    Raises:
        BadInput: ``accelerators`` is not a power of two up to 2**24, or the batch is empty.
    """
    _check_batch(batch)
    if not 1 <= accelerators <= 2**24 or accelerators & (accelerators - 1):
        raise BadInput(f"{accelerators} accelerators are not a power of two", where="axonn model", remedy="round it")
    powers = np.exp2(np.arange(accelerators.bit_length())).astype(np.int64)
    x, y, z = (grid.ravel() for grid in np.meshgrid(powers, powers, powers, indexing="ij"))
    tensor = x * y * z
    fits = (tensor <= accelerators) & (tensor >= min_tensor)
    layouts: Layouts = np.stack([x, y, z, accelerators // tensor], axis=1)[fits]
    divides: NDArray[np.bool_] = batch % (layouts[:, Z] * layouts[:, DATA]) == 0
    return layouts[divides]


def rank(
    shape: GptShape,
    machine: Supercomputer,
    *,
    accelerators: int,
    batch: int,
    sequence: int = 2048,
    script_form: bool = False,
) -> tuple[Layouts, Values]:
    """The candidates and their seconds of communication, the fastest first."""
    layouts = candidates(accelerators, batch, shape.min_tensor)
    seconds = communication_time(shape, machine, layouts, batch=batch, sequence=sequence, script_form=script_form)
    order = np.argsort(seconds, kind="stable")
    return layouts[order], seconds[order]


def _check_batch(size: int) -> None:
    if size < 1:
        raise BadInput(f"a batch of {size} is empty", where="axonn model", remedy="use 1 or more")


def _checked(layouts: Layouts) -> Layouts:
    array = np.asarray(layouts, np.int64)
    if array.ndim != 2 or array.shape[1] != len(PLACEMENT) or (array < 1).any():
        raise BadInput(
            "layouts are not rows of four positive degrees",
            where="axonn model",
            remedy="give an array of rows (x, y, z, data)",
        )
    return array


BATCHES = (2048, 1024, 8192)
CLAIMED_FLOPS = 182e15
FULL = ("cp=1", "recompute=full", "recompute_layers=0")
PROGRAMS = {
    "AxoNN": ("4d", "axonn", (*FULL, "pp=1", "sp=false", "zero=0"), 1),
    "Megatron-LM, 1F1B": ("standard", "megatron-core", (*FULL, "fsdp=1", "vpp=1", "sp=false"), 2),
    "- sequence parallel": ("standard", "megatron-core", (*FULL, "fsdp=1", "vpp=1"), 2),
    "- interleaved too": ("standard", "megatron-core", (*FULL, "fsdp=1"), 2),
    "- gradients sharded too": ("standard", "megatron-core", (*FULL, "fsdp=1"), 3),
}
"""Each program's space of layouts, its constants, what is fixed, and how many ZeRO stages it has."""
OTHERS = tuple(PROGRAMS)[1:]
WEAK = (("5b", 64), ("10b", 128), ("20b", 256), ("40b", 512), ("80b", 1024))
"""Models and their A100s, the parameters of each about the same; the paper's own pairs are not in the texts here."""
RANKED = (("5B", 64, 512), ("20B", 32, 512), ("20B", 64, 64), ("40B", 64, 64), ("80B", 1024, 2048), ("80B", 1024, 512))
"""Model, GPUs and batch of the authors' rankings."""
EXPOSED = ("tensor_s", "weights_s", "data_s")
"""Parts of an iteration that wait for collectives of the grid."""
HALF = 0.5
"""Of a hidden collective's seconds, what computation beside it loses at the most that constants may say."""


@cache
def best(model: str, count: int, batch: int, program: str) -> Estimate:
    """The fastest layout that fits."""
    space, stack, fixed, stages = PROGRAMS[program]
    layouts = []
    for stage in range(stages):
        more = () if program == "AxoNN" else (f"zero={stage}",)
        plan = weft.plan(
            f"axonn-{model}",
            f"perlmutter-{count}",
            space=space,
            stack=stack,
            batch=batch,
            fix=(*fixed, *more),
            order="time",
            top=1,
        )
        layouts += plan.layouts
    return min(layouts, key=lambda layout: layout.iteration_s)


def exposed(estimate: Estimate) -> float:
    """The share of an iteration that waits for collectives of the grid."""
    return fsum(part.value for part in estimate.time if part.name in EXPOSED) / estimate.iteration_s


def claims(batches: tuple[int, ...] = BATCHES) -> list[tuple[int, str, Estimate, float]]:
    """Batch, program, its fastest layout of the 80B model on 1,024 A100, and how many times longer than AxoNN's."""
    rows = []
    for batch in batches:
        own = best("80b", 1024, batch, "AxoNN")
        for program in PROGRAMS:
            estimate = best("80b", 1024, batch, program)
            rows.append((batch, program, estimate, estimate.iteration_s / own.iteration_s))
    return rows


def overlap_s(own: Estimate, batch: int) -> tuple[float, float]:
    """The 80B model's iteration where hidden collectives cost half of their time, and where none is hidden."""
    job = ("axonn-80b", "perlmutter-1024")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"overlap_cost = {HALF}\n")
        file.flush()
        slowed = weft.estimate(*job, own.layout, batch=batch, stack="axonn", calibration=file.name)
    bare = replace(own.layout, overlap_tensor="none", overlap_reduce=False, overlap_gather=False)
    return slowed.iteration_s, weft.estimate(*job, bare, batch=batch, stack="axonn").iteration_s


def weak_scaling(batch: int = 2048) -> list[tuple[str, int, Estimate, float, float]]:
    """Model, GPUs, AxoNN's fastest layout, and Megatron-LM's time over its with 1F1B and with all that it has now."""
    rows = []
    for model, count in WEAK:
        own = best(model, count, batch, "AxoNN")
        old, now = (best(model, count, batch, name).iteration_s / own.iteration_s for name in (OTHERS[0], OTHERS[-1]))
        rows.append((model.upper(), count, own, old, now))
    return rows


def rankings() -> list[tuple[str, int, int, bool, float, float]]:
    """Model, GPUs, batch, whether in the script's form, Spearman's correlation with Weft's times over the grids that
    both know, and by how much the first choice that fits takes longer than the best."""
    rows = []
    space, stack, fixed, _ = PROGRAMS["AxoNN"]
    for model, count, batch in RANKED:
        plan = weft.plan(
            f"axonn-{model.lower()}",
            f"perlmutter-{count}",
            space=space,
            stack=stack,
            batch=batch,
            fix=fixed,
            order="time",
            variants=True,
            top=10_000,
        )
        seconds: dict[tuple[int, ...], float] = {}
        for estimate in plan.layouts:
            grid = estimate.layout
            seconds.setdefault((grid.x, grid.y, grid.z, grid.data), estimate.iteration_s)
        for script_form in (False, True):
            layouts, predicted = rank(
                SHAPES[model], PERLMUTTER, accelerators=count, batch=batch, script_form=script_form
            )
            keys = [tuple(map(int, layout)) for layout in layouts]
            both = [(seconds[key], value) for key, value in zip(keys, predicted, strict=True) if key in seconds]
            mine, theirs = np.array(both).T
            first = float(mine[0] / min(seconds.values()) - 1)
            rows.append((model, count, batch, script_form, spearman(mine, theirs), first))
    return rows


def spearman(first: Values, second: Values) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks."""
    ranks = [np.array([(np.sum(v < x) + np.sum(v <= x) - 1) / 2 for x in v]) for v in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    rows = claims()
    peak = weft.resolve_cluster("perlmutter-1024").accelerator.bf16_flops * 1024
    findings = [
        "The paper's 26 % over Megatron-LM are reproduced against its 1F1B of that time, not against what it has now.",
        "57 % and more of peak rest on overlap, seen on one H100 with emulated collectives only (docs/training.md):",
    ]
    for batch in BATCHES:
        own = best("80b", 1024, batch, "AxoNN")
        claimed_s = own.hfu * own.iteration_s * peak / CLAIMED_FLOPS
        half_s, none_s = overlap_s(own, batch)
        findings.append(
            f"batch {batch:,}: {own.iteration_s:.1f} s, of which {exposed(own):.1%} waits; 182 PFLOP/s are"
            f" {claimed_s:.1f} s; {half_s:.1f} s if hidden collectives cost half of their time, {none_s:.1f} s if none"
            " is hidden."
        )
    show(
        "80B parameters on 1,024 A100 of Perlmutter, against Megatron-LM",
        "arXiv 2305.13525, 2502.08145: 26 % faster than Megatron-LM, 57 % of peak (182 PFLOP/s)",
        (
            "bf16, sequences of 2,048, every block recomputed, flash attention, 5 % of the memory free",
            "AxoNN: grids (x, y, z, data) without pipeline, sequence parallelism or ZeRO",
            "Megatron-LM: tensor, pipeline and data parallelism, ZeRO 0 or 1 (2 where gradients are sharded too)",
            "% of peak counts the recomputation, as the authors do",
        ),
        [
            {
                "program": f"{program}, batch {batch:,}",
                "iteration": f"{estimate.iteration_s:.2f} s",
                "peak, paper": "57 %" if program == "AxoNN" else "",
                "peak, Weft": f"{estimate.hfu:.1%}",
                "over AxoNN, paper": "1.26" if program == OTHERS[0] else "",
                "over AxoNN, Weft": f"{ratio:.2f}",
            }
            for batch, program, estimate, ratio in rows
        ],
        findings,
    )
    weak = weak_scaling()
    show(
        "Weak scaling on Perlmutter, batch 2,048",
        "arXiv 2305.13525: pairs of model and GPUs are chosen here",
        ("as above",),
        [
            {
                "model": f"{model} on {count:,}",
                "iteration": f"{own.iteration_s:.2f} s",
                "peak": f"{own.hfu:.1%}",
                "of the first's": f"{own.hfu / weak[0][2].hfu:.1%}",
                "Megatron-LM 1F1B": f"{old:.2f}",
                "Megatron-LM now": f"{now:.2f}",
            }
            for model, count, own, old, now in weak
        ],
    )
    show(
        "The communication model's ranks beside Weft's iteration times",
        "arXiv 2502.08145: the model finds a small set of fast grids; the authors run the first 20",
        ("first choice: how much longer than Weft's best grid the model's first that fits takes",),
        [
            {
                "model": f"{model} on {count:,}, batch {batch:,}",
                "form": "script" if script_form else "corrected",
                "rank correlation": f"{correlation:.3f}",
                "first choice": f"{first:+.1%}",
            }
            for model, count, batch, script_form, correlation, first in rankings()
        ],
    )


if __name__ == "__main__":
    main()
