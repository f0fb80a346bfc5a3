"""Pipeline stages: torch.distributed.pipelining over the grid's pipeline axis.

Between stages each x rank sends its share of the tokens and gathers the rest on arrival (the scatter-gather
optimization of arXiv 2104.04473, section 4.1); with sequence parallelism it sends what it owns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from weft.errors import BadInput
from weft.layout.stages import model_chunks
from weft.model.spec import Model
from weft.runtime.decoder import Decoder4D, Details, Stage, recomputed_blocks
from weft.runtime.machine import Machine
from weft.runtime.placement import share


def stages_of(machine: Machine, model: Model) -> list[Stage]:
    """This rank's stages (several with interleaving), first to last.

    Raises:
        BadInput: more stages than blocks.
    """
    layout = machine.grid.layout
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
    for chunk in model_chunks(model.block_sequence(), layout.pipeline, layout.virtual_stages):
        blocks = tuple(range(start, start + len(chunk.blocks)))
        start += len(chunk.blocks)
        if chunk.stage == machine.grid.coordinates["pipeline"]:
            recomputed = min(left, len(blocks))
            left -= recomputed
            found.append(Stage(blocks=blocks, recomputed=recomputed, first=chunk.embedding, last=chunk.head))
    return found


def build_stages(
    machine: Machine, model: Model, *, sequence: int, details: Details | None = None
) -> nn.ModuleList:
    """This rank's part of a model: one ``Decoder4D`` per stage that it has.  Every rank must call it."""
    if model.tied_embeddings and machine.grid.size("pipeline") > 1:
        machine.grid.join_ends()
    return nn.ModuleList(
        Decoder4D(machine, model, sequence=sequence, details=details, stage=stage)
        for stage in stages_of(machine, model)
    )


class Passes:
    """Forward and backward passes of one step's micro-batches.

    Args:
        stages: of ``build_stages``.
        micro_batch: sequences per micro-batch.
        micro_batches: of one step.
        tokens: of the whole global batch, by which losses are divided.
    """

    def __init__(
        self, machine: Machine, stages: nn.ModuleList, *, micro_batch: int, micro_batches: int, tokens: int
    ) -> None:
        self.machine, self.tokens, self.micro_batches = machine, tokens, micro_batches
        self.decoders = cast(list[Decoder4D], list(stages))
        self._losses: list[Tensor] = []
        self._schedule = None
        if machine.grid.size("pipeline") > 1:
            self._schedule = self._scheduled(micro_batch)

    @property
    def has_head(self) -> bool:
        """Whether this rank computes the loss."""
        return self.decoders[-1].stage.last

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """All micro-batches; this rank's share of the mean loss, shape (1,), 0 but on the last stage.

        Args:
            inputs: token ids (micro_batches * micro_batch, sequence), ``targets`` likewise.
        """
        self._losses = []
        if self._schedule is None:
            decoder = self.decoders[0]
            for ids, wanted in zip(
                inputs.chunk(self.micro_batches), targets.chunk(self.micro_batches), strict=True
            ):
                self._loss(decoder(ids), wanted).backward()  # type: ignore[no-untyped-call]
        else:
            given = (inputs,) if self.decoders[0].stage.first else ()
            ends = {"target": targets} if self.has_head else {}
            self._schedule.step(*given, **ends, return_outputs=False)
        total = torch.zeros(1, dtype=self.machine.precision.wide, device=self.machine.grid.device)
        for loss in self._losses:
            total += loss
        return total

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's share of the mean loss over the global batch."""
        loss = self.decoders[-1].losses(logits, targets).sum() / self.tokens
        self._losses.append(loss.detach())
        return loss

    def _scheduled(self, micro_batch: int) -> Any:
        layout = self.machine.grid.layout
        count = layout.pipeline * layout.virtual_stages
        first = self.machine.grid.coordinates["pipeline"]
        stages: list[Any] = [
            _stage(self.machine, decoder, first + i * layout.pipeline, count, micro_batch)
            for i, decoder in enumerate(self.decoders)
        ]
        if layout.virtual_stages > 1:
            return ScheduleInterleaved1F1B(stages, self.micro_batches, loss_fn=self._loss, scale_grads=False)
        kind = Schedule1F1B if self.micro_batches >= count else ScheduleGPipe
        return kind(stages[0], self.micro_batches, loss_fn=self._loss, scale_grads=False)


class _Between(nn.Module):
    """A stage with what happens at its boundaries."""

    def __init__(self, decoder: Decoder4D) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, given: Tensor) -> Tensor:
        machine, stage = self.decoder.machine, self.decoder.stage
        shared = machine.grid.size("x") > 1 and not machine.rows_cut
        if shared and not stage.first:
            given = _Arrive.apply(given, machine)  # type: ignore[no-untyped-call]
        rows = self.decoder(given)
        if shared and not stage.last:
            rows = _Leave.apply(rows, machine)  # type: ignore[no-untyped-call]
        return cast(Tensor, rows)


class _Arrive(Function):
    """Gather tokens over x; all ranks have the same gradient, of which each keeps its share."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, machine: Machine) -> Tensor:
        ctx.machine = machine
        return machine.collectives.all_gather(rows, "x").wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _own_rows(ctx.machine, gradients[0]), None


class _Leave(Function):
    """Keep this rank's share of the tokens; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, machine: Machine) -> Tensor:
        ctx.machine = machine
        return _own_rows(machine, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        machine: Machine = ctx.machine
        return machine.collectives.all_gather(gradients[0], "x").wait(), None


def _own_rows(machine: Machine, rows: Tensor) -> Tensor:
    start, stop = share(rows.shape[0], machine.grid.size("x"), machine.grid.index("x"))
    return rows[start:stop].clone()


class _CountedStage(PipelineStage):
    """A stage that counts its sends."""

    machine: Machine

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

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


def _stage(machine: Machine, decoder: Decoder4D, index: int, count: int, micro_batch: int) -> PipelineStage:
    grid, sequence = machine.grid, decoder.sequence
    tokens = grid.divided(micro_batch * sequence, "x", what="tokens of a micro-batch")
    width = grid.divided(decoder.model.hidden, "y", what="hidden")
    hidden = torch.empty(tokens, width, dtype=machine.precision.compute, device="meta", requires_grad=True)
    ids = torch.empty(micro_batch, sequence, dtype=torch.int64, device="meta")
    logits = hidden
    if decoder.head is not None:
        rows = micro_batch * sequence
        logits = torch.empty(
            rows,
            decoder.head.table.block_shape[0],
            dtype=machine.precision.compute,
            device="meta",
            requires_grad=True,
        )
    stage = _CountedStage(
        _Between(decoder),
        index,
        count,
        grid.device,
        input_args=ids if decoder.stage.first else hidden,
        output_args=logits,
        group=grid.group("pipeline"),
    )
    stage.machine = machine
    return stage
