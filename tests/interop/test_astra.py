"""ASTRA-sim's networks and system files."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.dimension import Dimension
from weft.interop.astra import AstraSystem, read_network, read_system, write_network, write_system

NETWORK = """\
topology: [ FullyConnected, Ring, Switch ]
npus_count: [ 8, 16, 8 ]
bandwidth: [ 25.0, 100.0, 50.0 ]
latency: [ 700.0, 700.0, 850.0 ]
"""
FOUR = ["ring", "direct", "halvingDoubling", "doubleBinaryTree"]
OURS = ("ring", "direct", "halving-doubling", "double-tree")
SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 1,
    "active-chunks-per-dimension": 2,
    "preferred-dataset-splits": 64,
    **{f"{name}-implementation": FOUR for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")},
    "collective-optimization": "localBWAware",
    "intra-dimension-scheduling": "FIFO",
    "inter-dimension-scheduling": "baseline",
    "local-mem-bw": 1600,
    "peak-perf": 900,
    "roofline-enabled": 0,
}


def system(**changes):
    return json.dumps({key: value for key, value in (SYSTEM | changes).items() if value is not None})


def test_a_network():
    dimensions = read_network(NETWORK)
    assert [one.kind for one in dimensions] == ["fully-connected", "ring", "switch"]
    assert [one.size for one in dimensions] == [8, 16, 8]
    assert [one.bandwidth_Bps for one in dimensions] == [175 * 2**30, 100 * 2**30, 50 * 2**30]
    assert [one.latency_s for one in dimensions] == [7e-7, 7e-7, 1.7e-6], "two hops through a switch"
    assert dimensions[0].link_Bps == 25 * 2**30
    assert dimensions[1].link_Bps == 50 * 2**30
    assert write_network(dimensions) == NETWORK


def test_lists_in_lines_and_comments():
    text = "# a network\ntopology:\n  - Ring\n  - Switch\nnpus_count:\n- 4\n- 2\nbandwidth: [50, 1e2] # GB/s\n"
    dimensions = read_network(text + "latency: [ .5, 0 ]\n")
    assert [(one.size, one.bandwidth_Bps / 2**30, one.latency_s) for one in dimensions] == [
        (4, 50, 5e-10),
        (2, 100, 0),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- Ring\n", "not a network"),
        (NETWORK.replace("[ 8, 16", "[ 8.0, 16"), r"npus_count\[0\]: '8.0'"),
        (NETWORK.replace("latency", "delay"), "unknown key 'delay'"),
        ("\n".join(NETWORK.splitlines()[:3]), "latency: is missing"),
        (NETWORK.replace(", Switch", ""), "lists differ in length: topology 2, npus_count 3"),
        (NETWORK.replace("Ring", "Torus"), r"topology\[1\]: unknown topology 'Torus'"),
        (NETWORK.replace("[ 8, 16", "[ 1, 16"), r"npus_count\[0\]: 1 is not a whole number from 2"),
        (NETWORK.replace("100.0", "0"), r"bandwidth\[1\]: 0.0 is not a finite number above 0"),
        (NETWORK.replace("100.0", "-1"), r"bandwidth\[1\]: '-1' is not a number"),
        (NETWORK.replace("850.0", "2us"), r"latency\[2\]: '2us' is not a number"),
        (NETWORK.replace("[ Full", "{ Full"), "line 1: not valid YAML.*write each key in one line"),
        ("topology: Ring\nnpus_count: 4\nbandwidth: 1\nlatency: 1\n", "topology: is not a list"),
    ],
)
def test_networks_that_cannot_be_used(text, words):
    with pytest.raises(BadInput, match=words):
        read_network(text)


def test_networks_of_version_one_are_named():
    with pytest.raises(Unsupported, match=r"ASTRA-sim 1\.0.*network\.yml"):
        read_network('{"topology-name": "Hierarchical"}')


@pytest.mark.parametrize(
    ("change", "words"),
    [({"kind": "line"}, "no line"), ({"reduces": True}, "switches do not reduce"), ({"size": 1}, "at least 2 nodes")],
)
def test_dimensions_that_astra_sim_does_not_have(change, words):
    good = Dimension(size=4, kind="switch", bandwidth_Bps=1e9)
    with pytest.raises(Unsupported, match=f"dimension 1: .*{words}"):
        write_network([good, replace(good, **change)])


def test_no_dimensions():
    with pytest.raises(BadInput, match="0 dimensions"):
        write_network([])


DIMENSIONS = st.builds(
    Dimension,
    size=st.integers(2, 4096),
    kind=st.sampled_from(["ring", "fully-connected", "switch"]),
    bandwidth_Bps=st.floats(1e-3, 1e18),
    latency_s=st.just(0.0) | st.floats(1e-15, 1e3),
)


@given(st.lists(DIMENSIONS, min_size=1, max_size=6))
def test_networks_are_read_back_exactly(dimensions):
    assert read_network(write_network(dimensions)) == tuple(dimensions)


def test_a_system():
    found = read_system(system())
    assert found == AstraSystem(
        algorithms=dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter", "all-to-all"), OURS),
        chunks=64,
        active=2,
        peak_flops=900e12,
        local_memory_Bps=1600e9,
    )


def test_defaults_of_a_system():
    found = read_system('{"all-reduce-implementation": ["ring"]}')
    assert found == AstraSystem(algorithms={"all-reduce": ("ring",)})


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"all-reduce-implementation": ["oneRing"] * 4}, Unsupported, "oneRing over all dimensions"),
        ({"all-gather-implementation": ["oneDirect8"]}, Unsupported, "an algorithm per dimension"),
        ({"all-reduce-implementation": ["star"] * 4}, UnknownName, "unknown algorithm 'star'"),
        ({"all-reduce-implementation": ["ring"]}, BadInput, "differ in dimensions: all-reduce 1, all-gather 4"),
        ({"all-reduce-implementation": "ring"}, BadInput, "not a list of algorithms"),
        ({"all-reduce-implementation": [1] * 4}, BadInput, "more than names"),
        ({"all-reduce-implementation-custom": ["x"]}, Unsupported, "custom collectives"),
        ({"inter-dimension-scheduling": "themis"}, Unsupported, "'themis' is not modelled here.*--policy"),
        ({"intra-dimension-scheduling": "SCF"}, Unsupported, "'SCF' is not modelled"),
        ({"scheduling-policy": "EXPLICIT"}, Unsupported, "'EXPLICIT' is not modelled"),
        ({"collective-optimization": "baseline"}, Unsupported, "set localBWAware"),
        ({"collective-optimization": "fast"}, UnknownName, "'fast'"),
        ({"preferred-dataset-splits": 0}, BadInput, "0 is outside 1 to"),
        ({"active-chunks-per-dimension": 1.5}, BadInput, "1.5 is not a whole number"),
        ({"peak-perf": -1}, BadInput, "-1 is not a number from 0"),
        ({"local-mem-bw": 1e300}, BadInput, r"1e\+300 is not a number"),
    ],
)
def test_systems_that_cannot_be_used(changes, kind, words):
    with pytest.raises(kind, match=words):
        read_system(system(**changes))


@pytest.mark.parametrize(
    ("text", "words"),
    [("scheduling-policy: LIFO", "not valid JSON"), ('{"logical-dims": ["8"]}', "not a system file")],
)
def test_texts_that_are_no_system(text, words):
    with pytest.raises(BadInput, match=words):
        read_system(text)


def test_one_dimension_may_keep_the_baseline_optimization():
    text = json.dumps({"all-reduce-implementation": ["ring"], "collective-optimization": "baseline"})
    assert read_system(text).algorithms == {"all-reduce": ("ring",)}


ALGORITHMS = st.integers(1, 4).flatmap(
    lambda count: st.dictionaries(
        st.sampled_from(["all-reduce", "all-to-all"]), st.tuples(*[st.sampled_from(OURS)] * count)
    )
)
RATES = st.none() | st.integers(1, 5000)
SYSTEMS = st.builds(
    AstraSystem,
    algorithms=ALGORITHMS,
    chunks=st.integers(1, 1000),
    active=st.integers(1, 64),
    peak_flops=RATES.map(lambda tera: tera and tera * 1e12),
    local_memory_Bps=RATES.map(lambda giga: giga and giga * 1e9),
)


@given(SYSTEMS)
def test_systems_are_read_back(written):
    assert read_system(write_system(written)) == written


def test_an_algorithm_that_a_system_cannot_hold():
    with pytest.raises(Unsupported, match="no algorithm 'in-switch'"):
        write_system(AstraSystem(algorithms={"all-reduce": ("in-switch",)}))
