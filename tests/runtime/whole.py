"""A whole step on eight ranks against one process: its numbers, and what it issues, traced and predicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import models
from compare import Run
from models import BATCH, SEQUENCE

from weft.layout.mesh import coordinates
from weft.layout.step import step_collectives
from weft.model.job import Job, Recipe
from weft.runtime.layers.decoder import Details
from weft.runtime.measure.trace import trace

EXACT = 1e-12
MODELS = {
    "gpt": replace(models.gpt(), head_bias=True),
    "tied": models.gpt(layers=2, tied=True),
    "llama": models.llama(),
    "gemma": models.gemma(),
    "mixture": models.mixture(),
    "shared": models.mixture(shared=True),
}

DETAILS = {MODELS["gemma"]: Details(query_scale=0.4, score_cap=1.5, logit_cap=2.0, embedding_scale=3.0)}


def job_of(model):
    """Of a model, or of its name."""
    model = MODELS[model] if isinstance(model, str) else model
    return Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))


def without_widths(issues):
    found = Counter()
    for issue, times in issues.items():
        found[issue.kind, issue.axes, issue.elements] += times
    return found


def step(layout, model):
    """This rank's errors, what it issued, and parameters that no rank has a gradient of."""
    run = Run(layout, model, details=DETAILS.get(model))
    errors = {} if layout.pipeline > 1 else {"logits": run.logits_error()}
    with run.machine.collectives.logged() as log:
        loss = run.step()
        errors["norm"] = abs(float(run.flat.clip(1e9)) - run.serial.norm)
        run.flat.publish()
    errors["gradients"] = run.gradient_error()
    if loss is not None:
        errors["loss"] = abs(loss - run.serial.loss)
    return errors, Counter(log.issued), run.uncovered()


def check(ranks, layout, model):
    """Numbers are the serial model's; issued, traced and predicted are equal."""
    job = job_of(model)
    found = ranks.run(step, layout, job.model)
    assert sum("loss" in errors for errors, *_ in found) == layout.stage_ranks, "the ranks of one stage know it"
    for rank, (errors, issued, uncovered) in enumerate(found):
        assert max(errors.values()) <= EXACT, (rank, errors)
        assert not uncovered
        stage = coordinates(layout, rank)["pipeline"]
        wanted = step_collectives(job.model, job.recipe, layout, stage=stage)
        assert without_widths(issued) == without_widths(wanted)
        if rank in (0, layout.world - 1):
            assert trace(job, layout, rank=rank) == wanted
