"""NCCL settings that go with a route plan, as a file of KEY=VALUE lines (``/etc/nccl.conf``).

NCCL opens as many queue pairs per connection as the plan has for a pair of accelerators, splits messages over
them where the plan splits flows, and crosses rails where flows do.  The file cannot put queue pairs on paths:
NCCL asks for flow label 0, so that needs source ports (``roce``) and a plugin or agent that sets them.
"""

from __future__ import annotations

import re

import numpy as np

from weft.errors import Unsupported
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.routing.traffic import JobTraffic

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


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> str:
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


def lint(text: str) -> tuple[str, ...]:
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
