"""Max-min fair sharing: kernel, reference, certificate and linear programs agree."""

import subprocess
import sys
from itertools import pairwise

import highspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.solvers.maxmin import check, reference, solve


def random_problem(rng, flows, links, *, even=False, hops=5):
    """Flows over random links, with weights, usages, caps and links without capacity unless ``even``."""
    lengths = rng.integers(1 if even else 0, hops + 1, flows)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    places = int(indptr[-1])
    capacity = rng.choice([1e9, 2.5e9, 1e10], links)
    if even:
        usage, weight, cap = np.ones(places), np.ones(flows), np.full(flows, np.inf)
    else:
        capacity[rng.random(links) < 0.05] = 0.0
        usage = rng.choice([1.0, 0.5, 0.25, 1 / 3], places)
        weight = rng.choice([1.0, 2.0, 0.3], flows)
        cap = np.where(rng.random(flows) < 0.3, rng.uniform(1e7, 3e9, flows), np.inf)
        cap[lengths == 0] = rng.uniform(1e7, 3e9, int(np.sum(lengths == 0)))
    return capacity, indptr, rng.integers(0, links, places), usage, weight, cap


def assert_solved(problem):
    rates, expected = solve(*problem), reference(*problem)
    assert check(rates, *problem) is None
    assert check(expected, *problem) is None
    np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-9 * problem[0].max())


def some_cases(seed, count):
    rng = np.random.default_rng(seed)
    for number in range(count):
        flows, links = int(rng.integers(1, 40)), int(rng.integers(1, 20))
        yield random_problem(rng, flows, links, even=number % 3 == 0)


def test_random_problems():
    for problem in some_cases(1, 500):
        assert_solved(problem)


@pytest.mark.slow
def test_ten_thousand_random_problems():
    for problem in some_cases(2, 10_000):
        assert_solved(problem)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 30), st.booleans())
def test_any_size(seed, flows, links, even):
    assert_solved(random_problem(np.random.default_rng(seed), flows, links, even=even))


@pytest.mark.slow
def test_a_large_problem():
    assert_solved(random_problem(np.random.default_rng(3), 8_000, 2_000))


def by_linear_programs(capacity, indptr, links, usage, weight, cap):
    """Raise the level of all open flows as far as a linear program can; the others stop there."""
    flows = len(weight)
    rate, open_flows = np.zeros(flows), np.ones(flows, dtype=bool)
    matrix = np.zeros((len(capacity), flows))
    for flow, (begin, end) in enumerate(pairwise(indptr)):
        np.add.at(matrix[:, flow], links[begin:end], usage[begin:end])
    while open_flows.any():
        level = highest(matrix, capacity, weight, cap, rate, open_flows, None)
        stuck = [
            flow
            for flow in np.flatnonzero(open_flows)
            if highest(matrix, capacity, weight, cap, rate, open_flows, (flow, level)) <= level * (1 + 1e-8) + 1e-9
        ]
        rate[stuck] = level * weight[stuck]
        open_flows[stuck] = False
    return rate


def highest(matrix, capacity, weight, cap, rate, open_flows, one):
    """Largest common level, or the largest level of one flow while the open ones keep a level."""
    solver = highspy.Highs()
    solver.silent()
    flows = len(weight)
    level = solver.addVariable(lb=0, ub=float(np.max(cap / weight, where=np.isfinite(cap), initial=1e3)))
    rates = []
    for flow in range(flows):
        fixed = None if open_flows[flow] else float(rate[flow])
        low = 0.0 if fixed is None else fixed
        if one is not None and fixed is None:
            low = float(one[1] * weight[flow]) * (1 - 1e-12)
        rates.append(solver.addVariable(lb=low, ub=float(cap[flow]) if fixed is None else fixed))
        if fixed is None and (one is None or one[0] == flow):
            solver.addConstr(rates[flow] - float(weight[flow]) * level >= 0)
    for link in range(len(capacity)):
        terms = [float(matrix[link, flow]) * rates[flow] for flow in range(flows) if matrix[link, flow] > 0]
        if terms:
            solver.addConstr(sum(terms[1:], terms[0]) <= float(capacity[link]))
    solver.maximize(level)
    return float(solver.val(level))


def test_equals_linear_programs():
    rng = np.random.default_rng(4)
    for _ in range(12):
        capacity, indptr, links, usage, weight, cap = random_problem(rng, 6, 4)
        problem = (capacity / 1e9, indptr, links, usage, weight, cap / 1e9)
        np.testing.assert_allclose(solve(*problem), by_linear_programs(*problem), rtol=1e-6, atol=1e-6)


def test_relabelling_changes_nothing():
    rng = np.random.default_rng(5)
    capacity, indptr, links, usage, weight, cap = random_problem(rng, 200, 60)
    flow_order, link_number = rng.permutation(200), rng.permutation(60)
    places = np.concatenate([np.arange(indptr[flow], indptr[flow + 1]) for flow in flow_order])
    renamed = np.empty(60)
    renamed[link_number] = capacity
    other = solve(
        renamed,
        np.concatenate([[0], np.cumsum(np.diff(indptr)[flow_order])]),
        link_number[links[places]],
        usage[places],
        weight[flow_order],
        cap[flow_order],
    )
    rates = solve(capacity, indptr, links, usage, weight, cap)
    np.testing.assert_allclose(other, rates[flow_order], rtol=1e-9, atol=1e-3)


def test_two_flows_and_a_crossing_one():
    """Link 0 (6) carries a and b, link 1 (10) carries b and c: a = b = 3, c = 7."""
    rates = solve(
        np.array([6.0, 10.0]),
        np.array([0, 1, 3, 4]),
        np.array([0, 0, 1, 1]),
        np.ones(4),
        np.ones(3),
        np.full(3, np.inf),
    )
    assert rates.tolist() == [3.0, 3.0, 7.0]


def test_weights_caps_and_split_paths():
    """Weights 1 and 2 on a link of 9, and half of a flow capped at 1.5: 0.75 + x + 2x = 9."""
    rates = solve(
        np.array([9.0]),
        np.array([0, 1, 2, 3]),
        np.zeros(3, dtype=np.int64),
        np.array([1.0, 1.0, 0.5]),
        np.array([1.0, 2.0, 1.0]),
        np.array([np.inf, np.inf, 1.5]),
    )
    np.testing.assert_allclose(rates, [2.75, 5.5, 1.5], rtol=1e-15)


def test_no_capacity_and_no_limit():
    """A link without capacity gives 0; without links and cap the rate is infinite."""
    rates = solve(
        np.array([0.0, 5.0]), np.array([0, 2, 2]), np.array([0, 1]), np.ones(2), np.ones(2), np.full(2, np.inf)
    )
    assert rates.tolist() == [0.0, np.inf]


def test_the_certificate_finds_faults():
    problem = random_problem(np.random.default_rng(6), 30, 8, even=True)
    rates = solve(*problem)
    assert "carries" in check(rates * 1.001, *problem)
    assert "could have more" in check(rates * 0.999, *problem)
    swapped = rates.copy()
    low, high = np.argmin(rates), np.argmax(rates)
    swapped[low] /= 2
    assert check(swapped, *problem) is not None
    assert "cap" in check(np.where(np.arange(30) == high, -1.0, rates), *problem)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, np.array([-1.0]), "capacity"),
        (0, np.array([np.nan]), "capacity"),
        (1, np.array([0, 2]), "indptr"),
        (2, np.array([7]), "does not exist"),
        (3, np.array([0.0]), "usage"),
        (4, np.array([np.inf]), "weight"),
        (4, np.array([1.0, 1.0]), "weights"),
        (5, np.array([-2.0]), "cap"),
    ],
)
def test_bad_problems_are_named(place, value, words):
    problem = [np.array([1.0]), np.array([0, 1]), np.array([0]), np.ones(1), np.ones(1), np.ones(1)]
    problem[place] = value
    with pytest.raises(BadInput, match=words):
        solve(*problem)


@pytest.mark.slow
def test_other_processes_find_the_same_bits():
    code = (
        "import numpy as np; from weft.solvers.maxmin import solve; r = np.random.default_rng(7);"
        "n = 500; u = r.uniform(.1, 1, 4 * n); w = r.uniform(.5, 2, n);"
        "print(solve(r.uniform(1, 9, 80), np.arange(n + 1) * 4, r.integers(0, 80, 4 * n), u, w,"
        " np.full(n, np.inf)).tobytes().hex())"
    )
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(runs) == 1
    assert len(runs.pop()) > 8000
