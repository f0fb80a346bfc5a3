"""One call from a model to its training step on a grid of ranks: ``weft.runtime.prepare``."""

from __future__ import annotations

import atexit
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from warnings import warn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import BadInput, InDoubt, UnknownName, Unsupported
from weft.launched import adopt_launcher, launched, launched_world, variable
from weft.layout.check import check_trainable
from weft.layout.spec import Layout
from weft.layout.stages import split_layers, stage_of
from weft.layout.text import format_degrees, parse_layout
from weft.model.job import Job
from weft.model.resolve import resolve_job
from weft.runtime.checkpoints import checkpoint
from weft.runtime.convert.parallelize import (
    GPT2_PLAN,
    LLAMA_PLAN,
    check_names,
    easy_plan,
    gather_state_dict,
    load_state_dict,
    matched,
    parallelize,
)
from weft.runtime.convert.roles import Easy, Gathered, Head, Role, Whole, is_layer, undivided
from weft.runtime.core.beneath import tree_leaves, tree_map_only
from weft.runtime.core.grid import GRID_AXES, Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import EVERY_ROW, differing, holdings, initialize
from weft.runtime.layers.attention import own_tokens
from weft.runtime.layers.blocks import blocks_of, check_recomputable, compile_blocks
from weft.runtime.layers.vocabulary import IGNORED, cross_entropy
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer, check_finite, torch_optimizer
from weft.runtime.run.pipeline import StepPasses, build_stages
from weft.runtime.run.ranks import leave

LossFunction = Callable[[Any, Any], Tensor]
"""The mean loss over rows, of what the model gives for them and their targets."""
OptimizerChoice = AdamSettings | type[torch.optim.Optimizer] | partial[torch.optim.Optimizer]
MOST_DIMENSIONS = 8
"""Of what stages of a model of anyone's pass on."""
_PASSED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SEQUENCES = ("z", "data")
"""Axes whose ranks take different rows of a batch, where features are split over x and y."""
PLANS: Mapping[str, Mapping[str, Role]] = {"llama": LLAMA_PLAN, "gpt2": GPT2_PLAN}
"""Plans of roles by name, for models of transformers."""


def prepare(
    model: nn.Module | Job | str,
    layout: str | Layout,
    *,
    optimizer: OptimizerChoice | None = None,
    loss: Literal["mean"] | LossFunction = "mean",
    plan: Mapping[str, Role] | str | None = None,
    precision: str | None = None,
    compile: bool = False,  # noqa: A002 (as PyTorch calls it)
) -> tuple[nn.Module, Step]:
    """This rank's part of a model, and its training step; every rank calls it with the same model.

    Under torchrun it joins the process group, unless the script has; one process needs none.

    Args:
        model: any ``nn.Module``, whose parameters are cut in place; or the name of a built-in model (or its job),
            whose weights are drawn by the first rank's ``torch.manual_seed``.  A pipeline cuts an ``nn.Sequential``:
            each stage has as many of its modules, in order, and passes one tensor to the next.
        layout: degrees, as "tp=2,dp=4"; ``mbs`` is the rows of a micro-batch, by default all rows of a rank (half a
            stage's with a pipeline), and dp takes the ranks that the others leave.
        optimizer: ``AdamSettings``, or a class of torch that updates each element by itself, with its options in a
            ``functools.partial``; gradients are clipped as ``AdamSettings.clip`` says, and not with one of torch.
        loss: "mean" is the cross-entropy of logits (the model's output or its ``logits``), averaged over all targets
            that are not -100; a function gives the mean over its rows, of which each counts alike.
        plan: roles by the names of modules, "llama" or "gpt2".  None, or ``Whole()`` alone, is easy mode: every linear
            layer and convolution that can be divided is cut, all else is whole on every rank.
        precision: fp32 by default, fp64 where the model is; a built-in model's own.
        compile: each block of the model is one graph of ``torch.compile``.

    Returns:
        The model, and the step: ``step((inputs, targets))`` trains on a batch and returns its loss.

    Raises:
        BadInput, Unsupported: the layout, the plan or a module cannot be trained; the message names the module.
    """
    _join()
    degrees, micro_batch = _layout_of(layout)
    if not callable(loss) and loss != "mean":
        raise BadInput(f"loss = {loss!r}", where="prepare", remedy='give "mean", or a function of output and targets')
    if not isinstance(model, nn.Module):
        if callable(loss) or plan is not None:
            raise BadInput(
                "a built-in model has its own loss and plan", where="prepare", remedy='leave plan out, and loss "mean"'
            )
        return _built_in(model, degrees, micro_batch, optimizer, precision, compile)
    if precision is None:
        precision = "fp64" if any(parameter.dtype == torch.float64 for parameter in model.parameters()) else "fp32"
    machine = Machine.of(Grid.of(degrees, _device()), precision=Precision.of(precision))
    roles = _roles(model, machine, plan)
    easy = all(isinstance(role, Easy | Whole) for role in roles.values())
    if degrees.pipeline > 1:
        whole = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
        stages = _cut(model, machine, roles, easy=easy, compiled=compile)
        return stages, Step(
            machine, stages, _OwnStages(machine, stages, loss, whole), optimizer, EVERY_ROW, micro_batch
        )
    vocabulary = _vocabulary(model, roles)
    if compile and not easy and vocabulary is None:
        raise Unsupported(
            "without a Head() in the plan nothing tells how the output of compiled blocks is split",
            where="compile",
            remedy="leave compile or the plan out",
        )
    model = parallelize(model, machine, roles)
    if not easy and vocabulary is None:
        gathered = Gathered(machine)
        model.register_forward_hook(lambda _, given, out: gathered.take(model.training, out), prepend=True)
    if compile:
        compile_blocks(model, machine)
    passes = _Passes(model, machine, loss, vocabulary)
    return model, Step(
        machine, nn.ModuleList([model]), passes, optimizer, EVERY_ROW if easy else SEQUENCES, micro_batch
    )


class Step:
    """The training step of a model that ``prepare`` made.

    A batch is ``(inputs, targets)``: every rank gives the same whole one and computes its own rows.  Tensors have the
    rows as their first dimension; inputs may be a tensor, a tuple (positional) or a mapping (by name).

    Attributes:
        machine: this rank's grid and collectives.
        optimizer: what updates; one of torch takes schedulers.
        steps: updates so far.
    """

    def __init__(
        self,
        machine: Machine,
        modules: nn.ModuleList,
        passes: _Passes | _OwnStages | _Stages,
        optimizer: OptimizerChoice | None,
        rows_over: tuple[str, ...],
        micro_batch: int | None,
    ) -> None:
        self.machine, self.steps = machine, 0
        self._modules, self._passes, self._rows_over, self._micro_batch = modules, passes, rows_over, micro_batch
        self._flat = Flat(machine, modules, holdings(modules[0] if len(modules) == 1 else modules))
        self.optimizer = _optimizer(self._flat, optimizer)

    def __call__(self, batch: tuple[Any, Any]) -> float:
        """Train on a batch; its loss before the update, on every rank.

        Raises:
            BadInput: before anything is updated: ranks give different batches, the rows cannot be divided, or the
                loss or the norm of the gradients is not finite.
        """
        rows = self._own(batch)
        with self._flat.step(rows.micro_batches, loss=self._passes.reduction):
            total = self._passes.run(rows, trains=True)
        total = self._summed(total)
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.step(total)
        else:
            check_finite("the loss", float(total), self.steps)
            self.optimizer.step()
        self.steps += 1
        return float(total)

    def evaluate(self, batch: tuple[Any, Any]) -> float:
        """The loss of a batch with modules in evaluation mode, on every rank; nothing is updated."""
        rows, trains = self._own(batch), self._modules.training
        self._modules.eval()
        try:
            with torch.no_grad():
                return float(self._summed(self._passes.run(rows, trains=False)))
        finally:
            self._modules.train(trains)

    def state_dict(self, rank: int | None = None) -> dict[str, Tensor]:
        """The plain model's state dictionary, whole and on the CPU; every rank calls it.

        Args:
            rank: keep it on this rank alone; others get an empty dictionary.

        Raises:
            Unsupported: a built-in model.
        """
        if isinstance(self._passes, _Stages):
            raise Unsupported(
                "a built-in model has no plain one",
                where="state_dict",
                remedy="save() it, and convert that by weft train export",
            )
        if isinstance(self._passes, _OwnStages):
            return self._passes.joined(gather_state_dict(self._modules, self._flat), rank)
        return gather_state_dict(self._modules, self._flat, rank=rank)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take whole tensors, as the plain model names them, for all parameters and persistent buffers.

        Parameters of a model on the meta device are NaN until then; every rank calls it.
        """
        if isinstance(self._passes, _OwnStages):
            state = self._passes.own(state)
        load_state_dict(self._modules, state)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a checkpoint that ``load`` takes on any other layout; every rank calls it."""
        checkpoint.save(Path(folder), self._adam("save").pieces(), {"steps": self.steps})

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint of ``save``; every rank calls it."""
        adam = self._adam("load")
        state = checkpoint.load(Path(folder), adam.pieces())
        adam.restored(cast(int, state["steps"]))
        self.steps = adam.updates

    def _adam(self, what: str) -> Optimizer:
        if not isinstance(self.optimizer, Optimizer):
            raise Unsupported(
                f"checkpoints hold the moments of AdamSettings, not of {type(self.optimizer).__name__}",
                where=what,
                remedy="prepare with AdamSettings, or keep state_dict(), which has the weights",
            )
        return self.optimizer

    def _own(self, batch: tuple[Any, Any]) -> _Rows:
        """This rank's rows of a batch that is the same on all ranks."""
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise BadInput(
                f"is a {type(batch).__name__}",
                where="batch",
                remedy="give (inputs, targets); for a language model targets are the next tokens",
            )
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        lengths = sorted({len(tensor) if tensor.ndim else 0 for tensor in tensors})
        if len(lengths) != 1 or not lengths[0]:
            raise BadInput(
                f"its tensors have {' or '.join(map(str, lengths)) or 'no'} rows",
                where="batch",
                remedy="give tensors with the rows of the batch as their first dimension",
            )
        grid = self.machine.grid
        if differing(self.machine, {"batch": torch.tensor([_checksum(tensors)])}, *GRID_AXES):
            raise BadInput(
                "ranks give different batches",
                where="batch",
                remedy="give every rank the same whole batch (seed loaders alike, without a DistributedSampler)",
            )
        own = grid.divided(lengths[0], *self._rows_over, what="rows of a batch")
        stages = grid.size("pipeline")
        micro_batch = self._micro_batch or (own // (2 * stages) if stages > 1 else own)
        if not micro_batch or own % micro_batch:
            raise BadInput(
                f"a rank's {own} rows cannot be divided into micro-batches of {micro_batch or 'equal size'}",
                where="batch",
                remedy="give mbs=N in the layout, or more rows",
            )
        start = grid.index(*self._rows_over) * own
        inputs, targets = tree_map_only(Tensor, lambda one: one[start : start + own].to(grid.device), tuple(batch))
        return _Rows(inputs, targets, batch[1], every_row=lengths[0], rows=own, micro_batch=micro_batch)

    def _summed(self, loss: Tensor) -> Tensor:
        """The batch's loss of all shares, shape (1,)."""
        loss = loss.detach().reshape(1)
        copies = self.machine.grid.size(*(axis for axis in ("x", "y") if axis not in self._rows_over))
        return self.machine.collectives.all_reduce(loss, *GRID_AXES).wait() / copies


@dataclass(frozen=True, slots=True)
class _Rows:
    """This rank's part of a batch, with the targets and the number of all rows."""

    inputs: Any
    targets: Any
    every_target: Any
    every_row: int
    rows: int
    micro_batch: int

    @property
    def micro_batches(self) -> int:
        return self.rows // self.micro_batch

    def parts(self) -> Iterator[tuple[Any, Any]]:
        """Inputs and targets of each micro-batch."""
        for start in range(0, self.rows, self.micro_batch):
            take = partial(Tensor.narrow, dim=0, start=start, length=self.micro_batch)
            yield tree_map_only(Tensor, take, (self.inputs, self.targets))

    def counted(self) -> int:
        """Targets of the whole batch that count in a mean.

        Raises:
            BadInput: targets are not ids, or none counts.
        """
        targets = self.every_target
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            raise BadInput(
                "targets are not the ids that a cross-entropy takes",
                where="batch",
                remedy="prepare with loss=, a function of the output and the targets, as nn.MSELoss()",
            )
        count = int((targets != IGNORED).sum())
        if not count:
            raise BadInput(f"every target is {IGNORED}, so that none counts", where="batch")
        return count


class _Passes:
    """The passes of a model of anyone's over a rank's micro-batches.

    Args:
        vocabulary: features of logits that a ``Head()`` splits; None without one.
    """

    def __init__(self, model: nn.Module, machine: Machine, loss: str | LossFunction, vocabulary: int | None) -> None:
        self._model, self._machine, self._loss, self._vocabulary = model, machine, loss, vocabulary
        self.reduction: Literal["mean", "sum"] = "mean" if callable(loss) else "sum"
        if callable(loss):
            _check_mean(loss, vocabulary)

    def run(self, rows: _Rows, *, trains: bool) -> Tensor:
        """This rank's share of the batch's loss; with gradients, or forward alone."""
        share, total = self._share(rows), torch.zeros((), dtype=self._machine.precision.wide)
        total = total.to(self._machine.grid.device)
        for inputs, targets in rows.parts():
            loss = self._loss_of(self._called(inputs), targets)
            if trains:
                torch.autograd.backward(loss if callable(self._loss) else loss * share)
            total += loss.detach() * share
        return total

    def _share(self, rows: _Rows) -> float:
        """What a micro-batch's loss counts in the batch's."""
        if not callable(self._loss):
            return 1 / rows.counted()
        ignored = getattr(self._loss, "ignore_index", IGNORED)
        by_ids = isinstance(self._loss, nn.CrossEntropyLoss | nn.NLLLoss)
        by_ids = by_ids or self._loss in (functional.cross_entropy, functional.nll_loss)
        if by_ids and bool((rows.every_target == ignored).any()):
            raise BadInput(
                f"some targets are {ignored}: a mean over a rank's own rows would weigh the others unequally",
                where="batch",
                remedy='prepare with loss="mean", which counts targets over all ranks',
            )
        return rows.micro_batch / rows.every_row

    def _called(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return self._model(**inputs)
        return self._model(*inputs) if isinstance(inputs, tuple | list) else self._model(inputs)

    def _loss_of(self, out: Any, targets: Any) -> Tensor:
        """The mean of a function, or the sum of cross-entropies."""
        if callable(self._loss):
            loss = self._loss(out, targets)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise BadInput(
                    "does not give one number", where="loss", remedy='give a function with reduction="mean"'
                )
            return loss
        logits = getattr(out, "logits", out)
        if not isinstance(logits, Tensor) or logits.shape[:-1] != targets.shape:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise BadInput(
                f"the model gives {shape} for targets of {tuple(targets.shape)}, and not logits for each",
                where="loss",
                remedy="prepare with loss=, a function of the model's output and the targets",
            )
        logits, targets = logits.flatten(0, -2), targets.flatten()
        if self._vocabulary is not None:
            return cross_entropy(self._machine, logits, targets, self._vocabulary).sum()
        wide = logits.to(self._machine.precision.wide)
        return functional.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")


class _OwnStage(nn.Sequential):
    """A stage of an ``nn.Sequential``, as ``StepPasses`` takes it; ``taken`` and ``given`` have no values."""

    first = last = False
    taken: Tensor
    given: Tensor
    losses: LossFunction

    def takes(self, _: int) -> Tensor:
        return self.taken

    def gives(self, _: int) -> Tensor:
        return self.given


def _cut(
    model: nn.Module, machine: Machine, roles: Mapping[str, Role], *, easy: bool, compiled: bool
) -> nn.ModuleList:
    """The stages that this rank has of an ``nn.Sequential``: equal numbers of its modules, under their names."""
    layout = machine.grid.layout
    chunks = layout.pipeline * layout.virtual_stages
    refused = (
        (type(model) is not nn.Sequential, f"a {type(model).__name__}", "give an nn.Sequential of the model's blocks"),
        (not easy, "a plan of roles", "name Whole() alone in the plan"),
        (compiled, "compiled blocks", "leave compile out"),
    )
    for wanted, what, remedy in refused:
        if wanted:
            raise Unsupported(f"{what} cannot be cut into stages", where="layout: pp", remedy=f"{remedy}, or set pp=1")
    modules = cast(dict[str, nn.Module], model._modules)
    names = list(modules)
    if len(names) < chunks:
        problem = f"{chunks} stages cannot be cut from {len(names)} modules"
        raise BadInput(problem, where="layout: pp", remedy="set a smaller pp or vpp")
    check_recomputable(blocks_of(model, {model.get_submodule(name) for name in roles}), layout)
    ends = np.cumsum(split_layers(len(names), chunks)).tolist()
    result, seen = nn.ModuleList(), dict[nn.Parameter, int]()
    for chunk, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        part = _OwnStage(OrderedDict((name, modules[name]) for name in names[begin:end]))
        part.first, part.last = chunk == 0, chunk == chunks - 1
        for parameter in part.parameters():
            if seen.setdefault(parameter, chunk) != chunk:
                problem = f"stages {seen[parameter]} and {chunk} share a parameter"
                raise Unsupported(problem, where="layout: pp", remedy="untie them, or set pp=1")
        own = {name: role for name, role in roles.items() if name.partition(".")[0] in names[begin:end]}
        if not own:
            problem = f"stage {chunk} ({', '.join(names[begin:end])}) has no parameters"
            raise BadInput(problem, where="layout: pp", remedy="set a smaller pp or vpp")
        if stage_of(layout, chunk) == machine.grid.coordinates["pipeline"]:
            result.append(parallelize(part, machine, own))
    return result


class _OwnStages(_Passes):
    """The passes of the stages that this rank has of a model of anyone's.

    Args:
        whole: the plain model's state, without values.
    """

    def __init__(
        self, machine: Machine, stages: nn.ModuleList, loss: str | LossFunction, whole: Mapping[str, Tensor]
    ) -> None:
        super().__init__(stages, machine, loss, None)
        self.reduction = "sum"
        self._stages = cast(list[_OwnStage], list(stages))
        self._whole = whole
        self._made: dict[tuple[Any, ...], StepPasses] = {}

    def run(self, rows: _Rows, *, trains: bool) -> Tensor:
        """As of ``_Passes``."""
        inputs, targets = rows.inputs, rows.targets
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            raise BadInput(
                "inputs and targets are not one tensor each", where="batch", remedy="a pipeline takes those"
            )
        share = self._share(rows)
        for stage in self._stages:
            stage.losses = lambda out, wanted: self._loss_of(out, wanted) * share
        shape = rows.micro_batch, rows.micro_batches, inputs.shape, inputs.dtype
        if shape not in self._made:
            self._measure(inputs[: rows.micro_batch])
            self._made[shape] = StepPasses(
                self._machine,
                cast(nn.ModuleList, self._model),
                micro_batch=rows.micro_batch,
                micro_batches=rows.micro_batches,
                tokens=1,
                shared=False,
            )
        return self._made[shape].run(inputs, targets, trains=trains)

    @torch.no_grad()
    def _measure(self, given: Tensor) -> None:
        """Learn what stages pass on of a micro-batch: they run in turn, and each tells the others the shape."""
        layout, trains, own = self._machine.grid.layout, self._model.training, iter(self._stages)
        self._model.eval()
        for chunk in range(layout.pipeline * layout.virtual_stages - 1):
            told = torch.zeros(2 + MOST_DIMENSIONS, dtype=torch.int64, device=given.device)
            stage = next(own) if stage_of(layout, chunk) == self._machine.grid.coordinates["pipeline"] else None
            if stage is not None:
                out = stage(given)
                known = isinstance(out, Tensor) and out.dtype in _PASSED and out.ndim <= MOST_DIMENSIONS
                shape = (_PASSED.index(out.dtype) + 1, out.ndim, *out.shape) if known else ()
                told[: len(shape)] = torch.tensor(shape)
            kind, dimensions, *sizes = self._machine.collectives.all_reduce(told, "pipeline").wait().tolist()
            if not kind:
                raise BadInput(
                    f"stage {chunk} does not pass one tensor of floats on",
                    where="layout: pp",
                    remedy="let each module of the nn.Sequential give one, or set pp=1",
                )
            taken, given = given, torch.zeros(sizes[:dimensions], dtype=_PASSED[kind - 1], device=given.device)
            if stage is not None:
                stage.taken = taken.to("meta").requires_grad_(taken.is_floating_point())
                stage.given = given.to("meta").requires_grad_()
        for stage in own:
            stage.taken = stage.given = given.to("meta").requires_grad_()
        self._model.train(trains)

    def joined(self, own: Mapping[str, Tensor], rank: int | None) -> dict[str, Tensor]:
        """The whole state of which each stage has its own; bytes are summed over stages, all but one of which have
        zeros."""
        grid, result = self._machine.grid, {}
        for name, like in self._whole.items():
            dtype = self._machine.precision.master if like.is_floating_point() else like.dtype
            tensor = own.get(name, torch.zeros(like.shape, dtype=dtype)).to(grid.device).contiguous()
            self._machine.collectives.all_reduce(tensor.view(-1).view(torch.uint8), "pipeline").wait()
            if rank is None or rank == grid.rank:
                result[name] = tensor.cpu()
        return result

    def own(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the stages of this rank take of a whole state."""
        check_names(state, set(self._whole))
        mine = {name for stage in self._stages for name in stage._modules}
        return {name: value for name, value in state.items() if name.partition(".")[0] in mine}


class _Stages:
    """The passes of a built-in model's stages."""

    def __init__(self, machine: Machine, stages: nn.ModuleList, sequence: int) -> None:
        self._machine, self._stages, self._sequence = machine, stages, sequence
        self.reduction: Literal["mean", "sum"] = "sum"
        self._made: dict[tuple[int, int], StepPasses] = {}

    def run(self, rows: _Rows, *, trains: bool) -> Tensor:
        """As of ``_Passes``."""
        return self._passes(rows).run(*self._tokens(rows), trains=trains)

    def _tokens(self, rows: _Rows) -> tuple[Tensor, Tensor]:
        for what, ids in (("inputs", rows.inputs), ("targets", rows.targets)):
            if not isinstance(ids, Tensor) or ids.shape[1:] != (self._sequence,):
                raise BadInput(
                    f"{what} are not token ids (rows, {self._sequence})",
                    where="batch",
                    remedy="give a job of another sequence: resolve_job(name, RecipeChanges(sequence=N))",
                )
        own = own_tokens(self._machine.grid, self._sequence).to(rows.inputs.device)
        return rows.inputs[:, own], rows.targets[:, own]

    def _passes(self, rows: _Rows) -> StepPasses:
        shape = rows.micro_batch, rows.micro_batches
        if shape not in self._made:
            self._made[shape] = StepPasses(
                self._machine,
                self._stages,
                micro_batch=rows.micro_batch,
                micro_batches=rows.micro_batches,
                tokens=rows.every_target.numel(),
            )
        self._made[shape].tokens = rows.counted()
        return self._made[shape]


def _built_in(
    source: Job | str,
    layout: Layout,
    micro_batch: int | None,
    optimizer: OptimizerChoice | None,
    precision: str | None,
    compiled: bool,
) -> tuple[nn.Module, Step]:
    """The stages that this rank has of a built-in model."""
    job = resolve_job(source) if isinstance(source, str) else source
    rows = layout.dp * (micro_batch or 1) * 2 * layout.pipeline
    check_trainable(replace(job, recipe=replace(job.recipe, global_batch=rows)), layout)
    grid = Grid.of(layout, _device())
    machine = Machine.of(grid, precision=Precision.of(precision or job.recipe.precision))
    stages = build_stages(machine, job.model, sequence=job.recipe.sequence)
    seed = torch.tensor([torch.initial_seed() % 2**62 if grid.rank == 0 else 0], device=grid.device)
    machine.collectives.all_reduce(seed, *GRID_AXES).wait()
    initialize(holdings(stages), job.model, int(seed))
    if compiled:
        for stage in stages:
            compile_blocks(stage, machine)
    return stages, Step(
        machine, stages, _Stages(machine, stages, job.recipe.sequence), optimizer, SEQUENCES, micro_batch
    )


# What prepare is given -----------------------------------------------------------------------------


def _join() -> None:
    """Join the ranks that torchrun, mpirun or srun started, and leave them before the interpreter ends."""
    adopt_launcher()
    if dist.is_initialized() or not launched() or launched_world() == 1:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(variable("LOCAL_RANK", 0) % torch.cuda.device_count())
        dist.init_process_group("nccl", device_id=_device())
    else:
        dist.init_process_group("gloo")
    atexit.register(leave)


def _device() -> torch.device:
    """Where this rank computes: its GPU, unless its process group is one of CPUs."""
    if not torch.cuda.is_available() or (dist.is_initialized() and dist.get_backend() == "gloo"):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _layout_of(layout: str | Layout) -> tuple[Layout, int | None]:
    """The layout of the ranks that run, and the rows of a micro-batch where it says them.

    Raises:
        BadInput: other ranks run than it needs.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    micro_batch: int | None
    if isinstance(layout, Layout):
        result, micro_batch = layout, layout.micro_batch
    else:
        written = parse_layout(layout, where="layout")
        result = written.complete()
        micro_batch = result.micro_batch if "micro_batch" in written.values else None
        if written.data_parallel is None and "data" not in written.values and world % result.world == 0:
            result = written.complete(world)
    if result.world != world:
        raise BadInput(
            f"{format_degrees(result)} needs {result.world} ranks, but {world} run",
            where="layout",
            remedy=f"start them: torchrun --nproc-per-node {result.world} SCRIPT.py",
        )
    return result, micro_batch


def _roles(model: nn.Module, machine: Machine, plan: Mapping[str, Role] | str | None) -> Mapping[str, Role]:
    """The roles of a plan; those of easy mode where it names single modules that stay whole, or none."""
    if isinstance(plan, str):
        if plan not in PLANS:
            raise UnknownName("plan", plan, PLANS, where="prepare")
        return PLANS[plan]
    named = matched(model, plan or {})
    if not all(isinstance(role, Easy | Whole) for role in named.values()):
        return plan or {}
    layout = machine.grid.layout
    roles = easy_plan(model, layout)
    layers = {name: model.get_submodule(name) for name, role in roles.items() if isinstance(role, Whole)}
    problems = {name: undivided(layer, layout) for name, layer in layers.items() if is_layer(layer)}
    shown = [f"{name} ({problem})" for name, problem in problems.items() if problem and name not in named]
    if shown and machine.grid.rank == 0:
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        warn(InDoubt(f"these layers stay whole on every rank: {', '.join(shown[:3])}{more}"), stacklevel=3)
    return roles | named


def _vocabulary(model: nn.Module, roles: Mapping[str, Role]) -> int | None:
    """Logits of the plan's head."""
    heads = [name for name, role in matched(model, roles).items() if isinstance(role, Head)]
    return cast(Tensor, model.get_submodule(heads[0]).weight).shape[0] if len(heads) == 1 else None


def _optimizer(flat: Flat, choice: OptimizerChoice | None) -> Optimizer | torch.optim.Optimizer:
    if choice is None or isinstance(choice, AdamSettings):
        return Optimizer(flat, choice or AdamSettings())
    kind, options = (choice.func, choice.keywords) if isinstance(choice, partial) else (choice, {})
    if not isinstance(kind, type) or (isinstance(choice, partial) and choice.args):
        raise BadInput(
            f"{choice!r:.80} is not a class of optimizer",
            where="optimizer",
            remedy="give AdamSettings(rate=...), or functools.partial(torch.optim.SGD, lr=...)",
        )
    return torch_optimizer(flat, kind, **options)


def _check_mean(loss: LossFunction, vocabulary: int | None) -> None:
    """Refuse a loss that is not the mean over rows, as far as it says.

    Raises:
        BadInput: it says so, or the logits are split.
    """
    if vocabulary is not None:
        raise BadInput(
            "a function would see a rank's part of the logits",
            where="loss",
            remedy='prepare with loss="mean", or without a Head() in the plan',
        )
    if getattr(loss, "reduction", "mean") != "mean" or getattr(loss, "weight", None) is not None:
        raise BadInput(
            f"{loss!r:.80} is not the mean over rows, of which each counts alike",
            where="loss",
            remedy='give one with reduction="mean" and without weights',
        )


def _checksum(tensors: Sequence[Tensor]) -> int:
    """Of the shapes and bits of some tensors."""
    result = 0
    for one in tensors:
        values = one.detach().cpu().contiguous().flatten().view(torch.uint8)
        result = zlib.crc32(cast(Any, values.numpy()), zlib.crc32(repr((one.shape, one.dtype)).encode(), result))
    return result
