"""``weft.make_report``: a plan or an arrangement as one file to share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from weft.commands.command_line import command
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import FileOutput, deliver
from weft.errors import BadInput, NothingFeasible, printable
from weft.interop.launch import LaunchArguments, launch_arguments
from weft.views.blocks import Block

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.search import Plan

LAUNCHERS = ("megatron", "torchtitan", "deepspeed")
"""Tools whose launch files a report contains."""


class ReportOptions(Options):
    """The form of a report."""

    group = "Output"
    form: Literal["html", "md"] = option("html", "Page, or Markdown for a pull request.", "--format")


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
        subject: a plan or an arrangement, or the file of one.

    Raises:
        BadInput: the file is neither a plan nor an arrangement, or an option is wrong.
        MissingExtra: the extra ``page`` is not installed.
    """
    from weft.arrangement.bundle import Arrangement
    from weft.commands.read import read
    from weft.search import Plan

    options = given_options(ReportOptions, options, given)
    result: object = subject
    file = "arranged.json"
    if isinstance(subject, str | os.PathLike):
        path, file = os.fspath(subject), os.path.basename(subject)
        result = read(path)
    if isinstance(result, Arrangement):
        return arrangement_page(result, result.to_dict(), file, options.form)
    if not isinstance(result, Plan):
        raise BadInput("is an estimate, not a plan", where=file, remedy="write a plan with weft plan --format json")
    return _planned(result, options.form)


def _planned(plan: Plan, form: str) -> str:
    from weft.views.reports import plan_report

    def launch(tool: str) -> LaunchArguments | str:
        try:
            return launch_arguments(tool, plan.job, plan.cluster, plan.best.layout)
        except NothingFeasible as error:
            return str(error)

    return _page(f"{plan.job.model.name} on {plan.cluster.name}", plan_report(plan, launch, LAUNCHERS), form)


def arrangement_page(result: Arrangement, document: Mapping[str, Any], file: str, form: str = "html") -> str:
    """An arrangement as a page ("html") or as Markdown ("md"); ``document`` are its fields as ``file`` has them."""
    from weft.views.reports import arrangement_report

    return _page(f"Arrangement of {result.site.name}", arrangement_report(result, document, file), form)


def _page(title: str, blocks: Iterable[Block], form: str) -> str:
    from weft.views.html import to_page
    from weft.views.reports import to_markdown

    return to_markdown(printable(title), blocks) if form == "md" else to_page(printable(title), blocks)


@command("PLAN.json|ARRANGEMENT.json", options=ReportOptions, out=FileOutput)
def report_command(subject: str, options: ReportOptions, out: FileOutput) -> None:
    """Write a plan or an arrangement as one page to share.

    PLAN.json is from weft plan --format json, ARRANGEMENT.json from weft arrange -o. The page opens
    from disk and loads nothing from the network.

    \b
    weft report plan.json -o plan.html
    """
    deliver(make_report(subject, options=options), out.output)
