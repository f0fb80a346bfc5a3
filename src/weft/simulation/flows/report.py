"""A simulated scenario with what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.codec import encode
from weft.fabric.spec import Floats
from weft.fabric.traffic import Traffic
from weft.results import Result
from weft.simulation.flows.records import Simulation
from weft.units import counted, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnd:
    """A flow in time."""

    begin_s: float
    completion_s: float
    bottleneck_link: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Bytes over a link, and the share of its capacity that they took."""

    bytes: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ScenarioReport(Result):
    """Flows on links of ``capacity_Bps``, and when they ended."""

    SCHEMA = "weft.simulate/1"
    DOCUMENT = "makespan_s flows links"

    capacity_Bps: Floats
    traffic: Traffic
    result: Simulation

    @property
    def makespan_s(self) -> float:
        return self.result.makespan_s

    @property
    def utilization(self) -> Floats:
        """Share of what each link could have carried until the end."""
        able = self.capacity_Bps * self.result.makespan_s
        return np.divide(self.result.link_bytes, able, out=np.zeros_like(able), where=able > 0)

    @property
    def flows(self) -> tuple[FlowEnd, ...]:
        """When each flow began and ended, and the link that held it back."""
        found = self.result
        columns = zip(found.begin_s.tolist(), found.completion_s.tolist(), found.bottleneck.tolist(), strict=True)
        return tuple(FlowEnd(begin_s=begin, completion_s=end, bottleneck_link=link) for begin, end, link in columns)

    @property
    def links(self) -> tuple[LinkUse, ...]:
        """What each link carried."""
        columns = zip(self.result.link_bytes.tolist(), self.utilization.tolist(), strict=True)
        return tuple(LinkUse(bytes=carried, utilization=share) for carried, share in columns)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every flow, in order."""
        return [encode(flow) for flow in self.flows]

    def _facts(self) -> Sequence[str]:
        flows, links = len(self.traffic), len(self.capacity_Bps)
        return (
            f"{counted(flows, 'flow')} over {counted(links, 'link')}",
            f"makespan {format_seconds(self.makespan_s)}",
        )
