"""Routes in FRR: a fabric as network namespaces, hosts with a NIC, switches that run FRR as exported, cables as veth
pairs.  Packets are followed cable by cable on the planned paths, also after the controller has installed new ones.
"""

import ctypes
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest

from weft.documents import csv_rows
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.families import clos
from weft.fabric.files import fabric_to_json
from weft.interop import frr
from weft.interop.plan_paths import ipv4, planned_paths
from weft.interop.routes_json import routes_of_links
from weft.routing.controller import REPLAN_S
from weft.routing.plan import plan
from weft.routing.traffic import job_traffic

DAEMONS, USER = Path("/usr/lib/frr"), "frr"
STARTED = ("zebra", "staticd", "bgpd")
TRACED_PORT, COUNTED_PORT = 33434, 33435
ERRORS_COME_BACK, SETTINGS = 11, ("ip_forward=0", "icmp_ratelimit=0", "icmp_errors_use_inbound_ifaddr=1")
"""The option IP_RECVERR, and what a namespace has below net.ipv4: a switch forwards because its configuration says so,
and answers with the address at which the packet came in, which names the cable."""
_NEW_NET = 0x40000000
ROOT = Path(__file__).parents[2]


def missing():
    """Why namespaces with FRR cannot run here; empty where they can."""
    if os.geteuid():
        return "needs root"
    absent = [name for name in ("ip", "sysctl", "vtysh") if shutil.which(name) is None]
    absent += [name for name in STARTED if not (DAEMONS / name).exists()]
    if absent:
        return f"no {absent[0]}"
    probe = f"weft-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return "" if made.returncode == 0 else "no network namespaces"


pytestmark = pytest.mark.slow


class Network:
    """The namespaces of a fabric; ``close`` ends all that it started."""

    def __init__(self, fabric, files):
        # FRR's daemons run as their user, who may not enter pytest's folders.
        self.fabric, self.folder = fabric, Path(tempfile.mkdtemp(prefix="weft-frr-"))
        self.folder.chmod(0o755)
        self.prefix = f"weft{os.getpid()}-"
        self.names = frr.host_names(fabric)
        self.daemons = []
        try:
            self._wire()
            self._hosts(files["hosts.csv"])
            for node in range(fabric.accelerators, fabric.nodes):
                self._switch(node, files[f"{self.names[node]}.conf"])
            self.arriving = self._arriving()
        except BaseException:
            self.close()
            raise

    def close(self):
        for daemon in self.daemons:
            daemon.kill()
        for daemon in self.daemons:
            daemon.wait(timeout=10)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.prefix + name], capture_output=True, check=False)
        shutil.rmtree(self.folder)

    def run(self, node, *words):
        command = ["ip", "netns", "exec", self.prefix + self.names[node], *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, (self.names[node], words, done.stdout, done.stderr)
        return done.stdout

    def vtysh(self, node, *commands):
        """The output of commands of a switch."""
        words = [word for command in commands for word in ("-c", command)]
        return self.run(node, "vtysh", "--vty_socket", str(self.folder / self.names[node]), *words)

    def set_link(self, link, state):
        """Take a cable down, or up, at one end."""
        self.run(int(self.fabric.source[link]), "ip", "link", "set", self.interface[link], state)

    def _wire(self):
        """Namespaces, a veth pair for each cable; the interfaces of a node are eth1, eth2, ... in their order."""
        fabric, prefix = self.fabric, self.prefix
        order = np.argsort(fabric.source, kind="stable")
        port = np.empty(fabric.links, dtype=np.int64)
        port[order] = np.arange(fabric.links) - np.searchsorted(fabric.source[order], fabric.source[order]) + 1
        self.interface = [f"eth{number}" for number in port.tolist()]
        lines = [f"netns add {prefix}{name}" for name in self.names]
        for link, back in enumerate(fabric.reverse.tolist()):
            if link < back:
                a, b = (prefix + self.names[fabric.source[each]] for each in (link, back))
                lines.append(
                    f"link add {self.interface[link]} netns {a} type veth peer {self.interface[back]} netns {b}"
                )
        batch = "\n".join([*lines, ""])
        subprocess.run(["ip", "-batch", "-"], input=batch, text=True, timeout=60, check=True)
        for node in range(fabric.nodes):
            self.run(node, "sysctl", "-qw", *(f"net.ipv4.{setting}" for setting in SETTINGS))
            self.run(node, "ip", "link", "set", "lo", "up")

    def _hosts(self, table):
        for row, _ in csv_rows(table, "hosts.csv", frr.HOST_COLUMNS):
            node = self.names.index(row["host"])
            self.run(node, "ip", "address", "add", f"{row['address']}/32", "dev", "lo")
            self.run(node, "ip", "address", "add", f"{row['nic_address']}/31", "dev", "eth1")
            self.run(node, "ip", "link", "set", "eth1", "up")
            self.run(node, "ip", "route", "add", "default", "via", row["gateway"], "src", row["address"])

    def _switch(self, node, text):
        """Start a switch as it boots: the daemons, then its integrated configuration."""
        folder = self.folder / self.names[node]
        folder.mkdir()
        shutil.chown(folder, USER, USER)
        (folder / "frr.conf").write_text(text)
        (folder / "vtysh.conf").write_text("")
        enter = ["ip", "netns", "exec", self.prefix + self.names[node]]
        common = ["--vty_socket", str(folder), "-z", str(folder / "zserv.api"), "-f", "/dev/null"]
        log = (folder / "log").open("w")
        for name in STARTED:
            words = [*enter, str(DAEMONS / name), *common, "-i", str(folder / f"{name}.pid"), "-P", "0"]
            self.daemons.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            )
            vty = folder / f"{name}.vty"
            until(vty.exists, f"{name} on {self.names[node]} ({folder / 'log'})")
        log.close()
        self.run(node, "vtysh", "--vty_socket", str(folder), "--config_dir", str(folder), "-b")

    def _arriving(self):
        """The link that ends at each address, as the kernel has them."""
        found = {}
        for link, back in enumerate(self.fabric.reverse.tolist()):
            node = int(self.fabric.target[link])
            (device,) = json.loads(self.run(node, "ip", "-j", "-4", "address", "show", "dev", self.interface[back]))
            found[device["addr_info"][0]["local"]] = link
            if node < self.fabric.accelerators:
                found[ipv4(node)] = link
        return found

    @contextmanager
    def socket(self, node, port=0):
        """A UDP socket of a host at its address."""
        with self.inside(node):
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with made:
            made.setsockopt(socket.IPPROTO_IP, ERRORS_COME_BACK, 1)
            made.bind((ipv4(node), port))
            made.settimeout(1.0)
            yield made

    @contextmanager
    def inside(self, node):
        """This thread in the namespace of a node; sockets that it opens there stay there."""
        library = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.prefix}{self.names[node]}") as there:
            assert library.setns(there.fileno(), _NEW_NET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert library.setns(here.fileno(), _NEW_NET) == 0

    def traced(self, source, target):
        """The links of a packet from host to host: switches refuse packets with too few hops left, and say where they
        came in."""
        links = []
        with self.socket(source) as sender, self.socket(target, TRACED_PORT) as receiver:
            for hops in range(1, self.fabric.nodes):
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
                sender.sendto(b"weft", (ipv4(target), TRACED_PORT))
                ready, _, _ = select.select([sender, receiver], [], [], 2.0)
                assert ready, f"{self.names[source]} -> {self.names[target]}: no answer after {links}"
                if receiver in ready:
                    receiver.recv(100)
                    return (*links, self.arriving[ipv4(target)])
                _, ancillary, _, _ = sender.recvmsg(100, 1000, socket.MSG_ERRQUEUE)
                (error,) = (data for _, kind, data in ancillary if kind == ERRORS_COME_BACK)
                # struct sock_extended_err (16 bytes), then the address of the switch that refused.
                links.append(self.arriving[socket.inet_ntoa(error[20:24])])
        raise AssertionError(f"{self.names[source]} -> {self.names[target]} goes round in circles: {links}")

    def send(self, source, target, many):
        """Send packets from host to host; how many arrive."""
        arrived = 0
        with self.socket(source) as sender, self.socket(target, COUNTED_PORT) as receiver:
            receiver.settimeout(0.1)
            with suppress(OSError):
                for _ in range(many):
                    sender.sendto(b"weft", (ipv4(target), COUNTED_PORT))
                    receiver.recv(100)
                    arrived += 1
        return arrived

    def wait(self, pairs):
        """Wait until packets between pairs of hosts arrive; the seconds that it took."""
        begin = time.monotonic()
        for source, target in pairs:
            until(lambda ends=(source, target): self.send(*ends, 1), f"a way from host {source} to {target}")
        return time.monotonic() - begin

    def carried(self):
        """Packets that each link has carried since the start."""
        found = np.zeros(self.fabric.links, dtype=np.int64)
        for node in range(self.fabric.nodes):
            table = {row["ifname"]: row for row in json.loads(self.run(node, "ip", "-j", "-s", "link"))}
            for link in np.flatnonzero(self.fabric.source == node).tolist():
                found[link] = table[self.interface[link]]["stats64"]["tx"]["packets"]
        return found


def until(condition, what, limit_s=20.0):
    """Wait for something to come true; seconds that it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + limit_s, f"{what}: not within {limit_s:g} s"
        time.sleep(0.05)
    return time.monotonic() - begin


@pytest.fixture
def network():
    if reason := missing():
        pytest.skip(reason)
    running = []

    def start(fabric, traffic, routes):
        running.append(Network(fabric, frr.write(fabric, traffic, routes)))
        return running[-1]

    yield start
    for each in running:
        each.close()


def ring(fabric):
    """A ring over all hosts, in which each host sends to another leaf."""
    hosts = np.arange(fabric.accelerators)
    return job_traffic(hosts, np.roll(hosts, -2), np.ones(len(hosts)))


def parallel():
    """Three leaves of two hosts, each joined to one spine by two cables."""
    nodes = [Node(name=f"host-{i}", role="accelerator", place="") for i in range(6)]
    nodes += [Node(name=name, role=name.rstrip("-012"), place="") for name in ("leaf-0", "leaf-1", "leaf-2", "spine")]
    ends = [(f"host-{i}", f"leaf-{i // 2}") for i in range(6)] + [(f"leaf-{i // 2}", "spine") for i in range(6)]
    return assemble(
        "parallel", nodes, [Cable(source=a, target=b, capacity_Bps=1e9, place="") for a, b in ends], where="test"
    )


@pytest.mark.parametrize("fabric", [clos.two_layers(4, 2, 2), parallel()], ids=["two spines", "parallel cables"])
def test_packets_take_the_planned_cables(network, fabric):
    traffic = ring(fabric)
    best = plan(fabric, traffic)
    assert best.alpha == 1.0
    built = network(fabric, traffic, best.routes)
    paths = planned_paths(fabric, traffic, best.routes)
    # Hosts between which no flow is planned reach each other as well, over BGP; so answers of switches come back.
    built.wait((a, b) for a in range(fabric.accelerators) for b in range(fabric.accelerators) if a != b)
    assert [built.traced(path.source, path.target) for path in paths] == [path.links for path in paths]
    # Many packets: each link carries those of its flows, and some of BGP.
    before, many = built.carried(), 300
    for path in paths:
        assert built.send(path.source, path.target, many) == many
    links = np.bincount(best.routes.links, minlength=fabric.links)
    more = built.carried() - before - many * links
    assert (links[fabric.source < fabric.accelerators] == 1).all()
    assert ((more >= 0) & (more < many / 3)).all()


def test_the_controller_installs_its_routes(network, tmp_path):
    """A job arrives, a cable fails, an installation fails: each time packets take the paths of the last decision that
    was applied."""
    fabric = clos.two_layers(4, 2, 2)
    built = network(
        fabric, job_traffic(np.zeros(0, int), np.zeros(0, int), np.zeros(0), jobs=()), routes_of_links(fabric, [])
    )
    everywhere = [(a, b) for a in range(8) for b in range(8) if a != b]
    built.wait(everywhere)
    (tmp_path / "fabric.json").write_text(fabric_to_json(fabric))
    with watching(built, tmp_path) as decide:
        # Both hosts of a leaf send to both of the next, so that flows to one destination must go together.
        ends = [(a, (a + 2 - a % 2 + b) % 8) for a in range(8) for b in range(2)]
        flows = [{"source": a, "target": b, "bytes": 1e9} for a, b in ends]
        first, _ = decide(event="job-arrives", job="a", flows=flows)
        assert (first["push"], first["placed"], first["alpha"]) == ("applied", 16, 1.0)
        paths = moved(fabric, first)
        assert traced(built, paths) == paths

        # A cable fails; until the controller knows of it, BGP takes over.
        link = next(path[1] for path in paths.values())
        ends = [fabric.names[side[link]] for side in (fabric.source, fabric.target)]
        built.set_link(link, "down")
        built.wait(everywhere)
        second, took_s = decide(event="link-down", link=ends)
        assert second["push"] == "applied"
        print(f"installed {took_s:.1f} s after the event")
        assert took_s < REPLAN_S
        after = paths | moved(fabric, second)
        down = {link, int(fabric.reverse[link])}
        assert any(down & set(path) for path in paths.values())
        assert not any(down & set(path) for path in after.values())
        assert traced(built, after) == after
        # The cable is back, but not yet for the controller: planned flows stay off it.
        built.set_link(link, "up")
        built.wait(everywhere)
        assert traced(built, after) == after

        # A switch that takes no new routes: those that the others have taken go again.
        other = next(path[1] for path in after.values() if fabric.source[path[1]] != fabric.source[link])
        ends = [fabric.names[side[other]] for side in (fabric.source, fabric.target)]
        before = installed(built)
        (tmp_path / "broken").write_text("spine-1" if ends[1] == "spine-0" else "spine-0")
        third, _ = decide(event="link-down", link=ends)
        assert (third["push"], third["moves"]) == ("rolled-back", [])
        assert installed(built) == before
        assert traced(built, after) == after


def moved(fabric, decision):
    """The links of the flows that a decision moves, by their ends."""
    number = {name: node for node, name in enumerate(fabric.names)}
    paths = {}
    for move in decision["moves"]:
        nodes = [number[name] for name in move["path"]]
        links = [np.flatnonzero((fabric.source == a) & (fabric.target == b)) for a, b in pairwise(nodes)]
        paths[nodes[0], nodes[-1]] = tuple(int(each[k]) for each, k in zip(links, move["links"], strict=True))
    return paths


def installed(built):
    """The static routes of every switch."""
    switches = range(built.fabric.accelerators, built.fabric.nodes)
    running = {node: built.vtysh(node, "show running-config") for node in switches}
    return {node: sorted(re.findall(r"^ip route .*\S", text, re.MULTILINE)) for node, text in running.items()}


def traced(built, paths):
    """The links of packets; FRR tells the kernel of routes a moment after it has taken them."""
    for _ in range(20):
        if (links := {ends: built.traced(*ends) for ends in paths}) == paths:
            break
        time.sleep(0.1)
    return links


@contextmanager
def watching(built, folder):
    """``weft route watch`` with the script of the examples; a function that gives it an event and returns the decision
    and its seconds."""
    on = folder / "on"
    on.write_text(ON_SWITCH.format(prefix=built.prefix, folder=built.folder, broken=folder / "broken"))
    on.chmod(0o755)
    command = f"{ROOT / 'examples' / 'apply-frr.sh'} {folder / 'fabric.json'}"
    words = ["weft", "route", "watch", "--fabric", str(folder / "fabric.json"), "--router", "destination"]
    running = subprocess.Popen(
        [*words, "--apply", command, "--push", "--format", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=os.environ | {"ON_SWITCH": str(on), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    times = count()

    def decide(**event):
        begin = time.monotonic()
        running.stdin.write(json.dumps({"time_s": next(times), **event}) + "\n")
        line = running.stdout.readline()
        assert line, "weft route watch has ended"
        return json.loads(line), time.monotonic() - begin

    try:
        yield decide
    finally:
        running.kill()
        running.communicate(timeout=10)


ON_SWITCH = """\
#!/bin/sh
# The words of the script's ssh, on a switch in a namespace.  The broken switch takes no new routes.
case "$WEFT_ACTION $1 $2" in "apply $(cat {broken} 2>/dev/null) vtysh -f "*) exit 1 ;; esac
exec ip netns exec {prefix}$1 sh -c "vtysh --vty_socket {folder}/$1 ${{2#vtysh}}"
"""
