"""Answers of pages, worked out in a worker, which keeps the last results for the views that follow."""

from __future__ import annotations

from typing import Any

from weft.views.html import to_html
from weft.web.pages import PAGES
from weft.web.questions import Asked, Page, Progress

_KEPT_RESULTS = 16
_kept: dict[Asked, Any] = {}


def _result(page: Page, asked: Asked, progress: Progress) -> Any:
    """The result of a question, whichever view is looked at."""
    core = tuple(pair for pair in asked.given if pair[0] not in (*page.looks, "show"))
    question = Asked(asked.path, core, asked.texts)
    if question not in _kept:
        result = page.compute(question, progress)
        while len(_kept) >= _KEPT_RESULTS:
            del _kept[next(iter(_kept))]
        _kept[question] = result
    return _kept[question]


def answer(asked: Asked, *, progress: Progress = None) -> str:
    """The HTML of what a page shows.

    Raises:
        BadInput: a field that cannot be used.
        NothingFeasible: there is no answer.
    """
    page = PAGES[asked.path]
    result = _result(page, asked, progress)
    given = dict(asked.given)

    def link(value: str) -> str:
        return f"{page.address(given, **{page.row: value})}#{page.section}"

    show = given.get("show", "")
    blocks = page.view(result, asked, show if show in page.shows else page.shows[0])
    return to_html(blocks, link if page.row else None)


def file(asked: Asked, name: str, *, progress: Progress = None) -> tuple[str, str, str]:
    """Name, type and content of a file of a page.

    Raises:
        BadInput: a field that cannot be used.
        NothingFeasible: there is none.
    """
    page = PAGES[asked.path]
    return page.files[name](_result(page, asked, progress), asked)
