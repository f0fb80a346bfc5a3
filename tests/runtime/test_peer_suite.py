"""AxoNN's own tests as behaviours, item by item, on grids of 2, 4 and 8 ranks, in single precision.

What is elsewhere: 5, vocabularies, in ``test_vocabulary``; 7, the vision transformer, in ``test_vision``; of 8,
transposed layers and chains without a collective between in ``test_linear``, tied embeddings in ``test_parity``,
exceptions inside the overlap and stale weights in ``test_overlap``, checkpoints across grids in ``test_checkpoint``
and ``test_prepare``, which also trains in easy mode.
"""

from __future__ import annotations

import pytest
from peers_at_work import check_convolutions, check_linears, check_models, everything, grids

from weft.runtime.run.ranks import run_ranks


def test_there_are_as_many_grids_as_ways_to_write_the_world():
    assert [len(grids(world)) for world in (2, 4, 8)] == [4, 10, 20]


@pytest.mark.slow
def test_two_ranks():
    """Items 1 to 4 and 6, in one start of the ranks."""
    run_ranks(everything, (2, grids(2)), 2)


@pytest.mark.slow
def test_four_ranks():
    run_ranks(everything, (4, grids(4)), 4)


def test_eight_ranks(ranks):
    """Items 1 to 4 of layers; convolutions and models are in ``test_easy``."""
    ranks.run(check_linears, [(2, 2, 2, 1)])


@pytest.mark.slow
@pytest.mark.parametrize("grid", grids(8), ids=str)
def test_every_grid_of_eight_ranks(ranks, grid):
    for check in (check_linears, check_convolutions, check_models):
        ranks.run(check, [grid])
