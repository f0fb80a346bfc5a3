"""Sailor's plans: the form of its published ones, and what they cannot say."""

import json

import pytest

from weft.cluster import load
from weft.interop.training import sailor
from weft.interop.training.launchers import LaunchArguments, NotExpressible
from weft.layout.spec import Layout
from weft.model.resolve import RecipeChanges, resolve_job

JOB = resolve_job("gpt-neox-20b", RecipeChanges(global_batch=1024))
ZONE = "us-central1-a"


def plan(layout: Layout, cluster: str = "a100-40gb-64") -> dict[str, object]:
    """The document of a layout."""
    found = sailor.launch_arguments(JOB, load(cluster), layout)
    assert isinstance(found, LaunchArguments)
    return json.loads(found.text)


def test_a_plan_of_four_stages() -> None:
    """As plan_config_N16_D4.json of Sailor's repository writes one; 44 layers, embedding and head."""
    document = plan(Layout(x=4, data=4, pipeline=4, micro_batch=4))
    (pipeline,) = document["pipeline_list"]  # type: ignore[misc]
    assert (document["zone"], document["mbs"], document["gbs"]) == (ZONE, 4, 1024)
    assert pipeline["num_stages"] == 4
    assert pipeline["dp"] == [4, 4, 4, 4]
    assert pipeline["tmp_per_stage"] == [[[[["A100-40", 4, ZONE]], 4]] * 4] * 4
    assert [layer for stage in pipeline["layers_per_stage"] for layer in stage] == list(range(46))
    assert [len(stage) for stage in pipeline["layers_per_stage"]] == [12, 11, 11, 12]


@pytest.mark.parametrize(
    ("cluster", "name"), [("a100-40gb-64", "A100-40"), ("v100-64", "V100-"), ("gh200-96gb-64", "GH-96")]
)
def test_names_of_gpus(cluster: str, name: str) -> None:
    assert next(iter(plan(Layout(x=4, data=2), cluster)["used_gpus"])).startswith(name)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"z": 2}, "fsdp is 2"),
        ({"context": 2}, "cp is 2"),
        ({"pipeline": 2, "virtual_stages": 2, "schedule": "interleaved"}, "plain 1F1B"),
    ],
)
def test_what_a_plan_cannot_say(change: dict[str, object], words: str) -> None:
    found = sailor.launch_arguments(JOB, load("a100-40gb-64"), Layout(**change))  # type: ignore[arg-type]
    assert isinstance(found, NotExpressible)
    assert words in found.reason
