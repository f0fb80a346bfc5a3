"""``weft.make_report``: a plan, an arrangement or a study as one file to hand around."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput, NothingFeasible
from weft.verbs.launch import launch_arguments
from weft.verbs.options import Options, given_options, option, verb

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.search import Plan
    from weft.studies.result import Sweep
    from weft.web.views.plan import Launch
    from weft.web.views.study import StudyView

LAUNCHERS = ("megatron", "torchtitan", "deepspeed")
"""Tools whose launch files stand in a report."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """The form of a report, and what of a study it shows."""

    form: str = option("html", "A page, or Markdown for a pull request.", "--format", choices=("html", "md"))
    where: tuple[str, ...] = option((), "Points of a study with this value (repeats).", metavar="COLUMN=VALUE")
    x: str | None = option(None, "Column of a study's chart from left to right.", metavar="COLUMN")
    y: str | None = option(None, "Column of a study's chart from below.", metavar="COLUMN")
    colour: str | None = option(None, "Column that colours tell apart, or none.", metavar="COLUMN")
    facet: str | None = option(None, "Column with a picture for each value, or none.", metavar="COLUMN")


@verb(ReportOptions)
def make_report(
    subject: Plan | Arrangement | Sweep | str | os.PathLike[str], *, options: ReportOptions | None = None, **given: Any
) -> str:
    """A plan, an arrangement or a study as a page in one file that loads nothing, or as Markdown.

    >>> import weft
    >>> page = weft.make_report(weft.plan("gpt2-124m", "a100-8", top=2))
    >>> page.startswith("<!DOCTYPE html>")
    True

    Args:
        subject: a plan, an arrangement or the results of a sweep; the file of a plan or an arrangement; or the folder
            of a sweep's state.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: the file is no plan and no arrangement, the folder no state, or an option cannot be used.
        MissingExtra: the extra ``page`` is not installed.
    """
    from weft.arrangement.bundle import Arrangement, arrangement_of, read_document
    from weft.search import Plan
    from weft.studies.result import Sweep
    from weft.verbs.read import read, schema_of

    asked = given_options(ReportOptions, options, given)
    looked = {name: value for name, value in vars(asked).items() if name != "form" and value}
    if isinstance(subject, Sweep) or (isinstance(subject, str | os.PathLike) and os.path.isdir(subject)):
        return _study(subject, asked.form, looked)
    _refuse_study(subject, looked)
    if isinstance(subject, Arrangement):
        return arrangement_page(subject, subject.to_dict(), "arranged.json", asked.form)
    if isinstance(subject, Plan):
        return _planned(subject, asked.form)
    where = os.fspath(subject)
    if schema_of(where) == Arrangement.SCHEMA:
        document = read_document(where)
        return arrangement_page(arrangement_of(document, where), document, os.path.basename(where), asked.form)
    plan = read(where)
    if not isinstance(plan, Plan):
        raise BadInput("is an estimate, not a plan", where=where, remedy="write a plan with weft plan --format json")
    return _planned(plan, asked.form)


def _planned(plan: Plan, form: str) -> str:
    from weft.web.templates import render
    from weft.web.views.markdown import plan_text
    from weft.web.views.plan import view

    launches = [_launch(tool, plan) for tool in LAUNCHERS] if plan.layouts else ()
    shown = view(plan, launches, drawn=form == "html")
    if form == "md":
        return plan_text(shown)
    names = [("summary", "Summary")]
    names += [("layouts", "Layouts"), ("best", "Best"), ("charts", "Charts")] if plan.layouts else []
    names += [("comparison", "Comparison")] if shown.compared else []
    names += [("others", "Others")] + ([("launch", "Launch")] if shown.launches else [])
    names += [("assumptions", "Assumptions"), ("provenance", "Provenance")]
    return render("plan_report.html", frozen=True, contents=names, view=shown)


def arrangement_page(found: Arrangement, document: Mapping[str, Any], file: str, form: str) -> str:
    """An arrangement as a page ("html") or as Markdown ("md"); arguments as of ``views.arrangement.view``."""
    from weft.web.templates import render
    from weft.web.views.arrangement import view
    from weft.web.views.markdown import arrangement_text

    shown = view(found, document, file, drawn=form == "html")
    if form == "md":
        return arrangement_text(shown)
    names = ("summary", "why", "alternatives", "charts", "launch", "assumptions", "provenance")
    contents = [(name, name.capitalize()) for name in names]
    contents.insert(1, ("jobs-arranged", "Jobs"))
    return render("arrangement_report.html", frozen=True, contents=contents, view=shown)


def _study(subject: Sweep | str | os.PathLike[str], form: str, looked: dict[str, Any]) -> str:
    """The report of a study."""
    from weft.studies.result import Sweep
    from weft.verbs.sweep import open_sweep
    from weft.web.views.markdown import study_text
    from weft.web.views.study import Look, Viewed

    look = Look(**looked)
    if isinstance(subject, Sweep):
        held = Viewed(subject, look)
    else:
        with open_sweep(subject) as found:
            held = Viewed(found, look)
    return study_text(held.view()) if form == "md" else study_page(held.view())


def _refuse_study(subject: object, looked: dict[str, Any]) -> None:
    """Refuse the table of a study, and options of a study with another subject.

    Raises:
        BadInput: it is so.
    """
    remedy = "give the folder of weft sweep --state"
    path = os.fspath(subject) if isinstance(subject, str | os.PathLike) else ""
    if path.lower().endswith((".csv", ".parquet")):
        raise BadInput("is a table, which does not say what computed it", where=path, remedy=remedy)
    if looked:
        raise BadInput("is for studies", where=f"--{next(iter(looked))}", remedy=f"{remedy}, or drop it")


def study_page(shown: StudyView) -> str:
    """The report of a study."""
    from weft.web.templates import render

    parts = {
        "charts": ("Charts", shown.charts),
        "points": ("Points", shown.rows),
        "failed": ("Failed", shown.failures),
    }
    names = [("summary", "Summary"), *((name, title) for name, (title, part) in parts.items() if part)]
    names.append(("provenance", "Provenance"))
    return render("study_report.html", frozen=True, contents=names, view=shown)


def _launch(tool: str, plan: Plan) -> Launch:
    """The launch file of the best layout, or why there is none."""
    from weft.web.views.plan import Launch

    try:
        one = launch_arguments(tool, plan.job, plan.cluster, plan.best.layout)
    except NothingFeasible as error:
        return Launch(tool=tool, notes=(str(error),))
    return Launch(tool=tool, file=one.file, text=one.text, command=one.command, notes=one.notes)
