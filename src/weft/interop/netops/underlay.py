"""What a switch of a routed fabric is told, whoever its vendor is: addresses, BGP neighbours, and RoCE's queues.

Every link is a /31 of its own, every node an autonomous system; loopbacks are announced, and BGP balances over all
links with equal paths (the addresses and numbers of ``addressing`` and of the FRR files, which hosts can run).

RoCE's traffic (DSCP 26) has a lossless priority of its own with ECN, congestion notifications (DSCP 48) a strict one.
ECN marks from 100 KB on and always from 400 KB on at 25 Gb/s, in proportion to the link (HPCC, SIGCOMM 2019, section
5.1, for DCQCN); the share marked in between goes up to SONiC's own 5 %.  Sizes of buffers and headroom depend on the
switch and are left to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.netops.addressing import Addressing, addressing
from weft.interop.netops.frr import FIRST_AS

ROCE_PRIORITY, NOTIFY_PRIORITY = 3, 6
ROCE_DSCP, NOTIFY_DSCP = 26, 48
MARKED_PERCENT = 5
_MARK_FROM_S, _MARK_ALL_S = 100e3 / (25e9 / 8), 400e3 / (25e9 / 8)
"""Queues at which marking begins and is full, in seconds of the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of a switch: ``index`` counts from 0; addresses of a /31 and of the loopback behind it."""

    index: int
    link: int
    address: str
    peer: str
    peer_address: str
    peer_as: int
    up: bool
    speed_bps: int

    @property
    def marks_bytes(self) -> tuple[int, int]:
        """Queues in bytes at which ECN marking begins and is full."""
        return round(_MARK_FROM_S * self.speed_bps / 8), round(_MARK_ALL_S * self.speed_bps / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch: ``role`` is the fabric's word for it."""

    node: int
    name: str
    role: str
    number: int
    loopback: str
    ports: tuple[Port, ...]


def switches(fabric: Fabric, plan: Addressing | None = None) -> Iterator[Switch]:
    """The switches of the scale-out network, in order."""
    names = plan or addressing(fabric)
    leaving: dict[int, list[int]] = {}
    for link, (node, tier) in enumerate(zip(fabric.source.tolist(), fabric.tier.tolist(), strict=True)):
        if tier > SCALE_UP and node >= fabric.accelerators:
            leaving.setdefault(node, []).append(link)
    for node, links in sorted(leaving.items()):
        ports = []
        for index, link in enumerate(links):
            peer = int(fabric.target[link])
            ports.append(
                Port(
                    index=index,
                    link=link,
                    address=f"{names.link_ipv4(link)}/31",
                    peer=names.names[peer],
                    peer_address=names.gateway_ipv4(link),
                    peer_as=FIRST_AS + peer,
                    up=bool(fabric.up[link]),
                    speed_bps=round(8 * float(fabric.capacity_Bps[link]) / int(fabric.cables[link])),
                )
            )
        yield Switch(
            node=node,
            name=names.names[node],
            role=fabric.roles[int(fabric.role[node])],
            number=FIRST_AS + node,
            loopback=f"{names.ipv4(node)}/32",
            ports=tuple(ports),
        )


def ports_table(fabric: Fabric, port_name: dict[int, str]) -> str:
    """Which port is which link, as ``weft route watch --ports`` takes it.

    Args:
        port_name: of every link, the name of the port that it leaves by.
    """
    names = addressing(fabric).names
    lines = ["device,interface,node,peer"]
    for link, port in sorted(port_name.items()):
        a, b = int(fabric.source[link]), int(fabric.target[link])
        lines.append(",".join(_cell(text) for text in (names[a], port, fabric.names[a], fabric.names[b])))
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text
