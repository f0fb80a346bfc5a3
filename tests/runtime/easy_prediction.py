"""What a training step of a plain model communicates in easy mode, from one pass of the model on one process.

Around a layer rows are exchanged for features over the axis of its inputs, and gathered over the axis of its outputs;
partial sums are scattered by rows, and the features of a rank's own rows come back (``weft.runtime.convert``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil, prod

from torch import nn

from weft.layout.mesh import ROWS
from weft.layout.step import SCALAR_BYTES, Issue, buckets, wide_axes
from weft.runtime.convert.parallelize import easy_plan
from weft.runtime.convert.roles import Easy, easy_axes


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

    def axes(self, layout):
        """The axis over which inputs are split, and that of the outputs."""
        return easy_axes(layout, self.inputs, self.outputs)


def easy_collectives(layers, layout, *, whole=0, micro_batches=1, element_bytes=4, clip=True):
    """What each rank issues in one step of ``Flat`` and ``Optimizer``.

    Args:
        layers: in easy mode.
        layout: x, y, z and data; its batch and pipeline are not looked at.
        whole: elements of the parameters that every rank holds whole, biases of the layers among them.
        element_bytes: width of activations and gathered weights; gradients are reduced in fp32.
        clip: whether the norm of the gradients is bounded.
    """
    result = Counter()

    def issue(kind, axes, elements, times, width):
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
        issue("reduce-scatter", ("z",), shard * layout.z, micro_batches, 4)
        at_rest += shard
    for bucket in buckets(at_rest, layout.data, layout.zero):
        issue("reduce-scatter" if layout.zero else "all-reduce", ("data",), bucket, 1, 4)
        issue("all-gather", ("data",), bucket, int(layout.zero > 0), element_bytes)
    issue("all-reduce", ("x", "y", *ROWS), whole, 1, 4)
    issue("all-reduce", ("x", "y", *ROWS), 1, int(clip), SCALAR_BYTES)
    return result


def _around(layer, layout):
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


def predict_easy(model, rows, layout, *, micro_batches=1):
    """What each rank issues in a step in fp32 of ``rows``, one rank's of a micro-batch."""
    reader = _EasyReader(layout)
    easy = [model.get_submodule(name) for name, role in easy_plan(model, layout).items() if isinstance(role, Easy)]
    hooks = [module.register_forward_hook(reader.read) for module in easy]
    model(rows)
    for hook in hooks:
        hook.remove()
    cut = {id(module.weight) for module in easy}
    whole = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in cut)
    return easy_collectives(reader.layers, layout, whole=whole, micro_batches=micro_batches)


class _EasyReader:
    """Notes layers as they run; knows, as ``LastTaken`` does, what is made once for the tensor that was taken last."""

    def __init__(self, layout):
        self.layers, self._layout = [], layout
        self._taken, self._exchanged, self._joined, self._summed = None, set(), None, set()

    def read(self, module, inputs, out):
        """Note a layer that has run."""
        (taken,) = inputs
        features, weights = (int(taken.shape[-1]), int(out.shape[-1])), 1
        if isinstance(module, nn.Conv2d):
            features, weights = (module.in_channels, module.out_channels), prod(module.kernel_size)
        over_in, over_out = easy_axes(self._layout, *features)
        exchanged, summed = self._made(taken, over_in, over_out) if taken.requires_grad else (False, False)
        self.layers.append(
            EasyLayer(
                inputs=features[0],
                outputs=features[1],
                taken=taken.numel() // features[0],
                given=out.numel() // features[1],
                weights=weights,
                gradient=taken.requires_grad,
                exchanged=exchanged,
                summed=summed,
            )
        )

    def _made(self, taken, over_in, over_out):
        """Whether a tensor has been exchanged over an axis before, and whether its gradient is summed with others."""
        if self._taken is None or self._taken[0] is not taken or self._taken[1] != taken._version:
            self._taken, self._exchanged, self._joined = (taken, taken._version), set(), None
        exchanged = over_in in self._exchanged
        self._exchanged.add(over_in)
        joined = over_in if getattr(self._layout, over_in) > 1 else ""
        if joined != self._joined:
            self._joined, self._summed = joined, set()
        summed = over_out in self._summed
        self._summed.add(over_out)
        return exchanged, summed
