"""What holding cables against a design found, as a document, and the design's fabric with the cables as built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from weft.codec import Document, encode
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.wiring import End, PortCable, ends_of_accelerators
from weft.fabric.wiring_check import KINDS, Differences, Finding
from weft.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes(Document):
    """Seconds per iteration of a job on the network as designed and as built; ``stuck`` says why it cannot run."""

    DOCUMENT = "job designed_s as_built_s stuck?"

    job: str
    designed_s: float
    as_built_s: float | None
    stuck: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WiringReport(Result):
    """Cables as built against a design."""

    SCHEMA = "weft.fabric-check/1"
    COLUMNS = tuple(word.partition("=")[0] for word in Finding.DOCUMENT.split())
    DOCUMENT = """
        as_built design designed_cables=differences.designed right_cables=differences.right counts
        findings=differences.findings only_designed=differences.only_designed only_built=differences.only_built
        notes=differences.notes iteration?"""

    as_built: str
    design: str
    differences: Differences
    iteration: IterationTimes | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Findings by kind."""
        times = Counter(finding.kind for finding in self.differences.findings)
        return {kind: times[kind] for kind in KINDS}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every finding; exchanges in the order in which they are to be made."""
        return [encode(one) for one in self.differences.findings]

    def _facts(self) -> Sequence[str]:
        found = self.differences
        kinds = [f"{count:,} {kind}" for kind, count in self.counts.items() if count]
        return f"{found.right:,} of {found.designed:,} cables between the ports of the design", *(
            kinds or ["nothing to mend"]
        )


def fabric_as_built(fabric: Fabric, cables: Sequence[PortCable], where: str) -> Fabric:
    """A design's fabric with the scale-out cables that are there, both ways at the slower end's speed.

    Raises:
        BadInput: parts without a path.
    """
    index: dict[End, int] = {(name, ""): i for i, name in enumerate(fabric.names)}
    index |= {end: i for i, end in enumerate(ends_of_accelerators(fabric))}
    domain, rail = fabric.domain.tolist(), fabric.rail.tolist()
    nodes = [
        Node(
            name=name,
            role=fabric.roles[role],
            place=name,
            domain=domain[i] if i < fabric.accelerators else None,
            rail=rail[i] if i < fabric.accelerators else None,
        )
        for i, (name, role) in enumerate(zip(fabric.names, fabric.role.tolist(), strict=True))
    ]
    links = [*_inside(fabric), *_outside(fabric, cables, index)]
    return assemble(fabric.name, nodes, links, where=where, roles=fabric.roles)


def _inside(fabric: Fabric) -> Iterator[Cable]:
    """The links inside the hosts, one by one."""
    for link in (fabric.tier == SCALE_UP).nonzero()[0].tolist():
        yield Cable(
            source=fabric.names[fabric.source[link]],
            target=fabric.names[fabric.target[link]],
            capacity_Bps=float(fabric.capacity_Bps[link]),
            latency_s=float(fabric.latency_s[link]),
            tier=SCALE_UP,
            up=bool(fabric.up[link]),
            both=False,
            place="scale-up",
        )


def _outside(fabric: Fabric, cables: Sequence[PortCable], index: dict[End, int]) -> Iterator[Cable]:
    """The cables as links, as late as the design's between such roles."""
    role = fabric.role.tolist()
    pairs = zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)
    late = {(role[a], role[b]): each for (a, b), each in zip(pairs, fabric.latency_s.tolist(), strict=True)}
    latest = max(late.values(), default=0.0)
    ends = []
    for cable in cables:
        found = [index.get(end, index.get((end[0], ""))) for end in cable.ends]
        if None not in found and found[0] != found[1] and cable.capacity_Bps:
            a, b = sorted(node for node in found if node is not None)
            ends.append((a, b, cable.capacity_Bps))
    for a, b, speed in sorted(ends):
        yield Cable(
            source=fabric.names[a],
            target=fabric.names[b],
            capacity_Bps=speed,
            latency_s=late.get((role[a], role[b]), latest),
            place=f"{fabric.names[a]} - {fabric.names[b]}",
        )
