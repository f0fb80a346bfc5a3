"""Studies as pages show them: those whose states lie in the server's folder, and small ones that a browser begins.

A browser names no file: a study of a pasted text takes models, clusters and networks by their names alone, and an
address holds a name that the server makes of where a state lies.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.documents import parse_toml
from weft.errors import BadInput
from weft.files import read_text, write_text
from weft.records import table_of
from weft.states import in_use
from weft.studies import kept
from weft.studies.progress import FILE, Progress, read_progress, write_progress
from weft.web.texts import TEXT_BYTES, checked_text

if TYPE_CHECKING:
    from weft.studies.result import Sweep
    from weft.studies.run import Counts
    from weft.web.views.study import Look, StudyView

MOST_POINTS = 2_000
"""Of a study that a browser begins."""
TIME_S = 900.0
"""How long such a study may take at a time; what was computed is kept."""
TEXT = "study.toml"
"""Beside the state of a study that a browser began: what it computes."""
_FOLDERS = (FILE, f"*/{FILE}", f"*/*/{FILE}")
_MOST = 500
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_FIELDS = {"--where": "Only points where"}
"""What the page calls options of the command line."""
_NAMED = ("model", "cluster", "fabric")
"""Axes whose values may be names, where the others that may name a file have nothing else."""
State = Literal["running", "finished", "ended early"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A study whose state lies in the server's folder.

    Attributes:
        name: in addresses.
        folder: of its state.
        inside: that folder, within the server's.
        stamp: other results, other stamp.
        progress: how far it is.
        state: of the run.
        text: what it computes, where a browser began it.
    """

    name: str
    folder: Path
    inside: str
    stamp: int
    progress: Progress
    state: State
    text: str | None


def found_in(folder: Path) -> list[Found]:
    """The studies in a folder, by name; a state that cannot be read is left out."""
    places = [place.parent for pattern in _FOLDERS for place in sorted(folder.glob(pattern))][:_MOST]
    studies = [one for place in places if (one := at(folder, place)) is not None]
    return sorted(studies, key=lambda one: (one.progress.study, one.name))


def find(folder: Path, name: str) -> Found | None:
    """The study that an address names."""
    return next((one for one in found_in(folder) if one.name == name), None)


def at(folder: Path, place: Path) -> Found | None:
    """The study whose state lies in a place of the server's folder; None where none can be read."""
    try:
        progress = read_progress(place)
        running = progress.left and in_use(place / kept.FILE)
        state: State = "running" if running else "ended early" if progress.left else "finished"
        text = read_text(place / TEXT, largest=TEXT_BYTES + 1) if (place / TEXT).is_file() else None
        return Found(
            name=name_of(folder, place),
            folder=place,
            inside=place.relative_to(folder).as_posix(),
            stamp=(place / FILE).stat().st_mtime_ns,
            progress=progress,
            state=state,
            text=text,
        )
    except (BadInput, OSError):
        return None


def name_of(folder: Path, place: Path) -> str:
    """What addresses call a state."""
    return hashlib.sha256(place.relative_to(folder).as_posix().encode()).hexdigest()[:16]


def begun(folder: Path, text: str, progress: Progress) -> Path:
    """The folder of the state of a study that is to begin; that of an equal text if it was begun before.

    Args:
        progress: of the study, as ``checked`` says it.

    Raises:
        BadInput: the folder cannot be used.
    """
    place = folder / "studies" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not (place / FILE).exists():
        place.mkdir(parents=True, exist_ok=True)
        write_text(place / TEXT, text)
        write_progress(place, progress)
    return place


def checked(text: str) -> Progress:
    """What a pasted study is before it begins.

    Raises:
        BadInput: it is no study, has too many points, or names a file.
    """
    from weft.studies.points import Points
    from weft.studies.study import study_from_dict
    from weft.verbs.points import computation

    study = study_from_dict(_document(text), computation, where="the study")
    points = len(Points(study, limit=MOST_POINTS))
    return Progress(study=study.name, compute=study.computation.name, points=points, known=0, left=points)


def _document(text: str) -> Mapping[str, Any]:
    """The fields of a pasted study that names no file.

    Raises:
        BadInput: it is none.
    """
    from weft.studies.study import SCHEMA, axis_name
    from weft.verbs.points import computation

    where = "the study"
    document = {"schema": SCHEMA} | parse_toml(checked_text(text, where), where)
    compute = document.get("compute", "plan")
    known = computation(compute if isinstance(compute, str) else "", f"{where}: compute")
    for written, values in table_of(document.get("axes", {}), f"{where}: axes").items():
        place = f"{where}: axes.{written}"
        name = axis_name(written, known, place)
        if not known.axes[name].file:
            continue
        if name not in _NAMED:
            raise BadInput("may name a file", where=place, remedy="compute this study with weft sweep --state")
        for value in values if isinstance(values, list) else [values]:
            if not isinstance(value, str) or not _NAME.fullmatch(value) or os.path.exists(value):
                problem = f"{str(value)[:60]!r} is no name that this page takes"
                raise BadInput(problem, where=place, remedy="name what weft models, clusters and fabric list")
    return document


def computed(folder: str, text: str, progress: Callable[[int, int], None]) -> None:
    """Compute a pasted study in the folder of its state, as far as it is not yet.

    Raises:
        BadInput: as ``checked``, or the state cannot be used.
    """
    from weft.verbs.sweep import sweep

    with sweep(_document(text), state=folder, workers=1, limit=MOST_POINTS, progress=partial(_tell, progress)):
        pass


def _tell(progress: Callable[[int, int], None], counts: Counts) -> None:
    known = counts.known + counts.computed
    progress(known, known + counts.left)


def looked_at(folder: str, stamp: int, look: Look) -> StudyView:
    """A study as a page shows it; where the look cannot be used, the page says so and shows the study without it.

    Args:
        stamp: of the results, so that others are not taken for them.

    Raises:
        BadInput: the state cannot be used.
    """
    from weft.web.views.parts import Message
    from weft.web.views.study import Look, Viewed

    with _opened(folder) as found:
        try:
            held = Viewed(found, look, charts=1)
        except BadInput as error:
            held = Viewed(found, Look(), charts=1)
            place = (error.where or "").partition(":")[0]
            text = f"{_FIELDS.get(place, place)}: {error.what}"
            held.messages.append(Message(text=text, remedy=error.remedy or "", kind="error"))
    return held.view()


def written(folder: str, stamp: int, look: Look, form: str) -> str:
    """The rows of a look as "csv" or "json", or its report as "html".

    Raises:
        BadInput: as ``looked_at``.
    """
    import json

    from weft.views.files.csv_out import rows_to_csv
    from weft.web.report import study_page
    from weft.web.views.study import Viewed

    with _opened(folder) as found:
        held = Viewed(found, look)
    if form == "html":
        return study_page(held.view())
    if form == "csv":
        return rows_to_csv(held.rows, list(held.columns))
    return json.dumps(held.rows, indent=1) + "\n"


def _opened(folder: str) -> Sweep:
    from weft.verbs.sweep import open_sweep

    return open_sweep(folder)
