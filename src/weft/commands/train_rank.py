"""What ``weft train`` asks of its ranks, and what each does: steps, metrics, checkpoints, comparison at the end."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft.checkpoints import check_checkpoint, check_free, latest, step_folder
from weft.cluster import Calibration, Cluster
from weft.commands.shared import cluster_of, constants_of, path_of
from weft.errors import BadInput, Unsupported, WeftError
from weft.files import write_text
from weft.launched import launched
from weft.layout import Layout
from weft.layout.check import PRECISIONS, check_trainable
from weft.layout.measured import StepRecord
from weft.layout.stages import stage_of
from weft.layout.step import Issue, step_collectives
from weft.layout.text import format_degrees
from weft.model import Job, catalogue
from weft.model.huggingface import read_text_part
from weft.model.job import model_flops
from weft.runtime.core.collectives import Log, of_every_rank
from weft.runtime.core.grid import GRID_AXES, Grid
from weft.runtime.core.machine import Precision, numerics
from weft.runtime.layers.decoder import DEFAULTS, Details, details_of, in_words, is_config, read_details
from weft.runtime.measure.timing import accelerator_of, peak_flops
from weft.runtime.run.data import Corpus, byte_corpus, is_tokens, markov_corpus, shard_corpus
from weft.runtime.run.folder import CheckpointSaving, locked, metrics_file, tensorboard_log, write_record
from weft.runtime.run.optimizer import AdamSettings
from weft.runtime.run.ranks import JobStart, default_device, run_ranks
from weft.runtime.run.session import Resumed, RunSettings, Session, load_latest
from weft.units import counted, format_seconds, parse_moment
from weft.views.terminal import print_blocks
from weft.views.training_run import (
    MeasuredStep,
    PredictedTime,
    comparison_view,
    eval_line,
    run_verdict,
    step_header,
    step_line,
    step_record,
)

if TYPE_CHECKING:
    from weft.arrangement.bundle import Bundle
    from weft.commands.shared import JobSource
    from weft.commands.train import TrainOptions

Tell = Callable[[Mapping[str, Any]], None]
"""Takes the record of a step."""
SYNTHETIC_TOKENS = 1 << 20
"""Tokens of the synthetic text."""
LARGE_VOCABULARY = 256
"""From here on the synthetic text's entropy hardly depends on the vocabulary."""
RECENT = 100
"""Last steps whose median times are compared."""
HELD_OUT = 0.05
"""Share of the data that is evaluated where no other is."""
PROFILED = "ProfilerStep#"
"""How PyTorch's profiler calls its steps, and tools that read its traces find them."""
RESTARTS = 3
"""Failures after which a run has made no new checkpoint that --restart bears."""
WARM_UP = 2
"""First steps that a comparison leaves out: nothing is gathered ahead in the first."""


class Differs(WeftError):
    """What was communicated is not what was predicted."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """A training run as it is asked for, with what follows from its options.

    Attributes:
        config: the text of the model's config.json, for the folder of the run.
        cluster: what times are predicted for.
        described: the machine that the user described.
        planned_for: the plan's cluster.
        assumed: what nobody gave.
        quiet: print nothing.
        metrics: where metrics go; by default into the folder of the run.
        start: what an arrangement says of the job; ``seen`` is where what every rank saw goes.
    """

    options: TrainOptions
    job: Job
    config: str | None
    layout: Layout
    device: str
    settings: RunSettings
    cluster: Cluster | None
    described: Cluster | None
    planned_for: str | None
    assumed: tuple[str, ...]
    calibration: Calibration | None
    resume: bool
    quiet: bool
    metrics: str | None = None
    start: JobStart | None = None
    seen: str | None = None

    @property
    def out(self) -> Path | None:
        """The folder of the run."""
        return Path(self.options.out) if self.options.out else None

    @property
    def metrics_path(self) -> Path | None:
        """Where metrics go, if anywhere."""
        if self.metrics is not None:
            return Path(self.metrics)
        return self.out / "metrics.jsonl" if self.out else None


def training_request(
    model: JobSource | None, options: TrainOptions, job: Job, layout: Layout, planned: Cluster | None, *, quiet: bool
) -> TrainingRequest:
    """What the options ask for.

    Raises:
        BadInput: the layout cannot be trained.
    """
    check_trainable(job, layout)
    device = default_device(layout.world) if options.device == "auto" else options.device
    described = None if options.cluster is None else cluster_of(options.cluster)
    cluster = described or (planned if device == "cuda" else None)
    if options.calibration is not None and cluster is None:
        raise BadInput("--calibration needs --cluster on CPUs", where="train")
    details, assumed, config = _of_model(options.weights or model, job, options)
    return TrainingRequest(
        options=options,
        job=job,
        config=config,
        layout=layout,
        device=device,
        settings=RunSettings(
            seed=options.seed,
            adam=AdamSettings(rate=options.rate, warmup=options.warmup, steps=options.steps, clip=options.clip),
            details=details,
            precision=precision_of(job),
            weights=options.weights,
            compiled="inductor" if options.compile else None,
        ),
        cluster=cluster,
        described=described,
        planned_for=planned.name if planned else None,
        assumed=assumed,
        calibration=constants_of(options, cluster, job) if cluster else None,
        resume=options.resume
        or (options.restart != "never" and not options.resume_from and latest(str(options.out)) is not None),
        quiet=quiet,
    )


def _of_model(model: JobSource | None, job: Job, options: TrainOptions) -> tuple[Details, tuple[str, ...], str | None]:
    """The model's numbers of its config.json, else the catalogue's or usual ones, which are noted; and the text of
    that file, which ``weft train export --to hf`` needs."""
    assumed: tuple[str, ...] = ()
    if isinstance(model, str | os.PathLike) and is_config(path_of(model, "MODEL")):
        path = path_of(model, "MODEL")
        details = read_details(path)
        table: Any = read_text_part(path)[0]
    else:
        table = catalogue.configuration(job.model)
        modelled = table is not None and table.get("model_type") in DEFAULTS
        details = details_of(table, f"catalogue: {job.model.name}") if modelled else Details()
        assumed = (f"{in_words(details, job.model)} (a config.json would say)",)
    if options.expert_balance is not None:
        if not any(kind.moe for kind in job.model.kinds):
            raise BadInput(f"{job.model.name} has no experts", where="--expert-balance", remedy="drop it")
        details = replace(details, balance=options.expert_balance)
    return details, assumed, None if table is None else json.dumps(table, indent=2) + "\n"


def precision_of(job: Job) -> Precision:
    """The formats in which a job is computed."""
    recipe = job.recipe
    if recipe.precision not in PRECISIONS:
        raise Unsupported(
            f"{recipe.precision}: the runtime computes in {', '.join(PRECISIONS)}",
            where="--precision",
            remedy="give --precision bf16",
        )
    if recipe.gradient_bytes not in (2, 4):
        raise Unsupported(
            f"{recipe.gradient_bytes}: the runtime sums gradients in 4 bytes, or in 2 (bfloat16)",
            where="recipe: gradient_bytes",
            remedy="set it to 4, or give --reduce-bf16",
        )
    precision = Precision.of(recipe.precision)
    return replace(precision, reduce=torch.bfloat16) if recipe.gradient_bytes == 2 else precision


def start_of(bundle: Bundle, number: int, options: TrainOptions) -> JobStart:
    """What the ranks of a job need to know of the arrangement."""
    return JobStart(
        arrangement=bundle.where,
        job=bundle.site.jobs[number].name,
        hosts=bundle.host_names(number),
        site_hosts=frozenset(bundle.site.host_names),
        traffic_class=bundle.classes()[number],
        offset_s=bundle.choice.offset_s[number],
        period_s=bundle.jobs[number].iteration_s,
        start_at_s=None if options.start_at is None else parse_moment(options.start_at, "--start-at"),
        settings=bundle.settings(number),
        routes=bundle.paths(number),
    )


def run_attempts(request: TrainingRequest) -> None:
    """Train on all ranks; where that is wanted, go on from the last checkpoint after a failure that may pass."""
    failures, newest, layout = 0, _newest(request), request.layout
    while True:
        try:
            run_ranks(train_rank, (request,), layout.world, request.device, request.options.timeout, layout)
            return
        except (WeftError, RuntimeError) as error:
            if request.options.restart == "never" or launched() or not getattr(error, "temporary", True):
                raise
            failures = failures + 1 if _newest(request) == newest else 1
            if failures > RESTARTS:
                raise
            newest = _newest(request)
            if not request.quiet:
                reason = str(error).strip().splitlines()[-1]
                print(f"Failed ({reason}); continuing from {newest or 'the beginning'}", flush=True)
        request = replace(request, resume=newest is not None)


def _newest(request: TrainingRequest) -> Path | None:
    return latest(str(request.out)) if request.out is not None else None


def train_rank(request: TrainingRequest) -> None:
    """Train on this rank; one rank that has the head reports."""
    device = torch.device("cuda", torch.cuda.current_device()) if request.device == "cuda" else torch.device("cpu")
    grid = Grid.of(
        request.layout, device, timeout=timedelta(seconds=request.options.timeout) if request.options.timeout else None
    )
    last = stage_of(request.layout, request.layout.pipeline * request.layout.virtual_stages - 1)
    reports = all(grid.coordinates[axis] == (last if axis == "pipeline" else 0) for axis in GRID_AXES)
    out = request.out
    tf32 = request.job.recipe.precision == "tf32"
    with (
        numerics(tf32=tf32, deterministic=request.options.deterministic),
        locked(out) if out is not None and reports else nullcontext(),
    ):
        if out is not None and not (request.resume or request.options.resume_from):
            check_free(out, None)
        session = Session(request.job, grid, request.settings, *_data(request))
        if out is not None and reports and request.config is not None:
            write_text(out / "config.json", request.config)
        _TrainingRun(request, session, reports=reports).run()


def _data(request: TrainingRequest) -> tuple[Corpus, Corpus | None]:
    """What is trained on, and what is evaluated."""
    corpus = _corpus(request, request.options.data)
    if request.options.eval_every is None:
        return corpus, None
    if request.options.eval_data is None:
        return corpus.split(HELD_OUT)
    return corpus, _corpus(request, request.options.eval_data)


def _corpus(request: TrainingRequest, path: str | None) -> Corpus:
    if path is None:
        return markov_corpus(request.job.model.vocab, tokens=SYNTHETIC_TOKENS, seed=request.settings.seed)
    return shard_corpus(path) if is_tokens(path) else byte_corpus(path)


class _TrainingRun:
    """One rank's run; ``reports`` says that it prints and writes metrics."""

    def __init__(self, request: TrainingRequest, session: Session, *, reports: bool) -> None:
        self.request, self.session, self.reports = request, session, reports
        self.out = request.out
        self.started_at = 0
        self.recent: deque[MeasuredStep] = deque(maxlen=RECENT)
        self.predicted: Counter[Issue] | None = None
        self.time: PredictedTime | None = None
        if request.options.compare:
            model, recipe, stage = request.job.model, request.job.recipe, session.grid.coordinates["pipeline"]
            self.predicted = step_collectives(model, recipe, request.layout, stage=stage)
            self.time = _predicted_time(request)
        self.equal = True
        self.peak_flops = _peak_flops(request, session.grid)
        self.trace: Any = None
        self.saving = CheckpointSaving(background=request.options.background_save, keep=request.options.keep)
        self.stood: dict[str, float] = {}
        """How long training stood still for a checkpoint before the step."""

    def _say(self, words: str) -> None:
        if self.reports and not self.request.quiet:
            print(words, flush=True)

    def run(self) -> None:
        """All steps that are left, then the last checkpoint, the trace and the comparison."""
        self._resume()
        if self.session.steps_done >= self.request.options.steps:
            raise BadInput(
                f"{counted(self.session.steps_done, 'step')} already done",
                where="--steps",
                remedy=f"ask for more than {self.session.steps_done}",
            )
        self.started_at = self.session.steps_done
        self._introduce()
        with self._records() as tellers:
            start = self.request.start
            grid = self.session.grid
            begun = None if start is None else start.begin(grid.rank, grid.device, self._say)
            while self.session.steps_done < self.request.options.steps:
                self._step(tellers)
            self.saving.wait()
        if start is not None:
            self._tell(start, begun)
        self._write_trace()
        warm = self.started_at + WARM_UP
        steady = [step for step in self.recent if step.step > warm] or list(self.recent)
        self._say(run_verdict(steady))
        if self.request.options.compare:
            self._compare(steady)

    def _tell(self, start: JobStart, begun: dict[str, Any] | None) -> None:
        """Write what every rank of an arranged job saw."""
        rows = of_every_rank(begun)
        if self.reports and self.request.seen is not None:
            document = {"schema": "weft.arranged-run/1", "job": start.job, "ranks": rows}
            write_text(self.request.seen, json.dumps(document, indent=1) + "\n")

    def _step(self, tellers: Sequence[Tell]) -> None:
        last = self.session.steps_done + 1 == self.request.options.steps
        options = self.request.options
        timed = options.compare or options.profile is not None
        with self._traced(last=last), self.session.machine.collectives.logged(timed=timed) as log:
            result = self.session.step()
        if self.stood:
            self.stood["checkpoint_s"] += self.saving.held_s
        measured = self._measured(result, log)
        if options.eval_every is not None and (last or measured.step % options.eval_every == 0):
            loss = self.session.evaluate(options.eval_batches)
            measured = replace(measured, eval_loss=loss, perplexity=exp(min(loss, 700.0)))
        self.recent.append(measured)
        if self.predicted is not None:
            self.equal = self.equal and Counter(measured.issued) == self.predicted
        self._say(step_line(measured, options.steps))
        if measured.eval_loss is not None:
            self._say(eval_line(measured))
        record = step_record(measured) | self.stood
        for tell in tellers:
            tell(record)
        done, every = self.session.steps_done, options.save_every
        self.stood = {}
        if self.out is not None and (last or (every and done % every == 0)):
            self.stood = {"checkpoint_s": self._save(self.out)}

    def _measured(self, record: StepRecord, log: Log) -> MeasuredStep:
        mfu = None
        if self.peak_flops is not None:
            work = model_flops(self.request.job.model, self.request.job.recipe)
            mfu = work / (record.seconds * self.peak_flops * self.request.layout.world)
        known = asdict(record) | {"mfu": mfu}
        return MeasuredStep(**known, issued=tuple(log.issued), exposed_s=log.exposed_s())

    @contextmanager
    def _records(self) -> Iterator[list[Tell]]:
        """What takes the record of each step: the file of metrics, and TensorBoard's."""
        path, folder = self.request.metrics_path, self.request.options.tensorboard
        with ExitStack() as stack:
            tellers: list[Tell] = []
            if self.reports and path is not None:
                tellers.append(partial(write_record, stack.enter_context(metrics_file(path, self.started_at))))
            if self.reports and folder is not None:
                tellers.append(stack.enter_context(tensorboard_log(folder, self.started_at)))
            yield tellers

    @contextmanager
    def _traced(self, *, last: bool) -> Iterator[None]:
        """Trace the last step of the rank that reports, with the shapes of operators."""
        if self.request.options.profile is None or not (last and self.reports):
            yield
            return
        from torch.profiler import ProfilerActivity, profile, record_function

        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.request.device == "cuda")
        name = f"{PROFILED}{self.session.steps_done + 1}"
        with profile(activities=activities, record_shapes=True) as self.trace, record_function(name):
            yield

    def _write_trace(self) -> None:
        if self.trace is None:
            return
        path = str(self.request.options.profile)
        try:
            self.trace.export_chrome_trace(path)
            Path(path).stat()
        except (OSError, RuntimeError) as error:
            raise BadInput(f"cannot be written: {error}", where=path) from None
        self._say(f"Trace of step {self.session.steps_done}: {path} (open in ui.perfetto.dev)")

    def _save(self, out: Path) -> float:
        """Save a checkpoint; how long training stood still for it, in seconds."""
        folder = step_folder(out, self.session.steps_done)
        seconds = self.session.save(folder, self.saving)
        still = f" in the background (training paused {format_seconds(seconds)})"
        self._say(f"Saving {folder}{still}" if self.request.options.background_save else f"Saved {folder}")
        return seconds

    def _resume(self) -> None:
        """Go on from the checkpoint that was asked for, if one was."""
        if self.request.resume:
            assert self.out is not None
            found = load_latest(self.session, self.out)
        elif self.request.options.resume_from is not None:
            source = Path(self.request.options.resume_from)
            check_checkpoint(source)
            found = Resumed(source=source, state=self.session.load(source))
        else:
            return
        if self.out is not None:
            check_free(self.out, self.session.steps_done)
        for problem in found.skipped:
            self._say(f"Skipped a damaged checkpoint: {problem}")
        self._say(f"Resumed from {found.source}")
        for change in self.request.settings.adam.changes_from(found.state.adam):
            self._say(f"Changed since the checkpoint: {change}")

    def _introduce(self) -> None:
        request, model, recipe = self.request, self.request.job.model, self.request.job.recipe
        layout = request.layout
        ranks, micro_batches = counted(layout.world, "rank"), counted(self.session.micro_batches, "micro-batch")
        self._say(
            f"Training {model.name} ({model.parameters:,} parameters) on {ranks} ({request.device}), "
            f"{recipe.global_batch:,} x {recipe.sequence:,} tokens per step, {recipe.precision}"
        )
        self._say(f"Layout: {format_degrees(layout)}, {micro_batches} of {layout.micro_batch}")
        best = "; its lowest loss is 1.21" if model.vocab >= LARGE_VOCABULARY else ""
        self._say(f"Data: {request.options.data or f'synthetic (a Markov chain{best})'}")
        for note in (*request.job.defaults, *request.assumed, *_notes(request)):
            self._say(f"Assumed: {note}")
        self._say(step_header())

    def _compare(self, steady: Sequence[MeasuredStep]) -> None:
        """Measured beside predicted; every rank checks its own collectives."""
        request, grid = self.request, self.session.grid
        assert self.predicted is not None
        agree = torch.tensor([float(self.equal)], device=grid.device)
        self.session.machine.collectives.all_reduce(agree, *GRID_AXES).wait()
        if self.reports and not request.quiet:
            print_blocks(
                comparison_view(
                    predicted=self.predicted,
                    steady=steady,
                    ranks_equal=int(agree),
                    ranks=request.layout.world,
                    time=self.time,
                )
            )
        if agree < request.layout.world:
            world = request.layout.world
            shown = f"{world - int(agree)} of {counted(world, 'rank')}"
            raise Differs(f"collectives differ from the prediction on {shown}")


def _notes(request: TrainingRequest) -> Iterator[str]:
    recipe, layout = request.job.recipe, request.layout
    if recipe.dropout:
        yield "no dropout (the recipe has it, the runtime does not)"
    if recipe.precision == "tf32" and request.device == "cpu":
        yield "fp32 products (tf32 is for GPUs)"
    if recipe.attention == "unfused":
        yield "PyTorch's fused attention (the recipe's is unfused)"
    if request.planned_for and request.cluster is None:
        yield f"times are not compared with the plan's, which are for {request.planned_for}"
    elif request.planned_for and request.described is None:
        yield f"times are compared with the plan's, which are for {request.planned_for}"
    if layout.overlap_tensor == "full":
        yield "tensor collectives overlap in the backward pass only (overlap_tensor=full is not built)"


def _peak_flops(request: TrainingRequest, grid: Grid) -> float | None:
    """Peak of one rank's accelerator, where it is known: the GPU's, else that of the described machine."""
    chip = None
    if grid.device.type == "cuda":
        chip = accelerator_of(torch.cuda.get_device_name(grid.device))
    if chip is None and request.described is not None:
        chip = request.described.accelerator
    return peak_flops(chip, request.job.recipe.precision)


def _predicted_time(request: TrainingRequest) -> PredictedTime | None:
    """The step as ``weft.simulation.step`` predicts it; where that does not (a pipeline, experts, a cut sequence), by
    ``weft estimate`` as a whole."""
    if request.cluster is None:
        return None
    from weft.simulation.step import predict_on

    try:
        step = predict_on(request.job, request.cluster, request.layout, request.calibration)
    except Unsupported:
        from weft.cluster import calibration
        from weft.estimation import estimate, of_runtime

        own = of_runtime(request.calibration or calibration(request.cluster.accelerator.name))
        found = estimate(request.job, request.cluster, [request.layout], own)[0]
        return PredictedTime(seconds=found.iteration_s, exposed_s=None)
    return PredictedTime(seconds=step.seconds, exposed_s=step.exposed_s)
