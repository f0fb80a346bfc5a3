"""ResNet-152 and Transformer-1T as Themis (arXiv 2110.04478) trains them: iterations made from tables of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum

from weft.model.workload import ASSUMED, SCALE, Communication, Task, Workload, workload

FP16 = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer on one rank, in seconds, and its collectives.

    Computation waits for ``forward`` (after the layer's forward pass, and again where it is recomputed) and
    for ``input_gradient`` (after that gradient); ``weight_gradient`` is sent beside the rest of the backward
    pass.
    """

    name: str
    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    forward: Communication | None = None
    input_gradient: Communication | None = None
    weight_gradient: Communication | None = None


def training_iteration(
    name: str, layers: Sequence[Layer], *, recompute: bool = False, assumptions: Sequence[str] = ()
) -> Workload:
    """One iteration: all layers forward, then backward from the last; it ends with the last collective.
    Nobody needs the first layer's input gradient.

    Args:
        layers: in forward order.
        recompute: each layer's forward pass, with its collective, runs again before its backward pass.
    """
    tasks: list[Task] = []

    def add(label: str, seconds: float, communication: Communication | None, waits: Sequence[int]) -> list[int]:
        if seconds > 0:
            tasks.append(Task(name=label, seconds=seconds, waits=tuple(waits)))
            waits = [len(tasks) - 1]
        if communication is not None:
            tasks.append(Task(name=f"{label} {communication.kind}", communication=communication, waits=tuple(waits)))
            waits = [len(tasks) - 1]
        return list(waits)

    last: list[int] = []
    for layer in layers:
        last = add(f"{layer.name} forward", layer.forward_s, layer.forward, last)
    for layer in reversed(layers):
        if recompute:
            last = add(f"{layer.name} again", layer.forward_s, layer.forward, last)
        last = add(f"{layer.name} weight gradient", layer.weight_gradient_s, None, last)
        if layer.weight_gradient is not None:
            add(f"{layer.name} weights", 0.0, layer.weight_gradient, last)
        if layer is not layers[0]:
            last = add(f"{layer.name} input gradient", layer.input_gradient_s, layer.input_gradient, last)
    return Workload(name=name, tasks=tuple(tasks), assumptions=tuple(assumptions))


def resnet152() -> Workload:
    """ResNet-152, 32 images a rank, data-parallel: the gradients of each convolution as they come."""
    rate = _resnet_flops(RESNET_50) / workload("resnet-50").compute_s
    layers = [
        Layer(
            name=name,
            forward_s=flops / rate / 3,
            input_gradient_s=flops / rate / 3,
            weight_gradient_s=flops / rate / 3,
            weight_gradient=_reduced(parameters * FP16),
        )
        for name, flops, parameters in _resnet(RESNET_152)
    ]
    notes = (
        "compute runs at the FLOP/s of the public ResNet-50 input, whose times are scaled by 0.26",
        "each convolution's gradients are reduced as soon as they are there",
    )
    return training_iteration("resnet-152", layers, assumptions=notes)


RESNET_50, RESNET_152 = (3, 4, 6, 3), (3, 8, 36, 3)
"""Blocks of the four stages (He et al. 2016, table 1)."""
IMAGES = 32


def _resnet_flops(blocks: tuple[int, ...]) -> float:
    return fsum(flops for _, flops, _ in _resnet(blocks))


def _resnet(blocks: tuple[int, ...]) -> Iterator[tuple[str, float, float]]:
    """Name, FLOPs of forward and backward for all images, and parameters of each weight layer."""

    def layer(name: str, inputs: int, outputs: int, kernel: int, side: int) -> tuple[str, float, float]:
        weights = inputs * outputs * kernel * kernel
        return name, 3 * 2.0 * weights * side * side * IMAGES, weights + 2 * outputs

    yield layer("conv1", 3, 64, 7, 112)
    inputs, side = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            name = f"stage {stage + 1} block {block + 1}"
            before = side
            side = side // 2 if stage and not block else side
            yield layer(f"{name} reduce", inputs, width, 1, before)
            yield layer(f"{name} convolve", width, width, 3, side)
            yield layer(f"{name} expand", width, 4 * width, 1, side)
            if not block:
                yield layer(f"{name} shortcut", inputs, 4 * width, 1, side)
            inputs = 4 * width
    yield "head", 3 * 2.0 * inputs * 1000 * IMAGES, inputs * 1000 + 1000


def transformer_1t() -> Workload:
    """Transformer-1T on 1,024 ranks, 16 sequences of 1,024 tokens for each 128: tensor-parallel over 128
    neighbours, ZeRO-2 over the 8 copies, every layer recomputed."""
    hidden, layers, tensor, copies = 24_576, 128, 128, 8
    tokens = 16 * 1024
    activations = tokens * hidden * FP16
    inside, across = ((tensor, 1),), ((copies, tensor),)
    attention_s, feed_forward_s = 9.570312e-3 * SCALE, 18.762207e-3 * SCALE
    reduce = Communication(kind="all-reduce", bytes=activations, factors=inside)

    def half(name: str, seconds: float, weights: float) -> Layer:
        return Layer(
            name=name,
            forward_s=seconds,
            input_gradient_s=seconds,
            weight_gradient_s=seconds,
            forward=reduce,
            input_gradient=reduce,
            weight_gradient=Communication(
                kind="all-reduce", bytes=weights * hidden * hidden / tensor * FP16, factors=across
            ),
        )

    table: list[Layer] = []
    for number in range(layers):
        table += half(f"attention {number}", attention_s, 4), half(f"feed-forward {number}", feed_forward_s, 8)
    notes = (
        ASSUMED[0],
        "every layer is recomputed with its all-reduces, as in the public input",
        "ZeRO-2's reduce-scatter and all-gather over the copies count as one all-reduce of each layer",
    )
    return training_iteration("transformer-1t", table, recompute=True, assumptions=notes)


def _reduced(bytes_: float) -> Communication:
    return Communication(kind="all-reduce", bytes=bytes_)


WORKLOADS = {"resnet-152": resnet152(), "transformer-1t": transformer_1t()}
"""By name; the evaluation's others are built in."""
