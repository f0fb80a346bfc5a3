"""Arrangements read back whole are what was written, whatever the objective; damaged ones are refused."""

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import weft
from weft.arrangement.bundle import Arrangement, arrangement_of
from weft.arrangement.clock import RATES
from weft.arrangement.search import as_given
from weft.arrangement.site import read_site
from weft.arrangement.template import template
from weft.errors import BadInput
from weft.layout import Layout
from weft.views.arrangement import loads_before_after

EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def two_jobs():
    return weft.arrange(EXAMPLES / "two-jobs.toml", budget="1s")


def test_what_is_read_back_is_what_was_written(tmp_path, arranged_site):
    """A drained host, a job that stays, one that may move; all bytes, schedules too."""
    path = tmp_path / "arranged.json"
    arranged_site.save(path)
    again = weft.read(path)
    assert isinstance(again, Arrangement)
    assert again.to_json() == path.read_text()
    assert again.site.usable.count(False) == 1
    assert again.policies["hashed"].choice.hosts == as_given(read_site(EXAMPLES / "site.toml"))
    for name in ("hashed", "arrange"):
        known = again.policies[name]
        stepped = again.clock_of(name).timed(known.choice)
        assert known.iteration_s == pytest.approx(stepped.iteration_s, rel=1e-9)
        assert known.score == pytest.approx(stepped.score, rel=1e-9)


@pytest.mark.slow_but(3)
@pytest.mark.parametrize("kind", ["worst", "makespan", *RATES])
def test_objectives_keep_their_meaning(tmp_path, kind):
    text = (EXAMPLES / "two-jobs.toml").read_text()
    cluster = (EXAMPLES / "two-jobs-cluster.toml").read_text()
    (tmp_path / "two-jobs-cluster.toml").write_text(cluster)
    goal = f'\n[objective]\nkind = "{kind}"\nusd_per_accelerator_hour = 2.0\n'
    text = text.replace("[[jobs]]", "[[jobs]]\niterations = 100") + goal
    site, path = tmp_path / "site.toml", tmp_path / "arranged.json"
    site.write_text(text)
    found = weft.arrange(site, budget="1s")
    found.save(path)
    again = weft.read(path)
    goals = [one.to_dict()["objective"] for one in (found, again)]
    assert goals[1]["kind"] == kind
    for name in ("value", "bound", "gap"):
        assert goals[1][name] == pytest.approx(goals[0][name], rel=1e-12, abs=1e-12)
    text_of = [one.clock.objective.text(one.best.score) for one in (found, again)]
    assert text_of[0] == text_of[1]
    assert again.assumptions() == found.assumptions()


def test_what_was_before_has_the_first_layouts(tmp_path):
    """Its loads too: they are those of a clock of which nothing was changed."""
    whole = two_jobs()
    found, layout = whole, Layout(data=2, x=2)
    job = found.clock.site.jobs[0]
    other = found.clock.recut(0, layout, template(replace(job, layout=layout), whole.site.cluster))
    policies = {**found.policies, "arrange": other.timed(found.best.choice)}
    changed = replace(found, clock=other, policies=policies)
    path = tmp_path / "arranged.json"
    changed.save(path)
    again = weft.read(path)
    assert again.to_json() == path.read_text()
    for one in (changed, again):
        before, after = loads_before_after(one)
        assert before.of_job == pytest.approx(loads_before_after(whole)[0].of_job)
        assert after.of_job[0] != pytest.approx(before.of_job[0])
        assert (one.site.jobs[0].layout, one.began.site.jobs[0].layout) == (layout, job.layout)


DAMAGED = {
    "no search": (("search",), None, "search"),
    "an unknown end": (("ended",), "tired", "ended"),
    "another objective": (("objective", "kind"), "fun", "kind"),
    "an objective of nothing": (("objective", "value"), 0.0, "value"),
    "no policies": (("policies",), {}, "holds no policy 'hashed'"),
    "a policy for one job": (("policies", "hashed", "slowdown"), [1.0], "one value for each job"),
    "a policy on one host": (("policies", "hashed", "domains"), [[0, 0], [1, 2]], "two places are one host"),
    "a policy beyond the hosts": (("policies", "hashed", "domains"), [[0, 99], [1, 2]], "two places are one host"),
    "classes of nothing": (("policies", "hashed", "class"), [7, 9], "not classes of jobs"),
    "another arrangement": (("policies", "arrange", "offset_s"), [0.0, 123.0], "not the same hosts"),
    "a host too few": (("hosts",), [], "different names"),
    "a host by another name": (("hosts", 0, "name"), "elsewhere", "not the names of its domains"),
    "another proof": (("jobs", 0, "bound_by"), "faith", "bound_by"),
    "a layout of another size": (("jobs", 0, "first_layout_text"), "data=64", "accelerators"),
    "verified for one": (("verified", "iteration_s"), [1.0], "one value for each job"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_arrangement_is_refused_with_one_message(name):
    where, value, words = DAMAGED[name]
    document = copy.deepcopy(written())
    at = document
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    with pytest.raises(BadInput, match=words) as refused:
        arrangement_of(document, "given")
    assert str(refused.value).startswith("given")


@cache
def written():
    """The document of two jobs, of which the first holds host 0."""
    document = two_jobs().to_dict()
    held = sorted(host for job in document["jobs"] for host in job["domains"])
    assert 0 in held
    return document


def test_an_arrangement_is_no_side_of_a_comparison(tmp_path):
    path = tmp_path / "arranged.json"
    path.write_text(json.dumps(written()))
    with pytest.raises(BadInput, match="holds neither a plan nor an estimate"):
        weft.compare(str(path), str(path))
