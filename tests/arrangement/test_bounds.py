"""The bound for jobs that move, beside every placement of small sites, and least parts beside all parts."""

from itertools import combinations

import numpy as np
import pytest

from weft.arrangement.certificate import ENUMERATED, _crossing, certify
from weft.arrangement.clock import Clock
from weft.arrangement.cuts import cuts_of
from weft.arrangement.search import as_given
from weft.arrangement.template import template

WINDOW = 1e-2
"""What counting whole iterations in a window can take off a mean: links are busier at its edges."""
SITES = [
    ([("gpt2-124m", "dp=24,zero=3", 24), ("gpt2-124m", "dp=24,zero=3", 24)], 24, 4.0),
    ([("gpt2-xl", "dp=24", 24), ("llama-3.1-8b", "tp=8,dp=3", 6)], 24, 4.0),
    ([("llama-3.1-8b", "tp=8,dp=3", 6), ("gpt2-124m", "dp=16,zero=3", 16)], 24, 3.0),
    ([("gpt2-xl", "pp=3,dp=8", 48), ("gpt2-124m", "tp=4,dp=4", 16)], 24, 4.0),
    ([("mixtral-8x7b", "tp=1,ep=8,pp=1,dp=32", 64), ("gpt2-124m", "dp=16", 16)], 32, 8.0),
]


def every_placement(sizes, unit):
    """Hosts of all ranks in every way; ways that differ by the names of equal units or hosts once."""
    units = [np.flatnonzero(unit == number).tolist() for number in range(unit.max() + 1)]

    def below(hosts, used):
        if len(hosts) == sum(sizes):
            yield tuple(map(tuple, np.split(np.array(hosts), np.cumsum(sizes)[:-1])))
            return
        sizes_seen = set()
        for number, of_unit in enumerate(units):
            if used[number] == len(of_unit) or (not used[number] and len(of_unit) in sizes_seen):
                continue
            if not used[number]:
                sizes_seen.add(len(of_unit))
            more = [*used]
            more[number] += 1
            yield from below([*hosts, of_unit[used[number]]], more)

    yield from below([], [0] * len(units))


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("routing", [("ecmp", "planned"), ("ecmp", "planned", "spray")])
@pytest.mark.parametrize(("jobs", "radix", "ratio"), SITES)
def test_no_placement_of_all_jobs_is_better_than_the_bound(site_of, jobs, radix, ratio, routing):
    named = [{"model": model, "layout": layout, "batch": batch} for model, layout, batch in jobs]
    tail = ["[switches]", f"routing = {list(routing)}".replace("'", '"')]
    site = site_of("h100-48", named, tail=tail, radix=radix, ratio=ratio)
    clock = Clock(site, tuple(template(job, site.cluster) for job in site.jobs))
    cuts = cuts_of(clock.fabric)
    bound = certify(clock, cuts, as_given(site))
    slack = WINDOW if bound.proof == "time-sharing" else 1e-9
    best = np.inf
    for hosts in every_placement([job.domains for job in site.jobs], cuts.unit[0]):
        for router in routing:
            timed = clock.timed(clock.plain(hosts, router))
            assert (bound.iteration_s <= timed.iteration_s * (1 + WINDOW)).all()
            best = min(best, timed.cost)
    assert bound.objective <= best * (1 + slack)


def test_of_many_hosts_no_part_sends_less_than_the_least_that_is_known():
    draw = np.random.default_rng(5)
    for _ in range(20):
        small = draw.integers(0, 9, (1, 6, 6)).astype(float) * draw.integers(0, 2, (6, 6))
        np.fill_diagonal(small[0], 0.0)
        # The same matrix with hosts that send nothing is too large to be enumerated.
        large = np.zeros((1, ENUMERATED + 1, ENUMERATED + 1))
        large[:, :6, :6] = small
        uniform = np.ones((1, ENUMERATED + 1, ENUMERATED + 1)) - np.eye(ENUMERATED + 1)
        for matrix in (large + uniform, large):
            _, number, (_, _, most) = _crossing(matrix)
            hosts = matrix.shape[-1]
            for k in (1, 2, 6):
                chosen = np.array(list(combinations(range(hosts), k)))
                inside = np.zeros((len(chosen), hosts))
                inside[np.arange(len(chosen))[:, None], chosen] = 1.0
                sent, received = ((inside @ one * (1.0 - inside)).sum(1) for one in (matrix[0], matrix[0].T))
                assert most[0, number == k][0] <= np.maximum(sent, received).min() + 1e-6
        _, number, (_, _, most) = _crossing(uniform)
        assert most[0].tolist() == pytest.approx((number * (ENUMERATED + 1 - number)).tolist())
