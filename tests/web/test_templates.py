"""The look of pages: what is frozen loads nothing, what comes from files stays text, tables work without a script."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from weft.web.templates import PLACES, STATIC, _environment, static
from weft.web.views.parts import Cell, Column, Fact, Message, Part, Parts, Picture, Table

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
PAGE = """{% extends "base.html" %}{% import "macros.html" as show %}
{% block title %}{{ name }}{% endblock %}
{% block main %}{{ show.facts(facts) }}{{ show.messages(messages) }}{{ show.table(table) }}{{ show.meanings(table) }}
{{ show.parts(parts) }}{{ show.chart(picture) }}{{ show.copied(name, name) }}
{{ show.field("a", name, value=name, help=name, placeholder=name) }}{{ show.choice("b", name, [name], name, name) }}
{{ show.switch("c", name, help=name) }}{{ show.area("d", name, name, name) }}{% endblock %}"""


class Elements(HTMLParser):
    """The elements of a page with their attributes, and what stands open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def page(name, frozen):
    cells = (Cell(text=name, link=f"#{name}"), Cell(text="2", key=2.0))
    table = Table(
        name="layouts",
        caption=name,
        columns=(Column(heading=name, meaning=name, number=False), Column(heading="tp", meaning=name)),
        rows=(cells, (Cell(text="b"), Cell(text="-"))),
    )
    shown = {
        "name": name,
        "facts": [Fact(name=name, text=name)],
        "messages": [Message(text=name, remedy=name, kind="error")],
        "table": table,
        "parts": Parts(caption=name, parts=(Part(label=name, text=name, share=0.5, colour=name),)),
        "picture": Picture(svg="<svg></svg>", caption=name),
    }
    return _environment().from_string(PAGE).render({"frozen": frozen, "here": "/plan", "contents": ()} | shown)


@pytest.mark.parametrize("frozen", [False, True])
def test_names_stay_text(frozen):
    found, plain = Elements(page(HOSTILE, frozen)), Elements(page("harmless", frozen))
    assert [tag for tag, _ in found.found] == [tag for tag, _ in plain.found]
    assert [set(each) for _, each in found.found] == [set(each) for _, each in plain.found]
    assert HOSTILE in found.text
    assert [one.replace("harmless", HOSTILE) for one in plain.text] == found.text


def test_a_frozen_page_loads_nothing_and_runs_its_own_scripts_only():
    text = page("plain", True)
    elements = Elements(text)
    assert elements.named("link") == []
    assert not [each for _, each in elements.found if "src" in each or "style" in each or "onclick" in each]
    (policy,) = [each["content"] for each in elements.named("meta") if "http-equiv" in each]
    inline = re.findall(r"<(script|style)>(.*?)</\1>", text, re.DOTALL)
    assert len(inline) == 3
    for _, held in inline:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()}'" in policy
    assert "unsafe" not in policy
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_a_served_page_has_all_places_and_no_inline_script():
    elements = Elements(page("plain", False))
    assert [one for one in elements.named("a") if "aria-current" in one] == [{"href": "/plan", "aria-current": "page"}]
    assert [one["href"] for one in elements.named("a") if one["href"] in dict(PLACES)] == [path for path, _ in PLACES]
    files = [one.get("src", "") for one in elements.named("script")] + [one["href"] for one in elements.named("link")]
    later = ("arrange.js", "slide.js", "work.js", "zoom.js")
    assert sorted(files) == sorted(f"/static/{name}" for name in STATIC if name not in later)
    assert not [each for _, each in elements.found if "style" in each]


def test_every_field_has_a_label():
    elements = Elements(page("plain", False))
    fields = [one["id"] for tag in ("input", "select", "textarea") for one in elements.named(tag)]
    assert sorted(fields) == sorted(one["for"] for one in elements.named("label")) == ["a", "b", "c", "d"]


def test_numbers_carry_what_they_are_sorted_by():
    cells = [one for one in Elements(page("plain", True)).named("td") if "data-key" in one]
    assert [one["data-key"] for one in cells] == ["2.0"]


def test_static_files_are_those_of_the_folder():
    assert all(static(name) for name in STATIC)
    with pytest.raises(KeyError):
        static("../templates.py")


def test_a_missing_value_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        _environment().from_string("{{ nothing }}").render()


def test_charts_follow_the_dark_scheme():
    """The style sheet holds the charts' own rules, so that no page needs Altair to be styled."""
    pytest.importorskip("altair")
    from weft.views.charts.charts import scheme_css

    assert scheme_css() in static("weft.css").decode()
