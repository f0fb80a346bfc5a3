"""How long the route controller takes to decide at 10,000 flows, mean and most, over a stream of events.

Twenty jobs of rings of 2, 4 and 8 with 500 flows each on a three-tier Clos of 16,384 hosts; then 200 events: jobs end
and arrive, links and switches go down and come up, links are measured, unknown flows appear, time passes.  A decision
is ``Controller.apply``, with the efficiency before and after.

Run: ``python benchmarks/decisions.py``.  CPU milliseconds, compiled code warm, every event once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

import bench
import numpy as np

from routing import large_fabric
from weft.fabric.spec import Fabric, Ints
from weft.routing.controller import Controller, Event
from weft.routing.telemetry import LinkSample
from weft.routing.traffic import JobTraffic, job_traffic

JOBS, FLOWS, EVENTS, WARM = 20, 500, 200, 40


def rings(name: str, hosts: Ints, ring: int) -> JobTraffic:
    """A job of rings over hosts."""
    members = hosts[: len(hosts) // ring * ring].reshape(-1, ring)
    target = np.roll(members, -1, axis=1).ravel()
    ring_of = np.repeat(np.arange(len(members)), ring)
    return job_traffic(members.ravel(), target, np.full(len(target), 1e9), collective=ring_of, jobs=(name,))


def events(fabric: Fabric, seed: int) -> Iterator[Event]:
    """Arrivals of all jobs, then what may happen."""
    draw = np.random.default_rng(seed)
    hosts = draw.permutation(fabric.accelerators)
    running: dict[str, Ints] = {}
    down: list[tuple[str, ...]] = []
    switches = [fabric.names[node] for role in ("spine", "core") for node in fabric.nodes_of(role)]
    cables = np.flatnonzero((fabric.source >= fabric.accelerators) & (fabric.target > fabric.source))

    def arrival(number: int, now_s: float) -> Event:
        nonlocal hosts
        running[f"job {number}"], hosts = hosts[:FLOWS], hosts[FLOWS:]
        traffic = rings(f"job {number}", running[f"job {number}"], int(draw.choice((2, 4, 8))))
        return Event(time_s=now_s, kind="job-arrives", job=f"job {number}", traffic=traffic)

    yield from (arrival(number, 0.0) for number in range(JOBS))
    now_s = 0.0
    for number in range(JOBS, JOBS + EVENTS):
        now_s += float(draw.uniform(1, 30))
        what = draw.choice(("job", "network", "tick", "counters", "traffic"), p=(0.2, 0.3, 0.2, 0.15, 0.15))
        job = str(draw.choice(list(running)))
        link = int(draw.choice(cables))
        if what == "job":
            hosts = draw.permutation(np.concatenate([hosts, running.pop(job)]))
            yield Event(time_s=now_s, kind="job-ends", job=job)
            yield arrival(number, now_s)
        elif what == "network" and down and draw.random() < 0.6:
            nodes = down.pop(int(draw.integers(len(down))))
            yield Event(time_s=now_s, kind="switch-up" if len(nodes) == 1 else "link-up", nodes=nodes)
        elif what == "network":
            ends = fabric.names[fabric.source[link]], fabric.names[fabric.target[link]]
            nodes = (str(draw.choice(switches)),) if draw.random() < 0.3 else ends
            if nodes not in down:
                down.append(nodes)
                yield Event(time_s=now_s, kind="switch-down" if len(nodes) == 1 else "link-down", nodes=nodes)
        elif what == "counters":
            measured = draw.choice(cables, 32, replace=False).tolist()
            samples = (
                LinkSample(
                    ends=(int(fabric.source[each]), int(fabric.target[each])),
                    loss=1e-3 if draw.random() < 0.02 else 0.0,
                )
                for each in measured
            )
            yield Event(time_s=now_s, kind="counters", samples=tuple(samples))
        elif what == "traffic":
            yield Event(
                time_s=now_s, kind="traffic", job=job, traffic=rings(job, draw.permutation(running[job][:32]), 2)
            )
        else:
            yield Event(time_s=now_s, kind="tick")


def main() -> None:
    """Print a row for each kind of event, and record the mean and the most of all."""
    options = bench.parser(__doc__).parse_args()
    fabric = large_fabric()
    warm = Controller(fabric)
    for _, event in zip(range(JOBS + WARM), events(fabric, 1), strict=False):
        warm.apply(event)
    controller, took = Controller(fabric), defaultdict(list)
    flows = 0
    for number, event in enumerate(events(fabric, 0)):
        if options.tiny and number > JOBS + 20:
            break
        begin = time.process_time()
        decision = controller.apply(event)
        if number >= JOBS:
            took[event.kind].append(1e3 * (time.process_time() - begin))
            flows = max(flows, decision.flows)
    print(f"CPU ms of a decision, up to {flows:,} flows\n{'event':14}{'count':>6}{'mean':>8}{'most':>8}")
    every = np.concatenate([*took.values()])
    for kind, values in [*took.items(), ("all", every)]:
        print(f"{kind:14}{len(values):6}{np.mean(values):8.1f}{np.max(values):8.1f}")
    figures = {"mean_cpu_ms": float(every.mean()), "most_cpu_ms": float(every.max())}
    bench.record(options, figures | {"median_cpu_ms": float(np.median(every)), "flows": flows, "events": len(every)})


if __name__ == "__main__":
    main()
