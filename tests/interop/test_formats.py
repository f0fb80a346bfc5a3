"""The table of formats: functions that are there, names used once for their noun, and texts that are read back."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import UnknownName
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.fabric.wiring import Wiring, fabric_of
from weft.interop.formats import FABRICS, FORMATS, ROUTES, SCHEDULES, WIRINGS, writer_of


@pytest.mark.parametrize(
    ("formats", "page", "word"),
    [
        (ROUTES, "routing.md", "`{}`"),
        (SCHEDULES, "schedules.md", "`--export {}"),
        ([form for form in (*FABRICS, *WIRINGS) if form.writer], "networks.md", "`--export {}"),
    ],
)
def test_what_is_written_is_documented(formats, page, word):
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    assert [form.name for form in formats if word.format(form.name) not in text] == []


def test_formats_that_nobody_knows():
    with pytest.raises(UnknownName, match=r"unknown export of routes 'fr'.*did you mean"):
        writer_of("routes", "fr", "export of routes")


BOTH_WAYS = [form for form in FORMATS if form.noun in ("fabric", "wiring") and form.reader and form.writer]
SERVER = Dimension(kind="switch", size=4, bandwidth_Bps=450e9)


@settings(max_examples=10)
@given(st.sampled_from(BOTH_WAYS), st.sampled_from([clos.build, rail.optimized, rail.only]), st.sampled_from([8, 16]))
def test_what_is_written_is_read_back_equal(form, build, accelerators):
    """Read and written again it is the same text; formats of cables tell no speeds inside of a host."""
    fabric = build(accelerators, radix=8, bandwidth_Bps=50e9, scale_up=SERVER)
    text = form.write(fabric)
    found = form.read(text)
    if isinstance(found, Wiring):
        found = fabric_of(found, where="plan", scale_up_Bps=450e9)
    if form.name != "slurm":  # whose nodes are the domains
        for column in ("domain", "rail"):
            assert getattr(found, column).tolist() == getattr(fabric, column).tolist()
        assert sorted(found.capacity_Bps.tolist()) == sorted(fabric.capacity_Bps.tolist())
    assert sorted(form.write(found).splitlines()) == sorted(text.splitlines())


@given(st.integers(0, 50), st.sampled_from([(8, 4), (16, 4), (16, 8)]), st.integers(1, 3))
def test_routes_are_read_back_equal(planned, seed, size, parts):
    fabric, *plan = planned(size[0], radix=size[1], seed=seed, parts=parts)
    for form in (form for form in FORMATS if form.noun == "routes" and form.name == "json"):
        text = form.write(fabric, *plan)
        assert form.write(fabric, *form.read(text, fabric)) == text
