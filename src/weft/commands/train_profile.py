"""Traces of chosen steps of chosen ranks, by PyTorch's profiler (Kineto), as ui.perfetto.dev opens them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.errors import BadInput

PROFILED = "ProfilerStep#"
"""How PyTorch's profiler calls its steps, and tools that read its traces find them."""


def parse_steps(text: str | None, steps: int) -> tuple[int, int] | None:
    """The first and the last step of ``--profile-steps``, "100..102"; None where it is not given.

    Raises:
        BadInput: they are no steps of a run of so many.
    """
    if text is None:
        return None
    first, _, last = text.partition("..")
    if not (first.isdecimal() and (last or first).isdecimal() and 1 <= int(first) <= int(last or first) <= steps):
        remedy = f"give the first and the last, within 1 to {steps}: 2..3"
        raise BadInput(f"{text[:40]!r} are no steps of the run", where="--profile-steps", remedy=remedy)
    return int(first), int(last or first)


def parse_ranks(text: str | None, world: int, *, fewer: bool = False) -> tuple[int, ...]:
    """The ranks of ``--profile-ranks``, "0,3", in order; none where it is not given.

    Args:
        fewer: those that a smaller layout has not are left out.

    Raises:
        BadInput: they are no ranks of the run.
    """
    if text is None:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        problem = f"{text[:40]!r} are no ranks"
        raise BadInput(problem, where="--profile-ranks", remedy="give numbers with commas: 0,3")
    ranks = tuple(sorted(set(map(int, parts))))
    if ranks[-1] >= world and not fewer:
        problem = f"there is no rank {ranks[-1]} among {world}"
        raise BadInput(problem, where="--profile-ranks", remedy=f"give ranks from 0 to {world - 1}")
    return tuple(rank for rank in ranks if rank < world)


def profile_path(path: str, ranks: tuple[int, ...], rank: int) -> Path:
    """The file of a rank: where ranks were asked for, with its number."""
    given = Path(path)
    stem, dot, ends = given.name.partition(".")
    return given.with_name(f"{stem}-rank{rank}{dot}{ends}") if ranks else given


class Profile:
    """One rank's trace of the steps from ``first`` to ``last``, with the shapes of operators."""

    def __init__(self, path: Path, first: int, last: int, device: str) -> None:
        self.path, self.first, self.last, self._device = path, first, last, device
        self._profiler: Any = None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Inside, a step is taken; the profiler runs if it is one of those."""
        if number == self.first:
            self._begin()
        if self._profiler is None or number > self.last:
            yield
            return
        from torch.profiler import record_function

        with record_function(f"{PROFILED}{number}"):
            yield
        if number == self.last:
            self._profiler.stop()

    def _begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities, record_shapes=True)
        self._profiler.start()

    def write(self) -> bool:
        """Write the trace, if its steps were taken.

        Raises:
            BadInput: it cannot be written.
        """
        if self._profiler is None:
            return False
        try:
            self._profiler.export_chrome_trace(str(self.path))
            self.path.stat()
        except (OSError, RuntimeError) as error:
            raise BadInput(f"cannot be written: {error}", where=str(self.path)) from None
        return True
