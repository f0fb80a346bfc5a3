"""Layouts that are chosen: against brute force, never worse than those kept, above their bound."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from weft.arrangement.clock import Clock
from weft.arrangement.layouts import Layouts
from weft.arrangement.search import Search
from weft.errors import BadInput
from weft.search.enumeration import SPACES, Enumeration

FEW = "pp=1,cp=1,z=1,micro_batch=4,zero=1,recompute=none"
WINDOW = 1e-2
"""What counting whole iterations in a window can take off a mean."""


def every_layout(job):
    """All layouts of a job's space; small models fit in any."""
    parts = Enumeration(job.job, job.layout.world, job.space).parts()
    tables = [batch.table for part in parts for batch in part.batches(np.arange(len(part.frames)))]
    return [table.row(at) for table in tables for at in range(len(table))]


@pytest.mark.slow
def test_layouts_and_hosts_are_the_best_of_all(site_of):
    """Two jobs of two hosts each behind leaves of two: every layout with every placement, hashed."""
    site = site_of("a100-32", [{"accelerators": 16, "fix": FEW}, {"layout": "tp=2,dp=8"}], radix=20)
    found = Search(site, budget_s=300).run()
    layouts = Layouts(site, lambda: 300.0)
    begun, references = layouts.begun()
    base = Clock(begun, tuple(layouts.template(job, job.layout) for job in begun.jobs), references)
    every = every_layout(site.jobs[0])
    assert 2 < len(every) < 40
    costs = []
    for layout in every:
        clock = base.recut(0, layout, layouts.template(site.jobs[0], layout))
        for hosts in combinations(range(4), 2):
            others = tuple(host for host in range(4) if host not in hosts)
            for one, other in product((hosts, hosts[::-1]), (others, others[::-1])):
                costs.append(clock.timed(clock.plain((one, other))).cost)
    assert found.best.cost <= min(costs) * (1 + 1e-9)
    assert found.certificate.objective <= min(costs) * (1 + 1e-9)
    assert references[0].seconds == pytest.approx(min(layouts.template(site.jobs[0], one).alone_s for one in every))


def drawn_site(site_of, seed):
    """A random site whose jobs may all have other layouts, on hosts where they meet."""
    draw = np.random.default_rng(seed)
    order, jobs, first = draw.permutation(8).tolist(), [], 0
    for hosts in draw.permutation([2, 2, 4])[: 2 + seed % 2].tolist():
        at = [f"host-{host}" for host in order[first : first + hosts]]
        first += hosts
        begin = {"hosts": at, "may": ["stay", "reorder", "move"][seed % 3]}
        begin |= {"fix": "pp=1,micro_batch=2" if seed else "pp=1,cp=1,z=1,micro_batch=2,recompute=none"}
        if draw.random() < 0.5:
            begin |= {"layout": f"tp=4,dp={2 * hosts},micro_batch=2", "keep_layout": False}
        jobs.append(begin)
    return site_of("a100-64", jobs, radix=20, ratio=float(draw.choice([2.0, 4.0])))


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("seed", range(12))
def test_free_layouts_are_never_worse_than_the_first_and_never_below_the_bound(site_of, seed):
    site = drawn_site(site_of, seed)
    found = Search(site, budget_s=120).run()
    begun, _ = Layouts(site, lambda: 120.0).begun()
    kept = Search(replace(begun, jobs=tuple(replace(job, cut="keep") for job in begun.jobs)), budget_s=120).run()
    assert found.best.cost <= found.policies["kept"].cost
    assert found.best.score <= found.clock.objective.score(kept.best.iteration_s) + 1e-9
    assert found.certificate.objective <= found.best.score * (1 + WINDOW)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("space", "count"), [("standard", 2), ("standard", 25), ("zero-bubble", 25), ("wide", 25)])
def test_no_layout_alone_is_below_the_bound(site_of, space, count):
    """Random layouts, most with pipelines, stepped as the clock does."""
    job = site_of("h100-32", [{"model": "llama-3.1-8b", "accelerators": 16}]).jobs[0]
    job = replace(job, space=replace(SPACES[space], fixed={"micro_batch": (2,)}))
    site = site_of("h100-32", [{"model": "llama-3.1-8b", "accelerators": 16}])
    layouts = Layouts(replace(site, jobs=(job,)), lambda: 120.0)
    bound_s = layouts.ranked(job).reference.bound_s
    draw = np.random.default_rng(0)
    every = [one for one in every_layout(job) if one.pipeline > 1 or draw.random() < 0.1]
    for at in draw.choice(len(every), count, replace=False).tolist():
        assert layouts.template(job, every[at]).alone_s >= bound_s * (1 - 1e-9), every[at]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({}, "says neither its layout nor how many accelerators"),
        ({"accelerators": 16, "keep_layout": True}, "needs a layout to keep"),
        ({"layout": "dp=16", "fix": "tp=2"}, "fixes parts of a layout that is kept"),
        ({"accelerators": 12}, "12 ranks do not fill hosts of 8"),
        ({"layout": "dp=16", "tokens": 1e9, "iterations": 5}, "gives iterations and tokens"),
    ],
)
def test_a_job_that_cannot_be_cut_is_refused(site_of, job, words):
    with pytest.raises(BadInput, match=words):
        site_of("a100-32", [job])


def test_an_interrupt_among_the_layouts_keeps_the_best_so_far(site_of, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Layouts, "candidates", interrupted)
    found = Search(drawn_site(site_of, 0), budget_s=120).run()
    assert found.ended == "interrupted"
    assert found.verified is None
    assert found.best is found.policies["kept"]


def test_a_slower_network_puts_layouts_that_send_less_first(site_of):
    """Where jobs meet, what the job felt orders the candidates."""
    hosts = [["host-0", "host-2"], ["host-1", "host-3"]]
    free = {"fix": "pp=1,cp=1,z=1,micro_batch=2,recompute=none", "keep_layout": False, "layout": "dp=16,micro_batch=2"}
    jobs = [{"batch": 32, "hosts": held} | free for held in hosts]
    site = site_of("a100-32", jobs, radix=20, ratio=4.0)
    layouts = Layouts(site, lambda: 120.0)
    begun, references = layouts.begun()
    clock = Clock(begun, tuple(layouts.template(job, job.layout) for job in begun.jobs), references)
    now = clock.timed(clock.plain(tuple(job.hosts for job in begun.jobs)))
    assert now.slowdown[0] > 1.01
    alone = clock.timed(now.choice, [0])

    def sent(first):
        traffic = layouts.template(site.jobs[0], first).traffic
        return 0.0 if traffic is None else traffic.bytes.sum()

    assert layouts.pace(clock, now, 0) > layouts.pace(clock, alone, 0) >= 1.0
    contended, calm = next(layouts.candidates(clock, now, 0)), layouts.ranked(site.jobs[0]).layouts[0]
    assert sent(contended) <= sent(calm)
