"""Groups of ranks on the dimensions of a network, against the coordinates of every rank."""

from itertools import product
from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.collectives.dimensions import factors_of, part_dimensions, whole_dimensions
from weft.errors import BadInput, Unsupported, WeftError
from weft.fabric.dimension import Dimension


def dimension(kind, size, Bps=100e9, latency_s=1e-6):
    return Dimension(kind=kind, size=size, bandwidth_Bps=Bps, latency_s=latency_s)


def switches(*sizes):
    return [dimension("switch", size) for size in sizes]


def members(factors):
    """Ranks of the group of rank 0."""
    steps = [[i * distance for i in range(size)] for size, distance in factors]
    return sorted(sum(one) for one in product(*steps))


def coordinates(rank, sizes):
    found = []
    for size in sizes:
        rank, inside = divmod(rank, size)
        found.append(inside)
    return tuple(found)


@st.composite
def groups(draw):
    """Sizes of a network, and the part of each dimension that a group takes: how many, how far apart."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=4))
    parts = []
    for size in sizes:
        apart = draw(st.sampled_from([i for i in range(1, size + 1) if size % i == 0]))
        room = size // apart
        parts.append((draw(st.sampled_from([i for i in range(1, room + 1) if room % i == 0])), apart))
    return sizes, parts


@given(groups())
def test_every_group_of_coordinates_is_found(case):
    sizes, parts = case
    steps, low = [], 1
    for size, (count, apart) in zip(sizes, parts, strict=True):
        steps.append([i * apart * low for i in range(count)])
        low *= size
    ranks = sorted(sum(one) for one in product(*steps))
    assume(len(ranks) <= 600)
    factors = factors_of(ranks)
    assert members(factors) == ranks
    taken = {}
    for number, part in part_dimensions(switches(*sizes), factors):
        taken[number] = taken.get(number, 1) * part.size
    assert taken == {i: count for i, (count, _) in enumerate(parts) if count > 1}


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 40)), min_size=1, max_size=2),
)
def test_what_is_accepted_is_what_the_coordinates_say(sizes, factors):
    """The members differ in the named dimensions alone, in every combination of coordinates."""
    try:
        parts = part_dimensions(switches(*sizes), factors)
    except WeftError:
        return
    ranks = members(factors)
    assume(len(set(ranks)) == len(ranks) <= 600)
    assert ranks[-1] < prod(sizes)
    places = [coordinates(rank, sizes) for rank in ranks]
    values = [{place[i] for place in places} for i in range(len(sizes))]
    assert set(places) == set(product(*values))
    taken = {}
    for number, part in parts:
        taken[number] = taken.get(number, 1) * part.size
    assert taken == {i: len(one) for i, one in enumerate(values) if len(one) > 1}


def test_a_part_of_a_switch_has_all_its_bandwidth():
    whole = Dimension(kind="switch", size=8, bandwidth_Bps=100e9, latency_s=1e-6, reduces=True)
    ((_, part),) = part_dimensions([whole], ((4, 2),))
    assert part == Dimension(kind="switch", size=4, bandwidth_Bps=100e9, latency_s=1e-6, reduces=True)


@pytest.mark.parametrize("kind", ["ring", "line", "fully-connected"])
@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_a_part_keeps_its_links(kind, size):
    """The links between the members are as fast as before; there are as many as join neighbours, or all."""
    whole = dimension(kind, 12)
    ((_, part),) = part_dimensions([whole], ((size, 1),))
    assert part.link_Bps == pytest.approx(whole.link_Bps)
    assert part.latency_s == whole.latency_s
    assert part.cables == (size * (size - 1) // 2 if kind == "fully-connected" else size - 1)


@pytest.mark.parametrize("kind", ["ring", "line", "fully-connected", "switch"])
def test_a_whole_dimension_stays_what_it_is(kind):
    whole = dimension(kind, 6)
    assert part_dimensions([whole], ((6, 1),)) == [(0, whole)]


@pytest.mark.parametrize("kind", ["ring", "line"])
def test_ranks_apart_on_a_ring(kind):
    with pytest.raises(Unsupported, match="not neighbours"):
        part_dimensions([dimension(kind, 8)], ((4, 2),))
    ((_, part),) = part_dimensions([dimension("fully-connected", 8)], ((4, 2),))
    assert part.link_Bps == pytest.approx(100e9 / 7)


@pytest.mark.parametrize("factors", [((3, 1),), ((2, 3),), ((5, 8),), ((12, 1),), ((6, 4),), ((16, 3),)], ids=str)
def test_uneven_cuts(factors):
    with pytest.raises(Unsupported, match="unevenly"):
        part_dimensions(switches(8, 8), factors)


@pytest.mark.parametrize("factors", [((128, 1),), ((2, 64),), ((16, 8),), ((8, 1), (8, 64))], ids=str)
def test_groups_that_do_not_fit(factors):
    with pytest.raises(BadInput, match="fit on 8 x 8"):
        part_dimensions(switches(8, 8), factors)


def test_whole_dimensions():
    network = switches(2, 4, 8)
    assert whole_dimensions(network, (2, 0, 2)) == [(0, network[0]), (2, network[2])]
    assert whole_dimensions(network, ()) == []
    for number in (3, -1):
        with pytest.raises(BadInput, match="there is no dimension"):
            whole_dimensions(network, (0, number))


# Factors of ranks -------------------------------------------------------------------------------


def regular(ranks):
    """Whether equal blocks of equal blocks make the ranks, by trying every size of the innermost one."""
    if len(ranks) == 1:
        return True
    for size in range(2, len(ranks) + 1):
        if len(ranks) % size:
            continue
        blocks = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        distance = ranks[1] - ranks[0]
        wanted = [i * distance for i in range(size)]
        same = all([one - block[0] for one in block] == wanted for block in blocks)
        if same and regular([block[0] for block in blocks]):
            return True
    return False


@given(st.sets(st.integers(0, 15), min_size=1, max_size=12))
def test_ranks_are_regular_or_refused(chosen):
    ranks = sorted(chosen)
    try:
        factors = factors_of(ranks)
    except Unsupported:
        assert not regular(ranks)
    else:
        assert [ranks[0] + one for one in members(factors)] == ranks
