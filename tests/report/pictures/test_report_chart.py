"""SVG pictures: well formed, to scale, inert."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.pictures.layouts import breakdown_svg, pareto_svg
from weft.report.pictures.svg import ticks

NAMESPACE = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> list[tuple[str, float]]:
    """Title and width of every part drawn."""
    root = ElementTree.fromstring(svg)
    found = []
    for rect in root.iter(f"{NAMESPACE}rect"):
        title = rect.find(f"{NAMESPACE}title")
        if title is not None:
            found.append((title.text, float(rect.get("width"))))
    return found


def test_bars_are_to_scale(small_plan):
    svg = breakdown_svg(small_plan.layouts[:1])
    best = small_plan.layouts[0]
    widths = dict(bars(svg))
    backward = next(part.value for part in best.time if part.name == "backward_s")
    shown = next(width for title, width in widths.items() if title.startswith("backward compute"))
    assert shown == pytest.approx(480 * backward / best.iteration_s, abs=0.01)


def test_every_layout_has_its_label(small_plan):
    svg = breakdown_svg(small_plan, top=4)
    text = [node.text for node in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]
    assert sum(label.startswith(("1. ", "2. ", "3. ", "4. ", "5. ")) for label in text) == 4


def test_names_are_escaped(small_plan):
    model = replace(small_plan.job.model, name="<script>&\x1b")
    hostile = replace(small_plan, job=replace(small_plan.job, model=model))
    for svg in (breakdown_svg(hostile), pareto_svg(hostile)):
        assert "<script>" not in svg
        assert "\x1b" not in svg
        ElementTree.fromstring(svg)


def test_plans_without_layouts_give_a_picture(starved_plan):
    for svg in (breakdown_svg(starved_plan), pareto_svg(starved_plan), breakdown_svg([])):
        assert "No layout to draw" in svg
        ElementTree.fromstring(svg)


def test_pareto_draws_a_point_a_layout(small_plan):
    fastest = small_plan.pareto[0].iteration_s
    shown = [one for one in small_plan.pareto if one.iteration_s <= 2 * fastest]
    root = ElementTree.fromstring(pareto_svg(small_plan))
    assert len(list(root.iter(f"{NAMESPACE}circle"))) == len(shown)


def test_a_frontier_of_one_has_axes(small_plan):
    alone = replace(small_plan, pareto=small_plan.pareto[:1])
    assert "capacity" in pareto_svg(alone)


@given(st.floats(1e-6, 1e6), st.floats(0.0, 1e6))
def test_ticks_enclose_the_range(low, span):
    found = ticks(low, low + span)
    assert found[0] <= low * (1 + 1e-6)
    assert found[-1] >= (low + span) * (1 - 1e-6)
    assert 3 <= len(found) <= 12
    assert found == sorted(set(found))
