"""Networks, placements, routes and prices that several verbs take."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weft.commands.options import Options, option, options_of
from weft.commands.shared import bandwidth_of, path_of
from weft.errors import BadInput, InDoubt
from weft.files import read_text
from weft.units import format_si

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.fabric.cost import Prices
    from weft.fabric.placement import Placement
    from weft.routing.plan import RoutePlan
    from weft.routing.report import RouteReport
    from weft.simulation.iteration.contention import FlowRoutes

    FabricSource = str | os.PathLike[str] | Fabric
    """A kind of network, a file, or a fabric."""

ROUTINGS = ("ecmp", "spray", "random", "dimension-order", "ugal")
ROUTING = ROUTINGS[0]
"""Default of every command: most RoCE networks hash flows onto equal-cost paths."""


class SubnetOptions(Options):
    """What the output of ibnetdiscover leaves out."""

    group = "Network"
    scale_up: str | float | None = option(
        None, "Bandwidth per GPU inside hosts, if the file has only cables.", metavar="SPEED"
    )
    host_map: str | None = option(None, 'InfiniBand node name map: lines of 0xGUID "host".', metavar="FILE")
    exclude: tuple[str, ...] = option((), "InfiniBand adapters to ignore, by name (repeats).", metavar="PATTERN")


class FileOptions(SubnetOptions):
    """What fabric files may leave out."""

    group = "Network"
    link_speed: str | float | None = option(None, "Speed of links without one, as '400 Gb/s'.", metavar="SPEED")
    hosts: tuple[str, ...] = option((), "Names of hosts, if the file does not mark them (repeats).", metavar="PATTERN")


class RadixOptions(Options):
    """The radix of networks that are built."""

    group = "Network"
    radix: int = option(64, "Ports of a switch.", metavar="N", least=2, most=4096)


class RoutingOptions(Options):
    """How the flows of a simulated network find their paths, and what carries them."""

    group = "Network"
    more: ClassVar[tuple[str, ...]] = ()
    """Names beside ``ROUTINGS`` and transports."""
    routing: str = option(
        ROUTING,
        f"{', '.join(ROUTINGS)}; or roce-ecmp[:QUEUE PAIRS], roce-adaptive, packet-spray, infiniband.",
        metavar="HOW",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.routing not in (*ROUTINGS, *self.more):
            from weft.fabric.transport import transport

            transport(self.routing, "--routing")


class PriceOptions(Options):
    """Prices of parts."""

    group = "Network"
    prices: str | Prices = option("market-2026", "Prices of parts: a preset or TOML file.", metavar="NAME|FILE")

    def price_list(self) -> Prices:
        """The prices of the preset or of the file."""
        from weft.fabric.cost import Prices, preset, read_prices

        if isinstance(self.prices, Prices):
            return self.prices
        name = path_of(self.prices, "--prices")
        return read_prices(name) if Path(name).suffix == ".toml" or os.path.exists(name) else preset(name)


_AS_IT_IS = FileOptions()


def is_file(name: str | os.PathLike[str]) -> bool:
    """Whether a name means a file, not a kind of network ("fat-tree 1.5:1" is one)."""
    return (bool(Path(name).suffix) and not str(name).endswith(":1")) or os.path.exists(name)


def fabric_of(
    fabric: FabricSource | None, cluster: Cluster | None, radix: int = RadixOptions.radix, files: Options = _AS_IT_IS
) -> Fabric:
    """A fabric, that of a file, or a kind built for the cluster (its default kind without a name)."""
    from weft.fabric import Fabric
    from weft.fabric.catalogue import default_kind, for_cluster

    if isinstance(fabric, Fabric):
        return fabric
    name = None if fabric is None else path_of(fabric, "--fabric")
    if name is not None and is_file(name):
        return fabric_file(name, files, cluster=cluster)
    needs_a_file(files)
    if cluster is None:
        raise BadInput("a kind of network needs --cluster", where="--fabric", remedy="add it, or give a fabric file")
    return for_cluster(name or default_kind(cluster), cluster, radix=radix)


def network_of(
    network: FabricSource | Cluster, kind: str | None, radix: int, files: Options = _AS_IT_IS, *, spares: bool = False
) -> tuple[Fabric, str]:
    """The network of a cluster by ``kind``, or a fabric or its file, and the kind that it was built as.

    ``spares``: also those of scale-up domains that are bought whole.
    """
    from weft.cluster import Cluster
    from weft.cluster.catalogue import with_spares_used
    from weft.commands.shared import cluster_of
    from weft.fabric import Fabric
    from weft.fabric.catalogue import check_size, default_kind, for_cluster

    if isinstance(network, Fabric):
        return network, ""
    if kind is not None and is_file(kind):
        cluster = cluster_of(network)
        # Nodes of SLURM are hosts of the cluster.
        fabric = fabric_file(kind, files, hosts=cluster if len(cluster.tiers) > 1 else None)
        check_size(fabric, cluster, kind)
        return fabric, ""
    path = "" if kind is not None or isinstance(network, Cluster) else path_of(network, "CLUSTER")
    if os.path.isfile(path) and (Path(path).suffix != ".toml" or "weft.fabric/" in read_text(path, where=path)):
        return fabric_file(path, files), ""
    cluster = cluster_of(network)
    needs_a_file(files)
    name = kind or default_kind(cluster)
    return for_cluster(name, with_spares_used(cluster) if spares else cluster, radix=radix), name


def needs_a_file(files: Options) -> None:
    """Refuse options of fabric files where the network is built, so that none is dropped in silence."""
    for one in options_of(FileOptions):
        if getattr(files, one.name, one.default) != one.default:
            raise BadInput(
                "has no effect on a network that is built for a cluster",
                where=one.flags[0],
                remedy="drop it, or give a fabric file",
            )


def fabric_file(
    name: str | os.PathLike[str],
    options: Options = _AS_IT_IS,
    *,
    cluster: Cluster | None = None,
    hosts: Cluster | None = None,
) -> Fabric:
    """A fabric file, with options for what it leaves out; links without a speed have that of the cluster's NICs."""
    from weft.interop.fabric_files import read_fabric

    path, hints = path_of(name, "--fabric"), left_out(options) | {"cluster": hosts}
    if cluster is None or hints["capacity_Bps"] is not None:
        return read_fabric(path, **hints)
    try:
        return read_fabric(path, **hints)
    except BadInput:
        speed = cluster.accelerator.nic_Bps
        result = read_fabric(path, **hints | {"capacity_Bps": speed})
    told = format_si(speed, "B/s")
    warnings.warn(
        f"{path}: assumed {told}, the NICs of {cluster.name}, for links without a speed", InDoubt, stacklevel=2
    )
    return result


def left_out(options: Options) -> dict[str, Any]:
    """The options of fabric files as fields of ``FabricFileHints``."""
    told = {one.name: getattr(options, one.name, one.default) for one in options_of(FileOptions)}
    path = told["host_map"]
    if path is not None:
        from weft.interop.cabling import read_host_map

        told["host_map"] = read_host_map(read_text(path, where=path), where=path)
    told["capacity_Bps"] = bandwidth_of(told.pop("link_speed"), "--link-speed")
    told["scale_up_Bps"] = bandwidth_of(told.pop("scale_up"), "--scale-up")
    return told


def placement_of(given: str | os.PathLike[str] | Placement | None, fabric: Fabric, ranks: int) -> Placement | None:
    """The placement of ranks, or that of a file; None: rank r on accelerator r."""
    from weft.fabric.placement import Placement, read_placement

    if given is None or isinstance(given, Placement):
        return given
    return read_placement(path_of(given, "--placement"), fabric, ranks)


def routes_of(given: str | os.PathLike[str] | RoutePlan | RouteReport, fabric: Fabric) -> FlowRoutes:
    """The routes of a plan, or of a file that ``weft route`` wrote."""
    from weft.routing.plan import RoutePlan
    from weft.routing.report import RouteReport
    from weft.simulation.iteration.contention import FlowRoutes

    if isinstance(given, RouteReport):
        given = given.plan
    if isinstance(given, RoutePlan):
        return FlowRoutes(fabric, given.traffic, given.routes, name=given.router)
    from weft.interop.routes_json import read

    where = path_of(given, "--routes")
    return FlowRoutes(fabric, *read(read_text(where, where=where), fabric, where=where), name=where)
