"""One rank of a grid with the serial model's parameters, and how far its results are from the serial ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import serial
import torch
import torch.distributed as dist
from models import BATCH, SEQUENCE
from ranks import grid_of
from torch import Tensor

from weft.layout.mesh import ROWS
from weft.layout.spec import Layout
from weft.model.spec import Model
from weft.runtime.core.collectives import Collectives
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings
from weft.runtime.layers.attention import own_tokens
from weft.runtime.layers.decoder import Details
from weft.runtime.run.flat import Flat
from weft.runtime.run.pipeline import StepPasses, build_stages


def tokens(model: Model, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the global batch, shape (BATCH, SEQUENCE)."""
    generator = torch.Generator().manual_seed(seed)
    ids, targets = torch.randint(model.vocab, (2, BATCH, SEQUENCE), generator=generator)
    return ids, targets


class Solved:
    """The serial model's logits, loss and gradients."""

    def __init__(self, model: Model, dtype: torch.dtype, details: Details | None = None) -> None:
        ids, targets = tokens(model)
        self.parameters = serial.random_parameters(model, dtype)
        serial.balances.clear()
        logits = serial.logits(self.parameters, model, ids, details)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        torch.stack((loss, *serial.balances)).sum().backward()
        self.logits, self.loss = logits.detach(), float(loss.detach())

    @property
    def gradients(self) -> serial.Parameters:
        return {name: values.grad for name, values in self.parameters.items()}

    @property
    def norm(self) -> float:
        return float(torch.cat([values.flatten() for values in self.gradients.values()]).norm())


solved = lru_cache(Solved)


class Run:
    """One rank's model, without an optimizer."""

    def __init__(
        self,
        layout: Layout,
        model: Model,
        *,
        precision: str = "fp64",
        collectives: type[Collectives] = Collectives,
        details: Details | None = None,
    ) -> None:
        self.model, self.grid = model, grid_of(layout)
        machine = Machine.of(self.grid, precision=Precision.of(precision))
        self.machine = replace(machine, collectives=collectives(self.grid))
        self.stages = build_stages(self.machine, model, sequence=SEQUENCE, details=details)
        self.serial = solved(model, self.machine.precision.master, details)
        held = holdings(self.stages)
        for holding in held:
            holding.fill(self.whole)
        self.flat = Flat(self.machine, self.stages, held)
        self.own = BATCH // layout.dp
        self.columns = own_tokens(self.grid, SEQUENCE)
        self.micro_batches = self.own // layout.micro_batch
        self.passes = StepPasses(
            self.machine,
            self.stages,
            micro_batch=layout.micro_batch,
            micro_batches=self.micro_batches,
            tokens=BATCH * SEQUENCE,
        )

    def whole(self, name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        values = self.serial.parameters[name].detach()
        assert tuple(values.shape) == shape
        return values[_window(offsets, sizes)]

    @property
    def rows(self) -> slice:
        """This rank's sequences of the global batch."""
        index = self.grid.coordinates["data"] * self.grid.size("z") + self.grid.coordinates["z"]
        return slice(index * self.own, (index + 1) * self.own)

    def step(self, seed: int = 0) -> float | None:
        """Forward and backward passes; the mean loss, None but on the last stage."""
        ids, targets = tokens(self.model, seed)
        with self.flat.step(self.micro_batches, loss="sum"):
            loss = self.passes.run(*(part[self.rows, self.columns] for part in (ids, targets)))
        if not self.stages[-1].stage.last:
            return None
        return float(self.machine.collectives.all_reduce(loss, *ROWS).wait())

    def logits_error(self) -> float:
        """Of this rank's logits (without pipeline stages); padding columns are ignored by the loss."""
        with torch.no_grad():
            found = self.stages[0](tokens(self.model)[0][self.rows, self.columns])
        height = found.shape[1]
        start = self.grid.index("x", "y") * height
        want = self.serial.logits[self.rows, self.columns].flatten(0, 1)[:, start : start + height]
        return worst(found[:, : want.shape[1]], want)

    def gradient_error(self) -> float:
        """Of every gradient that this rank owns."""
        errors = [worst(values, self.serial.gradients[name][window]) for name, window, values in self.gradients()]
        return max(errors)

    def gradients(self) -> Iterator[tuple[str, tuple[slice, ...], Tensor]]:
        """Names, windows of the whole parameter, and this rank's gradients there."""
        yield from pieces(self.flat, lambda leaf: leaf.grad)

    def uncovered(self) -> list[str]:
        """Parameters of which no rank owns some element."""
        seen = {name: torch.zeros(shape) for name, shape in serial.shapes(self.model).items()}
        for name, window, _ in self.gradients():
            seen[name][window] = 1.0
        flat = torch.cat([values.flatten() for values in seen.values()])
        dist.all_reduce(flat, op=dist.ReduceOp.MAX)
        sizes = [values.numel() for values in seen.values()]
        return [name for name, part in zip(seen, flat.split(sizes), strict=True) if not part.all()]


def pieces(flat: Flat, values_of) -> Iterator[tuple[str, tuple[slice, ...], Tensor]]:
    """What a rank owns as rectangles of whole parameters: the values, or gradients, that a leaf has."""
    for owned in flat.owned:
        values = values_of(owned.leaf)
        for slot, (low, high) in owned.buffer.within(owned.start, owned.stop):
            placement = slot.holding.placement.part(low - slot.start, high - slot.start)
            own = values[low - owned.start : high - owned.start]
            for one in placement.rectangles():
                part = own[one.start :][: torch.Size(one.sizes).numel()].view(one.sizes)
                yield slot.holding.name, _window(one.offsets, one.sizes), part


def worst(found: Tensor, want: Tensor) -> float:
    """The largest absolute error."""
    assert found.shape == want.shape
    return float((found.double() - want.double()).abs().max()) if found.numel() else 0.0


def _window(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
