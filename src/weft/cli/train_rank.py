"""What each rank of ``weft train`` does: steps, metrics, checkpoints, and the comparison at the end."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click
import torch

from weft.cluster import Calibration, Cluster
from weft.cluster.catalogue import accelerator, accelerator_names
from weft.errors import BadInput
from weft.layout import Layout
from weft.layout.check import REMEDIES, explain
from weft.layout.iteration import Issue, StepOptions, check_runnable, step_collectives
from weft.model import Job
from weft.model.flops import model_flops
from weft.report.training_run import (
    Measured,
    PredictedTime,
    comparison,
    step_header,
    step_line,
    step_record,
)
from weft.runtime import checkpoint
from weft.runtime.collectives import Log
from weft.runtime.data import Corpus, byte_corpus, markov_corpus, token_corpus
from weft.runtime.grid import Grid
from weft.runtime.session import Session, Settings, StepResult

SYNTHETIC_TOKENS = 1 << 20
"""Tokens of the synthetic text."""
RECENT = 100
"""Last steps whose median times are compared."""
WARM_UP = 2
"""First steps that a comparison leaves out: nothing is gathered ahead in the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A training run as the command line asks for it."""

    job: Job
    layout: Layout
    device: str
    settings: Settings
    cluster: Cluster | None
    planned_for: str | None
    calibration: Calibration | None
    data: str | None
    tokenizer: str | None
    steps: int
    out: str | None
    save_every: int | None
    resume: bool
    metrics: str | None
    profile: str | None
    compare: bool


def train_rank(request: Request) -> None:
    """Train on this rank; one rank of the last stage reports."""
    device = (
        torch.device("cuda", torch.cuda.current_device()) if request.device == "cuda" else torch.device("cpu")
    )
    grid = Grid.of(request.layout, device)
    check_runnable(request.job.model, request.layout)
    if (broken := explain(request.job, request.layout.world, request.layout)) is not None:
        raise BadInput(broken.reason, where="layout", remedy=REMEDIES[broken.code])
    session = Session(request.job, grid, request.settings, _corpus(request))
    reports = all(
        grid.coordinates[axis] == (grid.size(axis) - 1 if axis == "pipeline" else 0)
        for axis in ("x", "y", "z", "data", "pipeline")
    )
    _Run(request, session, reports=reports).run()


def _corpus(request: Request) -> Corpus:
    if request.data is None:
        return markov_corpus(request.job.model.vocab, tokens=SYNTHETIC_TOKENS, seed=request.settings.seed)
    if request.tokenizer is None:
        return byte_corpus(request.data)
    return token_corpus(request.data, request.tokenizer)


class _Run:
    """One rank's run; ``reports`` says that it prints and writes metrics."""

    def __init__(self, request: Request, session: Session, *, reports: bool) -> None:
        self.request, self.session, self.reports = request, session, reports
        self.out = Path(request.out) if request.out else None
        self.started_at = 0
        self.recent: deque[Measured] = deque(maxlen=RECENT)
        self.predicted = self._predicted() if request.compare else None
        self.time = _predicted_time(request) if request.compare else None
        self.equal = True
        self.peak_flops = _peak_flops(request, session.grid)

    def run(self) -> None:
        """All steps that are left, then the last checkpoint and the comparison."""
        if self.request.resume:
            self._resume()
        elif self.out is not None and checkpoint.latest(self.out) is not None:
            raise BadInput(
                "holds checkpoints already", where=str(self.out), remedy="give --resume, or another folder"
            )
        if self.session.steps_done >= self.request.steps:
            raise BadInput(
                f"{self.session.steps_done} steps are done already",
                where="--steps",
                remedy=f"ask for more than {self.session.steps_done}",
            )
        self.started_at = self.session.steps_done
        self._introduce()
        with self._metrics() as metrics:
            while self.session.steps_done < self.request.steps:
                self._step(metrics)
        if self.out is not None:
            self._save(self.out)
        if self.request.compare:
            self._compare()

    def _predicted(self) -> Counter[Issue]:
        request = self.request
        return step_collectives(
            request.job.model,
            request.job.recipe,
            request.layout,
            stage=self.session.grid.coordinates["pipeline"],
            options=_options(request),
        )

    def _step(self, metrics: IO[str] | None) -> None:
        last = self.session.steps_done + 1 == self.request.steps
        profiled = self._profiled() if last and self.request.profile and self.reports else nullcontext()
        with profiled, self.session.machine.collectives.logged() as log:
            result = self.session.step()
        measured = self._measured(result, log)
        self.recent.append(measured)
        if self.predicted is not None:
            self.equal = self.equal and Counter(measured.issued) == self.predicted
        if self.reports:
            click.echo(step_line(measured, self.request.steps))
            if metrics is not None:
                metrics.write(json.dumps(step_record(measured)) + "\n")
                metrics.flush()
        every = self.request.save_every
        if every and self.out is not None and self.session.steps_done % every == 0 and not last:
            self._save(self.out)

    def _measured(self, result: StepResult, log: Log) -> Measured:
        tokens_per_s = self.request.job.recipe.tokens / result.seconds
        mfu = None
        if self.peak_flops is not None:
            work = model_flops(self.request.job.model, self.request.job.recipe)
            mfu = work / (result.seconds * self.peak_flops * self.request.layout.world)
        return Measured(
            step=result.step + 1,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            learning_rate=self.request.settings.adam.rate_at(result.step),
            seconds=result.seconds,
            tokens_per_s=tokens_per_s,
            mfu=mfu,
            issued=tuple(log.issued),
            exposed_s=log.exposed_s(),
        )

    @contextmanager
    def _metrics(self) -> Iterator[IO[str] | None]:
        path = self.request.metrics or (str(self.out / "metrics.jsonl") if self.out else None)
        if path is None or not self.reports:
            yield None
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a" if self.request.resume else "w", encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise BadInput(f"cannot be written: {error.strerror}", where=path) from None

    @contextmanager
    def _profiled(self) -> Iterator[None]:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.session.grid.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as profiler:
            yield
        assert self.request.profile is not None
        try:
            profiler.export_chrome_trace(self.request.profile)
        except (OSError, RuntimeError) as error:
            raise BadInput(f"cannot be written: {error}", where=self.request.profile) from None
        click.echo(f"trace of step {self.request.steps}: {self.request.profile} (open it in ui.perfetto.dev)")

    def _save(self, out: Path) -> None:
        folder = checkpoint.step_folder(out, self.session.steps_done)
        self.session.save(folder)
        if self.reports:
            click.echo(f"saved {folder}")

    def _resume(self) -> None:
        assert self.out is not None
        found = checkpoint.latest(self.out)
        if found is None:
            raise BadInput("holds no checkpoint", where=str(self.out), remedy="drop --resume to begin anew")
        self.session.load(found)
        if self.reports:
            click.echo(f"resumed from {found}")

    def _introduce(self) -> None:
        if not self.reports:
            return
        request, model, recipe = self.request, self.request.job.model, self.request.job.recipe
        layout = request.layout
        grid = " ".join(f"{axis}={getattr(layout, axis)}" for axis in ("x", "y", "z", "data", "pipeline"))
        click.echo(
            f"{model.name}: {model.parameters:,} parameters, {recipe.global_batch} x {recipe.sequence} "
            f"tokens a step, {recipe.precision}, ranks: {layout.world} ({request.device})"
        )
        click.echo(f"grid: {grid}, {self.session.micro_batches} micro-batches of {layout.micro_batch}")
        click.echo(f"data: {request.data or 'synthetic (a Markov chain; a loss of 1.21 is its best)'}")
        for note in (*request.job.defaults, *_notes(request)):
            click.echo(f"assumed: {note}")
        click.echo(step_header())

    def _compare(self) -> None:
        """Measured beside predicted; every rank checks its own collectives."""
        request, grid = self.request, self.session.grid
        assert self.predicted is not None
        warm = self.started_at + WARM_UP
        agree = torch.tensor([float(self.equal)], device=grid.device)
        self.session.machine.collectives.all_reduce(agree, "x", "y", "z", "data", "pipeline").wait()
        if self.reports:
            from weft.cli.options import console

            comparison(
                console(),
                predicted=self.predicted,
                steady=[step for step in self.recent if step.step > warm] or list(self.recent),
                ranks_equal=int(agree),
                ranks=request.layout.world,
                time=self.time,
            )


def _notes(request: Request) -> Iterator[str]:
    recipe, layout = request.job.recipe, request.layout
    if recipe.dropout:
        yield "no dropout (the recipe has it, the runtime does not)"
    if recipe.attention == "unfused":
        yield "PyTorch's fused attention (the recipe's is unfused)"
    if request.planned_for and request.cluster is None:
        yield f"times are not compared with the plan's, which are for {request.planned_for}"
    if layout.overlap_tensor == "full":
        yield "tensor collectives overlap in the backward pass only (overlap_tensor=full is not built)"


def _peak_flops(request: Request, grid: Grid) -> float | None:
    """Peak of one rank's accelerator, where it is known."""
    if request.cluster is not None:
        return request.cluster.accelerator.peak_flops(request.job.recipe.precision)
    if grid.device.type != "cuda":
        return None
    device = torch.cuda.get_device_name(grid.device).lower().replace(" ", "-")
    known = [name for name in accelerator_names() if name.split("-")[0] in device.split("-")]
    return accelerator(known[0]).peak_flops(request.job.recipe.precision) if known else None


def _predicted_time(request: Request) -> PredictedTime | None:
    """The step as ``weft.simulate.step`` predicts it; a pipeline's as a whole, by ``weft estimate``."""
    if request.cluster is None:
        return None
    if request.layout.pipeline > 1:
        from weft.estimate import estimate

        found = estimate(request.job, request.cluster, [request.layout], request.calibration)[0]
        return PredictedTime(seconds=found.iteration_s, exposed_s=None)
    from weft.simulate.step import predict_on

    options = _options(request)
    step = predict_on(request.job, request.cluster, request.layout, request.calibration, options=options)
    return PredictedTime(seconds=step.seconds, exposed_s=step.exposed_s)


def _options(request: Request) -> StepOptions:
    switches = request.settings.switches
    return StepOptions(weight_cache=switches is not None and switches.weight_cache)
