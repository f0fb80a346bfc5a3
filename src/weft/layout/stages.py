"""How the blocks of a model fall on pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.layout.table import Floats, Index, Ints, collapse
from weft.model.spec import Model


def split_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Blocks per model chunk, first to last.

    An even split where possible; otherwise the chunks that hold one block fewer are taken from the end, the
    beginning,
    then inwards, since the embedding and the loss live there (as Llama 3.1 405B was trained: 126 blocks on
    16 stages).
    """
    base, more = divmod(layers, chunks)
    counts = [base + 1] * chunks if more else [base] * chunks
    fewer = (chunks - more) % chunks
    for i in range(fewer):
        counts[-1 - i // 2 if i % 2 == 0 else i // 2] -= 1
    return tuple(counts)


def chunk_sizes(layers: int, chunks: int, behind: int = 0) -> tuple[int, ...]:
    """Blocks per model chunk where ``behind`` multi-token-prediction modules count as blocks of the last.

    So do Megatron-Core's pipeline layouts for DeepSeek-V3.
    """
    counts = list(split_layers(layers + behind, chunks))
    for _ in range(behind):
        counts[max(i for i, count in enumerate(counts) if count)] -= 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class StageTable:
    """Distinct stages of each pipeline of a search, padded to the same number per pipeline.

    Arrays have shape (pipelines, stages): ``counts[kind]`` blocks of each kind, ``embedding`` and ``head``
    0 or 1,
    ``stage`` the first stage index that looks so, ``repeats`` how many stages do (0 for padding).
    """

    counts: tuple[Floats, ...]
    embedding: Floats
    head: Floats
    stage: Floats
    repeats: Floats


def stage_table(model: Model, pipeline: Ints, virtual: Ints, wraps: Ints) -> tuple[StageTable, Index]:
    """The stages of every (pipeline, virtual stages) pair of a table.

    ``wraps`` is 1 where the second chunk runs back through the stages (ZB-V), so that the first stage also
    holds the last chunk.  Returns the table and, for each row, its line in it.
    """
    groups = collapse((pipeline, virtual, wraps))
    kinds = len(model.kinds)
    lines = [_distinct(_compositions(model, int(pipeline[i]), int(virtual[i]), bool(wraps[i]))) for i in groups.first]
    width = max(len(line) for line in lines)
    packed = np.zeros((len(lines), width, kinds + 4))
    for i, line in enumerate(lines):
        packed[i, : len(line)] = line
    counts = tuple(np.ascontiguousarray(packed[:, :, k]) for k in range(kinds))
    rest = [np.ascontiguousarray(packed[:, :, kinds + j]) for j in range(4)]
    return StageTable(counts, *rest), groups.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive blocks of a model on one stage: their kinds in order (indices in ``Model.kinds``), and
    whether the embedding is before and the head behind them."""

    stage: int
    blocks: tuple[int, ...]
    embedding: bool
    head: bool


def chunk_stage(chunk: int, pipeline: int, *, wraps: bool) -> int:
    """The stage that holds a chunk: round and round, or there and back."""
    turn, stage = divmod(chunk, pipeline)
    return pipeline - 1 - stage if wraps and turn % 2 else stage


def model_chunks(
    sequence: Sequence[int], pipeline: int, virtual: int = 1, *, wraps: bool = False, behind: int = 0
) -> Iterator[Chunk]:
    """The chunks of a ``Model.block_sequence()``, first to last: round the stages, or there and back.

    ``behind`` multi-token-prediction modules are on the last chunk (``chunk_sizes``).
    """
    last = pipeline * virtual - 1
    start = 0
    for i, count in enumerate(chunk_sizes(len(sequence), last + 1, behind)):
        blocks = tuple(sequence[start : start + count])
        yield Chunk(stage=chunk_stage(i, pipeline, wraps=wraps), blocks=blocks, embedding=i == 0, head=i == last)
        start += count


def _compositions(model: Model, pipeline: int, virtual: int, wraps: bool) -> Floats:
    """One line a stage: blocks of each kind, holds the embedding, holds the head, its index."""
    sequence, kinds = model.block_sequence(), len(model.kinds)
    lines = np.zeros((pipeline, kinds + 3))
    for chunk in model_chunks(sequence, pipeline, virtual, wraps=wraps, behind=model.prediction_layers):
        line = lines[chunk.stage]
        line[:kinds] += np.bincount(np.array(chunk.blocks, dtype=np.int64), minlength=kinds)
        line[kinds : kinds + 2] += (chunk.embedding, chunk.head)
    lines[:, kinds + 2] = np.arange(pipeline)
    return lines


def _distinct(lines: Floats) -> Floats:
    """Equal stages merged into their first; a last column counts them."""
    _, first, counts = np.unique(lines[:, :-1], axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return np.column_stack([lines[first[order]], counts[order].astype(float)])
