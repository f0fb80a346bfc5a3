"""What every layer of one rank works with: grid, collectives, scheduler and number formats; and what overlaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import ref

import torch
from torch import Tensor

from weft.errors import UnknownName, Unsupported
from weft.layout.spec import Layout
from weft.layout.step import GATHERS_AHEAD, SCATTER_USES
from weft.runtime.core.collectives import Collectives, Pending, settle
from weft.runtime.core.grid import Grid

if TYPE_CHECKING:
    from weft.runtime.core.parameters import Matrix


# Overlap -------------------------------------------------------------------------------------------------------
# What is communicated behind computation: AxoNN's OAR, ORS and OAG as one object.
#
# Inside `Overlap.step` weights are gathered before they are asked for, in the order in which the previous step asked
# for them, and gradients are scattered while earlier layers compute. Outside, all is done at once. On a device
# gradients are widened, scattered and added in a separate queue: computation does not wait for them, and memory for
# the wide ones is that of one or two, not of all that are under way. Source: arXiv 2305.13525, section 4; every mode
# gives the same bits.


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


# Machine -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Formats of parameters at rest, of gathered weights, of products and activations, of reduced gradients.

    Statistics (norms, cross-entropy) are in ``wide``.
    """

    master: torch.dtype = torch.float32
    gather: torch.dtype = torch.float32
    compute: torch.dtype = torch.float32
    reduce: torch.dtype = torch.float32

    @property
    def wide(self) -> torch.dtype:
        return torch.float64 if self.compute == torch.float64 else torch.float32

    @classmethod
    def of(cls, name: str) -> Precision:
        """The usual formats under a name: fp64, fp32, tf32 (fp32, multiplied on tensor cores inside ``numerics``),
        bf16 (with fp32 masters and reduction).

        Raises:
            UnknownName: no such name.
        """
        if name == "fp64":
            wide = torch.float64
            return cls(master=wide, gather=wide, compute=wide, reduce=wide)
        if name not in _FORMATS:
            raise UnknownName("precision", name, ("fp64", *_FORMATS))
        return cls(gather=_FORMATS[name], compute=_FORMATS[name])


@contextmanager
def numerics(*, tf32: bool = False, deterministic: bool = False) -> Iterator[None]:
    """Inside, products of fp32 on tensor cores (10 bits of mantissa), and kernels whose sums have one order.

    cuBLAS is deterministic where ``CUBLAS_WORKSPACE_CONFIG`` (see ``DETERMINISTIC``) was set before its first product.
    """
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("high" if tf32 else before[0])
    torch.use_deterministic_algorithms(deterministic or before[1])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.use_deterministic_algorithms(before[1])


DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Environment of ranks whose products must be the same bits again (PyTorch's notes on reproducibility)."""
_FORMATS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def refuse_autocast(values: Tensor, where: str) -> None:
    """Refuse products inside ``torch.autocast``, which would change the formats that ranks exchange.

    Raises:
        Unsupported: it is on.
    """
    if not values.is_meta and torch.is_autocast_enabled(values.device.type):
        raise Unsupported(
            "torch.autocast is on, which would change the formats that ranks exchange",
            where=where,
            remedy='leave it out, and give prepare(..., precision="bf16")',
        )


T = TypeVar("T")


class LastTaken:
    """What was made of the tensors that were taken last, until others are taken or gradients flow back."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[Tensor, int, dict[Hashable, Any]]] = {}

    def made(self, level: str, taken: Tensor, how: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, once for each tensor, unless no gradient will be asked for."""
        if not (torch.is_grad_enabled() and taken.requires_grad):
            return make()
        known, version, result = self._taken.get(level, (None, 0, {}))
        now = 0 if torch.compiler.is_compiling() else taken._version
        if known is not taken or version != now:
            result = {}
            self._taken[level] = taken, now, result
        if how not in result:
            result[how] = make()
        return cast(T, result[how])

    def forget(self) -> None:
        """Keep nothing alive any longer."""
        self._taken.clear()


class Later:
    """Weight gradients: computed at once, or with ``collects`` kept until their pass (arXiv 2401.10241, section 2)."""

    def __init__(self) -> None:
        self.collects = False
        self._kept: list[Callable[[], None]] = []

    def do(self, work: Callable[[], None]) -> None:
        """Do it, or keep it."""
        if self.collects:
            self._kept.append(work)
        else:
            work()

    def take(self) -> Callable[[], None]:
        """What does all that was kept, in order."""
        kept, self._kept = self._kept, []

        @torch.no_grad()
        def do() -> None:
            while kept:
                kept.pop(0)()

        return do


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One rank's means."""

    grid: Grid
    collectives: Collectives
    overlap: Overlap
    precision: Precision = field(default_factory=Precision)
    last: LastTaken = field(default_factory=LastTaken)
    later: Later = field(default_factory=Later)
    beside: SideQueue = field(default_factory=SideQueue)

    @classmethod
    def of(cls, grid: Grid, *, precision: Precision | None = None) -> Machine:
        """The means of a grid's rank."""
        return cls(
            grid=grid,
            collectives=Collectives(grid),
            overlap=Overlap(grid.layout, grid.device),
            precision=precision or Precision(),
            beside=SideQueue(grid.device),
        )

    @property
    def shares_updates(self) -> bool:
        """ZeRO-1: each rank that has a copy of the matrices updates a share of them."""
        return self.cuts_updates(self.grid.replica)

    def cuts_updates(self, copies: tuple[str, ...]) -> bool:
        """Whether ranks along the copies of some matrices each update a share of them."""
        return self.grid.layout.zero > 0 and self.grid.size(*copies) > 1

    @property
    def rows_cut(self) -> bool:
        """Sequence parallelism: between linear layers tokens are split over x."""
        return self.grid.layout.sequence_parallel and self.grid.size("x") > 1
