"""Files for NCCL's tuner plugin: grammar, ranges, and choices against the cost model."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from weft.cluster import catalogue
from weft.cluster.calibration import Calibration
from weft.collectives.cost import Network, candidates, collective_s
from weft.errors import BadInput
from weft.interop.nccl import others_s, write_tuner
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
        assert all(after[0] > before[1] for before, after in pairwise(ranges))
        touching = [(before, after) for before, after in pairwise(ranges) if after[0] == before[1] + 1]
        assert all(after[2:] != before[2:] for before, after in touching), "one range, not two"
    return found


GROUPS = [
    ("h100-512", 1, 8),
    ("h100-512", 1, 2),
    ("h100-512", 64, 512),
    ("h100-512", 4, 16),
    ("h100-512", 8, 8),
    ("a100-64", 8, 64),
    ("a100-64", 8, 8),
    ("gb200-nvl72-144", 2, 144),
    ("mi300x-64", 2, 16),
    ("h100-rail-only-64", 8, 64),
]


def spread(cluster, nodes, ranks):
    """The group of a file, counted by hand."""
    each, domain = ranks // nodes, cluster.tiers[0].size
    members, span = [float(each)], domain
    for tier in cluster.tiers[1:]:
        span *= tier.size
        members.append(float(min(span // domain * each, ranks)))
    return Spread(np.array([float(ranks)]), tuple(np.array([count]) for count in members))


@pytest.mark.parametrize(("name", "nodes", "ranks"), GROUPS)
def test_no_row_pins_what_is_slower(name, nodes, ranks):
    """At every size in a row its algorithm is the fastest modelled one, and none beyond the model can be faster."""
    cluster = catalogue.load(name)
    network, group = Network.of(cluster, Calibration()), spread(cluster, nodes, ranks)
    found = check_tuner(write_tuner([(cluster, nodes, ranks)]))
    sizes = np.unique(np.round(2.0 ** np.linspace(0, 40, 400)))
    for collective, ranges in found.items():
        kind = KINDS[collective]
        for least, most, algorithm, protocol in ranges:
            inside = sizes[(sizes >= max(least, 1)) & (sizes <= most)]
            ends = np.array([max(least, 1.0), *inside, float(most)])
            options = candidates(kind, ends, group, network)
            named = {(a.replace("collnet", "collnet_direct"), p.lower()): s for (a, p), s in options.items()}
            pinned = named[algorithm, protocol]
            assert (pinned <= np.minimum.reduce(list(named.values())) * (1 + 1e-9)).all()
            assert (pinned <= others_s(kind, ends, group, network) * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("name", "nodes", "ranks"), [g for g in GROUPS if g[0] in ("a100-64", "mi300x-64") or g[1] == 1]
)
def test_everything_but_the_changes_is_written_where_all_is_modelled(name, nodes, ranks):
    """Without switches that reduce between several nodes, only the few steps in which the fastest changes are open."""
    found = check_tuner(write_tuner([(catalogue.load(name), nodes, ranks)]))
    for collective, ranges in found.items():
        if nodes == ranks and collective != "allreduce":
            continue
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 2**64 - 1
        gaps = [(before, after) for before, after in pairwise(ranges) if after[0] > before[1] + 1]
        assert all(after[0] <= 8 * (before[1] + 1) for before, after in gaps)
        assert all(before[2:] != after[2:] for before, after in gaps)


def test_nvls_tree_is_left_to_nccl():
    """All-reduces over domains whose switches reduce: small ones go by LL, large ones are NCCL's to choose."""
    found = check_tuner(write_tuner([(catalogue.load("h100-512"), 4, 32)]))
    assert found["allreduce"][0][2:] == ("tree", "ll")
    assert max(most for _, most, *_ in found["allreduce"]) < 2**24
    assert found["allgather"][-1][1:] == (2**64 - 1, "ring", "simple")
    within = check_tuner(write_tuner([(catalogue.load("h100-512"), 1, 8)]))
    assert within["allreduce"][-1][1:] == (2**64 - 1, "nvls", "simple")


def test_pat_and_collnet_are_left_to_nccl():
    """PAT: gathers of one rank a node.  CollNet: everything large where every switch reduces."""
    single = check_tuner(write_tuner([(catalogue.load("h100-512"), 8, 8)]))
    assert single["allreduce"][-1][1] == 2**64 - 1
    assert all(ranges[-1][1] < 2**64 - 1 for name, ranges in single.items() if name != "allreduce")
    cluster = catalogue.load("h100-64")
    everywhere = replace(cluster, tiers=tuple(replace(tier, in_network_reduction=True) for tier in cluster.tiers))
    text = write_tuner([(everywhere, 8, 64)])
    assert all(ranges[-1][1] < 2**64 - 1 for ranges in check_tuner(text).values())
    assert "NVLS-Tree" in text


def test_the_model_chooses_as_the_estimate_does():
    cluster = catalogue.load("a100-64")
    network, group = Network.of(cluster, Calibration()), spread(cluster, 8, 64)
    for collective, ranges in check_tuner(write_tuner([(cluster, 8, 64)])).items():
        for least, _, algorithm, protocol in ranges:
            size = np.array([max(least, 1.0)])
            options = {(a, p.lower()): s for (a, p), s in candidates(KINDS[collective], size, group, network).items()}
            whole = collective_s(KINDS[collective], size, group, network)
            assert options[algorithm, protocol] + network.launch_s == pytest.approx(whole)


def test_small_messages_go_by_ll_and_large_ones_by_simple():
    found = check_tuner(write_tuner([(catalogue.load("a100-64"), 8, 64)]))
    for ranges in found.values():
        assert ranges[0][3] == "ll"
        assert ranges[-1][3] == "simple"
    assert found["allreduce"][0][2] == "tree"


@pytest.mark.parametrize(("nodes", "ranks"), [(0, 8), (1, 1), (1, 9), (3, 16), (9, 72), (16, 64)])
def test_groups_that_cannot_be(nodes, ranks):
    with pytest.raises(BadInput, match="evenly"):
        write_tuner([(catalogue.load("a100-64"), nodes, ranks)])
