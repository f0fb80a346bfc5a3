"""The lower bound of an iteration, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.cluster.catalogue import load as load_cluster
from weft.estimation.iteration import Estimator
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.model import Job, Recipe
from weft.model.catalogue import load as load_model
from weft.model.job import block_forward_flops, model_flops

RECIPE = Recipe(global_batch=64, sequence=2048, attention="unfused", dropout=True)
MODEL = load_model("gpt-7.5b-sc21").model


def bounds(layouts: list[Layout], gpus: int, recipe: Recipe = RECIPE) -> np.ndarray:
    cluster = load_cluster(f"h100-{gpus}")
    found = Estimator(Job(model=MODEL, recipe=recipe), cluster).evaluate(LayoutTable.of(layouts))
    return found.lower_bound_s


def test_data_parallel_bound_is_arithmetic_at_peak() -> None:
    peak = load_cluster("h100-8").accelerator.bf16_flops
    assert bounds([Layout(data=8)], 8)[0] == pytest.approx(model_flops(MODEL, RECIPE) / 8 / peak)


def test_pipeline_bound_is_that_of_the_fullest_stage() -> None:
    """36 blocks on 8 stages: five on the busiest; the last has four and the head."""
    peak = load_cluster("h100-8").accelerator.bf16_flops
    block = 3 * block_forward_flops(MODEL.runs[0].block, RECIPE)
    head = 6.0 * RECIPE.tokens * MODEL.hidden * MODEL.vocab
    assert MODEL.layers == 36
    assert bounds([Layout(pipeline=8)], 8)[0] == pytest.approx(max(5 * block, 4 * block + head) / peak, rel=0.05)


def test_communication_bound_is_the_busiest_axis() -> None:
    """x = 32 over four domains: four all-reduces a block through eight NICs a domain, of which switches that
    reduce may at best save one half."""
    recipe = replace(RECIPE, sequence=512)
    layout = Layout(x=32, data=2, micro_batch=4)
    found = bounds([layout], 64, recipe)[0]
    cluster = load_cluster("h100-64")
    tokens, nics = 4 * 512, 8 * cluster.accelerator.nic_Bps
    one = 2 * (31 / 32) * tokens * MODEL.hidden * 2 / nics
    block = recipe.global_batch / 8 * 4 * one * MODEL.layers
    assert block / 2 <= found <= 1.1 * block


def test_sharding_bound_moves_the_weights_three_times() -> None:
    """z = 64 with one short sequence a rank: gather twice and scatter, at least 2 bytes an element each."""
    recipe = replace(RECIPE, sequence=64)
    found = bounds([Layout(z=64)], 64, recipe)[0]
    nics = 8 * load_cluster("h100-64").accelerator.nic_Bps
    blocks = MODEL.layers * MODEL.runs[0].block.parameters
    least = 3 * (7 / 8) * 2 * blocks / nics
    assert least <= found <= 1.2 * least
