"""Workloads from tables of layers: forward, backward, and what is communicated when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.model.workload import Communication, Task, Workload


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
