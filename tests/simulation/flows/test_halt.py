"""Simulations that halt and go on end as if they had never halted."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.traffic import Phases, Routes, Traffic
from weft.simulation.flows.engine import Halt, rest_of, run, run_until


def case(seed: int, *, latency: bool) -> tuple[np.ndarray, Traffic, Routes]:
    """Flows of mixed sizes over a few links, in phases some of which wait for others."""
    draw = np.random.default_rng(seed)
    links, flows, count = 6, 40, 9
    waits = [sorted(draw.choice(p, min(p, int(draw.integers(0, 3))), replace=False)) for p in range(count)]
    phases = Phases(
        delay_s=np.round(draw.uniform(0, 2, count), 1),
        start_s=np.round(draw.uniform(0, 3, count), 1),
        indptr=np.cumsum([0, *map(len, waits)]),
        waits=np.array([one for each in waits for one in each], dtype=np.int64),
        label=np.zeros(count, dtype=np.int64),
        labels=("phase",),
        job=np.zeros(count, dtype=np.int64),
    )
    paths = [draw.choice(links, int(draw.integers(1, 4)), replace=False) for _ in range(flows)]
    traffic = Traffic(
        source=np.zeros(flows, dtype=np.int64),
        target=np.ones(flows, dtype=np.int64),
        bytes=draw.uniform(0.1, 3, flows),
        phase=draw.integers(0, count - 1, flows),
        weight=draw.choice([1.0, 2.0], flows),
        cap_Bps=draw.choice([np.inf, 0.4], flows),
        phases=phases,
    )
    routes = Routes(
        indptr=np.cumsum([0, *map(len, paths)]),
        links=np.concatenate(paths),
        usage=np.ones(sum(map(len, paths))),
        latency_s=draw.uniform(0, 0.5, flows) if latency else np.zeros(flows),
    )
    return draw.uniform(0.5, 2, links), traffic, routes


def only(routes: Routes, flows: np.ndarray) -> Routes:
    kept = [np.arange(routes.indptr[f], routes.indptr[f + 1]) for f in flows]
    places = np.concatenate([*kept, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    return Routes(
        indptr=np.cumsum([0, *map(len, kept)]),
        links=routes.links[places],
        usage=routes.usage[places],
        latency_s=routes.latency_s[flows],
    )


@pytest.mark.parametrize("latency", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_halting_at_any_time_changes_nothing(seed: int, latency: bool) -> None:
    capacity, traffic, routes = case(seed, latency=latency)
    whole = run(capacity, traffic, routes)
    draw = np.random.default_rng((seed, 1))
    moments = np.sort(draw.uniform(0, whole.makespan_s, 5)).tolist()
    completion = np.full(len(traffic), np.nan)
    ends = np.full(len(traffic.phases), np.nan)
    flows, phases = np.arange(len(traffic)), np.arange(len(traffic.phases))
    part, its = traffic, routes
    for moment in [*moments, np.inf]:
        halt = run_until(capacity, part, its, until_s=moment)
        assert halt.time_s == pytest.approx(min(moment, whole.makespan_s))
        completion[flows], ends[phases] = halt.completion_s, halt.phase_end_s
        rest = rest_of(part, its, halt)
        flows, phases = flows[rest.flows], phases[rest.phases]
        part, its = rest.traffic, rest.routes(only(its, rest.flows))
    assert halt.done
    np.testing.assert_allclose(completion, whole.completion_s, rtol=1e-9)
    np.testing.assert_allclose(ends, whole.phase_end_s, rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_bytes_are_sent_or_left(seed: int) -> None:
    """What is left falls from all to nothing, and never faster than the links and caps allow."""
    capacity, traffic, routes = case(seed, latency=False)
    end = run(capacity, traffic, routes).makespan_s
    before = traffic.bytes.copy()
    for share in (0.2, 0.5, 0.8, 1.0):
        left = run_until(capacity, traffic, routes, until_s=share * end).left_bytes
        assert np.all(left <= before + 1e-9)
        before = left
    assert np.all(before <= 1e-9)


def test_halts_when_a_phase_ends() -> None:
    capacity, traffic, routes = case(3, latency=False)
    whole = run(capacity, traffic, routes)
    for phase in range(len(traffic.phases)):
        halt = run_until(capacity, traffic, routes, stop_phases=[phase])
        assert halt.time_s == pytest.approx(whole.phase_end_s[phase])
        assert halt.phase_end_s[phase] == halt.time_s
        late = whole.completion_s > halt.time_s * (1 + 1e-9)
        assert np.isnan(halt.completion_s[late]).all()
    first = run_until(capacity, traffic, routes, stop_phases=np.arange(len(traffic.phases)))
    assert first.time_s == pytest.approx(whole.phase_end_s.min())


def single(link: int) -> Routes:
    return Routes(indptr=np.array([0, 1]), links=np.array([link]), usage=np.ones(1), latency_s=np.array([1.0]))


def one_flow() -> Traffic:
    """10 bytes in one phase."""
    return Traffic(
        source=np.zeros(1, dtype=np.int64),
        target=np.ones(1, dtype=np.int64),
        bytes=np.array([10.0]),
        phase=np.zeros(1, dtype=np.int64),
        weight=np.ones(1),
        cap_Bps=np.full(1, np.inf),
        phases=Phases(
            delay_s=np.zeros(1),
            start_s=np.zeros(1),
            indptr=np.zeros(2, dtype=np.int64),
            waits=np.zeros(0, dtype=np.int64),
            label=np.zeros(1, dtype=np.int64),
            labels=("phase",),
            job=np.zeros(1, dtype=np.int64),
        ),
    )


def goes_on(halt: Halt, capacity: np.ndarray, link: int) -> float:
    rest = rest_of(one_flow(), single(0), halt)
    return run_until(capacity, rest.traffic, rest.routes(single(link))).time_s


def test_a_flow_goes_on_over_another_link() -> None:
    """1 s of latency, 4 s at 1 B/s, then 6 bytes at 2 B/s."""
    capacity = np.array([1.0, 2.0])
    halt = run_until(capacity, one_flow(), single(0), until_s=5.0)
    assert halt.left_bytes[0] == pytest.approx(6.0)
    assert goes_on(halt, capacity, 1) == pytest.approx(8.0)


def test_what_is_left_of_a_latency_is_kept() -> None:
    capacity = np.array([1.0, 2.0])
    halt = run_until(capacity, one_flow(), single(0), until_s=0.25)
    assert np.isnan(halt.begin_s[0])
    assert goes_on(halt, capacity, 1) == pytest.approx(1.0 + 10 / 2)


def test_stuck_flows_are_named_only_when_nothing_may_free_them() -> None:
    capacity = np.array([0.0])
    assert run_until(capacity, one_flow(), single(0), until_s=3.0).left_bytes[0] == 10.0
    with pytest.raises(BadInput, match="can never end"):
        run_until(capacity, one_flow(), single(0))


@pytest.mark.parametrize("until", [-1.0, float("nan")])
def test_refuses_what_is_no_time(until: float) -> None:
    with pytest.raises(BadInput, match="halt at"):
        run_until(np.ones(1), one_flow(), single(0), until_s=until)
