"""``weft.make_report``: a plan, an arrangement or a study as one file to hand around."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import takes
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import FileOutput, check_folder, deliver
from weft.errors import BadInput, NothingFeasible, printable
from weft.interop.launch import launch_arguments

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.interop.launch import LaunchArguments
    from weft.search import Plan
    from weft.studies.result import Sweep
    from weft.views.blocks import Block

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
    from weft.commands.read import read, schema_of
    from weft.search import Plan
    from weft.studies.result import Sweep

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
    from weft.views.reports import plan_report

    def launch(tool: str) -> LaunchArguments | str:
        try:
            return launch_arguments(tool, plan.job, plan.cluster, plan.best.layout)
        except NothingFeasible as error:
            return str(error)

    return _page(f"{plan.job.model.name} on {plan.cluster.name}", plan_report(plan, launch, LAUNCHERS), form)


def arrangement_page(found: Arrangement, document: Mapping[str, Any], file: str, form: str = "html") -> str:
    """An arrangement as a page ("html") or as Markdown ("md"); ``document`` are its fields as ``file`` has them."""
    from weft.views.reports import arrangement_report

    return _page(f"Arrangement of {found.site.name}", arrangement_report(found, document, file), form)


def _page(title: str, blocks: Iterable[Block], form: str) -> str:
    from weft.views.html import to_page
    from weft.views.markdown import to_markdown

    return to_markdown(printable(title), blocks) if form == "md" else to_page(printable(title), blocks)


def _study(subject: Sweep | str | os.PathLike[str], form: str, looked: dict[str, Any]) -> str:
    """The report of a study."""
    from weft.commands.sweep import open_sweep
    from weft.studies.result import Sweep
    from weft.views.study import Look, StudyReport

    look = Look(**looked)
    if isinstance(subject, Sweep):
        report = StudyReport(subject, look)
        return _page(report.title, report.blocks(), form)
    with open_sweep(subject) as found:
        report = StudyReport(found, look)
        return _page(report.title, report.blocks(), form)


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


@click.command("report")
@click.argument("subject", metavar="PLAN.json|ARRANGEMENT.json|STUDY")
@takes(options=ReportOptions, out=FileOutput)
def report_command(subject: str, options: ReportOptions, out: FileOutput) -> None:
    """Write a plan, an arrangement or a study as a page in one file, to hand around.

    PLAN.json is what weft plan --format json wrote, ARRANGEMENT.json what weft arrange -o wrote, STUDY the folder of
    weft sweep --state. The page opens from disk and loads nothing.
    """
    check_folder(out.output, "--output")
    deliver(make_report(subject, options=options), out.output)
