"""Jobs replayed over epochs: by hand, and the routing paper's workloads against its authors' simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tests.paper_hash import route_paper_ecmp
from tests.paper_jobs import paper_jobs

from routing import replay, with_spines_down
from weft.fabric.families import clos
from weft.fabric.families.clos import two_layers
from weft.fabric.spec import Fabric
from weft.routing.problem import Problem
from weft.routing.routers import ROUTERS, RouterResult
from weft.routing.traffic import JobTraffic, job_traffic, merged

GBps = 1e9


@pytest.fixture(scope="module")
def small() -> Fabric:
    """4 leaves with 2 hosts each, 2 spines, links of 1 GB/s."""
    return clos.build(8, radix=4, bandwidth_Bps=GBps, tiers=2, nic_latency_s=0.0, switch_latency_s=0.0)


def four_spines() -> Fabric:
    """8 leaves with 4 hosts each, 4 spines, links of 1 GB/s."""
    return clos.build(32, radix=8, bandwidth_Bps=GBps, tiers=2, nic_latency_s=0.0, switch_latency_s=0.0)


def ring(name: str, hosts: list[int], *, start_s: float = 0.0, pause_s: float = 1.0) -> JobTraffic:
    """A ring all-reduce in which every member sends 1 GB a round."""
    return job_traffic(
        np.array(hosts),
        np.roll(hosts, -1),
        np.full(len(hosts), 1e9),
        rounds=np.array([2 * (len(hosts) - 1)]),
        jobs=(name,),
        start_s=np.array([start_s]),
        pause_s=np.array([pause_s]),
    )


def two_rings(start_s: float) -> JobTraffic:
    """A on hosts 0 and 2, B on hosts 1 and 3, which share both leaves, and begins later."""
    return merged([ring("A", [0, 2]), ring("B", [1, 3], start_s=start_s)])


def way(asked: Problem, number: int) -> RouterResult:
    """Every flow by its path of a number: its spine."""
    up, down = asked.ways.up_first + number, asked.ways.down_first + number
    return RouterResult(routes=asked.routes(up, down), ways=(up, down))


@pytest.fixture
def first_spine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A static router that sends everything over the first spine that is up."""
    monkeypatch.setitem(ROUTERS, "ecmp", lambda asked, seed: way(asked, 0))


@pytest.fixture
def hashed_by_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTERS, "ecmp", route_paper_ecmp)


@pytest.fixture
def alternating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that uses the first spine for one job and the last one for more."""
    monkeypatch.setitem(ROUTERS, "greedy", lambda asked, seed: way(asked, int(len(asked.demand_Bps) > 2)))


@pytest.mark.usefixtures("first_spine")
@pytest.mark.parametrize(("start_s", "took_s"), [(0.0, 4.0), (1.0, 3.0)])
def test_colliding_rings_share_their_links(small: Fabric, start_s: float, took_s: float) -> None:
    """Both send all the time: each round takes 2 s instead of 1.  Where B begins a round later, A's first round of
    an epoch is alone, then both share for a round of 2 s, then B's last is alone."""
    result, alone = replay(small, two_rings(start_s), "ecmp", epochs=3)
    assert alone.ravel() == pytest.approx([2.0, 2.0])
    np.testing.assert_allclose(result, took_s)


@pytest.mark.parametrize(
    ("router", "again"), [*product(["greedy", "auto", "spray", "repair"], [False, True]), ("split", False)]
)
@pytest.mark.parametrize("start_s", [0.0, 0.3, 1.0])
def test_rings_that_are_kept_apart_take_their_time_alone(
    small: Fabric, router: str, start_s: float, *, again: bool
) -> None:
    result, _ = replay(small, two_rings(start_s), router, epochs=3, again=again)
    np.testing.assert_allclose(result, 2.0)


@pytest.mark.usefixtures("alternating")
def test_running_flows_are_moved_with_what_is_left(small: Fabric) -> None:
    """A alone for 0.5 s; B comes and both share the other spine: A's rounds end at 1.5 and 3.5, B's first at
    2.5; from 3.5 B has the first spine, and its 0.5 GB left, for itself."""
    result, _ = replay(small, two_rings(0.5), "greedy", epochs=1, again=True)
    assert result[:, 0] == pytest.approx([3.5, 3.5])


# The paper's job files; figures from its authors' simulator, with some of their spines down.


@pytest.fixture(scope="module")
def paper() -> Fabric:
    return two_layers()


@pytest.mark.parametrize("router", ["spray", "auto"])
@pytest.mark.parametrize(("rings", "down", "slowdown"), [(1, 0, 1.0), (1, 2, 1.0), (4, 0, 1.0), (4, 2, 2.0)])
def test_rings_that_fill_all_spines_share_those_that_are_left(
    rings: int, down: int, slowdown: float, router: str
) -> None:
    """Rings of two between the same two leaves; two rounds of 1 GB."""
    traffic = merged([ring(f"job {host}", [host, 4 + host], start_s=1.0, pause_s=0.0) for host in range(rings)])
    result, alone = replay(with_spines_down(four_spines(), down), traffic, router, epochs=3)
    assert result == pytest.approx(np.full((rings, 3), 2 * slowdown))
    assert alone.ravel() == pytest.approx(np.full(rings, 2.0))


ECMP = {
    (1, 2, 0): (4.693,),
    (1, 4, 0): (7.040,),
    (1, 8, 0): (8.213,),
    (1, 2, 1): (3.520,),
    (1, 2, 4): (4.693,),
    (1, 2, 8): (4.693,),
    (2, 2, 0): (4.693, 0.875),
    (3, 2, 0): (4.693, 0.875, 0.700),
    (5, 2, 0): (4.693, 0.875, 0.700, 5.867, 3.500),
    (5, 2, 1): (4.142, 0.700, 0.875, 5.867, 3.500),
    (5, 2, 4): (4.693, 0.875, 0.875, 5.867, 4.375),
    (5, 2, 8): (4.693, 1.050, 1.050, 4.693, 4.375),
    (3, 4, 0): (7.472, 1.481, 7.875),
    (5, 4, 0): (7.472, 1.481, 7.875, 1.747, 6.563),
    (5, 4, 8): (7.040, 1.838, 6.563, 1.313, 6.563),
    (2, 8, 0): (8.950, 7.656),
    (3, 8, 0): (8.950, 7.656, 1.050),
}
"""By jobs, ring and spines down: mean all-reduce seconds of each job."""


@pytest.mark.parametrize("key", ECMP, ids=str)
@pytest.mark.usefixtures("hashed_by_the_paper")
def test_ecmp_takes_as_long_as_in_the_authors_simulator(key, paper: Fabric) -> None:
    jobs, size, down = key
    result, _ = replay(with_spines_down(paper, down), paper_jobs(jobs, size), "ecmp", epochs=10)
    assert result.mean(axis=1) == pytest.approx(ECMP[key], rel=1e-3 if size == 2 or jobs == 1 else 0.03)


WORKLOADS = [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (3, 2), (3, 4), (3, 8), (5, 2), (5, 4)]


@pytest.mark.parametrize("router", ["auto", "edge-coloring", "repair"])
@pytest.mark.parametrize(("jobs", "size"), WORKLOADS)
def test_a_held_plan_gives_every_job_its_optimum(jobs: int, size: int, router: str, paper: Fabric) -> None:
    """In the order of the files, and in two others."""
    traffic = paper_jobs(jobs, size)
    for seed in (None, 1, 2):
        order = np.arange(len(traffic)) if seed is None else np.random.default_rng(seed).permutation(len(traffic))
        fields = ("source", "target", "bytes", "cap_Bps", "queue_pair", "collective")
        shuffled = replace(traffic, **{name: getattr(traffic, name)[order] for name in fields})
        result, alone = replay(paper, shuffled, router, epochs=3)
        assert result / alone == pytest.approx(np.ones((jobs, 3)), rel=1e-3)


PAPER_CONTROLLER = (1.375, 0.181, 0.175, 1.311, 0.911)


def test_the_papers_controller(paper: Fabric) -> None:
    """Its flows are in another order than the authors' hash sets have them."""
    result, alone = replay(paper, paper_jobs(5, 2), "greedy", again=True, epochs=10)
    assert result.mean(axis=1) == pytest.approx(PAPER_CONTROLLER, rel=0.25)
    assert np.all(result >= alone * (1 - 1e-9))
    assert np.all(result <= 2 * alone * (1 + 1e-9))


@pytest.mark.usefixtures("hashed_by_the_paper")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("down", "ecmp"), [(1, 3.520), (4, 4.693), (8, 4.693)])
def test_failed_spines(down: int, ecmp: float, paper: Fabric, *, again: bool) -> None:
    broken = with_spines_down(paper, down)
    for router, expected in (("greedy", 2 * 1.17333), ("auto", 2 * 1.17333), ("ecmp", ecmp)):
        result, _ = replay(broken, paper_jobs(1, 2), router, again=again)
        assert result.mean(axis=1) == pytest.approx([expected], rel=1e-3)
