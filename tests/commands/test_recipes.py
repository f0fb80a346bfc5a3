"""What a recipe chooses: software and space of layouts, unless others are asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.cluster.calibration import stack_names
from weft.errors import BadInput
from weft.model import catalogue
from weft.model.resolve import even_batch
from weft.search import SPACES

NARROW = ("x=1", "context=1", "z=1", "pipeline=16", "ep=64")


def test_recipes_name_software_and_spaces_that_exist() -> None:
    entries = [catalogue.load(name) for name in catalogue.names()]
    assert {one.stack for one in entries if one.stack} <= set(stack_names())
    assert {one.space for one in entries if one.space} <= set(SPACES)
    assert catalogue.load("deepseek-v3").stack == "hai-llm"


@pytest.mark.parametrize(
    ("name", "tokens", "sequence"),
    [
        ("llama-3.1-405b", 2**24, 8192),
        ("llama-3-8b", 2**22, 8192),
        ("kimi-k2", 2**26, 4096),
        ("qwen3-235b-a22b", 2**25, 4096),
    ],
)
def test_batches(name, tokens, sequence) -> None:
    recipe = catalogue.load(name).recipe
    assert (recipe.tokens, recipe.sequence) == (tokens, sequence)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


@given(batch=st.integers(1, 10**5), count=st.integers(1, 10**5))
def test_an_even_batch_is_the_nearest_that_the_most_ranks_share(batch, count) -> None:
    ranks = max(one for one in range(1, min(batch, count) + 1) if count % one == 0)
    even = even_batch(batch, count)
    assert even % ranks == 0
    assert even > 0
    assert abs(even - batch) <= ranks / 2
    assert even_batch(even, count) == even
    assert count > batch or even % count == 0


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("count", [1000, 1024, 96])
def test_a_batch_that_nobody_gave_divides_among_the_accelerators(count, config) -> None:
    found = weft.plan(config, f"h100-{count}", top=1, fix=("cp=1", "pp=1"))
    batch = found.job.recipe.global_batch
    assert batch % count == 0
    assert found.layouts
    told = f"about 4M tokens a batch that divides among {count:,} accelerators"
    assert (told in found.job.defaults[0]) == (count != 1024)
    assert weft.estimate(config, f"h100-{count}", "tp=8").job == found.job
    assert weft.plan(weft.read_config(config), f"h100-{count}", top=1, fix="pp=1").job.recipe.global_batch == batch


@pytest.mark.parametrize(("model", "changes", "batch"), [("llama-3.1-8b", {}, 500), (None, {"batch": 1024}, 1000)])
def test_where_no_layout_runs_a_batch_one_that_runs_is_named(model, changes, batch, config) -> None:
    found = weft.plan(model or config, "h100-1000", top=1, fix=("cp=1", "pp=1"), **changes)
    assert not found.layouts
    assert found.batch_that_runs == batch
    assert f"--batch {batch} would work" in found.shortage
    assert weft.plan(model or config, "h100-1000", top=1, fix=("cp=1", "pp=1"), batch=batch).layouts
    assert weft.Plan.from_dict(json.loads(found.to_json())).batch_that_runs == batch
    with pytest.raises(BadInput, match=r"dp 125 = 125; 1000 is the nearest"):
        weft.estimate(config, "h100-1000", "tp=8", batch=1024)


def test_no_batch_is_named_where_none_helps() -> None:
    found = weft.plan("llama-3.1-405b", "h100-24", top=1, fix=("cp=1", "pp=1", "tp=1"), batch=1024)
    assert not found.layouts
    assert found.batch_that_runs is None


@pytest.mark.slow
def test_deepseek_v3_is_planned_as_its_authors_ran_it() -> None:
    """2.664M GPU hours for 14.8T tokens (arXiv 2412.19437, table 1) are 19.9 s an iteration on 2,048 H800."""
    found = weft.plan("deepseek-v3", "h800-2048", fix=NARROW, max="mbs=1", top=1)
    assert (found.stack, found.space.name) == ("hai-llm", "zero-bubble")
    assert found.best.layout.schedule.splits_backward
    assert found.best.iteration_s == pytest.approx(19.9, rel=0.1)
    usual = weft.plan(
        "deepseek-v3", "h800-2048", fix=NARROW, max="mbs=1", top=1, stack="megatron-core", space="standard"
    )
    assert (usual.stack, usual.space.name) == ("megatron-core", "standard")
    assert usual.best.iteration_s > found.best.iteration_s


FEW = ("x=8", "pipeline=16", "context=1", "z=1", "mbs=1")


@pytest.mark.parametrize(
    ("model", "cluster", "fix", "stack"),
    [("llama-3.1-8b", "tpu-v5p-16", (), "maxtext"), ("llama-3.1-405b", "h100-1024", FEW, "meta-llama")],
)
def test_estimates_of_a_plan_take_its_software(model, cluster, fix, stack, tmp_path) -> None:
    """That of the accelerators or of the recipe; the job of a document says whose constants count."""
    found = weft.plan(model, cluster, fix=fix, top=1)
    assert found.stack == json.loads(found.to_json())["stack"] == stack
    assert weft.plan(model, cluster, fix=fix, top=1, stack="megatron-core").stack == "megatron-core"
    path = tmp_path / "plan.json"
    found.save(path)
    assert weft.estimate(plan=str(path)).estimate.iteration_s == found.best.iteration_s
    assert weft.read(str(path)) == found
