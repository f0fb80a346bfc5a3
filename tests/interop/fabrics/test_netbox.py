"""Fabrics from NetBox's cables."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, Unsupported, WeftError
from weft.fabric.wiring import fabric_of
from weft.interop.fabrics.formats import read_fabric
from weft.interop.fabrics.netbox import read_wiring


def read(text, hosts=(), **options):
    return fabric_of(read_wiring(text, hosts=hosts), where="netbox", **options)


ROLES = {"gpu1": "gpu-server", "gpu2": "gpu-server", "leaf1": "leaf", "leaf2": "leaf", "spine1": "spine", "x1": None}
WIRES = [
    ("gpu1", "p1", "leaf1", "Ethernet1"),
    ("gpu1", "p2", "leaf2", "Ethernet1"),
    ("gpu2", "p1", "leaf1", "Ethernet2"),
    ("leaf1", "Ethernet49", "spine1", "Ethernet1"),
    ("leaf1", "Ethernet50", "spine1", "Ethernet2"),
    ("leaf2", "Ethernet49", "spine1", "Ethernet3"),
]


class Site:
    """What the API would give, with numbers for devices and interfaces."""

    def __init__(self, kind="400gbase-x-osfp"):
        self.numbers, self.interfaces, self.kind = {}, [], kind
        self.devices = [
            {"id": i, "name": name, "role": {"slug": role, "name": role.title()}}
            for i, (name, role) in enumerate(ROLES.items())
            if role
        ]
        self.cables = [self.cable(*wire) for wire in WIRES]

    def end(self, device, port):
        number = len(self.interfaces) + 100
        owner = {"id": list(ROLES).index(device), "name": device, "display": device}
        row = {"id": number, "name": port, "device": owner}
        self.interfaces.append({**row, "type": {"value": self.kind, "label": ""}, "speed": None})
        return {"object_type": "dcim.interface", "object_id": number, "object": row}

    def cable(self, a, a_port, b, b_port, status="connected"):
        return {
            "id": len(self.interfaces),
            "type": "mmf-om4",
            "a_terminations": [self.end(a, a_port)],
            "b_terminations": [self.end(b, b_port)],
            "status": {"value": status, "label": status.title()},
            "label": "",
        }

    def table(self):
        return {"cables": {"results": self.cables}, "devices": self.devices, "interfaces": self.interfaces}


def check(fabric):
    assert fabric.names == ("gpu1/p1", "gpu1/p2", "gpu2", "leaf1", "leaf2", "spine1")
    assert fabric.domain.tolist() == [0, 0, 1]
    assert [fabric.roles[role] for role in fabric.role[3:]] == ["leaf", "leaf", "spine"]
    assert sorted(fabric.cables.tolist()) == [1] * 12
    assert set((fabric.capacity_Bps / fabric.cables).tolist()) == {50e9}


def test_cables_devices_and_interfaces():
    check(read(json.dumps(Site().table())))


def test_a_plain_list_of_cables(tmp_path):
    for table in (Site().cables, {"count": 6, "next": None, "results": Site().cables}):
        check(read(json.dumps(table), capacity_Bps=50e9, hosts=["gpu*"]))
        (tmp_path / "cables.json").write_text(json.dumps(table))
        check(read_fabric(tmp_path / "cables.json", capacity_Bps=50e9, hosts=["gpu*"]))
    (tmp_path / "cables.json").write_text(json.dumps(Site().table()))
    check(read_fabric(tmp_path / "cables.json"))


def test_planned_cables_and_power_are_left_out():
    site = Site()
    site.cables.append(site.cable("gpu2", "p2", "leaf2", "Ethernet2", status="planned"))
    site.cables.append(site.cable("gpu2", "p3", "leaf2", "Ethernet3", status="decommissioning"))
    power = {"object_type": "dcim.powerport", "object_id": 1}
    site.cables.append({"a_terminations": [power], "b_terminations": [power], "status": "connected"})
    check(read(json.dumps(site.table())))
    site.cables.append(site.cable("gpu2", "p4", "leaf2", "Ethernet4", status="active"))
    assert read(json.dumps(site.table())).accelerators == 4


def test_speeds_of_interfaces():
    site = Site(kind="100gbase-x-qsfp28")
    site.interfaces[0]["speed"] = 40_000_000
    speeds = read(json.dumps(site.table())).capacity_Bps
    assert sorted(set(speeds.tolist())) == [5e9, 12.5e9]
    text = json.dumps(Site(kind="other").table())
    with pytest.raises(BadInput, match="nothing tells the speed of gpu1 p1"):
        read(text)
    check(read(text, capacity_Bps=50e9))


def test_breakout_cables():
    site = Site(kind="800gbase-x-osfp")
    wide = site.cable("leaf2", "Ethernet9", "gpu2", "p2")
    wide["b_terminations"].append(site.end("gpu2", "p3"))
    for row in site.interfaces[-2:]:
        row["type"] = {"value": "400gbase-x-qsfp112"}
    fabric = read(json.dumps({**site.table(), "cables": [*site.cables, wide]}))
    assert fabric.names[2:5] == ("gpu2/p1", "gpu2/p2", "gpu2/p3")
    assert sorted(set((fabric.capacity_Bps / fabric.cables).tolist())) == [50e9, 100e9]
    wide["a_terminations"] += [site.end("leaf2", "Ethernet10"), site.end("leaf2", "Ethernet11")]
    with pytest.raises(Unsupported, match="joins 3 with 2 interfaces"):
        read(json.dumps({**site.table(), "cables": [*site.cables, wide]}))


def changed(change):
    site = Site()
    change(site)
    return json.dumps(site.table())


def rear_port(site):
    site.cables[0]["b_terminations"][0]["object_type"] = "dcim.rearport"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rear_port, r"cables\[0\]: joins an interface with something else -- .*patch panels"),
        (lambda site: site.cables[1].update(a_terminations=7), "a_terminations: is no list of objects"),
        (lambda site: site.cables[1].update(a_terminations=[]), "joins 0 with 1 interfaces"),
        (lambda site: site.cables.append(3), "cables: is no list of objects"),
        (lambda site: site.interfaces[0].update(speed=-1), "speed is -1"),
        (lambda site: site.interfaces[0].update(device=None), "interface 100 has no device"),
        (
            lambda site: site.cables[0]["a_terminations"][0].update(object_id={}, object=None),
            "interface {} has no device",
        ),
        (lambda site: site.interfaces[0].update(name=""), "is no name"),
        (lambda site: site.cables.append(site.cable("x1", "p", "leaf1", "p")), "whether 'x1' is a host or a switch"),
        (lambda site: site.cables.clear(), "no cable between interfaces is connected"),
        (lambda site: site.cables.append(site.cable(*WIRES[0])), "gpu1 p1 has two cables"),
        (lambda site: site.cables.__delitem__(slice(3, 5)), "disconnected"),
        (lambda site: [row["role"].update(slug="leaf") for row in site.devices], "no device is known as a host"),
    ],
)
def test_cables_that_cannot_be_used(change, words):
    with pytest.raises(BadInput, match=words):
        read(changed(change))


@pytest.mark.parametrize("text", ["", "[", "3", '{"cables": 3}', "[]", '[{"a_terminations": []}]', "[null]"])
def test_what_is_no_list_of_cables(text):
    with pytest.raises(BadInput):
        read(text)


@given(st.integers(0, 6000), st.integers(0, 40), st.text(alphabet='[]{}:", 01nul', max_size=20))
def test_changed_files_give_a_fabric_or_an_error(at, length, inserted):
    text = json.dumps(Site().table())
    with contextlib.suppress(WeftError):
        assert read(text[:at] + inserted + text[at + length :]).accelerators >= 1
