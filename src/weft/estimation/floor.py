"""Seconds that no stepping through a pipeline undercuts, for a table of layouts at once.

``weft.simulation.iteration.stepping`` lets every stage run its passes in order.  So a stage ends no earlier than
the first micro-batch needs to come to it, plus all of the stage's passes; behind its last backward pass, that
micro-batch's gradients still go back through the stages before it.  The largest of these over the stages is the
floor.  Where stages are alike it is the time itself, except for what overlaps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.estimation.frame import Frame, weighted
from weft.estimation.iteration import block_rows, step_totals
from weft.estimation.result import EstimateTable
from weft.layout.stages import model_chunks
from weft.layout.table import Floats, Index, Ints, collapse
from weft.model.spec import Model


class _Stage(NamedTuple):
    """The last stage of those that hold the same: its place, its blocks in order, whether it holds embedding and
    head, and blocks of each kind on the first chunks of the stages before it."""

    place: int
    blocks: tuple[int, ...]
    ends: tuple[int, int]
    before: Floats


class _Lines(NamedTuple):
    """Distinct stages of each pipeline of a frame, shape (pipelines, stages): place; blocks of each kind among the
    first 0, 1, 2, ... of a stage (a further axis before the kinds'), and their number; embedding and head; blocks
    before the stage; the fewest blocks of a chunk (one a pipeline)."""

    place: Ints
    first: Ints
    blocks: Ints
    ends: Ints
    before: Floats
    fewest: Ints


class Floor:
    """Floors of one model's layouts; keeps what it learned of pipelines.

    ``uneven``: a stage with less to reduce and to gather than others may take less for it, so that floors of
    pipelines count none of it.
    """

    def __init__(self, model: Model, *, uneven: bool = False) -> None:
        self.model, self.uneven = model, uneven
        self._stages: dict[tuple[int, int, bool], tuple[list[_Stage], int]] = {}

    def seconds(self, frame: Frame, estimates: EstimateTable) -> Floats:
        """The floor of every row, of which the estimates are given."""
        rows = block_rows(frame)
        lines, line = self._lines(frame)
        totals = step_totals(frame)
        if self.uneven:
            # Some stage may have little to reduce and to gather: in pipelines none of it is counted.
            even = frame.table.pipeline == 1
            totals = replace(totals, reduce_s=even * totals.reduce_s, gather_s=even * totals.gather_s)
        steps, table = frame.micro_batches, frame.table
        blocks, split = table.scheduled("blocks"), table.scheduled("splits_backward")
        # What runs beside a pass slows it by a share of the time that is hidden, which is at least the lesser of the
        # collective and the shortest pass.
        hop = np.where(table.pipeline > 1, frame.at(frame.meshes.send_s), 0.0)
        behind = np.where(table.overlap_reduce > 0, totals.last, 1.0) * totals.reduce_s / frame.virtual
        every = table.zero == 2
        forward, backward = ([getattr(row, name) for row in rows] for name in ("forward_total", "backward_total"))
        cost, fewest = frame.constants.overlap_cost, lines.fewest[line]
        # The shortest of the passes of all kinds of blocks.
        least = fewest * np.minimum.reduce(forward[:-2]), fewest * np.minimum.reduce(backward[:-2])
        beside = cost * np.where(blocks, 0.0, np.minimum(hop, least[0]))
        hidden_share = (1.0 - totals.last) / frame.virtual
        ahead = cost * table.overlap_gather * np.minimum(hidden_share * totals.gather_s, least[0])
        after = cost * table.overlap_reduce * np.minimum(hidden_share * totals.reduce_s, least[1])
        passes = frame.virtual * (2.0 * steps * beside + ahead + np.where(every, steps, 1.0) * after)
        result = frame.zeros()
        # The floor is the largest over the stages: the way of the first micro-batch there, all work of the stage, and
        # the way of the last gradients back. Of stages that hold the same the last is farthest, so that one of each
        # kind is enough.
        for j in range(lines.place.shape[1]):
            counts = self._counts(frame, lines, line, j)
            index = lines.place[line, j]
            # Blocks of each kind on the way to the stage (none counts as replayed), embedding, no head.
            before = list(lines.before[line, j].T)
            early = weighted(forward[-len(before) :], before)
            late = weighted(backward[-len(before) :], before)
            work = steps * (weighted(forward, counts) + weighted(backward, counts)) + passes
            neighbours = (index > 0) + 1.0 * (index < table.pipeline - 1)
            work = work + np.where(blocks, np.maximum(steps * neighbours - (index > 0), 0.0) * hop, 0.0)
            work = work + np.where(every, (steps * frame.virtual - 1.0) * behind, 0.0)
            arrival_s = early + index * (hop + beside + ahead)
            # Where backward passes are split, other work may fill the way back: it counts nothing.
            back = np.where(split, 0.0, late + index * (hop + beside + after))
            result = np.maximum(result, arrival_s + work + back)
        # The last reduction waits for all that was before; where passes are split, other passes may hide it.
        tail = np.where(split, 0.0, behind)
        tied = np.where(split | (table.pipeline == 1), 0.0, frame.at(frame.meshes.tied_s))
        once = estimates.optimizer_s + totals.single_s + estimates.offload_s + estimates.host_s
        # Before anything runs, the first parameters must be there.
        first = np.where(table.overlap_gather > 0, totals.last / frame.virtual, 1.0)
        return first * totals.gather_s + result + tail + tied + once

    def _counts(self, frame: Frame, lines: _Lines, line: Index, j: int) -> list[Floats]:
        """Blocks of each kind (those that are replayed, then those that are not, where some are), embedding, head."""
        every = lines.blocks[line, j]
        kinds = len(self.model.kinds)
        blocks = lines.first[line, j, every]
        ends = [lines.ends[line, j, k].astype(np.float64) for k in range(2)]
        if not frame.partial:
            return [*(blocks[:, k].astype(np.float64) for k in range(kinds)), *ends]
        limit = frame.table.recompute_layers
        again = lines.first[line, j, np.where(limit > 0, np.minimum(limit, every), every)] * frame.replays[:, None]
        return [*(again[:, k] for k in range(kinds)), *((blocks - again)[:, k] for k in range(kinds)), *ends]

    def _lines(self, frame: Frame) -> tuple[_Lines, Index]:
        table = frame.table
        wraps = table.scheduled("wraps").astype(np.int64)
        # Stages follow from pipeline, virtual stages and wrapping alone, and are remembered by these.
        groups = collapse((table.pipeline, table.virtual_stages, wraps))
        wanted = [(int(table.pipeline[i]), int(table.virtual_stages[i]), bool(wraps[i])) for i in groups.first]
        for key in wanted:
            if key not in self._stages:
                self._stages[key] = self._made(*key)
        known = [self._stages[key] for key in wanted]
        width = max(len(stages) for stages, _ in known)
        longest = max(len(stage.blocks) for stages, _ in known for stage in stages)
        kinds = len(self.model.kinds)
        lines = _Lines(
            place=np.zeros((len(known), width), dtype=np.int64),
            first=np.zeros((len(known), width, longest + 1, kinds), dtype=np.int64),
            blocks=np.zeros((len(known), width), dtype=np.int64),
            ends=np.zeros((len(known), width, 2), dtype=np.int64),
            before=np.zeros((len(known), width, kinds + 2)),
            fewest=np.array([fewest for _, fewest in known], dtype=np.int64),
        )
        for i, (stages, _) in enumerate(known):
            for j, stage in enumerate(stages):
                lines.place[i, j], lines.blocks[i, j], lines.ends[i, j] = stage.place, len(stage.blocks), stage.ends
                lines.before[i, j] = stage.before
                for k, kind in enumerate(stage.blocks):
                    lines.first[i, j, k + 1] = lines.first[i, j, k]
                    lines.first[i, j, k + 1, kind] += 1
        return lines, groups.group

    def _made(self, pipeline: int, virtual: int, wraps: bool) -> tuple[list[_Stage], int]:
        """The distinct stages of a pipeline, and the fewest blocks of a chunk."""
        model, kinds = self.model, len(self.model.kinds)
        chunks = list(
            model_chunks(model.block_sequence(), pipeline, virtual, wraps=wraps, behind=model.prediction_layers)
        )
        before = np.zeros(kinds + 2)
        result: dict[tuple[tuple[int, ...], tuple[int, int]], _Stage] = {}
        for index in range(pipeline):
            mine = [chunk for chunk in chunks if chunk.stage == index]
            blocks = tuple(kind for chunk in mine for kind in chunk.blocks)
            ends = int(any(chunk.embedding for chunk in mine)), int(any(chunk.head for chunk in mine))
            # A later stage of the same content takes the place of the earlier one.
            result[blocks, ends] = _Stage(index, blocks, ends, before.copy())
            before[:kinds] += np.bincount(np.array(chunks[index].blocks, dtype=np.int64), minlength=kinds)
            before[kinds] += chunks[index].embedding
        return list(result.values()), min(len(chunk.blocks) for chunk in chunks)
