"""Predictions against measured runs as pages ask for them: the published ones that Weft has, or pasted ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from weft.verbs.validate import validate
from weft.web.texts import Text

if TYPE_CHECKING:
    from weft.validation.runs import Run, Unparsed
    from weft.validation.summary import Validation
    from weft.web.views.accuracy import AccuracyView

_KEPT = 64


def address(source: Text | None, family: str = "", run: str = "") -> str:
    """The page of some runs, of a family of them, or of one."""
    given = {"runs": "" if source is None else source.name, "family": family, "run": run}
    query = urlencode({name: value for name, value in given.items() if value})
    return (f"/accuracy?{query}" if query else "/accuracy") + ("#run" if run else "")


def shown(
    source: Text | None, family: str, run: str, *, progress: Callable[[int, int], None] | None = None
) -> AccuracyView:
    """A validation as a page shows it.

    Args:
        source: pasted runs; None: the published ones.
        family: the only one that is shown, or empty.
        run: name of the run that is looked at, or empty.
        progress: called with families done and in all, where all are shown.

    Raises:
        BadInput: a text or a family that cannot be used.
    """
    from weft.web.views.accuracy import view

    families = sorted({row.family for row in _rows(source)})
    found = _validated(source, family) if family else _whole(source, families, progress)
    return view(found, families, run, partial(address, source))


def _whole(source: Text | None, families: list[str], progress: Callable[[int, int], None] | None) -> Validation:
    """The validation of all families, put together of those of each, which are kept."""
    import numpy as np

    from weft.validation.inputs import Skipped
    from weft.validation.predict import Predictions
    from weft.validation.summary import Outcome, validation

    rows: list[Outcome | Skipped] = []
    for done, name in enumerate(families, 1):
        rows += _validated(source, name).rows
        if progress is not None:
            progress(done, len(families))
    outcomes = [row for row in rows if isinstance(row, Outcome)]
    known = Predictions(
        seconds=np.array([one.predicted_s for one in outcomes]),
        memory_bytes=np.array([one.predicted_bytes for one in outcomes]),
    )
    return validation([row.prepared if isinstance(row, Outcome) else row for row in rows], known)


@lru_cache(_KEPT)
def _validated(source: Text | None, family: str) -> Validation:
    return validate(_rows(source), family=(family,))


@lru_cache(2)
def _rows(source: Text | None) -> tuple[Run | Unparsed, ...]:
    from weft.validation.runs import runs_of_text, shipped_runs

    return shipped_runs() if source is None else runs_of_text(source.pasted or "", "the pasted runs")
