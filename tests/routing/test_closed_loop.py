"""The closed loop on the paper's workloads: flows are measured, routes planned and installed, and measured again.

The simulator plays the network: it runs a round over the installed routes, of which records of some iterations are
made, with noise.  The controller knows of the jobs by what is recognised in these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.fabric.families.clos import two_layers
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import single_paths
from weft.routing.choice import links_of
from weft.routing.controller import MISSES, Controller, Decision, Event
from weft.routing.demand import FlowRecords, recognised
from weft.routing.plan import plan
from weft.routing.problem import demands, routing_problem
from weft.routing.routers import route_hashed
from weft.routing.traffic import JobTraffic, generate
from weft.simulation.flows.engine import run

PERIOD_S = 60.0
ITERATIONS = 12
NOISE, JITTER_S = 0.01, 1e-3


class Loop:
    """A network with jobs, beside a controller that knows of them by measurements alone."""

    def __init__(self, fabric: Fabric, traffic: JobTraffic, seed: int) -> None:
        self.whole, self.fabric, self.traffic = fabric, fabric, traffic
        self.controller, self.draw = Controller(fabric), np.random.default_rng(seed)
        self.running = set(range(len(traffic.jobs)))
        self.down: list[tuple[str, ...]] = []
        self.now_s = 0.0

    def jobs(self) -> JobTraffic:
        """The flows of what runs, which nobody tells the controller."""
        return self.traffic.only(sorted(self.running))

    def records(self) -> FlowRecords:
        """What the network counted of some iterations: a record for each flow and round, with noise."""
        jobs = self.jobs()
        lasts_s = round_s(self.controller.fabric, jobs, self.installed(jobs))
        slowest_s, whole_s = np.zeros(len(jobs.job)), np.zeros(len(jobs.jobs))
        np.maximum.at(slowest_s, jobs.collective, lasts_s)
        np.maximum.at(whole_s, jobs.job, slowest_s * jobs.rounds)
        flow = np.repeat(np.arange(len(jobs)), ITERATIONS * jobs.rounds[jobs.collective])
        number = np.arange(len(flow)) - np.searchsorted(flow, flow)
        iteration, turn = np.divmod(number, jobs.rounds[jobs.collective[flow]])
        job = jobs.flow_job[flow]
        start_s = jobs.start_s[job] + iteration * (whole_s + jobs.pause_s)[job]
        start_s += turn * slowest_s[jobs.collective[flow]] + self.draw.normal(0.0, JITTER_S, len(flow))
        noise = 1 + NOISE * self.draw.uniform(-1, 1, len(flow))
        return FlowRecords(
            source=jobs.source[flow],
            target=jobs.target[flow],
            bytes=jobs.bytes[flow] * noise,
            start_s=start_s,
            end_s=start_s + lasts_s[flow],
        )

    def installed(self, jobs: JobTraffic) -> Ints:
        """The links of flows; those that the controller does not know are hashed."""
        links = links_of(route_hashed(routing_problem(self.controller.fabric, jobs), 0).routes)
        every, rows = self.controller.traffic, self.controller.rows()
        if every is None:
            return links
        path = {(a, b): row for a, b, row in zip(every.source.tolist(), every.target.tolist(), rows, strict=True)}
        width = max(links.shape[1], rows.shape[1])
        result = np.full((len(links), width), -1, dtype=np.int64)
        for flow, pair in enumerate(zip(jobs.source.tolist(), jobs.target.tolist(), strict=True)):
            known = path.get(pair, links[flow])
            result[flow, : len(known)] = known
        return result

    def tell(self, kind: str, **what: object) -> Decision:
        self.now_s += PERIOD_S
        return self.controller.apply(Event(time_s=self.now_s, kind=kind, **what))

    def measure(self) -> Decision:
        return self.tell("measured", traffic=recognised(self.records(), self.whole).traffic)

    def slowdown(self) -> float:
        """How much longer than alone the slowest collective takes, when all send over the installed routes."""
        jobs, fabric = self.jobs(), self.controller.fabric
        alone: Floats = jobs.bytes / demands(fabric, jobs)
        return float((round_s(fabric, jobs, self.installed(jobs)) / alone).max())

    def least(self) -> float:
        """The slowdown that no routes go below, from a plan of what runs on what is left."""
        return max(1.0, plan(self.controller.fabric, self.jobs()).alpha_bound)

    def something(self) -> None:
        """A job, link or switch comes or goes."""
        choice = self.draw.random()
        idle = sorted(set(range(len(self.traffic.jobs))) - self.running)
        if choice < 0.4 and (len(self.running) > 1 or idle):
            if idle and (self.draw.random() < 0.7 or len(self.running) == 1):
                self.running.add(int(self.draw.choice(idle)))
            else:
                self.running.remove(int(self.draw.choice(sorted(self.running))))
                for _ in range(MISSES - 1):
                    self.measure()
            return
        if self.down and self.draw.random() < 0.5:
            nodes = self.down.pop(int(self.draw.integers(len(self.down))))
            self.tell("switch-up" if len(nodes) == 1 else "link-up", nodes=nodes)
            return
        leaf, spine = (
            str(self.draw.choice([n for n in self.whole.names if n.startswith(kind)])) for kind in ("leaf", "spine")
        )
        nodes = (spine,) if choice > 0.85 else (leaf, spine)
        if nodes not in self.down:
            self.down.append(nodes)
            self.tell("switch-down" if len(nodes) == 1 else "link-down", nodes=nodes)


def round_s(fabric: Fabric, jobs: JobTraffic, links: Ints) -> Floats:
    """The seconds of each flow in a round in which all send, in the flow simulator."""
    rounds = replace(
        jobs, rounds=np.ones_like(jobs.rounds), start_s=np.zeros(len(jobs.jobs)), pause_s=np.zeros(len(jobs.jobs))
    )
    result = run(np.where(fabric.up, fabric.capacity_Bps, 0.0), rounds.epochs(1), single_paths(fabric, links))
    return np.asarray(result.completion_s, dtype=np.float64)


WORKLOADS = (
    (("BLOOM", 4), ("GPT_3", 4), ("LLaMA2_70B", 2), ("BLOOM", 2)),
    (("BLOOM", 2), ("GPT_3", 2), ("LLaMA2_70B", 2), ("GPT_3", 4)),
    (("LLaMA2_70B", 4), ("BLOOM", 4), ("GPT_3", 2), ("LLaMA2_70B", 2)),
)


@pytest.mark.parametrize(
    ("workload", "events"), [(0, 2), *(pytest.param(number, 50, marks=pytest.mark.slow) for number in range(3))]
)
def test_the_loop_ends_at_the_best_possible_and_stays_there(workload: int, events: int) -> None:
    fabric = two_layers()
    holds(Loop(fabric, generate(fabric, WORKLOADS[workload], seed=workload), seed=workload), events)


def holds(loop: Loop, events: int) -> None:
    assert loop.slowdown() > 1.5
    assert loop.least() == 1.0
    loop.measure()
    assert loop.slowdown() == pytest.approx(1.0, abs=1e-9)
    for _ in range(events):
        loop.something()
        loop.measure()
        assert loop.slowdown() == pytest.approx(loop.least(), rel=1e-6)
        # What wavers by noise alone moves nothing.
        assert not loop.measure().moves
