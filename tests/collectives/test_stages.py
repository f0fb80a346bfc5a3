"""Steps and bytes of the stages, against the messages of the algorithms themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.collectives.proofs import execute

from weft.collectives.messages import Steps, after, beside, expand, table
from weft.collectives.schedules.chunks import request
from weft.collectives.stages import ALGORITHMS, STAGE_KINDS, choose, stage
from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.dimension import KINDS, Dimension, pairs

SIZES = range(2, 65)
EXPANDED = [
    *((kind, name) for kind in STAGE_KINDS[:3] for name in ("ring", "direct", "halving-doubling")),
    ("all-to-all", "direct"),
    *((kind, name) for kind in ("broadcast", "reduce") for name in ("direct", "double-tree")),
]
"""Kinds and algorithms whose messages are known."""


def sizes_of(algorithm):
    return [size for size in SIZES if algorithm != "halving-doubling" or size & (size - 1) == 0]


# Messages over trees (Sanders, Speck and Traeff 2009) ----------------------------------------------


def plan_of(kind, algorithm, size):
    """Broadcast, reduce (direct, double-tree) or all-reduce (double-tree) among ranks; rank 0 is the root."""
    if algorithm == "direct":
        return _down(np.where(np.arange(size) > 0, 0, -1), 0, 1, up=kind == "reduce")
    plans = []
    for block in (0, 1):
        # A rank inside one of the trees is a leaf of the other.
        if kind == "all-reduce":
            parents = _shifted(in_order_tree(size), block)
            plans.append(after(_down(parents, block, 2, up=True), _down(parents, block, 2)))
        else:
            parents = np.concatenate([[-1], _shifted(in_order_tree(size - 1), block) + 1]) if size > 1 else -np.ones(1)
            plans.append(_down(parents.astype(np.int64), block, 2, up=kind == "reduce"))
    return beside(plans, parts=2, owner=np.zeros(2, dtype=np.int64))


def in_order_tree(size):
    """Parent of each rank in the binary tree whose in-order walk is 0, 1, 2, ... (-1 for the root)."""
    position = np.arange(1, size + 1)
    # The lowest set bit of a position is its height; its parent has the next higher bit set instead of it.
    low = position & -position
    parent = (position & ~low) | (2 * low)
    return np.where(parent > size, position & ~low, parent) - 1


def _shifted(parents, shift):
    """The tree with every rank one place further on, so that leaves and inner ranks change places."""
    above = np.roll(parents, -shift)
    return np.where(above < 0, -1, (above - shift) % len(parents))


def _down(parents, block, parts, *, up=False):
    """From the root to the leaves, or all that backwards, adding up."""
    child = np.flatnonzero(parents >= 0)
    depth, above = np.zeros_like(parents), parents.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    owner = np.zeros(parts, dtype=np.int64)
    first = np.full_like(child, block)
    down = table(depth[child] - 1, parents[child], child, first, parts=parts, owner=owner, adds=up)
    if not up:
        return down
    return replace(down, step=down.steps - 1 - down.step, source=down.target, target=down.source)


@pytest.mark.parametrize("algorithm", ["direct", "double-tree"])
def test_one_rank_to_all_and_back(algorithm):
    for size in range(2, 34):
        everybody = [[1 << rank] * 2 for rank in range(size)]
        down, up = (plan_of(kind, algorithm, size) for kind in ("broadcast", "reduce"))
        end = execute(down, [[int(rank == 0)] * 2 for rank in range(size)])
        assert all(set(blocks[: down.parts]) == {1} for blocks in end)
        assert set(execute(up, [list(bits) for bits in everybody])[0][: up.parts]) == {(1 << size) - 1}
        if algorithm == "double-tree":
            end = execute(plan_of("all-reduce", algorithm, size), everybody)
            assert all(set(blocks) == {(1 << size) - 1} for blocks in end)


# What stages cost ---------------------------------------------------------------------------------


def messages(kind, algorithm, size):
    """Steps in which ranks of a group send shares of the buffer."""
    if kind in ("broadcast", "reduce") or algorithm == "double-tree":
        made = plan_of(kind, algorithm, size)
        shares = made.blocks / made.parts
        return Steps(count=made.steps, step=made.step, source=made.source, target=made.target, bytes=shares)
    return expand(kind, algorithm, np.arange(size), 1.0)


def busiest_rank(steps, size):
    """The most that a rank sends or receives."""
    received = np.bincount(steps.target, weights=steps.bytes, minlength=size)
    return max(np.bincount(steps.source, steps.bytes, size).max(), received.max())


def a_dimension(kind, size, **more):
    return Dimension(size=size, kind=kind, bandwidth_Bps=1.0, **more)


@pytest.mark.parametrize(("kind", "algorithm"), EXPANDED)
def test_bytes_and_steps_are_those_of_the_messages(kind, algorithm):
    for size in sizes_of(algorithm):
        steps, cost = messages(kind, algorithm, size), stage(kind, algorithm, size)
        assert cost.algorithm == algorithm
        assert cost.sent == pytest.approx(busiest_rank(steps, size), rel=1e-12), size
        assert cost.steps == steps.count, size


def test_a_double_tree_all_reduce_sends_and_takes_what_its_messages_do():
    for size in SIZES:
        steps, cost = messages("all-reduce", "double-tree", size), stage("all-reduce", "double-tree", size)
        assert cost.steps == steps.count
        assert size < 4 or cost.sent == pytest.approx(busiest_rank(steps, size))


def busiest_link_time(kind, size):
    """Seconds of the busiest link of a line whose nodes have 1 byte/s, with all steps flowing."""
    line = a_dimension("line", size)
    left, right = (ends.tolist() for ends in pairs("line", size))
    flowing = messages(kind, "line", size).pipelined()
    joined = set(zip(left, right, strict=True)) | set(zip(right, left, strict=True))
    assert set(zip(flowing.source.tolist(), flowing.target.tolist(), strict=True)) <= joined
    return flowing.bytes.max() / line.link_Bps


@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather"])
def test_a_line_is_as_fast_as_its_busiest_link(kind):
    for size in range(3, 65):
        cost = stage(kind, "line", size)
        assert cost.sent == pytest.approx(busiest_link_time(kind, size), rel=1e-12)
        assert cost.steps == messages(kind, "line", size).count


def test_a_line_of_two_has_one_link_of_the_whole_bandwidth():
    """``Dimension.link_Bps`` gives two nodes one link; a ring of two is the same wire."""
    for kind in ("reduce-scatter", "all-gather"):
        assert stage(kind, "line", 2).sent == pytest.approx(busiest_link_time(kind, 2), rel=1e-12)
        assert stage(kind, "line", 2).sent == stage(kind, "ring", 2).sent


def test_one_rank_to_all_around_a_ring_and_along_a_line():
    for kind in ("broadcast", "reduce"):
        for size in range(3, 65):
            assert (stage(kind, "ring", size).sent, stage(kind, "line", size).sent) == (1.0, 2.0)
            assert stage(kind, "ring", size).steps == stage(kind, "line", size).steps == size - 1


def test_in_switch_sends_the_buffer_about_once():
    for size in SIZES:
        cost = stage("all-reduce", "in-switch", size)
        assert cost.sent == pytest.approx(1 + 1 / size if size > 2 else 1.0), "two exchange halves"
        assert cost.steps == 2
        for kind in ("broadcast", "reduce"):
            assert (stage(kind, "in-switch", size).sent, stage(kind, "in-switch", size).steps) == (1.0, 1)
        for kind in ("reduce-scatter", "all-gather", "all-to-all"):
            usual = {"all-to-all": "direct"}.get(kind, "ring" if size & (size - 1) else "halving-doubling")
            for algorithm in ("in-switch", "double-tree"):
                assert stage(kind, algorithm, size) == stage(kind, usual, size)


# Stages without an expansion: in the switch, along a chain, hop by hop ------------------------------


def summed(messages, held):
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
    assert (summed(messages, held)[:size] == 1).all()
    sent = np.bincount([source for _, source, *_ in messages], minlength=size + 1)[:size]
    cost = stage("all-reduce", "in-switch", size)
    assert sent / size == pytest.approx(np.full(size, cost.sent))
    assert cost.steps == 2


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


@pytest.mark.parametrize("size", range(2, 65, 3))
@pytest.mark.parametrize("kind", ["ring", "line"])
def test_an_all_to_all_takes_the_busiest_link_hop_by_hop(kind, size):
    """Links of a ring are crossed evenly, those in the middle of a line most."""
    crossed, longest = hops(size, closed=kind == "ring")
    cost = stage("all-to-all", kind, size)
    busiest = crossed.sum() / size if kind == "ring" else crossed.max() * (2 if size > 2 else 1)
    assert busiest / size == pytest.approx(cost.sent)
    assert longest == cost.steps
    if kind == "ring" and size % 2:
        assert np.ptp(crossed) == 0


# Which algorithm ---------------------------------------------------------------------------------


def test_usual_algorithms():
    assert [choose(a_dimension(kind, 8))[0] for kind in KINDS] == ["ring", "line", "direct", "halving-doubling"]
    assert choose(a_dimension("switch", 8, reduces=True)) == ("in-switch", None)
    assert choose(a_dimension("switch", 6, reduces=True)) == ("in-switch", None)
    assert choose(a_dimension("switch", 6, reduces=True), "double-tree") == ("double-tree", None)


def test_halving_doubling_needs_a_power_of_two():
    for size in range(1, 65):
        for wanted in (None, "halving-doubling"):
            name, note = choose(a_dimension("switch", size), wanted)
            if size & (size - 1):
                assert name == "ring"
                assert note is not None
                assert str(size) in note
            else:
                assert (name, note) == ("halving-doubling", None)
    asked = request("all-reduce", 1.0, [a_dimension("ring", 3), a_dimension("switch", 6)])
    assert asked.algorithms == ("ring", "ring")
    assert len(asked.notes) == 1
    assert asked.notes[0].startswith("dimension 2: ring instead of halving-doubling")


@pytest.mark.parametrize(
    ("kind", "possible"),
    [
        ("ring", {"ring"}),
        ("line", {"line"}),
        ("fully-connected", {"direct", "ring"}),
        ("switch", {"halving-doubling", "ring", "direct", "double-tree"}),
    ],
)
def test_links_that_cannot_carry_an_algorithm(kind, possible):
    for name in ALGORITHMS:
        if name in possible:
            assert choose(a_dimension(kind, 8), name) == (name, None)
            continue
        with pytest.raises(Unsupported, match=f"no {name} on a {kind}") as refused:
            choose(a_dimension(kind, 8), name)
        assert all(other in str(refused.value) for other in possible)
        assert "takes in-switch" not in str(refused.value)


def test_requests_that_cannot_be():
    ring = a_dimension("ring", 4)
    with pytest.raises(UnknownName, match="all-reduce"):
        request("all-reduc", 1.0, [ring])
    for size in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="bytes"):
            request("all-reduce", size, [ring])
    with pytest.raises(BadInput, match="no dimension"):
        request("all-reduce", 1.0, [])
    with pytest.raises(BadInput, match="nobody to talk to"):
        request("all-reduce", 1.0, [a_dimension("ring", 1)] * 2)
    with pytest.raises(BadInput, match="1 algorithms for 2"):
        request("all-reduce", 1.0, [ring, ring], algorithms=["ring"])
    with pytest.raises(Unsupported, match="8 dimensions"):
        request("all-reduce", 1.0, [ring] * 8)
    assert request("all-reduce", 1.0, [ring] * 6 + [a_dimension("ring", 1)] * 3).used == tuple(range(6))
