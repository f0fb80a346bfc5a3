"""``weft.check_fabric``: cables as built against a design."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.commands.networks import ROUTING, FileOptions, RadixOptions, fabric_of, is_file, left_out
from weft.commands.options import given_options, option, options_of, verb
from weft.commands.shared import CalibrationOptions, PlannedOptions, RecipeOptions, cluster_of, path_of
from weft.errors import BadInput, WeftError

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.fabric.wiring import End, Wiring
    from weft.fabric.wiring_check import Differences, IterationTimes, WiringReport


_TIMING = (PlannedOptions, CalibrationOptions, RecipeOptions)
_TIMED = {"routing", *(one.name for kind in _TIMING for one in options_of(kind))}
"""What the iteration needs, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(FileOptions, RadixOptions, PlannedOptions, CalibrationOptions, RecipeOptions):
    """The design, and the job whose iteration is timed."""

    against: str | Fabric | None = option(None, "The design: a file, or a kind of --cluster.", metavar="KIND|FILE")
    cluster: str | Cluster | None = option(None, "Cluster of a kind, and of --model.", metavar="NAME|FILE")
    names: str | None = option(
        None, "Devices that have other names: lines of name as built, name in the design.", metavar="FILE"
    )
    model: str | None = option(None, "Also time an iteration of it (--layout) on both networks.", metavar="NAME|FILE")
    routing: str = option(ROUTING, "How its paths are chosen.", choices=("ecmp", "spray", "random"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None and self.plan is None:
            for one in options_of(CheckOptions):
                if one.name in _TIMED and getattr(self, one.name) != one.default:
                    raise BadInput(
                        "says nothing without --model", where=one.flags[0], remedy="add --model, or drop it"
                    )
        if self.plan is None and self.model is not None and (self.cluster is None or self.layout is None):
            lacking = "--cluster" if self.cluster is None else "--layout"
            raise BadInput(f"needs {lacking} to be timed", where="--model", remedy=f"add {lacking}, or drop --model")


@verb(CheckOptions)
def check_fabric(as_built: str | os.PathLike[str], options: CheckOptions | None = None, **given: Any) -> WiringReport:
    """Hold cables as built against a design: what is plugged elsewhere, missing or slow, and what to exchange.

    >>> import tempfile, weft
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan, there = (f"{folder}/{name}.csv" for name in ("plan", "there"))
    ...     rows = ["gpu1,eth0,leaf1,1,400G", "gpu2,eth0,leaf2,1,400G"]
    ...     for file, built in ((plan, rows), (there, ["gpu1,eth0,leaf2,1,400G", "gpu2,eth0,leaf1,1,100G"])):
    ...         with open(file, "w") as text:
    ...             print("a_device,a_port,b_device,b_port,speed", *built, sep="\\n", file=text)
    ...     found = weft.check_fabric(there, against=plan)
    >>> [row["remedy"] for row in found.to_dicts()]
    ['exchange the plugs of leaf1 1 and leaf2 1']

    Args:
        as_built: a file in any format of fabrics; those that name ports tell most.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a file or an option that cannot be used, or no device of the design is there.
    """
    asked = given_options(CheckOptions, options, given)
    if asked.against is None:
        raise BadInput("is not given", where="--against", remedy="give the design: a file, or a kind of --cluster")
    from weft.fabric.wiring_check import WiringReport, differences
    from weft.interop.fabric_files import FabricFileHints, read_wiring

    where = path_of(as_built, "AS-BUILT")
    built, _ = read_wiring(FabricFileHints(where=where, **left_out(asked)))
    design, fabric = _design(asked)
    rails = None if fabric is None else _rails(fabric)
    found = differences(built, design, names=_names(asked.names), rails=rails)
    iteration = None
    if asked.model is not None or asked.plan is not None:
        iteration = _timed(asked, found, fabric or _fabric_of(design, asked))
    title = asked.against if isinstance(asked.against, str) else design.name
    return WiringReport(as_built=where, design=title, differences=found, iteration=iteration)


def _design(asked: CheckOptions) -> tuple[Wiring, Fabric | None]:
    from weft.fabric.wiring import wiring_of_fabric
    from weft.interop.fabric_files import FabricFileHints, read_wiring

    if isinstance(asked.against, str) and is_file(asked.against):
        told = left_out(replace(asked, host_map=None, exclude=()))
        found, fabric = read_wiring(FabricFileHints(where=asked.against, **told))
        speed = told["capacity_Bps"]
        cables = tuple(replace(one, capacity_Bps=one.capacity_Bps or speed) for one in found.cables)
        return replace(found, cables=cables), fabric
    if isinstance(asked.against, str) and asked.cluster is None:
        problem = f"{asked.against!r} is no file, and a kind of network needs --cluster"
        raise BadInput(problem, where="--against", remedy="add --cluster, or give a fabric file")
    cluster = None if asked.cluster is None else cluster_of(asked.cluster)
    fabric = fabric_of(asked.against, cluster, asked.radix)
    return wiring_of_fabric(fabric), fabric


def _rails(fabric: Fabric) -> dict[End, int]:
    from weft.fabric.wiring import ends_of_accelerators

    return dict(zip(ends_of_accelerators(fabric), fabric.rail.tolist(), strict=True))


def _names(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    from weft.files import read_text
    from weft.interop.cabling import read_names

    return read_names(read_text(path, where=path), where=path)


def _fabric_of(design: Wiring, asked: CheckOptions) -> Fabric:
    """The fabric of a cabling plan, whose hosts inside are the cluster's."""
    from weft.fabric.wiring import fabric_of

    told = left_out(asked)
    if told["scale_up_Bps"] is None and asked.cluster is not None:
        told["scale_up_Bps"] = cluster_of(asked.cluster).tiers[0].bandwidth_Bps
    speeds = {name: told[name] for name in ("capacity_Bps", "scale_up_Bps")}
    return fabric_of(design, where=str(asked.against), **speeds)


def _timed(asked: CheckOptions, found: Differences, fabric: Fabric) -> IterationTimes:
    """Times of an iteration on the design and as built."""
    from weft.commands.simulate import SimulateOptions, simulate
    from weft.fabric.wiring_check import IterationTimes, fabric_as_built
    from weft.simulation.iteration.result import IterationReport

    record = SimulateOptions(**{name: getattr(asked, name) for name in _TIMED}, radix=asked.radix)
    cluster = None if asked.plan is not None else asked.cluster

    def timed(network: Fabric) -> IterationReport:
        found = simulate(asked.model, cluster, options=replace(record, fabric=network))
        assert isinstance(found, IterationReport)
        return found

    designed = timed(fabric)
    times = IterationTimes(job=designed.job.model.name, designed_s=designed.iteration_s, as_built_s=None)
    try:
        return replace(times, as_built_s=timed(fabric_as_built(fabric, found.as_built, "as built")).iteration_s)
    except WeftError as error:
        return replace(times, stuck=str(error))
