"""What is communicated behind computation: AxoNN's OAR, ORS, OAG and the weight cache as one object.

Inside ``Overlap.step`` weights are gathered before they are asked for, in the order in which the previous
step asked for them, and gradients are scattered while earlier layers compute.  Outside, all is done at once.
Source: arXiv 2305.13525, section 4; every mode gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import ref

from torch import Tensor

from weft.layout.spec import Layout
from weft.layout.step import GATHERS_AHEAD, SCATTERS_IN_FLIGHT
from weft.runtime.core.collectives import Pending, settle


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Which overlaps are on.

    Attributes:
        all_reduce: OAR, the input gradient's collective behind the weight gradient's product.
        reduce_scatter: ORS, weight gradients over z behind the backward pass of earlier layers.
        all_gather: OAG, the weights of the next layers behind the computation of this one.
        weight_cache: gathered weights are kept until the step ends; those that need no gathering, cast once, always
            are.
    """

    all_reduce: bool = True
    reduce_scatter: bool = True
    all_gather: bool = True
    weight_cache: bool = False

    @classmethod
    def of(cls, layout: Layout) -> Switches:
        """The switches that a layout asks for."""
        return cls(
            all_reduce=layout.overlap_tensor != "none",
            reduce_scatter=layout.overlap_reduce,
            all_gather=layout.overlap_gather,
        )

    @classmethod
    def off(cls) -> Switches:
        """Nothing overlaps."""
        return replace(cls(), all_reduce=False, reduce_scatter=False, all_gather=False)


class Gathered(Protocol):
    """A weight as the scheduler sees it; ``alone``: no other rank has a part of it."""

    alone: bool

    def start_gather(self) -> Pending:
        """Begin to gather the weight."""

    def start_scatter(self, gradient: Tensor) -> Pending:
        """Begin to sum and scatter the weight's gradient."""

    def accumulate(self, shard: Tensor) -> None:
        """Add a summed gradient to the parameter's."""


class Overlap:
    """Schedules the gathering of weights and the scattering of their gradients."""

    def __init__(self, switches: Switches) -> None:
        self.switches = switches
        self._active = False
        self._forget()
        self._order: list[ref[Gathered]] = []
        """Of the step before; weights refer to what refers to this."""

    def _forget(self) -> None:
        self._asked: list[Gathered] = []
        self._position: int | None = 0
        self._ahead: dict[Gathered, Pending] = {}
        self._kept: dict[Gathered, Tensor] = {}
        self._scattering: deque[tuple[Gathered, Pending]] = deque()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step; the optimizer's update comes after it.

        When the block ends all gradients are in place; when it raises, what was under way is waited for and
        dropped, and gradients are incomplete.
        """
        if self._active:
            raise RuntimeError("Overlap.step was entered twice")
        self._active = True
        try:
            yield
            while self._scattering:
                self._finish()
            settle(self._ahead.values())
            self._order = [ref(weight) for weight in self._asked]
        except BaseException:
            with suppress(Exception):
                settle((*self._ahead.values(), *(pending for _, pending in self._scattering)))
            raise
        finally:
            self._active = False
            self._forget()

    def gather(self, weight: Gathered) -> Tensor:
        """The whole weight; begins to gather those that come next."""
        if not self._active:
            return weight.start_gather().wait()
        if weight in self._kept:
            return self._kept[weight]
        pending = self._ahead.pop(weight, None) or weight.start_gather()
        self._prefetch(weight)
        whole = pending.wait()
        if self.switches.weight_cache or weight.alone:
            self._kept[weight] = whole
        return whole

    def _prefetch(self, weight: Gathered) -> None:
        """Follow the order of the previous step; once it is left, nothing is gathered ahead any more."""
        self._asked.append(weight)
        if not self.switches.all_gather or self._position is None:
            return
        if self._position >= len(self._order) or self._order[self._position]() is not weight:
            self._position = None
            return
        self._position += 1
        for known in self._order[self._position : self._position + GATHERS_AHEAD]:
            following = known()
            if following is not None and following not in self._ahead and following not in self._kept:
                self._ahead[following] = following.start_gather()

    def scatter(self, weight: Gathered, gradient: Tensor) -> None:
        """Sum a weight's gradient over z and add this rank's piece to the parameter's gradient."""
        if not (self._active and self.switches.reduce_scatter):
            weight.accumulate(weight.start_scatter(gradient).wait())
            return
        while any(other is weight for other, _ in self._scattering):
            self._finish()
        pending = weight.start_scatter(gradient)
        if not pending.under_way:
            weight.accumulate(pending.wait())
            return
        self._scattering.append((weight, pending))
        if len(self._scattering) > SCATTERS_IN_FLIGHT:
            self._finish()

    def _finish(self) -> None:
        weight, pending = self._scattering.popleft()
        weight.accumulate(pending.wait())
