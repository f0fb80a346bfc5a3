"""Cabling plans as CSV, in the forms that vendors document."""

import pytest

from weft.errors import BadInput
from weft.fabric.dimension import Dimension
from weft.interop import point_to_point
from weft.interop.cabling import read_names, written_speed_Bps
from weft.interop.fabric_files import FabricFileHints, read_fabric, read_wiring

SERVER = Dimension(kind="switch", size=4, bandwidth_Bps=450e9)


def ends(wiring):
    return [cable.ends for cable in wiring.cables]


# Headings: UFM's network definition (Mellanox/ufm_sdk_3.0, plugins/UFM_NDT_Plugin/tests), SONiC's test beds
# (sonic-net/sonic-mgmt, ansible/files/*_links.csv), NetBox's import of cables, and the plain form.
PLANS = {
    "ufm": "#StartDevice,StartPort,EndDevice,EndPort,LinkType\ngpu7,gpu7 ibp11s0f0,leaf1,Port 1,Data\n",
    "ufm racks": ",rack #,U height,#Fields:StartDevice,StartPort,StartDeviceLocation,EndDevice,EndPort,"
    "EndDeviceLocation,U height,LinkType,Speed,,Cable Length,,\n"
    "r1,R1,U3,gpu7 ibp11s0f0,ibp11s0f0,U3,leaf1,Port 1,R2,U41,Data,400000,400G NDR cable,10,,\n",
    "sonic": "StartDevice,StartPort,EndDevice,EndPort,BandWidth,VlanID,VlanMode\n"
    "gpu7,ibp11s0f0,leaf1,1,400000,1681,Access\n",
    "netbox": "side_a_device,side_a_type,side_a_name,side_b_device,side_b_type,side_b_name\n"
    "gpu7,dcim.interface,ibp11s0f0,leaf1,dcim.interface,1\n",
    "plain": "source_device;source_port;destination_device;destination_port;speed\ngpu7;ibp11s0f0;leaf1;1;400G\n",
    "titles": "A Device\tA Port\tZ Device\tZ Port\tSpeed (Gbps)\ngpu7\tibp11s0f0\tleaf1\t1\t400\n",
    "from and to": "From,From Port,To,To Port,Rate\ngpu7,ibp11s0f0,leaf1,1,400 Gb/s\n",
    "neighbours": "hostname,ifname,peerHostname,peerIfname\ngpu7,ibp11s0f0,leaf1,1\nleaf1,1,gpu7,ibp11s0f0\n",
    "joined": "source,destination\ngpu7:ibp11s0f0,leaf1:1\n",
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan(name, tmp_path):
    path = tmp_path / "plan.csv"
    path.write_text(PLANS[name])
    wiring, fabric = read_wiring(FabricFileHints(where=str(path)))
    assert fabric is None
    assert ends(wiring) == [(("gpu7", "ibp11s0f0"), ("leaf1", "1"))]
    told = "netbox" not in name and name not in ("ufm", "neighbours", "joined")
    assert wiring.cables[0].capacity_Bps == (50e9 if told else None)
    assert (wiring.hosts, wiring.unknown) == ({"gpu7"}, "")
    assert read_fabric(path, capacity_Bps=25e9).names == ("gpu7", "leaf1")


def test_ports_that_are_down_or_empty():
    head = "StartDevice,StartPort,EndDevice,EndPort,State,Domain\n"
    text = head + "gpu7,1,leaf1,1,Active,In-Scope\nleaf1,2,,,Disabled,Disconnected\ngpu8,1,leaf1,3,Disabled,In-Scope\n"
    assert [cable.up for cable in point_to_point.read_wiring(text).cables] == [True, False]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["gpu1,1,leaf1,1,400G", "gpu2,1,leaf1,1,400G"], r"leaf1 1 has two cables \(row 2 and row 3\)"),
        (["gpu1,1,leaf1,1,fast"], r"row 2: 'fast' is not a speed"),
        (["gpu1,1,leaf1,1,0"], "'0' is not a speed"),
        (["gpu1,1,gpu1,1,400G"], "holds no cable"),
        (["g\x1b1,1,leaf1,1,400G"], "is not a name"),
        ([], "holds no cable"),
        (["oob-mgmt-switch,swp1,leaf1,eth0,1G"], "holds no cable"),
    ],
)
def test_plans_that_cannot_be_used(rows, words):
    with pytest.raises(BadInput, match=words):
        point_to_point.read_wiring("\n".join(["a_device,a_port,b_device,b_port,speed", *rows]))
    with pytest.raises(BadInput, match="no heading of cables"):
        point_to_point.read_wiring("\n".join(["rack,height,price,weight", *rows]))


@pytest.mark.parametrize(
    ("text", "Gbps"),
    [
        *(("400G", 400), ("400 Gb/s", 400), ("25GbE", 25), ("100Gbps", 100), ("40000", 40), ("800", 800)),
        *(("1.6T", 1600), ("NDR", 400), ("4xHDR", 200), ("2x NDR", 200), ("NDR400", 400), ("auto", None)),
        ("10xHDR", 500),
        ("100gbase-x-qsfp28", 100),
    ],
)
def test_speeds_as_plans_write_them(text, Gbps):
    assert written_speed_Bps(text, "row 1") == (None if Gbps is None else Gbps * 1e9 / 8)
    with pytest.raises(BadInput, match="'0xHDR' is not a speed"):
        written_speed_Bps("0xHDR", "row 1")


def test_names_of_devices():
    assert read_names("a b # c\n\n# d\nx/eth0, y/nic0\n") == {"a": "b", "x/eth0": "y/nic0"}
    for text, words in (("a", "line 1: is not two names"), ("a b\na c", "line 2: names a device twice")):
        with pytest.raises(BadInput, match=words):
            read_names(text)
