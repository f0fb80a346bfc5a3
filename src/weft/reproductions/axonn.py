"""AxoNN's communication model: seconds of communication of a 4D layout, to rank candidate layouts.

After the public cost-model script of AxoNN's authors (arXiv 2305.13525, 2502.08145), with one correction.
Ring collectives, bandwidth terms only, no overlap, no compute.  A layout is (x, y, z, data), AxoNN's (row,
column, depth, data): x splits the output features of a normal linear layer and the input features of a
transposed one, y the other way round, z the batch and the stored weights, data replicates.  Placement from
the inside: y, x, z, data.

Layouts are rows of an (n, 4) array of integers; results have n entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput

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
