"""What the verbs print and write once the numbers are there."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.cli.options import console, deliver, deliver_chart
from weft.errors import BadInput, NothingFeasible

if TYPE_CHECKING:
    from rich.console import Console

    from weft.cluster import Cluster
    from weft.estimation import Estimate
    from weft.estimation.training import TrainingRun
    from weft.interop.training.launchers import LaunchArguments
    from weft.layout import Layout
    from weft.model import Job
    from weft.search import Plan


def show_plan(plan: Plan, values: dict[str, Any]) -> None:
    """Print or write a plan; raise where nothing fits, after the machine-readable forms are out."""
    runs = [training(one, plan.job, plan.cluster, values) for one in plan.layouts]
    if values["form"] == "json":
        from weft.report.formats.json_out import plan_to_json

        deliver(plan_to_json(plan, runs=[run for run in runs if run] or None), values["output"])
    elif values["form"] == "csv":
        from weft.report.formats.csv_out import plan_to_csv

        deliver(plan_to_csv(plan), values["output"])
    else:
        show(lambda screen: _print_plan(plan, runs, values, screen), values["output"])
    if not plan.layouts:
        raise NothingFeasible(nothing_fits(plan))
    if values["pareto"] and values["chart"]:
        from weft.report.pictures.layouts import pareto_chart

        deliver_chart(pareto_chart(plan), values["chart"])
    else:
        draw(plan.layouts, values["chart"], plan.job, plan.cluster)


def _print_plan(plan: Plan, runs: Sequence[TrainingRun | None], values: dict[str, Any], screen: Console) -> None:
    from weft.report.tables.ranking import plan_table

    plan_table(plan, screen, pareto=values["pareto"])
    if not plan.layouts:
        return
    if runs[0] is not None:
        print_training(runs[0], screen)
    if values["launch"]:
        print_launch(launch(values["launch"], plan.job, plan.cluster, plan.layouts[0].layout), screen)


def nothing_fits(plan: Plan) -> str:
    """One line: how many fell to which rule, and what would help."""
    from weft.report.tables.words import advice_sentence

    counts = ", ".join(f"{each.code} {each.layouts:,}" for each in plan.rejected)
    text = f"none of {plan.considered:,} layouts is feasible ({counts})"
    return f"{text} -- {advice_sentence(plan.advice)}" if plan.advice else f"{text} -- see weft explain CODE"


def training(estimate: Estimate, job: Job, cluster: Cluster, values: dict[str, Any]) -> TrainingRun | None:
    """The whole run, where ``--tokens`` asks for it."""
    if values["tokens"] is None:
        for name in ("mtbf", "usd_per_hour"):
            if values[name] is not None:
                flag = f"--{name.replace('_', '-')}"
                raise BadInput("says nothing without --tokens", where=flag, remedy="add --tokens, as 15T")
        return None
    from weft.estimation.training import training_run
    from weft.units import parse_count, parse_seconds

    return training_run(
        estimate,
        job,
        cluster,
        tokens=parse_count(values["tokens"], "--tokens"),
        mtbf_s=None if values["mtbf"] is None else parse_seconds(values["mtbf"], "--mtbf"),
        usd_per_accelerator_hour=values["usd_per_hour"],
    )


def print_training(run: TrainingRun, screen: Console) -> None:
    """The run's table."""
    from weft.report.tables.training import training_table

    training_table(run, screen)


def launch(tool: str, job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """Launch arguments of a layout for a tool.

    Raises:
        NothingFeasible: the tool cannot run the layout; says every reason.
    """
    from weft.interop.training import deepspeed, megatron, nanotron, torchtitan
    from weft.interop.training.launchers import NotExpressible

    writers: dict[str, Callable[..., Any]] = {
        "megatron": megatron.launch_arguments,
        "torchtitan": torchtitan.launch_arguments,
        "torchtitan-toml": torchtitan.toml_arguments,
        "deepspeed": deepspeed.launch_arguments,
        "nanotron": nanotron.launch_arguments,
    }
    written: LaunchArguments | NotExpressible = writers[tool](job, cluster, layout)
    if isinstance(written, NotExpressible):
        raise NothingFeasible(f"{written.reason} -- choose another tool, or pin what it can run with --fix")
    return written


def print_launch(arguments: LaunchArguments, screen: Console) -> None:
    """Launch arguments as they are to be copied: file, command, notes."""
    screen.print(f"\nLaunch with {arguments.tool}: {arguments.file}", style="bold", markup=False)
    screen.out(arguments.text.rstrip(), highlight=False)
    screen.out(f"\n{arguments.command}", highlight=False)
    for note in arguments.notes:
        screen.print(f"note: {note}", markup=False)


def draw(estimates: Sequence[Estimate], path: str | None, job: Job, cluster: Cluster) -> None:
    """The chart of ``--chart``."""
    if path is None:
        return
    from weft.report.pictures.layouts import breakdown_chart

    deliver_chart(breakdown_chart(estimates, title=f"{job.model.name} on {cluster.name}"), path)


def show(render: Callable[[Console], None], output: str | None) -> None:
    """Render to the terminal, or to a file without colours."""
    if output is None:
        render(console())
        return
    from rich.console import Console

    text = io.StringIO()
    render(Console(file=text, width=110, highlight=False))
    deliver(text.getvalue(), output)


def check_layout(job: Job, cluster: Cluster, layout: Layout) -> None:
    """Refuse a layout that breaks a rule, with its code."""
    from weft.layout.check import explain

    rejection = explain(job, cluster.count, layout)
    if rejection is not None:
        raise BadInput(rejection.reason, where=f"layout ({rejection.code})", remedy=f"weft explain {rejection.code}")
