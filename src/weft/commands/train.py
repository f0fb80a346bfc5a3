"""``weft.train``: a job trained with its layout, measured beside its prediction."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from weft.checkpoints import check_checkpoint, last_checkpoint
from weft.cluster import Cluster
from weft.codec import encode
from weft.commands.command_line import DefaultGroup, Once, command
from weft.commands.options import Options, given_options, option, options_of, verb
from weft.commands.shared import CalibrationOptions, RankedOptions, RecipeOptions, job_of, planned_subject
from weft.errors import BadInput
from weft.files import write_text
from weft.launched import TUNER, TUNER_KEY, adopt_launcher, launched_world, said_once, speaks
from weft.layout.measured import StepRecord
from weft.layout.spec import Layout, TensorOverlap
from weft.layout.text import parse_layout
from weft.model import RecipeChanges
from weft.model.job import Job
from weft.results import Result

if TYPE_CHECKING:
    from weft.commands.shared import JobSource
    from weft.layout.step import Issue

USAGE = (
    "weft train MODEL|--from DIR [--layout x=2,z=2] | weft train --plan plan.json [--rank N]"
    " | weft train --arrangement arranged.json --job NAME"
)
SEEN = "arranged.json"
"""What every rank of an arranged job saw, in the folder of the run."""
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Ranks compile at the same time, so that none needs helpers."""
TRIED = 100
"""Layouts of a plan that are tried for one that can be trained."""


class DataOptions(Options):
    """The data of a run."""

    group = "Data"
    data: str | None = option(None, "Text or tokens (.npy, .bin, folder; default: synthetic).", metavar="FILE")
    eval_every: int | None = option(None, "Evaluate every N steps and at the end.", metavar="N", least=1)
    eval_data: str | None = option(
        None, "Evaluation data, as --data (default: its last 5 %, not trained on).", metavar="FILE"
    )
    eval_batches: int = option(4, "Global batches per evaluation.", metavar="N", least=1)

    needs = {"eval_data": "eval_every", "eval_batches": "eval_every"}


class OptimizerOptions(Options):
    """Steps, optimizer and numerics."""

    group = "Run"
    steps: int = option(20, "Last step of the run.", metavar="N", least=1)
    rate: float = option(3e-4, "Learning rate.", metavar="X", least=0, most=10, above=True)
    warmup: int = option(10, "Steps of linear warm-up.", metavar="N", least=0)
    clip: float = option(1.0, "Largest gradient norm.", metavar="X", least=0, above=True)
    seed: int = option(0, "Seed of weights and data.", metavar="N")
    expert_balance: float | None = option(
        None, "Factor of the loss that balances experts (default: 0.01).", metavar="X", least=0, most=10
    )
    reduce_bf16: bool = option(False, "Accumulate and reduce gradients in 16 bits, not 32.")
    no_overlap: bool = option(False, "Hide no communication behind computation.")
    compile: bool = option(False, "Compile each block with torch.compile.")
    deterministic: bool = option(False, "The same bits in every run on GPUs too (slower).")


class CheckpointOptions(Options):
    """Checkpoints, and failures."""

    group = "Checkpoints"
    out: str | None = option(None, "Folder of checkpoints and metrics.jsonl.", metavar="DIR")
    save_every: int | None = option(None, "Also save every N steps.", metavar="N", least=1)
    keep: int | None = option(None, "Keep the newest N checkpoints of --out.", metavar="N", least=1)
    background_save: bool = option(False, "Train on while checkpoints are written.")
    resume: bool = option(False, "Continue from the last checkpoint of --out, in any layout.")
    resume_from: str | None = option(None, "Continue from this checkpoint instead, into --out.", metavar="DIR")
    restart: Literal["never", "on-failure"] = option("never", "Restart from the last checkpoint after a failure.")
    timeout: float | None = option(
        None, "Give up on a collective that takes longer.", metavar="SECONDS", least=0, above=True
    )

    needs = dict.fromkeys(("save_every", "keep", "background_save", "resume", "restart"), "out")


class MeasureOptions(CalibrationOptions):
    """The machine, and what is measured on it."""

    group = "Machine"
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto takes GPUs if there are enough.")
    cluster: str | Cluster | None = option(None, "This machine (weft bench), for --compare and MFU.", metavar="FILE")


class TrainOutput(Options):
    """What is written besides checkpoints."""

    group = "Output"
    compare: bool = option(False, "Compare measured with predicted communication and time.")
    dry_run: bool = option(False, "Trace one rank of each pipeline end, for any world; do not train.")
    tensorboard: str | None = option(None, "Also write metrics for TensorBoard.", metavar="DIR")
    profile: str | None = option(None, "Trace of the last step, for ui.perfetto.dev.", metavar="FILE.json")


class TrainOptions(
    RankedOptions, RecipeOptions, DataOptions, OptimizerOptions, CheckpointOptions, MeasureOptions, TrainOutput
):
    """All options of ``weft train``."""

    group = "Job"
    weights: str | None = option(None, "Hugging Face folder: its model and weights.", "--from", metavar="DIR")
    precision: str | None = option(None, "Precision of products: fp32, tf32 (GPUs) or bf16.", metavar="P")
    arrangement: str | None = option(None, "JSON of weft arrange, which has the job's layout.", metavar="FILE")
    job: str | None = option(None, "Job of --arrangement.", metavar="NAME")
    start_at: str | float | None = option(
        None, "Start of --arrangement: 2026-11-23T06:30:00Z, or seconds since 1970.", metavar="TIME"
    )

    needs = {"job": "arrangement", "start_at": "arrangement", "calibration": "compare"}

    def changes(self) -> RecipeChanges:
        return replace(super().changes(), gradient_bytes=2 if self.reduce_bf16 else None)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {one.name: one.flags[0] for one in options_of(type(self)) if getattr(self, one.name) != one.default}
        for name in sorted(given.keys() - _TRACED) if self.dry_run else ():
            raise BadInput(f"{given[name]} has no effect with --dry-run", where="train", remedy="drop one of them")
        if self.resume and self.resume_from:
            raise BadInput("--resume and --resume-from exclude each other", where="train", remedy="drop one of them")
        if self.arrangement is not None:
            recipe = (one.name for one in options_of(RecipeOptions))
            own = {"layout", "plan", "rank", "reduce_bf16", *recipe}
            for name in sorted(given.keys() & own):
                problem = f"{given[name]} is already in the arrangement"
                raise BadInput(problem, where="train --arrangement", remedy=USAGE)
        if self.calibration is not None and not (self.cluster or self.plan or self.arrangement):
            raise BadInput("--calibration needs --cluster or --plan, or --arrangement", where="train")


_TRACED = frozenset(
    {
        *("layout", "plan", "rank", "arrangement", "job"),
        *("batch", "sequence", "precision", "reduce_bf16"),
        *("no_overlap", "dry_run"),
    }
)
"""What a dry run takes."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trained(Result):
    """What was trained, step by step; under torchrun only the rank that reports has the steps."""

    SCHEMA = "weft.train/1"
    DOCUMENT = "job layout steps arranged?"

    job: Job
    layout: Layout
    steps: tuple[StepRecord, ...]
    arranged: tuple[dict[str, Any], ...] = ()
    """What every rank of an arranged job saw: its host, class, offset, settings, routes, and when it began."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a step."""
        return [encode(step) for step in self.steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRank:
    """Collectives of one rank as traced without hardware, beside those predicted for its stage."""

    rank: int
    stage: int
    predicted: Counter[Issue]
    found: Counter[Issue]
    micro_batches: int
    traced: tuple[int, ...]

    @property
    def equal(self) -> bool:
        return self.predicted == self.found


@dataclass(frozen=True, slots=True)
class TracedAxes:
    """Collectives of a rank over some axes, and bytes of their full buffers: predicted, and issued."""

    rank: int
    stage: int
    axes: str
    predicted: int
    issued: int
    predicted_bytes: int
    issued_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun(Result):
    """The first rank of the first and of the last pipeline stage, traced."""

    SCHEMA = "weft.dry-run/1"
    DOCUMENT = "job layout equal collectives"

    job: Job
    layout: Layout
    ends: tuple[TracedRank, ...]

    @property
    def equal(self) -> bool:
        """Whether every rank issued exactly what was predicted."""
        return all(end.equal for end in self.ends)

    @property
    def collectives(self) -> tuple[TracedAxes, ...]:
        """The collectives of each rank over each group of axes."""
        from weft.views.training_run import side_by_side

        return tuple(
            TracedAxes(one.rank, one.stage, " ".join(axes), *counts, *sizes)
            for one in self.ends
            for axes, counts, sizes in side_by_side(one.predicted, one.found)
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        return [encode(collective) for collective in self.collectives]


@verb(TrainOptions)
def train(
    model: JobSource | None = None, options: TrainOptions | None = None, *, quiet: bool = True, **given: Any
) -> Trained | DryRun:
    """Train a model on the ranks of torchrun, or on ranks that are started on this machine.

    The grid is the layout's x * y * context * z * data * pipeline; every grid gives the same losses.  Checkpoints
    load on any other grid.  A program that starts several ranks needs ``if __name__ == "__main__"``.

    >>> import weft
    >>> found = weft.train("tiny-gpt", steps=2, batch=2, sequence=16)
    >>> [step.step for step in found.steps]
    [1, 2]
    >>> weft.train("tiny-gpt", layout="x=2,z=2", batch=4, dry_run=True).equal
    True

    Args:
        model: as for ``weft.plan``; left out with ``plan`` and ``arrangement``.
        quiet: print nothing while it runs.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or a layout that cannot be trained.
    """
    options = given_options(TrainOptions, options, given)
    adopt_launcher()
    with said_once():
        _check_files(model, options)
        if options.arrangement is None:
            job, layout, planned = _subject(model, options)
        else:
            from weft.arrangement.bundle import read_bundle

            if model is not None:
                raise BadInput("the arrangement already has a model", where="train --arrangement", remedy=USAGE)
            bundle = read_bundle(options.arrangement)
            number = bundle.number(options.job)
            arranged = bundle.site.jobs[number]
            job, layout, planned = arranged.job, _overlapped(arranged.layout, options), bundle.subcluster(number)
        import weft.runtime  # noqa: F401 - where torch is missing, it names the extra

        if options.dry_run:
            return _dry_run(job, layout)
        from weft.commands.train_rank import run_attempts, start_of, training_request

        request = training_request(model, options, job, layout, planned, quiet=quiet)
        if options.arrangement is not None:
            request = replace(request, start=start_of(bundle, number, options))
            tuner = bundle.jobs[number].nccl_tuner
    from weft.runtime.core.machine import DETERMINISTIC
    from weft.runtime.run.ranks import environment

    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        if quiet and options.out is None:
            request = replace(request, metrics=str(Path(folder) / "metrics.jsonl"))
        settings = dict(DETERMINISTIC) if options.deterministic else {}
        if options.compile:
            settings |= COMPILING
        if request.start is not None:
            settings |= dict(request.start.settings)
            if tuner:
                write_text(Path(folder) / TUNER, tuner)
                settings[TUNER_KEY] = str(Path(folder) / TUNER)
            request = replace(request, seen=str(Path(options.out or folder) / SEEN))
        with environment(settings):
            run_attempts(request)
        metrics, seen = request.metrics_path, request.seen
        steps: tuple[StepRecord, ...] = ()
        if metrics is not None and metrics.is_file():
            records = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
            steps = tuple(
                StepRecord(**{name: record.get(name) for name in StepRecord.__slots__}) for record in records
            )
        ranks: tuple[dict[str, Any], ...] = ()
        if seen is not None and os.path.isfile(seen):
            ranks = tuple(json.loads(Path(seen).read_text(encoding="utf-8"))["ranks"])
        return Trained(job=job, layout=layout, steps=steps, arranged=ranks)


def _dry_run(job: Job, layout: Layout) -> DryRun:
    from weft.commands.train_rank import precision_of
    from weft.layout.mesh import groups
    from weft.layout.step import step_collectives
    from weft.runtime.measure.trace import extrapolate
    from weft.runtime.run.session import micro_batches_of

    if not speaks():
        return DryRun(job=job, layout=layout, ends=())
    precision = precision_of(job)
    ranks = groups(layout, "pipeline")[0][[0, -1]].tolist()
    ends = []
    for stage, rank in dict(zip((0, layout.pipeline - 1), ranks, strict=True)).items():
        issued, traced = extrapolate(job, layout, rank=rank, precision=precision)
        predicted = step_collectives(job.model, job.recipe, layout, stage=stage)
        ends.append(
            TracedRank(
                rank=rank,
                stage=stage,
                predicted=predicted,
                found=issued,
                micro_batches=micro_batches_of(job, layout),
                traced=traced,
            )
        )
    return DryRun(job=job, layout=layout, ends=tuple(ends))


_READ = ("data", "eval_data", "plan", "arrangement", "cluster", "calibration")


def _check_files(model: JobSource | None, options: TrainOptions) -> None:
    """Refuse files that could not be written, or that would be written over one that is read."""
    profile, out = options.profile, options.out
    if profile and (os.path.isdir(profile) or not os.path.isdir(Path(profile).absolute().parent)):
        raise BadInput("cannot be written there", where=profile, remedy="name a file in a folder that exists")
    if out and os.path.exists(out) and not os.path.isdir(out):
        raise BadInput("is not a folder", where=out, remedy="name a folder for checkpoints")
    if options.weights is not None and not os.path.isdir(options.weights):
        raise BadInput(
            "no such folder", where=os.fspath(options.weights), remedy="give a folder of the Hugging Face hub"
        )
    if options.resume:
        last_checkpoint(Path(str(out)))
    if options.resume_from:
        check_checkpoint(Path(options.resume_from))
    given = [one for one in (model, *(getattr(options, name) for name in _READ)) if isinstance(one, str | os.PathLike)]
    taken = {os.path.realpath(name) for name in given if os.path.isfile(name)}
    if profile is not None and os.path.realpath(profile) in taken:
        raise BadInput("--profile would overwrite a file of this run", where=profile, remedy="name another file")


def _subject(model: JobSource | None, options: TrainOptions) -> tuple[Job, Layout, Cluster | None]:
    """Job and layout from a name or from a plan, and the plan's cluster."""

    if options.plan is not None:
        if model is not None or options.layout is not None:
            raise BadInput("the plan already has a model and a layout", where="train --plan", remedy=USAGE)
        planned = planned_subject(options.plan, options.rank or 1, options)
        _check_planned(planned.job, planned.layout, options)
        return planned.job, _overlapped(planned.layout, options), planned.cluster
    if options.weights is not None:
        if model is not None:
            raise BadInput("the folder of --from already has a model", where="train --from", remedy=USAGE)
        model = options.weights
    if model is None:
        raise BadInput("one MODEL needed", where="train", remedy=USAGE)
    job = job_of(model, options)
    if isinstance(options.layout, Layout):
        return job, _overlapped(options.layout, options), None
    return job, _layout(options.layout or "x=1", job, options), None


def _layout(text: str, job: Job, options: TrainOptions) -> Layout:
    """A layout as it is trained; what is left out follows from the job, and from the ranks that were launched."""
    partial = parse_layout(text)
    layout = partial.complete(launched_world())
    if "micro_batch" not in partial.values:  # the whole share at once, with a pipeline in twice as many as stages
        share, rest = divmod(job.recipe.global_batch, layout.dp)
        parts = 2 * layout.pipeline if layout.pipeline > 1 else 1
        size = share // parts if share and not rest and share % parts == 0 else 1
        layout = replace(layout, micro_batch=size)
    return _overlapped(layout, options)


def _overlapped(layout: Layout, options: TrainOptions) -> Layout:
    """The layout, with ``no_overlap`` without its overlaps."""
    if not options.no_overlap:
        return layout
    return replace(layout, overlap_tensor=TensorOverlap.NONE, overlap_reduce=False, overlap_gather=False)


def _check_planned(job: Job, layout: Layout, options: TrainOptions) -> None:
    """Refuse a planned layout that cannot be trained, naming the first of the plan that can."""
    from weft.layout.check import check_runnable

    try:
        check_runnable(job.model, layout)
    except BadInput as error:
        assert options.plan is not None
        advice = "weft plan --runnable plans others"
        with suppress(BadInput):  # the plan has no more layouts
            for rank in range(1, TRIED + 1):
                other = planned_subject(options.plan, rank, options).layout
                with suppress(BadInput):
                    check_runnable(job.model, other)
                    advice = f"--rank {rank} of this plan can be trained"
                    break
        error.remedy = f"{error.remedy}; {advice}"
        raise


@click.group(cls=DefaultGroup, default="run")
def train_command() -> None:
    """Train MODEL on the ranks of torchrun, or start ranks on this machine.

    \b
    weft train tiny-gpt --layout tp=2 --steps 20      two ranks on this machine
    torchrun --no-python weft train --plan plan.json  one rank per process of torchrun
    weft train export runs/a/step-00000100 model.safetensors

    Without a subcommand: run (weft train run --help).
    """


@command(into=train_command, options=TrainOptions)
def run_command(model: str | None, options: TrainOptions) -> None:
    """Train MODEL on the ranks of torchrun, or start ranks on this machine.

    The layout needs tp * cp * pp * dp ranks (fsdp is part of dp). Every layout gives the same losses, and
    checkpoints load on any other layout.

    Exit code 1 if --compare or --dry-run finds other collectives than predicted.
    """
    found: Trained | DryRun = train(model, options, quiet=False)
    if isinstance(found, DryRun) and found.ends:
        from weft.commands.train_rank import Differs
        from weft.views.terminal import print_blocks
        from weft.views.training_run import dry_run_view

        print_blocks(dry_run_view(found))
        if not found.equal:
            raise Differs("the traced collectives differ from the prediction")


@train_command.command("export")
@click.argument("folder", metavar="CHECKPOINT")
@click.argument("file", metavar="FILE.safetensors|DIR")
@click.option(
    "--to", cls=Once, type=click.Choice(["weft", "hf"]), default="weft", help="Parameter names; hf writes a folder."
)
@click.option("--config", cls=Once, metavar="DIR", help="config.json for --to hf (default: the run's own).")
@click.option(
    "--dtype", cls=Once, type=click.Choice(["fp32", "bf16", "fp16"]), help="Format for --to hf (default: as trained)."
)
def export_command(folder: str, file: str, to: str, config: str | None, dtype: str | None) -> None:
    """Write the parameters of CHECKPOINT (a step's folder of weft train --out).

    The result is one file under Weft's names, or with --to hf a folder that transformers loads, without the
    optimizer's state.
    """
    check_checkpoint(Path(folder))
    if to == "hf":
        from weft.runtime.checkpoints.hub import export_hub

        export_hub(folder, file, config=config, dtype=dtype)
    else:
        for name, value in (("--config", config), ("--dtype", dtype)):
            if value is not None:
                raise BadInput(f"{name} has no effect without --to hf", where="train export", remedy="drop it")
        if not file.endswith(".safetensors"):
            raise BadInput("does not end in .safetensors", where=file, remedy="name it like model.safetensors")
        from weft.runtime.checkpoints.hub import export

        export(folder, file)
    click.echo(f"Wrote {file}")
