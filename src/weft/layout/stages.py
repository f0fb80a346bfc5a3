"""How the blocks of a model fall on pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from weft.layout.spec import Layout
from weft.layout.table import Floats, Index, Ints, collapse
from weft.model.spec import Model

KEPT = 512
"""Splits of a model over stages that are kept."""


def split_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Blocks per model chunk, first to last.

    An even split where possible; otherwise the chunks that hold one block fewer are taken from the end, the
    beginning, then inwards, since the embedding and the loss live there (as Llama 3.1 405B was trained: 126
    blocks on 16 stages).
    """
    base, more = divmod(layers, chunks)
    counts = [base + 1] * chunks if more else [base] * chunks
    fewer = (chunks - more) % chunks
    for i in range(fewer):
        counts[-1 - i // 2 if i % 2 == 0 else i // 2] -= 1
    return tuple(counts)


BLOCKS_OF_PREDICTION = 3
"""Blocks that take as long as a multi-token-prediction module with its head, as the pipeline layouts of Megatron
Bridge's DeepSeek-V3 count it: 61 blocks on 16 stages are 4 each, and 1 and the module on the last."""


def chunk_sizes(layers: int, chunks: int, behind: int = 0) -> tuple[int, ...]:
    """Blocks per model chunk where ``behind`` multi-token-prediction modules are on the last, each instead of
    ``BLOCKS_OF_PREDICTION``."""
    instead = BLOCKS_OF_PREDICTION * behind
    counts = list(split_layers(layers + instead, chunks))
    for _ in range(instead):
        counts[max(i for i, count in enumerate(counts) if count)] -= 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class StageTable:
    """Distinct stages of each pipeline of a search, padded to the same number per pipeline.

    Arrays have shape (pipelines, stages): ``counts[kind]`` blocks of each kind, ``embedding`` and ``head``
    0 or 1, ``first[kind]`` blocks of each kind among the first 0, 1, 2, ... of a stage (a further axis, of 0 alone
    unless ``ordered``), ``stage`` the first stage index that looks so, ``repeats`` how many stages do (0 for padding).
    """

    counts: tuple[Floats, ...]
    embedding: Floats
    head: Floats
    first: tuple[Floats, ...]
    stage: Floats
    repeats: Floats

    @property
    def kinds(self) -> Ints:
        """Distinct stages of each pipeline."""
        there: Ints = np.count_nonzero(self.repeats, axis=1)
        return there

    def first_blocks(self, line: Index, stage: int, first: Ints) -> list[Floats]:
        """Blocks of each kind among so many first ones of a stage, on lines of an ``ordered`` table."""
        if len(self.counts) == 1:
            return [np.minimum(self.counts[0][line, stage], first)]
        until = np.minimum(first, self.first[0].shape[-1] - 1)
        return [counted[line, stage, until] for counted in self.first]


def stage_table(
    model: Model, pipeline: Ints, virtual: Ints, wraps: Ints, *, ordered: bool = False
) -> tuple[StageTable, Index]:
    """The stages of every (pipeline, virtual stages) pair of a table.

    ``wraps`` is 1 where the second chunk runs back through the stages (ZB-V), so that the first stage also
    holds the last chunk.  ``ordered`` also tells stages apart by the order of their blocks, and keeps it.
    Returns the table and, for each row, its line in it.
    """
    groups = collapse((pipeline, virtual, wraps))
    kinds = len(model.kinds)
    places = model.layers if ordered and kinds > 1 else 0
    blocks = tuple(model.block_sequence()), kinds, model.prediction_layers
    lines = [
        _distinct_stages(*blocks, int(pipeline[i]), int(virtual[i]), bool(wraps[i]), places) for i in groups.first
    ]
    width = max(len(line) for line in lines)
    packed = np.zeros((len(lines), width, kinds + places + 4))
    for i, line in enumerate(lines):
        packed[i, : len(line)] = line
    counts = tuple(np.ascontiguousarray(packed[:, :, k]) for k in range(kinds))
    embedding, head, stage, repeats = (np.ascontiguousarray(packed[:, :, j]) for j in (kinds, kinds + 1, -2, -1))
    order = packed[:, :, kinds + 2 : -2]
    none = np.zeros((*order.shape[:2], 1))
    first = tuple(np.concatenate([none, np.cumsum(order == kind, axis=-1)], axis=-1) for kind in range(kinds))
    return StageTable(counts, embedding, head, first, stage, repeats), groups.group


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldChunk:
    """A chunk of a stage, or all its chunks together, as numbers.

    ``counts`` are blocks of each kind, embeddings and heads; ``replayed`` the blocks of each kind that are
    computed again before their backward; ``passes_on`` how many chunks hand activations to another stage,
    ``receives`` how many get them from one.
    """

    stage: int
    counts: tuple[float, ...]
    replayed: tuple[float, ...]
    passes_on: int
    receives: int

    @property
    def holds_embedding(self) -> bool:
        return self.counts[-2] > 0

    @property
    def holds_head(self) -> bool:
        return self.counts[-1] > 0

    @classmethod
    def together(cls, chunks: Sequence[HeldChunk]) -> HeldChunk:
        """All chunks of one stage."""
        return cls(
            stage=chunks[0].stage,
            counts=tuple(map(sum, zip(*(chunk.counts for chunk in chunks), strict=True))),
            replayed=tuple(map(sum, zip(*(chunk.replayed for chunk in chunks), strict=True))),
            passes_on=sum(chunk.passes_on for chunk in chunks),
            receives=sum(chunk.receives for chunk in chunks),
        )


def held_chunks(model: Model, layout: Layout) -> list[HeldChunk]:
    """The chunks of a layout in model order.

    Full recomputation that is limited to ``recompute_layers`` takes the first blocks of each stage.
    """
    sequence = model.block_sequence()
    again = (layout.recompute_layers or len(sequence)) if layout.recompute == "full" else 0
    cut = layout.pipeline, layout.virtual_stages, layout.schedule.wraps
    return list(_held(tuple(sequence), len(model.kinds), model.prediction_layers, cut, again))


@lru_cache(maxsize=KEPT)
def _held(
    sequence: tuple[int, ...], kinds: int, behind: int, cut: tuple[int, int, bool], again: int
) -> tuple[HeldChunk, ...]:
    """Chunks of blocks of some kinds, for a number of stages, virtual stages, and whether they run back; ``again``
    blocks of each stage are recomputed."""
    pipeline, virtual, wraps = cut
    chunks = list(model_chunks(sequence, pipeline, virtual, wraps=wraps, behind=behind))
    left = dict.fromkeys(range(pipeline), again)
    found = []
    for i, chunk in enumerate(chunks):
        replayed = chunk.blocks[: left[chunk.stage]]
        left[chunk.stage] -= len(replayed)
        beside = [other.stage != chunk.stage for other in chunks[max(i - 1, 0) : i + 2] if other is not chunk]
        last = i + 1 == len(chunks)
        found.append(
            HeldChunk(
                stage=chunk.stage,
                counts=(*_by_kind(chunk.blocks, kinds), float(chunk.embedding), float(chunk.head)),
                replayed=_by_kind(replayed, kinds),
                passes_on=0 if last else int(beside[-1]),
                receives=0 if i == 0 else int(beside[0]),
            )
        )
    return tuple(found)


def _by_kind(blocks: Sequence[int], kinds: int) -> tuple[float, ...]:
    return tuple(float(blocks.count(kind)) for kind in range(kinds))


@lru_cache(maxsize=KEPT)
def _distinct_stages(
    sequence: tuple[int, ...], kinds: int, behind: int, pipeline: int, virtual: int, wraps: bool, places: int
) -> Floats:
    """One line a distinct stage: blocks of each kind, holds the embedding, holds the head, the kinds of its blocks in
    order (as many ``places``, -1 behind the last), its first index, and how many there are."""
    lines = np.zeros((pipeline, kinds + places + 3))
    lines[:, kinds + 2 : -1] = -1
    filled = [kinds + 2] * pipeline
    for chunk in model_chunks(sequence, pipeline, virtual, wraps=wraps, behind=behind):
        line = lines[chunk.stage]
        line[:kinds] += np.bincount(np.array(chunk.blocks, dtype=np.int64), minlength=kinds)
        line[kinds : kinds + 2] += (chunk.embedding, chunk.head)
        if places:
            start = filled[chunk.stage]
            filled[chunk.stage] = start + len(chunk.blocks)
            line[start : filled[chunk.stage]] = chunk.blocks
    lines[:, -1] = np.arange(pipeline)
    return _distinct(lines)


def _distinct(lines: Floats) -> Floats:
    """Equal stages merged into their first; a last column counts them."""
    _, first, counts = np.unique(lines[:, :-1], axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return np.column_stack([lines[first[order]], counts[order].astype(float)])
