"""Graphs in Graphviz's DOT whose edges join ports, as NVIDIA Air, PTM and the topology converter take them.

    graph "lab" {
      "leaf01" [function="leaf"]
      "server01" [function="server"]
      "leaf01":"swp1" -- "server01":"eth1" [speed="400G"]
    }

A node is a host or a switch by its ``function`` (``role``, ``type``, ``group``), else by words of its name.  An edge
has its ``speed`` (``bandwidth``, ``capacity``).  Subgraphs are read through; they stand for nothing as ends of edges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, host_by_name, wiring_of, wiring_of_fabric
from weft.interop.fabrics.cabling import device_name, speed_text, written_speed_Bps

NAMES = ("word", "quoted")
KINDS, SPEEDS = ("function", "role", "type", "group"), ("speed", "bandwidth", "capacity")
DEEPEST, LONGEST_TOKEN, LARGEST = 64, 4000, 32_000_000
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)|(?P<edge>--|->)|(?P<mark>[{}\[\];,=:+])"""
    r"""|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>-?(?:\.\d+|\d+(?:\.\d*)?)|[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)""",
    re.DOTALL,
)
Token = tuple[str, str, int]
"""Kind (edge, mark, word, quoted), text and line."""


def looks(text: str) -> bool:
    """Whether it begins as a graph."""
    try:
        first = [token[1].lower() for token in islice(_tokens(text, "DOT"), 2) if token[0] == "word"]
    except BadInput:
        return False
    return first[:1] in (["graph"], ["digraph"]) or first in (["strict", "graph"], ["strict", "digraph"])


def read_wiring(text: str, *, where: str = "DOT", hosts: Sequence[str] = ()) -> Wiring:
    """The edges of a graph.

    Args:
        hosts: patterns of names of hosts; with them, all other nodes are switches.

    Raises:
        BadInput: not in this form, or a port with two cables.
        Unsupported: an edge to a subgraph.
    """
    if len(text) > LARGEST:
        raise BadInput(f"has more than {LARGEST // 10**6} million characters", where=where, remedy="give CSV instead")
    graph = _Graph(list(_tokens(text, where)), where)
    graph.read()
    return wiring_of(graph.name or "DOT graph", graph.cables, told=graph.told, hosts=hosts, where=where)


def write(fabric: Fabric) -> str:
    """The scale-out cables of a fabric as a graph; failed ones are in it."""
    wiring = wiring_of_fabric(fabric, ports=True)
    roles = {name: fabric.roles[role] for name, role in zip(fabric.names, fabric.role.tolist(), strict=True)}
    lines = [f"graph {_quoted(fabric.name)} {{"]
    for device in wiring.devices:
        function = "server" if device in wiring.hosts else roles[device]
        lines.append(f"  {_quoted(device)} [function={_quoted(function)}]")
    for cable in wiring.cables:
        one, other = (f"{_quoted(device)}:{_quoted(port)}" for device, port in cable.ends)
        assert cable.capacity_Bps is not None
        lines.append(f"  {one} -- {other} [speed={_quoted(speed_text(cable.capacity_Bps))}]")
    return "\n".join([*lines, "}"]) + "\n"


class _Graph:
    """What the statements of a graph tell."""

    def __init__(self, tokens: list[Token], where: str) -> None:
        self.tokens, self.at, self.where = tokens, 0, where
        self.name = ""
        self.cables: list[PortCable] = []
        self.told: dict[str, bool] = {}

    def read(self) -> None:
        self.take("strict")
        if not (self.take("graph") or self.take("digraph")):
            raise self.bad("is no graph")
        if self.here()[0] in NAMES:
            self.name = self.word()
        self.expect("{")
        edge: list[dict[str, str]] = [{}]
        while edge:
            if self.take("}"):
                edge.pop()
                if self.here()[0] == "edge":
                    raise self.subgraph()
            elif self.take(";") or self.take(","):
                continue
            elif self.take("{") or self.take("subgraph"):
                if self.tokens[self.at - 1][1] == "subgraph":
                    if self.here()[0] in NAMES:
                        self.word()
                    self.expect("{")
                edge.append(dict(edge[-1]))
                if len(edge) > DEEPEST:
                    raise self.bad(f"has more than {DEEPEST} subgraphs in each other")
            else:
                self.statement(edge[-1])

    def statement(self, defaults: dict[str, str]) -> None:
        line = self.here()[2]
        ends = [self.end()]
        if self.take("="):
            self.next()
            return
        while self.here()[0] == "edge":
            self.next()
            if self.here()[:2] in (("mark", "{"), ("word", "subgraph")):
                raise self.subgraph()
            ends.append(self.end())
        given = self.attributes()
        if len(ends) == 1:
            if ends[0][0] == "edge":
                defaults.update(given)
            elif ends[0][0] not in ("node", "graph"):
                self.node(ends[0][0], given)
            return
        given = defaults | given
        place = f"line {line}"
        here = f"{self.where}: {place}"
        speed = next((given[key] for key in SPEEDS if key in given), "")
        for (device, port), (other, other_port) in pairwise(ends):
            cable = PortCable(
                device=device_name(device, here),
                port=port,
                other=device_name(other, here),
                other_port=other_port,
                capacity_Bps=written_speed_Bps(speed, here),
                place=place,
            )
            self.cables.append(cable)

    def node(self, name: str, given: dict[str, str]) -> None:
        for key in KINDS:
            known = host_by_name(given.get(key, ""))
            if known is not None:
                self.told[name] = known
                return

    def end(self) -> tuple[str, str]:
        """A node and its port; a point of the compass is left out."""
        name = self.word()
        port = self.word() if self.take(":") else ""
        if self.take(":"):
            self.word()
        if port:
            device_name(port, f"{self.where}: line {self.here()[2]}")
        return name, port

    def attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while self.take("["):
            while not self.take("]"):
                key = self.word()
                found[key.lower()] = self.word() if self.take("=") else "true"
                if not self.take(","):
                    self.take(";")
        return found

    def word(self) -> str:
        kind, text, _ = self.next()
        if kind not in NAMES:
            raise self.bad(f"has {text[:20]!r} where a name should be", back=1)
        while self.take("+"):
            text += self.word()
        return text

    def here(self) -> Token:
        last = self.tokens[-1][2] if self.tokens else 1
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "", last)

    def next(self) -> Token:
        token = self.here()
        if token[0] == "end":
            raise self.bad("ends within the graph")
        self.at += 1
        return token

    def take(self, text: str) -> bool:
        kind, found, _ = self.here()
        taken = kind in ("mark", "word") and found.lower() == text
        self.at += taken
        return taken

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.bad(f"has {self.here()[1][:20]!r} where {text!r} should be")

    def bad(self, problem: str, back: int = 0) -> BadInput:
        line = self.tokens[self.at - back][2] if self.at - back < len(self.tokens) else self.here()[2]
        return BadInput(
            problem, where=f"{self.where}: line {line}", remedy='write edges like "a":"swp1" -- "b":"swp2"'
        )

    def subgraph(self) -> Unsupported:
        remedy = "write one edge for every cable"
        return Unsupported("has an edge to a subgraph", where=f"{self.where}: line {self.here()[2]}", remedy=remedy)


def _tokens(text: str, where: str) -> Iterator[Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadInput(
                f"{text[at : at + 20]!r} is no DOT", where=f"{where}: line {line}", remedy="give a DOT graph"
            )
        kind, whole = str(match.lastgroup), match[0]
        if kind != "blank":
            if len(whole) > LONGEST_TOKEN:
                raise BadInput("has a name that is too long", where=f"{where}: line {line}")
            quoted = match["quoted"]
            yield kind, whole if quoted is None else quoted.replace('\\"', '"').replace("\\\n", ""), line
        line += whole.count("\n")
        at = match.end()


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
