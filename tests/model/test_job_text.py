"""Jobs as dictionaries: round trips over the catalogue, and messages for what cannot be used."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.codec import encode
from weft.errors import BadInput
from weft.model import PRECISIONS, Job, Recipe, catalogue
from weft.model.job import job_from_dict

recipes = st.builds(
    Recipe,
    global_batch=st.integers(1, 10**6),
    sequence=st.integers(1, 10**6),
    precision=st.sampled_from(PRECISIONS),
    attention=st.sampled_from(("flash", "unfused")),
    dropout=st.booleans(),
    gradient_bytes=st.sampled_from((2, 4)),
)
words = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=20)


def some_job() -> dict:
    job = Job(model=catalogue.load("deepseek-v3").model, recipe=Recipe(global_batch=8, sequence=128))
    return encode(job)


@given(st.sampled_from(catalogue.names()), recipes, st.lists(words, max_size=3))
def test_every_catalogue_model_reads_back_equal(name, recipe, defaults):
    job = Job(model=catalogue.load(name).model, recipe=recipe, defaults=tuple(defaults))
    assert job_from_dict(json.loads(json.dumps(encode(job)))) == job


def test_fields_with_defaults_may_be_left_out():
    mapping = some_job()
    del mapping["recipe"]["precision"], mapping["model"]["tied_embeddings"], mapping["defaults"]
    assert job_from_dict(mapping) == job_from_dict(some_job())


def at(mapping: dict, path: str):
    for step in path.split("."):
        mapping = mapping[int(step)] if step.isdigit() else mapping[step]
    return mapping


@pytest.mark.parametrize(
    ("path", "field", "value", "place"),
    [
        ("model", "hidden", -1, "job.model.hidden"),
        ("model", "hidden", 10**400, "job.model.hidden"),
        ("model", "hidden", 7168.0, "job.model.hidden"),
        ("model", "hidden", True, "job.model.hidden"),
        ("model", "hidden", 4096, "job.model.runs[0].block.hidden"),
        ("model", "name", "\x1b[31m", "job.model.name"),
        ("model", "name", None, "job.model.name"),
        ("model", "runs", [], "job.model.runs"),
        ("model", "runs", {}, "job.model.runs"),
        ("model", "runs", [1], "job.model.runs[0]"),
        ("model", "hiden", 1, "job.model"),
        ("model", "tied_embeddings", 1, "job.model.tied_embeddings"),
        ("model.runs.0", "count", 10**6, "job.model.runs[0].count"),
        ("model.runs.0.block.attention", "kind", "laten", "job.model.runs[0].block.attention.kind"),
        ("model.runs.0.block.attention", "kind", [], "job.model.runs[0].block.attention.kind"),
        ("model.runs.1.block.feed_forward", "top_k", 999, "job.model.runs[1].block.feed_forward.top_k"),
        ("model.runs.1.block.feed_forward.expert", "kind", "x", "feed_forward.expert.kind"),
        ("recipe", "precision", "bf17", "job.recipe.precision"),
        ("recipe", "global_batch", 0, "job.recipe.global_batch"),
        ("recipe", "global_batch", float("nan"), "job.recipe.global_batch"),
    ],
)
def test_messages_name_the_field(path, field, value, place):
    mapping = copy.deepcopy(some_job())
    at(mapping, path)[field] = value
    with pytest.raises(BadInput) as caught:
        job_from_dict(mapping)
    assert place in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("missing", ["model", "recipe"])
def test_missing_fields_are_named(missing):
    mapping = some_job()
    del mapping[missing]
    with pytest.raises(BadInput, match=f"{missing}: is missing"):
        job_from_dict(mapping)


def test_heads_must_share_key_value_heads():
    job = Job(model=catalogue.load("llama-3.1-8b").model, recipe=Recipe(global_batch=8, sequence=128))
    mapping = encode(job)
    mapping["model"]["runs"][0]["block"]["attention"]["kv_heads"] = 5
    with pytest.raises(BadInput, match="32 heads do not share 5"):
        job_from_dict(mapping)
