"""MSCCL++: an algorithm as a JSON execution plan (microsoft/mscclpp), from any plan.

Each share of the blocks is one program a rank.  The executor runs 64 operations a threadblock, so a program
is cut, at the same steps on all ranks, into threadblocks that follow each other through semaphores.  Every
threadblock has its own channel to each peer, over which it first says that it has begun: nobody writes into
the memory of a rank that still runs the collective before.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from weft.collectives.messages.blocks import Plan
from weft.errors import BadInput, Unsupported
from weft.interop.collectives.msccl_buffers import COLLECTIVES, Buffers, buffers_of, instances_of, moves_of
from weft.interop.collectives.mscclpp_program import (
    NOP,
    ChannelType,
    Operation,
    Span,
    calls,
    copy_operations,
    deliveries,
    step_operations,
)

MOST_OPERATIONS = 64
MOST_CHANNELS = 16
MOST_SEMAPHORES = 16
"""Limits of the executor: operations of a threadblock, its channels and remote buffers of one type, and
semaphores of a rank."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_TYPES: tuple[ChannelType, ...] = ("memory", "port")


def write_mscclpp(
    plan: Plan,
    kind: str,
    size: int,
    *,
    name: str,
    in_place: bool = True,
    channels: int = 1,
    instances: int = 1,
    domain: int | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
) -> str:
    """The plan of a collective of ``size`` ranks as an MSCCL++ execution plan.

    Args:
        kind: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce (of rank 0).
        in_place: whether calls give one buffer for input and output; an all-to-all is always out of place.
        channels: shares that the plan's blocks are cut into, each with threadblocks of its own; for
            ``rings`` the number of rings.
        instances: copies of the plan, each with threadblocks of its own and an equal share of the buffer.
        domain: ranks that reach each other's memory (by memory channels; port channels join the others); all
            of them by default.
        min_bytes, max_bytes: sizes that the executor uses it for.

    Raises:
        Unsupported: another kind, or a plan that is too large for the executor.
        BadInput: a name or number that cannot be used, or a malformed plan.
    """
    _check(name, domain, min_bytes, max_bytes)
    in_place = in_place and kind != "all-to-all"
    whole = instances_of(plan, instances)
    buffers = buffers_of(whole, kind, size, in_place=in_place)
    scratch = list(buffers.scratch)
    threadblocks = _threadblocks(whole, buffers, channels * instances, scratch, domain or size)
    values: dict[str, Any] = {
        "name": name,
        "collective": COLLECTIVES[kind],
        "protocol": "Simple",
        "inplace": in_place,
        "reuse_resources": False,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "num_threads_per_block": 1024,
        "min_message_size": min_bytes,
    }
    if max_bytes is not None:
        values["max_message_size"] = max_bytes
    values["gpus"] = [
        {
            "id": rank,
            "input_chunks": buffers.input_chunks,
            "output_chunks": buffers.output_chunks,
            "scratch_chunks": scratch[rank],
            **_gpu(threadblocks[rank]),
        }
        for rank in range(size)
    ]
    return json.dumps(values, indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Threadblock:
    """One threadblock: what it says and hears first, and its part of the program of a share of the blocks."""

    share: int
    greeting: list[Operation]
    program: list[Operation]

    @property
    def operations(self) -> list[Operation]:
        return self.greeting + self.program

    def peers(self, channel: ChannelType) -> list[int]:
        """Those that its channels of a type lead to."""
        return sorted({peer for op in self.operations if op.channel == channel for peer in op.peers})

    def remote(self, channel: ChannelType) -> list[tuple[int, str]]:
        """Buffers of others that it writes to over channels of a type."""
        spans = [span for op in self.program if op.channel == channel for span in op.targets]
        return sorted({(span.peer, span.place.buffer) for span in spans if span.peer is not None})

    def fits(self) -> bool:
        counts = [len(of(channel)) for channel in _TYPES for of in (self.peers, self.remote)]
        return len(self.operations) + _SEQUEL <= MOST_OPERATIONS and max(counts) <= MOST_CHANNELS


_Programs = list[list[Operation]]
"""Operations of each rank in one step."""
_SEQUEL = 4
"""Operations that join a threadblock to those before and behind it."""


def _threadblocks(
    plan: Plan, buffers: Buffers, shares: int, scratch: list[int], domain: int
) -> list[list[_Threadblock]]:
    """The threadblocks of each rank; adds to the chunks of ``scratch`` in use."""
    ranks = range(len(buffers.places))
    moves = moves_of(plan, buffers, channels=shares, most=len(plan.owner))
    found: list[list[_Threadblock]] = [[] for _ in ranks]
    for share in range(shares):
        blocks = range(share * len(plan.owner) // shares, (share + 1) * len(plan.owner) // shares)
        steps = [[copy_operations(copies, blocks) for copies in buffers.before]]
        delivered = deliveries([m for m in moves if m.channel == share], buffers, scratch, domain)
        for _, group in groupby(delivered, key=lambda one: one.move.step):
            together = list(group)
            steps.append([step_operations(rank, together, buffers, domain) for rank in ranks])
        steps.append([copy_operations(copies, blocks) for copies in buffers.after])
        for segment in _segments(steps, share, domain):
            for rank in ranks:
                found[rank] += [segment[rank]] if segment[rank].operations else []
    return found


def _segments(steps: list[_Programs], share: int, domain: int) -> list[list[_Threadblock]]:
    """Steps joined to threadblocks, as many as fit on all ranks.

    Raises:
        Unsupported: a single step does not fit.
    """
    found: list[list[_Threadblock]] = []
    begin = 0
    for end in range(1, len(steps) + 1):
        joined = _joined(steps[begin:end], share, domain)
        if end - begin > 1 and all(one.fits() for one in joined):
            found[-1] = joined
            continue
        begin = end - 1
        found.append(_joined(steps[begin:end], share, domain))
        if not all(one.fits() for one in found[-1]):
            raise Unsupported(
                "a step needs more operations or peers than a threadblock of the executor has",
                where="MSCCL++",
                remedy="use fewer ranks, or an algorithm with fewer peers a step",
            )
    return found


def _joined(steps: list[_Programs], share: int, domain: int) -> list[_Threadblock]:
    """Threadblocks for some steps: they signal to all who will write here, and wait for their targets."""
    programs = [[op for step in steps for op in step[rank]] for rank in range(len(steps[0]))]
    targets = [{span.peer for op in program for span in op.targets if span.peer is not None} for program in programs]
    found = []
    for rank, program in enumerate(programs):
        writers = [other for other, written in enumerate(targets) if rank in written]
        waits = calls("wait", rank, targets[rank], domain)
        greeting = [*calls("signal", rank, writers, domain), *waits, *([NOP] if waits else [])]
        found.append(_Threadblock(share=share, greeting=greeting, program=program))
    return found


def _gpu(threadblocks: list[_Threadblock]) -> dict[str, Any]:
    """The threadblocks of a rank with their channels, remote buffers and semaphores."""
    follows = [i for i in range(1, len(threadblocks)) if threadblocks[i - 1].share == threadblocks[i].share]
    if len(follows) > MOST_SEMAPHORES:
        raise Unsupported(
            f"needs {len(follows)} semaphores on a rank; the executor has {MOST_SEMAPHORES}",
            where="MSCCL++",
            remedy="use fewer ranks, channels or instances, or an algorithm with fewer steps",
        )
    ends = sorted({(c, *end) for one in threadblocks for c in _TYPES for end in one.remote(c)})
    connected: dict[ChannelType, list[int]] = {"memory": [], "port": []}
    written = []
    for number, one in enumerate(threadblocks):
        own = [(c, range(len(connected[c]), len(connected[c]) + len(one.peers(c)))) for c in _TYPES]
        refs = [(c, [ends.index((c, *end)) for end in one.remote(c)]) for c in _TYPES]
        written.append(
            {
                "id": number,
                "ops": _operations(number, one, follows),
                "channels": [{"channel_type": c, "channel_ids": list(ids)} for c, ids in own if ids],
                "remote_buffer_refs": [{"access_channel_type": c, "remote_buffer_ids": ids} for c, ids in refs if ids],
            }
        )
        for c in _TYPES:
            connected[c] += one.peers(c)
    return {
        "threadblocks": written,
        "channels": [{"channel_type": c, "connected_to": connected[c]} for c in _TYPES if connected[c]],
        "remote_buffers": [{"rank": peer, "type": buffer, "access_channel_types": [c]} for c, peer, buffer in ends],
        "semaphores": [{"init_value": 0} for _ in follows],
    }


def _operations(number: int, one: _Threadblock, follows: list[int]) -> list[dict[str, Any]]:
    """All operations of a threadblock, with the wait for the one before and the release of the next."""
    nop = {"name": "nop"}
    found = [_written(op, one) for op in one.greeting]
    if number in follows:
        found += [{"name": "sem_acquire", "semaphore_ids": [follows.index(number)]}, nop]
    found += [_written(op, one) for op in one.program]
    if number + 1 in follows:
        found += [nop, {"name": "sem_release", "semaphore_ids": [follows.index(number + 1)]}]
    return found


def _written(op: Operation, one: _Threadblock) -> dict[str, Any]:
    values: dict[str, Any] = {"name": op.name}
    if op.sources:
        values["src_buff"] = [_span(span, op, one) for span in op.sources]
        values["dst_buff"] = [_span(span, op, one) for span in op.targets]
    if op.channel is not None:
        peers = one.peers(op.channel)
        values["channel_ids"] = [peers.index(peer) for peer in op.peers]
        values["channel_type"] = op.channel
    return values


def _span(span: Span, op: Operation, one: _Threadblock) -> dict[str, Any]:
    where: dict[str, Any] = {"type": span.place.buffer}
    if span.peer is not None and op.channel is not None:
        where = {"buffer_id": one.remote(op.channel).index((span.peer, span.place.buffer))}
    return {**where, "index": span.place.chunk, "size": span.count}


def _check(name: str, domain: int | None, min_bytes: int, max_bytes: int | None) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:40]!r} is no name of a plan", where="name", remedy="use A-Z a-z 0-9 _ . -")
    if domain is not None and domain < 1:
        raise BadInput(f"{domain} ranks are no domain", where="domain")
    if min_bytes < 0 or (max_bytes is not None and max_bytes < min_bytes):
        raise BadInput(f"no size is between {min_bytes} and {max_bytes} bytes", where="min_bytes, max_bytes")
