"""Blocks as HTML, and the templates and files of pages of the server and of reports."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from weft.errors import BadInput, MissingExtra
from weft.units import PREFIXES, SECONDS
from weft.views.blocks import Block, Column, Copied, Fact, Figure, Heading, Paragraph, Table
from weft.views.charts import Chart, embedded

_NUMBER = re.compile(r"([-+]?)[x$]?([\d,]*\.?\d+(?:e[-+]?\d+)?) ?([A-Za-z%]*)")
_FACTORS = SECONDS | {prefix + unit: factor for prefix, factor in PREFIXES.items() for unit in ("", "B", "W")}
"""Units and the letters before them, in SI units."""
FIGURES_BYTES = 2_400_000
"""What the figures of a page may have together; those beyond are left out, and named."""


@dataclass(slots=True)
class Section:
    """A heading, the name of its element, whether the navigation of a report names it, and the parts below it."""

    title: str = ""
    name: str = ""
    linked: bool = False
    parts: list[tuple[str, Any]] = field(default_factory=list)


def sections(blocks: Iterable[Block], link: Callable[[str], str] | None = None) -> list[Section]:
    """Blocks by section, prepared for ``blocks.html``; the first section has no heading.

    Args:
        link: the address of a row of a grid by its value; without it rows lead nowhere.
    """
    result, names, room = [Section()], {""}, FIGURES_BYTES
    for block in blocks:
        parts = result[-1].parts
        match block:
            case Heading(text=text, top=top):
                name = stem = re.sub(r"[^a-z0-9]+", "-", re.split(r"[:,(]", text)[0].lower()).strip("-") or "section"
                number = 1
                while name in names:
                    number += 1
                    name = f"{stem}-{number}"
                names.add(name)
                result.append(Section(text, name, top))
            case Fact():
                if not parts or parts[-1][0] != "facts":
                    parts.append(("facts", []))
                parts[-1][1].append((block.name.rstrip(":"), block.text))
            case Paragraph():
                parts.append(("paragraph", block))
            case Table(columns=columns) if any(column.shares for column in columns):
                parts.append(("bars", _bars(columns)))
            case Table(columns=columns):
                tables = sum(kind == "table" for kind, _ in parts)
                name = f"{result[-1].name or 'first'}-table{tables or ''}"
                ordered, same = _ordered(columns)
                rows = list(_rows(ordered, link))
                parts.append(("table", {"name": name, "columns": ordered, "rows": rows, "same": same}))
            case Figure(chart=chart):
                drawing, title, subtitle = _drawn(chart)
                if drawing and len(drawing) <= room:
                    room -= len(drawing)
                    figure = {"drawing": Markup(drawing), "title": title, "subtitle": subtitle, "label": block.caption}
                    parts.append(("figure", figure))
                else:
                    why = "too large for this page" if drawing else "too much for a chart"
                    parts.append(("paragraph", Paragraph(f"Not drawn, {why}: {block.caption}")))
            case Copied():
                parts.append(("copied", (block.text.strip("\n"), block.label)))
    return [section for section in result if section.name or section.parts]


def to_page(title: str, blocks: Iterable[Block]) -> str:
    """A report: one file that loads nothing."""
    return render("report.html", frozen=True, title=title, sections=sections(blocks))


def to_html(blocks: Iterable[Block], link: Callable[[str], str] | None = None) -> str:
    """Blocks as a part of a page."""
    return render("blocks.html", sections=sections(blocks, link))


def sort_key(text: str) -> float | None:
    """The number with its unit that a cell begins with, in SI units; None where it begins with a word.

    >>> sort_key("1.5 GiB"), sort_key("-3.2%"), sort_key("rail")
    (1610612736.0, -3.2, None)
    """
    number = _NUMBER.match(text.removeprefix("~"))
    if number is None:
        return None
    value = float(number[2].replace(",", "")) * _FACTORS.get(number[3], 1.0)
    return -value if number[1] == "-" else value


def _drawn(chart: str | Callable[[], Chart]) -> tuple[str, str, str]:
    """The SVG element of a figure, its title and its subtitle; empty where the chart is refused."""
    if isinstance(chart, str):
        return chart, "", ""
    try:
        return embedded(chart())
    except BadInput:
        return "", "", ""


def _ordered(columns: Sequence[Column]) -> tuple[list[Column], str]:
    """The columns of a table, those in ``front`` behind the first, and in words the columns without a difference."""
    first, *rest = columns
    constant = [
        column for column in rest if not column.front and len(column.cells) > 1 and len(set(column.cells)) == 1
    ]
    shown = sorted((column for column in rest if column not in constant), key=lambda column: not column.front)
    words = (f"{column.heading} {column.cells[0]}" for column in constant if column.cells[0] not in ("", "-"))
    return [first, *shown], ", ".join(words)


def _rows(columns: Iterable[Column], link: Callable[[str], str] | None) -> Iterator[list[tuple[str, Any, str]]]:
    """Text, key and address of each cell, row by row."""
    cells = []
    for column in columns:
        keys = [None if column.left else sort_key(text) for text in column.cells]
        addresses = [link(value) if value else "" for value in column.values] if link is not None else []
        cells.append(zip_longest(column.cells, keys, addresses[: len(column.cells)], fillvalue=""))
    yield from (list(row) for row in zip(*cells, strict=True))


def _bars(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Label, value and share of each row of bars."""
    shares = next(column.shares for column in columns if column.shares)
    rows = zip(columns[0].cells, columns[1].cells, shares, strict=True)
    return [{"label": label, "value": value, "share": share} for label, value, share in rows]


try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ImportError:
    raise MissingExtra("a page", "page") from None

__all__ = ["Markup", "render", "static"]
_HERE = Path(__file__).parent
STATIC = {
    "weft.css": "text/css; charset=utf-8",
    "table.js": "text/javascript; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "slide.js": "text/javascript; charset=utf-8",
    "work.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files that pages use, and what they are."""
PLACES = tuple(
    (f"/{name}", name.capitalize()) for name in ("plan", "tune", "network", "schedule", "arrange", "accuracy")
)
"""The pages of ``weft serve``, as its navigation lists them."""
_SCRIPTS = ("table.js", "page.js")


def render(name: str, **context: Any) -> str:
    """The text of a page.  All that comes from ``context`` is escaped.

    Args:
        name: a file of ``templates``.
        context: ``frozen`` (style and script are inside the page, which has no links), ``here`` (the path of the
            page in ``PLACES``), ``sections`` (of a frozen page, which its navigation names), and what the
            template itself takes.
    """
    return _environment().get_template(name).render({"frozen": False, "here": "", "sections": ()} | context)


@cache
def static(name: str) -> bytes:
    """A file of ``static``.

    Raises:
        KeyError: there is none of that name in ``STATIC``.
    """
    if name not in STATIC:
        raise KeyError(name)
    return (_HERE / "static" / name).read_bytes()


def _policy() -> str:
    """What a frozen page may do: use its own style and scripts, and load nothing."""
    scripts = " ".join(_digest(name) for name in _SCRIPTS)
    return (
        f"default-src 'none'; style-src {_digest('weft.css')}; script-src {scripts}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(name: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(static(name)).digest()).decode()}'"


@cache
def _environment() -> Environment:
    from weft import __version__

    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(
        inlined=lambda name: Markup(static(name).decode()),
        policy=_policy,
        places=PLACES,
        scripts=_SCRIPTS,
        version=__version__,
    )
    return made
