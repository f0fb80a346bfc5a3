"""What is communicated behind computation: AxoNN's OAR, ORS and OAG as one object.

Inside ``Overlap.step`` weights are gathered before they are asked for, in the order in which the previous
step asked for them, and gradients are scattered while earlier layers compute.  Outside, all is done at once.
On a device gradients are widened, scattered and added in a separate queue: computation does not wait for them,
and memory for the wide ones is that of one or two, not of all that are under way.
Source: arXiv 2305.13525, section 4; every mode gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor

from weft.layout.spec import Layout
from weft.layout.step import GATHERS_AHEAD, SCATTER_USES
from weft.runtime.core.collectives import Pending, settle

if TYPE_CHECKING:
    from weft.runtime.core.parameters import Matrix


class SideQueue:
    """A queue of the device beside that of computation, for collectives and casts around them; the CPU has none.

    It waits for what computation has queued before it takes anything on, so that parameters are read after they were
    updated, and memory that is taken in this queue, and given out again in it alone, after computation has used it
    (``record_stream`` would hold it until the host asks again).  A collective waits for the queue that begins it.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        queues = device is not None and device.type not in ("cpu", "meta")
        self._device: Any = torch.get_device_module(device) if queues else None
        self._stream: Any = None

    @property
    def queues(self) -> bool:
        """Whether the device has queues."""
        return self._device is not None

    @contextmanager
    def queue(self) -> Iterator[None]:
        """What is done inside is queued beside computation, behind what that has queued."""
        if self._device is None:
            yield
            return
        if self._stream is None:
            self._stream = self._device.Stream()
        self._stream.wait_stream(self._device.current_stream())
        with self._device.stream(self._stream):
            yield

    def done(self) -> Any:
        """The event of what was queued until now: what computation queues once it is waited for begins behind it."""
        return None if self._stream is None else self._stream.record_event()


@dataclass(frozen=True, slots=True)
class _Scattering:
    """A gradient under way since ``use``; ``weight`` is to accumulate it, None where that is queued already."""

    use: int
    pending: Pending
    weight: Matrix | None

    def finish(self) -> None:
        result = self.pending.wait()
        if self.weight is not None:
            self.weight.accumulate(result)


class Overlap:
    """Schedules the gathering of weights and the scattering of their gradients.

    Attributes:
        all_reduce: OAR is on, the input gradient's collective behind the weight gradient's product.
        reduce_scatter: ORS, weight gradients over z behind the backward pass of earlier layers.
        all_gather: OAG, the weights of the next layers behind the computation of this one.
    """

    def __init__(self, layout: Layout, device: torch.device | None = None) -> None:
        self.all_reduce = layout.overlap_tensor != "none"
        self.reduce_scatter, self.all_gather = layout.overlap_reduce, layout.overlap_gather
        self._reducing = SideQueue(device)
        self._active = False
        self._forget()
        self._order: list[ref[Matrix]] = []
        """Of the step before; weights refer to what refers to this."""

    def _forget(self) -> None:
        self._asked: list[Matrix] = []
        self._position: int | None = 0
        self._ahead: dict[Matrix, Pending] = {}
        self._kept: dict[Matrix, Tensor] = {}
        self._scattering: deque[_Scattering] = deque()
        self._uses = 0

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
                self._scattering.popleft().finish()
            settle(self._ahead.values())
            self._order = [ref(weight) for weight in self._asked]
        except BaseException:
            with suppress(Exception):
                settle((*self._ahead.values(), *(scattering.pending for scattering in self._scattering)))
            raise
        finally:
            self._active = False
            self._forget()

    def gather(self, weight: Matrix) -> Tensor:
        """The whole weight; begins to gather those that come next.  Those of one rank alone are cast once a step."""
        if not self._active:
            return weight.start_gather().wait()
        self._count_use()
        if weight in self._kept:
            return self._kept[weight]
        pending = self._ahead.pop(weight, None) or weight.start_gather()
        self._prefetch(weight)
        whole = pending.wait()
        if weight.alone:
            self._kept[weight] = whole
        return whole

    def _prefetch(self, weight: Matrix) -> None:
        """Follow the order of the previous step; once it is left, nothing is gathered ahead any more."""
        self._asked.append(weight)
        if not self.all_gather or self._position is None:
            return
        if self._position >= len(self._order) or self._order[self._position]() is not weight:
            self._position = None
            return
        self._position += 1
        for known in self._order[self._position : self._position + GATHERS_AHEAD]:
            following = known()
            if following is not None and following not in self._ahead and following not in self._kept:
                self._ahead[following] = following.start_gather()

    def scatter(self, weight: Matrix, gradient: Tensor) -> None:
        """Sum a weight's gradient over z and add this rank's piece to the parameter's gradient."""
        if weight.alone:
            weight.accumulate(gradient)
            return
        if not (self._active and self.reduce_scatter):
            weight.accumulate(weight.start_scatter(gradient).wait())
            return
        if self._reducing.queues:
            with self._reducing.queue():
                pending = weight.start_scatter(gradient)
                pending.use_here(weight.accumulate, self._reducing.done, gradient)
            scattering = _Scattering(self._uses, pending, None)
        else:
            scattering = _Scattering(self._uses, weight.start_scatter(gradient), weight)
        self._scattering.append(scattering)
        self._count_use()

    def _count_use(self) -> None:
        """One more weight was gathered, or gradient scattered: wait for the scatters that began long enough ago."""
        self._uses += 1
        while self._scattering and self._scattering[0].use + SCATTER_USES < self._uses:
            self._scattering.popleft().finish()
