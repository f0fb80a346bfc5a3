"""``weft.estimate``: one layout in full, by hand, from a plan or from a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput
from weft.verbs.options import given_options, option, verb
from weft.verbs.shared import (
    ConstantsOptions,
    PlannedOptions,
    RecipeOptions,
    RunOptions,
    Subject,
    cluster_of,
    constants_of,
    job_of,
    subject_of,
)

if TYPE_CHECKING:
    from weft.estimation.report import EstimateReport
    from weft.verbs.shared import ClusterSource, JobSource, LayoutSource

USAGE = "weft estimate MODEL CLUSTER --layout tp=8,pp=4 | [MODEL] CLUSTER --run FILE | --plan FILE [--rank N]"


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(PlannedOptions, RecipeOptions, RunOptions, ConstantsOptions):
    """What is estimated."""

    run: str | None = option(None, "A Megatron-LM, torchtitan or DeepSpeed configuration.", metavar="FILE")


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
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or a layout that cannot run the job.
    """
    asked = given_options(EstimateOptions, options, given | ({} if layout is None else {"layout": layout}))
    named = [name for name in ("layout", "run", "plan") if getattr(asked, name) is not None]
    if len(named) != 1:
        raise BadInput("give exactly one of --layout, --run and --plan", where="estimate", remedy=USAGE)
    if asked.run is not None:
        subject = _from_run(model, cluster, asked, asked.run)
    else:
        subject = subject_of(model, cluster, asked, asked, verb="estimate", usage=USAGE)
    from weft.estimation import estimate as evaluate
    from weft.estimation import sensitivities
    from weft.estimation.report import EstimateReport

    job, where, cut = subject.job, subject.cluster, subject.layout
    calibration = constants_of(asked, where)
    found = evaluate(job, where, [cut], calibration)[0]
    return EstimateReport(
        job=job,
        cluster=where,
        estimate=found,
        sensitivities=sensitivities(job, where, cut, calibration),
        run=asked.training(found, job, where),
    )


def _from_run(model: JobSource | None, cluster: ClusterSource | None, asked: EstimateOptions, path: str) -> Subject:
    from weft.interop import read_run
    from weft.layout.check import check_layout
    from weft.model.resolve import complete_job

    if cluster is None:
        raise BadInput("CLUSTER is needed, and MODEL where the run does not state it", where="--run", remedy=USAGE)
    where = cluster_of(cluster)
    run = read_run(path, world=where.count)
    stated = _stated_world(path)
    recipe = replace(
        asked,
        batch=asked.batch or run.global_batch,
        sequence=asked.sequence or run.sequence,
        precision=asked.precision or run.precision,
    )
    if model is not None:
        job = job_of(model, recipe)
    elif run.model is not None:
        job = complete_job(run.model, None, recipe.changes(), origin=path)
    else:
        raise BadInput("does not state the model", where=path, remedy=f"name it: {USAGE}")
    assumed = [*job.defaults, *run.notes]
    if stated is not None and stated != where.count:
        assumed.append(f"{path} starts {stated} accelerators; estimated for {where.count}")
    if run.ignored:
        assumed.append(f"settings without effect here: {', '.join(run.ignored)}")
    check_layout(job, where.count, run.layout)
    return Subject(job=replace(job, defaults=tuple(assumed)), cluster=where, layout=run.layout)


def _stated_world(path: str) -> int | None:
    """Accelerators that a run's configuration itself names, if it does."""
    from weft.interop import read_run

    try:
        return read_run(path).world
    except BadInput:
        return None
