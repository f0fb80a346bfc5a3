"""MSCCL: an algorithm as XML for the executor of MSCCL (Azure/msccl-executor-nccl), from any plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal, get_args

from weft.collectives.messages.blocks import Plan
from weft.errors import BadInput, Unsupported
from weft.interop.collectives.msccl_buffers import COLLECTIVES, Buffers, buffers_of, instances_of, moves_of
from weft.interop.collectives.msccl_program import MOST_CHUNKS_A_STEP, Rank, Step, schedule

Protocol = Literal["Simple", "LL", "LL128"]

MOST_STEPS = 256
MOST_THREADBLOCKS = 128
MOST_PEERS_A_CHANNEL = 32
MOST_CHANNELS = 32
MOST_NODES = 4096
MOST_CHUNKS = 32767
"""Limits of the executor: steps of a threadblock, threadblocks of a rank (their numbers have 8 bits), peers
and channels, XML elements that a rank reads, and chunks of a buffer (16 bits)."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def write_msccl(
    plan: Plan,
    kind: str,
    size: int,
    *,
    name: str,
    protocol: Protocol = "Simple",
    in_place: bool = True,
    channels: int = 1,
    instances: int = 1,
    min_bytes: int = 0,
    max_bytes: int = 0,
) -> str:
    """The plan of a collective of ``size`` ranks as MSCCL XML.

    Args:
        kind: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce (of rank 0).
        in_place: whether calls give one buffer for input and output; an all-to-all is always out of place.
        channels: shares that the plan's blocks are cut into, each with a channel of its own; for ``rings``
            the number of rings.
        instances: copies of the plan, each with its own channels and an equal share of the buffer.
        min_bytes, max_bytes: sizes that the executor uses it for; 0 bytes at most is no limit.

    Raises:
        Unsupported: another kind, a plan in which ranks swap a block, or one that is too large for the
            executor.
        BadInput: a name, protocol or number that cannot be used, or a malformed plan.
    """
    _check(name, protocol, min_bytes, max_bytes)
    in_place = in_place and kind != "all-to-all"
    whole = instances_of(plan, instances)
    buffers = buffers_of(whole, kind, size, in_place=in_place)
    moves = moves_of(whole, buffers, channels=channels * instances, most=MOST_CHUNKS_A_STEP)
    ranks = schedule(buffers, moves, size)
    _check_limits(buffers, ranks, channels * instances)
    head = {
        "name": name,
        "proto": protocol,
        "nchannels": channels * instances,
        "nchunksperloop": max(buffers.input_chunks, buffers.output_chunks),
        "ngpus": size,
        "coll": COLLECTIVES[kind],
        "inplace": int(in_place),
        "outofplace": int(not in_place),
        "minBytes": min_bytes,
        "maxBytes": max_bytes,
    }
    lines = [f"<algo {_attributes(head)}>"]
    for number, rank in enumerate(ranks):
        lines += _gpu(number, rank, buffers)
    return "\n".join([*lines, "</algo>", ""])


def _gpu(number: int, rank: Rank, buffers: Buffers) -> list[str]:
    head = {
        "id": number,
        "i_chunks": buffers.input_chunks,
        "o_chunks": buffers.output_chunks,
        "s_chunks": buffers.scratch[number],
    }
    lines = [f" <gpu {_attributes(head)}>"]
    for block in rank.by_number:
        ends = {"id": block.number, "send": block.send, "recv": block.receive, "chan": block.channel}
        lines.append(f"  <tb {_attributes(ends)}>")
        lines += [f"   <step {_attributes(_fields(s, step))}/>" for s, step in enumerate(block.steps)]
        lines.append("  </tb>")
    return [*lines, " </gpu>"]


def _fields(number: int, step: Step) -> dict[str, object]:
    depid, deps = step.waits or (-1, -1)
    return {
        "s": number,
        "type": step.type,
        "srcbuf": step.source.buffer,
        "srcoff": step.source.chunk,
        "dstbuf": step.target.buffer,
        "dstoff": step.target.chunk,
        "cnt": step.count,
        "depid": depid,
        "deps": deps,
        "hasdep": int(step.awaited),
    }


def _attributes(values: Mapping[str, object]) -> str:
    return " ".join(f'{key}="{value}"' for key, value in values.items())


def _check(name: str, protocol: str, min_bytes: int, max_bytes: int) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:40]!r} is no name of an algorithm", where="name", remedy="use A-Z a-z 0-9 _ . -")
    if protocol not in get_args(Protocol):
        known = ", ".join(get_args(Protocol))
        raise BadInput(f"{protocol!r} is no protocol", where="protocol", remedy=f"use {known}")
    if min_bytes < 0 or max_bytes < 0 or 0 < max_bytes < min_bytes:
        raise BadInput(f"no size is between {min_bytes} and {max_bytes} bytes", where="min_bytes, max_bytes")


def _check_limits(buffers: Buffers, ranks: list[Rank], channels: int) -> None:
    chunks = max(buffers.input_chunks, buffers.output_chunks, *buffers.scratch)
    found = [("channels", channels, MOST_CHANNELS), ("chunks in a buffer", chunks, MOST_CHUNKS)]
    for rank in ranks:
        steps = [len(block.steps) for block in rank.by_number]
        ends = Counter((block.channel, block.send >= 0, block.receive >= 0) for block in rank.by_number)
        found += [
            ("steps in a threadblock", max(steps, default=0), MOST_STEPS),
            ("threadblocks on a rank", len(steps), MOST_THREADBLOCKS),
            ("peers on a channel", max(ends.values(), default=0), MOST_PEERS_A_CHANNEL),
            ("XML elements for a rank", sum(steps) + len(steps) + len(ranks) + 1, MOST_NODES),
        ]
    for what, count, most in found:
        if count > most:
            raise Unsupported(
                f"needs {count} {what}; the executor has {most}",
                where="MSCCL",
                remedy="use fewer ranks, channels or instances, or another algorithm",
            )
