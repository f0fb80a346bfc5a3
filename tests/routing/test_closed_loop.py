"""The closed loop on the paper's workloads: flows are measured, routes planned and installed, and measured again.

The simulator plays the network: it runs rounds over the installed routes, and hands back records with noise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.fabric.families.clos import two_layers
from weft.fabric.spec import Fabric, Floats
from weft.fabric.traffic import single_paths
from weft.routing.choice import links_of
from weft.routing.controller import MISSES, Controller, Decision, Event
from weft.routing.generate import generate
from weft.routing.plan import plan
from weft.routing.problem import demands, routing_problem
from weft.routing.routers import route_hashed
from weft.routing.traffic import JobTraffic
from weft.simulation.flows.engine import run

PERIOD_S = 60.0
NOISE = 0.01


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

    def measured(self) -> JobTraffic:
        """What the network counted of each flow: its bytes, with noise."""
        jobs = self.jobs()
        noise = 1 + NOISE * self.draw.uniform(-1, 1, len(jobs))
        return replace(jobs, bytes=jobs.bytes * noise)

    def tell(self, kind: str, **what: object) -> Decision:
        self.now_s += PERIOD_S
        return self.controller.apply(Event(time_s=self.now_s, kind=kind, **what))

    def measure(self) -> Decision:
        return self.tell("measured", traffic=self.measured())

    def slowdown(self) -> float:
        """How much longer than alone the slowest collective takes, when all send over the installed routes."""
        jobs, every = self.jobs(), self.controller.traffic
        assert every is not None
        rows = self.controller.rows()
        path = {(a, b): row for a, b, row in zip(every.source.tolist(), every.target.tolist(), rows, strict=True)}
        links = np.array([path[pair] for pair in zip(jobs.source.tolist(), jobs.target.tolist(), strict=True)])
        return slowest(self.controller.fabric, jobs, links)

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


def slowest(fabric: Fabric, jobs: JobTraffic, links: np.ndarray) -> float:
    """The slowest collective over routes in the flow simulator, against its time alone."""
    rounds = replace(
        jobs, rounds=np.ones_like(jobs.rounds), start_s=np.zeros(len(jobs.jobs)), pause_s=np.zeros(len(jobs.jobs))
    )
    result = run(np.where(fabric.up, fabric.capacity_Bps, 0.0), rounds.epochs(1), single_paths(fabric, links))
    alone: Floats = jobs.bytes / demands(fabric, jobs)
    return float((result.completion_s / alone).max())


WORKLOAD = (("BLOOM", 4), ("GPT_3", 4), ("LLaMA2_70B", 2), ("BLOOM", 2))


@pytest.mark.parametrize("events", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_the_loop_ends_at_the_best_possible_and_stays_there(events: int) -> None:
    fabric = two_layers()
    holds(Loop(fabric, generate(fabric, WORKLOAD, seed=0), seed=0), events)


def holds(loop: Loop, events: int) -> None:
    jobs = loop.jobs()
    hashed = route_hashed(routing_problem(loop.whole, jobs), 0).routes
    assert slowest(loop.whole, jobs, links_of(hashed)) > 1.5
    assert loop.least() == 1.0
    loop.measure()
    assert loop.slowdown() == pytest.approx(1.0, abs=1e-9)
    for _ in range(events):
        loop.something()
        loop.measure()
        assert loop.slowdown() == pytest.approx(loop.least(), rel=1e-6)
        # What wavers by noise alone moves nothing.
        assert not loop.measure().moves
