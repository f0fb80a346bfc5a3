"""InfiniBand fabrics from the text of ibnetdiscover."""

import warnings

import pytest

from weft.errors import BadInput, InDoubt
from weft.interop.cabling import read_host_map
from weft.interop.fabric_files import read_fabric
from weft.interop.ibnetdiscover import infiniband_end, read


def guid(kind, number):
    return f"{kind}-{number:016x}"


def discovered(hosts=2, leaves=2, spines=2, speed="4xNDR"):
    """``hosts`` with an adapter per leaf; every leaf joined with every spine by two cables."""
    lines = ["#", "# Topology file: generated on Mon Dec 18 12:34:08 2023", "#"]
    for leaf in range(leaves):
        lines += ["", "vendid=0x2c9", "devid=0xd2f2", f"switchguid=0x{100 + leaf:x}({100 + leaf:x})"]
        lines.append(f'Switch\t64 "{guid("S", 100 + leaf)}"\t\t# "leaf{leaf}" base port 0 lid {leaf} lmc 0')
        for host in range(hosts):
            other = f'"{guid("H", 1000 + 10 * host + leaf)}"[1](3e8)'
            lines.append(f'[{host + 1}]\t{other} \t\t# "node{host} mlx5_{leaf}" lid 9 {speed}')
        for spine in range(spines):
            for k in (0, 1):
                port = f"[{33 + 2 * spine + k}]"
                other = f'"{guid("S", 200 + spine)}"[{1 + 2 * leaf + k}]'
                lines.append(f'{port}\t{other}\t\t# "spine{spine}" lid 5 {speed}')
    for spine in range(spines):
        lines += ["", f'Switch\t64 "{guid("S", 200 + spine)}"\t\t# "spine{spine}" base port 0 lid 7 lmc 0']
        for leaf in range(leaves):
            for k in (0, 1):
                other = f'"{guid("S", 100 + leaf)}"[{33 + 2 * spine + k}]'
                lines.append(f'[{1 + 2 * leaf + k}]\t{other}\t\t# "leaf{leaf}" lid 5 {speed}')
    for host in range(hosts):
        for leaf in range(leaves):
            number = 1000 + 10 * host + leaf
            lines += ["", f"caguid=0x{number:x}"]
            lines.append(f'Ca\t1 "{guid("H", number)}"\t\t# "node{host} mlx5_{leaf}"')
            other = f'"{guid("S", 100 + leaf)}"[{host + 1}]'
            lines.append(f'[1](3e8) \t{other}\t\t# lid 9 lmc 0 "leaf{leaf}" lid 4 {speed}')
    return "\n".join(lines) + "\n"


def test_two_tiers_of_switches():
    fabric = read(discovered())
    assert fabric.names[:4] == ("node0 mlx5_0", "node0 mlx5_1", "node1 mlx5_0", "node1 mlx5_1")
    assert fabric.domain.tolist() == [0, 0, 1, 1]
    assert fabric.rail.tolist() == [0, 1, 0, 1]
    assert len(fabric.nodes_of("leaf")) == len(fabric.nodes_of("spine")) == 2
    assert fabric.links == 2 * (4 + 8)
    assert set(fabric.capacity_Bps.tolist()) == {50e9}
    assert sorted(fabric.tier.tolist()) == [1] * 8 + [2] * 16


@pytest.mark.parametrize(
    ("speed", "Gbps"), [("4xSDR", 8), ("4xQDR", 32), ("4xEDR", 100), ("4xHDR", 200), ("2xHDR", 100)]
)
def test_speeds(speed, Gbps):
    assert set(read(discovered(speed=speed)).capacity_Bps.tolist()) == {Gbps * 1e9 / 8}


def test_hosts_joined_inside():
    fabric = read(discovered(hosts=3), scale_up_Bps=450e9)
    assert len(fabric.nodes_of("scale-up")) == 3
    assert sorted(fabric.tier.tolist()).count(0) == 12


def test_the_example_of_the_manual_pages_form():
    text = """
Non-Chassis Nodes
vendid=0x8f1
Switch  24 "S-005442ba00003080"         # "ISR9024" base port 0 lid 6 lmc 0
[22]    "H-0008f10403961354"[1](8f10403961355)         # "MT23108" lid 4 4xSDR
[10]    "H-0008f10403960558"[2](8f1040396055a)         # "MT23108" lid 14 4xSDR

Ca      2 "H-0008f10403961354"          # "MT23108"
[1](8f10403961355)     "S-005442ba00003080"[22]         # lid 4 lmc 1 "ISR9024" lid 6 4xSDR

Ca      2 "H-0008f10403960558"          # "MT23108"
[2](8f1040396055a)      "S-005442ba00003080"[10]                # lid 14 lmc 1 "ISR9024" lid 6 4xSDR
"""
    with pytest.warns(InDoubt, match="2 of 2 adapters name no host, as 'MT23108': each of their 2 cards"):
        fabric = read(text)
    assert fabric.domain.tolist() == [0, 1]
    assert fabric.names == ("MT23108 H-0008f10403960558", "MT23108 H-0008f10403961354", "ISR9024")
    assert set(fabric.capacity_Bps.tolist()) == {1e9}


def unnamed(cards=3, ports=2):
    """Cards of some adapters each at one switch, none of which has been given its host's name."""
    numbers = [(card, 0x5000 + 16 * card + port) for card in range(cards) for port in range(ports)]
    lines = [f'Switch\t64 "{guid("S", 1)}"\t\t# "Quantum Mellanox Technologies" base port 0 lid 1 lmc 0']
    lines += [
        f'[{i}]\t"{guid("H", n)}"[1](1)\t\t# "MT4129 ConnectX7" lid 9 4xNDR' for i, (_, n) in enumerate(numbers, 1)
    ]
    for i, (card, number) in enumerate(numbers, 1):
        lines += ["", f"sysimgguid=0x{0x5000 + 16 * card:x}", f"caguid=0x{number:x}"]
        lines += [f'Ca\t1 "{guid("H", number)}"\t\t# "MT4129 ConnectX7   Mellanox Technologies"']
        lines += [f'[1](1)\t"{guid("S", 1)}"[{i}]\t\t# lid 9 lmc 0 "Quantum" lid 1 4xNDR']
    return "\n".join(lines) + "\n"


def test_cards_without_a_hosts_name_are_hosts_of_their_own():
    with pytest.warns(InDoubt, match=r"6 of 6 adapters name no host.*each of their 3 cards.*--host-map FILE"):
        fabric = read(unnamed())
    assert fabric.domain.tolist() == [0, 0, 1, 1, 2, 2]
    without_images = "\n".join(line for line in unnamed().splitlines() if not line.startswith("sysimg"))
    with pytest.warns(InDoubt, match="6 cards"):
        assert read(without_images).domain.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["localhost mlx5_0", "(none) HCA-1", "mlx5_2", "HCA-1", "ConnectX-6 VPI", ""])
def test_names_that_no_host_has(name):
    with pytest.warns(InDoubt, match="1 of 4 adapters"):
        assert read(discovered().replace("node1 mlx5_1", name)).domain.max() == 2


def test_a_host_map_says_which_host_an_adapter_is_in():
    rows = [f'0x{0x5000 + 16 * card + port:016x} "gpu{card % 2} mlx5_{port}"' for card in range(3) for port in (0, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fabric = read(unnamed(), host_map=read_host_map("# rack 7\n\n" + "\n".join(rows)))
    assert fabric.domain.tolist() == [0, 0, 1, 1, 0, 0]
    assert fabric.rail.tolist() == [0, 1, 0, 1, 2, 3]
    with pytest.raises(BadInput, match="none of the 1 GUIDs of the host map"):
        read(unnamed(), host_map={7: "gpu"})
    for text, words in (("0x7", "line 1.*no GUID and name"), ('0x7 "a"\n0x07 b', "line 2.*given twice")):
        with pytest.raises(BadInput, match=words):
            read_host_map(text)


def test_adapters_of_no_accelerator_are_left_out(tmp_path):
    fabric = read(discovered(), exclude=["node1*"])
    assert fabric.names[:2] == ("node0 mlx5_0", "node0 mlx5_1")
    assert fabric.accelerators == 2
    with pytest.raises(BadInput, match="no adapter left"):
        read(discovered(), exclude=["*"])
    (tmp_path / "net.txt").write_text(discovered())
    assert read_fabric(tmp_path / "net.txt", exclude=["*mlx5_1"]).accelerators == 2
    (tmp_path / "net.toml").write_text('schema = "weft.fabric/1"\n')
    with pytest.raises(BadInput, match="drop --host-map and --exclude"):
        read_fabric(tmp_path / "net.toml", exclude=["*mlx5_1"])


def test_a_dump_without_links():
    alone = f'Ca\t1 "{guid("H", 7)}"\t\t# "node0 mlx5_0"\n'
    with pytest.raises(BadInput, match=r"has no link.*port is active"):
        read(alone)
    with pytest.raises(BadInput, match="has no adapter"):
        read(alone.replace("Ca\t1", "Switch\t8").replace("H-", "S-"))


def test_aggregation_nodes_are_left_out():
    text = discovered() + (
        f'Ca\t1 "{guid("H", 77)}"\t\t# "Mellanox Technologies Aggregation Node"\n'
        f'[1](4d) \t"{guid("S", 100)}"[64]\t\t# lid 9 lmc 0 "leaf0" lid 4 4xNDR\n'
    )
    assert read(text).accelerators == 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("4xNDR", "4xABC", "line 9.*width and speed"),
        ("4xNDR", "0xNDR", "no lanes"),
        ('Ca\t1 "H-00000000000003e8"', '"', "port 1 is given twice"),
        ('[1]\t"H-', '[x]\t"H-', "is not a port"),
        ('[2]\t"H-', '[1]\t"H-', "port 1 is given twice"),
        ('"S-0000000000000065"\t\t# "leaf1"', '"S-0000000000000064"\t\t# "leaf1"', "given twice"),
    ],
)
def test_output_that_cannot_be_used(old, new, words):
    text = discovered()
    assert old in text
    with pytest.raises(BadInput, match=words):
        read(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("description", "end"),
    [
        ("MF0;leaf1:MQM8700/U1", ("leaf1", "7")),
        ("node7 mlx5_2", ("node7", "mlx5_2/7")),
        ("node7 HCA-1", ("node7", "HCA-1/7")),
        ("Infiniscale-IV Mellanox Technologies", ("Infiniscale-IV Mellanox Technologies", "7")),
        ("MF0;core1:MCS8500/L02/U1", ("core1", "L02/U1/7")),
        ("storage", ("storage", "7")),
    ],
)
def test_ends_by_infiniband_descriptions(description, end):
    assert infiniband_end(description, "7") == end
