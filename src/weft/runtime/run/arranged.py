"""A job of an arrangement as its ranks meet it: where each runs, its settings and routes, and when it begins."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import BadInput
from weft.units import format_moment, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """What an arrangement says of a job.

    Attributes:
        hosts: the host of each rank.
        site_hosts: the names of all hosts of the site.
        traffic_class: a higher one goes first.
        offset_s: after the time at which all jobs of the arrangement begin.
        period_s: of an iteration; a job that is late begins whole iterations later.
        start_at_s: when all jobs begin, in seconds since 1970 (UTC); None begins at once.
        settings: NCCL's, by name.
        routes: of each rank, rows of collective, target and path as the arrangement has them.
    """

    arrangement: str
    job: str
    hosts: tuple[str, ...]
    site_hosts: frozenset[str]
    traffic_class: int
    offset_s: float
    period_s: float
    start_at_s: float | None
    settings: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[tuple[dict[str, Any], ...], ...] = ()

    def begins_s(self, ready_s: float) -> float:
        """When the first step begins, if the last rank is ready at a time (seconds since 1970)."""
        if self.start_at_s is None:
            return ready_s
        begin = self.start_at_s + self.offset_s
        return begin + max(0, ceil((ready_s - begin) / self.period_s)) * self.period_s

    def check_host(self, rank: int) -> None:
        """Refuse a host of the site that is not the rank's.  A machine that is none of them emulates.

        Raises:
            BadInput: with both hosts.
        """
        here = socket.gethostname().partition(".")[0]
        if here in self.site_hosts and here != self.hosts[rank]:
            raise BadInput(
                f"rank {rank} runs on {here}, but {self.arrangement} puts it on {self.hosts[rank]}",
                where="--arrangement",
                remedy="start ranks in the order of its hostfile",
            )

    def begin(self, rank: int, device: torch.device, say: Callable[[str], None]) -> dict[str, Any]:
        """Wait, with all ranks, until the first step begins; ``say`` is told where and when.

        Returns:
            What this rank's process sees: its settings as its environment has them, when it was to begin, and when it
            did (seconds since 1970).
        """
        self.check_host(rank)
        ready = torch.tensor([time.time()], dtype=torch.float64, device=device)
        if dist.is_initialized():
            dist.all_reduce(ready, op=dist.ReduceOp.MAX)
        begins_s = self.begins_s(float(ready))
        say(self.words(begins_s))
        while (left := begins_s - time.time()) > 0:
            time.sleep(left)
        return {
            "rank": rank,
            "process": os.getpid(),
            "host": self.hosts[rank],
            "class": self.traffic_class,
            "offset_s": self.offset_s,
            "begins_s": begins_s,
            "began_s": time.time(),
            "settings": {name: os.environ.get(name) for name in self.settings},
            "routes": list(self.routes[rank]) if self.routes else [],
        }

    def words(self, begins_s: float) -> str:
        """Where and when the job begins, for people."""
        slots = Counter(self.hosts)
        where = ", ".join(f"{host} x{count}" for host, count in slots.items())
        late = "" if self.start_at_s is not None or not self.offset_s else " (at once: no --start-at)"
        return (
            f"{self.job} on {where}; class {self.traffic_class}, offset {format_seconds(self.offset_s)}, "
            f"begins {format_moment(begins_s)}{late}"
        )


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Inside, the process and those that it starts have these settings, unless they have others already."""
    added = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
