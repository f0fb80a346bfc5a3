"""Fabrics from LLDP neighbours."""

import json

import pytest

from weft.errors import BadInput
from weft.fabric.wiring import fabric_of
from weft.interop import fabric_files
from weft.interop.fabric_files import read_fabric
from weft.interop.lldp import read_wiring


def read(text, hosts=(), **options):
    return fabric_of(read_wiring(text, hosts=hosts), where="lldp", **options)


MAU = "400GbaseCR4 - 400GBASE-R PCS/PMA over 4 lane shielded copper balanced cable"


def neighbour(port, other, other_port, *, host=False, mau=MAU, mac=None):
    """One interface as lldpcli prints it in json0; a host's port has a MAC as its id."""
    identity = {"type": "mac", "value": mac} if mac else {"type": "ifname", "value": other_port}
    told = {"supported": False, "enabled": False, "current": [{"value": mau}]}
    kinds = [("Bridge", not host), ("Router", not host), ("Wlan", False), ("Station", host)]
    return {
        "name": port,
        "via": "LLDP",
        "rid": "1",
        "age": "0 day, 00:00:07",
        "chassis": [
            {
                "id": [{"type": "mac", "value": "00:00:00:00:00:02"}],
                "name": [{"value": other}],
                "descr": [{"value": "SONiC"}],
                "capability": [{"type": kind, "enabled": on} for kind, on in kinds],
            }
        ],
        "port": [
            {
                "id": [identity],
                "descr": [{"value": other_port}],
                "ttl": [{"value": "120"}],
                **({"auto-negotiation": [told]} if mau else {}),
            }
        ],
    }


def site(hosts=True, **options):
    """Two leaves with a GPU host on both and one on the second, and a spine with two cables to each."""
    spine = [
        neighbour(f"swp{2 * i + k}", f"leaf{i}.dc.example", f"swp{10 + k}", **options) for i in (0, 1) for k in (0, 1)
    ]
    found = {"spine.json": spine}
    for i in (0, 1):
        rows = [neighbour(f"swp{10 + k}", "spine", f"swp{2 * i + k}", **options) for k in (0, 1)]
        rows.append(neighbour("swp1", "gpu10", f"eth{i}", host=True, mac=f"02:00:00:00:00:0{i}", **options))
        found[f"leaf{i}"] = rows
    found["leaf1"].append(neighbour("swp2", "gpu9", "eth0", host=True, mac="02:00:00:00:00:09", **options))
    if hosts:
        found["gpu10"] = [neighbour(f"eth{i}", f"leaf{i}", "swp1", **options) for i in (0, 1)]
    return {node: {"lldp": [{"interface": rows}]} for node, rows in found.items()}


@pytest.mark.parametrize("hosts", [True, False])
def test_a_site(hosts):
    fabric = read(json.dumps(site(hosts)))
    assert fabric.names == ("gpu9", "gpu10/eth0", "gpu10/eth1", "leaf0", "leaf1", "spine")
    assert [fabric.roles[role] for role in fabric.role[3:]] == ["leaf", "leaf", "spine"]
    assert fabric.domain.tolist() == [0, 1, 1]
    assert sorted(fabric.cables.tolist()) == [1] * 14
    assert set((fabric.capacity_Bps / fabric.cables).tolist()) == {50e9}
    assert read(json.dumps(site(hosts)), scale_up_Bps=450e9).roles[-1] in ("scale-up", "spine")


@pytest.mark.parametrize(
    ("mau", "Gbps"),
    [
        ("1000BaseTFD - Four-pair Category 5 UTP, full duplex mode", 1),
        ("2p5GbaseT - Twisted-pair copper", 2.5),
        ("10GigBaseCX4 - X copper over 8 pair 100-Ohm balanced cable", 10),
        ("100GbaseKR4 - 100GBASE-R PCS/PMA over an electrical backplane", 100),
    ],
)
def test_speeds(mau, Gbps):
    fabric = read(json.dumps(site(mau=mau)), capacity_Bps=1.0)
    assert set((fabric.capacity_Bps / fabric.cables).tolist()) == {Gbps * 1e9 / 8}


def test_the_slower_end_counts():
    table = site()
    table["spine.json"]["lldp"][0]["interface"][0] = neighbour("swp0", "leaf0", "swp10", mau="100Gbase")
    fabric = read(json.dumps(table))
    assert sorted(set(fabric.capacity_Bps.tolist())) == [12.5e9, 50e9]


@pytest.mark.parametrize("mau", [None, "unknown"])
def test_speeds_that_nothing_tells(mau):
    text = json.dumps(site(mau=mau))
    with pytest.raises(BadInput, match=r"nothing tells the speed of .* -- give capacity_Bps"):
        read(text)
    assert set((read(text, capacity_Bps=5e9).capacity_Bps).tolist()) == {5e9}


def test_hosts_by_name():
    table = site(False)
    for row in table["leaf0"]["lldp"][0]["interface"] + table["leaf1"]["lldp"][0]["interface"]:
        row["chassis"][0]["capability"] = []
    assert read(json.dumps(table)).accelerators == 3
    table = json.loads(json.dumps(table).replace("gpu", "x-gpu-switch"))
    with pytest.raises(BadInput, match=r"whether 'x-gpu-switch10' is a host or a switch"):
        read(json.dumps(table))
    table = json.loads(json.dumps(table).replace("x-gpu-switch", "gpu"))
    assert read(json.dumps(table), hosts=["gpu*"]).accelerators == 3
    with pytest.raises(BadInput, match="no device is known as a host"):
        read(json.dumps(table), hosts=["node*"])


def test_equal_descriptions_of_ports_are_told_apart():
    table = site(False)
    for node in ("leaf0", "leaf1"):
        table[node]["lldp"][0]["interface"][2]["port"][0]["descr"] = [{"value": "uplink"}]
    assert read(json.dumps(table)).names[1:3] == ("gpu10/02:00:00:00:00:00", "gpu10/02:00:00:00:00:01")


def json_form(output):
    """What lldpcli prints with -f json of what it prints with -f json0."""

    def plain(rows):
        return (
            rows[0]["value"] if len(rows) == 1 and set(rows[0]) == {"value"} else rows[0] if len(rows) == 1 else rows
        )

    interfaces = []
    for row in output["lldp"][0]["interface"]:
        chassis, port = ({key: plain(value) for key, value in row[part][0].items()} for part in ("chassis", "port"))
        if "auto-negotiation" in port:
            port["auto-negotiation"]["current"] = plain(port["auto-negotiation"]["current"])
        interfaces.append({row["name"]: {"via": "LLDP", "chassis": {chassis.pop("name"): chassis}, "port": port}})
    return {"lldp": {"interface": interfaces[0] if len(interfaces) == 1 else interfaces}}


def test_the_plain_form_of_json(tmp_path):
    found = read(json.dumps({node: json_form(output) for node, output in site().items()}))
    assert found.names == read(json.dumps(site())).names
    assert sorted(found.capacity_Bps.tolist()) == sorted(read(json.dumps(site())).capacity_Bps.tolist())
    (tmp_path / "leaf1.json").write_text(json.dumps(json_form(site()["leaf1"])))
    assert read_fabric(tmp_path / "leaf1.json").names == ("gpu9", "gpu10", "leaf1", "spine")


def test_a_folder_of_what_every_node_hears(tmp_path):
    with pytest.raises(BadInput, match="holds 0 files"):
        read_fabric(tmp_path)
    for node, output in site().items():
        (tmp_path / f"{node.removesuffix('.json')}.lldp.json").write_text(json.dumps(json_form(output)))
    (tmp_path / ".hidden").write_text("x")
    assert read_fabric(tmp_path).names == read(json.dumps(site())).names
    (tmp_path / "plan.csv").write_text(
        "source_device,source_port,destination_device,destination_port\nleaf1,swp9,gpu9,eth9\nleaf1,swp1,gpu10,eth1\n"
    )
    wiring, _ = fabric_files.read_wiring(fabric_files.FabricFileHints(where=str(tmp_path)))
    assert len(wiring.cables) == 8
    assert wiring.hosts == {"gpu9", "gpu10"}
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(BadInput, match=r"notes.txt: is in no format"):
        read_fabric(tmp_path)


def test_a_neighbour_that_does_not_hear():
    table = site()
    del table["gpu10"]["lldp"][0]["interface"][0]
    wiring = read_wiring(json.dumps(table))
    assert [cable.ends for cable in wiring.cables if cable.one_way] == [(("leaf0", "swp1"), ("gpu10", "eth0"))]
    assert not any(cable.one_way for cable in read_wiring(json.dumps(site())).cables)


def changed(change):
    table = site()
    change(table, table["leaf0"]["lldp"][0]["interface"])
    return json.dumps(table)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table, rows: table.clear(), "not an object of nodes"),
        (lambda table, rows: table.update(leaf0={"lldp": 5}), "leaf0: is not an output of lldpcli"),
        (lambda table, rows: rows[0].update(chassis=5), "is not an output of lldpcli in json0"),
        (lambda table, rows: rows[0].update(chassis=[]), r"interface\[0\]: tells no chassis"),
        (lambda table, rows: rows[0].pop("name"), "is not a name"),
        (lambda table, rows: rows.append(neighbour("swp1", "spine", "swp99")), "leaf0 swp1 has two cables"),
        (
            lambda table, rows: table.update(
                x={"lldp": []}, y={"lldp": [{"interface": [neighbour("a", "z", "b", host=True)]}]}
            ),
            "whether 'y' is a host",
        ),
    ],
)
def test_output_that_cannot_be_used(change, words):
    with pytest.raises(BadInput, match=words):
        read(changed(change))
