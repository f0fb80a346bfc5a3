"""Predictions against measured runs as pages ask for them: the published ones that Weft has, or pasted ones."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from weft.verbs.validate import validate
from weft.web.texts import Text

if TYPE_CHECKING:
    from weft.validation.runs import Run, Unparsed
    from weft.validation.summary import Validation
    from weft.web.views.accuracy import AccuracyView

_KEPT = 16


def address(source: Text | None, family: str = "", run: str = "") -> str:
    """The page of some runs, of a family of them, or of one."""
    given = {"runs": "" if source is None else source.name, "family": family, "run": run}
    query = urlencode({name: value for name, value in given.items() if value})
    return (f"/accuracy?{query}" if query else "/accuracy") + ("#run" if run else "")


def shown(source: Text | None, family: str, run: str) -> AccuracyView:
    """A validation as a page shows it.

    Args:
        source: pasted runs; None: the published ones.
        family: the only one that is shown, or empty.
        run: name of the run that is looked at, or empty.

    Raises:
        BadInput: a text or a family that cannot be used.
    """
    from weft.web.views.accuracy import view

    families = sorted({row.family for row in _rows(source)})
    found = _validated(source, family)
    return view(found, families, run, partial(address, source))


@lru_cache(_KEPT)
def _validated(source: Text | None, family: str) -> Validation:
    return validate(_rows(source), family=(family,) if family else ())


@lru_cache(2)
def _rows(source: Text | None) -> tuple[Run | Unparsed, ...]:
    from weft.validation.runs import runs_of_text, shipped_runs

    return shipped_runs() if source is None else runs_of_text(source.pasted or "", "the pasted runs")
