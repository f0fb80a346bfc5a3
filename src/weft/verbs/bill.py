"""``weft.bill_of_materials``: what a network is made of, part by part, on a floor."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput
from weft.verbs.networks import FileOptions, PriceOptions, RadixOptions, network_of
from weft.verbs.options import given_options, option, verb
from weft.verbs.shared import path_of

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.fabric.floor import Floor
    from weft.fabric.materials import BillOfMaterials


@dataclass(frozen=True, kw_only=True)
class BillOptions(FileOptions, RadixOptions, PriceOptions):
    """Which network, where it stands, and what parts cost."""

    kind: str | None = option(None, "Network to build for the cluster, or a fabric file.", metavar="KIND|FILE")
    floor: str | Floor | None = option(
        None, "Floor plan, TOML (default: rows of eight racks, by the size of a domain).", metavar="FILE"
    )
    spares: str | float = option("2%", "Share of every part to buy beside.", metavar="SHARE")


@verb(BillOptions)
def bill_of_materials(
    network: str | os.PathLike[str] | Cluster | Fabric, options: BillOptions | None = None, **given: Any
) -> BillOfMaterials:
    """The bill of materials of a network: switches, cables by length, transceivers, racks, spares, energy.

    >>> import weft
    >>> found = weft.bill_of_materials("h100-256", kind="rail-optimized", spares="0%")
    >>> [(line.count, line.part) for line in found.lines if line.category == "switch"]
    [(12, '64 x 400G switch')]

    Args:
        network: a cluster, whose network ``kind`` names, or a fabric or a file of one.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or a network that does not stand on the floor.
    """
    asked = given_options(BillOptions, options, given)
    from weft.fabric.floor import Floor, default_floor, read_floor
    from weft.fabric.materials import bill_of_materials as bill

    fabric, kind = network_of(network, asked.kind, asked.radix, asked, spares=True)
    domain = fabric.largest_domain
    if isinstance(asked.floor, Floor):
        floor = asked.floor
    else:
        floor = default_floor(domain) if asked.floor is None else read_floor(path_of(asked.floor, "--floor"), domain)
    return bill(fabric, asked.price_list(), floor, radix=asked.radix, kind=kind, spares=_share(asked.spares))


def _share(text: str | float) -> float:
    """A share as "2%" or 0.02."""
    try:
        share = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise BadInput(f"{str(text)[:40]!r} is no share", where="--spares", remedy="give it like 2%, at most 100%")
    return share
