"""What one node of a Chakra trace does: seconds of work, or a communication."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric import checks
from weft.interop.traces import chakra_schema
from weft.model.workload import Communication, CommunicationKind

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
EXACT_SECONDS, EXACT_BYTES = "weft_seconds", "weft_bytes"
"""Attributes of our own: what ``duration_micros`` and ``comm_size`` round."""
USED = frozenset(
    {
        *("is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size", "comm_src", "comm_dst"),
        *("pg_name", "involved_dim", EXACT_SECONDS, EXACT_BYTES),
    }
)
MOST_DIMENSIONS = 64
LONGEST_S, MOST = 1e9, 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a trace leaves to others: the accelerator, the network's dimensions, the groups, its own rank."""

    where: str
    peak_flops: float | None = None
    memory_Bps: float | None = None
    sizes: tuple[int, ...] | None = None
    groups: Mapping[str, tuple[int, ...]] | None = None
    rank: int | None = None


def network_sizes(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Sizes of a network's dimensions, checked.

    Raises:
        BadInput: one that is no whole number from 1, or too many nodes in all.
    """
    if sizes is None:
        return None
    found = tuple(checks.whole(size, "sizes") for size in sizes)
    checks.whole(prod(found), "sizes: nodes in all")
    return found


def wire_size(kind: CommunicationKind, bytes_: float, members: int) -> int:
    """``comm_size`` of a communication: an all-gather's is one member's share, else it is the buffer."""
    return round(bytes_ / members) if kind == "all-gather" else round(bytes_)


class Node:
    """One node's message, with its attributes by name.

    Raises:
        BadInput: a type that is unknown, or an attribute that is given twice.
    """

    __slots__ = ("attributes", "context", "id", "kind", "message", "name")

    def __init__(self, message: Any, context: Context) -> None:
        self.message, self.context = message, context
        self.id, self.name, self.kind = int(message.id), str(message.name), int(message.type)
        self.attributes: dict[str, tuple[str | None, Any]] = {}
        if not chakra_schema.METADATA <= self.kind <= chakra_schema.COLLECTIVE:
            raise self.bad(f"has type {self.kind}, which Chakra does not have", "use types 1 to 7")
        for attribute in message.attr:
            if attribute.name in USED:
                self._add(attribute)

    def _add(self, attribute: Any) -> None:
        name, kind = str(attribute.name), attribute.WhichOneof("value")
        if name in self.attributes:
            raise self.bad(f"has two attributes {name}", "remove one")
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
        kind nor its size."""
        if self.kind not in (chakra_schema.COLLECTIVE, chakra_schema.SEND):
            return False
        return not self.on_host or "comm_type" in self.attributes or "comm_size" in self.attributes

    def number(self, name: str) -> float | None:
        """A number from 0 to below 1e18, None where the node has no such attribute.

        Raises:
            BadInput: it is something else.
        """
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
        """Seconds of a computation or of a memory access; None where it says nothing of its work.

        Raises:
            BadInput: they do not follow from the trace alone, or are out of range.
        """
        exact, micros = self.number(EXACT_SECONDS), int(self.message.duration_micros)
        if exact is not None and round(exact * 1e6) == micros:
            return self._in_range(exact)
        if micros:
            return self._in_range(micros / 1e6)
        operations, moved = self.number("num_ops"), self.number("tensor_size")
        if not operations and not moved:
            return None
        return self._in_range(
            max(
                self._share(operations, "peak_flops", self.context.peak_flops),
                self._share(moved, "memory_Bps", self.context.memory_Bps),
            )
        )

    def _share(self, work: float | None, name: str, rate: float | None) -> float:
        """Seconds of operations or bytes at the accelerator's rate."""
        if work and rate is None:
            raise self.bad("has work but no duration", f"pass {name}, or give the trace durations")
        return work / rate if work and rate else 0.0

    def _in_range(self, seconds: float) -> float:
        if not seconds < LONGEST_S:
            raise self.bad(f"takes {seconds:g} s", "give less than 1e9 s")
        return seconds

    def collective(self) -> Communication:
        """The collective that the node is.

        Raises:
            BadInput: its kind or size is missing or unknown, or its group is needed and not known.
            Unsupported: a gather or a scatter.
        """
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
        members = self._members(dimensions, ranks) if kind == "all-gather" else 1
        exact, whole = self.number(EXACT_BYTES), float(size * members)
        if exact is not None and wire_size(kind, exact, members) == size:
            return float(exact)
        if whole >= MOST:
            raise self.bad(f"moves {whole:g} bytes", "give less than 1e18")
        return whole

    def _members(self, dimensions: tuple[int, ...] | None, ranks: tuple[int, ...] | None) -> int:
        if ranks is not None:
            return len(ranks)
        sizes = self.context.sizes
        if sizes is None:
            problem = "is an all-gather of a group whose size the trace does not say"
            raise self.bad(problem, "pass sizes, those of the network's dimensions")
        return prod(sizes if dimensions is None else (sizes[dimension] for dimension in dimensions))

    def _dimensions(self) -> tuple[int, ...] | None:
        """Dimensions that ``involved_dim`` names; None for all."""
        if "involved_dim" not in self.attributes:
            return None
        kind, value = self.attributes["involved_dim"]
        if kind != "bool_list" or not 0 < len(value.values) <= MOST_DIMENSIONS:
            raise self.bad("involved_dim is no list of 1 to 64 truth values", "give one per dimension")
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
