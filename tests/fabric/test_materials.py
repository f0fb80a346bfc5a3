"""The bill of materials: its counts are those of the coarse bill, its lengths those of the floor."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.cluster import load
from weft.errors import BadInput
from weft.fabric.catalogue import for_cluster, kinds
from weft.fabric.cost import bill, cabling, preset, presets, prices_from_toml
from weft.fabric.floor import default_floor, floor_from_toml, stand
from weft.fabric.materials import bill_of_materials
from weft.fabric.parts import media, model_for, switch_models

PRICES = preset("rail-only-v5")
CLUSTER = load("h100-256")
FIBERS = ("SR", "DR", "FR")


def made(kind="rail-optimized", cluster=CLUSTER, radix=16, floor=None, prices=PRICES, spares=0.0):
    fabric = for_cluster(kind, cluster, radix=radix)
    plan = floor or default_floor(cluster.tiers[0].size)
    return bill_of_materials(fabric, prices, plan, radix=radix, kind=kind, spares=spares)


def counted(found, category):
    return sum(line.count for line in found.lines if line.category == category)


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "hierarchical"])
def test_counts_are_those_of_the_coarse_bill(kind):
    found = made(kind)
    assert counted(found, "switch") == found.counted.switches
    assert counted(found, "cable") == found.counted.cables
    assert counted(found, "NIC") == found.counted.nics
    fibers = sum(line.count for line in found.lines if line.part.startswith(FIBERS))
    assert counted(found, "transceiver") == 2 * fibers


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["fat-tree", "rail-only", "rail-optimized", "multi-plane", "dragonfly"]),
    radix=st.sampled_from([16, 32, 64]),
    name=st.sampled_from(presets()),
)
def test_with_fibers_alone_both_bills_agree(kind, radix, name):
    """The coarse bill is the fine one where every cable is a fiber and nothing is spare."""
    floor = replace(default_floor(8), media=FIBERS)
    prices = replace(preset(name), usd={}, usd_per_cable=3.0, usd_per_nic=7.0)
    found = made(kind, radix=radix, floor=floor, prices=prices)
    assert found.usd == pytest.approx(found.counted.usd)
    assert found.watts == pytest.approx(found.counted.watts)
    assert found.unpriced == (("network rack",) if counted(found, "rack") else ())


def test_lengths_of_a_room_measured_by_hand():
    """Two rows of two racks, an accelerator each, and one leaf a row: racks 0, 1 | leaf between them."""
    cluster = load("h100-32")
    fabric = for_cluster("fat-tree", cluster, radix=24)  # leaves of 12 and 8, spines in the room
    floor = replace(default_floor(8), racks_per_row=2, kw_per_rack=12.0, kw_per_accelerator=1.2)
    leaves, spines = fabric.nodes_of("leaf"), fabric.nodes_of("spine")
    units, kw = np.ones(fabric.nodes, dtype=np.int64), np.full(fabric.nodes, 0.5)
    at = stand(fabric, floor, units, kw)
    assert at.servers == 4
    assert at.rack[:32].tolist() == [i // 8 for i in range(32)]
    rows = at.row[at.rack]
    assert rows[:16].tolist() == [0] * 16
    assert rows[16:32].tolist() == [1 + (rows[spines[0]] == 1)] * 16
    assert at.slot[at.rack[:16]].tolist() == [0] * 8 + [2] * 8  # the network rack stands between
    leaf = int(leaves[0])
    assert at.slot[at.rack[leaf]] == 1
    assert at.length_m(np.array([0]), np.array([leaf])) == pytest.approx(0.6 + 2 * 1.9)
    assert at.length_m(np.array([0]), np.array([8])) == pytest.approx(1.2 + 2 * 1.9)
    assert at.length_m(np.array([0]), np.array([1])) == pytest.approx(1.9)
    assert at.length_m(np.array([0]), np.array([16])) == pytest.approx(2 * 2.1 + 2 * 1.9)  # spines' row between


@settings(max_examples=30, deadline=None)
@given(
    domains=st.integers(1, 40),
    per_row=st.integers(1, 9),
    kw=st.floats(1.3, 60.0),
    where=st.sampled_from(["rack", "row", "room"]),
)
def test_every_node_stands_once(domains, per_row, kw, where):
    cluster = load(f"h100-{8 * domains}")
    fabric = for_cluster("fat-tree", cluster, radix=16)
    floor = replace(default_floor(8), racks_per_row=per_row, kw_per_rack=kw)
    floor = replace(floor, switches=dict.fromkeys([r for r in fabric.roles if r in ("leaf", "spine")], where))
    outside = (fabric.role != fabric.roles.index("scale-up")) & (np.arange(fabric.nodes) >= fabric.accelerators)
    at = stand(fabric, floor, np.ones(fabric.nodes, dtype=np.int64), np.where(outside, 0.5, 0.0))
    assert at.rack.min() >= 0
    places = list(zip(at.row.tolist(), at.slot.tolist(), strict=True))
    assert len(set(places)) == len(places)
    spots = list(zip(at.x_m.tolist(), at.y_m.tolist(), strict=True))
    assert len(set(spots)) == len(spots)
    held = np.bincount(at.rack[: fabric.accelerators], minlength=len(places)) * floor.kw_per_accelerator
    assert held.max() <= kw + 1e-9
    assert at.kw.sum() == pytest.approx(held.sum() + 0.5 * outside.sum())
    if where != "rack":
        assert at.kw.max() <= kw + 1e-9
    a, b, _ = cabling(fabric)
    assert (at.length_m(a, b) == at.length_m(b, a)).all()
    assert (at.length_m(a, b) >= floor.rise_m).all()


def test_rooms_are_square_or_as_told():
    cluster = load("h100-16384")
    fabric = for_cluster("rail-optimized", cluster, radix=64)
    units, kw = np.ones(fabric.nodes, dtype=np.int64), np.full(fabric.nodes, 0.1)
    at = stand(fabric, default_floor(8), units, kw)
    assert 0.5 < np.ptp(at.x_m) / np.ptp(at.y_m) < 2
    one = stand(fabric, replace(default_floor(8), rows=1000), units, kw)
    assert np.ptp(one.y_m) == pytest.approx(one.row.max() * 2.1)
    assert np.ptp(one.x_m) < 8
    a, b, _ = cabling(fabric)
    assert at.length_m(a, b).max() < 0.6 * one.length_m(a, b).max()
    spine = at.rack[fabric.nodes_of("spine")]
    assert abs(at.x_m[spine].mean() / at.x_m.max() - 0.5) < 0.15
    assert abs(at.y_m[spine].mean() / at.y_m.max() - 0.5) < 0.15


def test_the_shortest_medium_that_reaches_is_taken():
    found = made(cluster=load("h100-1024"), radix=64)
    for line in found.lines:
        if line.category == "cable" and not line.part.startswith(FIBERS):
            meters, name = float(line.part.split()[2]), line.part.split()[1]
            assert meters <= {"DAC": 3, "ACC": 5, "AOC": 30}[name]
            if name == "AOC":
                assert meters > 5


def test_spares_are_rounded_up_and_cost():
    found = made(spares=0.02)
    none = made()
    assert [line.spares for line in found.lines if line.category != "rack"] == [
        -(-2 * line.count // 100) for line in none.lines if line.category != "rack"
    ]
    assert found.usd == pytest.approx(none.usd + found.spares_usd)
    assert found.watts == none.watts


def test_prices_by_name_and_parts_without_one():
    text = 'like = "rail-only-v5"\n'
    text += '[usd]\n"400G ACC" = 150\n"400G ACC 5 m" = 170\n"NIC port" = 1500\nQM9700 = 30000\n"network rack" = 0\n'
    cluster = load("h100-1024")
    found = made(cluster=cluster, radix=64, prices=prices_from_toml(text))
    each = {line.part: line.usd_each for line in found.lines}
    assert each["64 x 400G switch"] == 30000
    assert each["400G ACC 5 m"] == 170
    assert each["NIC port"] == 1500
    assert each["network rack"] == 0
    assert each["400G AOC 10 m"] == 2 * PRICES.usd_per_transceiver
    assert found.unpriced == ()
    bare = made(cluster=cluster, radix=64)
    assert bare.unpriced == ("400G ACC 5 m", "NIC port", "network rack")
    assert bare.usd == sum(line.usd for line in bare.lines if line.usd is not None)
    assert bare.counted == bill(for_cluster("rail-optimized", cluster, radix=64), PRICES, radix=64)


def test_energy():
    floor = replace(default_floor(8), pue=1.5, usd_per_kwh=0.1, years=2)
    found = made(floor=floor)
    assert found.energy_kwh == pytest.approx(found.watts / 1000 * 2 * 8766 * 1.5)
    assert found.energy_usd == pytest.approx(found.energy_kwh * 0.1)


def test_what_a_floor_cannot_hold_is_refused():
    for text, message in {
        "kw_per_rack = 1.0": "cannot power an accelerator",
        'media = ["DAC"]': "no medium reaches",
        'media = ["DCA"]': "DAC",
        'switches = { spin = "row" }': "spine",
        'switches = { leaf = "roof" }': "leaf",
        "kw_per_rack = 1.3\nkw_per_accelerator = 0.1": "takes 1 unit and",
        "rack_pitch = 1": "rack_pitch_m",
        "pue = 0.9": "pue",
    }.items():
        with pytest.raises(BadInput, match=message):
            made(cluster=load("h100-1024"), radix=64, floor=floor_from_toml(text, 8))


def test_one_domain_has_no_network_to_buy():
    with pytest.raises(BadInput, match="one scale-up domain"):
        made("fat-tree", cluster=load("h100-8"))


def test_every_default_states_its_source_and_date():
    for one in (*media(), *switch_models()):
        assert one.source
        assert len(one.date) == 10
    for domain in (1, 8, 72, 10_000):
        assert "EIA" in default_floor(domain).source
    for name in presets():
        assert preset(name).source
        assert preset(name).date
    for one in media():
        assert all(a < b for a, b in pairwise(one.lengths_m))
        assert one.lengths_m[-1] <= one.reach_m
        assert not one.watts or len(one.watts) == len(one.rates_Gbps)


def test_switch_models_break_their_ports_out():
    asked = (64, 400), (128, 200), (40, 200)
    assert [model_for(*one).name for one in asked] == ["QM9700", "QM9700", "QM8700"]
    assert model_for(128, 400).name == "SN5600"
    assert model_for(1000, 400) is None


def test_from_files(tmp_path):
    path = tmp_path / "fabric.json"
    from weft.interop.fabrics.formats import write_fabric

    path.write_text(write_fabric(for_cluster("rail-only", CLUSTER, radix=64)), "utf-8")
    floor = tmp_path / "floor.toml"
    floor.write_text('racks_per_row = 4\nswitches = { rail = "rack" }\n')
    found = weft.bill_of_materials(path, radix=64, floor=str(floor))
    assert found.lines == weft.bill_of_materials(CLUSTER, kind="rail-only", radix=64, floor=str(floor)).lines
    assert counted(found, "rack") == 0
    assert {line.part.split()[1] for line in found.lines if line.category == "cable"} > {"DAC"}
    with pytest.raises(BadInput, match="no share"):
        weft.bill_of_materials(CLUSTER, spares="many")
