"""Stages without an expansion, executed symbolically: in the switch, along a chain, hop by hop."""

import numpy as np
import pytest

from weft.collectives.stages import stage

SIZES = range(2, 65)


def played(messages, held):
    """Play (step, source, target, block, adds) messages on contributions held[node, block, rank]."""
    for step in range(max(message[0] for message in messages) + 1):
        before = held.copy()
        for when, source, target, block, adds in messages:
            if when == step:
                assert before[source, block].any(), "a node sends what it does not hold"
                held[target, block] = before[source, block] + (held[target, block] if adds else 0)
    return held


def in_switch(size):
    """Messages of an all-reduce in the switch, which is node ``size``: every rank reads its own block added
    up there, and writes it to all from there."""
    ranks = range(size)
    reads = [(0, source, size, block, True) for source in ranks for block in ranks]
    reads += [(1, size, rank, rank, False) for rank in ranks]
    writes = [(2, rank, size, rank, False) for rank in ranks]
    writes += [(3, size, target, block, False) for target in ranks for block in ranks if target != block]
    return reads + writes


@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 16, 31, 64])
def test_an_all_reduce_in_the_switch_is_exact(size):
    held = np.zeros((size + 1, size, size), dtype=np.int16)
    for rank in range(size):
        held[rank, :, rank] = 1
    messages = in_switch(size)
    assert (played(messages, held)[:size] == 1).all()
    sent = np.bincount([source for _, source, *_ in messages], minlength=size + 1)[:size]
    cost = stage("all-reduce", "in-switch", size)
    assert sent / size == pytest.approx(np.full(size, cost.sent))
    assert cost.steps == 2


def test_two_ranks_do_not_use_the_switch():
    assert stage("all-reduce", "in-switch", 2) == stage("all-reduce", "halving-doubling", 2)


@pytest.mark.parametrize("size", SIZES)
def test_a_chain_reaches_everybody(size):
    """Rank r passes on what it holds to r + 1: cut into many pieces, each link carries the buffer once."""
    held = np.zeros(size, dtype=bool)
    held[0] = True
    steps = 0
    while not held.all():
        held[1:] |= held[:-1]
        steps += 1
    cost = stage("broadcast", "ring", size)
    assert steps == cost.steps
    assert cost.sent == 1
    assert stage("reduce", "ring", size) == cost


def hops(size, *, closed):
    """Blocks that cross each directed link of a ring or line in an all-to-all, and the longest way."""
    crossed = np.zeros((2, size), dtype=int)
    longest = 0
    for source in range(size):
        for target in range(size):
            right = (target - source) % size
            go_right = target > source if not closed else 2 * right < size or (2 * right == size and source % 2)
            length = right if go_right else (source - target) % size if closed else source - target
            longest = max(longest, length)
            for hop in range(length):
                crossed[int(not go_right), (source + hop if go_right else source - hop) % size] += 1
    return crossed, longest


@pytest.mark.slow_but(20)
@pytest.mark.parametrize("size", SIZES)
def test_an_all_to_all_around_a_ring_crosses_links_evenly(size):
    crossed, longest = hops(size, closed=True)
    cost = stage("all-to-all", "ring", size)
    assert crossed.sum() / size / size == pytest.approx(cost.sent)
    assert longest == cost.steps
    if size % 2:
        assert np.ptp(crossed) == 0


@pytest.mark.slow_but(20)
@pytest.mark.parametrize("size", SIZES)
def test_an_all_to_all_along_a_line_is_held_by_its_middle(size):
    crossed, longest = hops(size, closed=False)
    cost = stage("all-to-all", "line", size)
    link_share = 0.5 if size > 2 else 1.0
    assert crossed.max() / size / link_share == pytest.approx(cost.sent)
    assert longest == cost.steps
