"""Memory of one rank's step beside ranks that are not there: bytes of all tensors alive while the real code runs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft.layout.check import check_trainable
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.measure.trace import bare_step, on_fake_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Bytes of a step: ``before`` it (weights and gradients), and at its ``peak`` beyond those."""

    before_bytes: int
    peak_bytes: int


def alive(
    job: Job, layout: Layout, *, rank: int = 0, precision: Precision | None = None, device: str = "cpu"
) -> Alive:
    """Memory of ``rank`` in one training step, without an optimizer's; ``meta`` attention keeps all scores."""
    check_trainable(job, layout)
    with on_fake_ranks(layout, rank, device) as grid:
        return alive_on(grid, job, precision=precision)


def alive_on(grid: Grid, job: Job, *, precision: Precision | None = None) -> Alive:
    """The same of this rank of a grid, beside others that run it too."""
    with _Counting() as counting:
        step = bare_step(job, Machine.of(grid, precision=precision))
        step()  # the first one prepares messages between stages
        before = counting.now
        counting.peak = before
        step()
    return Alive(before_bytes=before, peak_bytes=counting.peak - before)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages from the operation that makes them until nothing holds them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor):
                self._note(one.untyped_storage())
        return found

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, partial(self._gone, key, size))

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
