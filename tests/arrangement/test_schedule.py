"""Circles and orders of classes, on the small examples of the papers whose policies are made anew here.

CASSINI (Rajasekaran et al., NSDI 2024, arXiv 2308.00852): the unified circle of section 3 for iterations of 40 and
60 ms (perimeter 120 ms), the compatibility score (1 less the mean excess over the link's capacity), and the VGG16
profile of section 2 (iterations of 255 ms, the first 141 ms of them without traffic).  Crux (Cao et al., SIGCOMM
2024): GPU intensity (section 3, equation 2) and the compression of priorities (section 4.3).  The papers' texts were
not at hand: of CASSINI only these figures are taken, of Crux the definitions as a public summary gives them; what
else a case needs (how long the 40 and 60 ms jobs send, Crux's jobs and links) is built by hand.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from weft.arrangement.clock import Clock
from weft.arrangement.schedule import (
    BINS,
    MISFIT,
    MOST_TURNS,
    circle,
    compressed,
    crux_order,
    intensities,
    periods,
    turned,
)
from weft.arrangement.search import as_given
from weft.arrangement.site import read_site
from weft.arrangement.template import template
from weft.model.job import model_flops


def laid(perimeter_ms, *jobs):
    """Demand of jobs (iteration, milliseconds in which it sends at full rate) for one link around a circle."""
    edges = np.linspace(0, perimeter_ms, BINS + 1)
    found = np.zeros((len(jobs), 1, BINS))
    for job, (iteration, sends) in enumerate(jobs):
        done = np.floor(edges / iteration) * sends + np.minimum(edges % iteration, sends)
        found[job, 0] = np.diff(done) / (perimeter_ms / BINS)
    return found


def score(wanted, turns):
    """CASSINI's compatibility score of one link."""
    return 1 - turned(wanted, turns) / BINS


def test_jobs_that_interleave_on_the_unified_circle_score_1():
    # Iterations of 40 and 60 ms meet in every residue of 20 ms: 10 ms each fit, 12 and 10 ms cannot.
    fits = laid(120, (40, 10), (60, 10))
    assert score(fits, circle(fits, 0)[0]) == pytest.approx(1)
    assert [one.tolist() for one in circle(fits, 0, lambda: True)] == [[0] * len(fits)]
    assert score(fits, np.array([0, 0])) < 1
    over = laid(120, (40, 12), (60, 10))
    best = circle(over, 0)[0]
    every = [score(over, np.array([0, turn])) for turn in range(BINS)]
    assert score(over, best) == pytest.approx(max(every))
    assert max(every) < 1
    # A circle of 60 ms holds the shorter iteration as one of 30 ms: turns that fit there collide in truth.
    short = laid(60, (30, 10), (60, 10))
    moments = np.arange(0, 120, 0.5)

    def collide(turn_ms):
        return bool(((moments % 40 < 10) & ((moments - turn_ms) % 60 < 10)).any())

    good = [turn * 60 / BINS for turn in range(BINS) if score(short, np.array([0, turn])) > 1 - 1e-9]
    assert any(collide(turn_ms) for turn_ms in good)
    assert not collide(circle(fits, 0)[0][1] * 120 / BINS)


def test_two_vgg16_jobs_interleave_and_three_do_not():
    two, three = laid(255, *[(255, 114)] * 2), laid(255, *[(255, 114)] * 3)
    apart = circle(two, 0)[0][1] * 255 / BINS
    assert score(two, circle(two, 0)[0]) == pytest.approx(1)
    assert 114 - 255 / BINS <= apart <= 141 + 255 / BINS
    # 342 ms of sending in 255 ms: the excess is what is over, when they overlap no more than they must.
    assert score(three, circle(three, 0)[0]) == pytest.approx(1 - (3 * 114 - 255) / 255, abs=1e-6)


def test_the_circle_holds_whole_iterations_as_far_as_a_small_multiple_can():
    draw = np.random.default_rng(0)
    for _ in range(200):
        seconds = draw.uniform(0.1, 2.0, int(draw.integers(1, 5)))
        found = periods(seconds)
        assert found[0] == seconds.max()

        def misfit(period, seconds=seconds):
            return float(np.abs(period / seconds / np.rint(period / seconds) - 1).max())

        every = [misfit(turns * seconds.max()) for turns in range(1, MOST_TURNS + 1)]
        assert misfit(found[-1]) <= max(MISFIT, min(every)) + 1e-12
        if len(found) > 1:
            assert misfit(found[0]) > MISFIT


def two_jobs(folder, batches):
    """Two jobs with equal gradients over the same leaves, which compute as much as their batches."""
    lines = ['schema = "weft.site/1"', 'name = "two"', 'cluster = "a100-128"', 'fabric = "fat-tree"']
    lines += ["oversubscription = [4.0]", "[switches]", "classes = 2"]
    for number, batch in enumerate(batches):
        hosts = [f"host-{host}" for host in range(number, 16, 2)]
        lines += ["[[jobs]]", f'name = "job-{number}"', 'model = "gpt2-124m"', 'layout = "dp=64"']
        lines += [f"batch = {batch}", f"hosts = {hosts}".replace("'", '"')]
    path = folder / "site.toml"
    path.write_text("\n".join(lines))
    site = read_site(path)
    return Clock(site, tuple(template(job, site.cluster) for job in site.jobs))


def test_intensity_is_work_over_the_seconds_of_the_busiest_link(tmp_path):
    contended = two_jobs(tmp_path, (512, 64))
    choice = contended.plain(as_given(contended.site))
    worth, meets = intensities(contended, choice)
    assert meets.all()
    for job, one in enumerate(contended.site.jobs):
        outer = contended.fabric.tier > 0
        carried = contended.carried(choice.hosts, "ecmp", job)[outer] / contended.fabric.capacity_Bps[outer]
        assert worth[job] == pytest.approx(model_flops(one.job.model, one.job.recipe) / carried.max())
    assert worth[0] > 4 * worth[1]
    assert crux_order(worth) == (0, 1)


@pytest.mark.slow
def test_the_job_of_higher_intensity_first_computes_more_in_all(tmp_path):
    """Crux's theorem 1: the utilization (FLOP/s of all jobs) by its order, by the reverse, and by none.

    It is about means over time: where one iteration is nearly a multiple of the other, the phases in which the jobs
    happen to meet may favour the reverse.  So it is asked of the mean over pairs.
    """
    orders, total = ((0, 1), (1, 0), (0, 0)), np.zeros(3)
    for batch in (256, 384, 512, 640, 768, 1024):
        contended = two_jobs(tmp_path, (batch, 64))
        choice = contended.plain(as_given(contended.site))
        work = np.array([model_flops(one.job.model, one.job.recipe) for one in contended.site.jobs])
        total += [(work / contended.timed(replace(choice, order=order)).iteration_s).sum() for order in orders]
    assert total[0] > total[1]
    assert total[0] > total[2]


def test_few_classes_lose_the_least_of_all_ways_to_cut_the_order():
    draw = np.random.default_rng(1)
    for _ in range(100):
        jobs, classes = int(draw.integers(1, 8)), int(draw.integers(1, 6))
        worth = draw.integers(1, 9, jobs).astype(float)
        meets = draw.random((jobs, jobs)) < 0.5
        meets |= meets.T
        chain = np.argsort(crux_order(worth))

        def lost(level, worth=worth, meets=meets, chain=chain):
            pairs = combinations(chain.tolist(), 2)
            return sum(worth[a] for a, b in pairs if meets[a, b] and level[a] == level[b])

        found = compressed(crux_order(worth), worth, meets, classes)
        every = []
        for cut in combinations(range(1, jobs), min(classes, jobs) - 1):
            level = np.zeros(jobs, dtype=int)
            for at in cut:
                level[chain[at:]] += 1
            every.append(lost(level))
        assert lost(found) == min(every)
        assert (np.diff(np.array(found)[chain]) >= 0).all()


def test_four_jobs_in_two_classes_part_where_the_most_is_lost():
    worth = np.array([4.0, 3.0, 2.0, 1.0])
    meets = np.zeros((4, 4), dtype=bool)
    meets[[0, 1, 2, 3], [1, 0, 3, 2]] = True
    assert compressed((0, 1, 2, 3), worth, meets, 2) == (0, 1, 1, 1)
    assert compressed((0, 1, 2, 3), worth, meets, 4) == (0, 1, 2, 3)
