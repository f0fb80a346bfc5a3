"""What every layer of one rank works with: grid, collectives, scheduler and number formats."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from weft.errors import UnknownName, Unsupported
from weft.runtime.core.collectives import Collectives
from weft.runtime.core.grid import Grid
from weft.runtime.core.overlap import Overlap, SideQueue


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
