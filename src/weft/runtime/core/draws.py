"""Random numbers of a forward pass: the same on ranks that hold the same values, others elsewhere.

Dropout in what several ranks hold must drop the same there, or the replicas part in silence.  So a pass does not draw
from what each process was seeded with.  Its seed is a function of the first rank's, of the number of passes before,
and of this rank's place on the axes whose ranks have different rows; for values that are split over more axes
(``weft.runtime.core.split``), of its place on these too.  PyTorch's own generators hold it, so that activation
checkpointing draws the same again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.layout.mesh import ROWS
from weft.runtime.core.beneath import in_backward, tree_map_only
from weft.runtime.core.machine import Machine
from weft.runtime.core.split import marked, plain

_LARGEST = 2**62
_OUTSTANDING = 4096
"""Passes whose backward pass may be still to come."""


class Draws:
    """The draws of a model's training passes.

    Args:
        rows_over: axes whose ranks have different rows.

    Attributes:
        seed: the first rank's, on every rank.
        passes: training passes so far; to draw on as a run that was not interrupted, set it when it goes on.
        parts: values that are split are to know it: in the first pass of training and in that of evaluation, in which
            what a model does to them is checked, and in all of training where something is drawn for such.
        trains: whether the pass is one of training.
    """

    def __init__(self, machine: Machine, rows_over: tuple[str, ...]) -> None:
        self._machine, self._rows_over = machine, rows_over
        self.passes = 0
        self.parts, self._drawn, self.trains = True, False, True
        self._seen: set[bool] = set()
        """Whether passes of evaluation, and of training, have been checked."""
        self._made: dict[int, int] = {}
        first = machine.grid.rank == 0
        seed = torch.tensor([torch.initial_seed() % _LARGEST if first else 0], device=machine.grid.device)
        every = ("x", "y", *ROWS)
        self.seed = int(machine.collectives.all_reduce(seed, *every, op=dist.ReduceOp.MAX).wait())

    @contextmanager
    def alike(self) -> Iterator[None]:
        """One forward pass: inside, ranks that have the same rows draw the same.

        It takes one number of the process's generator, by which a pass that activation checkpointing makes again is
        known.
        """
        mark = int(torch.randint(_LARGEST, (), device="cpu"))
        again = in_backward()
        number = self._made.get(mark, self.passes) if again else self.passes
        if not again:
            self.passes += 1
            self._made[mark] = number
            if len(self._made) > _OUTSTANDING:
                del self._made[next(iter(self._made))]
        with self._seeded("pass", number, *(self._machine.grid.index(axis) for axis in self._rows_over)):
            yield

    def enter(self, trains: bool) -> bool:
        """A pass begins; whether its values are to know that they are split."""
        self.trains, self.parts = trains, trains not in self._seen or (trains and self._drawn)
        return self.parts

    def leave(self, done: bool) -> None:
        """It ends; what is computed again in the backward pass is of training."""
        if done:
            self._seen.add(self.trains)
        self.trains, self.parts = True, self._drawn

    @contextmanager
    def differing(self, *axes: str) -> Iterator[None]:
        """Within ``alike``: ranks along some axes draw different numbers, for values that are split over them."""
        self._drawn = True
        number = int(torch.randint(_LARGEST, (), device="cpu"))
        with self._seeded("differing", number, *(self._machine.grid.index(axis) for axis in axes)):
            yield

    @contextmanager
    def _seeded(self, *words: int | str) -> Iterator[None]:
        device = self._machine.grid.device
        text = ":".join(map(str, (self.seed, *words)))
        number = int.from_bytes(blake2b(text.encode(), digest_size=7).digest())
        if device.type == "cpu":
            with torch.random.fork_rng([]):
                torch.default_generator.manual_seed(number)
                yield
            return
        with torch.random.fork_rng([device], device_type=device.type):
            torch.default_generator.manual_seed(number)
            torch.get_device_module(device).manual_seed(number)
            yield


def share_draws(model: nn.Module, machine: Machine, rows_over: tuple[str, ...]) -> Draws | None:
    """Make every training pass of a model one of ``Draws.alike``; None where one rank is alone."""
    if not machine.grid.runs:
        return None
    draws = Draws(machine, rows_over)
    passes: list[ExitStack] = []

    def enter(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        passes.append(ExitStack())
        if module.training:
            passes[-1].enter_context(draws.alike())
        if draws.enter(module.training):
            return tree_map_only(
                Tensor, lambda one: marked(one, draws) if one.is_floating_point() else one, (given, named)
            )
        return None

    def leave(module: nn.Module, _: Any, out: Any) -> Any:
        result = plain(out) if draws.parts else None
        draws.leave(out is not None)
        passes.pop().close()
        return result

    model.register_forward_pre_hook(enter, with_kwargs=True)
    model.register_forward_hook(leave, always_call=True)
    return draws
