"""What holding cables against a design found, as a document, and the design's fabric with the cables as built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.wiring import End, PortCable, ends_of_accelerators
from weft.fabric.wiring_check import KINDS, Differences, named
from weft.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """Seconds per iteration of a job on the network as designed and as built; ``stuck`` says why it cannot run."""

    job: str
    designed_s: float
    as_built_s: float | None
    stuck: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WiringReport(Result):
    """Cables as built against a design."""

    SCHEMA = "weft.fabric-check/1"
    COLUMNS = (
        *("kind", "device", "port", "other_device", "other_port", "leads_to", "designed_to"),
        *("capacity_Bps", "designed_Bps", "remedy"),
    )

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
        return [
            {
                "kind": one.kind,
                "device": one.one[0],
                "port": one.one[1],
                "other_device": one.other[0],
                "other_port": one.other[1],
                "leads_to": None if one.leads_to is None else named(one.leads_to),
                "designed_to": None if one.designed_to is None else named(one.designed_to),
                "capacity_Bps": one.capacity_Bps,
                "designed_Bps": one.designed_Bps,
                "remedy": one.remedy,
            }
            for one in self.differences.findings
        ]

    def _document(self) -> dict[str, Any]:
        found, times = self.differences, self.iteration
        document: dict[str, Any] = {
            "as_built": self.as_built,
            "design": self.design,
            "designed_cables": found.designed,
            "right_cables": found.right,
            "counts": self.counts,
            "findings": self.to_dicts(),
            "only_designed": list(found.only_designed),
            "only_built": list(found.only_built),
            "notes": list(found.notes),
        }
        if times is not None:
            figures = {"job": times.job, "designed_s": times.designed_s, "as_built_s": times.as_built_s}
            document["iteration"] = figures | ({"stuck": times.stuck} if times.stuck else {})
        return document

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
