"""The flow engine against a plain event loop, and what links carry."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.traffic import Phases, Routes, Traffic, at_once
from weft.simulation.flows.engine import LOCAL, Simulation, run
from weft.solvers.maxmin import reference

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
INSTANT, EQUAL = 1e-13, 1e-12


class Case(NamedTuple):
    capacity: Floats
    traffic: Traffic
    routes: Routes

    def run(self, *, local: float = LOCAL, sample: bool = False) -> Simulation:
        return run(*self, local=local, sample=sample)


class Plain:
    """Event loop in plain Python: rates by definition whenever a link has another flow or capacity."""

    def __init__(self, case: Case) -> None:
        self.capacity, self.traffic, self.routes = case
        phases, flows = case.traffic.phases, len(case.traffic)
        bounds = zip(phases.indptr[:-1].tolist(), phases.indptr[1:].tolist(), strict=True)
        self.waits = [phases.waits[low:high].tolist() for low, high in bounds]
        self.left, self.rate = case.traffic.bytes.copy(), dict[int, float]()
        self.begin_s, self.completion_s = np.full(flows, np.nan), np.full(flows, np.nan)
        self.phase_begin_s, self.phase_end_s = np.full(len(phases), np.nan), np.full(len(phases), np.nan)
        self.queue: list[tuple[float, int, int]] = []
        self.now, self.changed = 0.0, False
        self.last: dict[int, dict[int, float]] = {}
        for phase, waits in enumerate(self.waits):
            if not waits:
                self.queue.append((max(phases.delay_s[phase], phases.start_s[phase]), 1, phase))
        heapq.heapify(self.queue)
        while np.isnan(self.phase_end_s).any():
            self.step()

    def step(self) -> None:
        """Go to the next instant, do all that falls on it, and share the links anew."""
        ends = {f: self.now + self.left[f] / rate for f, rate in self.rate.items() if rate > 0}
        soonest = min([*ends.values(), *(when for when, _, _ in self.queue[:1])])
        latest = soonest * (1 + INSTANT)
        for flow, rate in self.rate.items():
            if flow not in ends or ends[flow] > latest:
                self.left[flow] -= rate * (soonest - self.now)
        self.now, self.changed = soonest, False
        for flow in sorted(flow for flow, end in ends.items() if end <= latest):
            del self.rate[flow]
            self.changed |= not self.bare(flow)
            self.complete(flow)
        while self.queue and self.queue[0][0] <= latest:
            self.happen(*heapq.heappop(self.queue)[1:])
        if self.changed:
            self.rate = dict(zip(self.rate, self.share(list(self.rate)), strict=True))
            self.last.update(dict.fromkeys(self.rate, self.rate.copy()))

    def happen(self, kind: int, number: int) -> None:
        if kind == 1:
            self.phase_begin_s[number] = self.now
            flows = np.flatnonzero(self.traffic.phase == number)
            for flow in flows:
                heapq.heappush(self.queue, (self.now + self.routes.latency_s[flow], 2, int(flow)))
            if not len(flows):
                self.end(number)
        else:
            self.begin_s[number] = self.now
            if self.left[number] == 0 or (self.bare(number) and self.traffic.cap_Bps[number] == np.inf):
                self.complete(number)
            elif self.bare(number):
                self.rate[number] = float(self.traffic.cap_Bps[number])
            else:
                self.rate[number], self.changed = 0.0, True

    def bare(self, flow: int) -> bool:
        return bool(self.routes.indptr[flow] == self.routes.indptr[flow + 1])

    def complete(self, flow: int) -> None:
        self.completion_s[flow], phase = self.now, self.traffic.phase[flow]
        if not np.isnan(self.completion_s[self.traffic.phase == phase]).any():
            self.end(int(phase))

    def end(self, phase: int) -> None:
        self.phase_end_s[phase], phases = self.now, self.traffic.phases
        for later, waits in enumerate(self.waits):
            if phase in waits and not np.isnan(self.phase_end_s[waits]).any():
                begin = max(self.now + phases.delay_s[later], phases.start_s[later])
                heapq.heappush(self.queue, (begin, 1, later))

    def share(self, flows: list[int]) -> list[float]:
        paths = [slice(*self.routes.indptr[flow : flow + 2]) for flow in flows]
        places = np.concatenate([np.zeros(0, np.int64), *(np.arange(p.start, p.stop) for p in paths)])
        rates = reference(
            self.capacity,
            np.cumsum([0, *(path.stop - path.start for path in paths)]),
            self.routes.links[places.astype(np.int64)],
            self.routes.usage[places.astype(np.int64)],
            self.traffic.weight[flows],
            self.traffic.cap_Bps[flows],
        )
        return [float(rate) for rate in rates]

    def load(self, flow: int, rate: float) -> tuple[Ints, Floats]:
        path = slice(*self.routes.indptr[flow : flow + 2])
        return self.routes.links[path], self.routes.usage[path] * rate


def phases_of(rng: np.random.Generator, count: int, whole: bool) -> Phases:
    """Phases in random order that wait for up to three others."""
    number = rng.permutation(count)
    waits: list[list[int]] = [[] for _ in range(count)]
    for later in range(1, count):
        chosen = rng.choice(later, int(rng.integers(0, min(later, 3) + 1)), replace=False)
        waits[number[later]] = number[chosen].tolist()
    delay, start = rng.uniform(0, 5, count), rng.uniform(0, 10, count)
    delay[rng.random(count) < 0.4] = 0.0
    start[rng.random(count) < 0.6] = 0.0
    return Phases(
        delay_s=np.round(delay) if whole else delay,
        start_s=np.round(start) if whole else start,
        indptr=np.cumsum([0, *map(len, waits)]).astype(np.int64),
        waits=np.array([other for row in waits for other in row], dtype=np.int64),
        label=np.arange(count),
        labels=tuple(f"phase {i}" for i in range(count)),
        job=np.zeros(count, dtype=np.int64),
    )


def routes_of(rng: np.random.Generator, flows: int, links: int) -> Routes:
    """Single or split paths, some flows without links, with or without latency."""
    counts = rng.integers(1, min(links, 4) + 1, flows)
    counts[rng.random(flows) < 0.05] = 0
    latency = rng.choice([0.0, 0.25, 0.7], flows) * (rng.random() < 0.5)
    paths = [rng.choice(links, count, replace=False) for count in counts]
    split = rng.random() < 0.4
    return Routes(
        indptr=np.cumsum([0, *counts]).astype(np.int64),
        links=np.concatenate([np.zeros(0, np.int64), *paths]).astype(np.int64),
        usage=rng.choice([0.25, 1 / 3, 1.0], counts.sum()) if split else np.ones(counts.sum()),
        latency_s=latency,
    )


def case_of(seed: int) -> Case:
    """A small case, often with ties."""
    rng = np.random.default_rng([5, seed])
    flows, links, count = int(rng.integers(0, 16)), int(rng.integers(1, 9)), int(rng.integers(1, 7))
    whole = rng.random() < 0.4
    bytes_ = rng.integers(0, 8, flows).astype(float) if whole else rng.uniform(1, 60, flows)
    capacity = rng.choice([1.0, 2.0, 4.0], links) if whole else rng.uniform(1, 10, links)
    cap = np.full(flows, np.inf)
    capped = rng.random(flows) < rng.choice([0.0, 0.4])
    cap[capped] = rng.choice([0.5, 1.0, 3.3], int(capped.sum()))
    traffic = Traffic(
        source=np.arange(flows) % 4,
        target=np.arange(flows) % 5,
        bytes=bytes_,
        phase=rng.integers(0, count, flows),
        weight=np.ones(flows) if rng.random() < 0.5 else rng.choice([0.5, 1.0, 3.0], flows),
        cap_Bps=cap,
        phases=phases_of(rng, count, whole),
    )
    return Case(capacity, traffic, routes_of(rng, flows, links))


def cases(count: int, first: int = 0) -> Iterator[tuple[int, Case]]:
    for seed in range(first, first + count):
        yield seed, case_of(seed)


def assert_same(found: Simulation, other: Simulation | Plain, name: str) -> None:
    for field in ("completion_s", "begin_s", "phase_begin_s", "phase_end_s"):
        one, two = getattr(found, field), getattr(other, field)
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9, err_msg=f"{name}: {field}")


def assert_as_plain(seed: int, case: Case) -> None:
    found, plain = case.run(), Plain(case)
    assert_same(found, plain, f"seed {seed}")
    np.testing.assert_allclose(found.makespan_s, plain.phase_end_s.max(), rtol=1e-9)


def test_links_of_infinite_capacity_are_refused() -> None:
    """A link that never fills is left out of the paths instead."""
    case = case_of(500)
    with pytest.raises(BadInput, match="capacity_Bps"):
        case._replace(capacity=np.full(len(case.capacity), np.inf)).run()


def test_a_link_listed_twice_counts_twice() -> None:
    traffic = at_once(np.array([0, 0]), np.array([1, 2]), np.array([4.0, 4.0]))
    routes = Routes(indptr=np.array([0, 2, 3]), links=np.array([0, 0, 0]), usage=np.ones(3), latency_s=np.zeros(2))
    fair = run(np.array([3.0]), traffic, routes)
    assert fair.completion_s == pytest.approx([4.0, 4.0])


@pytest.mark.slow
def test_plain_event_loop_many_times() -> None:
    for seed, case in cases(5_000, first=1_000):
        assert_as_plain(seed, case)


def test_what_limited_a_flow_last_was_full_and_gave_none_more() -> None:
    for seed, case in cases(150, first=7_000):
        found, plain, weight = case.run(), Plain(case), case.traffic.weight
        for flow, link in enumerate(found.bottleneck.tolist()):
            rate = plain.last.get(flow, {})
            if link < 0:
                assert rate.get(flow, np.inf) >= case.traffic.cap_Bps[flow] * (1 - 1e-9), f"seed {seed}"
                continue
            sharing = {other: plain.load(other, speed) for other, speed in rate.items()}
            loads = {other: load[links == link].sum() for other, (links, load) in sharing.items()}
            assert loads[flow] > 0, f"seed {seed}: flow {flow} does not cross {link}"
            assert sum(loads.values()) >= case.capacity[link] * (1 - 1e-9)
            levels = [rate[other] / weight[other] for other, load in loads.items() if load > 0]
            assert rate[flow] / weight[flow] >= max(levels) * (1 - 1e-9), f"seed {seed}: flow {flow}, {link}"


def crowd_of(seed: int) -> Case:
    """Many flows that come one by one into a sparse network, some with weights, caps, splits."""
    rng = np.random.default_rng([6, seed])
    flows, links = int(rng.integers(40, 120)), int(rng.integers(30, 90))
    routes = routes_of(rng, flows, links)
    traffic = at_once(np.arange(flows), np.arange(flows) + 1, rng.uniform(1, 60, flows))
    cap = np.where(rng.random(flows) < rng.choice([0.0, 0.3]), rng.choice([0.3, 1.0, 2.5], flows), np.inf)
    cap[np.diff(routes.indptr) == 0] = 2.0
    weight = np.ones(flows) if rng.random() < 0.5 else rng.choice([0.25, 0.5, 1.0, 4.0], flows)
    capacity = np.full(links, 4.0) if rng.random() < 0.4 else rng.uniform(1, 10, links)
    return Case(
        capacity,
        replace(traffic, weight=weight, cap_Bps=cap),
        replace(routes, latency_s=rng.uniform(0, 30, flows) * rng.integers(2)),
    )


def test_rates_solved_around_a_change_are_the_same() -> None:
    local, total = 0, 0
    for seed in range(80):
        case = crowd_of(seed) if seed % 2 else case_of(8_000 + seed)
        full, whole, some = (case.run(local=share) for share in (0.0, 1.0, 0.25))
        assert full.local_solutions == 0
        local, total = local + whole.local_solutions, total + whole.solutions
        assert_same(whole, full, f"seed {seed}, all local")
        assert_same(some, full, f"seed {seed}, some local")
        np.testing.assert_array_equal(whole.link_bytes, full.link_bytes)
    assert local > total / 2


def crossing(rng: np.random.Generator, hosts: int, spines: int, times: int, sizes: str) -> Case:
    """Permutations of hosts over a few spines, as the flows of a Clos cross; all begin at 0.

    ``sizes``: all equal, of three kinds, or all different.
    """
    source = np.tile(np.arange(hosts), times)
    target = np.concatenate([rng.permutation(hosts) for _ in range(times)])
    leaf, spine = hosts // 2, rng.integers(0, spines, len(source))
    up = 2 * hosts + (source // leaf) * spines + spine
    down = 2 * hosts + 3 * spines + (target // leaf) * spines + spine
    routes = Routes(
        indptr=4 * np.arange(len(source) + 1),
        links=np.stack([source, up, down, hosts + target], axis=1).ravel(),
        usage=np.ones(4 * len(source)),
        latency_s=np.zeros(len(source)),
    )
    kinds = {"equal": [3.0], "few": [1.0, 2.0, 5.0]}.get(sizes, rng.uniform(1, 9, len(source)))
    capacity = np.full(2 * hosts + 6 * spines, 2.0)
    return Case(capacity, at_once(source, target, rng.choice(kinds, len(source))), routes)


SIZES = st.sampled_from(["equal", "few", "mixed"])


@given(st.integers(0, 2**31), SIZES)
def test_flows_that_cross_as_plain(seed: int, sizes: str) -> None:
    """Long chains of bottlenecks, and many ties where sizes are equal."""
    rng = np.random.default_rng(seed)
    case = crossing(rng, int(rng.integers(2, 7)), int(rng.integers(1, 4)), int(rng.integers(1, 4)), sizes)
    plain = Plain(case)
    for local in (0.0, 1.0):
        assert_same(case.run(local=local), plain, f"{sizes}, {local}")


@given(st.integers(0, 2**31), SIZES, st.booleans())
def test_rates_solved_around_long_chains_are_the_same(seed: int, sizes: str, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    case = crossing(rng, 24, 8, 6, sizes)
    if weighted:
        flows = len(case.traffic)
        weight, cap = rng.choice([0.5, 1.0, 3.0], flows), np.where(rng.random(flows) < 0.2, 0.1, np.inf)
        usage = rng.choice([0.25, 1 / 3, 1.0], len(case.routes.links))
        case = case._replace(
            traffic=replace(case.traffic, weight=weight, cap_Bps=cap), routes=replace(case.routes, usage=usage)
        )
    full, whole = case.run(local=0.0), case.run(local=1.0)
    assert whole.local_solutions == whole.solutions
    assert_same(whole, full, sizes)


def test_crowds_as_plain() -> None:
    for seed in (3, 4, 5):
        assert_same(crowd_of(seed).run(local=1.0), Plain(crowd_of(seed)), f"seed {seed}")


@pytest.mark.slow
def test_rates_solved_around_a_change_are_the_same_many_times() -> None:
    for seed in range(1_000, 4_000):
        case = crowd_of(seed)
        assert_same(case.run(local=1.0), case.run(local=0.0), f"seed {seed}")


@pytest.mark.slow_but(1)
def test_links_carry_the_bytes_of_their_flows_and_never_too_much() -> None:
    for seed, case in cases(100, first=9_000):
        found = case.run(sample=True)
        amounts = np.repeat(case.traffic.bytes, np.diff(case.routes.indptr)) * case.routes.usage
        expected = np.bincount(case.routes.links, amounts, len(case.capacity))
        np.testing.assert_allclose(found.link_bytes, expected, rtol=1e-12)
        assert found.rates is not None
        for link in range(len(case.capacity)):
            mine = found.rates.link == link
            times, rates = found.rates.time_s[mine], found.rates.rate_Bps[mine]
            assert (np.diff(times) > 0).all()
            assert not len(rates) or rates[-1] <= 1e-9
            moved = (rates * np.diff(times, append=found.makespan_s)).sum()
            np.testing.assert_allclose(moved, expected[link], rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}")
            assert rates.max(initial=0.0) <= case.capacity[link] * (1 + 1e-9) + 1e-12, f"seed {seed}: link {link}"
