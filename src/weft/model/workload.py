"""Work of one iteration as tasks that wait for each other: for anything that is not a planned transformer.

A task computes for some seconds, or communicates.  One rank stands for all: every rank runs the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import fsum
from typing import Literal

from weft.errors import BadInput, UnknownName

CommunicationKind = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "send", "barrier"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """A collective of a group, or a message.

    ``bytes`` is the full buffer: reduced (all-reduce, reduce), gathered (all-gather), before scattering
    (reduce-scatter), sent by one rank to all (all-to-all), passed on (broadcast, send); 0 for a barrier.
    ``dimensions`` are the network's dimensions that the group spans, inner to outer from 0; None is all of
    them.  Where the group is not made of whole dimensions, ``factors`` says (size, distance in ranks) of its
    parts, inner to outer, as 8 neighbours are ((8, 1),).  ``ranks`` names its members where that is known.
    """

    kind: CommunicationKind
    bytes: float
    dimensions: tuple[int, ...] | None = None
    factors: tuple[tuple[int, int], ...] | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``seconds`` of computation, or a communication; it begins when all tasks in ``waits`` have ended."""

    name: str
    seconds: float = 0.0
    communication: Communication | None = None
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tasks in program order (computations that could begin together run in it); who waits for whom.

    ``assumptions`` says in words what the source left open.

    Raises:
        BadInput: a task waits for one that does not exist, does both, or takes or moves no sensible amount;
            or tasks wait for each other in a circle.
    """

    name: str
    tasks: tuple[Task, ...]
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadInput("has no tasks", where=self.name)
        for number, task in enumerate(self.tasks):
            if any(not 0 <= wait < len(self.tasks) for wait in task.waits):
                raise BadInput(f"waits for a task that does not exist: {task.waits}", where=_at(self, number))
            if not 0 <= task.seconds < 1e9:
                raise BadInput(f"takes {task.seconds:g} s", where=_at(self, number))
            if task.communication is not None and task.seconds > 0:
                raise BadInput("computes and communicates: make two tasks of it", where=_at(self, number))
            if task.communication is not None and not 0 <= task.communication.bytes < 1e18:
                raise BadInput(f"moves {task.communication.bytes:g} bytes", where=_at(self, number))
        try:
            TopologicalSorter({number: task.waits for number, task in enumerate(self.tasks)}).prepare()
        except CycleError as error:
            where = _at(self, min(error.args[1]))
            raise BadInput("tasks wait for each other in a circle", where=where) from None

    @property
    def compute_s(self) -> float:
        """Seconds of all computations."""
        return fsum(task.seconds for task in self.tasks)


def followers(tasks: Sequence[Task]) -> list[list[int]]:
    """The tasks that wait for each task."""
    result: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for wait in task.waits:
            result[wait].append(number)
    return result


def _at(workload: Workload, number: int) -> str:
    return f"{workload.name}: task {number} ({workload.tasks[number].name[:60]})"


SCALE = 0.26
"""Factor on the inputs' compute times."""
RESNET_50_S = 1.095314e-3 * SCALE
"""Computation of an iteration in the public input of ResNet-50."""
FP16 = 2.0
SCALED = f"compute times are those of the public inputs times {SCALE}"
FUSED = "all gradients are reduced at once"


def gnmt() -> Workload:
    """GNMT, 128 sentences a rank, data-parallel: all gradients in one all-reduce after the backward pass."""
    tasks = (
        Task(name="forward", seconds=2.930768e-3 * SCALE),
        Task(name="backward", seconds=(2.930768e-3 + 2.039233e-3) * SCALE, waits=(0,)),
        Task(name="gradients", communication=_reduced(267_788_288.0), waits=(1,)),
        Task(name="update", seconds=0.535571e-3 * SCALE, waits=(2,)),
    )
    return Workload(name="gnmt", tasks=tasks, assumptions=(SCALED, FUSED))


def dlrm() -> Workload:
    """DLRM, 512 samples a rank: embeddings model-parallel, their all-to-all beside the bottom layers; the
    layers data-parallel, all gradients in one all-reduce at the end."""
    bottom, top, embedding = 0.11856e-3 * SCALE, 0.861268e-3 * SCALE, 0.419431e-3 * SCALE
    exchange = Communication(kind="all-to-all", bytes=4_194_304.0)
    tasks = (
        Task(name="embedding forward", seconds=embedding),
        Task(name="embedding all-to-all", communication=exchange, waits=(0,)),
        Task(name="bottom forward", seconds=bottom, waits=(0,)),
        Task(name="top forward", seconds=top, waits=(1, 2)),
        Task(name="top backward", seconds=2 * top, waits=(3,)),
        Task(name="embedding gradients all-to-all", communication=exchange, waits=(4,)),
        Task(name="bottom backward", seconds=2 * bottom, waits=(4,)),
        Task(name="gradients", communication=_reduced(114_823_168.0), waits=(6,)),
    )
    return Workload(name="dlrm", tasks=tasks, assumptions=(SCALED, FUSED))


def resnet50() -> Workload:
    """ResNet-50, 32 images a rank, data-parallel: one all-reduce of all gradients at the end."""
    tasks = (
        Task(name="computation", seconds=RESNET_50_S),
        Task(name="gradients", communication=_reduced(51_005_824.0), waits=(0,)),
    )
    return Workload(name="resnet-50", tasks=tasks, assumptions=(SCALED, FUSED))


def resnet152() -> Workload:
    """ResNet-152, 32 images a rank, data-parallel: the gradients of each convolution as they come."""
    rate = _resnet_flops(RESNET_50) / RESNET_50_S
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
        SCALED,
        "every layer is recomputed with its all-reduces, as in the public input",
        "ZeRO-2's reduce-scatter and all-gather over the copies count as one all-reduce of each layer",
    )
    return training_iteration("transformer-1t", table, recompute=True, assumptions=notes)


def _reduced(bytes_: float) -> Communication:
    return Communication(kind="all-reduce", bytes=bytes_)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet-50": resnet50,
    "resnet-152": resnet152,
    "gnmt": gnmt,
    "dlrm": dlrm,
    "transformer-1t": transformer_1t,
}


def workload(name: str) -> Workload:
    """A workload by name.

    Raises:
        UnknownName: there is none.
    """
    if name not in WORKLOADS:
        raise UnknownName("workload", name, WORKLOADS)
    return WORKLOADS[name]()


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
