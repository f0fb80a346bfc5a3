"""Networks and flows for the HPCC fork of ns-3 (github.com/alibaba-edu/High-Precision-Congestion-Control): its
topology, flow and trace files, and a configuration that names them.

Nodes keep the fabric's numbers, accelerators first; scale-up links and their switches are left out.  A bundle of
cables is one link of their summed rate, as the fork knows one link between two nodes.  It hashes flows itself.
"""

from __future__ import annotations

import numpy as np

from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.simulators.htsim import leaving
from weft.routing.traffic import JobTraffic

MOST_BYTES = 2**32 - 1
"""Bytes of a flow: the fork reads a number of 32 bits."""
BEGIN_S = 2.0
"""When the fork's own examples begin: its link failures count from there."""
_PRIORITY, _PORT = 3, 100
_KMIN_BYTES, _KMAX_BYTES, _PMAX = 100, 400, 0.2
"""KB in a queue at 25 Gb/s from which packets are marked, all of them with ``_PMAX``: the fork's config.txt."""
_STEP_Mbps = 5
"""Of the additive increase at 25 Gb/s, a tenth of the hyper increase: DCQCN in the fork's run.py, as the timers."""
_AT_bps = 25e9
_SLOWEST_SHARE = 0.02
"""Of line rate: how slow the run may be before it is stopped."""


def write(fabric: Fabric, traffic: JobTraffic) -> dict[str, str]:
    """topology.txt, flow.txt with one round of every collective, an empty trace.txt, and config.txt (DCQCN).

    Raises:
        BadInput: no flow leaves a scale-up domain.
        Unsupported: a flow is too large.
    """
    flows = leaving(fabric, traffic, "ns3", MOST_BYTES)
    start_s = BEGIN_S + traffic.start_s[traffic.flow_job[flows]]
    order = np.argsort(start_s, kind="stable")
    rows = [
        f"{traffic.source[flow]} {traffic.target[flow]} {_PRIORITY} {_PORT} {max(round(bytes_), 1)} {start:.9f}"
        for flow, bytes_, start in zip(
            flows[order].tolist(), traffic.bytes[flows[order]].tolist(), start_s[order].tolist(), strict=True
        )
    ]
    ports = np.bincount(traffic.source[flows], traffic.bytes[flows]) + 0.0
    slowest = float(fabric.capacity_Bps[fabric.tier > SCALE_UP].min()) * _SLOWEST_SHARE
    return {
        "topology.txt": write_topology(fabric),
        "flow.txt": "\n".join([str(len(rows)), *rows]) + "\n",
        "trace.txt": "0\n",
        "config.txt": write_configuration(fabric, float(start_s.max()) + float(ports.max()) / slowest),
    }


def write_topology(fabric: Fabric) -> str:
    """The topology file: counts, switches, then a line a link that is up."""
    links = np.flatnonzero((fabric.tier > SCALE_UP) & fabric.up & (fabric.source < fabric.target))
    ends = np.concatenate([fabric.source[links], fabric.target[links]])
    used = np.unique(np.concatenate([np.arange(fabric.accelerators), ends]))
    number = np.full(fabric.nodes, -1, dtype=np.int64)
    number[used] = np.arange(len(used))
    lines = [f"{len(used)} {len(used) - fabric.accelerators} {len(links)}"]
    lines.append(" ".join(map(str, range(fabric.accelerators, len(used)))))
    for link in links.tolist():
        ends_of = f"{number[fabric.source[link]]} {number[fabric.target[link]]}"
        bits, ns = round(float(fabric.capacity_Bps[link]) * 8), float(fabric.latency_s[link]) * 1e9
        lines.append(f"{ends_of} {bits}bps {ns:.3f}ns 0")
    return "\n".join(lines) + "\n"


def write_configuration(fabric: Fabric, stop_s: float) -> str:
    """The configuration: DCQCN with the values of the fork's run.py, marks in proportion to a link's rate."""
    rates = np.unique(np.rint(fabric.capacity_Bps[fabric.tier > SCALE_UP] * 8).astype(np.int64))
    kmin, kmax = (
        " ".join(f"{rate} {max(round(each * rate / _AT_bps), 1)}" for rate in rates.tolist())
        for each in (_KMIN_BYTES, _KMAX_BYTES)
    )
    pmax = " ".join(f"{rate} {_PMAX}" for rate in rates.tolist())
    step = max(round(_STEP_Mbps * float(rates[0]) / _AT_bps), 1)
    values = {
        "ENABLE_QCN": 1,
        "USE_DYNAMIC_PFC_THRESHOLD": 1,
        "PACKET_PAYLOAD_SIZE": 1000,
        "TOPOLOGY_FILE": "topology.txt",
        "FLOW_FILE": "flow.txt",
        "TRACE_FILE": "trace.txt",
        "TRACE_OUTPUT_FILE": "trace.out",
        "FCT_OUTPUT_FILE": "fct.txt",
        "PFC_OUTPUT_FILE": "pfc.txt",
        "SIMULATOR_STOP_TIME": f"{stop_s:.6f}",
        "CC_MODE": 1,
        "ALPHA_RESUME_INTERVAL": 1,
        "RATE_DECREASE_INTERVAL": 4,
        "CLAMP_TARGET_RATE": 0,
        "RP_TIMER": 300,
        "EWMA_GAIN": 0.00390625,
        "FAST_RECOVERY_TIMES": 1,
        "RATE_AI": f"{step}Mb/s",
        "RATE_HAI": f"{10 * step}Mb/s",
        "MIN_RATE": "100Mb/s",
        "DCTCP_RATE_AI": "1000Mb/s",
        "ERROR_RATE_PER_LINK": "0.0000",
        "L2_CHUNK_SIZE": 4000,
        "L2_ACK_INTERVAL": 1,
        "L2_BACK_TO_ZERO": 0,
        "HAS_WIN": 0,
        "GLOBAL_T": 1,
        "VAR_WIN": 0,
        "FAST_REACT": 0,
        "U_TARGET": 0.95,
        "MI_THRESH": 0,
        "INT_MULTI": 1,
        "MULTI_RATE": 0,
        "SAMPLE_FEEDBACK": 0,
        "RATE_BOUND": 1,
        "ACK_HIGH_PRIO": 1,
        "LINK_DOWN": "0 0 0",
        "ENABLE_TRACE": 0,
        "KMAX_MAP": f"{len(rates)} {kmax}",
        "KMIN_MAP": f"{len(rates)} {kmin}",
        "PMAX_MAP": f"{len(rates)} {pmax}",
        "BUFFER_SIZE": 32,
        "QLEN_MON_FILE": "qlen.txt",
        "QLEN_MON_START": 0,
        "QLEN_MON_END": 0,
    }
    return "".join(f"{key} {value}\n" for key, value in values.items())
