"""A training run of one rank: model, optimizer and data, step by step.

``RunState`` is what a run writes into its checkpoints beside the tensors, and takes back from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
from torch import Tensor

from weft.checkpoints import last_checkpoint, set_aside, whole_folders
from weft.codec import Range, decode, encode
from weft.errors import BadInput
from weft.files import refused
from weft.layout.check import check_trainable
from weft.layout.measured import StepRecord
from weft.layout.mesh import ROWS
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.runtime.checkpoints import checkpoint
from weft.runtime.checkpoints.checkpoint import Damaged
from weft.runtime.checkpoints.hub import HubWeights
from weft.runtime.core.collectives import from_first_rank
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import check_replicas, holdings, initialize
from weft.runtime.layers.attention import own_tokens
from weft.runtime.layers.blocks import compile_blocks
from weft.runtime.layers.decoder import Details
from weft.runtime.run.data import Batches, Corpus, rows_of
from weft.runtime.run.flat import Flat
from weft.runtime.run.folder import CheckpointSaving
from weft.runtime.run.optimizer import AdamSettings, Optimizer
from weft.runtime.run.pipeline import StepPasses, build_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run needs beyond its job and layout.

    ``weights`` is a folder of the Hugging Face hub with the values to begin with; ``compiled`` is the backend of
    ``torch.compile`` for blocks ("inductor").
    """

    seed: int = 0
    adam: AdamSettings = field(default_factory=AdamSettings)
    details: Details = field(default_factory=Details)
    precision: Precision = field(default_factory=Precision)
    weights: str | None = None
    compiled: str | None = None


def micro_batches_of(job: Job, layout: Layout) -> int:
    """Micro-batches of one rank and step."""
    return job.recipe.global_batch // (layout.dp * layout.micro_batch)


class Session:
    """One rank's training run.

    Args:
        held_out: what ``evaluate`` is of.

    Raises:
        Unsupported: the runtime lacks something that the model or the layout asks for.
        BadInput: the layout breaks a rule of ``weft.layout.check``, or the corpus does not suit the model.
    """

    def __init__(
        self, job: Job, grid: Grid, settings: RunSettings, corpus: Corpus, held_out: Corpus | None = None
    ) -> None:
        check_trainable(job, grid.layout)
        self.job, self.grid, self.settings = job, grid, settings
        self._batches = self._batches_of(corpus)
        self._held_out = None if held_out is None else self._batches_of(held_out)
        self.micro_batches = micro_batches_of(job, grid.layout)
        self._ahead: dict[int, tuple[Tensor, Tensor]] = {}
        """The batch of the next step, by its number."""
        self._saving: CheckpointSaving | None = None
        """What may still copy values."""
        self.machine = Machine.of(grid, precision=settings.precision)
        self.stages = build_stages(self.machine, job.model, sequence=job.recipe.sequence, details=settings.details)
        held = holdings(self.stages)
        if settings.weights is None:
            initialize(held, job.model, settings.seed)
        else:
            whole = HubWeights(settings.weights, job.model)
            for holding in held:
                holding.fill(whole)
        self.flat = Flat(self.machine, self.stages, held)
        self.optimizer = Optimizer(self.flat, settings.adam)
        if settings.compiled is not None:
            for stage in self.stages:
                compile_blocks(stage, self.machine, settings.compiled)
        self._passes = StepPasses(
            self.machine,
            self.stages,
            micro_batch=grid.layout.micro_batch,
            micro_batches=self.micro_batches,
            tokens=job.recipe.tokens,
        )

    def _batches_of(self, corpus: Corpus) -> Batches:
        recipe = self.job.recipe
        return Batches(
            corpus,
            sequence=recipe.sequence,
            rows=recipe.global_batch,
            seed=self.settings.seed,
            vocabulary=self.job.model.vocab,
        )

    @property
    def steps_done(self) -> int:
        return self.optimizer.updates

    def step(self) -> StepRecord:
        """Train on the next global batch; mean loss over all tokens, gradient norm before clipping, seconds on this
        rank.

        Raises:
            BadInput: before anything is updated: the loss or the norm of the gradients is not finite.
        """
        start, number = perf_counter(), self.steps_done
        inputs, targets = self._ahead.pop(number) if number in self._ahead else self._batch(number)
        with self.flat.step(self.micro_batches, loss="sum"):
            loss = self._passes.run(inputs, targets)
        if self.grid.device.type != "cpu":  # while it computes what is queued
            self._ahead = {number + 1: self._batch(number + 1)}
        if self._passes.has_head:
            self.machine.collectives.all_reduce(loss, *ROWS).wait()
        if self._saving is not None:
            self._saving.hold()
        norm = float(self.optimizer.step(loss))
        seconds = perf_counter() - start
        return StepRecord(
            step=number + 1,
            loss=float(loss),
            gradient_norm=norm,
            learning_rate=self.settings.adam.rate_at(number),
            seconds=seconds,
            tokens_per_s=self.job.recipe.tokens / seconds,
            mfu=None,
        )

    def evaluate(self, batches: int) -> float:
        """Mean loss of the first global batches of what was held out, the same ones each time; nothing is updated.

        It is on every rank.
        """
        assert self._held_out is not None
        total = torch.zeros(1, dtype=self.machine.precision.wide, device=self.grid.device)
        for number in range(batches):
            total += self._passes.run(*self._batch(number, self._held_out), trains=False)
        self.machine.collectives.all_reduce(total, *ROWS).wait()
        if self.grid.size("pipeline") > 1:  # the last stage alone has it
            stage = "x", "y", *ROWS
            self.machine.collectives.all_reduce(total, *stage, "pipeline").wait()
            total /= self.grid.size(*stage)
        return float(total) / batches

    def _batch(self, number: int, batches: Batches | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this rank in a step, on their way to its device."""
        rows = rows_of(self.grid, self.micro_batches * self.grid.layout.micro_batch)
        own = own_tokens(self.grid, self.job.recipe.sequence)
        inputs, targets = (part[:, own] for part in (batches or self._batches).batch(number, rows))
        if self.grid.device.type != "cpu":
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return inputs.to(self.grid.device, non_blocking=True), targets.to(self.grid.device, non_blocking=True)

    def save(self, folder: Path, saving: CheckpointSaving | None = None) -> float:
        """Write a checkpoint that loads on any grid; how long the run stood still for it, in seconds.

        Raises:
            Diverged: on every rank, before anything is written: copies of a parameter differ.
            BadInput: on every rank: it cannot be written.
        """
        start = perf_counter()
        check_replicas(self.machine, self.flat.holdings)
        checked_s = perf_counter() - start
        self._saving = saving
        return checked_s + (saving or CheckpointSaving()).save(folder, self.optimizer.pieces(), encode(self._state()))

    def load(self, folder: Path) -> RunState:
        """Go on from a checkpoint of any grid; the optimizer's settings are those of this run.

        Raises:
            BadInput: not a checkpoint of this model and precision, damaged, or trained with another seed,
                batch or data.
        """
        where, own = str(folder), self._state()

        def accept(table: Mapping[str, Any]) -> None:
            RunState.read(table, where).check_goes_on(own, where)

        result = RunState.read(checkpoint.load(folder, self.optimizer.pieces(), accept), where)
        self.optimizer.restored(result.step)
        return result

    def _state(self) -> RunState:
        recipe, precision = self.job.recipe, self.settings.precision
        return RunState(
            step=self.steps_done,
            seed=self.settings.seed,
            global_batch=recipe.global_batch,
            sequence=recipe.sequence,
            model=self.job.model.name,
            data=self._batches.corpus.fingerprint(),
            details=asdict(self.settings.details),
            precision={name: str(value).removeprefix("torch.") for name, value in asdict(precision).items()},
            adam=self.settings.adam,
        )


_Number = Annotated[int, Range(0, 2**53, below=True)]


_OPTIONS = {
    "seed": "--seed",
    "global_batch": "--batch",
    "sequence": "--sequence",
    "model": "MODEL",
    "data": "--data",
    "precision": "--precision",
    "precision.reduce": "--reduce-bf16",
}
"""The options of ``weft train`` that set the fields of a state; a part of a field may have its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run's state.  All but ``step`` (steps done) and ``adam`` must be the same when the run goes on."""

    step: _Number
    seed: int
    global_batch: _Number
    sequence: _Number
    model: str
    data: str
    details: dict[str, str | int | float | bool | None]
    precision: dict[str, str]
    adam: AdamSettings

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> RunState:
        """The state of a checkpoint.

        Raises:
            BadInput: a field is missing or wrong.
        """
        state = decode(cls, {one.name: table[one.name] for one in fields(cls) if one.name in table}, where)
        for one in fields(AdamSettings):
            if one.name not in table["adam"]:
                raise BadInput("is missing", where=f"{where}: adam.{one.name}", remedy="add it")
        return state

    def check_goes_on(self, run: RunState, where: str) -> None:
        """Refuse to go on with another run.

        Raises:
            BadInput: a field that must be the same differs.
        """
        there, here = dict(self._fixed()), dict(run._fixed())
        for name in {**there, **here}:
            if there.get(name) != here.get(name):
                option = _OPTIONS.get(name) or _OPTIONS.get(name.partition(".")[0], name)
                problem = f"was trained with {name} = {there.get(name)}, this run has {here.get(name)}"
                if option == "--data":
                    problem = "was trained on other data (files, weights, or what --eval-every holds out)"
                raise BadInput(problem, where=where, remedy=f"give the same {option}, or start a new run")

    def _fixed(self) -> Iterator[tuple[str, Any]]:
        for name, value in encode(self).items():
            if name in ("step", "adam"):
                continue
            if isinstance(value, dict):
                yield from ((f"{name}.{inner}", entry) for inner, entry in value.items())
            else:
                yield name, value


# Which checkpoint --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where a run goes on; ``skipped`` are damaged checkpoints, each with what is wrong in words."""

    source: Path
    state: RunState
    skipped: tuple[str, ...] = ()


def load_latest(session: Session, root: Path) -> Resumed:
    """Go on from the newest checkpoint of a folder that is not damaged; every rank calls it.

    The first rank chooses; damaged ones that are newer are renamed to ``NAME.damaged``.

    Raises:
        BadInput: on every rank: there is none, all are damaged, or one is of another run.
    """
    skipped: list[str] = []
    damaged: list[Path] = []
    for source in from_first_rank(lambda: _checkpoints(root)):
        try:
            state = session.load(source)
        except Damaged as error:
            damaged.append(source)
            skipped.append(str(error.what if error.where is None else f"{error.where}: {error.what}"))
            continue
        from_first_rank(lambda: _set_aside(damaged))
        return Resumed(source=source, state=state, skipped=tuple(skipped))
    raise BadInput(
        f"every checkpoint is damaged; the newest: {skipped[0]}",
        where=str(root),
        remedy="start a new run in another folder",
    )


def _checkpoints(root: Path) -> list[Path]:
    """Newest first."""
    last_checkpoint(root)
    return whole_folders(root)[::-1]


def _set_aside(damaged: list[Path]) -> None:
    for folder in damaged:
        with refused("cannot be renamed", str(folder)):
            set_aside(folder)
