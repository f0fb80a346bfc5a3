"""Which rank keeps the others waiting, and in which collective.

Each rank counts the collectives that it issues by their axes.  A thread tells the others through the process group's
store where the rank stands, but only when it has stood there for a while: a run that goes on writes nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

import torch.distributed as dist

from weft.errors import WeftError

_KEY = "weft/stands"
_SHOWN = 4


class Hung(WeftError):
    """A collective did not end in time; another try may be better off."""

    exit_code = 1
    temporary = True


class Watch:
    """One rank's; see the module.

    Args:
        every_s: how long a rank stands before it tells so.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s, self._rank = every_s, dist.get_rank()
        self._store = dist.distributed_c10d._get_default_store()
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._last, self._since = "none", time.time()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="weft-watch", daemon=True)
        self._thread.start()

    def issued(self, kind: str, axes: tuple[str, ...]) -> int:
        """A collective is issued; its number over these axes, from 1."""
        self._counts[axes] += 1
        self._last, self._since = _words(kind, axes, self._counts[axes]), time.time()
        return self._counts[axes]

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()

    def explained(
        self, group: dist.ProcessGroup, kind: str, axes: tuple[str, ...], number: int, error: Exception
    ) -> Hung:
        """Why a collective failed: who of its ranks has not come to it."""
        time.sleep(2 * self._every_s)  # others may have come to stand just now
        behind, silent = [], []
        for rank in dist.get_process_group_ranks(group):
            if rank == self._rank:
                continue
            found = self._stands(rank)
            if found is None:
                silent.append(rank)
            elif found["counts"].get(" ".join(axes), 0) < number:
                behind.append(f"rank {rank} (last: {found['last']}, {time.time() - found['since']:.0f} s ago)")
        told = []
        if behind:
            more = f" and {len(behind) - _SHOWN} more" if len(behind) > _SHOWN else ""
            told.append(f"not come to: {', '.join(behind[:_SHOWN])}{more}")
        if silent:
            told.append(f"nothing is heard of: rank {', '.join(map(str, silent[:_SHOWN]))}")
        reason = "; ".join(told) or f"all its ranks have come to it: {str(error).splitlines()[0]}"
        return Hung(f"rank {self._rank} gave up waiting in {_words(kind, axes, number)}: {reason}")

    def between_stages(self, error: RuntimeError) -> Hung | None:
        """Why something failed that is not issued here, as what pipeline stages send; None unless time ran out."""
        words = str(error)
        if "timed out" not in words.lower() and "timeout" not in words.lower():
            return None
        time.sleep(2 * self._every_s)
        stands = {rank: self._stands(rank) for rank in range(dist.get_world_size()) if rank != self._rank}
        silent = [rank for rank, found in stands.items() if found is None]
        if silent:
            reason = f"nothing is heard of: rank {', '.join(map(str, silent[:_SHOWN]))}"
        else:
            since, rank, last = min((found["since"], rank, found["last"]) for rank, found in stands.items() if found)
            reason = f"rank {rank} stands longest (last: {last}, {time.time() - since:.0f} s ago)"
        return Hung(f"rank {self._rank} gave up waiting: {reason}")

    def _stands(self, rank: int) -> dict[str, Any] | None:
        key = f"{_KEY}/{rank}"
        found: dict[str, Any] | None = json.loads(self._store.get(key)) if self._store.check([key]) else None
        return found

    def _tell(self) -> None:
        told = 0.0
        while not self._end.wait(self._every_s):
            since = self._since
            if since == told or time.time() - since < self._every_s:
                continue
            counts = {" ".join(axes): number for axes, number in list(self._counts.items())}
            try:
                self._store.set(
                    f"{_KEY}/{self._rank}", json.dumps({"counts": counts, "last": self._last, "since": since})
                )
            except RuntimeError:  # the store has gone with its rank
                return
            told = since


def _words(kind: str, axes: tuple[str, ...], number: int) -> str:
    return f"{kind} {number} over {' '.join(axes)}"
