"""Max-min rates against their certificate, the definition and linear programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from weft.errors import BadInput
from weft.solvers.maxmin import check, reference, solve

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Problem(NamedTuple):
    """Arguments of ``solve``, in its order."""

    capacity: Floats
    indptr: Ints
    links: Ints
    usage: Floats
    weight: Floats
    cap: Floats


def paths_of(rng: np.random.Generator, flows: int, links: int) -> list[tuple[Ints, Floats]]:
    """Links and usage of each flow: single paths, or paths that split and join again."""
    longest = int(rng.integers(1, min(links, 6) + 1))
    splits = rng.random() < 0.3
    found = []
    for _ in range(flows):
        count = int(rng.integers(0 if rng.random() < 0.1 else 1, longest + 1))
        path = rng.choice(links, count, replace=False).astype(np.int64)
        usage = rng.choice([0.25, 1 / 3, 0.5, 1.0], count) if splits else np.ones(count)
        found.append((path, usage))
    return found


def leaf_spine(rng: np.random.Generator, flows: int) -> tuple[Floats, list[tuple[Ints, Floats]]]:
    """A Clos network, each flow on a random spine or sprayed over all of them."""
    leaves, spines, down = (int(rng.integers(2, 5)) for _ in range(3))
    hosts = leaves * down
    up_port, down_port = np.arange(hosts), hosts + np.arange(hosts)
    up_link = 2 * hosts + np.arange(leaves * spines).reshape(leaves, spines)
    down_link = up_link + leaves * spines
    paths = []
    for _ in range(flows):
        source, target = rng.choice(hosts, 2, replace=False)
        ends, one, other = [up_port[source], down_port[target]], source // down, target // down
        chosen = np.arange(spines) if rng.random() < 0.4 else rng.integers(0, spines, 1)
        middle = [] if one == other else [*up_link[one, chosen], *down_link[other, chosen]]
        usage = np.concatenate([np.ones(2), np.full(len(middle), 1 / len(chosen))])
        paths.append((np.array([*ends, *middle], dtype=np.int64), usage))
    slow = 10.0 ** rng.integers(0, 3)
    return np.concatenate([np.full(2 * hosts, 50e9), np.full(2 * leaves * spines, 50e9 / slow)]), paths


def capacities(rng: np.random.Generator, links: int) -> Floats:
    """Equal, of a few kinds, or all different; sometimes with dead links."""
    kind = rng.integers(3)
    capacity = [np.full(links, 12.5e9), rng.choice([1e9, 12.5e9, 50e9], links), 10.0 ** rng.uniform(6, 12, links)][
        kind
    ]
    capacity[rng.random(links) < rng.choice([0.0, 0.0, 0.15])] = 0.0
    capacity[rng.random(links) < rng.choice([0.0, 0.0, 0.15])] = np.inf
    return capacity


def problem_of(seed: int, most: int = 60) -> Problem:
    """A problem, often degenerate: equal links, equal flows, dead links, caps at fair shares."""
    rng = np.random.default_rng([3, seed])
    flows, links = int(rng.integers(1, most + 1)), int(rng.integers(1, 31))
    if rng.random() < 0.3:
        capacity, paths = leaf_spine(rng, flows)
    else:
        capacity, paths = capacities(rng, links), paths_of(rng, flows, links)
    weight = [np.ones(flows), rng.choice([1.0, 2.0, 4.0], flows), 10.0 ** rng.uniform(-2, 2, flows)]
    cap, capped = np.full(flows, np.inf), rng.random(flows) < rng.choice([0.0, 0.3, 1.0])
    cap[capped] = rng.choice([0.0, 1e8, 1e9, 12.5e9 / 4], flows)[capped]
    if rng.random() < 0.3:
        cap[capped] = 10.0 ** rng.uniform(5, 11, int(capped.sum()))
    return Problem(
        capacity=capacity,
        indptr=np.cumsum([0, *(len(path) for path, _ in paths)]).astype(np.int64),
        links=np.concatenate([path for path, _ in paths]),
        usage=np.concatenate([usage for _, usage in paths]),
        weight=weight[rng.integers(3)],
        cap=cap,
    )


def random_problems(count: int, first: int = 0) -> Iterator[tuple[int, Problem]]:
    for seed in range(first, first + count):
        yield seed, problem_of(seed)


def assert_solved(seed: int, problem: Problem) -> None:
    rates = solve(*problem)
    assert check(rates, *problem) is None, f"seed {seed}"
    np.testing.assert_allclose(rates, reference(*problem), rtol=1e-9, err_msg=f"seed {seed}")


def test_certificate_and_definition() -> None:
    for seed, problem in random_problems(500):
        assert_solved(seed, problem)


@pytest.mark.slow
def test_certificate_and_definition_many_times() -> None:
    for seed, problem in random_problems(10_000, first=1_000):
        assert_solved(seed, problem)


def test_a_link_twice_on_a_path_counts_twice() -> None:
    problem = Problem(
        np.array([12.0]), np.array([0, 2, 3]), np.array([0, 0, 0]), np.ones(3), np.ones(2), np.full(2, np.inf)
    )
    np.testing.assert_allclose(solve(*problem), [4.0, 4.0])
    np.testing.assert_allclose(reference(*problem), [4.0, 4.0])
    assert check(solve(*problem), *problem) is None


def test_no_flows_and_no_limits() -> None:
    none = Problem(np.ones(2), np.zeros(1, np.int64), np.zeros(0, np.int64), *(np.zeros(0),) * 3)
    assert len(solve(*none)) == len(reference(*none)) == 0
    free = Problem(np.array([np.inf]), np.array([0, 0, 1]), np.array([0]), np.ones(1), np.ones(2), np.full(2, np.inf))
    assert np.isinf(solve(*free)).all()
    assert np.isinf(reference(*free)).all()
    assert check(solve(*free), *free) is None


def wrong_rates(rng: np.random.Generator, problem: Problem, rates: Floats) -> Iterator[tuple[str, Floats]]:
    """Rates that are not max-min fair: too much, too little, not a number, unfair though no link is free."""
    flow = int(rng.integers(len(rates)))
    if not np.isfinite(rates[flow]):
        return
    for name, value in (
        ("more", rates[flow] * 1.01 + 1e-3),
        ("less", rates[flow] * 0.99 - 1e-3),
        ("nan", np.nan),
        ("negative", -1.0),
        ("infinite", np.inf),
    ):
        wrong = rates.copy()
        wrong[flow] = value
        yield name, wrong
    mine = set(problem.links[problem.indptr[flow] : problem.indptr[flow + 1]].tolist())
    for other in range(len(rates)):
        theirs = set(problem.links[problem.indptr[other] : problem.indptr[other + 1]].tolist())
        if other != flow and mine & theirs and 0 < rates[other] < np.inf:
            wrong = rates.copy()
            wrong[flow], wrong[other] = rates[flow] + rates[other] * 0.01, rates[other] * 0.99
            yield "shifted", wrong
            return


def test_check_catches_wrong_rates() -> None:
    rng, kinds = np.random.default_rng(8), dict[str, int]()
    for seed, problem in random_problems(200, first=20_000):
        for name, wrong in wrong_rates(rng, problem, solve(*problem)):
            kinds[name] = kinds.get(name, 0) + 1
            assert check(wrong, *problem) is not None, f"seed {seed}: {name}"
    assert min(kinds[name] for name in ("more", "less", "nan", "negative", "infinite", "shifted")) > 50


def largest(problem: Problem, low: Floats, high: Floats, rising: list[int], goal: int | None) -> float:
    """The largest common level of the rising flows, or the largest rate of one, by a linear program."""
    highspy = pytest.importorskip("highspy")
    model, flows = highspy.Highs(), len(problem.weight)
    model.setOptionValue("output_flag", False)
    model.setOptionValue("primal_feasibility_tolerance", 1e-10)
    model.addVars(flows + 1, np.append(low, 0.0), np.append(high, model.inf))
    flow = np.repeat(np.arange(flows), np.diff(problem.indptr))
    for link, capacity in enumerate(problem.capacity):
        places = np.flatnonzero(problem.links == link)
        if np.isfinite(capacity):
            columns = flow[places].astype(np.int32)
            model.addRow(-model.inf, capacity, len(places), columns, problem.usage[places])
    for one in rising if goal is None else []:
        columns = np.array([one, flows], dtype=np.int32)
        model.addRow(0.0, model.inf, 2, columns, np.array([1.0, -problem.weight[one]]))
    model.changeColCost(flows if goal is None else goal, 1.0)
    model.changeObjectiveSense(highspy.ObjSense.kMaximize)
    model.run()
    assert model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(model.getInfo().objective_function_value)


def by_linear_programs(problem: Problem) -> Floats:
    """Raise the least level as far as it goes, fix the flows that cannot have more, and go on."""
    flows = len(problem.weight)
    low, high, rising = np.zeros(flows), problem.cap.copy(), list(range(flows))
    while rising:
        level = largest(problem, low, high, rising, None)
        low[rising] = level * problem.weight[rising] * (1 - 1e-10)
        held = [
            flow
            for flow in rising
            if largest(problem, low, high, rising, flow) <= level * problem.weight[flow] * (1 + 1e-7) + 1e-9
        ]
        assert held
        high[held] = low[held]
        rising = [flow for flow in rising if flow not in held]
    return low


@pytest.mark.slow
def test_sequential_linear_programs() -> None:
    cases = 0
    for seed, problem in random_problems(24, first=30_000):
        flows = min(len(problem.weight), 20)
        places = int(problem.indptr[flows])
        small = Problem(
            np.minimum(problem.capacity, 1e12) / 1e9,
            problem.indptr[: flows + 1],
            problem.links[:places],
            problem.usage[:places],
            np.clip(problem.weight[:flows], 0.1, 10.0),
            np.minimum(problem.cap[:flows], 1e12) / 1e9,
        )
        if np.ptp(np.log10(small.capacity[small.capacity > 0])) > 3:
            continue
        cases += 1
        np.testing.assert_allclose(
            solve(*small), by_linear_programs(small), rtol=1e-6, atol=1e-6, err_msg=f"seed {seed}"
        )
    assert cases >= 8


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("capacity", np.array([1.0, np.nan]), "capacity"),
        ("indptr", np.array([0, 2, 1]), "indptr"),
        ("indptr", np.array([0, 2]), "bounds"),
        ("links", np.array([-1, 0]), "does not exist"),
        ("usage", np.array([1.0, 0.0]), "usage"),
        ("usage", np.ones(3), "usages"),
        ("weight", np.array([1.0, np.inf]), "weight"),
        ("cap", np.array([-1.0, 1.0]), "cap"),
    ],
)
def test_bad_arrays_are_named(field: str, value: npt.NDArray[np.generic], words: str) -> None:
    good = Problem(np.ones(2), np.array([0, 1, 2]), np.array([0, 1]), np.ones(2), np.ones(2), np.ones(2))
    bad = good._replace(**{field: value})  # type: ignore[arg-type]
    for solver in (solve, reference):
        with pytest.raises(BadInput, match=words):
            solver(*bad)
