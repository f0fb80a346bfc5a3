"""A training step of one rank on a device that is no CPU, without one: run as a program, it prints what it found.

PyTorch's fake tensors have shapes, formats and a device, and no values; its fake process group sends nothing.  An
operation that mixes devices ends the run, as does one that waits for a value (``item``) while the step is queued.

The device is PyTorch's ``PrivateUse1`` under the name "gpu": a build without CUDA has no guard for fake CUDA tensors.
It is named once for a process, which is why this is a program of its own.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import models
import torch
import torch.distributed as dist
from fake_streams import Streams, Waited, Watching
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from weft.layout import Layout
from weft.layout.mesh import ROWS
from weft.layout.text import parse_layout
from weft.model.job import Job, Recipe
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings
from weft.runtime.run import flat
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer
from weft.runtime.run.pipeline import StepPasses, build_stages
from weft.runtime.run.session import micro_batches_of

DEVICE = "gpu:0"
STEPS = 2
"""The first learns the order in which weights are asked for, the second gathers ahead in it."""
PRODUCTS = {"mm", "addmm", "addmm_"}
"""Products of matrices; attention, which this device has no kernel for, is PyTorch's decomposition in fp32."""
SUMS = {"allreduce_": 0, "_reduce_scatter_base_": 1, "_allgather_base_": 1}
"""Collectives, and which argument is what the rank gives."""


class _Device(_DummyBackendModule):
    """The device's streams, and its random generator, which pipelines keep as it was: the CPU's stands for it."""

    def __init__(self) -> None:
        self.streams = Streams()
        for name in ("Stream", "current_stream", "stream"):
            setattr(self, name, getattr(self.streams, name))

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class Seen(TorchDispatchMode):
    """Operations of a step: those that compute on the CPU, and formats of products and of collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cpu: set[str] = set()
        self.formats: dict[str, Counter[str]] = {"products": Counter(), "collectives": Counter(), "wide": Counter()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if any(one.device.type == "cpu" and one.numel() for one in given):
            self.on_cpu.add(name)
        formats = {str(one.dtype).removeprefix("torch.") for one in given}
        if name in PRODUCTS:
            self.formats["products"].update(formats)
        if func.namespace == "c10d" and name in SUMS:
            self.formats["collectives"].update(formats)
        for one in given:
            if one.dtype == torch.float64 and one.numel():
                self.formats["wide"][f"{name} of {one.ndim} dimensions"] += 1
        return found


def prepared(job: Job, layout: Layout) -> tuple[Machine, Optimizer, Callable[[], Tensor]]:
    """Rank 0, and its passes of a step."""
    machine = Machine.of(Grid.of(layout, DEVICE), precision=Precision.of(job.recipe.precision))
    stages = build_stages(machine, job.model, sequence=job.recipe.sequence)
    optimizer = Optimizer(Flat(machine, stages, holdings(stages)), AdamSettings())
    passes = StepPasses(
        machine,
        stages,
        micro_batch=layout.micro_batch,
        micro_batches=micro_batches_of(job, layout),
        tokens=job.recipe.tokens,
    )
    ids = torch.zeros(passes.micro_batches * layout.micro_batch, job.recipe.sequence, dtype=torch.int64, device=DEVICE)
    optimizer.flat._unused = set()  # as after the first step, in which ranks tell each other what they used

    def run() -> Tensor:
        with optimizer.flat.step(passes.micro_batches, loss="sum"):
            return passes.run(ids, ids)

    return machine, optimizer, run


def queued(job: Job, layout: Layout, device: _Device, forgets: str | None) -> dict[str, Any]:
    """Races of some steps and their updates, where a kind of wait is left out."""
    streams = device.streams
    streams.begin()
    streams.forgets = forgets
    dist.init_process_group("weft_fake_gpu", rank=0, world_size=layout.world, store=FakeStore())
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), Watching(streams) as watching:
            machine, optimizer, run = prepared(job, layout)
            issued = machine.collectives._issued

            def noted(kind: Any, axes: Any, full: Any, result: Any, work: Any, inputs: Any) -> Any:
                return issued(kind, axes, full, result, Waited(streams, watching.last, work), inputs)

            machine.collectives._issued = noted
            for _ in range(STEPS):
                run()
                for owned in optimizer.flat.owned:
                    owned.leaf.detach().mul_(0.5)
                optimizer.flat.publish()
        return {"races": streams.races, "ran": streams.ran}
    finally:
        dist.destroy_process_group()


def step(job: Job, layout: Layout) -> Seen:
    """A step and an update of rank 0."""
    dist.init_process_group("weft_fake_gpu", rank=0, world_size=layout.world, store=FakeStore())
    try:
        seen = Seen()
        with FakeTensorMode(allow_non_fake_inputs=True):
            machine, optimizer, run = prepared(job, layout)
            with seen:
                loss = run()
                machine.collectives.all_reduce(loss, *ROWS).wait()
                norm = optimizer.flat.clip(1.0, loss)
                optimizer.flat.publish()
            assert loss.device == norm.device == torch.device(DEVICE)
            for holding in optimizer.flat.holdings:
                parameter = holding.parameter
                assert parameter.grad is not None
                assert parameter.device == parameter.grad.device == torch.device(DEVICE)
        return seen
    finally:
        dist.destroy_process_group()


def main() -> None:
    warnings.simplefilter("ignore")
    flat.as_part = lambda machine, gradient: gradient  # a fake tensor can be of no other class
    device = _Device()
    _setup_privateuseone_for_python_backend("gpu", backend_module=device)
    dist.Backend.register_backend("weft_fake_gpu", _create_fake_pg, extended_api=True, devices=["cpu", "gpu"])
    for line in sys.stdin:
        asked = json.loads(line)
        layout = parse_layout(asked["layout"]).complete(None)
        recipe = Recipe(global_batch=models.BATCH, sequence=models.SEQUENCE, precision=asked["precision"])
        job = Job(model=getattr(models, asked["model"])(), recipe=recipe)
        if "forgets" in asked:
            print(json.dumps(queued(job, layout, device, asked["forgets"])))
        else:
            seen = step(job, layout)
            print(json.dumps({"on_cpu": sorted(seen.on_cpu), **seen.formats}))


if __name__ == "__main__":
    main()
