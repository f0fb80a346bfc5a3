"""The look of pages: what is frozen loads nothing, what comes from files stays text, tables work without a script."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from weft.views.blocks import Blank, Column, Copied, Fact, Figure, Heading, Paragraph, Table
from weft.views.charts import scheme_css
from weft.views.html import PLACES, STATIC, Markup, render, sections, static, to_page
from weft.web.pages import PLAN, Field, Group

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def blocks(name):
    """Each kind of block, with a name in all of its texts."""
    columns = [Column(name, [name, "b"], meaning=name, left=True, values=[name, ""]), Column("tp", ["2", name])]
    bars = [Column(name, [name]), Column("", [name]), Column("", shares=[0.5])]
    return [
        *(Paragraph(name), Fact(name, name), Blank(), Heading(name, top=True), Table(*columns), Table(*bars)),
        *(Figure("<svg></svg>", name), Copied(name, name)),
    ]


def page(name, frozen):
    if frozen:
        return to_page(name, blocks(name))
    kinds = [
        ("a", "text", ()),
        ("b", "choice", ("", name)),
        ("c", "number", ()),
        ("d", "area", ()),
        ("e", "text", (name,)),
    ]
    fields = tuple(Field(one, name, kind, name, choices, name) for one, kind, choices in kinds)
    asked = replace(PLAN, groups=(Group(fields, name),))
    inner = render("blocks.html", sections=sections(blocks(name), lambda value: f"/plan?x={value}"))
    answer = render(
        "answer.html", blocks=Markup(inner), show="a", tabs=[("a", name), ("b", name)], files=[(name, name)]
    )
    message = render("message.html", text=name, remedy=name)
    given = dict.fromkeys([*(one for one, _, _ in kinds), "show"], name)
    shown = {"page": asked, "given": given, "filled": ["a"], "answer": Markup(answer + message)}
    return render("question.html", here="/plan", example=False, **shown)


@pytest.mark.parametrize("frozen", [False, True])
def test_names_stay_text(elements, frozen):
    found, plain = elements(page(HOSTILE, frozen)), elements(page("harmless", frozen))
    assert [tag for tag, _ in found.found] == [tag for tag, _ in plain.found]
    assert [set(each) for _, each in found.found] == [set(each) for _, each in plain.found]
    assert HOSTILE in found.text
    assert [one.replace("harmless", HOSTILE) for one in plain.text] == found.text


def test_a_frozen_page_loads_nothing_and_runs_its_own_scripts_only(elements):
    text = page("plain", True)
    found = elements(text)
    assert found.named("link") == []
    assert not [each for _, each in found.found if "src" in each or "style" in each or "onclick" in each]
    (policy,) = [each["content"] for each in found.named("meta") if "http-equiv" in each]
    inline = re.findall(r"<(script|style)>(.*?)</\1>", text, re.DOTALL)
    assert len(inline) == 3
    for _, held in inline:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()}'" in policy
    assert "unsafe" not in policy
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_a_served_page_has_all_places_and_no_inline_script(elements):
    found = elements(page("plain", False))
    assert [one["href"] for one in found.named("a") if "aria-current" in one] == ["/plan", "plain"]
    assert [one["href"] for one in found.named("a") if one["href"] in dict(PLACES)] == [path for path, _ in PLACES]
    files = [one.get("src", "") for one in found.named("script")] + [one["href"] for one in found.named("link")]
    assert sorted(files) == sorted(f"/static/{name}" for name in STATIC if name != "work.js")
    assert not [each for _, each in found.found if "style" in each]


def test_numbers_carry_what_they_are_sorted_by(elements):
    cells = [one for one in elements(page("plain", True)).named("td") if "data-key" in one]
    assert [one["data-key"] for one in cells] == ["2.0"]


def test_charts_follow_the_scheme_of_the_viewer():
    assert scheme_css() in static("weft.css").decode()
