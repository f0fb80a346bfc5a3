"""Layouts as text and as dictionaries."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.layout.drawn import layouts

from weft.codec import encode
from weft.errors import BadInput
from weft.layout.spec import ALIASES, AXES, FIELDS, Layout
from weft.layout.text import format_layout, layout_from_dict, parse_layout


@given(layouts(st.permutations(AXES).map(tuple)), st.booleans())
def test_text_parses_back_equal(layout, whole):
    partial = parse_layout(format_layout(layout, whole=whole))
    assert partial.complete() == layout
    assert partial.complete(layout.world) == layout


@given(layouts(st.permutations(AXES).map(tuple)))
def test_dictionary_reads_back_equal_through_json(layout):
    values = json.loads(json.dumps(encode(layout)))
    assert tuple(values) == FIELDS
    assert layout_from_dict(values, world=layout.world) == layout


def message_of(read):
    """The message of a refused input, or "read"."""
    try:
        assert isinstance(read(), Layout)
    except BadInput as error:
        return str(error)
    return "read"


@given(st.text(max_size=60) | st.text(alphabet="xyzdp=,01 -", max_size=40))
def test_any_text_is_a_layout_or_a_message(text):
    assert message_of(lambda: parse_layout(text).complete()).startswith(("--layout: ", "read"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from((*FIELDS, *ALIASES, "dp")) | st.text(max_size=6), json_values, max_size=4))
def test_any_dictionary_is_a_layout_or_a_message(values):
    assert message_of(lambda: layout_from_dict(values)).startswith(("layout: ", "read"))


def test_short_form_is_short():
    assert format_layout(Layout()) == "dp=1"
    assert format_layout(Layout(x=8, pipeline=16)) == "tp=8,pp=16,dp=1"
    assert format_layout(Layout(x=8), whole=True) == "tp=8,dp=1,mbs=1,zero=1,recompute=none"


def test_aliases_and_separators():
    expected = Layout(
        x=8,
        z=2,
        zero=0,
        pipeline=4,
        context=2,
        virtual_stages=3,
        schedule="interleaved",
        micro_batch=2,
        sequence_parallel=True,
    )
    assert parse_layout("tp=8, fsdp=2 pp=4,cp=2\nVPP=3 micro-batch=2,sp").complete() == expected
    aliased = {"tp": 8, "fsdp": 2, "pp": 4, "cp": 2, "vpp": 3, "mbs": 2, "sp": 1}
    assert layout_from_dict(aliased) == expected


@pytest.mark.parametrize(
    ("text", "z", "data"),
    [("dp=8", 1, 8), ("dp=8,z=4", 4, 2), ("dp=8,data=2", 4, 2), ("dp=8,z=2,data=4", 2, 4), ("dp=8,fsdp=8", 8, 1)],
)
def test_dp_is_z_times_data(text, z, data):
    layout = parse_layout(text).complete()
    assert (layout.z, layout.data) == (z, data)


@pytest.mark.parametrize("text", ["dp=8,z=3", "dp=8,z=16", "dp=8,data=3", "dp=8,z=2,data=2"])
def test_dp_that_disagrees_is_refused(text):
    with pytest.raises(BadInput, match=r"is not dp=8|dp=8 is not a multiple of"):
        parse_layout(text).complete()


@pytest.mark.parametrize(
    ("text", "fsdp", "data"),
    [
        ("zero=3", 64, 1),
        ("tp=8,zero=3", 8, 1),
        ("tp=8,zero=3,dp=8", 8, 1),
        ("tp=8,zero=3,fsdp=4", 4, 2),
        ("fsdp=1", 1, 64),
    ],
)
def test_zero_3_shares_the_weights_among_all_data_parallel_ranks(text, fsdp, data):
    layout = parse_layout(text).complete(64)
    assert (layout.fsdp, layout.data) == (fsdp, data)
    assert layout.zero == (0 if fsdp > 1 else 1)


def test_world_fills_data_and_is_checked():
    assert parse_layout("x=8,pipeline=16").complete(1024).data == 8
    assert parse_layout("x=8,fsdp=16").complete(128).data == 1
    with pytest.raises(BadInput, match=r"tp 8 \* pp 6 = 48 does not divide 1024"):
        parse_layout("x=8,pipeline=6").complete(1024)
    with pytest.raises(BadInput, match=r"tp 8 \* pp 6 \* dp 20 = 960, but there are 1024"):
        parse_layout("x=8,pipeline=6,data=20").complete(1024)
    with pytest.raises(BadInput, match="does not divide 4"):
        parse_layout("x=8").complete(4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("x", "has no value"),
        ("x=", "has no value"),
        ("x=0", "not between 1 and"),
        ("x=-2", "not between 1 and"),
        ("x=1.5", "not a whole number"),
        ("x=true", "not a whole number"),
        ("x=" + "9" * 5000, "not a whole number"),
        ("x=2,tp=2", "tp is given twice"),
        ("zero=3,data=2", "data=2 copies them -- drop data, or give fsdp=N"),
        ("zero=4", "not between 0 and 2"),
        ("sp=maybe", "not true or false"),
        ("recompute=sel", "did you mean selective"),
        ("pipelin=2", "did you mean pipeline"),
        ("order=x/y", "does not name every axis once"),
        ("order=x/y/z/z/data/pipeline", "does not name every axis once"),
        ("x=\u0663", "not a whole number"),
    ],
)
def test_bad_text_says_what_and_how(text, message):
    with pytest.raises(BadInput, match=message):
        parse_layout(text)


@pytest.mark.parametrize(
    "values",
    [{"x": "8"}, {"x": 8.0}, {"x": True}, {"sp": "true"}, {"sp": 2}, {"order": "xyz"}, {"schedule": 1}, [], None, 3],
)
def test_dictionaries_are_strict(values):
    with pytest.raises(BadInput):
        layout_from_dict(values)


def test_unknown_key_is_named_with_its_file():
    with pytest.raises(BadInput, match=r"plan\.json: unknown key 'dataa' -- did you mean data\? Keys: dp, tp, y,"):
        layout_from_dict({"dataa": 2}, where="plan.json")
