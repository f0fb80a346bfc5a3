"""``weft.make_report``: a plan as one file to hand around."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput, NothingFeasible
from weft.verbs.launch import launch_arguments
from weft.verbs.options import Options, given_options, option, verb

if TYPE_CHECKING:
    from weft.search import Plan
    from weft.web.views.plan import Launch

LAUNCHERS = ("megatron", "torchtitan", "deepspeed", "nanotron")
"""Tools whose launch files stand in a report."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """The form of a report."""

    form: str = option("html", "A page, or Markdown for a pull request.", "--format", choices=("html", "md"))


@verb(ReportOptions)
def make_report(subject: Plan | str | os.PathLike[str], *, options: ReportOptions | None = None, **given: Any) -> str:
    """A plan as a page in one file that loads nothing, or as Markdown.

    >>> import weft
    >>> page = weft.make_report(weft.plan("gpt2-124m", "a100-8", top=2))
    >>> page.startswith("<!DOCTYPE html>")
    True

    Args:
        subject: a plan, or its file.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: the file is no plan, or an option cannot be used.
        MissingExtra: the extra ``page`` is not installed.
    """
    from weft.search import Plan
    from weft.verbs.read import read

    asked = given_options(ReportOptions, options, given)
    plan = subject if isinstance(subject, Plan) else read(subject)
    if not isinstance(plan, Plan):
        where = "report" if not isinstance(subject, str | os.PathLike) else os.fspath(subject)
        raise BadInput("is an estimate, not a plan", where=where, remedy="write a plan with weft plan --format json")

    from weft.web.templates import render
    from weft.web.views.markdown import plan_text
    from weft.web.views.plan import view

    shown = view(plan, [_launch(tool, plan) for tool in LAUNCHERS] if plan.layouts else ())
    if asked.form == "md":
        return plan_text(shown)
    names = [("summary", "Summary")]
    names += [("layouts", "Layouts"), ("best", "Best"), ("charts", "Charts")] if plan.layouts else []
    names += [("comparison", "Comparison")] if shown.compared else []
    names += [("others", "Others")] + ([("launch", "Launch")] if shown.launches else [])
    names += [("assumptions", "Assumptions"), ("provenance", "Provenance")]
    return render("plan_report.html", frozen=True, contents=names, view=shown)


def _launch(tool: str, plan: Plan) -> Launch:
    """The launch file of the best layout, or why there is none."""
    from weft.web.views.plan import Launch

    try:
        one = launch_arguments(tool, plan.job, plan.cluster, plan.best.layout)
    except NothingFeasible as error:
        return Launch(tool=tool, notes=(str(error),))
    return Launch(tool=tool, file=one.file, text=one.text, command=one.command, notes=one.notes)
