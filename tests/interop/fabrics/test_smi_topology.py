"""A server from ``nvidia-smi topo -m``.

Forms: the outputs in NVIDIA/nccl issues 1453 and 933 (NVSwitch with NICs), NVIDIA/nccl-tests issues 320 (pairs, PCI)
and 78, shortened.
"""

import pytest

from weft.errors import BadInput, InDoubt
from weft.interop.fabrics.formats import read_fabric
from weft.interop.fabrics.smi_topology import read


def matrix(*rows, legend=""):
    names = [row.split()[0] for row in rows]
    head = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    return "\n".join([head, *("\t".join(row.split()) + "\t0-79\t0\t\tN/A" for row in rows), "", "Legend:", legend, ""])


SWITCHED = matrix(
    "GPU0 X NV18 NV18 NV18 PIX NODE SYS",
    "GPU1 NV18 X NV18 NV18 NODE PIX SYS",
    "GPU2 NV18 NV18 X NV18 SYS SYS PXB",
    "GPU3 NV18 NV18 NV18 X SYS SYS PXB",
    "NIC0 PIX NODE SYS SYS X NODE SYS",
    "NIC1 NODE PIX SYS SYS NODE X SYS",
    "NIC2 SYS SYS PXB PXB SYS SYS X",
    legend="  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_5",
)
DIRECT = matrix("GPU0 X NV4 NV4", "GPU1 NV4 X NV4", "GPU2 NV4 NV4 X")
PCI = matrix(
    "GPU0 X NV4 NODE SYS NODE",
    "GPU1 NV4 X NODE SYS NODE",
    "GPU2 NODE NODE X SYS PHB",
    "GPU3 SYS SYS SYS X SYS",
    "mlx5_0 NODE NODE PHB SYS X",
)


def links(fabric):
    pairs = zip(fabric.source.tolist(), fabric.target.tolist(), fabric.capacity_Bps.tolist(), strict=True)
    return {(fabric.names[a], fabric.names[b]): speed for a, b, speed in pairs if a < b}


def doubtful(text, **options):
    with pytest.warns(InDoubt, match="tells no speeds"):
        return read(text, **options)


def test_a_server_with_a_switch(tmp_path):
    fabric = doubtful(SWITCHED)
    assert fabric.names == ("GPU0", "GPU1", "GPU2", "GPU3", "nvswitch", "mlx5_0", "mlx5_1", "mlx5_5")
    found = links(fabric)
    assert [found[f"GPU{i}", "nvswitch"] for i in range(4)] == [450e9] * 4
    assert [pair for pair in found if pair[1].startswith("mlx5")] == [
        ("GPU0", "mlx5_0"),
        ("GPU1", "mlx5_1"),
        ("GPU2", "mlx5_5"),
    ]
    path = tmp_path / "topo.txt"
    path.write_text(
        "$ nvidia-smi topo -m\n" + SWITCHED.replace("\tGPU0", "\t\x1b[4mGPU0", 1).replace("NUMA ID", "NUMA ID\x1b[0m")
    )
    with pytest.warns(InDoubt):
        assert read_fabric(path).names == fabric.names


def test_pairs_and_pci():
    assert links(doubtful(DIRECT, capacity_Bps=50e9)) == dict.fromkeys(
        [("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU1", "GPU2")], 200e9
    )
    assert links(doubtful(PCI)) == {
        ("GPU0", "GPU1"): 100e9,
        ("GPU0", "cpu0"): 24e9,
        ("GPU1", "cpu0"): 24e9,
        ("GPU2", "cpu0"): 24e9,
        ("GPU3", "cpu1"): 24e9,
        ("cpu0", "cpu1"): 16e9,
        ("GPU2", "mlx5_0"): 24e9,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "no heading with GPU0"),
        (SWITCHED.replace("NV18", "WIFI", 1), "line 2: GPU0 has not 7 known entries"),
        (SWITCHED.replace("GPU3\tNV18", "GPU9\tNV18"), "has no row for GPU3"),
        (SWITCHED.replace("\tGPU1\t", "\tGPU0\t", 1), "names a device twice"),
    ],
)
def test_texts_that_cannot_be_used(text, words):
    with pytest.raises(BadInput, match=words):
        read(text)
