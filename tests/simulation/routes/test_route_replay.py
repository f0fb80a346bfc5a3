"""Jobs replayed over epochs: by hand, against the whole simulation, and the routing paper's workloads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.paper_jobs import paper_jobs

from weft.errors import BadInput, UnknownName
from weft.fabric.families import clos
from weft.fabric.families.clos import two_layers
from weft.fabric.spec import Fabric
from weft.routing.generate import generate
from weft.routing.problem import Problem
from weft.routing.routers import ROUTERS, RouterResult
from weft.routing.traffic import JobTraffic, job_traffic, merged
from weft.simulation.routes.replay import replay, with_spines_down

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
    monkeypatch.setitem(ROUTERS, "ecmp-paper", lambda asked, seed: way(asked, 0))


@pytest.fixture
def alternating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that uses the first spine for one job and the last one for more."""
    monkeypatch.setitem(ROUTERS, "greedy", lambda asked, seed: way(asked, int(len(asked.demand_Bps) > 2)))


@pytest.mark.usefixtures("first_spine")
def test_colliding_rings_share_their_links(small: Fabric) -> None:
    """Both send all the time: each round takes 2 s instead of 1."""
    found = replay(small, two_rings(0.0), "ecmp-paper", epochs=3)
    assert found.alone_s == pytest.approx([2.0, 2.0])
    np.testing.assert_allclose(found.all_reduce_s, 4.0)
    np.testing.assert_allclose(found.fct_s, 2.0)
    np.testing.assert_allclose(found.throughput_Bps, 0.5e9)
    assert found.makespan_s == pytest.approx(3 * (4 + 1))
    assert found.ratio == pytest.approx([2.0, 2.0])
    assert (found.decision_s, found.moved_flows) == ((), 0)


@pytest.mark.usefixtures("first_spine")
def test_rings_collide_only_where_they_overlap(small: Fabric) -> None:
    """A's first round is alone, then both share for a round of 2 s, then B's last is alone; every epoch."""
    found = replay(small, two_rings(1.0), "ecmp-paper", epochs=4)
    np.testing.assert_allclose(found.all_reduce_s, 3.0)
    assert sorted(set(np.round(found.fct_s, 9))) == [1.0, 2.0]


@pytest.mark.parametrize("controller", ["held", "paper"])
@pytest.mark.parametrize("router", ["greedy", "auto", "split", "spray", "repair"])
@pytest.mark.parametrize("start_s", [0.0, 0.3, 1.0])
def test_rings_that_are_kept_apart_take_their_time_alone(
    small: Fabric, router: str, controller: str, start_s: float
) -> None:
    found = replay(small, two_rings(start_s), router, epochs=3, controller=controller)
    np.testing.assert_allclose(found.all_reduce_s, 2.0)
    assert found.makespan_s == pytest.approx(start_s + 3 * (2 + 1))
    np.testing.assert_allclose(found.fct_s, np.ones(3 * 2 * 4))
    np.testing.assert_allclose(found.throughput_Bps, 1e9)


def test_the_paper_decides_at_begins_and_at_ends_while_others_run(small: Fabric) -> None:
    """A 0-2, 3-5; B 1-3, 4-6: begins at 0, 1, 3 (where B ends), 4; ends while the other runs at 2 and 5."""
    found = replay(small, two_rings(1.0), "greedy", epochs=2, controller="paper")
    assert len(found.decision_s) == 6
    assert len(replay(small, two_rings(1.0), "greedy", epochs=2).decision_s) == 1


@pytest.mark.usefixtures("alternating")
def test_running_flows_are_moved_with_what_is_left(small: Fabric) -> None:
    """A alone for 0.5 s; B comes and both share the other spine: A's rounds end at 1.5 and 3.5, B's first at
    2.5; from 3.5 B has the first spine, and its 0.5 GB left, for itself."""
    found = replay(small, two_rings(0.5), "greedy", epochs=1, controller="paper")
    assert found.all_reduce_s[:, 0] == pytest.approx([3.5, 3.5])
    assert sorted(found.fct_s) == pytest.approx([1.5, 1.5, 1.5, 1.5, 2.0, 2.0, 2.0, 2.0])
    assert found.moved_flows == 4
    assert len(found.decision_s) == 3


@pytest.fixture(scope="module")
def generated() -> tuple[Fabric, JobTraffic]:
    """Three jobs of the paper's models on a smaller Clos."""
    fabric = clos.build(512, radix=32, bandwidth_Bps=12.5e9, tiers=2, nic_latency_s=0.0, switch_latency_s=0.0)
    return fabric, generate(fabric, [("BLOOM", 4), ("GPT_3", 2), ("BLOOM", 2)], seed=3)


@pytest.mark.parametrize("controller", ["held", "paper"])
def test_replays_repeat_and_stay_above_the_optimum(generated: tuple[Fabric, JobTraffic], controller: str) -> None:
    fabric, traffic = generated
    one, other = (replay(fabric, traffic, "greedy", epochs=2, controller=controller) for _ in range(2))
    assert np.array_equal(one.all_reduce_s, other.all_reduce_s)
    assert np.array_equal(one.fct_s, other.fct_s)
    assert np.all(one.ratio >= 1 - 1e-9)
    assert np.all(one.ratio <= 2 + 1e-9)


def test_refusals(small: Fabric) -> None:
    traffic = two_rings(0.0)
    with pytest.raises(UnknownName, match="controller"):
        replay(small, traffic, "greedy", controller="other")
    with pytest.raises(UnknownName, match="router"):
        replay(small, traffic, "other")
    with pytest.raises(BadInput, match="0 epochs"):
        replay(small, traffic, "greedy", epochs=0)
    with pytest.raises(BadInput, match="job A has no collective"):
        replay(small, replace(ring("A", [0, 2]), rounds=np.zeros(1, dtype=np.int64)), "greedy")


# The paper's job files; figures from its authors' simulator, with some of their spines down.


@pytest.fixture(scope="module")
def paper() -> Fabric:
    return two_layers()


@pytest.mark.parametrize("count", [4, 5, -1])
def test_some_spines_stay(count: int) -> None:
    with pytest.raises(BadInput, match="spines down"):
        with_spines_down(four_spines(), count)


def test_the_last_spines_go_down() -> None:
    fabric = four_spines()
    spines = fabric.nodes_of("spine")
    broken = with_spines_down(fabric, 1)
    assert set(fabric.source[~broken.up]) & set(spines) == {spines[-1]}
    assert with_spines_down(fabric, 0) is fabric


@pytest.mark.parametrize("router", ["spray", "auto"])
@pytest.mark.parametrize(("rings", "down", "slowdown"), [(1, 0, 1.0), (1, 2, 1.0), (4, 0, 1.0), (4, 2, 2.0)])
def test_rings_that_fill_all_spines_share_those_that_are_left(
    rings: int, down: int, slowdown: float, router: str
) -> None:
    """Rings of two between the same two leaves; two rounds of 1 GB."""
    traffic = merged([ring(f"job {host}", [host, 4 + host], start_s=1.0, pause_s=0.0) for host in range(rings)])
    result = replay(with_spines_down(four_spines(), down), traffic, router, epochs=3)
    assert result.all_reduce_s == pytest.approx(np.full((rings, 3), 2 * slowdown))
    assert result.alone_s == pytest.approx(np.full(rings, 2.0))
    assert result.fct_s == pytest.approx(slowdown)
    assert result.throughput_Bps == pytest.approx(1e9 / slowdown)
    assert result.makespan_s == pytest.approx(1 + 3 * 2 * slowdown)
    assert (len(result.decision_s), result.moved_flows) == (int(router == "auto"), 0)


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
def test_ecmp_takes_as_long_as_in_the_authors_simulator(key, paper: Fabric) -> None:
    jobs, size, down = key
    found = replay(with_spines_down(paper, down), paper_jobs(jobs, size), "ecmp-paper")
    assert found.mean_s == pytest.approx(ECMP[key], rel=1e-3 if size == 2 or jobs == 1 else 0.03)


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
        found = replay(paper, shuffled, router, epochs=3)
        assert found.ratio == pytest.approx(np.ones(jobs), rel=1e-3)


PAPER_CONTROLLER = (1.375, 0.181, 0.175, 1.311, 0.911)


def test_the_papers_controller(paper: Fabric) -> None:
    """Its flows are in another order than the authors' hash sets have them."""
    found = replay(paper, paper_jobs(5, 2), "greedy", controller="paper")
    assert found.mean_s == pytest.approx(PAPER_CONTROLLER, rel=0.25)
    assert np.all(found.ratio >= 1 - 1e-9)
    assert np.all(found.ratio <= 2 + 1e-9)
    assert found.moved_flows > 0


@pytest.mark.parametrize("controller", ["held", "paper"])
@pytest.mark.parametrize(("down", "ecmp"), [(1, 3.520), (4, 4.693), (8, 4.693)])
def test_failed_spines(down: int, ecmp: float, controller: str, paper: Fabric) -> None:
    broken = with_spines_down(paper, down)
    for router, expected in (("greedy", 2 * 1.17333), ("auto", 2 * 1.17333), ("ecmp-paper", ecmp)):
        found = replay(broken, paper_jobs(1, 2), router, controller=controller)
        assert found.mean_s == pytest.approx([expected], rel=1e-3)
