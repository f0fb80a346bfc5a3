"""What NCCL reads: settings for a route plan (``/etc/nccl.conf``), and the file of its example tuner plugin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import PROTOCOLS, Network, candidates, lower_bound_s
from weft.errors import BadInput, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.layout.mesh import Spread
from weft.layout.operations import CollectiveKind
from weft.layout.table import Floats
from weft.routing.traffic import JobTraffic

# Environment ---------------------------------------------------------------------------------------------------
# NCCL settings that go with a route plan, as a file of KEY=VALUE lines (`/etc/nccl.conf`).
#
# NCCL opens as many queue pairs per connection as the plan has for a pair of accelerators, splits messages over them
# where the plan splits flows, and crosses rails where flows do. The file cannot put queue pairs on paths: NCCL asks
# for flow label 0, so that needs source ports (`roce`) and a plugin or agent that sets them.

MOST_QUEUE_PAIRS = 128
KEYS = {
    "NCCL_IB_QPS_PER_CONNECTION": (1, MOST_QUEUE_PAIRS),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (0, 1),
    "NCCL_CROSS_NIC": (0, 2),
    "NCCL_IB_ADAPTIVE_ROUTING": (-2, 1),
    "NCCL_IB_AR_THRESHOLD": (-2, 2**31 - 1),
    "NCCL_IB_GID_INDEX": (-1, 255),
    "NCCL_IB_SL": (-1, 15),
    "NCCL_IB_TC": (-1, 255),
    "NCCL_IB_SUBNET_AWARE_ROUTING": (0, 1),
}
"""Settings that the checker knows, and the range of each."""


def write_environment(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> str:
    """The settings for a plan.

    Raises:
        Unsupported: a pair has more queue pairs than NCCL opens.
    """
    pairs = 0  # the most queue pairs of a source and destination in one collective
    if len(traffic):
        keys = np.stack([traffic.collective, traffic.source, traffic.target, traffic.queue_pair])
        ends = np.unique(keys, axis=1)[:3]
        pairs = int(np.unique(ends, axis=1, return_counts=True)[1].max())
    if pairs > MOST_QUEUE_PAIRS:
        raise Unsupported(
            f"{pairs} queue pairs for one source and destination",
            where="NCCL",
            remedy=f"split flows over at most {MOST_QUEUE_PAIRS}",
        )
    flow = np.repeat(np.arange(len(traffic)), np.diff(routes.indptr))
    out = flow[fabric.tier[routes.links] > SCALE_UP]
    crosses = bool((fabric.rail[traffic.source[out]] != fabric.rail[traffic.target[out]]).any())
    lines = [
        "# Written by weft for a route plan.",
        "# NCCL asks for flow label 0: these settings do not put queue pairs on paths.  Give each queue pair",
        "# its UDP source port of the plan by a network plugin or an agent.",
        f"NCCL_IB_QPS_PER_CONNECTION={max(pairs, 1)}",
        f"NCCL_IB_SPLIT_DATA_ON_QPS={int(pairs > 1)}",
        f"NCCL_CROSS_NIC={int(crosses)}",
    ]
    if (routes.usage < 1).any():
        lines += ["# The plan spreads flows over several paths.", "NCCL_IB_ADAPTIVE_ROUTING=1"]
    return "\n".join(lines) + "\n"


def lint_environment(text: str) -> tuple[str, ...]:
    """What is wrong with a file: unknown keys, values that are not numbers of their range, repeated keys."""
    result, seen = [], set()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#") or not line:
            if "=" in line:
                result.append(f"line {number}: older NCCL takes a comment with = for a setting")
            continue
        match = re.fullmatch(r"([A-Z0-9_]+)=(-?[0-9]{1,10})", line)
        if match is None:
            result.append(f"line {number}: {line[:60]!r} is not KEY=NUMBER")
        elif match[1] not in KEYS:
            result.append(f"line {number}: {match[1][:60]} is not known")
        else:
            low, high = KEYS[match[1]]
            if not low <= int(match[2]) <= high:
                result.append(f"line {number}: {match[1]} is {match[2]}, not in {low} to {high}")
            result += [f"line {number}: {match[1]} is given twice"] if match[1] in seen else []
            seen.add(match[1])
    return tuple(result)


# Tuner file ----------------------------------------------------------------------------------------------------
# The configuration file of NCCL's example tuner plugin: which algorithm and protocol for which size.
#
# The plugin reads the file that ``NCCL_TUNER_CONFIG_FILE`` names.  A line holds the collective, the least and
# the most bytes, algorithm, protocol, channels, nodes and ranks; the first line that matches wins, and -1
# leaves a value to NCCL.  What no line matches, NCCL decides itself.  NCCL counts as bytes the larger of its send and
# receive buffers, which is the full buffer of ``weft.collectives.cost``; a node is a scale-up domain.  The file can
# hold neither all-to-alls nor messages, and of a broadcast NCCL itself decides everything but the protocol.
#
# A line is written for a range of sizes only where, at both of its ends, its algorithm is the fastest that Weft models
# and no algorithm that NCCL has and Weft does not model could be faster: NVLS-Tree, CollNet beyond the all-reduce,
# CollNet's chains, PAT.  All modelled times, and the bound under which no other algorithm can come, are straight lines
# over the bytes; so what holds at both ends holds between them.

COLLECTIVES: dict[CollectiveKind, str] = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
}
ALGORITHMS = {"ring": "ring", "tree": "tree", "nvls": "nvls", "collnet": "collnet_direct"}
SIZES = tuple(2**i for i in range(8, 35))
LARGEST_BYTES = 2**64 - 1
_HEAD = (
    "# What is not listed is left to NCCL: sizes at which the fastest changes, or an algorithm that Weft does",
    "# not model (NVLS-Tree, PAT, other forms of CollNet) may be faster.",
    "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks",
)


def write_tuner(groups: Sequence[tuple[Cluster, int, int]], *, calibration: Calibration | None = None) -> str:
    """The fastest algorithm and protocol of each collective, by size, for groups of cluster, nodes and ranks.

    Ranges lie between neighbours of ``SIZES``, below the first and above the last.  Those in which the fastest
    changes, or in which an algorithm that is not modelled may be faster, are left to NCCL.  ``nodes`` are scale-up
    domains that the ranks fill evenly, side by side.
    """
    lines = []
    for cluster, nodes, ranks in groups:
        group, network = _group(cluster, nodes, ranks), Network.of(cluster, calibration or Calibration())
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster.name)[:100]
        lines.append(f"# {name}: {ranks} ranks on {nodes} nodes, the fastest by the cost model of Weft")
        lines += _HEAD if len(lines) == 1 else ()
        for kind, written in COLLECTIVES.items():
            for least, most, (algorithm, protocol) in _ranges(kind, group, network):
                fields = (written, least, most, ALGORITHMS[algorithm], protocol.lower(), -1, nodes, ranks)
                lines.append(",".join(map(str, fields)))
    return "\n".join([*lines, ""])


def _group(cluster: Cluster, nodes: int, ranks: int) -> Spread:
    """The ranks on the tiers of the network."""
    domain = cluster.spans[0]
    if nodes < 1 or ranks < 2 or ranks % nodes or ranks // nodes > domain or nodes * domain > cluster.count:
        raise BadInput(
            f"{ranks} ranks do not lie evenly in {nodes} nodes of {domain} accelerators of {cluster.name}",
            where="nodes, ranks",
            remedy=f"give 2 ranks or more, and at most {cluster.count // domain} nodes",
        )
    each = ranks // nodes
    members = [min(span // domain * each, ranks) for span in cluster.spans]
    return Spread(np.array([float(ranks)]), tuple(np.array([float(count)]) for count in members))


def _ranges(kind: CollectiveKind, group: Spread, network: Network) -> list[tuple[int, int, tuple[str, str]]]:
    """Least and most bytes of each choice; neighbours with the same choice are one, what is left out is NCCL's."""
    ends = np.array([1, *SIZES, LARGEST_BYTES], dtype=np.float64)
    bounds = [0, *SIZES, LARGEST_BYTES + 1]
    result = candidates(kind, ends, group, network)
    names = list(result)
    seconds = np.stack([np.broadcast_to(result[name], ends.shape) for name in names])
    sure = seconds <= np.minimum(seconds.min(axis=0), others_s(kind, ends, group, network))
    ranges: list[tuple[int, int, tuple[str, str]]] = []
    for i, (least, above) in enumerate(pairwise(bounds)):
        pairs = np.flatnonzero(sure[:, i] & sure[:, i + 1])
        if not len(pairs):
            continue
        name = names[int(pairs[0])]
        if ranges and ranges[-1][1] == least - 1 and ranges[-1][2] == name:
            least = ranges.pop()[0]
        ranges.append((least, above - 1, name))
    return ranges


def others_s(kind: CollectiveKind, bytes_: Floats, group: Spread, network: Network) -> Floats:
    """Seconds that no algorithm of NCCL's that Weft does not model can undercut; infinite where there is none.

    They all use the Simple protocol.  NVLS-Tree (all-reduces over several domains with switches that reduce) and
    PAT (one rank a domain) take at least one step for each doubling of the domains; CollNet, where every tier
    reduces, at least one.  Bytes cross no tier faster than ``lower_bound_s`` says.
    """
    domains, each = group.size / group.members[0], group.members[0]
    reduced = all(network.reduces[1:]) and len(network.reduces) > 1
    steps = np.full_like(group.size, np.inf)
    doublings = np.maximum(np.floor(np.log2(domains)), 1.0)
    if kind == "all-reduce":
        steps = np.where((each > 1) & network.reduces[0], 2.0 * doublings, steps)
    else:
        steps = np.where(each == 1, doublings, steps)
    if reduced:
        steps = np.minimum(steps, 2.0 if kind == "all-reduce" else 1.0)
    step = PROTOCOLS[-1].outside_s + min(network.latency_s[1:], default=0.0)
    bound = steps * step + lower_bound_s(kind, bytes_, group, network)
    return np.where(domains > 1, bound, np.inf)
