"""``weft.bill_of_materials``: what a network is made of, part by part."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.commands.networks import FileOptions, PriceOptions, RadixOptions, network_of
from weft.commands.options import given_options, option, verb
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.fabric.cost import Bill


@dataclass(frozen=True, kw_only=True)
class BillOptions(FileOptions, RadixOptions, PriceOptions):
    """Which network, and what parts cost."""

    kind: str | None = option(None, "Network to build for the cluster, or a fabric file.", metavar="KIND|FILE")
    spares: str | float = option("2%", "Share of every part to buy beside.", metavar="SHARE")


@verb(BillOptions)
def bill_of_materials(
    network: str | os.PathLike[str] | Cluster | Fabric, options: BillOptions | None = None, **given: Any
) -> Bill:
    """The bill of materials of a network: switches, cables, transceivers and NICs, with spares.

    >>> import weft
    >>> bill = weft.bill_of_materials("h100-256", kind="rail-optimized", spares="0%")
    >>> [(line.count, line.part) for line in bill.lines if line.category == "switch"]
    [(12, '64 x 400G switch')]

    Args:
        network: a cluster, whose network ``kind`` names, or a fabric or a file of one.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or no network to buy.
    """
    asked = given_options(BillOptions, options, given)
    from weft.fabric.cost import bill

    fabric, kind = network_of(network, asked.kind, asked.radix, asked, spares=True)
    found = bill(fabric, asked.price_list(), radix=asked.radix, kind=kind, spares_share=_share(asked.spares))
    if not found.lines:
        problem = "is one scale-up domain, with no network outside of it to buy"
        raise BadInput(problem, where=fabric.name, remedy="take more accelerators")
    return found


def _share(text: str | float) -> float:
    """A share as "2%" or 0.02."""
    try:
        share = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise BadInput(f"{str(text)[:40]!r} is not a share", where="--spares", remedy="give it like 2%, at most 100%")
    return share
