"""One small plan that all report tests share."""

import pytest

from weft.cluster import catalogue as clusters
from weft.model import Job, Recipe
from weft.model import catalogue as models
from weft.search.ranking import Plan, plan


@pytest.fixture(scope="session")
def small_plan() -> Plan:
    job = Job(
        model=models.load("llama-3.1-8b").model,
        recipe=Recipe(global_batch=64, sequence=8192),
        defaults=("batch of 64 sequences",),
    )
    return plan(job, clusters.load("h100-32"), top=6)


@pytest.fixture(scope="session")
def starved_plan() -> Plan:
    """Nothing fits."""
    job = Job(model=models.load("llama-3.1-405b").model, recipe=Recipe(global_batch=64, sequence=8192))
    return plan(job, clusters.load("a100-40gb-8"), top=6)
