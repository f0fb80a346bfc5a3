"""What twice each hardware figure does to an iteration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cluster.catalogue import load as load_cluster
from weft.estimation.report import sensitivities
from weft.layout.spec import Layout
from weft.model import Job, Recipe
from weft.model.catalogue import load as load_model

JOB = Job(model=load_model("llama-2-7b").model, recipe=Recipe(global_batch=64, sequence=4096))
LAYOUTS = [
    Layout(x=8, data=8, sequence_parallel=True),
    Layout(z=64),
    Layout(x=2, pipeline=4, data=8),
    Layout(x=16, data=4, sequence_parallel=False),
]


def speedups(layout: Layout) -> dict[str, float]:
    return {one.change: one.speedup for one in sensitivities(JOB, load_cluster("h100-64"), layout)}


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_faster_hardware_never_hurts_and_never_gains_more_than_its_factor(layout: Layout) -> None:
    found = speedups(layout)
    for change, speedup in found.items():
        if "latency" in change:
            assert 0.5 <= speedup <= 1
        else:
            assert 1 - 1e-12 <= speedup <= 2


def test_the_nic_matters_where_it_is_used() -> None:
    """The same degrees with x inside the domains, and with one x rank a domain."""
    inside = speedups(LAYOUTS[0])
    across = speedups(replace(LAYOUTS[0], order=("data", "x", "y", "context", "z", "pipeline")))
    assert across["NIC bandwidth x2"] > 1.5
    assert inside["NIC bandwidth x2"] < 1.2


def test_a_wider_domain_rescues_tensor_parallelism_across_domains() -> None:
    wide = speedups(LAYOUTS[3])
    assert wide["scale-up domain x2"] > wide["NIC bandwidth x2"]
