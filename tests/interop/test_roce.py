"""Source ports: probes of switches that hash the five-tuple, and what tables hold."""

import csv
import io
import zlib
from ipaddress import IPv4Address

import pytest

from weft.errors import BadInput
from weft.interop import roce
from weft.interop.plan_paths import ipv4
from weft.interop.roce import COLUMNS, PORTS


def source_ports(*args, **options):
    """The rows of the table, which hold what its columns may hold."""
    rows = list(csv.DictReader(io.StringIO(roce.write(*args, **options)), strict=True))
    for row in rows:
        assert tuple(row) == COLUMNS
        assert (row["udp_sport"] == "") == (row["status"] == "not found")
        assert row["udp_sport"] == "" or int(row["udp_sport"]) in PORTS
        assert len(row["expected_path"].split("|")) > 2
    assert len({(row["src_ip"], row["dst_ip"], row["queue_pair"]) for row in rows}) == len(rows)
    used = [(row["src_ip"], row["dst_ip"], row["udp_sport"]) for row in rows if row["udp_sport"]]
    assert len(set(used)) == len(used)
    return rows


def crc32(source, target, port):
    """CRC-32 of the five-tuple of a RoCEv2 packet, by which the switches here choose."""
    ends = IPv4Address(ipv4(source)).packed + IPv4Address(ipv4(target)).packed
    return zlib.crc32(ends + bytes([17]) + port.to_bytes(2, "big") + (4791).to_bytes(2, "big"))


def walked(fabric, source, target, port):
    """The path of a packet, hop by hop, from the first switch on; next hops by brute force."""

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
        node = int(fabric.target[best[crc32(source, target, port) % len(best)]])
        path.append(node)
    return "|".join(fabric.names[each] for each in path)


def test_without_knowledge_ports_are_unverified(planned):
    rows = source_ports(*planned(8, parts=4))
    assert {row["status"] for row in rows} == {"unverified"}
    assert {row["queue_pair"] for row in rows} == {"0", "1", "2", "3"}


def probes_of(fabric, pairs, ports):
    """What a prober would see where switches hash by crc32: the spine of every port."""
    lines = ["src_ip,dst_ip,udp_sport,spine"]
    for a, b in pairs:
        for port in ports:
            spines = [n for n in walked(fabric, a, b, port).split("|") if n.startswith("spine")]
            lines.append(f"{ipv4(a)},{ipv4(b)},{port},{','.join(spines)}")
    return "\n".join(lines) + "\n"


def test_probed_ports(planned):
    fabric, traffic, routed = planned(8, flows=4)
    pairs = list(zip(traffic.source.tolist(), traffic.target.tolist(), strict=True))
    rows = source_ports(fabric, traffic, routed, probes=probes_of(fabric, pairs, range(0xC100, 0xC140)))
    assert {row["status"] for row in rows} == {"probed"}
    for row, (a, b) in zip(rows, pairs, strict=True):
        assert walked(fabric, a, b, int(row["udp_sport"])) == row["expected_path"]
    none = source_ports(fabric, traffic, routed, probes="src_ip,dst_ip,udp_sport,spine\n")
    assert {row["status"] for row in none} == {"not found"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks the column src_ip"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2\n", "2 values for 4 columns"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0,10.0.0.2,49152,spine-0\n", "no IPv4 address"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2,80,spine-0\n", "port '80'"),
        ("src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2,49152,spine-9\n", "no node 'spine-9'"),
        (
            "src_ip,dst_ip,udp_sport,spine\n10.0.0.1,10.0.0.2,49152,spine-0\n10.0.0.1,10.0.0.2,49152,spine-1\n",
            "line 3: contra",
        ),
    ],
)
def test_probes_that_cannot_be_used(planned, text, words):
    with pytest.raises(BadInput, match=words):
        source_ports(*planned(8), probes=text)
