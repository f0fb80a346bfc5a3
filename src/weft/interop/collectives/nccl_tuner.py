"""The configuration file of NCCL's example tuner plugin: which algorithm and protocol for which size.

The plugin reads the file that ``NCCL_TUNER_CONFIG_FILE`` names.  A line holds the collective, the least and
the most bytes, algorithm, protocol, channels, nodes and ranks; the first line that matches wins, and -1
leaves a value to NCCL.  NCCL counts as bytes the larger of its send and receive buffers, which is the full
buffer of ``weft.collectives.cost``; a node is a scale-up domain.  The file can hold neither all-to-alls nor
messages, and of a broadcast NCCL itself decides everything but the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network, candidates
from weft.errors import BadInput
from weft.layout.mesh import Spread
from weft.layout.operations import CollectiveKind
from weft.layout.table import Floats

COLLECTIVES: dict[CollectiveKind, str] = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
}
ALGORITHMS = {"ring": "ring", "tree": "tree", "nvls": "nvls", "collnet": "collnet_direct"}
SIZES = tuple(2**i for i in range(8, 35))
LARGEST_BYTES = 2**64 - 1


def write_tuner(
    cluster: Cluster, *, nodes: int, ranks: int, sizes: Sequence[int] = SIZES, calibration: Calibration | None = None
) -> str:
    """The fastest algorithm and protocol of each collective of ``ranks`` ranks, by size.

    The choice at each of ``sizes`` (bytes, ascending) holds up to the next; the first also below, the last
    also above.

    Args:
        nodes: scale-up domains that the ranks fill evenly, side by side.

    Raises:
        BadInput: ranks that do not lie evenly in the nodes or are not in the cluster, or sizes that do not
            ascend.
    """
    group = _group(cluster, nodes, ranks)
    given = np.array(sizes, dtype=np.float64)
    if not (len(given) and given[0] >= 1 and (np.diff(given) > 0).all() and given[-1] < LARGEST_BYTES):
        raise BadInput("are not ascending numbers of bytes", where="sizes")
    network = Network.of(cluster, calibration or Calibration())
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster.name)[:100]
    lines = [
        f"# {name}: {ranks} ranks on {nodes} nodes, the fastest by the cost model of Weft",
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks",
    ]
    for kind, written in COLLECTIVES.items():
        for least, most, (algorithm, protocol) in _ranges(kind, given, sizes, group, network):
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


def _ranges(
    kind: CollectiveKind, bytes_: Floats, sizes: Sequence[int], group: Spread, network: Network
) -> list[tuple[int, int, tuple[str, str]]]:
    """Least and most bytes of each choice, without gaps; neighbours with the same choice are one."""
    found = candidates(kind, bytes_, group, network)
    names = list(found)
    seconds = np.stack([np.broadcast_to(found[name], bytes_.shape) for name in names])
    best = np.argmin(seconds, axis=0).tolist()
    begins = [i for i, choice in enumerate(best) if i == 0 or choice != best[i - 1]]
    bounds = [0, *(sizes[i] for i in begins[1:]), LARGEST_BYTES + 1]
    return [
        (int(least), int(above) - 1, names[best[i]])
        for (least, above), i in zip(pairwise(bounds), begins, strict=True)
    ]
