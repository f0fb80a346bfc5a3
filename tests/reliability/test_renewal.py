"""The renewal model: Daly's formula, hand chains, Erlang's formula and the Monte Carlo as oracles."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.reliability.monte_carlo import play, spread
from weft.reliability.process import Pause, Process, Saving, Slow, Stop
from weft.reliability.renewal import best_saving, outcome

HOUR = 3600.0
SHARES = ("goodput", "saving", "rework", "restart", "waiting", "reduced", "planned")


def setting(seed: int) -> tuple[Process, Saving]:
    """Failures every 2 to 8 hours, restarts of minutes, repairs of hours; spares, shrinking, slow networks, pauses
    and peers' checkpoints each in about half of them."""
    dice = random.Random(seed)
    mtbf_s = dice.uniform(2.0, 8.0) * HOUR
    peers = dice.random() < 0.5
    stops = []
    kinds = dice.randint(1, 4)
    for i in range(kinds):
        hosts = dice.choice((0, 0, 1, 1, 1, 2))
        stops.append(
            Stop(
                name=f"stop {i}",
                rate=dice.uniform(0.3, 1.7) / kinds / mtbf_s,
                restart_s=dice.uniform(60.0, 900.0),
                hosts=hosts,
                repair_s=dice.uniform(0.5, 4.0) * HOUR if hosts else 0.0,
                severe=not peers or dice.random() < 0.3,
            )
        )
    slow = dice.random() < 0.5
    slows = [Slow(name="link", rate=1 / dice.uniform(2 * HOUR, 40 * HOUR), duration_s=dice.uniform(600.0, 4 * HOUR),
                  speed=dice.uniform(0.6, 1.0)) for _ in range(dice.randint(1, 2) if slow else 0)]  # fmt: skip
    pause = [Pause(name="maintenance", rate=1 / (24 * HOUR), pause_s=dice.uniform(300.0, 1200.0))]
    replicas = dice.choice((0, 0, 16, 32, 64))
    stall_s = dice.uniform(1.0, 60.0)
    interval_s = dice.uniform(200.0, 1500.0)
    process = Process(
        stops=tuple(stops),
        slows=tuple(slows),
        pauses=tuple(pause if dice.random() < 0.5 else ()),
        spares=dice.randint(2 if replicas == 0 else 0, 6),
        speeds=tuple(1.0 - k / replicas for k in range(replicas // 2)) if replicas else (1.0,),
        regrow_s=dice.uniform(60.0, 300.0),
    )
    lag_s = dice.uniform(0.0, 1.0) * min(interval_s, 300.0) if dice.random() < 0.5 else 0.0
    every = dice.choice((2, 4, 8)) if peers else 1
    return process, Saving(interval_s=interval_s, stall_s=stall_s, lag_s=lag_s, every=every)


def daly(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Goodput of Daly's complete model (Future Generation Computer Systems 22, 2006)."""
    segment = math.expm1((interval_s + checkpoint_s) / mtbf_s)
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * segment)


@given(st.floats(10.0, 5000.0), st.floats(0.0, 300.0), st.floats(0.0, 2000.0), st.floats(1000.0, 1e7))
def test_one_kind_of_failure_is_dalys_model(interval_s, checkpoint_s, restart_s, mtbf_s):
    process = Process(stops=(Stop(name="any", rate=1 / mtbf_s, restart_s=restart_s),))
    found = outcome(process, Saving(interval_s=interval_s, stall_s=checkpoint_s))
    assert found.goodput == pytest.approx(daly(interval_s, checkpoint_s, restart_s, mtbf_s), rel=1e-9)


@given(st.lists(st.tuples(st.floats(1e-6, 1e-4), st.booleans()), min_size=1, max_size=5), st.floats(0.0, 900.0))
def test_kinds_that_are_alike_are_one_kind(kinds, restart_s):
    stops = tuple(Stop(name=str(i), rate=rate, restart_s=restart_s) for i, (rate, _) in enumerate(kinds))
    one = Stop(name="all", rate=sum(rate for rate, _ in kinds), restart_s=restart_s)
    saving = Saving(interval_s=900.0, stall_s=10.0)
    apart, together = outcome(Process(stops=stops), saving), outcome(Process(stops=(one,)), saving)
    assert apart.goodput == pytest.approx(together.goodput, rel=1e-9)
    costs = [cost.share / stop.rate for cost, stop in zip(apart.classes, stops, strict=True)]
    assert max(costs) == pytest.approx(min(costs), rel=1e-9)


def test_two_levels_by_a_chain_of_states():
    """Expected time to pass four segments when mild stops repeat one and severe ones all: a linear system, with a
    state for every number of segments passed and one for a restart after each."""
    mild, severe, length, restart_s = 1 / 5000.0, 1 / 20000.0, 500.0, 200.0
    rate, levels = mild + severe, 4
    passed, held = math.exp(-rate * length), math.exp(-rate * restart_s)
    lasts, again = (1 - passed) / rate, (1 - held) / rate
    matrix, right = np.eye(2 * levels), np.zeros(2 * levels)
    for i in range(levels):  # i: training after i segments; levels + i: restarting with i held
        right[i], right[levels + i] = lasts, again
        if i + 1 < levels:
            matrix[i, i + 1] -= passed
        for row, chance in ((i, 1 - passed), (levels + i, 1 - held)):
            matrix[row, levels + i] -= chance * mild / rate
            matrix[row, levels] -= chance * severe / rate
        matrix[levels + i, i] -= held
    unit_s = np.linalg.solve(matrix, right)[0]
    stops = (
        Stop(name="mild", rate=mild, restart_s=restart_s, severe=False),
        Stop(name="severe", rate=severe, restart_s=restart_s),
    )
    found = outcome(Process(stops=stops), Saving(interval_s=480.0, stall_s=20.0, every=levels))
    assert found.goodput == pytest.approx(levels * 480.0 / unit_s, rel=1e-9)


def erlang_b(load: float, servers: int) -> float:
    terms = [load**n / math.factorial(n) for n in range(servers + 1)]
    return terms[-1] / sum(terms)


@given(st.integers(1, 8), st.floats(1.0, 48.0))
def test_waiting_for_spares_is_erlangs_loss_formula(spares, repair_hours):
    stop = Stop(name="host", rate=1 / (6 * HOUR), restart_s=300.0, hosts=1, repair_s=repair_hours * HOUR)
    found = outcome(Process(stops=(stop,), spares=spares), Saving(interval_s=600.0, stall_s=5.0))
    assert found.waiting == pytest.approx(erlang_b(repair_hours / 6, spares + 1), rel=1e-9)


def test_no_spare_waits_for_each_repair():
    stop = Stop(name="host", rate=1 / (10 * HOUR), restart_s=0.0, hosts=1, repair_s=2 * HOUR)
    found = outcome(Process(stops=(stop,)), Saving(interval_s=60.0, stall_s=0.0))
    assert found.waiting == pytest.approx(2 / 12)


def test_hosts_in_repair_by_a_matrix():
    """Pairs and single hosts fail; the generator's null vector gives the shares of the states."""
    single, pair, repair_s = 1 / (5 * HOUR), 1 / (20 * HOUR), 3 * HOUR
    states, bearable = 8, 5  # three spares, two short at the most, and two waiting
    matrix = np.zeros((states, states))
    for n in range(states):
        if n > 0:
            matrix[n, n - 1] += n / repair_s
        if n <= bearable:
            matrix[n, n + 1] += single
            matrix[n, n + 2] += pair
    matrix -= np.diag(matrix.sum(axis=1))
    system = np.vstack([matrix.T, np.ones(states)])
    chance = np.linalg.lstsq(system, np.r_[np.zeros(states), 1.0], rcond=None)[0]
    stops = (
        Stop(name="single", rate=single, restart_s=0.0, hosts=1, repair_s=repair_s),
        Stop(name="pair", rate=pair, restart_s=0.0, hosts=2, repair_s=repair_s),
    )
    process = Process(stops=stops, spares=3, speeds=(1.0, 0.75, 0.5))
    found = outcome(process, Saving(interval_s=1.0, stall_s=0.0))
    assert found.waiting == pytest.approx(chance[6] + chance[7], rel=1e-6)
    speed = (chance[:4].sum() + 0.75 * chance[4] + 0.5 * chance[5]) / chance[:6].sum()
    assert found.goodput / (found.goodput + found.reduced) == pytest.approx(speed, rel=1e-6)


def test_the_slowest_spell_counts():
    slows = (
        Slow(name="a", rate=1 / HOUR, duration_s=HOUR, speed=0.5),
        Slow(name="b", rate=1 / HOUR, duration_s=2 * HOUR, speed=0.8),
    )
    found = outcome(Process(slows=slows), Saving(interval_s=600.0, stall_s=0.0))
    a, b = 1 - math.exp(-1.0), 1 - math.exp(-2.0)
    assert found.goodput == pytest.approx(a * 0.5 + (1 - a) * b * 0.8 + (1 - a) * (1 - b), rel=1e-9)
    assert sum(one.share for one in found.classes) == pytest.approx(1 - found.goodput, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_shares_and_costs_add_up(seed):
    process, saving = setting(seed)
    found = outcome(process, saving)
    assert all(getattr(found, name) >= 0 for name in SHARES)
    assert sum(getattr(found, name) for name in SHARES) == pytest.approx(1.0, abs=1e-9)
    for name in ("rework", "restart", "waiting", "reduced", "planned"):
        assert sum(getattr(one, name) for one in found.classes) == pytest.approx(getattr(found, name), abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_more_of_anything_bad_is_never_better(seed):
    process, saving = setting(seed)
    before = outcome(process, saving).goodput
    worse = replace(process.stops[0], rate=1.5 * process.stops[0].rate)
    assert outcome(replace(process, stops=(worse, *process.stops[1:])), saving).goodput < before
    slower = replace(process.stops[0], restart_s=process.stops[0].restart_s + 60.0)
    assert outcome(replace(process, stops=(slower, *process.stops[1:])), saving).goodput < before
    late = replace(saving, lag_s=saving.lag_s + 30.0)
    assert outcome(process, late).goodput <= before
    paused = replace(process, pauses=(*process.pauses, Pause(name="more", rate=1e-5, pause_s=600.0)))
    assert outcome(paused, saving).goodput < before
    if process.speeds == (1.0,):
        assert outcome(replace(process, spares=process.spares + 1), saving).goodput >= before * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_interval_is_the_best_of_all(seed):
    process, saving = setting(seed)
    steps, best = best_saving(process, saving, 20.0, 100_000)
    assert best.interval_s == steps * 20.0
    assert best.segment_s >= best.lag_s
    top = outcome(process, best).goodput
    least = max(1, math.ceil((saving.lag_s - saving.stall_s) / 20.0))
    for other in {least, *range(max(least, steps - 3), steps + 4), 2 * steps, 5 * steps}:
        for every in (1, 2, 4, 16, best.every) if saving.every > 1 else (1,):
            tried = replace(saving, interval_s=other * 20.0, every=every)
            assert outcome(process, tried).goodput <= top * (1 + 1e-12)


def drawn(seed: int, stops: int) -> tuple[float, float]:
    """Goodput of the closed form and of a long run."""
    process, saving = setting(seed)
    found = outcome(process, saving)
    work_s = found.goodput / found.stops * stops
    return found.goodput, work_s / play(process, saving, work_s, seed=seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_monte_carlo_agrees(seed):
    closed, played = drawn(seed, 6_000)
    assert played == pytest.approx(closed, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 212))
def test_a_monte_carlo_agrees_on_200_settings(seed):
    closed, played = drawn(seed, 40_000)
    assert played == pytest.approx(closed, rel=0.005)


def test_chance_shrinks_with_the_length_of_a_run():
    process, saving = setting(3)
    short, long = (spread(process, saving, days * 86400.0, runs=60, seed=5) for days in (2.0, 32.0))
    assert long.deviation_s / long.mean_s == pytest.approx(short.deviation_s / short.mean_s / 4, rel=0.4)
    assert spread(process, saving, 1e5, runs=3, seed=1) == spread(process, saving, 1e5, runs=3, seed=1)


def test_without_stops_nothing_is_lost_but_stalls():
    saving = Saving(interval_s=90.0, stall_s=10.0)
    assert outcome(Process(), saving).goodput == pytest.approx(0.9)
    assert play(Process(), saving, 900.0, seed=0) == pytest.approx(1000.0)


def test_failures_too_fast():
    process = Process(stops=(Stop(name="any", rate=1.0, restart_s=60.0),))
    with pytest.raises(BadInput, match="leaves no time"):
        outcome(process, Saving(interval_s=10.0, stall_s=1.0))
