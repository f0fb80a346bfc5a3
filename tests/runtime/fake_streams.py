"""Streams of a device that nobody has: who waits for whom, and whether each use of memory is behind what it needs.

Every stream has a vector clock (Mattern 1989): an operation is behind another if the stream has heard of it by a wait.
Memory is PyTorch's caching allocator at its most eager: what was given back to a stream's pool may be given out there
at once, of whatever size.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COMPUTE = "computation"
WRITTEN = {"_allgather_base_": 0, "_reduce_scatter_base_": 0, "allreduce_": 0, "alltoall_base_": 0}
"""Which argument a collective writes; it reads all."""

Place = tuple[str, int]


@dataclass
class Block:
    """Memory of a tensor: the pool that it is from, and operations that read and wrote it."""

    pool: str
    reads: list[Place] = field(default_factory=list)
    writes: list[Place] = field(default_factory=list)


class Streams:
    """The device's module as far as ``weft.runtime.core.machine`` asks for it, and the checker behind it.

    Attributes:
        forgets: a kind of wait that is left out, to see that the checker notices.
        races: operations that are behind too little, by what they do not wait for.
    """

    def __init__(self) -> None:
        self.forgets: str | None = None
        self.begin()

    def begin(self) -> None:
        """Forget all that was queued."""
        self.current, self.clocks = COMPUTE, {COMPUTE: Counter()}
        self.blocks: dict[int, Block] = {}
        self.given_back: dict[str, list[Block]] = {}
        self.races: Counter[str] = Counter()
        self.ran: Counter[str] = Counter()

    # What the device's module offers

    def Stream(self) -> Stream:
        return Stream(self, f"stream {len(self.clocks)}")

    def current_stream(self) -> Stream:
        return Stream(self, self.current)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    # The checker

    def clock(self, stream: str) -> Counter[str]:
        return self.clocks.setdefault(stream, Counter())

    def hear(self, stream: str, clock: Counter[str], what: str) -> None:
        """What is queued on a stream from here on is behind what another clock has heard of."""
        if what != self.forgets:
            self.clocks[stream] = self.clock(stream) | clock

    def run(self, stream: str, name: str, reads: set[int], writes: set[int]) -> None:
        """An operation; blocks by the key of their storage."""
        clock = self.clock(stream)
        clock[stream] += 1
        self.ran[stream] += 1
        place = stream, clock[stream]
        for key in reads | writes:
            block = self.blocks[key]
            before = block.writes + (block.reads if key in writes else [])
            self._need(clock, before, f"{name} of what is not there yet, or still read")
        for key in reads:
            self.blocks[key].reads.append(place)
        for key in writes:
            self.blocks[key].writes.append(place)

    def know(self, storage: Any, stream: str) -> int:
        """The key of a storage; a new one comes from the pool of a stream."""
        key = storage._cdata
        if key not in self.blocks:
            for old in self.given_back.pop(stream, []):
                self._need(self.clock(stream), old.reads + old.writes, "memory that is given out while it is used")
            self.blocks[key] = Block(stream)
            weakref.finalize(storage, partial(self._gone, key, self.blocks[key]))
        return key

    def _gone(self, key: int, block: Block) -> None:
        if self.blocks.get(key) is block:
            del self.blocks[key]
            self.given_back.setdefault(block.pool, []).append(block)

    def _need(self, clock: Counter[str], before: list[Place], what: str) -> None:
        if any(clock[stream] < number for stream, number in before):
            self.races[what] += 1


@dataclass(frozen=True)
class Stream:
    """A stream, by its name."""

    all: Streams
    name: str

    def wait_stream(self, other: Stream) -> None:
        self.all.hear(self.name, self.all.clock(other.name), "stream")

    def record_event(self) -> Event:
        return Event(self.all, Counter(self.all.clock(self.name)))


@dataclass(frozen=True)
class Event:
    """What a stream had heard of."""

    all: Streams
    clock: Counter[str]

    def wait(self) -> None:
        self.all.hear(self.all.current, self.clock, "event")


@dataclass(frozen=True)
class Waited:
    """A collective's work: who waits for it is behind it from then on."""

    streams: Streams
    clock: Counter[str]
    work: Any

    def wait(self) -> None:
        self.work.wait()
        self.streams.hear(self.streams.current, self.clock, "collective")


class Watching(TorchDispatchMode):
    """Tells the checker what is computed, and on which stream: collectives have one for each group."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self.streams = streams
        self.last: Counter[str] = Counter()
        """The clock of the last collective."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name, streams = func.overloadpacket.__name__, self.streams
        given = _storages((args, kwargs))
        if func.namespace == "c10d":
            group = next(dist.ProcessGroup.unbox(one) for one in args if isinstance(one, torch.ScriptObject))
            stream = f"collectives of {group.group_name}"
            streams.hear(stream, streams.clock(streams.current), "begin")
            written = _storages(args[WRITTEN[name]])
        else:
            stream, written = streams.current, _storages(found) - given
            for one, value in zip(func._schema.arguments, args, strict=False):
                if one.alias_info is not None and one.alias_info.is_write:
                    written |= _storages(value)
        keys = {one: streams.know(one, streams.current) for one in given | written | _storages(found)}
        is_view = func.namespace != "c10d" and not written and _storages(found) <= given
        if not is_view:
            streams.run(stream, name, {keys[one] for one in given}, {keys[one] for one in written})
        self.last = Counter(streams.clock(stream))
        return found


def _storages(values: Any) -> set[Any]:
    return {one.untyped_storage() for one in tree_leaves(values) if isinstance(one, Tensor)}
