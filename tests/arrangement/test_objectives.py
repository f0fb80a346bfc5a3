"""Objectives by hand on sites of two jobs, their bounds, spares, and the winner stepped flow by flow."""

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.arrangement.certificate import certify
from weft.arrangement.clock import Objective
from weft.arrangement.cuts import cuts_of
from weft.arrangement.search import Search
from weft.errors import BadInput
from weft.model import model_flops

APART = [{"layout": "dp=16", "batch": 64, "iterations": 300}, {"layout": "tp=4,dp=4", "batch": 32, "tokens": 3.2e6}]
KINDS = ["slowdown", "worst", "makespan", "utilization", "dollars_per_token"]
WINDOW = 1e-2


def goal(kind, *more):
    return ["[objective]", f'kind = "{kind}"', *more]


def by_hand(kind, site, seconds):
    """The objective of jobs with so many seconds an iteration that do not meet."""
    jobs = [job.job for job in site.jobs]
    if kind == "makespan":
        return max(300 * seconds[0], np.ceil(3.2e6 / jobs[1].recipe.tokens) * seconds[1])
    if kind == "utilization":
        done = sum(model_flops(job.model, job.recipe) / one for job, one in zip(jobs, seconds, strict=True))
        return done / (312e12 * 32)
    if kind == "dollars_per_token":
        return 32 * 2.5 / 3600 / sum(job.recipe.tokens / one for job, one in zip(jobs, seconds, strict=True))
    return 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_objectives_of_jobs_that_do_not_meet_are_those_by_hand(site_file, kind):
    more = ["usd_per_accelerator_hour = 2.5"] if kind == "dollars_per_token" else []
    found = weft.arrange(site_file("a100-32", APART, radix=20, tail=goal(kind, *more)))
    seconds = found.best.iteration_s
    assert found.objective == pytest.approx(by_hand(kind, found.site, seconds), rel=1e-5)
    assert found.gap == 0.0
    assert found.bound == pytest.approx(found.objective, rel=1e-5)
    assert found.to_dict()["objective"]["kind"] == kind


def test_dollars_cover_the_spares_of_racks(site_of):
    """Two racks of 72 GPUs, of which 64 work, cost nine eighths of two domains of 64."""
    racks = site_of("gb200-128", [{"layout": "tp=4,dp=32", "batch": 64}], radix=64, tail=goal("dollars_per_token"))
    domains = replace(racks, cluster=replace(racks.cluster, whole_domains=False))
    costs = [Objective.of(site, np.ones(1)).scale for site in (racks, domains)]
    assert costs[0] == pytest.approx(costs[1] * 9 / 8)


def crossed(site_of, kind, layouts=("dp=16", "dp=16")):
    """Two jobs, each in both of two leaves, that stay."""
    jobs = [
        {"layout": layout, "batch": 32, "hosts": [f"host-{at}" for at in hosts], "iterations": count}
        for layout, hosts, count in zip(layouts, ((0, 2), (1, 3)), (100, 250), strict=True)
    ]
    return site_of("a100-32", jobs, radix=20, ratio=4.0, tail=goal(kind))


def test_a_job_that_ends_makes_room_for_the_others(site_of):
    found = Search(crossed(site_of, "makespan"), budget_s=60).run()
    clock = found.clock
    both, rest = found.policies["hashed"], clock.timed(found.policies["hashed"].choice, [1])
    one, other = both.iteration_s
    assert rest.iteration_s[1] < other
    ends = 100 * one, 100 * one + (250 - 100 * one / other) * rest.iteration_s[1]
    assert clock.objective.shown(both.score) == pytest.approx(max(ends), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_objective_is_better_than_its_bound(site_of, kind):
    found = Search(crossed(site_of, kind), budget_s=60).run()
    certificate = certify(found.clock, cuts_of(found.clock.fabric), found.policies["hashed"].choice.hosts)
    assert 1.0 - 1e-5 <= certificate.objective <= found.best.score * (1 + WINDOW)
    assert all(found.best.score <= one.score + 1e-12 for one in found.policies.values())


@pytest.mark.parametrize(("layout", "apart"), [("pp=2,dp=8", 1e-9), ("tp=2,pp=2,dp=4", 5e-4)])
def test_the_winner_steps_the_same_flow_by_flow(site_of, layout, apart):
    """Phases that stay inside hosts (of tp) are delays to the search; flow by flow they share NVLink with the rings
    of dp, for longer where cables are shared.  Without such phases both are exact."""
    found = Search(crossed(site_of, "slowdown", ("dp=16", layout)), budget_s=60).run()
    assert found.best.slowdown.max() > 1.001
    assert found.verified.jobs == 2
    assert found.verified.apart < apart
    assert found.verified.iteration_s == pytest.approx(found.best.iteration_s, rel=apart)


PRICELESS = """name = "priceless"
count = 32
[accelerator]
name = "example-chip"
vendor = "Example"
bf16 = "275 TFLOP/s"
memory = "32 GiB"
memory_bandwidth = "1.2 TB/s"
scale_up_size = 8
scale_up_bandwidth = "270 GB/s"
nic_bandwidth = "100 Gb/s"
host_bandwidth = "32 GB/s"
multiprocessors = 2
power = "200 W"
"""


@pytest.mark.parametrize(
    ("kind", "words"), [("makespan", "job-0 does not say how long it is"), ("dollars_per_token", "has no price")]
)
def test_an_objective_without_what_it_counts_is_refused(site_of, tmp_path, kind, words):
    (tmp_path / "priceless.toml").write_text(PRICELESS)
    with pytest.raises(BadInput, match=words):
        site_of("priceless.toml", [{"layout": "dp=16"}], tail=goal(kind))
