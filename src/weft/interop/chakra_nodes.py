"""Nodes of Chakra's execution traces: what one says of its work or communication, in the attributes that ASTRA-sim
reads."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric import checks
from weft.interop import chakra_schema
from weft.model.workload import Communication, CommunicationKind

Sizes = tuple[int, ...]
COLLECTIVES: dict[int, CommunicationKind] = {
    0: "all-reduce",
    1: "reduce",
    2: "all-gather",
    5: "broadcast",
    6: "all-to-all",
    7: "reduce-scatter",
    8: "reduce-scatter",
    9: "barrier",
}
"""``comm_type`` of the collectives that are modelled."""
NOT_MODELLED = {3: "gather", 4: "scatter"}
ALL_RANKS = ("", "0")
"""Names of the process group of all ranks."""
USED = frozenset(
    [
        "is_cpu_op",
        "num_ops",
        "tensor_size",
        "comm_type",
        "comm_size",
        "comm_src",
        "comm_dst",
        "pg_name",
        "involved_dim",
    ]
)
MOST_DIMENSIONS = 64
LONGEST_S, MOST = 1e9, 1e18


def network_sizes(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Sizes of a network's dimensions, checked."""
    if sizes is None:
        return None
    checked = tuple(checks.whole(size, "sizes") for size in sizes)
    checks.whole(prod(checked), "sizes: nodes in all")
    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """The file, and what a trace leaves to others: the accelerator's rates, the sizes of the network's dimensions, the
    ranks of process groups, and whose trace it is."""

    where: str
    peak_flops: float | None
    memory_Bps: float | None
    sizes: Sizes | None
    groups: Mapping[str, tuple[int, ...]] | None
    rank: int | None


class TraceNode:
    """One node's message, with its attributes by name."""

    __slots__ = ("attributes", "context", "id", "kind", "message", "name")

    def __init__(self, message: Any, context: TraceContext) -> None:
        self.message, self.context = message, context
        self.id, self.name, self.kind = int(message.id), str(message.name), int(message.type)
        self.attributes: dict[str, tuple[str | None, Any]] = {}
        if not chakra_schema.METADATA <= self.kind <= chakra_schema.COLLECTIVE:
            raise self.bad(f"has type {self.kind}, which Chakra does not have", "use types 1 to 7")
        for attribute in message.attr:
            name = str(attribute.name)
            if name in self.attributes:
                raise self.bad(f"has two attributes {name}", "remove one")
            if name in USED:
                kind = attribute.WhichOneof("value")
                self.attributes[name] = kind, getattr(attribute, kind) if kind else None

    def bad(self, problem: str, remedy: str) -> BadInput:
        """A ``BadInput`` about this node."""
        return BadInput(problem, where=self.where, remedy=remedy)

    @property
    def where(self) -> str:
        """The file and the node, for people."""
        return f"{self.context.where}: node {self.id} ({self.name[:60]})"

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host's processor."""
        return bool(self.attributes.get("is_cpu_op", ("", False))[1])

    @property
    def communicates(self) -> bool:
        """Whether it communicates itself: the host's call that only launches a collective states neither its
        kind nor its size, and nor does a kernel of which only the duration was recorded."""
        if self.kind not in (chakra_schema.COLLECTIVE, chakra_schema.SEND):
            return False
        marked = "comm_type" in self.attributes or "comm_size" in self.attributes
        return marked or not (self.on_host or self.message.duration_micros)

    def number(self, name: str) -> float | None:
        """A number from 0 to below 1e18, None where the node has no such attribute."""
        if name not in self.attributes:
            return None
        value = self.attributes[name][1]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST:
            raise self.bad(f"{name} is {reprlib.repr(value)}", "give a number from 0 to below 1e18")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number, None where the node has no such attribute."""
        value = self.number(name)
        if value is not None and value != int(value):
            raise self.bad(f"{name} is {value}", "give a whole number")
        return None if value is None else int(value)

    def seconds(self) -> float | None:
        """Seconds of a computation or of a memory access; None where it says nothing of its work."""
        micros = int(self.message.duration_micros)
        if micros:
            seconds = micros / 1e6
        else:
            operations, moved = self.number("num_ops"), self.number("tensor_size")
            if not operations and not moved:
                return None
            rates = (("peak_flops", operations), ("memory_Bps", moved))
            seconds = max(self._share(work, name, getattr(self.context, name)) for name, work in rates)
        if not seconds < LONGEST_S:
            raise self.bad(f"takes {seconds:g} s", "give less than 1e9 s")
        return seconds

    def _share(self, work: float | None, name: str, rate: float | None) -> float:
        """Seconds of operations or bytes at the accelerator's rate."""
        if work and rate is None:
            raise self.bad("has work but no duration", f"pass {name}, or give the trace durations")
        return work / rate if work and rate else 0.0

    def collective(self) -> Communication:
        number = self.whole("comm_type")
        if number is None:
            raise self.bad("has no comm_type", "say which collective it is")
        if number in NOT_MODELLED:
            problem = f"a {NOT_MODELLED[number]} is not modelled"
            raise Unsupported(problem, where=self.where, remedy="send messages instead")
        if number not in COLLECTIVES:
            raise self.bad(f"has comm_type {number}, which Chakra does not have", "use 0 to 9")
        kind, dimensions, ranks = COLLECTIVES[number], self._dimensions(), self._ranks()
        bytes_ = 0.0 if kind == "barrier" else self._bytes(kind, dimensions, ranks)
        return Communication(kind=kind, bytes=bytes_, dimensions=dimensions, ranks=ranks)

    def message_sent(self) -> Communication:
        """The message that a sending node sends; with both ranks where the trace says them."""
        source, target = self.whole("comm_src"), self.whole("comm_dst")
        source = self.context.rank if source is None else source
        ranks = None if source is None or target is None else (source, target)
        return Communication(kind="send", bytes=self._bytes("send", None, ranks), ranks=ranks)

    def _bytes(
        self, kind: CommunicationKind, dimensions: tuple[int, ...] | None, ranks: tuple[int, ...] | None
    ) -> float:
        size = self.whole("comm_size")
        if size is None:
            raise self.bad("has no comm_size", "give its bytes")
        members = 1
        if kind == "all-gather":
            sizes = self.context.sizes
            if ranks is None and sizes is None:
                problem = "is an all-gather of a group whose size the trace does not say"
                raise self.bad(problem, "pass sizes, those of the network's dimensions")
            spanned = sizes or ()
            if dimensions is not None:
                spanned = tuple(spanned[dimension] for dimension in dimensions)
            members = prod(spanned) if ranks is None else len(ranks)
        total = float(size * members)
        if total >= MOST:
            raise self.bad(f"moves {total:g} bytes", "give less than 1e18")
        return total

    def _dimensions(self) -> tuple[int, ...] | None:
        """Dimensions that ``involved_dim`` names; None for all."""
        if "involved_dim" not in self.attributes:
            return None
        kind, value = self.attributes["involved_dim"]
        if kind != "bool_list" or not 0 < len(value.values) <= MOST_DIMENSIONS:
            raise self.bad("involved_dim is not a list of 1 to 64 truth values", "give one per dimension")
        sizes = self.context.sizes
        flags = list(value.values)[: len(sizes) if sizes is not None else None]
        if not any(flags):
            raise self.bad("involves no dimension of the network", "correct involved_dim or sizes")
        everywhere = all(flags) and (sizes is None or len(flags) == len(sizes))
        return None if everywhere else tuple(at for at, flag in enumerate(flags) if flag)

    def _ranks(self) -> tuple[int, ...] | None:
        """Members of the process group; None for the group of all."""
        kind, name = self.attributes.get("pg_name", ("string_val", ""))
        if kind != "string_val":
            raise self.bad("pg_name is not a text", "give the group's name")
        if name in ALL_RANKS:
            return None
        groups = self.context.groups
        if groups is None:
            problem = f"is of process group {name[:40]!r}, whose members the trace does not say"
            raise self.bad(problem, "pass groups, as read_groups reads them")
        if name not in groups:
            raise UnknownName("process group", name[:40], groups, where=self.where)
        return groups[name]
