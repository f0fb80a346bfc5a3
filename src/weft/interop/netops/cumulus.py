"""Cumulus Linux's configuration as NVUE takes it (``nv config replace FILE``): a file for every switch.

Addresses and BGP of ``underlay``; RoCE by NVUE's own lossless profile, which has the same DSCP values and priorities.
"""

from __future__ import annotations

from typing import Any

from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import addressing
from weft.interop.netops.frr import MOST_PATHS
from weft.interop.netops.plan_paths import network_paths
from weft.interop.netops.underlay import Switch, ports_table, switches
from weft.interop.text.yaml import parse_yaml, scalars, write_yaml
from weft.routing.traffic import JobTraffic


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[str, str]:
    """A file for every switch of the scale-out network by its name, and which port is which link (``ports.csv``).

    Raises:
        Unsupported: a flow is not on one path.
        BadInput: the routes are not of this traffic and fabric.
    """
    network_paths(fabric, traffic, routes, where="Cumulus")
    files: dict[str, str] = {}
    ports: dict[int, str] = {}
    for one in switches(fabric, addressing(fabric)):
        body = write_yaml({"set": _switch(one)})
        files[f"{one.name}.yaml"] = "".join(
            f"{'- ' if first else '  '}{line}\n" for first, line in _numbered(body.splitlines())
        )
        ports |= {port.link: _name(port.index) for port in one.ports}
    return files | {"ports.csv": ports_table(fabric, ports)}


def _numbered(lines: list[str]) -> list[tuple[bool, str]]:
    return [(not at, line) for at, line in enumerate(lines)]


def _name(index: int) -> str:
    return f"swp{index + 1}"


def _switch(one: Switch) -> dict[str, Any]:
    """What is set on a switch."""
    interfaces: dict[str, Any] = {"lo": {"ip": {"address": {one.loopback: {}}}, "type": "loopback"}}
    neighbours: dict[str, Any] = {}
    for port in one.ports:
        state: dict[str, Any] = {"up" if port.up else "down": {}}
        interfaces[_name(port.index)] = {
            "description": port.peer,
            "ip": {"address": {port.address: {}}},
            "link": {"state": state},
            "type": "swp",
        }
        neighbours[port.peer_address] = {"description": port.peer, "remote-as": port.peer_as, "type": "numbered"}
    family = {"enable": "on", "multipaths": {"ebgp": MOST_PATHS}, "network": {one.loopback: {}}}
    bgp = {
        "address-family": {"ipv4-unicast": family},
        "enable": "on",
        "neighbor": neighbours,
        "path-selection": {"multipath": {"aspath-ignore": "on"}},
    }
    return {
        "interface": interfaces,
        "qos": {"roce": {"enable": "on", "mode": "lossless"}},
        "router": {
            "bgp": {"autonomous-system": one.number, "enable": "on", "router-id": one.loopback.partition("/")[0]}
        },
        "system": {"hostname": one.name},
        "vrf": {"default": {"router": {"bgp": bgp}}},
    }


def lint(text: str) -> tuple[str, ...]:
    """What is wrong with a file: no list of one "set", parts that are missing, neighbours that no port reaches."""
    from ipaddress import ip_address, ip_interface

    from weft.errors import BadInput

    try:
        whole = scalars(parse_yaml(text, where="NVUE"))
        table = whole[0]["set"]
        interfaces, bgp = table["interface"], table["vrf"]["default"]["router"]["bgp"]
        addresses = [ip_interface(one) for each in interfaces.values() for one in each["ip"]["address"]]
        gateways = [ip_address(one) for one in bgp["neighbor"]]
        number = int(table["router"]["bgp"]["autonomous-system"])
        mode = table["qos"]["roce"]["mode"]
    except (BadInput, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return (f"is no configuration of a switch ({type(error).__name__}: {str(error)[:80]})",)
    found = [f"{one} is twice an address" for one in sorted({one for one in addresses if addresses.count(one) > 1})]
    nets = {each.network for each in addresses}
    found += [f"no port reaches {one}" for one in gateways if not any(one in net for net in nets)]
    found += [] if 0 < number < 2**32 else [f"{number} is no autonomous system"]
    return (*found, *([] if mode in ("lossless", "lossy") else ["qos roce mode is neither lossless nor lossy"]))
