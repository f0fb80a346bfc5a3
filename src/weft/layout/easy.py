"""What a step communicates in easy mode, where every rank has separate rows with all features between layers.

Around a layer rows are exchanged for features over the axis of its inputs, and gathered over the axis of its outputs;
partial sums are scattered by rows, and the features of a rank's own rows come back (``weft.runtime.convert``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from weft.layout.mesh import ROWS
from weft.layout.operations import CollectiveKind
from weft.layout.spec import Layout
from weft.layout.step import SCALAR_BYTES, Issue, buckets, wide_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class EasyLayer:
    """A linear layer or convolution in easy mode.

    Attributes:
        inputs: features of the whole input, ``outputs`` of the whole output.
        weights: between one input feature and one output feature (elements of a kernel).
        taken: elements of one input feature in a rank's rows of a micro-batch (tokens, or images times pixels);
            ``given`` of one output feature.
        gradient: whether its input's gradient is asked for.
        exchanged: a layer before it exchanged the same rows already.
        summed: its input's gradient is added to another layer's before the sum over ranks.
    """

    inputs: int
    outputs: int
    taken: int
    given: int
    weights: int = 1
    gradient: bool = True
    exchanged: bool = False
    summed: bool = False

    def axes(self, layout: Layout) -> tuple[str, str]:
        """The axis over which inputs are split, and that of the outputs."""
        return easy_axes(layout, self.inputs, self.outputs)


def easy_axes(layout: Layout, inputs: int, outputs: int) -> tuple[str, str]:
    """The axes of inputs and of outputs with which a layer exchanges fewer bytes, of those that divide its features.

    Each rank receives inputs times the axis of outputs, and outputs times the axis of inputs, for each row.
    """
    x, y = layout.x, layout.y
    normal, transposed = inputs % y or outputs % x, inputs % x or outputs % y
    if bool(normal) != bool(transposed):
        return ("x", "y") if normal else ("y", "x")
    return ("y", "x") if inputs * x + outputs * y <= inputs * y + outputs * x else ("x", "y")


def easy_collectives(
    layers: Sequence[EasyLayer],
    layout: Layout,
    *,
    whole: int = 0,
    micro_batches: int = 1,
    element_bytes: int = 4,
    gradient_bytes: int = 4,
    clip: bool = True,
) -> Counter[Issue]:
    """What each rank issues in one step of ``Flat`` and ``Optimizer``.

    Args:
        layers: in easy mode.
        layout: x, y, z and data; its batch and pipeline are not looked at.
        whole: elements of the parameters that every rank holds whole, biases of the layers among them.
        element_bytes: width of activations and gathered weights, ``gradient_bytes`` of reduced gradients.
        clip: whether the norm of the gradients is bounded.
    """
    result: Counter[Issue] = Counter()

    def issue(kind: CollectiveKind, axes: Sequence[str], elements: int, times: int, width: int) -> None:
        across = wide_axes(layout, axes)
        if across and elements and times:
            result[Issue(kind, across, elements, width)] += times

    at_rest = 0
    for layer in layers:
        for kind, axis, elements, times in _around(layer, layout):
            issue(kind, (axis,), elements, times * micro_batches, element_bytes)
        over_in, over_out = (getattr(layout, axis) for axis in layer.axes(layout))
        shard = ceil(layer.inputs * layer.outputs * layer.weights // (over_in * over_out) / layout.z)
        issue("all-gather", ("z",), shard * layout.z, (1 + layer.gradient) * micro_batches, element_bytes)
        issue("reduce-scatter", ("z",), shard * layout.z, micro_batches, gradient_bytes)
        at_rest += shard
    for bucket in buckets(at_rest, layout.data, layout.zero):
        issue("reduce-scatter" if layout.zero else "all-reduce", ("data",), bucket, 1, gradient_bytes)
        issue("all-gather", ("data",), bucket, int(layout.zero > 0), element_bytes)
    issue("all-reduce", ("x", "y", *ROWS), whole, 1, gradient_bytes)
    issue("all-reduce", ("x", "y", *ROWS), 1, int(clip), SCALAR_BYTES)
    return result


def _around(layer: EasyLayer, layout: Layout) -> Iterator[tuple[CollectiveKind, str, int, int]]:
    """Kind, axis, elements and times of what a layer exchanges in a micro-batch, both ways."""
    over_in, over_out = layer.axes(layout)
    inputs, outputs = layer.taken * layer.inputs, layer.given * layer.outputs
    gathered, partial = inputs * getattr(layout, over_out), outputs * getattr(layout, over_in)
    exchanges = 0 if layer.exchanged else 1 + layer.gradient
    yield "all-to-all", over_in, inputs, exchanges
    yield "all-gather", over_out, gathered, 2
    yield "reduce-scatter", over_out, gathered, int(layer.gradient and not layer.summed)
    yield "reduce-scatter", over_in, partial, 1
    yield "all-gather", over_in, partial, 1
    yield "all-to-all", over_out, outputs, 2
