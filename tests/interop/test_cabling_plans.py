"""Cabling plans as CSV, in the forms that vendors document."""

import pytest

from weft.errors import BadInput
from weft.interop import cabling
from weft.interop.cabling import read_names, written_speed_Bps
from weft.interop.fabric_files import FabricFileHints, read_fabric, read_wiring

HEAD = "source_device,source_port,destination_device,destination_port,speed\n"


def test_a_plan(tmp_path):
    """Other columns are left out, a cable counts once though both of its ends list it, and empty ports not at all."""
    path = tmp_path / "plan.csv"
    rows = ["gpu7,ibp11s0f0,leaf1,1,400G,x", "leaf1,1,gpu7,ibp11s0f0,,y", "leaf1,2,,,,"]
    path.write_text("\n".join([HEAD.strip() + ",note", *rows]))
    wiring, fabric = read_wiring(FabricFileHints(where=str(path)))
    assert fabric is None
    assert [cable.ends for cable in wiring.cables] == [(("gpu7", "ibp11s0f0"), ("leaf1", "1"))]
    assert wiring.cables[0].capacity_Bps == 50e9
    assert (wiring.hosts, wiring.unknown) == ({"gpu7"}, "")
    assert read_fabric(path).names == ("gpu7", "leaf1")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["gpu1,1,leaf1,1,400G", "gpu2,1,leaf1,1,400G"], r"leaf1 1 has two cables \(line 2 and line 3\)"),
        (["gpu1,1,leaf1,1,fast"], r"line 2: 'fast' is not a speed"),
        (["gpu1,1,leaf1,1,0"], "'0' is not a speed"),
        (["gpu1,1,gpu1,1,400G"], "holds no cable"),
        (["g\x1b1,1,leaf1,1,400G"], "is not a name"),
        ([], "holds no cable"),
        (["oob-mgmt-switch,swp1,leaf1,eth0,1G"], "holds no cable"),
    ],
)
def test_plans_that_cannot_be_used(rows, words):
    with pytest.raises(BadInput, match=words):
        cabling.read_wiring(HEAD + "\n".join(rows))
    with pytest.raises(BadInput, match="lacks the column source_device"):
        cabling.read_wiring("\n".join(["rack,height,price,weight", *rows]))


@pytest.mark.parametrize(
    ("text", "Gbps"),
    [
        *(("400G", 400), ("400 Gb/s", 400), ("25GbE", 25), ("100Gbps", 100)),
        *(("1.6T", 1600), ("NDR", 400), ("4xHDR", 200), ("2x NDR", 200), ("NDR400", 400), ("auto", None)),
        ("10xHDR", 500),
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
