"""``weft estimate``: one layout in full, by hand, from a plan or from a run's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import (
    check_chart,
    constants,
    deliver,
    output_options,
    recipe_changes,
    recipe_options,
    training_options,
)
from weft.cli.outcome import check_layout, draw, launch, print_launch, print_training, show, training
from weft.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from weft.cluster import Cluster
    from weft.estimation import Estimate, Sensitivity
    from weft.estimation.training import TrainingRun
    from weft.layout import Layout
    from weft.model import Job

USAGE = "weft estimate MODEL CLUSTER --layout tp=8,pp=4 | [MODEL] CLUSTER --run FILE | --plan FILE [--rank N]"


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@click.option("--layout", "layout_text", metavar="TEXT", help="The layout, as tp=8,pp=16,dp=128,sp,mbs=1.")
@click.option("--run", "run_file", metavar="FILE", help="A Megatron-LM, torchtitan or DeepSpeed configuration.")
@click.option("--plan", "plan_file", metavar="FILE", help="JSON of weft plan; takes its job and cluster.")
@click.option("--rank", type=click.IntRange(1), default=1, show_default=True, help="Layout of --plan.")
@recipe_options
@training_options
@output_options
def estimate(names: tuple[str, ...], **values: Any) -> None:
    """Time, memory and bounds of one layout, and what faster hardware would be worth.

    MODEL and CLUSTER as for weft plan.  With --run MODEL may be left out where the configuration states it,
    with
    --plan both.
    """
    from weft.estimation import estimate as evaluate
    from weft.estimation import sensitivities

    check_chart(values["chart"])
    job, cluster, layout = _subject(names, values)
    check_layout(job, cluster, layout)
    calibration = constants(values["calibration"], cluster, values["stack"])
    found = evaluate(job, cluster, [layout], calibration)[0]
    _report(found, sensitivities(job, cluster, layout, calibration), job, cluster, values)


def _subject(names: tuple[str, ...], values: dict[str, Any]) -> tuple[Job, Cluster, Layout]:
    """Job, cluster and layout from whichever source was given."""
    given = [name for name in ("layout_text", "run_file", "plan_file") if values[name] is not None]
    if len(given) != 1:
        raise BadInput("give exactly one of --layout, --run and --plan", where="estimate", remedy=USAGE)
    if given == ["plan_file"]:
        return _from_plan(names, values)
    if given == ["run_file"]:
        return _from_run(names, values)
    from weft.cluster import resolve
    from weft.layout.text import parse_layout
    from weft.model import resolve_job

    if len(names) != 2:
        raise BadInput(f"{len(names)} names given, MODEL and CLUSTER needed", where="estimate", remedy=USAGE)
    job, cluster = resolve_job(names[0], recipe_changes(values)), resolve(names[1])
    return job, cluster, parse_layout(values["layout_text"]).complete(cluster.count)


def _from_plan(names: tuple[str, ...], values: dict[str, Any]) -> tuple[Job, Cluster, Layout]:
    from weft.model.resolve import complete_job
    from weft.report.formats.json_in import read_plan

    if names:
        raise BadInput(f"{names[0]!r} is already in the plan", where="estimate --plan", remedy=USAGE)
    job, cluster, layout = read_plan(values["plan_file"], values["rank"])
    changed = complete_job(job.model, job.recipe, recipe_changes(values), origin=values["plan_file"])
    return changed, cluster, layout


def _from_run(names: tuple[str, ...], values: dict[str, Any]) -> tuple[Job, Cluster, Layout]:
    from dataclasses import replace

    from weft.cluster import resolve
    from weft.interop import read_run
    from weft.model.resolve import complete_job, resolve_job

    if not 1 <= len(names) <= 2:
        raise BadInput("CLUSTER is needed, and MODEL where the run does not state it", where="--run", remedy=USAGE)
    cluster = resolve(names[-1])
    run = read_run(values["run_file"], world=cluster.count)
    stated = _stated_world(values["run_file"])
    given = recipe_changes(values)
    changes = replace(
        given,
        global_batch=given.global_batch or run.global_batch,
        sequence=given.sequence or run.sequence,
        precision=given.precision or run.precision,
    )
    if len(names) == 2:
        job = resolve_job(names[0], changes)
    elif run.model is not None:
        job = complete_job(run.model, None, changes, origin=values["run_file"])
    else:
        raise BadInput("does not state the model", where=values["run_file"], remedy=f"name it: {USAGE}")
    assumed = [*job.defaults, *run.notes]
    if stated is not None and stated != cluster.count:
        assumed.append(f"{values['run_file']} starts {stated} accelerators; estimated for {cluster.count}")
    if run.ignored:
        assumed.append(f"settings without effect here: {', '.join(run.ignored)}")
    return replace(job, defaults=tuple(assumed)), cluster, run.layout


def _stated_world(path: str) -> int | None:
    """Accelerators that a run's configuration itself names, if it does."""
    from weft.interop import read_run

    try:
        return read_run(path).world
    except BadInput:
        return None


def _report(
    found: Estimate, sensitivities: tuple[Sensitivity, ...], job: Job, cluster: Cluster, values: dict[str, Any]
) -> None:
    run = training(found, job, cluster, values)
    if values["form"] == "json":
        from weft.report.formats.json_out import estimate_to_json

        text = estimate_to_json(found, job=job, cluster=cluster, sensitivities=sensitivities, run=run)
        deliver(text, values["output"])
    elif values["form"] == "csv":
        from weft.report.formats.csv_out import estimates_to_csv

        deliver(estimates_to_csv([found], model=job.model.name, cluster=cluster.name), values["output"])
    else:
        show(lambda screen: _print(found, sensitivities, run, job, cluster, values, screen), values["output"])
    draw([found], values["chart"], job, cluster)


def _print(
    found: Estimate,
    sensitivities: tuple[Sensitivity, ...],
    run: TrainingRun | None,
    job: Job,
    cluster: Cluster,
    values: dict[str, Any],
    screen: Console,
) -> None:
    from weft.report.tables.breakdown import estimate_table

    estimate_table(found, sensitivities, screen, job=job, cluster=cluster)
    if run is not None:
        print_training(run, screen)
    if values["launch"]:
        print_launch(launch(values["launch"], job, cluster, found.layout), screen)
