"""Counts and prices of networks against the tables of "Rail-only" (arXiv 2307.12169)."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.cluster import load
from weft.errors import BadInput
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.catalogue import TREES, for_cluster, kinds
from weft.fabric.cost import DEFAULT, _tables, bill, preset, prices_from_toml, read_prices
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail

DOMAIN = 256
TABLE = [
    # accelerators, radix, switches and transceivers of the Clos, of rail-only; cut of v1 prices
    (32768, 32, 7168, 262144, 3072, 131072, 54.5),
    (32768, 64, 2560, 196608, 1536, 131072, 37.5),
    (32768, 128, 1280, 196608, 256, 65536, 75.0),
    (32768, 256, 384, 131072, 128, 65536, 60.0),
    (65536, 64, 5120, 393216, 3072, 262144, 37.5),
    (65536, 128, 2560, 393216, 1536, 262144, 37.5),
    (65536, 256, 1280, 393216, 256, 131072, 75.0),
]


@dataclass(frozen=True)
class ClosedCounts:
    """Switches and transceivers of a network by formula; ``tiers`` of switches, all of the same ``radix``."""

    switches: int
    transceivers: int
    tiers: int
    radix: int

    @property
    def switch_ports(self):
        return self.switches * self.radix


def clos_counts(accelerators, radix):
    """A folded Clos at full bisection with the fewest tiers t (2 (R/2)^t ports): (2t-1) n/R switches."""
    tiers, ports = 1, radix
    while ports < accelerators:
        tiers, ports = tiers + 1, ports * radix // 2
    lower = (tiers - 1) * -(-2 * accelerators // radix)
    return ClosedCounts(lower + -(-accelerators // radix), 2 * tiers * accelerators, tiers, radix)


def rail_only_counts(accelerators, domain, radix):
    """One Clos per rail of ``accelerators / domain``; rails share a switch where its ports allow."""
    rail = clos_counts(accelerators // domain, radix)
    per_switch = radix // (accelerators // domain) if rail.tiers == 1 else 1
    return ClosedCounts(-(-domain // per_switch) * rail.switches, domain * rail.transceivers, rail.tiers, radix)


def usd(counts, prices):
    return counts.switch_ports * prices.usd_per_switch_port + counts.transceivers * prices.usd_per_transceiver


def watts(counts, prices):
    return counts.switch_ports * prices.watts_per_switch_port + counts.transceivers * prices.watts_per_transceiver


def cut(before, after):
    return 100 * (1 - after / before)


def domain(size):
    return Dimension(kind="switch", size=size, bandwidth_Bps=450e9)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(("count", "radix", "clos_sw", "clos_tr", "rail_sw", "rail_tr", "percent"), TABLE)
def test_counts_and_cuts_of_the_paper(count, radix, clos_sw, clos_tr, rail_sw, rail_tr, percent):
    options = {"radix": radix, "bandwidth_Bps": 50e9, "scale_up": domain(DOMAIN)}
    for build, *counts in (
        (clos.build, clos_sw, clos_tr),
        (rail.optimized, clos_sw, clos_tr),
        (rail.only, rail_sw, rail_tr),
    ):
        built = bill(build(count, **options), preset("rail-only-v1"))
        assert [built.switches, built.transceivers] == counts
    full, rails = clos_counts(count, radix), rail_only_counts(count, DOMAIN, radix)
    assert (full.switches, full.transceivers) == (clos_sw, clos_tr)
    assert (rails.switches, rails.transceivers) == (rail_sw, rail_tr)
    prices = preset("rail-only-v1")
    assert cut(usd(full, prices), usd(rails, prices)) == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize("name", sorted(_tables()))
def test_power_cuts_of_the_fifth_version(name):
    prices = preset(name)
    assert 1.71 <= prices.watts_per_switch_port / prices.watts_per_transceiver <= 2.0
    for radix, percent in ((64, 37), (128, 75)):
        both = clos_counts(32768, radix), rail_only_counts(32768, DOMAIN, radix)
        assert round(cut(*(watts(counts, prices) for counts in both))) == percent


def test_built_fabrics_cost_the_dollars_of_the_fifth_version():
    prices = preset("rail-only-v5")
    for build, dollars in ((rail.optimized, 152_829_952), (rail.only, 94_306_304)):
        fabric = build(32768, radix=64, bandwidth_Bps=50e9, scale_up=domain(DOMAIN))
        assert bill(fabric, prices, radix=64).usd == dollars


@given(st.sampled_from([4, 8, 16]), st.integers(1, 3), st.sampled_from([2, 4, 8, 16]))
def test_a_built_clos_costs_its_closed_form(radix, tiers, part):
    """Powers of two, which spread evenly over the switches of the top tier."""
    full = 2 * (radix // 2) ** tiers
    accelerators = full // radix * min(radix, part) if tiers > 1 else radix
    counts = clos_counts(accelerators, radix)
    built = bill(clos.build(accelerators, radix=radix, bandwidth_Bps=50e9), preset("rail-only-v1"))
    assert built.switches == counts.switches
    assert built.transceivers == counts.transceivers
    assert built.ports_used == counts.switch_ports
    assert built.nics == accelerators
    assert built.usd == usd(counts, preset("rail-only-v1"))


@given(st.sampled_from([4, 8, 16]), st.integers(1, 2), st.sampled_from([2, 4, 8]))
def test_a_built_rail_only_network_costs_its_closed_form(radix, tiers, size):
    accelerators = size * 2 * (radix // 2) ** tiers
    counts = rail_only_counts(accelerators, size, radix)
    fabric = rail.only(accelerators, radix=radix, bandwidth_Bps=50e9, scale_up=domain(size))
    built = bill(fabric, preset("rail-only-v5"), radix=radix)
    assert (built.switches, built.transceivers) == (counts.switches, counts.transceivers)
    assert built.usd == usd(counts, preset("rail-only-v5"))
    assert built.watts == watts(counts, preset("rail-only-v5"))


def trees(count, seed=0):
    """Random networks of leaves and spines: a kind, a cluster, a radix, and oversubscriptions from 1 upwards."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        size, radix = int(draw.choice([1, 2, 4, 6, 8, 16])), int(draw.choice([4, 8, 10, 16, 24, 32, 64]))
        domains = int(draw.integers(2, min(700, radix**2) // size + 2))
        tiers = [replace(tier, size=n) for tier, n in zip(load("h100-16").tiers, (size, domains), strict=True)]
        cluster = replace(load("h100-16"), count=size * domains, tiers=tuple(tiers))
        ratios = sorted(
            {1.0, *draw.choice([2.0, 3.0, 4.0, 7.0], 2).tolist(), *draw.uniform(1, 9, 2).round(2).tolist()}
        )
        yield str(draw.choice(TREES)), cluster, radix, ratios


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_more_oversubscription_never_costs_more(count):
    """At any prices so far, of the network as built, which is the one that is simulated."""
    for kind, cluster, radix, ratios in trees(count):
        built = [for_cluster(kind, cluster, radix=radix, oversubscription=ratio) for ratio in ratios]
        for name in sorted(_tables()):
            usd = [bill(fabric, preset(name), radix=radix, kind=kind).usd for fabric in built]
            assert usd == sorted(usd, reverse=True), (kind, cluster.count, cluster.tiers[0].size, radix, ratios, name)


@pytest.mark.parametrize(
    ("build", "accelerators", "ratio", "switches", "dollars"),
    [
        (rail.optimized, 256, 1, 12, 736_768),
        (rail.optimized, 256, 3, 10, 581_072),
        (clos.build, 128, 1, 6, 368_384),
        (clos.build, 128, 2, 5, 298_496),
    ],
)
def test_uplinks_share_few_spines(build, accelerators, ratio, switches, dollars):
    """Eleven uplinks of a leaf need no eleven spines: two take six and five of them."""
    fabric = build(accelerators, radix=64, bandwidth_Bps=50e9, scale_up=domain(8), oversubscription=ratio)
    built = bill(fabric, preset("rail-only-v5"), radix=64)
    assert (built.switches, built.usd) == (switches, dollars)


def small(cables=2):
    nodes = [Node(name=f"gpu{i}", role="accelerator", domain=0, place="") for i in range(2)]
    nodes += [Node(name="leaf", role="leaf", place=""), Node(name="nv", role="scale-up", place="")]
    links = [
        Cable(source=f"gpu{i}", target=end, capacity_Bps=50e9, cables=n, place="")
        for i in range(2)
        for end, n in (("leaf", cables), ("nv", 18))
    ]
    return assemble("small", nodes, links, where="test")


def test_every_part_of_a_small_network():
    prices = prices_from_toml('like = "rail-only-v5"\nusd_per_cable = 10\nusd_per_nic = 1000\nwatts_per_nic = 25\n')
    found = bill(small(), prices, radix=8)
    assert (found.switches, found.switch_ports, found.ports_used) == (1, 8, 4)
    assert (found.transceivers, found.cables, found.nics) == (8, 4, 2)
    assert found.usd == 8 * 694 + 8 * 199 + 4 * 10 + 2 * 1000
    assert found.watts == 8 * 16 + 8 * 8.5 + 2 * 25


def test_a_torus_has_a_nic_for_each_accelerator_divided_over_its_links():
    built = bill(for_cluster("torus", load("h100-64")), preset(DEFAULT))
    assert (built.switches, built.cables, built.nics) == (0, 96, 64)
    assert [line.part for line in built.lines] == ["133.333G cable", "133.333G transceiver", "400G NIC"]
    assert built.usd == pytest.approx(96 * 85.08 + 192 * 769 + 64 * 2188)


def test_a_bill_says_what_is_in_it():
    market = preset(DEFAULT)
    assert market.contents == "switches, transceivers, cables and NICs"
    assert preset("rail-only-v5").contents == "switches and transceivers, without cables and NICs"
    assert prices_from_toml("usd_per_nic = 0").contents == "switches, transceivers and cables, without NICs"
    assert market.source
    assert market.date
    found = bill(small(), market, radix=8)
    assert found.usd == pytest.approx(8 * 562.5 + 8 * 769 + 4 * 85.08 + 2 * 2188)


def test_planes_share_ports_cables_and_nics():
    """Two planes of half a NIC each cost what one network of whole ports does."""
    market = preset(DEFAULT)
    whole = bill(rail.optimized(64, radix=64, bandwidth_Bps=50e9, scale_up=domain(8)), market, radix=64)
    halves = bill(for_cluster("multi-plane", load("h100-64")), market, radix=64, kind="multi-plane")
    assert halves.nics * halves.prices.usd_per_nic == whole.nics * market.usd_per_nic == 64 * market.usd_per_nic
    assert halves.cables * halves.prices.usd_per_cable == whole.cables * market.usd_per_cable


def test_failed_parts_were_bought_too():
    fabric = small()
    prices = preset("rail-only-v1")
    assert bill(fabric.failed(nodes=np.array([2])), prices) == bill(fabric, prices)


def test_too_few_ports_are_named():
    with pytest.raises(BadInput, match=r"leaf uses 4 ports of 2 -- .*--radix 4\)"):
        bill(small(), preset("rail-only-v1"), radix=2)


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "hierarchical"])
def test_lines_add_up_to_the_counts_and_sums(kind):
    """Whatever splits by model and speed, nothing is lost: the lines are the bill."""
    cluster = load("h100-256")
    found = bill(for_cluster(kind, cluster, radix=16), preset(DEFAULT), radix=16, kind=kind, spares_share=0.02)
    count = {
        category: sum(line.count for line in found.lines if line.category == category)
        for category in ("switch", "cable", "transceiver", "NIC")
    }
    assert list(count.values()) == [found.switches, found.cables, found.transceivers, found.nics]
    assert sum(line.usd_each * line.count for line in found.lines) == pytest.approx(found.usd)
    assert sum(line.watts_each * line.count for line in found.lines) == pytest.approx(found.watts)
    assert [line.spares for line in found.lines] == [-(-2 * line.count // 100) for line in found.lines]
    assert sum(row["usd"] for row in found.to_dicts()) == pytest.approx(found.usd + found.spares_usd)


def test_lines_name_speeds_and_models():
    nodes = [Node(name=f"gpu{i}", role="accelerator", domain=i, place="") for i in range(2)]
    nodes += [Node(name="leaf", role="leaf", place=""), Node(name="spine", role="spine", place="")]
    links = [Cable(source=f"gpu{i}", target="leaf", capacity_Bps=25e9, cables=1, place="") for i in range(2)]
    links.append(Cable(source="leaf", target="spine", capacity_Bps=100e9, cables=2, place=""))
    lines = bill(assemble("mixed", nodes, links, where="test"), preset(DEFAULT), radix=64).lines
    assert [(line.count, line.part, line.detail) for line in lines] == [
        (2, "64 x 400G switch", "as QM9700; 1 leaf, 1 spine"),
        (2, "200G cable", ""),
        (2, "400G cable", ""),
        (4, "200G transceiver", "two on a cable"),
        (4, "400G transceiver", "two on a cable"),
        (2, "200G NIC", "link of an accelerator to a switch"),
    ]


def test_a_bill_of_a_file_is_that_of_its_network(tmp_path):
    from weft.fabric.files import fabric_to_json

    path = tmp_path / "fabric.json"
    path.write_text(fabric_to_json(for_cluster("rail-only", load("h100-256"), radix=64)), "utf-8")
    of_file = weft.bill_of_materials(path, radix=64)
    assert of_file.lines == weft.bill_of_materials("h100-256", kind="rail-only", radix=64).lines
    with pytest.raises(BadInput, match="not a share"):
        weft.bill_of_materials("h100-256", spares="many")
    with pytest.raises(BadInput, match="one scale-up domain"):
        weft.bill_of_materials("h100-8", kind="fat-tree")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "usd_per_switch_port = -1",
        "usd_per_switch_port = nan",
        "usd_per_switch_port = inf",
        "usd_per_switch_port = '7'",
        "usd_per_swich_port = 7",
        'like = "gold"',
        "[",
    ],
)
def test_bad_prices(text):
    with pytest.raises(BadInput):
        prices_from_toml(text)


def test_a_file_of_prices(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('like = "rail-only-v1"\nname = "mine"\nwatts_per_switch_port = 31.25\n')
    prices = read_prices(path)
    assert (prices.name, prices.usd_per_switch_port, prices.watts_per_switch_port) == ("mine", 748, 31.25)
    for bad in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(BadInput):
            read_prices(bad)
