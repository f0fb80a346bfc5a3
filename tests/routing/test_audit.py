"""Installed routes beside repaired ones and those of a new plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.paper_hash import route_paper_ecmp

import weft
from weft.fabric.families.clos import two_layers
from weft.routing.plan import route
from weft.routing.problem import routing_problem
from weft.routing.report import audit
from weft.routing.traffic import generate, job_traffic

JOBS = [("BLOOM", 4), ("GPT_3", 4), ("LLaMA2_70B", 2)]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("spines_down", "figures"), [(0, (4, 0.25, 0.467, 1, 1.0)), (4, (5, 0.2, 0.419, 2, 0.883))])
def test_hashed_routes_of_the_papers_workload(spines_down, figures):
    """Figures of an independent prototype; the repair moves a third of the flows that a new plan moves."""
    fabric = two_layers()
    fabric = fabric.failed(nodes=fabric.nodes_of("spine")[len(fabric.nodes_of("spine")) - spines_down :])
    traffic = generate(fabric, JOBS, seed=0)
    found = audit(fabric, traffic, route_paper_ecmp(routing_problem(fabric, traffic), 0).routes)
    now, least = found.installed, found.installed.alpha_bound
    assert (now.alpha, now.efficiency.value, round(now.efficiency.mean, 3)) == figures[:3]
    assert least == found.repaired.alpha == found.replanned.alpha == figures[3]
    assert found.replanned.efficiency.mean == pytest.approx(figures[4], abs=0.0005)
    assert len(found.moved(found.repaired)) < 0.4 * len(found.moved(found.replanned))


@pytest.mark.parametrize("seed", range(12))
def test_a_repair_is_never_worse_and_says_what_moves(seed, kit):
    fabric, traffic = kit.random_case(seed, 30, equal=seed % 3 > 0)
    routes = route(fabric, traffic, router="ecmp", seed=seed)
    found = audit(fabric, traffic, routes)
    assert found.installed.alpha == pytest.approx(kit.recount(fabric, traffic, routes))
    assert found.installed.alpha_bound * (1 - 1e-9) <= found.repaired.alpha <= found.installed.alpha
    assert found.repaired.alpha == pytest.approx(kit.recount(fabric, traffic, found.repaired.routes))
    moves = {(row["source"], row["target"], row["job"], row["collective"]): row for row in found.to_dicts()}
    assert len(found.to_dicts()) == len(found.moved(found.repaired))
    names = fabric.names
    for flow in range(len(traffic)):
        path = [names[traffic.source[flow]]]
        path += [names[fabric.target[link]] for link in routes.links[routes.indptr[flow] : routes.indptr[flow + 1]]]
        group = int(traffic.collective[flow])
        row = moves.get((path[0], path[-1], traffic.jobs[traffic.job[group]], traffic.names[group]))
        if flow in found.moved(found.repaired):
            assert row is not None
            assert (row["new_path"], row["new_links"]) != (row["path"], row["links"])


def test_a_detour_is_put_right():
    """A path over two spines is none that a router takes: its flow moves though nothing collides."""
    fabric = two_layers(3, 2, 1)
    traffic = job_traffic(np.array([0]), np.array([2]), np.ones(1))
    names = ["leaf-0", "spine-0", "leaf-1", "spine-1", "leaf-2"]
    nodes = [0, *(fabric.names.index(name) for name in names), 2]
    ends = list(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True))
    straight = route(fabric, traffic)
    links = np.array([ends.index(pair) for pair in itertools.pairwise(nodes)])
    detour = type(straight)(
        indptr=np.array([0, len(links)]), links=links, usage=np.ones(len(links)), latency_s=straight.latency_s
    )
    assert audit(fabric, traffic, detour).moved(audit(fabric, traffic, detour).repaired).tolist() == [0]


def test_the_command_takes_what_weft_route_writes(tmp_path):
    asked = {"generate": "BLOOM:2,GPT_3:2"}
    found = weft.route(**asked, router="ecmp", paths=True)
    found.save(tmp_path / "installed.json")
    audited = weft.audit_routes(routes=str(tmp_path / "installed.json"))
    assert audited.installed.alpha == found.plan.alpha
    named = weft.audit_routes(routes=str(tmp_path / "installed.json"), **asked)
    assert named.installed.routes.links.tolist() == found.plan.routes.links.tolist()
