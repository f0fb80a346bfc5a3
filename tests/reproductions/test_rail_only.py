"""Rail-only version 1: the statements and figures of arXiv 2307.12169v1, and eq. (1) against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import rail_only as ro
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.cluster.catalogue import load as load_cluster
from weft.collectives.messages import Steps, expand
from weft.fabric.catalogue import for_cluster
from weft.fabric.paths import routes
from weft.fabric.spec import Fabric
from weft.fabric.traffic import at_once
from weft.simulation.flows.engine import run


def at(domain: int, count: int = 32768) -> ro.RailNetwork:
    return ro.RailNetwork(accelerators=count, domain=domain)


def seconds(work: ro.DenseJob, domain: int, count: int = 32768) -> float:
    network = at(domain, count)
    return float(ro.iteration_time(work, network, ro.rounded_group(work, network)))


@pytest.mark.parametrize(
    ("work", "small", "large", "saving"),
    [(ro.GPT3, 32, 64, 11.8), (ro.OPT_175B, 32, 64, 37.0), (ro.GPT3, 512, 1024, 0.95), (ro.OPT_175B, 512, 1024, 7.53)],
)
def test_a5_saving_of_doubling_the_domain(work: ro.DenseJob, small: int, large: int, saving: float) -> None:
    before, after = seconds(work, small, 16384), seconds(work, large, 16384)
    assert 100 * (before - after) / before == pytest.approx(saving, abs=0.2)


@pytest.mark.parametrize(("sequences", "share"), [(512, 52.7), (1024, 64.1), (2048, 74.1)])
def test_a6_batch_study(sequences: int, share: float) -> None:
    work = ro.palm_540b(sequences)
    group = ro.rounded_group(work, at(256))
    ratio = ro.ideal_time(work, at(256), group) / ro.iteration_time(work, at(256), group)
    assert 100 * float(ratio) == pytest.approx(share, abs=0.5)


@pytest.mark.parametrize(
    ("work", "time", "ideal"),
    [
        (ro.GPT3, 1.589, 1.487),
        (ro.OPT_175B, 0.287, 0.184),
        (ro.palm_540b(512), 0.671, None),
        (ro.palm_540b(1024), 0.883, None),
        (ro.palm_540b(2048), 1.227, None),
    ],
)
def test_a7_iteration_times(work: ro.DenseJob, time: float, ideal: float | None) -> None:
    assert seconds(work, 256) == pytest.approx(time, rel=0.01)
    if ideal is not None:
        group = ro.rounded_group(work, at(256))
        assert float(ro.ideal_time(work, at(256), group)) == pytest.approx(ideal, rel=0.01)


@pytest.mark.parametrize(("work", "group"), [(ro.GPT3, 8), (ro.OPT_175B, 32)])
def test_a8_best_group(work: ro.DenseJob, group: int) -> None:
    assert ro.best_group(work, at(256)) == group
    assert float(ro.rounded_group(work, at(256))) == group


@pytest.mark.parametrize(("work", "printed"), [(ro.GPT3, 2.2), (ro.OPT_175B, 8.7)])
def test_printed_optimum_misses_the_figures(work: ro.DenseJob, printed: float) -> None:
    assert float(ro.printed_optimal_group(work, at(256))) == pytest.approx(printed, abs=0.05)
    ratio = ro.optimal_group(work, at(256)) / ro.printed_optimal_group(work, at(256))
    assert float(ratio) == pytest.approx(2 * np.sqrt(2))


def test_a9_forwarding_of_all_to_all() -> None:
    nic, domain = np.array([25e9, 50e9]), np.array([300e9, 450e9])
    assert 100 * ro.forwarding_overhead(nic, domain) == pytest.approx([8.3, 11.1], abs=0.2)
    assert 100 * ro.forwarding_overhead(nic, domain, 8) == pytest.approx([7.3, 9.7], abs=0.05)


counts = st.sampled_from([4096, 16384, 65536])
groups = st.sampled_from([1, 2, 4, 8, 16, 32])


@given(counts, groups)
def test_one_domain_is_the_ideal(count: int, group: int) -> None:
    whole = at(count, count)
    for work in (ro.GPT3, ro.palm_540b(512)):
        time = ro.iteration_time(work, whole, group)
        np.testing.assert_allclose(time, ro.ideal_time(work, whole, group))


@given(counts, st.floats(1e5, 1e8))
def test_optimum_is_a_stationary_minimum(count: int, tokens: float) -> None:
    work = ro.DenseJob(parameters=1e11, layers=64, hidden=8192, tokens=tokens, collectives_per_block=8)
    best = float(ro.optimal_group(work, at(count, count)))
    assume(2 < best < count / 2)
    sizes = best * np.array([0.9, 0.99, 1.0, 1.01, 1.1])
    assert ro.iteration_time(work, at(count, count), sizes).argmin() == 2


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("name", ["a100-64", "h100-64"])
def test_forwarding_simulated(name: str) -> None:
    """Hop after hop it costs (K-1)/K of the ratio of bandwidths, beside a rail-optimized Clos; pipelined nothing."""
    cluster = load_cluster(name)
    inner, outer = cluster.tiers[:2]
    ranks = np.arange(cluster.count)
    rails, clos = (for_cluster(kind, cluster) for kind in ("rail-only", "rail-optimized"))
    hops = expand("all-to-all", "hierarchical", ranks, 10e9, domain=rails.domain)
    free_s = simulated_s(clos, [expand("all-to-all", "direct", ranks, 10e9)])
    off_rail = float(ro.forwarding_overhead(outer.bandwidth_Bps, inner.bandwidth_Bps, inner.size))
    assert simulated_s(rails, hops.one_by_one()) / free_s - 1 == pytest.approx(off_rail, rel=1e-3)
    assert simulated_s(rails, [hops.pipelined()]) / free_s - 1 == pytest.approx(0, abs=1e-4)


def simulated_s(fabric: Fabric, waves: list[Steps]) -> float:
    """Seconds of patterns of flows one after the other."""
    total = 0.0
    for wave in waves:
        paths = routes(fabric, wave.source, wave.target, mode="spray")
        total += run(fabric.capacity_Bps, at_once(wave.source, wave.target, wave.bytes), paths).makespan_s
    return total


@pytest.mark.slow
def test_utilization_is_not_within_what_version_5_says() -> None:
    rows = ro.utilization()
    errors = [100 * abs(ours - published) for _, published, ours, _ in rows]
    assert sum(errors) / len(errors) < 2.2
    assert 0.15 < max(errors) < 5
    assert all(equation - published > 0.05 for _, published, _, equation in rows)
