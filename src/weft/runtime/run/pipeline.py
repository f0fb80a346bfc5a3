"""Pipeline stages: torch.distributed.pipelining over the grid's pipeline axis.

Between stages each x rank sends its share of the tokens and gathers the rest on arrival (the scatter-gather
optimization of arXiv 2104.04473, section 4.1); with sequence parallelism it sends what it owns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _Action, _batch_p2p, _ComputationType, _PipelineScheduleRuntime

from weft.errors import BadInput
from weft.layout.spec import Layout, PipelineSchedule
from weft.layout.stages import model_chunks, orders, stage_of
from weft.model.spec import Model
from weft.runtime.core.machine import Machine
from weft.runtime.core.placement import share
from weft.runtime.layers.decoder import Decoder4D, Details, Stage, recomputed_blocks
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
        """What the stage makes of a micro-batch, likewise."""

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The losses of a micro-batch's parts, to be summed; only the last stage is asked."""


def stages_of(machine: Machine, model: Model) -> list[Stage]:
    """This rank's stages (several with interleaving), first to last.

    Raises:
        BadInput: more stages than blocks, or several on one rank that is all of the pipeline.
    """
    layout = machine.grid.layout
    if layout.pipeline == 1 and layout.virtual_stages > 1:
        raise BadInput(
            f"virtual_stages = {layout.virtual_stages} without a pipeline",
            where="layout",
            remedy="set virtual_stages=1, or pipeline above 1",
        )
    chunks = layout.pipeline * layout.virtual_stages
    if chunks > model.layers:
        raise BadInput(
            f"{model.layers} blocks cannot make {chunks} stages (pipeline {layout.pipeline} x virtual_stages "
            f"{layout.virtual_stages})",
            where="layout",
            remedy="choose fewer stages",
        )
    found, start = [], 0
    left = recomputed_blocks(model, layout)
    blocks_of = model.block_sequence()
    for chunk in model_chunks(blocks_of, layout.pipeline, layout.virtual_stages, wraps=layout.schedule.wraps):
        blocks = tuple(range(start, start + len(chunk.blocks)))
        start += len(chunk.blocks)
        if chunk.stage == machine.grid.coordinates["pipeline"]:
            recomputed = min(left, len(blocks))
            left -= recomputed
            found.append(Stage(blocks=blocks, recomputed=recomputed, first=chunk.embedding, last=chunk.head))
    return found


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


class StepPasses:
    """Forward and backward passes of one step's micro-batches.

    Args:
        stages: this rank's, each a ``StageModule``: of ``build_stages``, or of a model of your own.
        micro_batch: sequences (images) per micro-batch.
        micro_batches: of one step.
        tokens: losses in the whole global batch, by whose number they are divided.
    """

    def __init__(
        self, machine: Machine, stages: nn.ModuleList, *, micro_batch: int, micro_batches: int, tokens: int
    ) -> None:
        self.machine, self.tokens, self.micro_batches = machine, tokens, micro_batches
        self.rows = micro_batch * micro_batches
        self.stages = cast(list[StageModule], list(stages))
        for module in stages.modules():
            if isinstance(module, Experts4D):
                module.tokens = tokens
        self._losses: list[Tensor] = []
        self._schedule = None
        if machine.grid.size("pipeline") > 1:
            self._schedule = self._scheduled(micro_batch)

    @property
    def has_head(self) -> bool:
        """Whether this rank computes the loss."""
        return self.stages[-1].last

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """All micro-batches; this rank's share of the mean loss, shape (1,), 0 but on the last stage.

        Args:
            inputs: token ids (micro_batches * micro_batch, sequence), ``targets`` likewise; or whatever the
                first stage takes and the last one's losses are of.

        Raises:
            BadInput: there are more or fewer inputs (on the first stage) or targets (on the last).
        """
        return self._run(inputs, targets, trains=True)

    def evaluate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """As ``run``, without backward passes.

        Raises:
            BadInput: as ``run``.
        """
        with torch.no_grad():
            return self._run(inputs, targets, trains=False)

    def _run(self, inputs: Tensor, targets: Tensor, *, trains: bool) -> Tensor:
        if self.stages[0].first:
            self._check_rows("inputs", inputs)
        if self.has_head:
            self._check_rows("targets", targets)
        self._losses = []
        if self._schedule is None:
            whole = self.stages[0]
            for given, wanted in zip(inputs.chunk(self.micro_batches), targets.chunk(self.micro_batches), strict=True):
                loss = self._loss(whole(given), wanted)
                if trains:
                    loss.backward()  # type: ignore[no-untyped-call]
        else:
            first = (inputs,) if self.stages[0].first else ()
            ends = {"target": targets} if self.has_head else {}
            pace = self.machine.collectives.pace
            pace.pay()
            (self._schedule.step if trains else self._schedule.eval)(*first, **ends, return_outputs=False)
            pace.resume()  # between its passes a stage waits for its neighbours
        total = torch.zeros(1, dtype=self.machine.precision.wide, device=self.machine.grid.device)
        for loss in self._losses:
            total += loss
        return total

    def _check_rows(self, what: str, given: Tensor) -> None:
        if given.shape[:1] != (self.rows,):
            raise BadInput(
                f"{tuple(given.shape)} is no tensor of {self.rows} rows",
                where=f"{what} of a step",
                remedy=f"give micro_batch x micro_batches rows, {self.micro_batches} micro-batches together",
            )

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's share of the mean loss over the global batch."""
        loss = self.stages[-1].losses(logits, targets).sum() / self.tokens
        self._losses.append(loss.detach())
        return loss

    def _stage_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The same, between the passes of a stage."""
        with self.machine.collectives.pace.computing():
            return self._loss(logits, targets)

    def _scheduled(self, micro_batch: int) -> Any:
        layout = self.machine.grid.layout
        count = layout.pipeline * layout.virtual_stages
        own = self.machine.grid.coordinates["pipeline"]
        self.machine.later.collects = layout.schedule.splits_backward
        chunks = [chunk for chunk in range(count) if stage_of(layout, chunk) == own]
        stages: list[Any] = [
            _stage(self.machine, stage, chunk, micro_batch) for chunk, stage in zip(chunks, self.stages, strict=True)
        ]
        if layout.schedule != PipelineSchedule.PLAIN:
            return _Ordered(layout, stages, self.micro_batches, loss_fn=self._stage_loss, scale_grads=False)
        kind = Schedule1F1B if self.micro_batches >= count else ScheduleGPipe
        return kind(stages[0], self.micro_batches, loss_fn=self._stage_loss, scale_grads=False)


class _Ordered(_PipelineScheduleRuntime):
    """The passes of ``weft.layout.stages.orders``; each rank sends and receives in the order of one clock."""

    def __init__(self, layout: Layout, stages: list[Any], micro_batches: int, **options: Any) -> None:
        super().__init__(stages, micro_batches, **options)  # type: ignore[no-untyped-call]
        self._sent: deque[dist.Work] = deque()
        for stage in stages:
            stage.sent = self._sent
        kinds = {"forward": "F", "backward": "I" if layout.schedule.splits_backward else "B", "weight-gradient": "W"}
        self._prepare_schedule_with_comms(
            {
                stage: [_Action(op.chunk, _ComputationType.from_str(kinds[op.what]), op.micro_batch) for op in order]
                for stage, order in enumerate(orders(layout, micro_batches))
            }
        )

    def _step_microbatches(self, *given: Any, **named: Any) -> None:
        super()._step_microbatches(*given, **named)
        while self._sent:
            self._sent.popleft().wait()


class _Between(nn.Module):
    """A stage whose input ``arrives`` from another rank, or whose output ``leaves`` for one."""

    def __init__(self, stage: StageModule, *, arrives: bool, leaves: bool) -> None:
        super().__init__()
        shared = _rows_shared(stage.machine)
        self.stage, self.arrives, self.leaves = stage, arrives and shared, leaves and shared

    def forward(self, given: Tensor) -> Tensor:
        machine, stage = self.stage.machine, self.stage
        if self.arrives:
            given = _Arrive.apply(given, machine)  # type: ignore[no-untyped-call]
        rows = stage(given)
        if self.leaves:
            rows = _Leave.apply(rows, machine)  # type: ignore[no-untyped-call]
        return rows


def _rows_shared(machine: Machine) -> bool:
    """Whether ranks along x have the same rows between stages."""
    return machine.grid.size("x") > 1 and not machine.rows_cut


class _Arrive(Function):
    """Gather tokens over x; all ranks have the same gradient, of which each keeps its share."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, machine: Machine) -> Tensor:
        ctx.machine = machine
        return machine.collectives.all_gather(rows, "x").wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _own_rows(ctx.machine, gradients[0]), None


class _Leave(Function):
    """Keep this rank's share of the tokens; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, machine: Machine) -> Tensor:
        ctx.machine = machine
        return _own_rows(machine, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        machine: Machine = ctx.machine
        return machine.collectives.all_gather(gradients[0], "x").wait(), None


def _own_rows(machine: Machine, rows: Tensor) -> Tensor:
    start, stop = share(rows.shape[0], machine.grid.size("x"), machine.grid.index("x"))
    return rows[start:stop].clone()


class _CountedStage(PipelineStage):
    """A stage that counts its sends, and computes at the pace of its rank.

    Its buffers of messages are there from when they are asked for until they are used; PyTorch's are of all
    micro-batches, for good.
    """

    machine: Machine

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        with self.machine.collectives.pace.computing():
            found = super().forward_one_chunk(fwd_chunk_id, *given, **named)
        _drop(self.args_recv_info[fwd_chunk_id])
        return found

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Tensor | None = None, *given: Any, **named: Any) -> None:
        with self.machine.collectives.pace.computing():
            super().backward_one_chunk(bwd_chunk_id, loss, *given, **named)
        _drop(self.grad_recv_info.get(bwd_chunk_id, ()))
        if loss is not None:  # which the schedule keeps, and by its graph the chunk's input
            loss.detach_()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        with self.machine.collectives.pace.computing():
            return super().backward_weight_one_chunk(bwd_chunk_id, *given, **named)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._make(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        self._make(self.grad_recv_info.get(bwd_chunk_id, ()))
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _make(self, messages: Iterable[Any]) -> None:
        for one in messages:
            if not one.is_root_arg:
                one.buffer = torch.empty(one.tensor_meta.shape, dtype=one.tensor_meta.dtype, device=self.device)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _setup_forward_recv_info(self, *given: Any) -> None:
        super()._setup_forward_recv_info(*given)
        _drop(one for messages in self.args_recv_info.values() for one in messages)

    def _setup_backward_recv_info(self, *given: Any) -> None:
        super()._setup_backward_recv_info(*given)
        _drop(one for messages in self.grad_recv_info.values() for one in messages)

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Any = None) -> Any:
        """All stages state their shapes, so there is nothing to vote on."""
        return np.int64(1)

    def _warmup_backward_result(self, received_result: Any = None) -> Any:
        return np.int64(1)

    def _counted(self, operations: Iterable[dist.P2POp]) -> list[dist.P2POp]:
        found = list(operations)
        for operation in found:
            self.machine.collectives.note("send", ("pipeline",), operation.tensor)
        return found


def _drop(messages: Iterable[Any]) -> None:
    for one in messages:
        one.buffer = None


class _OrderedStage(_CountedStage):
    """A stage under ``_Ordered``, which waits for what it sent when the step ends, and keeps it until then.

    Here only so many sends are under way; a wait earlier than PyTorch's cannot block for good, as each rank sends and
    receives in the order of one clock.
    """

    sent: deque[dist.Work]
    """Of all stages of a rank."""

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._send(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._send(super().get_bwd_send_ops(bwd_chunk_id))

    def _send(self, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        """Send now; nothing is left for the schedule."""
        if operations:
            while len(self.sent) >= SENDS_IN_FLIGHT:
                self.sent.popleft().wait()
            self.sent.extend(_batch_p2p(operations))
        return []


def _stage(machine: Machine, stage: StageModule, chunk: int, micro_batch: int) -> PipelineStage:
    layout = machine.grid.layout
    count, own = layout.pipeline * layout.virtual_stages, stage_of(layout, chunk)
    arrives = not stage.first and stage_of(layout, chunk - 1) != own
    leaves = not stage.last and stage_of(layout, chunk + 1) != own
    takes, gives = stage.takes(micro_batch), stage.gives(micro_batch)
    made = (_CountedStage if layout.schedule == PipelineSchedule.PLAIN else _OrderedStage)(
        _Between(stage, arrives=arrives, leaves=leaves),
        chunk,
        count,
        machine.grid.device,
        input_args=_sent(machine, takes) if arrives else takes,
        output_args=_sent(machine, gives) if leaves else gives,
        group=machine.grid.group("pipeline"),
        dw_builder=machine.later.take if machine.later.collects else None,
    )
    made.machine = machine
    return made


def _sent(machine: Machine, rows: Tensor) -> Tensor:
    """What one rank sends of rows between stages, without values."""
    if not _rows_shared(machine):
        return rows
    own = machine.grid.divided(rows.shape[0], "x", what="tokens of a micro-batch")
    return torch.empty(own, *rows.shape[1:], dtype=rows.dtype, device="meta", requires_grad=True)
