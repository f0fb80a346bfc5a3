"""A whole step on eight ranks against one process: its numbers, and what it issues, traced and predicted."""

from __future__ import annotations

from collections import Counter

import models
from compare import Run
from models import BATCH, SEQUENCE

from weft.layout.mesh import coordinates
from weft.layout.step import step_collectives
from weft.model.job import Job, Recipe
from weft.runtime.layers.decoder import Details
from weft.runtime.layers.experts import Experts4D
from weft.runtime.measure.trace import trace

EXACT = 1e-12
MODELS = {
    "gpt": models.gpt(),
    "tied": models.gpt(layers=2, tied=True),
    "llama": models.llama(),
    "mixture": models.mixture(),
    "shared": models.mixture(shared=True),
}


def job_of(model):
    return Job(model=MODELS[model], recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))


def without_widths(issues):
    found = Counter()
    for issue, times in issues.items():
        found[issue.kind, issue.axes, issue.elements] += times
    return found


def step(layout, model, capacity=None):
    """This rank's errors, what it issued, parameters that no rank has a gradient of, and copies of tokens of its
    sequences that were dropped."""
    run = Run(layout, MODELS[model], details=Details(expert_capacity=capacity))
    errors = {} if layout.pipeline > 1 else {"logits": run.logits_error()}
    layers = [module for module in run.stages.modules() if isinstance(module, Experts4D)]
    for layer in layers:
        layer.dropped.zero_()
    with run.machine.collectives.logged() as log:
        loss = run.step()
        errors["norm"] = abs(float(run.flat.clip(1e9)) - run.serial.norm)
        run.flat.publish()
    errors["gradients"] = run.gradient_error()
    if loss is not None:
        errors["loss"] = abs(loss - run.serial.loss)
    return errors, Counter(log.issued), run.uncovered(), sum(int(layer.dropped) for layer in layers)


def check(ranks, layout, model, capacity=None):
    """Numbers are the serial model's; issued, traced and predicted are equal, but for dropped copies of tokens."""
    found = ranks.run(step, layout, model, capacity)
    job = job_of(model)
    print(
        {name: max(errors.get(name, 0.0) for errors, *_ in found) for name in ("logits", "loss", "gradients", "norm")}
    )
    absent = Counter()
    for rank, (errors, issued, uncovered, _) in enumerate(found):
        assert max(errors.values()) <= EXACT, (rank, errors)
        assert not uncovered
        stage = coordinates(layout, rank)["pipeline"]
        wanted = step_collectives(job.model, job.recipe, layout, stage=stage)
        absent += elements_by_axes(wanted) - elements_by_axes(issued)
        assert capacity is not None or without_widths(issued) == without_widths(wanted)
        if rank in (0, layout.world - 1):
            assert trace(job, layout, rank=rank) == wanted
    # Each of a sequence's ranks counts its drops; a copy is dealt, and gathered over a cut, twice each way.
    dropped = sum(one[-1] for one in found) // (layout.x * layout.y * layout.context)
    assert (dropped > 0) == (capacity is not None)
    width, cut = 4 * job.model.hidden * dropped, layout.expert_tensor
    wanted = {"expert": width * (layout.expert > 1), "expert_tensor": width * cut * (cut > 1)}
    assert absent == Counter({(axis,): size for axis, size in wanted.items() if size})


def elements_by_axes(issues):
    found = Counter()
    for issue, times in issues.items():
        found[issue.axes] += times * issue.elements
    return found
