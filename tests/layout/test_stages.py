"""How blocks fall on stages: sums, evenness, published splits, and merged equal stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.layout.stages import model_chunks, split_layers, stage_table
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model


def block(width: int) -> Block:
    return Block(
        hidden=64, attention=Attention(heads=4, kv_heads=4, head_dim=16), feed_forward=FeedForward(intermediate=width)
    )


def model(*runs: tuple[int, int]) -> Model:
    """A model of (width, count) runs."""
    return Model(name="m", hidden=64, vocab=128, runs=tuple(BlockRun(block=block(w), count=c) for w, c in runs))


@given(st.integers(1, 300), st.integers(1, 64))
def test_split_is_even_and_complete(layers: int, chunks: int) -> None:
    counts = split_layers(layers, chunks)
    assert len(counts) == chunks
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1


def test_llama_405b_has_lighter_ends() -> None:
    counts = split_layers(126, 16)
    assert counts[0] == counts[-1] == 7
    assert set(counts[1:-1]) == {8}


def compositions(made: Model, pipeline: int, virtual: int, wraps: int) -> list[tuple[float, ...]]:
    """(blocks of each kind, embedding, head, first such stage, repeats) of the one pipeline."""
    table, line = stage_table(made, np.array([pipeline]), np.array([virtual]), np.array([wraps]))
    columns = [*table.counts, table.embedding, table.head, table.stage, table.repeats]
    rows = [tuple(float(column[line[0], i]) for column in columns) for i in range(len(table.repeats[0]))]
    return [row for row in rows if row[-1] > 0]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_stages_hold_the_model_once(first: int, second: int, pipeline: int, virtual: int, wraps: bool) -> None:
    rows = compositions(model((64, first), (96, second)), pipeline, virtual, int(wraps))
    repeats = np.array([row[-1] for row in rows])
    assert repeats.sum() == pipeline
    for column, total in enumerate((first, second, 1, 1)):
        assert np.array([row[column] for row in rows]) @ repeats == total


def test_equal_stages_are_merged() -> None:
    rows = compositions(model((64, 32)), 8, 1, 0)
    assert rows == [(4, 1, 0, 0, 1), (4, 0, 0, 1, 6), (4, 0, 1, 7, 1)]


def test_interleaved_chunks_go_round() -> None:
    """Two kinds, two chunks a stage: every stage has one chunk of each kind."""
    rows = compositions(model((64, 4), (96, 4)), 4, 2, 0)
    assert [row[:4] for row in rows] == [(1, 1, 1, 0), (1, 1, 0, 0), (1, 1, 0, 1)]


def test_v_shape_puts_both_ends_on_the_first_stage() -> None:
    rows = compositions(model((64, 4), (96, 4)), 4, 2, 1)
    assert rows[0] == (1, 1, 1, 1, 0, 1)
    assert sum(row[2] + row[3] for row in rows[1:]) == 0


def test_v_shape_balances_unequal_ends() -> None:
    """Runs of 3 light and 1 heavy block on 2 stages: the first stage holds the first and the last block."""
    rows = compositions(model((64, 3), (96, 1)), 2, 2, 1)
    assert rows[0][:2] == (1, 1)
    assert rows[1][:2] == (2, 0)


def test_rows_of_a_table_map_to_their_own_line() -> None:
    pipelines = np.array([1, 2, 4, 2, 1])
    made = model((64, 8))
    table, line = stage_table(made, pipelines, np.ones(5, dtype=np.int64), np.zeros(5, dtype=np.int64))
    assert (table.repeats.sum(axis=1)[line] == pipelines).all()
    assert line[0] == line[4]
    assert line[1] == line[3]


@pytest.mark.parametrize(("chunks", "each"), [(4, 16), (8, 8), (16, 4)])
def test_prediction_modules_count_as_in_megatron_bridges_layouts(chunks, each):
    """DeepSeek-V3's 61 blocks and one module: recipes/deepseek/deepseek_v3.py has 16, 8 and 4 blocks a chunk, and
    three fewer before the module."""
    counts = [len(chunk.blocks) for chunk in model_chunks([0] * 61, chunks, behind=1)]
    assert counts == [each] * (chunks - 1) + [each - 3]


def test_more_prediction_modules_than_the_last_chunk_holds():
    counts = [len(chunk.blocks) for chunk in model_chunks([0] * 4, 4, behind=2)]
    assert sum(counts) == 4
    assert counts[-1] == 0
