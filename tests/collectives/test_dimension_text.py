"""Dimensions, algorithms and odd ranks as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.dimensions import parse_algorithms, parse_dimensions
from weft.collectives.stages import ALGORITHMS
from weft.errors import BadInput, UnknownName
from weft.fabric.dimension import KINDS, Dimension


def test_dimensions():
    found = parse_dimensions("switch:16:150GiB/s:1ns, ring:8:50GB/s:1us,fc:4:400Gb/s:0,line:3:1e9B/s:2us")
    assert found == (
        Dimension(kind="switch", size=16, bandwidth_Bps=150 * 2**30, latency_s=1e-9),
        Dimension(kind="ring", size=8, bandwidth_Bps=50e9, latency_s=1e-6),
        Dimension(kind="fully-connected", size=4, bandwidth_Bps=50e9, latency_s=0.0),
        Dimension(kind="line", size=3, bandwidth_Bps=1e9, latency_s=2e-6),
    )


@pytest.mark.parametrize(
    ("word", "kind"),
    [("FC", "fully-connected"), ("FullyConnected", "fully-connected"), ("Ring", "ring"), ("SWITCH", "switch")],
)
def test_names_of_kinds(word, kind):
    assert parse_dimensions(f"{word}:4:1GB/s:1us")[0].kind == kind


@given(
    st.lists(
        st.builds(
            Dimension,
            kind=st.sampled_from(KINDS),
            size=st.integers(1, 10**6),
            bandwidth_Bps=st.floats(1.0, 1e15).map(lambda value: float(f"{value:.9g}")),
            latency_s=st.floats(0.0, 1.0).map(lambda value: round(value, 9)),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_dimensions_are_written_as_they_are_read(dimensions):
    text = ",".join(
        f"{d.kind}:{d.size}:{d.bandwidth_Bps / 1e9:.12g}GB/s:{d.latency_s * 1e6:.12g}us" for d in dimensions
    )
    for one, read in zip(dimensions, parse_dimensions(text), strict=True):
        assert (read.kind, read.size) == (one.kind, one.size)
        assert read.bandwidth_Bps == pytest.approx(one.bandwidth_Bps, rel=1e-11)
        assert read.latency_s == pytest.approx(one.latency_s, rel=1e-11, abs=1e-20)


BAD = {
    "bandwidth without unit": ("ring:8:50:1us", "bandwidth", "write 50GB/s or 400Gb/s"),
    "latency without unit": ("ring:8:50GB/s:1", "latency", "write 1us"),
    "nothing": ("", "dimension 1", "is not a dimension"),
    "the second": ("ring:8:50GB/s:1us,", "dimension 2", "is not a dimension"),
    "kind": ("rong:8:50GB/s:1us", "dimension 1", "did you mean ring"),
    "no kind": (":8:50GB/s:1us", "dimension 1", "unknown kind of dimension"),
    "size": ("ring:eight:50GB/s:1us", "size", "not a whole number"),
    "negative size": ("ring:-8:50GB/s:1us", "size", "not a whole number"),
    "superscript": ("ring:8²:50GB/s:1us", "size", "not a whole number"),
    "zero": ("ring:0:50GB/s:1us", "size", "0"),
    "bandwidth": ("ring:8:fast:1us", "bandwidth", "is not a quantity"),
    "unit of a bandwidth": ("ring:8:50GB:1us", "bandwidth", "wrong unit"),
    "no bandwidth": ("ring:8:0GB/s:1us", "bandwidth", "0"),
    "negative bandwidth": ("ring:8:-1GB/s:1us", "bandwidth", "-1"),
    "infinite bandwidth": ("ring:8:1e999B/s:1us", "bandwidth", "too large"),
    "latency": ("ring:8:50GB/s:soon", "latency", "is not a quantity"),
    "unit of a latency": ("ring:8:50GB/s:1m", "latency", "wrong unit"),
    "negative latency": ("ring:8:50GB/s:-1us", "latency", "-1e-06"),
    "reduces": ("ring:8:50GB/s:1us:reduce", "reduces", "no switch that reduces"),
}


@pytest.mark.parametrize("name", BAD)
def test_dimensions_that_cannot_be(name):
    text, where, message = BAD[name]
    with pytest.raises(BadInput) as error:
        parse_dimensions(text)
    assert str(error.value).startswith("--dims: dimension ")
    assert where in str(error.value)
    assert message in str(error.value)


def test_algorithms():
    assert parse_algorithms("ring, -,direct") == ["ring", None, "direct"]
    assert parse_algorithms(",".join(ALGORITHMS)) == list(ALGORITHMS)
    for text in ("rign", "", "ring,", "Ring", "-,--"):
        with pytest.raises(UnknownName, match="--algorithms"):
            parse_algorithms(text)
