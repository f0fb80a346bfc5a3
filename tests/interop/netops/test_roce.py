"""Source ports: the verbs library's vectors, the model's own search, probes, and what tables may say."""

import csv
import hashlib
import io
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import BadInput, UnknownName
from weft.interop.netops.addressing import addressing
from weft.interop.netops.plan_paths import planned_paths
from weft.interop.netops.roce import NextHops, Packet, crc32, lint_csv, source_ports, write_csv


def test_the_model_is_crc32_of_the_five_tuple():
    packet = Packet(switch="leaf-0", src_ip="10.0.0.1", dst_ip="10.0.0.9", udp_sport=0xC001)
    assert crc32(packet) == zlib.crc32(bytes([10, 0, 0, 1, 10, 0, 0, 9, 17, 0xC0, 0x01, 0x12, 0xB7]))


def walked(fabric, source, target, port, switch_hash):
    """The path of a packet, hop by hop, from the first switch on; next hops by brute force."""
    plan = addressing(fabric)

    def hops(node, left):
        if node == target:
            return 0
        if not left:
            return 99
        ahead = [int(b) for a, b, up in zip(fabric.source, fabric.target, fabric.up, strict=True) if a == node and up]
        return 1 + min([hops(b, left - 1) for b in ahead if b >= fabric.accelerators or b == target], default=99)

    node, path = source, [source]
    while node != target:
        out = [link for link in range(fabric.links) if fabric.source[link] == node and fabric.up[link]]
        far = {link: hops(int(fabric.target[link]), 3) for link in out}
        best = [link for link in out if far[link] == min(far.values())]
        packet = Packet(switch=fabric.names[node], src_ip=plan.ipv4(source), dst_ip=plan.ipv4(target), udp_sport=port)
        node = int(fabric.target[best[switch_hash(packet) % len(best)]])
        path.append(node)
    return tuple(fabric.names[each] for each in path)


@settings(max_examples=15)
@given(st.integers(0, 50), st.integers(1, 3), st.booleans())
def test_modelled_ports_lead_along_the_plan(planned, seed, parts, failed):
    fabric, traffic, routed = planned(8, radix=4, flows=3, parts=parts, seed=seed, down=(16,) if failed else ())
    rows = source_ports(fabric, traffic, routed, switch_hash="crc32")
    paths = planned_paths(fabric, traffic, routed)
    assert len(rows) == len(paths)
    for row, path in zip(rows, paths, strict=True):
        assert row.status == "modelled"
        assert row.path == tuple(fabric.names[node] for node in path.nodes)
        assert walked(fabric, path.source, path.target, row.udp_sport, crc32) == row.path
    assert len({(r.src_ip, r.dst_ip, r.udp_sport) for r in rows}) == len(rows)
    assert not lint_csv(write_csv(rows))


@pytest.mark.slow
def test_hashes_of_ones_own(planned):
    fabric, traffic, routed = planned(16, radix=8, flows=8)

    def its_own(packet):
        """Apart at every switch: with a CRC the low bits of two switches would follow from each other."""
        return hashlib.sha256(f"{packet.switch} {packet.udp_sport}".encode()).digest()[0]

    rows = source_ports(fabric, traffic, routed, switch_hash=its_own)
    assert {row.status for row in rows} == {"modelled"}
    stuck = source_ports(fabric, traffic, routed, switch_hash=lambda packet: 0)
    lost = [row for row in stuck if row.status == "not found"]
    assert lost
    assert all(row.udp_sport is None for row in lost)
    assert not lint_csv(write_csv(stuck))
    with pytest.raises(UnknownName, match="hash of switches"):
        source_ports(fabric, traffic, routed, switch_hash="crc16")


@pytest.mark.slow
def test_equal_hashes_polarise_three_tiers(planned):
    fabric, traffic, routed = planned(16, radix=4, flows=12)
    assert "not found" in {row.status for row in source_ports(fabric, traffic, routed, switch_hash="crc32")}
    seeded = source_ports(
        fabric,
        traffic,
        routed,
        switch_hash=lambda p: int.from_bytes(hashlib.sha256(f"{p.switch} {p.udp_sport}".encode()).digest()[:4]),
    )
    assert {row.status for row in seeded} == {"modelled"}


def test_without_knowledge_ports_are_unverified(planned):
    fabric, traffic, routed = planned(8, parts=4)
    rows = source_ports(fabric, traffic, routed)
    assert {row.status for row in rows} == {"unverified"}
    assert {row.queue_pair for row in rows} == {0, 1, 2, 3}
    assert len({(r.src_ip, r.dst_ip, r.udp_sport) for r in rows}) == len(rows)


def probes_of(fabric, pairs, ports):
    """What a prober would see where switches hash by crc32: the spine of every port."""
    plan = addressing(fabric)
    lines = ["src_ip,dst_ip,udp_sport,spine"]
    for a, b in pairs:
        for port in ports:
            spines = [n for n in walked(fabric, a, b, port, crc32) if n.startswith("spine")]
            lines.append(f"{plan.ipv4(a)},{plan.ipv4(b)},{port},{','.join(spines)}")
    return "\n".join(lines) + "\n"


def test_probed_ports(planned):
    fabric, traffic, routed = planned(8, flows=4)
    pairs = list(zip(traffic.source.tolist(), traffic.target.tolist(), strict=True))
    rows = source_ports(fabric, traffic, routed, probes=probes_of(fabric, pairs, range(0xC100, 0xC140)))
    assert {row.status for row in rows} == {"probed"}
    for row, (a, b) in zip(rows, pairs, strict=True):
        assert walked(fabric, a, b, row.udp_sport, crc32) == row.path
    none = source_ports(fabric, traffic, routed, probes="src_ip,dst_ip,udp_sport,spine\n")
    assert {row.status for row in none} == {"not found"}
    with pytest.raises(BadInput, match="give one of them"):
        source_ports(fabric, traffic, routed, probes="", switch_hash="crc32")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns"),
        ("src_ip,dst_ip,udp_sport\n", "columns"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2\n", "2 cells"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0,10.0.0.2,49152,spine-0\n", "no IPv4 address"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2,80,spine-0\n", "port '80'"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2,49152,spine-9\n", "no node 'spine-9'"),
        (
            "src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2,49152,spine-0\n10.0.0.1,10.0.0.2,49152,spine-1\n",
            "row 3: contra",
        ),
        ('src_ip,dst_ip,udp_sport,spine\n"10.0.0.1', "not valid CSV"),
    ],
)
def test_probes_that_cannot_be_used(planned, text, words):
    with pytest.raises(BadInput, match=words):
        source_ports(*planned(8), probes=text)


def test_next_hops_avoid_failed_links_and_hosts(planned):
    fabric, _, _ = planned(8)
    leaf = int(fabric.nodes_of("leaf")[0])
    hops = NextHops(fabric)
    up = hops.of(leaf, 7)
    assert [fabric.names[int(fabric.target[link])] for link in up] == ["spine-0", "spine-1"]
    fewer = NextHops(fabric.failed(links=np.array(up[:1]))).of(leaf, 7)
    assert set(fewer) == set(up[1:])
    assert [int(fabric.target[link]) for link in hops.of(leaf, 0)] == [0]


def test_what_the_checks_find(planned):
    rows = source_ports(*planned(8))
    table = list(csv.reader(io.StringIO(write_csv(rows))))

    def changed(row, column, value):
        copy = [list(cells) for cells in table]
        copy[row][column] = value
        text = io.StringIO()
        csv.writer(text).writerows(copy)
        return " ".join(lint_csv(text.getvalue()))

    assert "no address" in changed(1, 0, "10.0.0")
    assert "not in 49152 to 65535" in changed(1, 3, "80")
    assert "do not go together" in changed(1, 3, "")
    assert "status" in changed(1, 5, "sure")
    assert "no two nodes" in changed(1, 4, "a")
    assert "no number" in changed(1, 2, "-1")
    assert "columns" in changed(0, 0, "source")
    assert "given twice" in " ".join(lint_csv(write_csv((*rows, rows[0]))))
    assert "cells" in " ".join(lint_csv(write_csv(rows) + "1,2\n"))
