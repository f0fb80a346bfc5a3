"""Which rank keeps the others waiting, and in which collective.

Each rank counts the collectives that it issues by their axes, and keeps the last ones.  A thread tells the others
through the process group's store where the rank stands, but only when it has stood there for a while: a run that goes
on writes nothing.  When a rank fails, is ended by SIGTERM or stands for too long, it leaves its flight record.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import LONGEST_MESSAGE, WeftError, printable
from weft.files import write_text
from weft.flights import KEPT, Entry, Flight, next_folder, record_file

_KEY = "weft/stands"
_SHOWN = 4
_PATIENCE = 0.8
"""Share of the time after which ranks give up after which one that stands leaves its record."""


class Hung(WeftError):
    """A collective did not end in time; another try may be better off."""

    exit_code = 1
    temporary = True


class Noted:
    """Something that this rank does: a collective over ``axes``, a message or a pass."""

    __slots__ = (
        "axes",
        "created_s",
        "kind",
        "number",
        "of",
        "passed",
        "peer",
        "record",
        "size",
        "step",
        "until_s",
        "waits",
        "watch",
    )

    def __init__(self, watch: Watch, kind: str, axes: tuple[str, ...], number: int, size: int) -> None:
        self.watch, self.kind, self.axes, self.number, self.size = watch, kind, axes, number, size
        self.record, self.step, self.created_s = watch.noted, watch.step, time.time()
        self.of, self.waits, self.until_s = "", False, 0.0
        self.peer: int | None = None
        self.passed: torch.Event | None = None
        watch.noted += 1
        watch.entries.append(self)

    def ended(self, result: Tensor | None = None) -> None:
        """The rank has it; on a GPU, when what is queued now has run."""
        self.until_s = time.time()
        if result is not None and result.is_cuda:
            self.passed = torch.Event(result.device)
            self.passed.record()

    def explained(self, error: Exception) -> Exception:
        """Why a collective failed: who of its ranks has not come to it."""
        return self.watch.explained(self, error)

    def entry(self) -> Entry:
        """For the record."""
        done = self.until_s > 0 and (self.passed is None or self.passed.query())
        return Entry(
            record_id=self.record,
            step=self.step,
            kind=self.kind,
            process_group=" ".join(self.axes),
            collective_seq_id=self.number,
            of=self.of,
            size_bytes=self.size,
            peer=self.peer,
            state="completed" if done else "waiting" if self.waits else "scheduled",
            time_created_s=self.created_s,
            seconds=self.until_s - self.created_s if done else None,
        )


class Watch:
    """One rank's; see the module.

    Args:
        every_s: how long a rank stands before it tells so.
        run: folder of the run, for flight records; None writes none.
        timeout_s: how long a collective may take; None: as long as PyTorch has it.

    Attributes:
        step: the step that is under way, from 1.
        entries: the last things that were noted, ``noted`` in all.
    """

    def __init__(self, every_s: float, run: Path | None = None, timeout_s: float | None = None) -> None:
        usual = dist.distributed_c10d._get_default_timeout(dist.Backend(dist.get_backend()))
        self._every_s, self._timeout_s, self._rank = every_s, timeout_s or usual.total_seconds(), dist.get_rank()
        self._store = dist.distributed_c10d._get_default_store()
        self.step = self.noted = 0
        self.entries: deque[Noted] = deque(maxlen=KEPT)
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._ranks: dict[tuple[str, ...], list[int]] = {}
        self._last: Noted | None = None
        self._since = time.time()
        self._folder, self._left, self._final = _agreed(run), threading.Lock(), False
        self._reads, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._before = self._take_signals()
        self._thread = threading.Thread(target=self._tell, name="weft-watch", daemon=True)
        self._thread.start()

    def issued(self, kind: str, axes: tuple[str, ...], group: dist.ProcessGroup, size: int) -> Noted:
        """A collective of ``size`` bytes is issued."""
        self._counts[axes] += 1
        if axes not in self._ranks:
            self._ranks[axes] = dist.get_process_group_ranks(group)
        found = self._last = Noted(self, kind, axes, self._counts[axes], size)
        self._since = found.created_s
        return found

    def message(self, kind: str, of: str, peer: int, size: int) -> Noted:
        """A message to or from another stage is issued."""
        found = Noted(self, kind, (), 0, size)
        found.of, found.peer = of, peer
        return found

    @contextmanager
    def passing(self, kind: str, of: str = "") -> Iterator[None]:
        """A pass is what happens inside."""
        found = Noted(self, kind, (), 0, 0)
        found.of = of
        yield
        found.ended()

    def arrived(self, of: str) -> None:
        """A message that was to be received has come."""
        for one in reversed(self.entries):
            if one.kind == "receive" and one.of == of:
                one.ended()
                return

    @contextmanager
    def on_guard(self) -> Iterator[None]:
        """Inside, an exception leaves the flight record; then the watch ends."""
        try:
            yield
        except Exception as error:
            problem = (isinstance(error, RuntimeError) and self.between_stages(error)) or error
            self._leave("error", str(problem))
            if problem is error:
                raise
            raise problem from error
        else:
            self._forget()
        finally:
            self._close()

    def _close(self) -> None:
        """End the thread."""
        if self._before is not None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, self._before)
        os.write(self._wakes, b"\0")
        self._thread.join()
        os.close(self._reads)
        os.close(self._wakes)

    def _forget(self) -> None:
        """Remove the record of a rank that stood for long and went on."""
        if self._folder is not None:
            with suppress(OSError):
                record_file(self._folder, self._rank).unlink()
                self._folder.rmdir()

    def _leave(self, cause: Literal["error", "ended", "stood"], reason: str) -> None:
        """Write the flight record; that of a failure or an end stays."""
        if self._folder is None or not self._left.acquire(blocking=cause == "ended"):
            return
        if not self._final:
            self._final = cause != "stood"
            with suppress(OSError, WeftError):  # the problem that is under way counts
                self._folder.mkdir(parents=True, exist_ok=True)
                write_text(record_file(self._folder, self._rank), self._flight(cause, reason).model_dump_json() + "\n")
        self._left.release()

    def _flight(self, cause: Literal["error", "ended", "stood"], reason: str) -> Flight:
        return Flight(
            rank=self._rank,
            world=dist.get_world_size(),
            host=socket.gethostname(),
            pid=os.getpid(),
            cause=cause,
            reason=printable(reason, LONGEST_MESSAGE),
            time_s=time.time(),
            step=self.step,
            groups={" ".join(axes): ranks for axes, ranks in list(self._ranks.items())},
            issued={" ".join(axes): number for axes, number in list(self._counts.items())},
            entries=[one.entry() for one in list(self.entries)],
        )

    def explained(self, noted: Noted, error: Exception) -> Hung:
        """Why a collective failed: who of its ranks has not come to it."""
        time.sleep(2 * self._every_s)  # others may have come to stand just now
        behind, silent = [], []
        for rank in self._ranks[noted.axes]:
            if rank == self._rank:
                continue
            found = self._stands(rank)
            if found is None:
                silent.append(rank)
            elif found["counts"].get(" ".join(noted.axes), 0) < noted.number:
                behind.append(f"rank {rank} (last: {found['last']}, {time.time() - found['since']:.0f} s ago)")
        told = []
        if behind:
            more = f" and {len(behind) - _SHOWN} more" if len(behind) > _SHOWN else ""
            told.append(f"not come to: {', '.join(behind[:_SHOWN])}{more}")
        if silent:
            told.append(f"nothing is heard of: rank {', '.join(map(str, silent[:_SHOWN]))}")
        reason = "; ".join(told) or f"all its ranks have come to it: {str(error).splitlines()[0]}"
        return Hung(f"rank {self._rank} gave up waiting in {_words(noted)}: {reason}")

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

    def _take_signals(self) -> Any:
        """Let SIGTERM wake the thread, also while the rank waits in a collective, where it would only end the process;
        what was done on SIGTERM before, None where that is somebody's own."""
        plain = signal.getsignal(signal.SIGTERM)
        if (
            self._folder is None
            or threading.current_thread() is not threading.main_thread()
            or plain != signal.SIG_DFL
        ):
            return None
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        return plain

    def _tell(self) -> None:
        told = left = 0.0
        while True:
            woken = os.read(self._reads, 64) if select.select([self._reads], [], [], self._every_s)[0] else b""
            if signal.SIGTERM in woken:
                self._leave("ended", "SIGTERM")
                os._exit(128 + signal.SIGTERM)
            if 0 in woken:
                return
            since, stood = self._since, time.time() - self._since
            if since != left and stood > _PATIENCE * self._timeout_s:
                self._leave("stood", f"stood for {stood:.0f} s")
                left = since
            if since == told or stood < self._every_s:
                continue
            counts = {" ".join(axes): number for axes, number in list(self._counts.items())}
            stands = {"counts": counts, "last": _words(self._last), "since": since}
            try:
                self._store.set(f"{_KEY}/{self._rank}", json.dumps(stands))
            except RuntimeError:  # the store has gone with its rank
                return
            told = since


def _agreed(run: Path | None) -> Path | None:
    """One folder for the records of all ranks, as the first one sees it."""
    if run is None:
        return None
    found: list[Any] = [next_folder(run).name]
    dist.broadcast_object_list(found, src=0)
    return run / str(found[0])


def _words(noted: Noted | None) -> str:
    return "none" if noted is None else f"{noted.kind} {noted.number} over {' '.join(noted.axes)}"
