"""The part of a space that ``weft train`` runs: what a whole search ranks, filtered."""

from __future__ import annotations

import pytest

from weft.cluster import resolve
from weft.errors import BadInput, Unsupported
from weft.layout.check import check_runnable, check_trainable
from weft.layout.spec import Layout
from weft.model import RecipeChanges, resolve_job
from weft.search import SPACES, plan, runnable
from weft.search.enumeration import Space

EVERY = 100_000


def runs(job, layout):
    try:
        check_runnable(job.model, layout)
    except BadInput:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cluster", "space"), [("tiny-llama", "h100-8", "standard"), ("tiny-gpt", "h100-2", "wide")]
)
def test_it_ranks_what_a_whole_search_ranks(name, cluster, space):
    job = resolve_job(name, RecipeChanges(global_batch=8))
    found, where = SPACES[space], resolve(cluster)
    whole = plan(job, where, space=found, top=EVERY)
    part = plan(job, where, space=runnable(found, job.model), top=EVERY)
    assert len(whole.layouts) < EVERY
    wanted = [one for one in whole.layouts if runs(job, one.layout)]
    assert wanted
    assert (len(wanted) < len(whole.layouts)) == (space == "wide")  # offloading is refused, which standard has not
    assert [one.layout for one in part.layouts] == [one.layout for one in wanted]
    assert [one.iteration_s for one in part.layouts] == [one.iteration_s for one in wanted]


@pytest.mark.slow
def test_cuts_of_experts_are_planned_as_they_are_trained():
    job = resolve_job("tiny-mixtral", RecipeChanges(global_batch=4, sequence=64))
    found = plan(job, resolve("h100-4"), space=runnable(SPACES["4d"], job.model), top=EVERY)
    cuts = {(one.layout.x > 1, one.layout.y > 1, one.layout.expert_tensor > 1) for one in found.layouts}
    assert cuts >= {(True, True, True), (True, False, True), (False, True, False)}
    for one in found.layouts:
        check_trainable(job, one.layout)


def test_what_is_pinned_stays_so():
    model = resolve_job("tiny-llama").model
    space = SPACES["4d"].constrained({"x": 2, "schedule": "1f1b"}, {"pipeline": 2})
    found = runnable(space, model)
    assert found.fixed["x"] == (2,)
    assert found.fixed["schedule"] == (0,)
    assert found.maximum == {"pipeline": 2}
    assert found.y
    for fixed, message in (
        ({"expert": 2}, "no value of expert that is tried can be trained -- choose 1"),
        ({"x": 8}, "x .* -- choose 1 or 2 or 4"),
    ):
        with pytest.raises(BadInput, match=message):
            runnable(SPACES["wide"].constrained(fixed, {}), model)
    with pytest.raises(BadInput, match="offload_optimizer"):
        runnable(Space(name="mine", offload_optimizer=(True,)), model)


def test_models_that_cannot_be_trained():
    with pytest.raises(Unsupported, match="latent attention"):
        runnable(SPACES["standard"], resolve_job("deepseek-v3").model)
    assert "expert" not in runnable(SPACES["standard"], resolve_job("mixtral-8x7b").model).fixed
    assert runs(resolve_job("tiny-gpt"), Layout())
