"""The tables of a plan, loaded by OpenSM into a simulated subnet and read back from its switches."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from weft.fabric.traffic import Routes
from weft.interop import opensm
from weft.interop.ibnetdiscover import read
from weft.interop.opensm import forwarding_tables, lid_tables, read_tables
from weft.interop.subnet import SWITCH, matched, read_subnet
from weft.routing import plan as routing
from weft.routing.traffic import job_traffic

PRELOAD = sorted(Path("/usr").glob("lib*/**/umad2sim/libumad2sim.so"))
TOOLS = ("ibsim", "opensm", "ibnetdiscover", "ibtracert", "dump_fts")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PRELOAD or not all(map(shutil.which, TOOLS)), reason="no ibsim or opensm"),
]
LEAVES, HOSTS, SPINES = 4, 2, 4


def net(cables=1, leaves=LEAVES, hosts=HOSTS, spines=SPINES):
    """The simulator's file of a fabric of two layers, every leaf joined with every spine."""
    lines = []
    for leaf in range(leaves):
        lines.append(f'Switch 32 "leaf{leaf}"')
        lines += [f'[{h + 1}] "hca{leaf * hosts + h}"[1]' for h in range(hosts)]
        for spine in range(spines):
            for k in range(cables):
                here, there = hosts + 1 + spine * cables + k, 1 + leaf * cables + k
                lines.append(f'[{here}] "spine{spine}"[{there}]')
        lines.append("")
    for spine in range(spines):
        lines.append(f'Switch 32 "spine{spine}"')
        for leaf in range(leaves):
            for k in range(cables):
                here, there = 1 + leaf * cables + k, hosts + 1 + spine * cables + k
                lines.append(f'[{here}] "leaf{leaf}"[{there}]')
        lines.append("")
    for hca in range(leaves * hosts):
        lines += [f'Hca 1 "hca{hca}"', f'[1] "leaf{hca // hosts}"[{1 + hca % hosts}]', ""]
    return "\n".join(lines)


class Simulator:
    """A running ibsim, and tools inside of it."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        (folder / "net").write_text(text)
        (folder / "cache").mkdir()
        self.environment = os.environ | {
            "IBSIM_SOCKNAME": f"weft-{os.getpid()}-{folder.name}",
            "SIM_HOST": "hca0",
            "OSM_CACHE_DIR": str(folder / "cache"),
            "OSM_TMP_DIR": str(folder / "cache"),
        }
        self.log = (folder / "ibsim.log").open("w")
        self.process = subprocess.Popen(
            ["ibsim", "-s", "net"],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)
        self.log.close()

    def run(self, *command: str) -> str:
        environment = self.environment | {"LD_PRELOAD": str(PRELOAD[0])}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def discovered(self) -> str:
        for _ in range(50):
            try:
                return self.run("ibnetdiscover")
            except subprocess.CalledProcessError:
                time.sleep(0.1)
        raise AssertionError("ibsim does not answer")

    def sweep(self, *options: str) -> str:
        self.run("opensm", "-o", "-f", "opensm.log", *options)
        return (self.folder / "opensm.log").read_text()


@pytest.fixture
def simulator(tmp_path):
    running = []

    def start(cables=1, **sizes):
        running.append(Simulator(tmp_path, net(cables, **sizes)))
        return running[-1]

    yield start
    for each in running:
        each.close()


def plan(fabric, ways):
    """Flows and routes of (adapter, adapter, spine, cable up, cable down)."""
    links = {}
    for link, (a, b) in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
        links.setdefault((fabric.names[a], fabric.names[b]), []).append(link)
    paths = []
    for source, target, spine, up, down in ways:
        nodes = [f"hca{source}", f"leaf{source // HOSTS}", f"spine{spine}"]
        nodes += [f"leaf{target // HOSTS}", f"hca{target}"]
        choice = (0, up, down, 0)
        hops = zip(nodes, nodes[1:], choice, strict=False)
        paths.append([links[a, b][k] for a, b, k in hops])
    ends = [[fabric.names.index(f"hca{way[side]}") for way in ways] for side in (0, 1)]
    traffic = job_traffic(*(np.array(side) for side in ends), np.ones(len(ways)))
    routes = Routes(
        indptr=np.cumsum([0] + [len(path) for path in paths]),
        links=np.concatenate(paths),
        usage=np.ones(sum(len(path) for path in paths)),
        latency_s=np.zeros(len(paths)),
    )
    return traffic, routes


def entries(text):
    return {table.guid: table.ports for table in forwarding_tables(text)}


def load(simulator, tables, *options):
    text = opensm.table_text(tables)
    (simulator.folder / "tables").write_text(text)
    log = simulator.sweep("-R", "file", "-U", str(simulator.folder / "tables"), *options)
    assert "file tables configured" in log
    assert "PARSE" not in log
    return text


def test_opensm_keeps_its_lids_and_finds_the_ports_by_guid(simulator):
    subnet = simulator()
    text = subnet.discovered()
    fabric = read(text)
    crossing = [(0, 7, 0, 0, 0), (1, 7, 3, 0, 0)]
    tables = lid_tables(read_subnet(text), fabric, *plan(fabric, crossing))
    assert (tables.lmc, tables.reassigned) == (1, True)
    load(subnet, tables, "-l", "1")
    found = read_subnet(subnet.discovered())
    base = {end.guid: end.lid for end in found.ends}
    dump = entries(subnet.run("dump_fts"))
    lids, owners = tables.lids.tolist(), tables.owner.tolist()
    assert base != {end.guid: end.lid for end in tables.subnet.ends}
    for row, switch in enumerate(tables.switches):
        expected = {}
        for column, (lid, owner) in enumerate(zip(lids, owners, strict=True)):
            end = tables.subnet.ends[owner]
            expected[base[end.guid] + lid - end.lid] = int(tables.ports[row, column])
        assert dump[tables.subnet.devices[switch].guid] == expected


@pytest.mark.parametrize("cables", [1, 2, 4])
def test_a_permutation_leaves_no_switch_link_idle(simulator, cables):
    """Three leaves of 12 hosts and 12 cables up, 72 links between switches: 36 flows, one up and down each."""
    subnet = simulator(cables, leaves=3, hosts=12, spines=12 // cables)
    subnet.discovered()
    subnet.sweep()
    text = subnet.discovered()
    fabric, found = read(text), read_subnet(text)
    host = [fabric.names.index(f"hca{i}") for i in range(36)]
    traffic = job_traffic(np.array(host), np.roll(host, 12), np.ones(36))
    best = routing.plan(fabric, traffic)
    assert (best.alpha, best.alpha_bound) == (1.0, 1.0)
    load(subnet, lid_tables(found, fabric, traffic, best.routes))
    taken = read_tables(subnet.run("dump_fts"), found, fabric, traffic)
    between = (fabric.source >= 36) & (fabric.target >= 36)
    assert between.sum() == 72
    assert (np.bincount(taken.links, minlength=fabric.links)[between] == 1).all()


@pytest.mark.parametrize("both", [False, True], ids=["one LID per port", "more LIDs per port"])
def test_every_flow_is_traced_over_its_planned_cable(simulator, both):
    """Three leaves of 4 hosts, two cables to each of two spines; hosts send to the next leaf, or to both others."""
    subnet = simulator(2, leaves=3, hosts=4, spines=2)
    subnet.discovered()
    subnet.sweep()
    text = subnet.discovered()
    fabric = read(text)
    hosts = np.array([fabric.names.index(f"hca{i}") for i in range(12)])
    target = np.concatenate([np.roll(hosts, -shift) for shift in ((4, 5, 8) if both else (4,))])
    traffic = job_traffic(np.tile(hosts, len(target) // 12), target, np.ones(len(target)))
    best = routing.plan(fabric, traffic)
    assert best.alpha == pytest.approx(1.0)

    # OpenSM starts with the exported files alone.
    files = opensm.write(fabric, traffic, best.routes, read_subnet(text))
    assert ("guid2lid" in files) == both
    for name, content in files.items():
        (subnet.folder / ("cache" if name == "guid2lid" else "") / name).write_text(content)
    assert "file tables configured" in subnet.sweep("-F", "opensm.conf")
    tables = lid_tables(read_subnet(text), fabric, traffic, best.routes)
    assert (tables.lmc > 0) == both

    leaving = links_by_port(tables.subnet, fabric)
    base = {tables.subnet.devices[end.device].name: end.lid for end in tables.subnet.ends}
    for flow, planned in zip(tables.flows, np.split(best.routes.links, best.routes.indptr[1:-1]), strict=True):
        trace = subnet.run("ibtracert", str(base[flow.source]), str(flow.dlid))
        devices, ports = (
            re.findall(r'"(\w+)"$', trace, re.MULTILINE)[:-1],
            re.findall(r"^\[(\d+)\]", trace, re.MULTILINE),
        )
        taken = [leaving[device, int(port)] for device, port in zip(devices, ports, strict=False)]
        assert taken == planned.tolist()
    # All cables carry flows both ways, and LIDs of the rest are spread over them too.
    between = (fabric.source >= 12) & (fabric.target >= 12)
    assert (np.bincount(best.routes.links, minlength=fabric.links)[between] > 0).all()
    dump = entries(subnet.run("dump_fts"))
    guids = {device.name: device.guid for device in tables.subnet.devices if device.kind == SWITCH}
    used = {leaving[name, port] for name, guid in guids.items() for port in dump[guid].values() if port}
    assert set(np.flatnonzero(between).tolist()) <= used


def links_by_port(subnet, fabric):
    """The link that leaves by each port of a device."""
    match, found = matched(subnet, fabric), {}
    for link, number in enumerate(match.wires):
        wire, here = subnet.wires[number], match.device[fabric.source[link]]
        found[subnet.devices[here].name, wire.port if wire.device == here else wire.other_port] = link
    return found
