"""``weft plan``: ranked layouts of a model on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import click

from weft.cli.build import takes
from weft.cli.options import Progress, check_chart, deliver_chart
from weft.cli.outcome import LayoutOutput, report
from weft.errors import NothingFeasible
from weft.verbs.launch import launch_arguments
from weft.verbs.options import option
from weft.verbs.plan import PlanOptions
from weft.verbs.plan import plan as planned

if TYPE_CHECKING:
    from weft.search import Plan
    from weft.search.network_plan import NetworkPlan
    from weft.views.blocks import Block


@dataclass(frozen=True, kw_only=True)
class PlanOutput(LayoutOutput):
    """What is shown of a plan."""

    pareto: bool = option(False, "Also show time against memory.")


@click.command()
@click.argument("model")
@click.argument("cluster")
@takes(options=PlanOptions, out=PlanOutput)
def plan(model: str, cluster: str, options: PlanOptions, out: PlanOutput) -> None:
    """Rank the layouts of MODEL on CLUSTER.

    MODEL is a name (weft models), a Hugging Face config.json, a Megatron-LM script or an application of Calculon;
    CLUSTER an accelerator's name and a count, as a100-512, h100-1024, h800-2048, b200-256, gb200-256, mi300x-64
    or tpu-v5p-512 (weft clusters lists all), a TOML file or a system of Calculon (system.json:1024).

    The first layout is the fastest but for what makes layouts hard to run: each mechanism must gain 1 % of the
    time, what hardly any published run does 10 %.
    """
    check_chart(out.chart)
    with Progress("evaluating layouts") as progress:
        found = planned(model, cluster, options, progress=progress)
    report(found, out, _view(found, out))
    if not found.layouts:
        from weft.views.words import advice_sentence

        advice = "see weft explain CODE" if found.advice is None else advice_sentence(found.advice)
        raise NothingFeasible(f"{found.shortage} -- {advice}")
    if out.chart is not None:
        from weft.views.charts.layouts import breakdown_chart, pareto_chart

        deliver_chart((pareto_chart if out.pareto else breakdown_chart)(found), out.chart)


def _view(found: Plan, out: PlanOutput) -> Iterator[Block]:
    from weft.views.launch import launch_view
    from weft.views.ranking import plan_view
    from weft.views.training import training_view

    if "simulated_s" in found.COLUMNS:
        from weft.views.network_plan import network_plan_view

        yield from network_plan_view(cast("NetworkPlan", found))
    else:
        yield from plan_view(found, pareto=out.pareto)
    if found.runs:
        yield from training_view(found.runs[0])
    if out.launch and found.layouts:
        yield from launch_view(launch_arguments(out.launch, found.job, found.cluster, found.best.layout))
