"""``weft.make_report``: a plan or an arrangement as one file to hand around."""

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
    from weft.web.views.plan import Launch

LAUNCHERS = ("megatron", "torchtitan", "deepspeed", "nanotron")
"""Tools whose launch files stand in a report."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """The form of a report."""

    form: str = option("html", "A page, or Markdown for a pull request.", "--format", choices=("html", "md"))


@verb(ReportOptions)
def make_report(
    subject: Plan | Arrangement | str | os.PathLike[str], *, options: ReportOptions | None = None, **given: Any
) -> str:
    """A plan or an arrangement as a page in one file that loads nothing, or as Markdown.

    >>> import weft
    >>> page = weft.make_report(weft.plan("gpt2-124m", "a100-8", top=2))
    >>> page.startswith("<!DOCTYPE html>")
    True

    Args:
        subject: a plan or an arrangement, or its file.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: the file is no plan and no arrangement, or an option cannot be used.
        MissingExtra: the extra ``page`` is not installed.
    """
    from weft.arrangement.bundle import Arrangement, read_document
    from weft.arrangement.reading import arrangement_of
    from weft.search import Plan
    from weft.verbs.read import read, schema_of

    form = given_options(ReportOptions, options, given).form
    if isinstance(subject, Arrangement):
        return arrangement_page(subject, subject.to_dict(), "arranged.json", form)
    if isinstance(subject, Plan):
        return _planned(subject, form)
    where = os.fspath(subject)
    if schema_of(where) == Arrangement.SCHEMA:
        document = read_document(where)
        return arrangement_page(arrangement_of(document, where), document, os.path.basename(where), form)
    plan = read(where)
    if not isinstance(plan, Plan):
        raise BadInput("is an estimate, not a plan", where=where, remedy="write a plan with weft plan --format json")
    return _planned(plan, form)


def _planned(plan: Plan, form: str) -> str:
    from weft.web.templates import render
    from weft.web.views.markdown import plan_text
    from weft.web.views.plan import view

    shown = view(plan, [_launch(tool, plan) for tool in LAUNCHERS] if plan.layouts else ())
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

    shown = view(found, document, file)
    if form == "md":
        return arrangement_text(shown)
    names = ("summary", "why", "alternatives", "charts", "launch", "assumptions", "provenance")
    contents = [(name, name.capitalize()) for name in names]
    contents.insert(1, ("jobs-arranged", "Jobs"))
    return render("arrangement_report.html", frozen=True, contents=contents, view=shown)


def _launch(tool: str, plan: Plan) -> Launch:
    """The launch file of the best layout, or why there is none."""
    from weft.web.views.plan import Launch

    try:
        one = launch_arguments(tool, plan.job, plan.cluster, plan.best.layout)
    except NothingFeasible as error:
        return Launch(tool=tool, notes=(str(error),))
    return Launch(tool=tool, file=one.file, text=one.text, command=one.command, notes=one.notes)
