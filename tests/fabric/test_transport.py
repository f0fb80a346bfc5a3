"""The transport model: against max-min, spraying, and every outcome of a hash enumerated."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos
from weft.fabric.paths import Paths
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.fabric.traffic import Routes
from weft.fabric.transport import TRANSPORTS, Transport, carrier, crossing, transport
from weft.solvers.maxmin import solve

REAL = [one for name, one in TRANSPORTS.items() if name != "ideal"]


def tree(accelerators: int = 16, radix: int = 4, oversubscription: float = 1.0) -> Fabric:
    return clos.build(accelerators, radix=radix, bandwidth_Bps=10.0, oversubscription=oversubscription)


def rates(fabric: Fabric, routes: Routes, capacity: Floats) -> Floats:
    flows = len(routes)
    return solve(capacity, routes.indptr, routes.links, routes.usage, np.ones(flows), np.full(flows, np.inf))


def permutation(hosts: int, seed: int) -> tuple[Ints, Ints]:
    shift = np.random.default_rng(seed).permutation(hosts)
    return shift, np.roll(shift, 1)


@given(
    seed=st.integers(0, 2**31),
    name=st.sampled_from([one.name for one in REAL]),
    pairs=st.sampled_from([1, 2, 5]),
    ratio=st.sampled_from([1.0, 3.0]),
)
def test_never_faster_than_max_min_on_the_same_routes(seed: int, name: str, pairs: int, ratio: float) -> None:
    fabric = tree(oversubscription=ratio)
    carried = TRANSPORTS[name] if TRANSPORTS[name].mode == "spray" else TRANSPORTS[name].over(pairs)
    source, target = permutation(16, seed)
    routes = carried.routes(Paths(fabric), source, target, seed=seed)
    ideal, real = (rates(fabric, routes, fabric.capacity_Bps * share) for share in (1.0, carried.shares(fabric)))
    assert real.min() <= ideal.min() * (1 + 1e-9)
    assert real.max() <= 10.0 * carried.wire * (1 + 1e-9)


@pytest.mark.parametrize("carried", REAL, ids=lambda one: one.name)
def test_one_flow_a_path_is_max_min_times_the_share(carried: Transport) -> None:
    leaf = tree(4, radix=4)
    near = carried.routes(Paths(leaf), np.array([0]), np.array([1]))
    assert rates(leaf, near, leaf.capacity_Bps * carried.shares(leaf)) == pytest.approx([10.0 * carried.wire])
    wide = tree(8)
    far = Paths(wide).routes(np.array([0]), np.array([3]))
    assert len(far.links) == 4
    found = rates(wide, far, wide.capacity_Bps * carried.shares(wide))
    assert found == pytest.approx([10.0 * carried.wire * carried.busy])


def test_incast_is_served_at_the_whole_of_the_last_link() -> None:
    fabric = tree()
    carried = TRANSPORTS["packet-spray"]
    source, target = np.arange(1, 9), np.zeros(8, dtype=np.int64)
    routes = carried.routes(Paths(fabric), source, target)
    found = rates(fabric, routes, fabric.capacity_Bps * carried.shares(fabric))
    assert found.sum() == pytest.approx(10.0 * carried.wire)


def test_many_queue_pairs_approach_spraying() -> None:
    fabric = tree()
    source, target = permutation(16, 3)
    shares = fabric.capacity_Bps * TRANSPORTS["roce-ecmp"].shares(fabric)
    sprayed = rates(fabric, Paths(fabric).routes(source, target, mode="spray"), shares).min()
    slowest = []
    for pairs in (1, 4, 16, 128):
        carried = TRANSPORTS["roce-ecmp"].over(pairs)
        draws = [carried.routes(Paths(fabric), source, target, seed=draw) for draw in range(20)]
        slowest.append(float(np.mean([rates(fabric, routes, shares).min() for routes in draws])))
    assert slowest == sorted(slowest)
    assert slowest[-1] <= sprayed
    assert slowest[-1] == pytest.approx(sprayed, rel=0.15)


@pytest.mark.parametrize("pairs", [1, 2])
def test_the_expectation_over_hashes_is_that_of_every_outcome(pairs: int) -> None:
    # Two spines; two flows from one leaf to another that share no end, each part of which takes either spine.
    fabric = tree(8)
    source, target = np.array([0, 1]), np.array([2, 3])
    up = {tuple(path) for path in Paths(fabric).every(0, 2)}
    assert len(up) == 2
    every = []
    for outcome in product(range(2), repeat=2 * pairs):
        first, second = np.bincount(outcome[:pairs], minlength=2), np.bincount(outcome[pairs:], minlength=2)
        # A spine's link carries the parts of both: the slowest flow has the most loaded link's fair share.
        every.append(10.0 / max(1.0, float((first + second).max()) / pairs))
    carried = replace(TRANSPORTS["roce-ecmp"].over(pairs), header_bytes=0, busy=1.0)
    paths = Paths(fabric)
    drawn = [
        float(rates(fabric, carried.routes(paths, source, target, seed=draw), fabric.capacity_Bps).min())
        for draw in range(600)
    ]
    assert set(np.round(drawn, 6)) == set(np.round(every, 6))
    assert np.mean(drawn) == pytest.approx(np.mean(every), rel=4 * np.std(every) / np.mean(every) / np.sqrt(600))


def test_too_many_parts_end_in_a_message() -> None:
    fabric = tree()
    source, target = np.zeros(100_000, dtype=np.int64), np.full(100_000, 9)
    with pytest.raises(Unsupported, match="over 10,000,000 parts"):
        TRANSPORTS["roce-ecmp"].over(128).routes(Paths(fabric), source, target)


def test_inside_a_domain_nothing_is_lost() -> None:
    domain = Dimension(size=4, kind="switch", bandwidth_Bps=100.0, latency_s=0.0)
    fabric = clos.build(8, radix=8, bandwidth_Bps=10.0, scale_up=domain)
    carried = TRANSPORTS["roce-ecmp"].over(4)
    assert (carried.shares(fabric)[fabric.tier == SCALE_UP] == 1.0).all()
    routes = carried.routes(Paths(fabric), np.array([0, 0]), np.array([1, 5]))
    assert (fabric.tier[routes.links[: routes.indptr[1]]] == SCALE_UP).all()
    assert (fabric.tier[routes.links[routes.indptr[1] :]] > SCALE_UP).all()


def test_headers_are_those_of_the_standards() -> None:
    # ib_write_bw shows 392.1 of 400 Gb/s (github.com/NVIDIA/nccl/issues/2409).
    assert TRANSPORTS["roce-ecmp"].wire * 400 == pytest.approx(392.1, abs=0.1)
    assert TRANSPORTS["infiniband"].wire > TRANSPORTS["roce-ecmp"].wire


def test_texts() -> None:
    for text in ("ecmp", "spray", "random", "roce-ecmp", "roce-ecmp:4", "infiniband"):
        assert transport(text).text == text
    assert [carrier(one) for one in ("ecmp", "roce-ecmp:4", "planned over infiniband")] == [
        "ideal",
        "roce-ecmp:4",
        "infiniband",
    ]
    assert crossing("ecmp") == "ECMP hashing, ideal transport"
    assert crossing("planned over infiniband") == "planned routing, infiniband transport"
    assert crossing("roce-ecmp:4") == "roce-ecmp:4 transport"
    for wrong in ("", "ideal", "tcp"):
        with pytest.raises(UnknownName):
            transport(wrong)
    for wrong in ("roce-ecmp:0", "roce-ecmp:x", "roce-ecmp:129", "infiniband:2", "roce-ecmp:" + "9" * 400):
        with pytest.raises(BadInput):
            transport(wrong)


def test_the_shares_are_those_of_the_record() -> None:
    import json

    record = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "congestion.json"
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    for name in ("roce-ecmp", "roce-adaptive", "packet-spray"):
        assert TRANSPORTS[name].busy == pytest.approx(figures[f"busy_{name}".replace("-", "_")])
    assert TRANSPORTS["infiniband"].busy == TRANSPORTS["roce-adaptive"].busy
