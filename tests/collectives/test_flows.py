"""Collectives executed symbolically: every rank must end with every contribution exactly once."""

import numpy as np
import pytest
from tests.collectives.proofs import execute, prove

from weft.collectives.messages import expand, plan, ring_order
from weft.errors import BadInput, Unsupported

SIZES = range(1, 65)
FLAT = ("ring", "line", "direct", "halving-doubling")
SHAPES = [(d, m) for d in (1, 2, 3, 4, 5, 7, 8) for m in (1, 2, 3, 4, 5, 8)]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("algorithm", FLAT)
@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
def test_flat_algorithms_are_exact(kind, algorithm):
    for size in SIZES:
        prove(kind, plan(kind, algorithm, size), size)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
def test_rings_are_exact(kind):
    for domains, members in SHAPES:
        size = domains * members
        prove(kind, plan(kind, "rings", size, domains=domains), size)


@pytest.mark.parametrize(("domains", "members"), [(1, 1), (1, 8), (2, 4), (3, 3), (4, 2), (5, 1), (8, 8)])
def test_all_to_all_delivers_every_block(domains, members):
    size = domains * members
    for algorithm in ("direct", "hierarchical"):
        start = [[int(block // size == rank) for block in range(size * size)] for rank in range(size)]
        end = execute(plan("all-to-all", algorithm, size, domains=domains), start)
        assert all(end[block % size][block] for block in range(size * size))


def test_forwarding_stays_on_rails():
    steps = expand("all-to-all", "hierarchical", np.arange(32), 1.0, domain=np.arange(32) // 8)
    crosses = steps.source // 8 != steps.target // 8
    assert (steps.step[crosses] == 1).all()
    assert (steps.source[crosses] % 8 == steps.target[crosses] % 8).all()
    first = steps.bytes[steps.step == 0].sum() / 32
    assert first == pytest.approx(7 / 8 * 3 / 4)
    assert steps.bytes[crosses].sum() / 32 == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("domains", "members"), [(d, m) for d in range(2, 9) for m in range(1, 9) if d % 2 == 0 or m != 2]
)
def test_rings_change_domain_on_one_rail(domains, members):
    ports = np.zeros((2, domains * members), dtype=int)
    for ring in range(members):
        order = ring_order(domains, members, ring)
        assert sorted(order) == list(range(domains * members))
        after = np.roll(order, -1)
        crosses = order // members != after // members
        assert crosses.sum() == domains
        assert (order[crosses] % members == after[crosses] % members).all()
        ports[0, order[crosses]] += 1
        ports[1, after[crosses]] += 1
    assert (ports == 1).all()


def test_rings_share_the_nics():
    domain = np.arange(32) // 8
    steps = expand("all-reduce", "rings", np.arange(32), 1.0, domain=domain).pipelined()
    crosses = domain[steps.source] != domain[steps.target]
    sent = np.bincount(steps.source[crosses], weights=steps.bytes[crosses], minlength=32)
    assert sent == pytest.approx(2 * 31 / 32 / 8)


def test_sizes_that_cannot_be():
    with pytest.raises(BadInput, match="bytes"):
        expand("all-reduce", "ring", np.arange(4), float("nan"))
    with pytest.raises(BadInput, match="twice"):
        expand("all-reduce", "ring", np.array([0, 1, 1]), 1.0)
    with pytest.raises(BadInput, match="evenly"):
        expand("all-reduce", "rings", np.arange(3), 1.0, domain=np.array([0, 0, 1]))
    with pytest.raises(Unsupported, match="no algorithm 'ring' for 'all-to-all' -- known: direct, hierarchical"):
        expand("all-to-all", "ring", np.arange(4), 1.0)
