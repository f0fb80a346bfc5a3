"""InfiniBand links as ``iblinkinfo`` prints them, and topology files of ibdiagnet.

Forms: the manual page of rdma-core's iblinkinfo and outputs in public threads; NVIDIA's UFM Cable Validation Tool,
"Topo File"; names are others.
"""

import pytest

from weft.errors import BadInput
from weft.interop.fabrics import iblinkinfo
from weft.interop.fabrics.formats import Asked, read_fabric, read_wiring

PRINTED = """CA: gpu01 mlx5_0:
      0x0c42a10300aa0001      4    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>       2    1[  ] "MF0;leaf01:MQM8700/U1" ( )
CA: gpu02 mlx5_0:
      0x0c42a10300aa0002      5    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>       2    2[  ] "MF0;leaf01:MQM8700/U1" ( )
Switch: 0x0c42a10300bb0001 MF0;leaf01:MQM8700/U1:
           2    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>       4    1[  ] "gpu01 mlx5_0" ( )
           2    2[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>       5    1[  ] "gpu02 mlx5_0" ( Could be 53.125 Gbps)
           2    3[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>       9    7[  ] "Quantum Mellanox Technologies" ( )
           2    4[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      10    7[  ] "Quantum Mellanox Technologies" ( )
           2    5[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"""  # noqa: E501
LINES = """0x0c42a10300aa0001 "          gpu01 mlx5_0"      4    1[  ] ==( 4X       106.25 Gbps Active/  LinkUp)==>  0x0c42a10300bb0001      2    1[  ] "MF0;leaf01:MQM9700/U1" ( )
0x0c42a10300bb0001 "MF0;leaf01:MQM9700/U1"      2    1[  ] ==( 4X       106.25 Gbps Active/  LinkUp)==>  0x0c42a10300aa0001      4    1[  ] "gpu01 mlx5_0" ( )
0x0c42a10300bb0001 "MF0;leaf01:MQM9700/U1"      2   18[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"""  # noqa: E501
TOPO = """# made by hand
MQM8700 leaf01
   P2 -4x-50G-> HCA_mlx5_3 gpu01 mlx5_0/P1
   P40 -4x-50G-> MQM9700 spine01 P62

MQM9700 spine01
   P62 -4x-50G-> MQM8700 leaf01 P40
"""


def test_ports_node_by_node(tmp_path):
    path = tmp_path / "links.txt"
    path.write_text(PRINTED)
    wiring, _ = read_wiring(Asked(where=str(path)))
    assert [cable.ends for cable in wiring.cables] == [
        (("gpu01", "mlx5_0"), ("leaf01", "1")),
        (("gpu02", "mlx5_0"), ("leaf01", "2")),
        (("leaf01", "3"), ("Quantum Mellanox Technologies (lid 9)", "7")),
        (("leaf01", "4"), ("Quantum Mellanox Technologies (lid 10)", "7")),
    ]
    assert [cable.capacity_Bps for cable in wiring.cables] == [25e9, 12.5e9, 25e9, 25e9]
    assert [cable.other_Bps for cable in wiring.cables] == [None, 25e9, None, None]
    assert wiring.hosts == {"gpu01", "gpu02"}
    assert read_fabric(path).accelerators == 2


def test_rows_without_headings():
    rows = "[root@n1]# iblinkinfo | grep Up\n" + "\n".join(row for row in PRINTED.splitlines() if "LinkUp" in row)
    wiring = iblinkinfo.read_wiring(rows.replace("53.125 Gbps", "10.0 Gbps (FDR10)"))
    assert wiring.cables[0].ends == (("gpu01", "mlx5_0"), ("leaf01", "1"))
    assert wiring.cables[0].capacity_Bps == 5e9
    lonely = iblinkinfo.read_wiring(rows.splitlines()[3])
    assert lonely.cables[0].ends == (("(lid 2)", "1"), ("gpu01", "mlx5_0"))


def test_ports_line_by_line(tmp_path):
    path = tmp_path / "links.txt"
    path.write_text(LINES)
    fabric = read_fabric(path)
    assert fabric.names == ("gpu01", "leaf01")
    assert fabric.capacity_Bps.tolist() == [50e9, 50e9]


def test_a_topology_file(tmp_path):
    path = tmp_path / "fabric.topo"
    path.write_text(TOPO)
    wiring, _ = read_wiring(Asked(where=str(path)))
    assert [cable.ends for cable in wiring.cables] == [
        (("leaf01", "2"), ("gpu01", "mlx5_0/P1")),
        (("leaf01", "40"), ("spine01", "62")),
    ]
    assert {cable.capacity_Bps for cable in wiring.cables} == {25e9}
    assert wiring.hosts == {"gpu01"}


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (iblinkinfo.read_wiring, PRINTED.replace("25.78125", "77.0"), "line 7: 77.0 Gb/s is no rate of a lane"),
        (iblinkinfo.read_wiring, PRINTED.replace("25.78125", "7.7.7"), "is no speed"),
        (iblinkinfo.read_wiring, "hello", "holds no cable"),
        (iblinkinfo.read_topo_file, TOPO.replace("P62 -4x", "P62 =4x"), "line 7: .* is no link of a device"),
        (iblinkinfo.read_topo_file, "   P2 -4x-50G-> HCA_1 gpu01 mlx5_0/P1", "is no link of a device"),
        (iblinkinfo.read_topo_file, TOPO.replace("leaf01\n", "\n", 1), "line 2: 'MQM8700' is no device"),
    ],
)
def test_texts_that_cannot_be_used(read, text, words):
    with pytest.raises(BadInput, match=words):
        read(text)
