"""Max-min and the transport model beside a packet simulator: flow completion times on fat-trees.

    python benchmarks/congestion.py --roce HTSIM_ROCE --uec HTSIM_UEC

The binaries are htsim's (github.com/ultraethernet/uet-htsim, main_roce.cpp and main_uec.cpp), or the environment's
HTSIM_ROCE and HTSIM_UEC; without them the simulator's times are those of the record, and only ours are made anew.
The files that they read are written by ``htsim.py`` beside this one.  ``busy`` of each transport is fitted to the last
completions on 16 hosts, incasts aside; errors are stated for those and for the others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import bench
import numpy as np
from htsim import tree_of, write_matrix, write_topology

from weft.fabric.families import clos
from weft.fabric.paths import Paths
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import Routes, at_once
from weft.fabric.transport import TRANSPORTS, Transport
from weft.routing.traffic import job_traffic
from weft.simulation.flows.engine import run
from weft.solvers.maxmin import solve

GBPS, WIRE_S = 100, 0.5e-6
HEADER_BYTES = 64
"""htsim's own; its packets hold 4,096 bytes besides."""
PACKET_S = (4096 + HEADER_BYTES) * 8e-9 / GBPS
HASHES = 24
BUSY = np.arange(0.70, 1.001, 0.01)
END_US = 100_000


class How(NamedTuple):
    """How the simulator is told a transport, and which of ours it is held against."""

    ours: str
    binary: str
    options: str


HOWS = {
    "roce-ecmp": How("roce-ecmp", "roce", "-strat ecmp_host -paths 64"),
    "roce-flowlet": How("roce-ecmp", "roce", "-strat ecmp_ar"),
    "roce-adaptive": How("roce-adaptive", "roce", "-strat ecmp_ar -out_of_order"),
    "uec-ecmp": How("roce-ecmp", "uec", "-load_balancing_algo oblivious -paths 1 -sender_cc_algo nscc"),
    "packet-spray": How("packet-spray", "uec", "-load_balancing_algo mixed -paths 64 -sender_cc_algo nscc"),
}


class Scenario(NamedTuple):
    """A pattern of flows of equal bytes on the fat-tree of radix ``k``, over so many queue pairs, seeds times."""

    pattern: str
    k: int
    how: str
    bytes: int
    seeds: int
    queue_pairs: int = 1

    @property
    def name(self) -> str:
        pairs = f"_{self.queue_pairs}qp" if self.queue_pairs > 1 else ""
        return f"{self.pattern}_k{self.k}_{self.how}{pairs}".replace("-", "_")

    @property
    def fitted(self) -> bool:
        return self.k == 4 and not self.pattern.startswith("incast")


MB = 1_000_000
SCENARIOS = [
    *(Scenario("permutation", 4, how, 2 * MB, 12) for how in HOWS),
    *(Scenario("permutation", 4, "roce-ecmp", 2 * MB, 8, pairs) for pairs in (4, 16)),
    *(Scenario("shift-5", 4, how, 2 * MB, 8) for how in ("roce-ecmp", "roce-adaptive", "packet-spray")),
    *(Scenario("all-to-all-16", 4, how, MB // 8, 2) for how in ("roce-ecmp", "roce-adaptive", "packet-spray")),
    *(
        Scenario(f"incast-{m}", 4, how, MB, 2)
        for m in (4, 12)
        for how in ("roce-ecmp", "roce-adaptive", "packet-spray")
    ),
    *(Scenario("permutation", 6, how, 2 * MB, 4) for how in ("roce-ecmp", "roce-adaptive", "packet-spray")),
    *(Scenario("all-to-all-18", 6, how, MB // 8, 1) for how in ("roce-ecmp", "packet-spray")),
    *(Scenario("incast-24", 6, how, MB // 2, 1) for how in ("roce-ecmp", "packet-spray")),
    *(Scenario("bystanders-12", 6, how, MB, 2) for how in ("roce-ecmp", "packet-spray")),
    *(Scenario("permutation", 8, how, 2 * MB, 3) for how in ("roce-ecmp", "roce-adaptive", "packet-spray")),
    Scenario("permutation", 8, "roce-ecmp", 2 * MB, 3, 4),
]


@cache
def fabric(k: int) -> Fabric:
    """The fat-tree; a link's latency is its wire there and back, and a packet that is stored and forwarded."""
    latency_s = 2 * WIRE_S + PACKET_S
    return clos.build(
        k**3 // 4, radix=k, tiers=3, bandwidth_Bps=GBPS / 8 * 1e9, nic_latency_s=latency_s, switch_latency_s=latency_s
    )


def ends(one: Scenario, seed: int) -> tuple[Ints, Ints]:
    """Sources and targets."""
    hosts, draw = one.k**3 // 4, np.random.default_rng(seed)
    every = np.arange(hosts)
    kind, _, number = one.pattern.rpartition("-")
    if kind == "shift":
        return every, (every + int(number)) % hosts
    if kind == "incast":
        return draw.permutation(every[1:])[: int(number)], np.zeros(int(number), dtype=np.int64)
    if kind == "all-to-all":
        some = every[:: hosts // int(number)]
        source, target = (each.ravel() for each in np.meshgrid(some, some, indexing="ij"))
        return source[source != target], target[source != target]
    if kind == "bystanders":
        many = int(number)
        some = draw.permutation(every[1:])
        senders, rest = some[:many], some[many:]
        return np.concatenate([senders, rest]), np.concatenate([np.zeros(many, dtype=np.int64), np.roll(rest, 1)])
    while True:
        target = draw.permutation(hosts)
        if (target != every).all():
            return every, target


def simulated(one: Scenario, seed: int, binaries: dict[str, str]) -> Floats:
    """Completion of every flow in htsim, in s; of several queue pairs the last."""
    source, target = ends(one, seed)
    flow = np.repeat(np.arange(len(source)), one.queue_pairs)
    how, there = HOWS[one.how], fabric(one.k)
    bytes_ = np.full(len(flow), one.bytes / one.queue_pairs)
    with tempfile.TemporaryDirectory() as folder:
        plain = replace(there, latency_s=np.full(there.links, WIRE_S))
        tree = tree_of(plain)
        Path(folder, "t.topo").write_text(write_topology(tree))
        text = write_matrix(plain, job_traffic(source[flow], target[flow], bytes_), tree)
        Path(folder, "t.cm").write_text(re.sub(r" id \d+", "", text))
        network = f"-tiers 3 -linkspeed {GBPS * 1000} -hop_latency {WIRE_S * 1e6} -q 1000 -mtu 4096"
        if how.binary == "uec":
            network = f"-topo t.topo -mtu {4096 + HEADER_BYTES}"
        words = (
            f"-nodes {there.accelerators} {network} -tm t.cm {how.options} -end {END_US} -seed {seed + 1} -o /dev/null"
        )
        done = subprocess.run(
            [binaries[how.binary], *words.split()],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
            check=False,
        )
    found = dict.fromkeys(zip(source.tolist(), target.tolist(), strict=True), 0.0)
    ended = re.findall(r"^Flow (?:Roce|Uec)_(\d+)_(\d+) .*?finished at ([0-9.]+)", done.stdout, re.MULTILINE)
    if len(ended) != len(flow):
        raise SystemExit(f"{one.name}, seed {seed}: {len(ended)} of {len(flow)} flows ended: {done.stdout[-300:]}")
    for a, b, us in ended:
        found[int(a), int(b)] = max(found[int(a), int(b)], float(us) * 1e-6)
    return np.array(list(found.values()))


def predicted(one: Scenario, carried: Transport, hashes: int) -> tuple[float, float]:
    """Mean and last completion of ours in s, over seeds and hashes."""
    there = fabric(one.k)
    capacity = there.capacity_Bps * carried.shares(there)
    draws = hashes if carried.mode == "ecmp" else 1
    times = [
        run(capacity, at_once(source, target, np.full(len(source), float(one.bytes))), routes).completion_s
        for source, target, routes in (
            each for seed in range(one.seeds) for each in _routed(one, carried, seed, draws)
        )
    ]
    return float(np.mean([each.mean() for each in times])), float(np.mean([each.max() for each in times]))


@cache
def _routed(one: Scenario, carried: Transport, seed: int, draws: int) -> list[tuple[Ints, Ints, Routes]]:
    source, target = ends(one, seed)
    paths = Paths(fabric(one.k))
    return [(source, target, carried.routes(paths, source, target, seed=1000 * seed + draw)) for draw in range(draws)]


def model(one: Scenario, busy: float, hashes: int) -> tuple[float, float]:
    """Ours with the simulator's header and a share that links between switches are busy."""
    ours = TRANSPORTS[HOWS[one.how].ours]
    carried = replace(ours.over(one.queue_pairs), header_bytes=HEADER_BYTES, busy=busy)
    return predicted(one, carried, hashes)


def fit(times: dict[str, tuple[float, float]], ours: str, hashes: int) -> float:
    """The share with the least squared error of the logarithm of last completions."""
    used = [one for one in SCENARIOS if one.fitted and one.how == ours and one.name in times]
    if not used:
        return 1.0
    errors = [
        sum(np.log(model(one, float(busy), hashes)[1] / times[one.name][1]) ** 2 for one in used) for busy in BUSY
    ]
    return float(BUSY[int(np.argmin(errors))])


def known() -> dict[str, tuple[float, float]]:
    """Mean and last completion in the simulator, as the record has them."""
    path = bench.RESULTS / "congestion.json"
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
    return {
        one.name: (figures[f"{one.name}_simulated_mean_us"] * 1e-6, figures[f"{one.name}_simulated_last_us"] * 1e-6)
        for one in SCENARIOS
        if f"{one.name}_simulated_last_us" in figures
    }


def share(there: Fabric, name: str, source: Ints, target: Ints, pairs: int = 1) -> tuple[float, float]:
    """The mean and the slowest flow's part of its port under a transport, over hashes."""
    carried = TRANSPORTS[name].over(pairs)
    capacity, flows = there.capacity_Bps * carried.shares(there), len(source)
    found = []
    for draw in range(HASHES if carried.mode == "ecmp" else 1):
        routes = carried.routes(Paths(there), source, target, seed=draw)
        rates = solve(capacity, routes.indptr, routes.links, routes.usage, np.ones(flows), np.full(flows, np.inf))
        found.append(rates / there.capacity_Bps[0])
    return float(np.mean(found)), float(np.mean([one.min() for one in found]))


def published() -> dict[str, float]:
    """What the model says of two published cases: AllReduce between racks over more queue pairs, and the bandwidth of
    a loaded leaf-spine with and without adaptive routing."""
    racks = clos.build(256, radix=32, tiers=2, bandwidth_Bps=50e9)
    hosts = np.arange(256)
    ring = hosts, (hosts + 16) % 256
    slowest = {pairs: share(racks, "roce-ecmp", *ring, pairs)[1] for pairs in (1, 4, 16)}
    wide = clos.build(1024, radix=64, tiers=2, bandwidth_Bps=50e9)
    some = np.random.default_rng(0).permutation(1024)
    ends = some, np.roll(some, 1)
    found = {f"racks_{pairs}qp_gain": slowest[pairs] / slowest[1] - 1 for pairs in (4, 16)}
    found |= {
        "leaf_spine_ecmp_share": share(wide, "roce-ecmp", *ends)[0],
        "leaf_spine_adaptive_share": share(wide, "roce-adaptive", *ends)[0],
    }
    print(found)
    return found


def stated(name: str, errors: Sequence[float]) -> dict[str, float]:
    """Mean and largest size of errors."""
    sizes = np.abs(errors)
    print(f"{name:40} {len(sizes):3} scenarios, mean error {sizes.mean():6.1%}, largest {sizes.max():6.1%}")
    return {f"{name}_mean_error": float(sizes.mean()), f"{name}_largest_error": float(sizes.max())}


def main() -> None:
    asked = bench.parser(__doc__)
    asked.add_argument("--roce", default=os.environ.get("HTSIM_ROCE"), help="htsim's main_roce, compiled")
    asked.add_argument("--uec", default=os.environ.get("HTSIM_UEC"), help="htsim's main_uec, compiled")
    options = asked.parse_args()
    times, hashes = known(), 4 if options.tiny else HASHES
    if options.roce and options.uec:
        binaries, times = {"roce": str(Path(options.roce).resolve()), "uec": str(Path(options.uec).resolve())}, {}
        for one in SCENARIOS[: 3 if options.tiny else None]:
            found = [simulated(one, seed, binaries) for seed in range(one.seeds)]
            times[one.name] = float(np.mean(found)), float(np.mean([each.max() for each in found]))
            print(
                f"{one.name:44} {times[one.name][0] * 1e6:9.1f} us mean {times[one.name][1] * 1e6:9.1f} us last",
                flush=True,
            )
    chosen = [one for one in SCENARIOS if one.name in times][: 4 if options.tiny else None]
    figures: dict[str, float] = {
        "scenarios": len(chosen),
        "flows": sum(len(ends(one, 0)[0]) * one.seeds for one in chosen),
    }
    busy = {ours: fit(times, ours, 4) for ours in ("roce-ecmp", "roce-adaptive", "packet-spray")}
    figures |= {f"busy_{ours}".replace("-", "_"): share for ours, share in busy.items()}
    errors: dict[str, list[tuple[Scenario, float, float]]] = {"ideal": [], "model": []}
    for one in chosen:
        mean_s, last_s = times[one.name]
        figures |= {f"{one.name}_simulated_mean_us": mean_s * 1e6, f"{one.name}_simulated_last_us": last_s * 1e6}
        ideal = replace(TRANSPORTS["ideal"], mode=TRANSPORTS[HOWS[one.how].ours].mode)
        for name, (mine_mean_s, mine_last_s) in (
            ("ideal", predicted(one, ideal, hashes)),
            ("model", model(one, busy[HOWS[one.how].ours], hashes)),
        ):
            figures[f"{one.name}_{name}_last_error"] = mine_last_s / last_s - 1
            errors[name].append((one, mine_mean_s / mean_s - 1, mine_last_s / last_s - 1))
    for name, rows in errors.items():
        figures |= stated(f"{name}_last", [last for _, _, last in rows])
        figures |= stated(f"{name}_mean", [mean for _, mean, _ in rows])
        if aside := [last for one, _, last in rows if not one.fitted]:
            figures |= stated(f"{name}_last_not_fitted", aside)
        for kind in ("permutation", "shift", "all-to-all", "incast", "bystanders"):
            if some := [last for one, _, last in rows if one.pattern.startswith(kind)]:
                figures |= stated(f"{name}_last_{kind}".replace("-", "_"), some)
    figures |= published()
    bench.record(options, figures)


if __name__ == "__main__":
    main()
