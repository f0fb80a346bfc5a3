"""What a recipe chooses: software and space of layouts, unless others are asked for."""

from __future__ import annotations

import json

import pytest

import weft
from weft.cluster.calibration import stack_names
from weft.model import catalogue
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


def test_the_plan_names_the_authors_software() -> None:
    from weft.report.tables.words import software

    job = weft.resolve_job("deepseek-v3")
    assert "--stack hai-llm --space zero-bubble" in software("megatron-core", "standard", job)
    assert "authors" in software("hai-llm", "zero-bubble", job)


def test_estimates_of_a_plan_take_its_software(tmp_path) -> None:
    """The job of a document says whose constants count."""
    found = weft.plan("llama-3.1-405b", "h100-1024", fix=("x=8", "pipeline=16", "context=1", "z=1", "mbs=1"), top=1)
    assert found.stack == "meta-llama"
    path = tmp_path / "plan.json"
    path.write_text(found.to_json(), encoding="utf-8")
    assert json.loads(path.read_text())["stack"] == "meta-llama"
    assert weft.estimate(plan=str(path)).estimate.iteration_s == found.best.iteration_s
    assert weft.read(str(path)) == found
