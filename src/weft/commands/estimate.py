"""``weft.estimate``: one layout in full, by hand, from a plan or from a run's configuration."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.commands.command_line import command
from weft.commands.networks import ROUTING, ROUTINGS, fabric_of
from weft.commands.options import given_options, option, verb
from weft.commands.output import LayoutOutput, nothing_fits, report
from weft.commands.shared import (
    ConstantsOptions,
    FailureOptions,
    ModelOptions,
    RankedOptions,
    RecipeOptions,
    RunOptions,
    Subject,
    cluster_of,
    constants_of,
    job_of,
    subject_of,
)
from weft.errors import BadInput
from weft.interop.launch import read_run
from weft.model.resolve import changed_job, complete_job
from weft.units import counted

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource, LayoutSource
    from weft.estimation.report import EstimateReport
    from weft.fabric import Fabric
    from weft.search.goodput import GoodputReport

USAGE = "weft estimate MODEL CLUSTER --layout tp=8,pp=4 | [MODEL] CLUSTER --run FILE | --plan FILE [--rank N]"


_GOODPUT = 'weft.goodput("llama-3.1-8b", "h100-64", "tp=2", tokens="15T")'


class EstimateOptions(RankedOptions, ModelOptions, RunOptions, ConstantsOptions):
    """What is estimated."""

    group = "Job"
    run: str | None = option(None, "The configuration of a run (docs/models-and-clusters.md).", metavar="FILE")
    vocab: int | None = option(
        None, "Vocabulary of the run's tokenizer, where --run leaves it open.", metavar="N", least=1
    )

    needs = {"vocab": "run"}


@verb(EstimateOptions)
def estimate(
    model: JobSource | None = None,
    cluster: ClusterSource | None = None,
    layout: LayoutSource | None = None,
    options: EstimateOptions | None = None,
    **given: Any,
) -> EstimateReport:
    """Time, memory and bounds of one layout, and what faster hardware would be worth.

    >>> import weft
    >>> found = weft.estimate("llama-3.1-8b", "h100-64", "tp=8,sp")
    >>> found.layout.data, found.fits
    (8, True)

    Args:
        model: as for ``weft.plan``; may be left out where ``run`` states it, and is left out with ``plan``.
        cluster: as for ``weft.plan``; left out with ``plan``.
        layout: as text or as a record.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or a layout that cannot run the job.
    """
    options = given_options(EstimateOptions, options, given, layout=layout)
    named = [name for name in ("layout", "run", "plan") if getattr(options, name) is not None]
    if len(named) != 1:
        raise BadInput("give exactly one of --layout, --run and --plan", where="estimate", remedy=USAGE)
    if options.run is not None:
        subject = run_subject(model, cluster, options, options.run, options.vocab)
    else:
        subject = subject_of(model, cluster, options, options, verb="estimate", usage=USAGE)
    from weft.estimation import estimate as evaluate
    from weft.estimation.kernels import coverage
    from weft.estimation.report import EstimateReport, sensitivities

    job, where, cut = subject.job, subject.cluster, subject.layout
    calibration = constants_of(options, where, job)
    if calibration is not None and (covered := coverage(job, where, cut, calibration)) is not None:
        job = replace(job, defaults=(*job.defaults, covered))
    result = evaluate(job, where, [cut], calibration)[0]
    return EstimateReport(
        job=job,
        cluster=where,
        estimate=result,
        sensitivities=sensitivities(job, where, cut, calibration),
        run=options.training(result, job, where, calibration),
    )


def run_subject(
    model: JobSource | None,
    cluster: ClusterSource | None,
    recipe: RecipeOptions,
    path: str,
    vocab: int | None = None,
    *,
    usage: str = USAGE,
) -> Subject:
    """The job, cluster and layout of a run's configuration."""
    from weft.layout.check import check_layout

    if cluster is None:
        raise BadInput("CLUSTER is needed, and MODEL where the run does not state it", where="--run", remedy=usage)
    stated = stated_world(path)
    if isinstance(cluster, str | os.PathLike) and os.fspath(cluster).endswith(".json") and stated is not None:
        cluster = f"{os.fspath(cluster)}:{stated}"
    where = cluster_of(cluster)
    run = read_run(path, world=where.count, vocab=vocab)
    changes = run.changes() | recipe.changes()
    if model is not None:
        own = job_of(model, RecipeOptions(), where.count)
        if run.model is not None and (run.model.layers, run.model.hidden) != (own.model.layers, own.model.hidden):
            here, there = (f"{each.layers} layers of {each.hidden:,}" for each in (own.model, run.model))
            problem = f"it has {there}, but {own.model.name} {here}"
            raise BadInput(problem, where=path, remedy="leave MODEL out, or name the model of the run")
        job = changed_job(own, changes, origin=own.model.name)
    elif run.model is not None:
        named = replace(run.model, name=Path(path).stem if run.tool == "Megatron-LM" else run.model.name)
        job = complete_job(named, None, changes, origin=path, accelerators=where.count)
    else:
        more = ", give --vocab N," if "--vocab-size" in run.problem else ""
        remedy = f"change it{more} or name the model: MODEL CLUSTER --run FILE"
        raise BadInput(run.problem, where=path, remedy=remedy)
    notes = [note for note in run.notes if model is None or run.problem not in note]
    assumed = [*job.defaults, *notes]
    if stated is not None and stated != where.count:
        assumed.append(f"{path} starts {counted(stated, 'accelerator')}; estimated for {where.count}")
    if run.ignored:
        assumed.append(f"settings without effect here: {', '.join(run.ignored)}")
    check_layout(job, where.count, run.layout)
    stack = job.stack or {"torchtitan (TOML)": "torchtitan", "DeepSpeed": "deepspeed"}.get(run.tool)
    return Subject(job=replace(job, defaults=tuple(assumed), stack=stack), cluster=where, layout=run.layout)


def stated_world(path: str) -> int | None:
    """Accelerators that a run's configuration itself names, if it does."""
    try:
        return read_run(path).world
    except BadInput:
        return None


@command(options=EstimateOptions, out=LayoutOutput)
def estimate_command(model: str | None, cluster: str | None, options: EstimateOptions, out: LayoutOutput) -> None:
    """Time, memory and bounds of one layout, and what faster hardware would be worth.

    MODEL and CLUSTER as for weft plan.  With --run MODEL may be left out where the configuration states it, with
    --plan both.
    """
    if cluster is None:
        model, cluster = None, model
    result = estimate(model, cluster, options=options)
    fitting = None
    if not result.fits:
        from weft.search.ranking import fitting_layout

        constants = constants_of(options, result.cluster, result.job)
        fitting = fitting_layout(result.job, result.cluster, result.layout, constants)
    report(result, out, fitting=fitting)
    if not result.fits:
        from weft.views.words import estimate_verdict

        nothing_fits(estimate_verdict(result.estimate, fitting), out)


class GoodputOptions(RankedOptions, RecipeOptions, ConstantsOptions, FailureOptions):
    """What fails, where, and how many hosts stand by."""

    spares: int | None = option(
        None, "Spare hosts (default: as many as cost least).", metavar="N", least=0, most=10_000
    )
    fabric: str | Fabric | None = option(
        None,
        "Network whose parts fail, simulated with them failed (default: the cluster's usual one, not simulated).",
        metavar="KIND|FILE",
    )
    routing: str = option(ROUTING, "How paths are chosen in the simulation.", choices=ROUTINGS)


@verb(GoodputOptions)
def goodput(
    model: JobSource | None = None,
    cluster: ClusterSource | None = None,
    layout: LayoutSource | None = None,
    options: GoodputOptions | None = None,
    **given: Any,
) -> GoodputReport:
    """How much time and money failures cost a training run, and which class of failures costs what.

    >>> import weft
    >>> found = weft.goodput("llama-3.1-8b", "h100-1024", "tp=2,sp", tokens="15T")
    >>> 0.9 < found.goodput < 1.0
    True

    Args:
        model: as for ``weft.plan``; left out with ``plan``.
        cluster: as for ``weft.plan``; left out with ``plan``.
        layout: as text or as a record.

    Raises:
        BadInput: a name, a file or an option that cannot be used, a layout that cannot run the job, or failures that
            come too fast for any work to be saved.
    """
    options = given_options(GoodputOptions, options, given, layout=layout)
    if options.tokens is None:
        raise BadInput("is missing", where="--tokens", remedy=_GOODPUT)
    from weft.search.goodput import goodput as goodput_of

    subject = subject_of(model, cluster, options, options, verb="goodput", usage=_GOODPUT)
    terms = options.terms(
        options.tokens, spares=options.spares, simulate=options.fabric is not None, routing=options.routing
    )
    fabric = fabric_of(options.fabric, subject.cluster)
    constants = constants_of(options, subject.cluster, subject.job)
    return goodput_of(subject.job, subject.cluster, subject.layout, fabric, terms, constants=constants)
