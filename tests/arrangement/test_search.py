"""The search: never worse than a policy alone, bounds below what is reached, and the four jobs of a 4:1 Clos."""

import json
from dataclasses import replace
from importlib import import_module
from itertools import combinations

import numpy as np
import pytest

from weft.arrangement.certificate import certify, one_after_another
from weft.arrangement.clock import Clock
from weft.arrangement.cuts import cuts_of, least_cut
from weft.arrangement.search import Search, as_given
from weft.arrangement.site import read_site
from weft.arrangement.template import template
from weft.validation.fit import prior_tables

FOUR = [("llama-3.1-8b", "tp=8,dp=8,sp", 32)] * 2 + [
    ("llama-3.1-8b", "tp=8,dp=8,sp", 64),
    ("mixtral-8x7b", "tp=1,ep=8,pp=4,dp=16", 64),
]
SMALL = [("gpt2-124m", "dp=64", 64)] * 4

WINDOW = 1e-2
"""What counting whole iterations in a window can take off a mean: links are busier at its edges."""


def site_text(jobs, cluster, *, hosts=None, may=None, routing=("ecmp", "planned"), classes=8):
    """A site file; ``hosts`` gives each job its hosts."""
    lines = ['schema = "weft.site/1"', 'name = "site"', f'cluster = "{cluster}"', 'fabric = "fat-tree"']
    lines += [
        "oversubscription = [4.0]",
        "[switches]",
        f"routing = {json.dumps(list(routing))}",
        f"classes = {classes}",
    ]
    for number, (model, layout, batch) in enumerate(jobs):
        lines += ["[[jobs]]", f'name = "job-{number}"', f'model = "{model}"', f'layout = "{layout}"']
        lines += [f"batch = {batch}"]
        if hosts is not None:
            lines += [f"hosts = {json.dumps([f'host-{host}' for host in hosts[number]])}"]
            lines += [f'may = "{may or "stay"}"']
    return "\n".join(lines) + "\n"


def read(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text)
    return read_site(path)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(200))
def test_never_worse_than_any_policy_alone_and_never_below_the_bound(tmp_path, seed):
    draw = np.random.default_rng(seed)
    jobs, sizes, left = [], [], 16
    while left >= 2 and len(jobs) < 4:
        hosts = int(draw.integers(2, min(left, 6) + 1))
        layout = f"tp=4,dp={2 * hosts}" if draw.random() < 0.5 else f"dp={8 * hosts}"
        sizes.append(hosts)
        jobs.append(("gpt2-124m", layout, 8 * hosts * int(draw.integers(1, 4))))
        left -= hosts
    order = draw.permutation(16)[: sum(sizes)]
    held = [part.tolist() for part in np.split(order, np.cumsum(sizes)[:-1])]
    may = ["stay", "reorder", "move"][seed % 3]
    found = Search(read(tmp_path, site_text(jobs, "a100-128", hosts=held, may=may)), budget_s=1).run()
    for name, timed in found.policies.items():
        assert found.best.cost <= timed.cost + 1e-12, name
    assert found.certificate.objective <= found.best.cost * (1 + WINDOW)


def placements():
    drawn = np.random.default_rng(1).permutation(32)
    return {
        "packed": np.split(np.arange(32), 4),
        "random-sorted": [np.sort(part) for part in np.split(drawn, 4)],
        "random": np.split(drawn, 4),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "may", "most"),
    [
        ("packed", "stay", 1.001),
        ("random-sorted", "stay", 1.03),
        ("random", "stay", 1.2),
        ("random", "reorder", 1.02),
        ("random", "move", 1.001),
    ],
)
def test_four_jobs_on_separate_cables_come_near_the_bound(tmp_path, monkeypatch, kind, may, most):
    """The bound is 1.0; jobs that stay on drawn hosts have up to 16 flows for the 12 cables of a leaf.  The constants
    are those before any run, so that no new fit moves the limits."""
    monkeypatch.setattr(import_module("weft.cluster.calibration"), "shipped_tables", prior_tables)
    hosts = [part.tolist() for part in placements()[kind]]
    found = Search(read(tmp_path, site_text(FOUR, "h100-256", hosts=hosts, may=may)), budget_s=120).run()
    assert found.best.slowdown.mean() <= most


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("jobs", "cluster", "budget_s"), [(SMALL, "a100-256", 0.01), (FOUR * 4, "h100-1024", 6)])
def test_a_small_budget_is_no_worse_than_hosts_in_a_row_with_planned_routes(tmp_path, jobs, cluster, budget_s):
    count = 8 * len(jobs)
    hosts = np.random.default_rng(1).permutation(count).reshape(len(jobs), 8).tolist()
    found = Search(read(tmp_path, site_text(jobs, cluster, hosts=hosts, may="move")), budget_s=budget_s).run()
    rows = tuple(map(tuple, np.arange(count).reshape(len(jobs), 8).tolist()))
    row = found.began.timed(found.began.plain(rows, "planned"))
    assert found.best.cost <= found.policies["packed"].cost <= row.cost < found.policies["routes"].cost
    assert found.ended == "budget"
    if budget_s < 1:
        assert list(found.policies) == ["hashed", "routes", "packed", "arrange"]
        assert found.verified.left_out == ("--budget leaves no time for it",)


def test_least_cut_is_the_least_of_all_divisions():
    draw = np.random.default_rng(3)
    for _ in range(10):
        between = draw.integers(0, 9, (6, 6)).astype(float)
        np.fill_diagonal(between, 0.0)
        every = []
        for mask in range(1, 2**5):
            inside = np.array([mask >> at & 1 for at in range(6)], dtype=bool)
            every.append(between[np.ix_(inside, ~inside)].sum() + between[np.ix_(~inside, inside)].sum())
        assert least_cut(between) == min(every) / 2


@pytest.mark.slow
def test_a_certificate_of_jobs_that_share_a_cut_is_above_each_alone(tmp_path):
    hosts = [[number, number + 7] for number in range(7)]
    text = site_text([("llama-3.1-8b", "tp=2,dp=8", 8)] * 7, "h100-112", hosts=hosts)
    site = read(tmp_path, text.replace("oversubscription = [4.0]", "oversubscription = [7.0]"))
    search = Search(site, budget_s=2).run()
    clock = search.clock
    hosts = search.policies["hashed"].choice.hosts
    certificate = certify(clock, cuts_of(clock.fabric), hosts)
    assert certificate.proof == "time-sharing"
    assert 1.5 < certificate.objective <= search.best.cost * (1 + WINDOW)
    lone = certify(clock, cuts_of(replace(clock.fabric, capacity_Bps=clock.fabric.capacity_Bps * 1e3)), hosts)
    assert lone.objective == pytest.approx(1.0)


def test_one_after_another_is_the_largest_sum_over_sets():
    draw = np.random.default_rng(4)
    for _ in range(200):
        count = int(draw.integers(1, 7))
        begin, work, tail = (draw.integers(low, 9, count).astype(float) for low in (0, 1, 0))
        every = [
            begin[list(chosen)].min() + work[list(chosen)].sum() + tail[list(chosen)].min()
            for size in range(1, count + 1)
            for chosen in combinations(range(count), size)
        ]
        assert one_after_another(begin, work, tail) == pytest.approx(max(every))


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(12))
def test_no_router_is_faster_than_the_bound_of_a_job_that_stays(tmp_path, seed):
    draw = np.random.default_rng(seed)
    order = draw.permutation(16)
    hosts = [order[:6].tolist(), order[6:10].tolist()]
    jobs = [("gpt2-124m", "tp=4,dp=12", 96), ("gpt2-124m", "dp=8,pp=4", 64)]
    site = read(tmp_path, site_text(jobs, "a100-128", hosts=hosts, routing=("ecmp", "planned", "spray")))
    clock = Clock(site, tuple(template(job, site.cluster) for job in site.jobs))
    given = as_given(site)
    bound = certify(clock, cuts_of(clock.fabric), given)
    for job in range(2):
        for router in site.routers:
            assert bound.iteration_s[job] <= clock.alone(given, router, job)[0] * (1 + 1e-9)
