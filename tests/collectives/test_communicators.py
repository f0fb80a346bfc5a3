"""Memory of communicators against what was measured, and which groups count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.cluster import resolve
from weft.cluster.calibration import calibration
from weft.collectives.cost import INSIDE_BYTES, MIB, OUTSIDE_BYTES, Network, communicator_bytes
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable

EVERY = np.ones(1, dtype=bool)


@pytest.fixture
def held():
    """Bytes of a layout's groups for given uses, on a cluster."""

    def held(cluster, uses, **degrees):
        found = resolve(cluster)
        network = Network.of(found, calibration(found.accelerator.name))
        table = LayoutTable.of([Layout(**degrees)])
        return float(communicator_bytes(table, dict.fromkeys(uses, EVERY), network)[0])

    return held


def test_sizes_of_connections() -> None:
    """Buffers of 10 and 2 MiB are what NCCL's log shows (NVIDIA/nccl issue 1685)."""
    assert INSIDE_BYTES == (10 + 2) * MIB
    assert OUTSIDE_BYTES == (10 + 10) * MIB


def test_groups_of_two_and_four_a100(held) -> None:
    """544 and 688 MiB on the rank that is a tree's root, which has no way back to one side (NVIDIA/nccl issue
    964); NCCL of then had 256 MiB for messages at once: 32 channels of 16 slots of 512 KiB."""
    messages = 32 * 16 * 0.5 * MIB
    sums, gathers = ("all-reduce", ("data",)), ("all-gather", ("data",))
    two, four = (held("a100-80gb-8", [sums], data=degree) for degree in (2, 4))
    ring = held("a100-80gb-8", [gathers], data=4)
    assert two + messages == 544 * MIB
    assert ring + (four - ring) / 2 + messages == 688 * MIB


def test_all_to_all_of_eight_h100(held) -> None:
    """7 peers on 32 channels, of the 3.28 GB that came with the first (NVIDIA/nccl issue 1685)."""
    found = held("h100-8", [("all-to-all", ("expert",))], data=8, expert=8)
    assert found == 7 * 32 * INSIDE_BYTES
    assert 0.8 * 3.28e9 < found < 3.28e9


def test_switch_buffers_of_eight_h100(held) -> None:
    """16 channels, 8 ranks, 1 MiB each way: what NCCL logs as nvlsTotalSize with steps of 128 KiB."""
    gathers = [("all-gather", ("z",))]
    assert held("h100-8", gathers, z=8) - held("a100-80gb-8", gathers, z=8) == 256 * MIB


def test_a_group_counts_once(held) -> None:
    once = held("h100-16", [("all-reduce", ("data",))], data=16)
    assert once > 0
    every = [("all-reduce", ("data",)), ("all-gather", ("copies",)), ("scalar", ("copies",))]
    assert held("h100-16", every, data=16) == once
    assert held("h100-16", every, x=8, data=2) < once


def test_alone(held) -> None:
    assert held("h100-16", [("all-reduce", ("x",)), ("send", ("pipeline",))], data=16) == 0


def test_far_groups_have_few_channels(held) -> None:
    """Ranks of different servers send over a NIC each, on four channels."""
    near, far = held("h100-64", [("all-gather", ("z",))], z=8), held("h100-64", [("all-gather", ("z",))], x=8, z=8)
    assert far == 4 * OUTSIDE_BYTES
    assert near == 24 * INSIDE_BYTES + 256 * MIB


def test_stages_of_a_server_have_more_than_those_between(held) -> None:
    sends = [("send", ("pipeline",))]
    assert held("h100-64", sends, pipeline=8) == 2 * 32 * INSIDE_BYTES
    assert held("h100-64", sends, x=8, pipeline=8) == 2 * 4 * 2 * MIB


def test_bandwidth_makes_channels(held) -> None:
    """H800 has 8 links to the switch: 16 channels (NVIDIA/nccl issue 892)."""
    found = resolve("h100-8")
    slow = replace(found, tiers=(replace(found.tiers[0], bandwidth_Bps=200e9), *found.tiers[1:]))
    network = Network.of(slow, calibration("h100"))
    table = LayoutTable.of([Layout(z=2)])
    assert communicator_bytes(table, {("all-gather", ("z",)): EVERY}, network)[0] == 16 * INSIDE_BYTES
