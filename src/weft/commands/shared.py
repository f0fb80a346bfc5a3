"""Options that several verbs share, and what they mean."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from weft.commands.options import Options, option
from weft.errors import BadInput, UnknownName
from weft.layout import Layout
from weft.layout.text import parse_layout
from weft.units import parse_bandwidth, parse_count, parse_seconds, parse_whole

if TYPE_CHECKING:
    from weft.cluster import Calibration, Cluster
    from weft.estimation import Estimate
    from weft.estimation.result import TrainingRun
    from weft.model import Job, Model, RecipeChanges
    from weft.reliability.classes import FailureBook
    from weft.search import Plan
    from weft.search.goodput import FailureTerms as FailureTerms

    JobSource = str | os.PathLike[str] | Job | Model
    """A catalogue name, a config.json, a Megatron-LM script, or what Weft makes of one."""
    ClusterSource = str | os.PathLike[str] | Cluster
    """A preset's name, a TOML file, or a cluster."""
    LayoutSource = str | Layout
    """A layout as text, as "tp=8,pp=4", or as a record."""


class RecipeOptions(Options):
    """How the model is trained."""

    group = "Job"
    batch: int | None = option(None, "Global batch in sequences.", metavar="N")
    sequence: int | None = option(None, "Sequence length in tokens.", metavar="N")
    precision: str | None = option(
        None, "fp32, tf32, fp16, bf16, fp8, fp8-rowwise, mxfp8, nvfp4 or int8.", metavar="P"
    )

    def changes(self) -> RecipeChanges:
        """What they change of a model's own recipe."""
        from weft.model import RecipeChanges

        return RecipeChanges(global_batch=self.batch, sequence=self.sequence, precision=self.precision)


class ModelOptions(RecipeOptions):
    """How the model is read, and all of how it is trained; other verbs take both from a plan."""

    group = "Job"
    attention: Literal["flash", "unfused"] | None = option(None, "Attention kernel (default flash, or the recipe's).")
    reduce_bf16: bool = option(False, "Accumulate and reduce gradients in 16 bits instead of 32.")
    read_as: Literal["dense-equivalent"] | None = option(
        None, "Read blocks of a config.json that are not modelled as dense ones.", "--as"
    )

    def changes(self) -> RecipeChanges:
        gradient_bytes = 2 if self.reduce_bf16 else None
        return replace(super().changes(), attention=self.attention, gradient_bytes=gradient_bytes)


class CalibrationOptions(Options):
    """Constants of this machine."""

    group = "Machine"
    calibration: str | Calibration | None = option(
        None, "Measured constants: TOML, or a system of Calculon.", metavar="FILE"
    )


class ConstantsOptions(CalibrationOptions):
    """Constants of this machine and of the training software."""

    group = "Machine"
    stack: str | None = option(
        None, "Training framework (weft info frameworks; default: the recipe's, else the usual one).", metavar="NAME"
    )


class FailureOptions(Options):
    """How long a training run is, what fails, and what the job does about it."""

    group = "Run"
    tokens: str | float | None = option(
        None, "Tokens to train on, as 15T: days, cost and what failures take.", metavar="N"
    )
    failures: str | float | FailureBook = option(
        "llama-3", "With --tokens: what fails, as a preset or a TOML file.", metavar="NAME|FILE"
    )
    policy: str = option(
        "restart", "With --tokens: restart or shrink; also reroute, hot, peer, async.", metavar="WORD,..."
    )
    usd_per_hour: float | None = option(None, "With --tokens: price of a GPU-hour in dollars.", metavar="USD")

    needs = {"failures": "tokens", "policy": "tokens", "usd_per_hour": "tokens"}

    def terms(self, tokens: str | float, **changes: Any) -> FailureTerms:
        """How failures of a run over ``tokens`` are met and counted."""
        from weft.fabric.checks import positive
        from weft.reliability.classes import FailureBook, preset, read_failures
        from weft.reliability.job import parse_policy
        from weft.search.goodput import FailureTerms

        book = self.failures
        if not isinstance(book, FailureBook):
            name = path_of(book, "--failures")
            book = read_failures(name) if name.endswith(".toml") or os.path.exists(name) else preset(name)
        return FailureTerms(
            book=book,
            policy=parse_policy(self.policy),
            tokens=positive(parse_count(tokens, "--tokens"), "--tokens"),
            usd_per_hour=self.usd_per_hour,
            **changes,
        )


class RunOptions(FailureOptions):
    """The whole training run, where a failure rate may stand for a file."""

    group = "Run"
    failures: str | float | FailureBook = option(
        "llama-3",
        "With --tokens: a preset, a TOML file, or a GPU's mean time between failures, as 5y.",
        metavar="NAME|FILE|TIME",
    )

    def training(
        self, estimate: Estimate, job: Job, cluster: Cluster, constants: Calibration | None
    ) -> TrainingRun | None:
        """The whole run at an estimate's speed; None without ``tokens``."""
        if self.tokens is None:
            return None
        if (mtbf_s := self._mtbf_s()) is not None:
            from weft.estimation.training import training_run

            tokens, usd = parse_count(self.tokens, "--tokens"), self.usd_per_hour
            return training_run(estimate, job, cluster, tokens=tokens, mtbf_s=mtbf_s, usd_per_accelerator_hour=usd)
        from weft.fabric.catalogue import default_kind, for_cluster
        from weft.search.goodput import failing_run

        fabric = for_cluster(default_kind(cluster), cluster)
        return failing_run(estimate, job, cluster, fabric, self.terms(self.tokens), constants)

    def _mtbf_s(self) -> float | None:
        """The mean time between failures of an accelerator, where ``failures`` is one."""
        rate = self.failures
        if not isinstance(rate, str | float | int):
            return None
        if isinstance(rate, str) and (not rate[:1].isdigit() or os.path.exists(rate)):
            return None
        if self.policy != "restart":
            raise BadInput("needs classes of failures", where="--policy", remedy="give --failures a preset or a file")
        return parse_seconds(rate, "--failures")


class PlannedOptions(Options):
    """A layout, or a plan that has it."""

    group = "Job"
    layout: str | Layout | None = option(
        None, "As tp=8,pp=16,sp; keys: tp, cp, pp, dp, fsdp, ep, vpp, sp, zero, mbs.", metavar="TEXT"
    )
    plan: str | Plan | None = option(None, "JSON of weft plan; takes its job, cluster and layout.", metavar="FILE")


class RankedOptions(PlannedOptions):
    """A layout, or a plan that has it."""

    group = "Job"
    rank: int | None = option(None, "Layout of --plan (default 1).", metavar="N", least=1)

    needs = {"rank": "plan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A job, a cluster, and a layout that can run the job on it."""

    job: Job
    cluster: Cluster
    layout: Layout


def subject_of(
    model: JobSource | None,
    cluster: ClusterSource | None,
    planned: PlannedOptions,
    recipe: RecipeOptions,
    *,
    verb: str,
    usage: str,
) -> Subject:
    """The job, cluster and layout that a caller names, or those of ``plan``."""
    if planned.plan is not None:
        if model is not None or cluster is not None or planned.layout is not None:
            given = next(one for one in (model, cluster, planned.layout) if one is not None)
            raise BadInput(f"{given!s:.40} is already in the plan", where=f"{verb} --plan", remedy=usage)
        return planned_subject(planned.plan, getattr(planned, "rank", None) or 1, recipe)
    if model is None or cluster is None or planned.layout is None:
        raise BadInput("MODEL, CLUSTER and --layout are needed, or --plan", where=verb, remedy=usage)
    where = cluster_of(cluster)
    job = job_of(model, recipe, where.count)
    return Subject(job=job, cluster=where, layout=layout_of(planned.layout, job, where))


def planned_subject(plan: str | os.PathLike[str] | Plan, rank: int, recipe: RecipeOptions | None = None) -> Subject:
    """A layout of a plan, which must still run its job with the recipe's changes."""
    from weft.commands.read import read_plan
    from weft.layout.check import check_layout
    from weft.model.resolve import RecipeChanges, changed_job
    from weft.search import Plan

    origin = plan.job.model.name if isinstance(plan, Plan) else path_of(plan, "--plan")
    job, cluster, layout = read_plan(plan if isinstance(plan, Plan) else origin, rank)
    changes = RecipeChanges() if recipe is None else recipe.changes()
    if changes != RecipeChanges():
        job = changed_job(job, changes, origin=origin)
        check_layout(job, cluster.count, layout)
    return Subject(job=job, cluster=cluster, layout=layout)


def job_of(model: JobSource, recipe: RecipeOptions, accelerators: int = 1) -> Job:
    """The job that a caller names or gives, with the recipe's changes; a batch that nobody gave divides among the
    accelerators.
    """
    from weft.model import Job, Model, resolve_job
    from weft.model.resolve import RecipeChanges, changed_job, complete_job

    changes = recipe.changes()
    if isinstance(model, Job):
        return changed_job(model, changes, origin=model.model.name) if changes != RecipeChanges() else model
    if isinstance(model, Model):
        return complete_job(model, None, changes, origin=model.name, accelerators=accelerators)
    stand_in = isinstance(recipe, ModelOptions) and recipe.read_as is not None
    return resolve_job(path_of(model, "MODEL"), changes, stand_in=stand_in, accelerators=accelerators)


def cluster_of(cluster: ClusterSource) -> Cluster:
    """The cluster that a caller names or gives."""
    from weft.cluster import Cluster, resolve

    try:
        return cluster if isinstance(cluster, Cluster) else resolve(path_of(cluster, "CLUSTER"))
    except UnknownName:
        from weft.model import catalogue

        if cluster not in catalogue.names():
            raise
        remedy = "name one such as h100-64; MODEL comes before CLUSTER"
        raise BadInput(f"{cluster} is a model, not a cluster", where="CLUSTER", remedy=remedy) from None


def layout_of(layout: LayoutSource, job: Job, cluster: Cluster) -> Layout:
    """The layout that a caller writes or gives, which must be able to run the job on the cluster."""
    from weft.layout.check import check_layout

    result = layout if isinstance(layout, Layout) else parse_layout(_text(layout)).complete(cluster.count)
    check_layout(job, cluster.count, result)
    return result


def constants_of(options: CalibrationOptions, cluster: Cluster, job: Job | None = None) -> Calibration | None:
    """The calibration of ``calibration`` on top of the accelerator's and the software's own; None: the shipped one."""
    from weft.cluster.calibration import Calibration, calibration, read_calibration, usual_stack

    stack = stack_of(options, job, cluster)
    if options.calibration is None and stack == usual_stack(cluster.accelerator.name):
        return None
    if isinstance(options.calibration, Calibration):
        return options.calibration
    named = (cluster.accelerator.name, stack)
    if options.calibration is None:
        return calibration(*named)
    return read_calibration(path_of(options.calibration, "--calibration"), *named)


def stack_of(options: CalibrationOptions, job: Job | None, cluster: Cluster) -> str:
    """The software that is asked for, else that of the job's recipe, else the usual one on such accelerators."""
    from weft.cluster.calibration import stack_names, usual_stack

    stack = options.stack if isinstance(options, ConstantsOptions) else None
    if stack is not None and stack not in stack_names():
        raise UnknownName("software", stack, stack_names(), where="--stack", listed="weft info frameworks")
    return stack or (job and job.stack) or usual_stack(cluster.accelerator.name)


def numbers_of(given: str | int | tuple[int, ...], where: str) -> tuple[int, ...]:
    """Whole numbers above 0 of a list, or of a text with commas between."""
    listed = [given] if isinstance(given, int) else given
    parts = listed.split(",") if isinstance(listed, str) else [str(one) for one in listed]
    parts = [part.strip() for part in parts if part.strip()]
    result = tuple(parse_whole(part, where) for part in parts)
    if (given and not parts) or not all(0 < one <= 10**7 for one in result):
        raise BadInput(f"{given!r} is not a list of positive numbers", where=where, remedy="write it like 8,64,256")
    return result


def share_of(given: str | float, where: str) -> float:
    """A share from 0 to 1, as "5%" or 0.05."""
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not 0 <= share <= 1:
        raise BadInput(f"{text[:40]!r} is not a share", where=where, remedy="write it like 5% or 0.05, at most 100%")
    return share


def bandwidth_of(given: str | float | None, where: str) -> float | None:
    """Bytes/s of an option, None where it is not given."""
    from weft.fabric.checks import positive

    return None if given is None else positive(parse_bandwidth(given, where), where)


def path_of(value: object, where: str) -> str:
    """A name or a path as text."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise BadInput(f"a {type(value).__name__} is neither a name nor a file", where=where)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise BadInput(f"a {type(value).__name__} is not a layout", where="--layout", remedy="write it like tp=8,pp=4")
