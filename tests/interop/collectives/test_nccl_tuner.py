"""Files for NCCL's tuner plugin: grammar, ranges, and choices against the cost model."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from weft.cluster import catalogue
from weft.cluster.calibration import Calibration
from weft.collectives.cost import Network, candidates, collective_s
from weft.errors import BadInput
from weft.interop.collectives.nccl_tuner import write_tuner
from weft.layout.mesh import Spread

KINDS = {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter"}
PAIRS = {
    "ring": {"ll", "ll128", "simple"},
    "tree": {"ll", "ll128", "simple"},
    "nvls": {"simple"},
    "collnet_direct": {"simple"},
}


def check_tuner(text):
    """The lines of a file that the plugin reads as it was meant, by collective."""
    assert text.endswith("\n")
    found = {}
    for line in text.splitlines():
        assert len(line) < 255
        if line.startswith("#"):
            continue
        assert " " not in line
        collective, least, most, algorithm, protocol, channels, nodes, ranks = line.split(",")
        assert collective in KINDS
        assert protocol in PAIRS[algorithm]
        assert algorithm != "tree" or collective == "allreduce"
        assert algorithm != "nvls" or nodes == "1"
        assert channels == "-1"
        assert 0 <= int(least) <= int(most) < 2**64
        assert int(ranks) >= int(nodes) >= 1
        found.setdefault(collective, []).append((int(least), int(most), algorithm, protocol))
    for ranges in found.values():
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 2**64 - 1
        assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))
        assert all(after[2:] != before[2:] for before, after in pairwise(ranges)), "one range, not two"
    return found


@pytest.mark.parametrize(
    ("name", "nodes", "ranks"),
    [
        ("h100-512", 1, 8),
        ("h100-512", 1, 2),
        ("h100-512", 64, 512),
        ("h100-512", 4, 16),
        ("a100-64", 8, 64),
        ("gb200-nvl72-144", 2, 144),
        ("mi300x-64", 2, 16),
        ("h100-rail-only-64", 8, 64),
    ],
)
def test_files_cover_every_size_with_valid_pairs(name, nodes, ranks):
    found = check_tuner(write_tuner(catalogue.load(name), nodes=nodes, ranks=ranks))
    assert set(found) == set(KINDS)


def test_the_choice_is_the_fastest():
    cluster = catalogue.load("h100-512")
    network = Network.of(cluster, Calibration())
    found = check_tuner(write_tuner(cluster, nodes=4, ranks=32))
    group = Spread(np.array([32.0]), tuple(np.array([m]) for m in (8.0, *[32.0] * (len(cluster.tiers) - 1))))
    for collective, ranges in found.items():
        for size in (2.0**i for i in range(8, 35)):
            options = candidates(KINDS[collective], np.array([size]), group, network)
            (choice,) = [line[2:] for line in ranges if line[0] <= size <= line[1]]
            named = {(a.replace("collnet", "collnet_direct"), p.lower()): s for (a, p), s in options.items()}
            assert named[choice] == min(named.values())
            whole = collective_s(KINDS[collective], np.array([size]), group, network)
            assert named[choice] + network.launch_s == pytest.approx(whole)


def test_small_messages_go_by_ll_and_large_ones_by_simple():
    found = check_tuner(write_tuner(catalogue.load("a100-64"), nodes=8, ranks=64))
    for ranges in found.values():
        assert ranges[0][3] == "ll"
        assert ranges[-1][3] == "simple"
    assert found["allreduce"][0][2] == "tree"


def test_switches_that_reduce_are_used():
    cluster = catalogue.load("h100-64")
    assert check_tuner(write_tuner(cluster, nodes=1, ranks=8))["allreduce"][-1][2:] == ("nvls", "simple")
    everywhere = replace(cluster, tiers=tuple(replace(tier, in_network_reduction=True) for tier in cluster.tiers))
    found = check_tuner(write_tuner(everywhere, nodes=8, ranks=64))
    assert found["allreduce"][-1][2:] == ("collnet_direct", "simple")


def test_own_sizes():
    text = write_tuner(catalogue.load("a100-64"), nodes=2, ranks=16, sizes=[10**3, 10**9])
    ranges = check_tuner(text)["allgather"]
    assert [line[:2] for line in ranges] == [(0, 10**9 - 1), (10**9, 2**64 - 1)]


@pytest.mark.parametrize(("nodes", "ranks"), [(0, 8), (1, 1), (1, 9), (3, 16), (9, 72), (16, 64)])
def test_groups_that_cannot_be(nodes, ranks):
    with pytest.raises(BadInput, match="evenly"):
        write_tuner(catalogue.load("a100-64"), nodes=nodes, ranks=ranks)


@pytest.mark.parametrize("sizes", [[], [0, 1], [5, 5], [9, 8], [2**64], [float("nan")], [1, float("inf")]])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(BadInput, match="ascending"):
        write_tuner(catalogue.load("a100-64"), nodes=1, ranks=8, sizes=sizes)
