"""``weft.check_lanes``: whether the routes of a network can wait for each other in a circle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput
from weft.verbs.networks import ROUTING, ROUTINGS, FileOptions, RadixOptions, network_of
from weft.verbs.options import given_options, option, verb

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.fabric.lanes import LanesReport


@dataclass(frozen=True, kw_only=True)
class LanesOptions(FileOptions, RadixOptions):
    """Which network, and which routes."""

    kind: str | None = option(None, "Network to build for the cluster, or a fabric file.", metavar="KIND|FILE")
    routing: str = option(ROUTING, "How paths are chosen.", choices=ROUTINGS)
    pairs: int = option(
        1_000_000,
        "Pairs of accelerators: all, or so many drawn where there are more.",
        metavar="N",
        least=1,
        most=10**8,
    )
    seed: int = option(0, "Seed of draws and of hashed paths.", metavar="N", least=0)


@verb(LanesOptions)
def check_lanes(
    network: str | os.PathLike[str] | Cluster | Fabric, options: LanesOptions | None = None, **given: Any
) -> LanesReport:
    """The virtual lanes that routes between all accelerators need, and whether they are free of deadlock.

    >>> import weft
    >>> found = weft.check_lanes("h100-128", kind="torus", routing="dimension-order")
    >>> found.laned.lanes, found.laned.free, found.bare.free
    (2, True, False)

    Args:
        network: a cluster, whose network ``kind`` names, or a fabric or a file of one.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or a network that has no such routes.
    """
    asked = given_options(LanesOptions, options, given)
    from weft.fabric.lanes import report

    fabric, _ = network_of(network, asked.kind, asked.radix, asked)
    if fabric.accelerators < 2:
        raise BadInput("one accelerator sends nowhere", where=fabric.name, remedy="take more")
    return report(fabric, asked.routing, pairs=asked.pairs, seed=asked.seed)
