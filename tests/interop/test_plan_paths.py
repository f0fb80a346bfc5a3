"""Plans are refused where their paths cannot be pinned."""

from dataclasses import replace

import numpy as np
import pytest

from weft.errors import BadInput, Unsupported
from weft.fabric.dimension import Dimension
from weft.fabric.families import rail
from weft.fabric.paths import routes
from weft.interop.plan_paths import network_paths, planned_paths
from weft.routing.traffic import job_traffic


def test_paths_in_order(planned):
    fabric, traffic, routed = planned(8)
    paths = planned_paths(fabric, traffic, routed)
    assert [path.source for path in paths] == traffic.source.tolist()
    assert [path.target for path in paths] == traffic.target.tolist()
    assert {(path.job, path.collective) for path in paths} == {("job", "ring")}
    for path in paths:
        assert [int(fabric.source[link]) for link in path.links] == list(path.nodes[:-1])


def test_sprayed_flows(planned):
    with pytest.raises(Unsupported, match="split over several paths -- plan with one path"):
        planned_paths(*planned(8, mode="spray"))


def test_routes_of_something_else(planned):
    fabric, traffic, routed = planned(8)
    with pytest.raises(BadInput, match="routes for"):
        planned_paths(fabric, traffic.split(2), routed)
    for links, words in ((routed.links[::-1], "does not join them"), (routed.links + 10_000, "there is no link")):
        with pytest.raises(BadInput, match=words):
            planned_paths(fabric, traffic, replace(routed, links=links))
    twice = np.insert(routed.links, 1, [routed.links[1], fabric.reverse[routed.links[1]]])
    indptr = np.where(np.arange(len(routed.indptr)) > 0, routed.indptr + 2, 0)
    bent = replace(routed, links=twice, indptr=indptr, usage=np.ones(len(twice)))
    with pytest.raises(BadInput, match="comes to a node twice"):
        planned_paths(fabric, traffic, bent)
    with pytest.raises(BadInput, match=r"down: .* -- plan again"):
        planned_paths(fabric.failed(links=routed.links[:1]), traffic, routed)


def test_relays_and_domains():
    domain = Dimension(kind="switch", size=4, bandwidth_Bps=450e9)
    fabric = rail.only(32, radix=8, bandwidth_Bps=50e9, scale_up=domain)
    source, target = np.array([0, 0]), np.array([1, 4])
    traffic = job_traffic(source, target, np.ones(2))
    assert [p.flow for p in network_paths(fabric, traffic, routes(fabric, source, target))] == [1]
    source, target = np.array([0]), np.array([5])
    with pytest.raises(Unsupported, match="passes through accelerator"):
        network_paths(fabric, job_traffic(source, target, np.ones(1)), routes(fabric, source, target))
