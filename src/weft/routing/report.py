"""A route plan beside those of other routers, and its flows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.fabric.spec import Fabric, ranks
from weft.fabric.traffic import Routes
from weft.results import Result
from weft.routing.plan import RoutePlan
from weft.routing.traffic import JobTraffic


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RouteReport(Result):
    """Routes of all flows, what other routers reach, and whether the document lists every path.

    ``hashed`` is what ECMP does with the same flows, where it can route them.
    """

    SCHEMA = "weft.route/1"
    COLUMNS = ("source", "target", "job", "collective", "queue_pair", "bytes", "rate_Bps", "path", "links")

    DOCUMENT = "plan.* flows compared?"

    plan: RoutePlan
    compared: tuple[RoutePlan, ...] = ()
    hashed: RoutePlan | None = None
    paths: bool = False

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every flow, its path as names of nodes (``links``: as in ``flow_rows``) with spaces between."""
        rows = zip(self._flows(), self.plan.rates_Bps.tolist(), strict=True)
        merged = (
            row | {"rate_Bps": rate, "path": " ".join(row.get("path", ("sprayed",))), "links": cables_of(row)}
            for row, rate in rows
        )
        return [{name: row[name] for name in self.COLUMNS} for row in merged]

    @property
    def flows(self) -> int | list[dict[str, Any]]:
        """The flows with their paths, or their number."""
        return list(self._flows()) if self.paths else len(self.plan.traffic)

    def _flows(self) -> Iterator[dict[str, Any]]:
        return flow_rows(self.plan.fabric, self.plan.traffic, self.plan.routes)


def flow_rows(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Iterator[dict[str, Any]]:
    """Every flow with its path as names of nodes; a sprayed flow lists its links with their shares instead.

    ``links`` stands where several links join two nodes of a path: which of them each hop takes, from 0.
    ``cap_Bps`` stands where the flow has one.
    """
    names, beside, collectives = (
        fabric.names,
        ranks(fabric.source * fabric.nodes + fabric.target),
        _collectives(traffic),
    )
    for flow, group in enumerate(traffic.collective.tolist()):
        span = slice(int(routes.indptr[flow]), int(routes.indptr[flow + 1]))
        links = routes.links[span]
        row: dict[str, Any] = {
            "source": names[traffic.source[flow]],
            "target": names[traffic.target[flow]],
            "job": traffic.jobs[traffic.job[group]],
            "collective": collectives[group],
            "queue_pair": int(traffic.queue_pair[flow]),
            "bytes": float(traffic.bytes[flow]),
        }
        if np.isfinite(traffic.cap_Bps[flow]):
            row["cap_Bps"] = float(traffic.cap_Bps[flow])
        if np.all(routes.usage[span] == 1.0):
            row["path"] = [row["source"], *(names[node] for node in fabric.target[links])]
            if beside[links].any():
                row["links"] = beside[links].tolist()
        else:
            row["shares"] = [
                {"from": names[fabric.source[link]], "to": names[fabric.target[link]], "share": share}
                for link, share in zip(links.tolist(), routes.usage[span].tolist(), strict=True)
            ]
        yield row


def cables_of(row: dict[str, Any]) -> str:
    """Which of parallel links each hop of a row of ``flow_rows`` takes; empty where there are none."""
    return " ".join(map(str, row.get("links", ())))


def _collectives(traffic: JobTraffic) -> list[str]:
    """Names of the collectives, with a number behind where a job has the name already."""
    used: set[tuple[int, str]] = set()
    result = []
    for job, name in zip(traffic.job.tolist(), traffic.names, strict=True):
        number, unique = 1, name
        while (job, unique) in used:
            number += 1
            unique = f"{name} #{number}"
        used.add((job, unique))
        result.append(unique)
    return result
