"""A whole step on eight ranks against one process: its numbers, and what it issues, traced and predicted."""

from __future__ import annotations

from collections import Counter

import models
import pytest
from compare import Run
from models import BATCH, SEQUENCE

from weft.layout.mesh import coordinates
from weft.layout.step import step_collectives
from weft.model.job import Job, Recipe
from weft.runtime.layers.decoder import Details
from weft.runtime.layers.experts import Drops
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
    """This rank's errors, what it issued, parameters that no rank has a gradient of, and the share of copies of tokens
    that experts did not take."""
    run = Run(layout, MODELS[model], details=Details(expert_capacity=capacity))
    errors = {} if layout.pipeline > 1 else {"logits": run.logits_error()}
    drops = Drops(run.machine, run.stages, possible=capacity is not None)
    drops.begin()
    with run.machine.collectives.logged() as log:
        loss = run.step()
        errors["norm"] = abs(float(run.flat.clip(1e9)) - run.serial.norm)
        run.flat.publish()
    errors["gradients"] = run.gradient_error()
    if loss is not None:
        errors["loss"] = abs(loss - run.serial.loss)
    return errors, Counter(log.issued), run.uncovered(), drops.share()


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
    if capacity is None:
        return
    # A dropped copy is not dealt, and not gathered over a cut, twice each way.
    assert absent["expert_tensor",] == layout.expert_tensor * absent["expert",] * (layout.expert_tensor > 1)
    dropped = absent["expert",] / (4 * job.model.hidden)
    copies = BATCH * SEQUENCE * sum(kind.moe.top_k for kind in job.model.kinds) * job.model.layers
    assert [one[-1] for one in found] == pytest.approx([dropped / copies] * len(found))
    assert dropped > 0


def elements_by_axes(issues):
    found = Counter()
    for issue, times in issues.items():
        found[issue.axes] += times * issue.elements
    return found
