"""Views as Markdown, for pull requests: no picture, and no name that acts as markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from weft.web.views.parts import Fact, Parts, Table

if TYPE_CHECKING:
    from weft.web.views.arrangement import ArrangementView
    from weft.web.views.plan import PlanView
    from weft.web.views.study import StudyView

_ACTS = re.compile(r"([\\`*_\[\]|~#@!])")
_TICKS = re.compile("`+")


def plan_text(view: PlanView) -> str:
    """A plan as Markdown."""
    blocks = [f"# {_inert(view.title)}", *(_inert(one) for one in view.summary)]
    blocks.append(_facts(view.facts))
    if view.layouts is not None:
        blocks += ["## Layouts", _table(view.layouts)]
    blocks += [block for one in view.parts for block in (f"### {_inert(one.caption)}", _shares(one))]
    blocks += [_inert(view.bound)] if view.bound else []
    if view.compared is not None:
        blocks += ["## Comparison", _table(view.compared)]
        blocks.append(_facts(view.reasons))
    blocks += ["## Rejected", _table(view.rejected)]
    blocks += [_inert(view.advice)] if view.advice else []
    if view.launches:
        blocks.append("## Launch")
    for one in view.launches:
        blocks += [f"### {_inert(one.tool)}", *(f"- {_inert(note)}" for note in one.notes)]
        blocks += [_code(text) for text in (one.text, one.command) if text]
    blocks += ["## Assumptions", _list(view.assumptions) or "None."]
    blocks += ["## Provenance", _facts(view.provenance)]
    return "\n\n".join(blocks) + "\n"


def arrangement_text(view: ArrangementView) -> str:
    """An arrangement as Markdown."""
    blocks = [f"# {_inert(view.title)}", *(_inert(one) for one in view.summary), _facts(view.facts)]
    blocks += ["## Jobs", _table(view.jobs), "## Why", _facts(view.reasons)]
    blocks += ["## Alternatives", _table(view.policies)]
    blocks += ["## Busiest links", _table(view.links)] if view.links is not None else []
    blocks.append("## Launch")
    for one in view.starts:
        blocks += [f"### {_inert(one.job)}", _code(one.commands), *([_inert(one.note)] if one.note else [])]
        for name, text in one.files:
            blocks += [f"{name}:", _code(text)]
    blocks += ["## Assumptions", _list(view.assumptions), "## Provenance", _facts(view.provenance)]
    return "\n\n".join(blocks) + "\n"


def study_text(view: StudyView) -> str:
    """A study as Markdown."""
    blocks = [f"# {_inert(view.title)}", *(_inert(one) for one in view.summary)]
    blocks += [_inert(f"{one.text} {one.remedy}") for one in view.messages]
    blocks += [_facts(view.facts)] if view.facts else []
    for title, table in (("Points", view.rows), ("Failed points", view.failures)):
        blocks += [f"## {title}", f"{_inert(table.caption)}:", _table(table)] if table is not None else []
    blocks += ["## Provenance", _facts(view.provenance), "### The study", _code(view.study)]
    return "\n\n".join(blocks) + "\n"


def _facts(facts: Sequence[Fact]) -> str:
    return "\n".join(f"- **{_inert(one.name)}**: {_inert(one.text)}" for one in facts)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_inert(one)}" for one in lines)


def _inert(text: str) -> str:
    """Text that Markdown and HTML show as it is, in one line."""
    return _ACTS.sub(r"\\\1", escape(" ".join(text.split()), quote=False))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(_inert(one) for one in cells)} |"


def _table(table: Table) -> str:
    rule = "|".join("---:" if one.number else "---" for one in table.columns)
    rows = [_row([cell.text for cell in row]) for row in table.rows]
    return "\n".join([_row([one.heading for one in table.columns]), f"|{rule}|", *rows])


def _shares(parts: Parts) -> str:
    rows = [_row([one.label, one.text, f"{one.share:.1%}"]) for one in parts.parts]
    return "\n".join(["| part | value | share |", "|---|---:|---:|", *rows])


def _code(text: str) -> str:
    """A block of code that nothing within it ends."""
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{fence}\n{text.rstrip()}\n{fence}"
