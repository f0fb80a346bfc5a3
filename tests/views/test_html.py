"""Blocks as HTML: sections and their names, tables, what numbers are sorted by, figures."""

import pytest

pytest.importorskip("jinja2")

from weft.errors import BadInput
from weft.views import html
from weft.views.blocks import Blank, Column, Fact, Figure, Heading, Paragraph, Table, rows_grid
from weft.views.html import sections, sort_key, to_html


@pytest.mark.parametrize(
    ("text", "key"),
    [
        *(("12", 12.0), ("1,024", 1024.0), ("-3.2%", -3.2), ("+0.5%", 0.5), ("x1.25", 1.25), ("$1,000", 1000.0)),
        *(("~3 ms", 3e-3), ("1.5 GiB", 1.5 * 2**30), ("2.00 s", 2.0), ("10.2 us", 10.2e-6), ("3 h", 10800.0)),
        *(("100 GB/s", 1e11), ("16k", 16e3), ("1e-3", 1e-3), (".5", 0.5), ("-", None), ("", None), ("rail", None)),
    ],
)
def test_cells_are_sorted_by_their_numbers(text, key):
    assert sort_key(text) == (key if key is None else pytest.approx(key))


def test_sections_have_names_of_their_own():
    made = sections([Paragraph("x"), *(Heading(one) for one in ("Best: 1 s", "Best (2)", "best", "!", "!"))])
    assert [one.name for one in made] == ["", "best", "best-2", "best-3", "section", "section-2"]
    assert [one.title for one in sections([Blank(), Heading("A")])] == ["A"]


def test_tables_of_a_section_have_names_of_their_own():
    grid = rows_grid(("a", "b"), [("x", "1")], left=("a",))
    (section,) = sections([Heading("Rows"), grid, Fact("f:", "1"), Fact("g", "2"), grid])
    assert [part["name"] for kind, part in section.parts if kind == "table"] == ["rows-table", "rows-table1"]
    assert [part for kind, part in section.parts if kind == "facts"] == [[("f", "1"), ("g", "2")]]


def test_rows_lead_to_their_own_pages_where_there_are_any():
    grid = Table(Column("#", ["1", "all"], values=["tp=2", ""]))
    assert to_html([grid], lambda value: f"/plan?layout={value}").count("<a ") == 1
    assert "<a " not in to_html([grid])
    assert "<tr>" in to_html([rows_grid(("a",), [])])


def test_figures_beyond_the_room_of_a_page_and_refused_charts_are_named(monkeypatch):
    def refused():
        raise BadInput("too many points")

    monkeypatch.setattr(html, "FIGURES_BYTES", 30)
    text = to_html(
        [Figure("<svg id='a'></svg>", "first"), Figure("<svg id='b'></svg>", "second"), Figure(refused, "c")]
    )
    assert text.count("<figure") == 1
    assert "Not drawn, too large for this page: second" in text
    assert "Not drawn, too much for a chart: c" in text
