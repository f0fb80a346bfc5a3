"""Cables as built against a design: one change to a random Clos is found, and its remedy restores the design."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.fabric.wiring import PortCable, Wiring, wiring_of, wiring_of_fabric
from weft.fabric.wiring_check import EXCHANGES, Finding, differences

SERVER = Dimension(kind="switch", size=4, bandwidth_Bps=450e9)


def network(kind, accelerators):
    build = {"clos": clos.build, "rails": rail.optimized}[kind]
    fabric = build(accelerators, radix=8, bandwidth_Bps=50e9, scale_up=SERVER)
    return wiring_of_fabric(fabric, ports=True)


def ends(wiring):
    """Pairs of ports, as a bag."""
    return Counter(frozenset(cable.ends) for cable in wiring.cables)


def nodes(wiring):
    """Pairs of switches, and of switches and ports of hosts, as a bag."""
    return Counter(
        frozenset((device, port if device in wiring.hosts else "") for device, port in cable.ends)
        for cable in wiring.cables
    )


def with_cables(wiring, cables):
    return replace(wiring, cables=tuple(cables))


def exchanged(wiring, one, other):
    """The wiring after the plugs of two ports are exchanged."""
    swap = {one: other, other: one}
    cables = []
    for cable in wiring.cables:
        a, b = cable.ends
        if {a, b} != {one, other}:
            a, b = (swap.get(a, a), b) if a in swap else (a, swap.get(b, b))
        cables.append(replace(cable, device=a[0], port=a[1], other=b[0], other_port=b[1]))
    return with_cables(wiring, cables)


def mended(wiring, found):
    for finding in found.findings:
        if finding.kind in EXCHANGES:
            wiring = exchanged(wiring, finding.one, finding.other)
    pairs = ends(wiring)
    for finding in found.findings:
        pair = frozenset((finding.one, finding.other))
        if finding.kind == "missing":
            pairs[pair] += 1
        elif finding.kind == "unexpected":
            pairs[pair] -= 1
    return +pairs


def without_ports(wiring):
    return with_cables(wiring, (replace(cable, port="", other_port="") for cable in wiring.cables))


networks = st.builds(network, st.sampled_from(["clos", "rails"]), st.sampled_from([8, 16, 32]))


@given(networks, st.data(), st.booleans())
def test_exchanged_plugs_are_found_and_exchanged_back(design, data, named):
    ports = [end for cable in design.cables for end in cable.ends]
    one, other = data.draw(st.lists(st.sampled_from(ports), min_size=2, max_size=2, unique=True))
    built = exchanged(design, one, other)
    if named:
        found = differences(built, design)
        if ends(built) == ends(design):
            assert not found.findings
            return
        (finding,) = found.findings
        assert (finding.kind == "other-port") == (nodes(built) == nodes(design))
        assert mended(built, found) == ends(design)
        assert found.right == len(design.cables) - 2
    else:
        built, design = without_ports(built), without_ports(design)
        found = differences(built, design)
        assert len(found.findings) == (nodes(built) != nodes(design))
        assert all(finding.kind in ("miscabled", "wrong-rail") for finding in found.findings)
        assert nodes(with_cables(design, found.as_built)) == nodes(built)


@given(networks, st.data(), st.sampled_from(["missing", "slow", "asymmetric", "down"]), st.booleans())
def test_a_changed_cable_is_found(design, data, kind, named):
    at = data.draw(st.integers(0, len(design.cables) - 1))
    cable, rest = design.cables[at], [c for i, c in enumerate(design.cables) if i != at]
    changed = {
        "missing": [],
        "down": [replace(cable, up=False)],
        "slow": [replace(cable, capacity_Bps=cable.capacity_Bps / 4)],
        "asymmetric": [replace(cable, one_way=True)],
    }[kind]
    built = with_cables(design, rest + changed)
    found = differences(built if named else without_ports(built), design)
    (finding,) = found.findings
    assert finding.kind == ("missing" if kind == "down" else kind)
    if named:
        assert {finding.one, finding.other} == set(cable.ends)
    assert {finding.one[0], finding.other[0]} == {cable.device, cable.other}
    speeds = sum(one.capacity_Bps for one in found.as_built) - sum(one.capacity_Bps for one in rest)
    assert speeds == pytest.approx({"slow": 0.25, "asymmetric": 1}.get(kind, 0) * cable.capacity_Bps)


@given(networks, st.data())
def test_any_wiring_of_the_same_ports_is_mended(design, data):
    ports = [end for cable in design.cables for end in cable.ends]
    mixed = data.draw(st.permutations(ports))[: 2 * data.draw(st.integers(1, len(design.cables)))]
    cables = [
        PortCable(device=a[0], port=a[1], other=b[0], other_port=b[1], capacity_Bps=50e9, place="")
        for a, b in zip(mixed[::2], mixed[1::2], strict=True)
    ]
    built = with_cables(design, cables)
    found = differences(built, design)
    assert mended(built, found) == ends(design)
    assert differences(design, design).findings == ()


def test_where_ports_have_no_names_cables_are_named_by_their_ends():
    finding = Finding(
        kind="miscabled", one=("leaf-0", ""), other=("leaf-2", ""), leads_to=("node2", ""), designed_to=("node0", "")
    )
    assert finding.remedy == "exchange the plugs of leaf-0 (its cable to node2) and leaf-2 (its cable to node0)"


def plan(*rows, hosts=("gpu*",)):
    cables = [
        PortCable(device=a, port=ap, other=b, other_port=bp, capacity_Bps=50e9, place=f"row {i}")
        for i, (a, ap, b, bp) in enumerate(rows)
    ]
    return wiring_of("plan", cables, told={}, hosts=hosts, where="plan")


DESIGN = plan(("gpu1", "eth0", "leaf1", "1"), ("gpu2", "eth0", "leaf1", "2"), ("leaf1", "9", "spine1", "1"))


def test_a_plug_in_an_empty_port_and_a_cable_that_nobody_designed():
    built = plan(("gpu1", "eth0", "leaf1", "7"), ("gpu2", "eth0", "leaf1", "2"), ("leaf1", "8", "gpu2", "eth8"))
    found = differences(built, DESIGN)
    assert [(one.kind, one.remedy) for one in found.findings] == [
        ("other-port", "move the plug of leaf1 7 to leaf1 1"),
        ("missing", "connect leaf1 9 - spine1 1"),
        ("unexpected", "remove gpu2 eth8 - leaf1 8"),
    ]
    built = plan(("gpu1", "eth0", "nas1", "7"), ("gpu2", "eth0", "leaf1", "2"), ("leaf1", "9", "spine1", "1"))
    (finding,) = differences(built, DESIGN).findings
    assert (finding.kind, finding.remedy) == ("miscabled", "move the plug of nas1 7 to leaf1 1")
    assert differences(built, DESIGN).only_built == ("nas1",)


def test_hosts_that_only_the_cables_as_built_tell():
    design = plan(*((c.device, c.port, c.other, c.other_port) for c in DESIGN.cables), hosts=("nobody",))
    rows = [("gpu1", "eth1", "leaf1", "1"), ("gpu2", "eth0", "leaf1", "2"), ("leaf1", "9", "spine1", "1")]
    (finding,) = differences(plan(*rows[:2], ("gpu1", "eth0", "spine1", "7"), rows[2]), design).findings[:1]
    assert (finding.kind, finding.remedy) == ("miscabled", "exchange the plugs of gpu1 eth0 and gpu1 eth1")


def test_names_that_differ():
    rows = [(c.device, c.port, c.other, c.other_port) for c in DESIGN.cables]
    domain = plan(*((f"{a.upper()}.dc1", p, f"{b.upper()}.dc1", q) for a, p, b, q in rows), hosts=("GPU*",))
    assert differences(domain, DESIGN).findings == ()
    racks = plan(*(tuple(f"rack7-{x}" if x[-1] == "1" and len(x) > 2 else x for x in row) for row in rows))
    names = {"rack7-gpu1": "gpu1", "rack7-leaf1": "leaf1", "rack7-spine1": "spine1"}
    assert differences(racks, DESIGN, names=names).findings == ()
    with pytest.raises(BadInput, match=r"no device of the design is there: 'x' of 2 as built, 'gpu1' of 4 .* --names"):
        differences(plan(("x", "1", "y", "1"), hosts=("x",)), DESIGN)


def test_ports_that_have_other_names():
    rows = [(c.device, c.port.replace("eth", "mlx5_"), c.other, c.other_port) for c in DESIGN.cables]
    found = differences(plan(*rows), DESIGN)
    assert found.findings == ()
    assert found.notes == ("ports of hosts match by their order: mlx5_0 is eth0, ...",)
    rows = [(a, f"Ethernet{p}" if a == "leaf1" else p, b, f"Ethernet{q}") for a, p, b, q in rows]
    found = differences(plan(*rows), DESIGN)
    assert found.findings == ()
    assert "2 devices name their ports otherwise than the design: any of their ports counts" in found.notes


def test_speeds_that_nothing_tells():
    silent = with_cables(DESIGN, (replace(cable, capacity_Bps=None) for cable in DESIGN.cables))
    found = differences(silent, DESIGN)
    assert found.findings == ()
    assert found.notes == ("nothing tells the speed of 3 of 3 cables as built",)
    assert {cable.capacity_Bps for cable in found.as_built} == {50e9}
    assert isinstance(DESIGN, Wiring)
