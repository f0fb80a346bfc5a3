"""Lists of paths, as JSON and tables: written, read back, and refused where they do not fit the fabric."""

import json
from dataclasses import replace

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.families import clos
from weft.fabric.paths import routes
from weft.interop import routes_json
from weft.interop.routes_json import read_paths
from weft.routing.traffic import job_traffic, merged

FLOWS = ("source", "target", "bytes", "cap_Bps", "queue_pair", "collective", "job")


def assert_same(one, other):
    for name in FLOWS:
        assert getattr(one[0], name).tolist() == getattr(other[0], name).tolist(), name
    assert (one[0].names, one[0].jobs) == (other[0].names, other[0].jobs)
    assert one[1].indptr.tolist() == other[1].indptr.tolist()
    assert one[1].links.tolist() == other[1].links.tolist()
    np.testing.assert_allclose(one[1].latency_s, other[1].latency_s)
    assert set(other[1].usage.tolist()) <= {1.0}


def test_several_jobs_caps_and_names_given_twice(planned):
    fabric, traffic, _ = planned(8, flows=3)
    one = replace(traffic, cap_Bps=np.full(len(traffic), 5e9))
    ends = np.array([0, 0]), np.array([6, 6])
    other = job_traffic(
        *ends, np.ones(2), collective=np.array([0, 1]), job=np.zeros(2), names=["dp", "dp"], jobs=["second"]
    )
    both = merged([one, replace(other, job=other.job.astype(np.int64))])
    routed = routes(fabric, both.source, both.target)
    found = routes_json.read(routes_json.write(fabric, both, routed), fabric)
    assert found[0].names == ("ring", "dp", "dp #2")
    assert_same((replace(both, names=found[0].names), routed), found)


def test_links_side_by_side():
    nodes = [Node(name=name, role="leaf" if name > "b" else "accelerator", place=name) for name in "abl"]
    cables = [Cable(source=a, target="l", capacity_Bps=1e9, place=a) for a in "aab"]
    fabric = assemble("parallel", nodes, cables, where="parallel")
    traffic = job_traffic(np.array([0]), np.array([1]), np.ones(1))
    routed = routes(fabric, traffic.source, traffic.target)
    for first in (0, 2):
        given_routes = replace(routed, links=np.array([first, 5]))
        text = routes_json.write(fabric, traffic, given_routes)
        assert ('"links"' in text) is (first > 0)
        assert routes_json.read(text, fabric)[1].links.tolist() == [first, 5]


def test_links_that_are_down(planned):
    fabric, traffic, routed = planned(8)
    text = routes_json.write(fabric, traffic, routed)
    with pytest.raises(BadInput, match=r"flows\[\d\]: the link .* is down -- plan again"):
        routes_json.read(text, fabric.failed(links=routed.links[1:2]))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("path", ["accelerator-0"], "does not lead from source to target"),
        ("path", "accelerator-0", "path: 'accelerator-0' is not a list"),
        ("queue_pair", -1, "queue_pair"),
        ("job", 3, "job: 3 is not text"),
        ("bytes", "many", "bytes: 'many' is not a finite number"),
        ("bytes", 0, "without bytes"),
        ("links", [0], "one number per hop"),
        ("links", [9, 9, 9, 9], "no such link"),
        ("color", 1, "not a known field"),
    ],
)
def test_fields_that_cannot_be(planned, field, value, words):
    fabric, traffic, routed = planned(8)
    table = json.loads(routes_json.write(fabric, traffic, routed))
    flow = next(flow for flow in table["flows"] if len(flow["path"]) == 5)
    flow[field] = value
    with pytest.raises(BadInput, match=words):
        routes_json.read(json.dumps(table), fabric)


def test_paths_that_cannot_be(planned):
    fabric, traffic, routed = planned(8)
    text = routes_json.write(fabric, traffic, routed)
    for old, new, words in (
        ('"leaf-', '"leaf-x', "no node 'leaf-x"),
        ('"leaf-3", "spine-', '"leaf-3", "leaf-1", "spine-', "no such link leaf-3 -> leaf-1"),
        ('"schema"', '"scheme"', "not of schema"),
        ('"queue_pair": 0, ', "", "queue_pair: is missing"),
        ('"flows": [', '"flows": [1, ', "is not a table of fields"),
        ('"flows": [', '"flows": {}, "more": [', "flows: {} is not a list"),
    ):
        assert old in text
        with pytest.raises(BadInput, match=words):
            routes_json.read(text.replace(old, new, 1), fabric)
    twice = json.loads(text)
    twice["flows"].append(twice["flows"][0])
    with pytest.raises(BadInput, match="listed twice"):
        routes_json.read(json.dumps(twice), fabric)


FABRIC = clos.build(8, radix=4, bandwidth_Bps=50e9)
HEAD = "source,target,queue_pair,path\n"
ONE = "accelerator-0,accelerator-2,0,accelerator-0 leaf-0 spine-1 leaf-1 accelerator-2\n"


def table(traffic, found):
    lines = ["source,target,queue_pair,bytes,path"]
    for flow in range(len(traffic)):
        links = found.links[found.indptr[flow] : found.indptr[flow + 1]]
        path = [int(traffic.source[flow]), *FABRIC.target[links].tolist()]
        names = [FABRIC.names[node] for node in path]
        pair, size = traffic.queue_pair[flow], traffic.bytes[flow]
        lines.append(f"{names[0]},{names[-1]},{pair},{size:.0f},{' '.join(names)}")
    return "\n".join(lines) + "\n"


def test_a_table_holds_flows_and_paths_or_paths_of_known_flows():
    traffic = job_traffic(np.array([0, 0, 5]), np.array([6, 6, 2]), np.array([1e6, 2e6, 3e6]), queue_pair=np.arange(3))
    found = routes(FABRIC, traffic.source, traffic.target, mode="ecmp")
    text = table(traffic, found)
    listed, again = read_paths(text, FABRIC)
    assert again.links.tolist() == found.links.tolist()
    assert (listed.bytes.tolist(), listed.queue_pair.tolist()) == ([1e6, 2e6, 3e6], [0, 1, 2])
    backwards = traffic.select(np.array([2, 0]))
    same, chosen = read_paths(text, FABRIC, backwards)
    assert same is backwards
    spans = [found.links[found.indptr[flow] : found.indptr[flow + 1]].tolist() for flow in (2, 0)]
    assert chosen.links.tolist() == spans[0] + spans[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks the column source"),
        ("source,target,path,speed\n", "has the column 'speed'"),
        (HEAD + "accelerator-0,accelerator-2,0\n", "3 values for 4 columns"),
        (HEAD + ONE.replace(",0,", ",-1,"), "is not a whole number"),
        (HEAD + ONE.replace("spine-1 ", ""), "no such link leaf-0 -> leaf-1"),
        (HEAD + ONE.replace("spine-1", "spine-9"), "no node 'spine-9'"),
        (HEAD + ONE.replace(" accelerator-2", ""), "does not lead from source to target"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(BadInput, match=words):
        read_paths(text, FABRIC, where="paths.csv")


def test_a_flow_without_a_path_is_named():
    traffic = job_traffic(np.array([3]), np.array([2]), np.ones(1))
    with pytest.raises(BadInput, match=r"accelerator-3 -> accelerator-2 \(queue pair 0\)"):
        read_paths(HEAD + ONE, FABRIC, traffic)
