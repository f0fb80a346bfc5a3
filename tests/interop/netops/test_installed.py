"""Paths as tables, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.fabric.paths import routes
from weft.interop.netops.installed import read_paths
from weft.routing.traffic import job_traffic

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
        (HEAD, "holds no flow"),
        (HEAD + "accelerator-0,accelerator-2,0\n", "3 values for 4 columns"),
        (HEAD + ONE.replace(",0,", ",-1,"), "is no whole number"),
        (HEAD + ONE.replace("spine-1 ", ""), "no such link leaf-0 -> leaf-1"),
        (HEAD + ONE.replace("spine-1", "spine-9"), "no node 'spine-9'"),
        (HEAD + ONE.replace(" accelerator-2", ""), "list of names from source to target"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(BadInput, match=words):
        read_paths(text, FABRIC, where="paths.csv")


def test_a_flow_without_a_path_is_named():
    traffic = job_traffic(np.array([3]), np.array([2]), np.ones(1))
    with pytest.raises(BadInput, match=r"accelerator-3 -> accelerator-2 \(queue pair 0\)"):
        read_paths(HEAD + ONE, FABRIC, traffic)
