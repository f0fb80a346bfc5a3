"""One layout's estimate with its job and cluster, and what else is asked about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.cluster import WrittenCluster
from weft.cluster.calibration import Calibration
from weft.cluster.catalogue import Scales, scaled
from weft.cluster.spec import Cluster
from weft.codec import decode
from weft.estimation.iteration import estimate
from weft.estimation.result import COLUMNS, Estimate, TrainingRun
from weft.layout.spec import Layout
from weft.model.job import Job, WrittenJob
from weft.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Iteration time with one hardware figure changed, everything else as it is."""

    change: str
    iteration_s: float
    speedup: float


def sensitivities(
    job: Job, cluster: Cluster, layout: Layout, constants: Calibration | None = None
) -> tuple[Sensitivity, ...]:
    """What twice each hardware figure would do to the iteration time of a layout."""
    first, *outer = cluster.tiers
    changed = {
        "matrix peak x2": scaled(cluster, Scales(peak=2)),
        "HBM bandwidth x2": scaled(cluster, Scales(hbm=2)),
        f"{first.name} bandwidth x2": scaled(cluster, Scales(scale_up=2)),
    }
    if outer:
        changed["NIC bandwidth x2"] = scaled(cluster, Scales(nic=2))
    if outer and outer[0].size % 2 == 0:  # domains pair up: half as many
        pair = (replace(first, size=2 * first.size), replace(outer[0], size=outer[0].size // 2))
        changed[f"{first.name} domain x2"] = replace(cluster, tiers=(*pair, *outer[1:]))
    changed["network latency x2"] = scaled(cluster, Scales(latency=2))
    base, *others = (estimate(job, each, [layout], constants)[0].iteration_s for each in (cluster, *changed.values()))
    return tuple(
        Sensitivity(change=change, iteration_s=seconds, speedup=base / seconds)
        for change, seconds in zip(changed, others, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EstimateReport(Result):
    """An estimate, what changes of the hardware would do to it, and the whole run where it was asked for."""

    SCHEMA = "weft.estimate/1"
    COLUMNS = ("rank", "model", "cluster", *COLUMNS)

    DOCUMENT = "job cluster defaults estimate sensitivities run"

    job: WrittenJob
    cluster: WrittenCluster
    estimate: Estimate
    sensitivities: tuple[Sensitivity, ...] = ()
    run: TrainingRun | None = None

    @property
    def layout(self) -> Layout:
        return self.estimate.layout

    @property
    def iteration_s(self) -> float:
        return self.estimate.iteration_s

    @property
    def mfu(self) -> float:
        """Share of the dense peak, as ``Estimate.mfu``."""
        return self.estimate.mfu

    @property
    def memory_bytes(self) -> float:
        """Bytes on the fullest stage."""
        return self.estimate.memory_bytes

    @property
    def fits(self) -> bool:
        return self.estimate.fits

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row, as those of a plan."""
        named = {"rank": 1, "model": self.job.model.name, "cluster": self.cluster.name}
        return [named | self.estimate.row()]

    @property
    def defaults(self) -> tuple[str, ...]:
        """What was assumed of job and cluster."""
        return (*self.job.defaults, *self.cluster.defaults)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, where: str = "estimate") -> EstimateReport:
        """The report that ``to_dict`` wrote.

        Raises:
            BadInput: a field is missing or of the wrong kind.
        """
        report = decode(cls, document, where)
        report.estimate.check_world(report.cluster.count, f"{where}: estimate")
        return report
