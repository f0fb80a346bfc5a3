"""Pipeline stages: the passes of a step over the grid's pipeline axis, and what stages send each other.

Between stages each x rank sends its share of the tokens and gathers the rest on arrival (the scatter-gather
optimization of arXiv 2104.04473, section 4.1); with sequence parallelism it sends what it owns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.layout.stages import Op, model_chunks, orders, stage_of
from weft.model.spec import Model
from weft.runtime.core.collectives import all_parts, own_part
from weft.runtime.core.machine import Machine
from weft.runtime.layers.decoder import Decoder4D, Details, Stage
from weft.runtime.layers.experts import Experts4D

SENDS_IN_FLIGHT = 4
"""Messages of a rank to other stages that may be under way at once, where stages have several chunks or passes."""


class StageModule(Protocol):
    """A stage of a pipeline, or a whole model: a module of 4D layers with one tensor in and one out.

    Between stages dimension 0 is rows of this rank's z and data group, of which ranks along x have the same,
    or with sequence parallelism each its own.
    """

    machine: Machine
    first: bool
    last: bool

    def __call__(self, given: Tensor) -> Tensor:
        """What the stage before gives (or inputs), to what the stage behind takes (or logits)."""

    def takes(self, micro_batch: int) -> Tensor:
        """What a micro-batch is to this stage: a tensor on the meta device, with or without gradient."""

    def gives(self, micro_batch: int) -> Tensor:
        """The stage's output of a micro-batch, in the same form."""

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The losses of a micro-batch's parts, to be summed; only the last stage is asked."""


def stages_of(machine: Machine, model: Model) -> list[Stage]:
    """This rank's stages (several with interleaving), first to last."""
    layout = machine.grid.layout
    result, start = [], 0
    left = (layout.recompute_layers or model.layers) if layout.recompute == "full" else 0
    blocks_of = model.block_sequence()
    for chunk in model_chunks(blocks_of, layout.pipeline, layout.virtual_stages, wraps=layout.schedule.wraps):
        blocks = tuple(range(start, start + len(chunk.blocks)))
        start += len(chunk.blocks)
        if chunk.stage == machine.grid.coordinates["pipeline"]:
            recomputed = min(left, len(blocks))
            left -= recomputed
            result.append(Stage(blocks=blocks, recomputed=recomputed, first=chunk.embedding, last=chunk.head))
    return result


def build_stages(machine: Machine, model: Model, *, sequence: int, details: Details | None = None) -> nn.ModuleList:
    """This rank's part of a model: one ``Decoder4D`` per stage that it has.  Every rank must call it."""
    if any(kind.moe for kind in model.kinds):
        machine.grid.join_experts()
    if model.tied_embeddings and machine.grid.size("pipeline") > 1:
        machine.grid.join_ends()
    return nn.ModuleList(
        Decoder4D(machine, model, sequence=sequence, details=details, stage=stage)
        for stage in stages_of(machine, model)
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a rank begins to receive what its pass ``of`` takes."""

    of: Op


def messages(layout: Layout, passes: Sequence[Sequence[Op]]) -> list[list[Op | Arrival]]:
    """The passes of every stage, with the places where it begins to receive.

    One clock runs the passes of all stages, each as soon as its input has come; a message is sent when its pass
    has run, and begins to be received at the same time.  So any two ranks send and receive in the same order, and no
    rank waits for a message that its sender will only send after one that the rank has not received yet.
    """
    last = layout.pipeline * layout.virtual_stages - 1
    left, program = [deque(order) for order in passes], [list[Op | Arrival]() for _ in passes]
    done: set[Op] = set()
    while any(left):
        for stage, order in enumerate(left):
            if not order:
                continue
            op = order[0]
            step = {"forward": -1, "backward": 1}.get(op.what, 0)
            if step and 0 <= op.chunk + step <= last and replace(op, chunk=op.chunk + step) not in done:
                continue  # another stage has not made what it takes
            order.popleft()
            done.add(op)
            program[stage].append(op)
            behind = op.chunk - step
            if step and 0 <= behind <= last and (other := stage_of(layout, behind)) != stage:
                program[other].append(Arrival(replace(op, chunk=behind)))
    return program


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """A stage of this rank; the ranks of the pipeline that have those before and behind, None for this one or none;
    and what is received from and sent to them, without values."""

    stage: StageModule
    before: int | None
    behind: int | None
    receives: Tensor
    sends: Tensor


class StepPasses:
    """Forward and backward passes of one step's micro-batches, in the order of ``weft.layout.stages.orders``.

    A message's buffer is there from when it begins to be received until it is used.

    Args:
        stages: this rank's, each a ``StageModule``: of ``build_stages``, or of your model.
        micro_batch: sequences (images) per micro-batch.
        micro_batches: of one step.
        tokens: losses in the whole global batch, by whose number they are divided.
        shared: whether ranks along x have the same rows between stages, of which each sends its share; by default
            those of Weft's layers do, without sequence parallelism.
    """

    def __init__(
        self,
        machine: Machine,
        stages: nn.ModuleList,
        *,
        micro_batch: int,
        micro_batches: int,
        tokens: int,
        shared: bool = True,
    ) -> None:
        self.machine, self.tokens, self.micro_batches = machine, tokens, micro_batches
        self._shared = shared and machine.grid.size("x") > 1 and not machine.rows_cut
        self.rows = micro_batch * micro_batches
        self.stages = cast(list[StageModule], list(stages))
        for module in stages.modules():
            if isinstance(module, Experts4D):
                module.tokens = tokens
        layout = machine.grid.layout
        own = machine.grid.coordinates["pipeline"]
        machine.later.collects = layout.schedule.splits_backward
        passes = orders(layout, micro_batches)
        forward = [[op for op in order if op.what == "forward"] for order in passes]
        self._trains, self._evaluates = messages(layout, passes)[own], messages(layout, forward)[own]
        chunks = [chunk for chunk in range(layout.pipeline * layout.virtual_stages) if stage_of(layout, chunk) == own]
        self._chunks: dict[int, _Chunk] = {}
        for number, stage in zip(chunks, self.stages, strict=True):
            before = None if stage.first else stage_of(layout, number - 1)
            behind = None if stage.last else stage_of(layout, number + 1)
            takes, gives = stage.takes(micro_batch), stage.gives(micro_batch)
            self._chunks[number] = _Chunk(
                stage=stage,
                before=None if before == own else before,
                behind=None if behind == own else behind,
                receives=takes if before in (None, own) else self._share(takes),
                sends=gives if behind in (None, own) else self._share(gives),
            )
        self._forget()

    def _forget(self) -> None:
        self._losses: list[Tensor] = []
        self._arriving: dict[Op, tuple[list[dist.Work], Tensor]] = {}
        """What passes take, and the messages under way that bring it."""
        self._between: dict[Op, tuple[Tensor, Tensor]] = {}
        """What a forward pass took and made, until the backward pass."""
        self._later: dict[Op, Callable[[], None]] = {}
        """Weight gradients, until their pass."""
        self._sent: deque[dist.Work] = deque()

    @property
    def has_head(self) -> bool:
        """Whether this rank computes the loss."""
        return self.stages[-1].last

    def run(self, inputs: Tensor, targets: Tensor, *, trains: bool = True) -> Tensor:
        """All micro-batches; this rank's share of the mean loss, shape (1,), 0 but on the last stage.

        Args:
            inputs: token ids (micro_batches * micro_batch, sequence), as ``targets``; or whatever the
                first stage takes and the last one's losses are of.
            trains: with backward passes.

        Raises:
            BadInput: there are more or fewer inputs (on the first stage) or targets (on the last).
        """
        if self.stages[0].first:
            self._check_rows("inputs", inputs)
        if self.has_head:
            self._check_rows("targets", targets)
        given = inputs.chunk(self.micro_batches), targets.chunk(self.micro_batches)
        total = torch.zeros(1, dtype=self.machine.precision.wide, device=self.machine.grid.device)
        try:
            with torch.set_grad_enabled(trains):
                for op in self._trains if trains else self._evaluates:
                    if isinstance(op, Arrival):
                        self._receive(op.of)
                    elif op.what == "forward":
                        self._forward(op, *given, trains=trains)
                    elif op.what == "backward":
                        self._backward(op)
                    else:
                        self._weight_gradient(op)
            while self._sent:
                self._sent.popleft().wait()
            for loss in self._losses:
                total += loss
        finally:
            self._forget()
        return total

    def _check_rows(self, what: str, given: Tensor) -> None:
        if given.shape[:1] != (self.rows,):
            raise BadInput(
                f"{tuple(given.shape)} does not have {self.rows} rows",
                where=f"{what} of a step",
                remedy=f"give micro_batch x micro_batches rows, {self.micro_batches} micro-batches together",
            )

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's share of the mean loss over the global batch."""
        loss = self.stages[-1].losses(logits, targets).sum() / self.tokens
        self._losses.append(loss.detach())
        return loss

    def _forward(self, op: Op, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...], *, trains: bool) -> None:
        chunk = self._chunks[op.chunk]
        stage = chunk.stage
        given = inputs[op.micro_batch] if stage.first else self._taken(op).requires_grad_(trains)
        shared, calls = self._shared, self.machine.collectives
        made = stage(all_parts(calls, given, "x") if shared and chunk.before is not None else given)
        if stage.last:
            made = self._loss(made, targets[op.micro_batch])
        elif shared and chunk.behind is not None:
            made = own_part(calls, made, "x")
        if trains:
            self._between[op] = given, made
        if not stage.last:
            self._deliver(replace(op, chunk=op.chunk + 1), made.detach(), chunk.behind, chunk.sends)

    def _backward(self, op: Op) -> None:
        chunk = self._chunks[op.chunk]
        gradient = None if chunk.stage.last else self._taken(op)
        given, made = self._between.pop(replace(op, what="forward"))
        torch.autograd.backward(made, gradient)
        if self.machine.later.collects:
            self._later[replace(op, what="weight-gradient")] = self.machine.later.take()
        if not chunk.stage.first:
            assert given.grad is not None
            self._deliver(replace(op, chunk=op.chunk - 1), given.grad, chunk.before, chunk.receives)

    def _weight_gradient(self, op: Op) -> None:
        self._later.pop(op)()

    def _receive(self, op: Op) -> None:
        """Begin to receive what a pass takes."""
        chunk = self._chunks[op.chunk]
        shape, rank = (chunk.receives, chunk.before) if op.what == "forward" else (chunk.sends, chunk.behind)
        message = torch.empty(shape.shape, dtype=shape.dtype, device=self.machine.grid.device)
        self._arriving[op] = self._under_way(dist.irecv, message, rank), message

    def _taken(self, op: Op) -> Tensor:
        works, message = self._arriving.pop(op)
        for work in works:
            work.wait()
        return message

    def _deliver(self, op: Op, message: Tensor, rank: int | None, shape: Tensor) -> None:
        """Give a pass what it takes, on this rank or another.

        Only so many sends are under way: they are kept until they are waited for.
        """
        if rank is None:
            self._arriving[op] = [], message
            return
        if (message.shape, message.dtype) != (shape.shape, shape.dtype):
            there, here = (f"{each.dtype} {tuple(each.shape)}" for each in (shape, message))
            raise ValueError(f"between stages {there} was to be sent, but it is {here}")
        while len(self._sent) >= SENDS_IN_FLIGHT:
            self._sent.popleft().wait()
        self.machine.collectives.note("send", ("pipeline",), message)
        self._sent.extend(self._under_way(dist.isend, message.contiguous(), rank))

    def _under_way(self, kind: Callable[..., Any], message: Tensor, rank: int | None) -> list[dist.Work]:
        group = self.machine.grid.group("pipeline")
        return dist.batch_isend_irecv([dist.P2POp(kind, message, group=group, group_peer=rank)])

    def _share(self, rows: Tensor) -> Tensor:
        """What one rank sends of rows between stages, without values."""
        if not self._shared:
            return rows
        own = self.machine.grid.divided(rows.shape[0], "x", what="tokens of a micro-batch")
        return torch.empty(own, *rows.shape[1:], dtype=rows.dtype, device="meta", requires_grad=True)
