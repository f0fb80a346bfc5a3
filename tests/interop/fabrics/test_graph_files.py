"""Fabrics as GraphML and node-link JSON, with networkx as the other side."""

import contextlib
import io
import json
from dataclasses import fields

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, WeftError
from weft.fabric.dimension import Dimension
from weft.fabric.families import rail
from weft.fabric.spec import Fabric
from weft.interop.fabrics.formats import FORMATS, WRITERS, read_fabric, write_fabric
from weft.interop.fabrics.graph_files import read_graphml, read_node_link, write_graphml, write_node_link


def example():
    domain = Dimension(kind="switch", size=4, bandwidth_Bps=450e9, latency_s=5e-7)
    fabric = rail.only(32, radix=8, bandwidth_Bps=50e9 / 3, scale_up=domain)
    return fabric.failed(nodes=np.array([1]))


def assert_equal(one, other):
    for field in fields(Fabric):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert (a.tolist() if isinstance(a, np.ndarray) else a) == (b.tolist() if isinstance(b, np.ndarray) else b), (
            field.name
        )


def test_round_trips_are_exact():
    fabric = example()
    assert_equal(read_graphml(write_graphml(fabric)), fabric)
    assert_equal(read_node_link(write_node_link(fabric)), fabric)


def test_networkx_reads_what_is_written():
    fabric = example()
    xml = nx.read_graphml(io.BytesIO(write_graphml(fabric).encode()), force_multigraph=True)
    loaded = nx.node_link_graph(json.loads(write_node_link(fabric)), edges="edges")
    for graph in (xml, loaded):
        assert graph.is_directed()
        assert graph.number_of_nodes() == fabric.nodes
        assert graph.number_of_edges() == fabric.links
        rates = sorted(data["capacity_Bps"] for _, _, data in graph.edges(data=True))
        assert rates == sorted(fabric.capacity_Bps.tolist())
        assert graph.nodes[fabric.names[5]] == {"role": "accelerator", "domain": 1, "rail": 1}


def networkx_graph():
    graph = nx.Graph(name="ours")
    graph.add_node(1, type="GPU")
    graph.add_node("b", type="host")
    graph.add_node("s", type="leaf")
    graph.add_edge(1, "s", capacity="400 Gb/s", latency="1 us")
    graph.add_edge("b", "s", bandwidth=25e9, cables=2)
    return graph


def test_what_networkx_writes_is_read():
    buffer = io.BytesIO()
    nx.write_graphml(networkx_graph(), buffer)
    ours = json.dumps(nx.node_link_data(networkx_graph(), edges="links"))
    for fabric in (read_graphml(buffer.getvalue().decode()), read_node_link(ours)):
        assert fabric.name == "ours"
        assert fabric.names == ("1", "b", "s")
        assert fabric.capacity_Bps.tolist() == [50e9, 50e9, 12.5e9, 12.5e9, 12.5e9, 12.5e9]
        assert fabric.latency_s.tolist() == [1e-6, 1e-6, 0, 0, 0, 0]
        assert fabric.target.tolist() == [2, 0, 2, 1, 2, 1]


NODES = '{"id": "a", "role": "gpu"}, {"id": "s", "role": "leaf"}'


def linked(link):
    return f'{{"nodes": [{NODES}], "links": [{link}]}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a table"),
        ("{}", "no list of nodes"),
        ('{"nodes": [1], "links": []}', r"nodes\[0\]"),
        ('{"nodes": [{"id": "a"}], "links": []}', "no role"),
        ('{"nodes": [{"id": [], "role": "gpu"}], "links": []}', "no id"),
        ('{"nodes": [{"id": "a\\u0000", "role": "gpu"}], "links": []}', "control character"),
        (linked(""), "disconnected"),
        (linked('{"source": "a", "target": "s"}'), "no capacity"),
        (linked('{"source": "a", "target": "x", "speed": 1}'), "no node 'x'"),
        (linked('{"source": "a", "target": "s", "capacity_Bps": 0}'), "is 0"),
        (linked('{"source": "a", "target": "s", "speed": true}'), "quantity"),
        (linked('{"source": "a", "target": "s", "capacity_Bps": 1e999}'), "finite"),
        (linked('{"source": "a", "target": "s", "speed": 1, "tier": 0.5}'), "tier"),
        (linked('{"source": "a", "target": "s", "speed": 1, "up": 7}'), "up is"),
        ("{", "JSON"),
    ],
)
def test_json_that_cannot_be_used(text, words):
    with pytest.raises(BadInput, match=words):
        read_node_link(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<graphml/>", "no graph"),
        ("<x><graph/></x>", "no graph"),
        ("<graphml><graph><node/></graph></graphml>", "line 1.*no id"),
        ("<graphml><graph><node id='a'/></graph></graphml>", "no role"),
        ("<!DOCTYPE x><graphml><graph/></graphml>", "document type"),
        ("<graphml><graph/></graphml>", "no accelerator"),
    ],
)
def test_graphml_that_cannot_be_used(text, words):
    with pytest.raises(BadInput, match=words):
        read_graphml(text)


def test_a_default_capacity():
    text = linked('{"source": "a", "target": "s"}')
    assert read_node_link(text, capacity_Bps=5e9).capacity_Bps.tolist() == [5e9, 5e9]


@given(st.integers(0, 3000), st.integers(0, 40), st.text(alphabet='<>/"={}[]:, node019&;!-', max_size=20))
def test_changed_files_give_a_fabric_or_an_error(at, length, inserted):
    fabric = rail.only(4, radix=8, bandwidth_Bps=50e9, scale_up=Dimension(kind="switch", size=2, bandwidth_Bps=1))
    for write, read in ((write_graphml, read_graphml), (write_node_link, read_node_link)):
        text = write(fabric)
        with contextlib.suppress(WeftError):
            assert read(text[:at] + inserted + text[at + length :]).accelerators >= 1


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_every_format_written_is_recognised(kind, tmp_path):
    path = tmp_path / "fabric"
    path.write_text(write_fabric(example(), kind))
    fabric = read_fabric(path, scale_up_Bps=450e9)
    assert fabric.accelerators == (8 if kind == "slurm" else 32)


def test_other_formats_are_recognised_or_refused(tmp_path):
    path = tmp_path / "fabric"
    for text, words in (
        ('<system version="1"/>', "no accelerator"),
        ('Switch\t8 "S-1"\t# "a"\n', "no adapter"),
        ("hello", "no format"),
        ("\n" * 200_000 + "x", "no format"),
        (" " * 300_000 + "x", "no format"),
        ("topology" + " " * 300_000 + "x", "no format"),
        ("Switch" + "\t" * 300_000 + "x", "no format"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=words):
            read_fabric(path)
    for kind in FORMATS:
        with pytest.raises(BadInput):
            read_fabric(path, kind=kind)
    with pytest.raises(BadInput, match="unknown format"):
        read_fabric(path, kind="gexf")
    with pytest.raises(BadInput, match="unknown format"):
        write_fabric(example(), "nccl")
