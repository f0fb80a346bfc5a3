"""The closed-form clock: iteration time and memory of a table of layouts.

Costs that depend only on the mesh and the micro-batch are computed once per distinct mesh (``weft.estimation.costs``),
gradient synchronisation once per distinct mesh and stage split; the rest is arithmetic per row of a ``Frame``.  Rows
must have passed ``weft.layout.check``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.estimation.costs import CostModel, PartCosts, ShardCosts
from weft.estimation.frame import SLICE, Frame, StageMemory, pinned_capacity, weighted
from weft.estimation.result import MEMORY_PARTS, TIME_PARTS, Estimate, EstimateTable, Part
from weft.estimation.trust import ErrorBar, widened_bar
from weft.layout.check import check_layout
from weft.layout.mesh import spread
from weft.layout.spec import Layout
from weft.layout.stages import bubble_s
from weft.layout.step import RUNTIME
from weft.layout.table import Floats, Index, Ints, LayoutTable
from weft.model.job import Job, model_flops

UPDATE_BYTES = 34.0
"""Memory traffic of the optimizer per parameter: state read and written, gradient read twice (norm,
update), weight written."""
CORE_REPLAY = 3.0
"""Published HFU counts a recomputed attention core as often as the core itself, forward and backward: s/3h
for s/6h in arXiv 2205.05198, appendix A.  Only the reported HFU does; time replays the forward pass once."""


class Estimator(CostModel):
    """Estimates layouts of one job on one cluster; arguments and errors are those of ``CostModel``."""

    def evaluate(self, table: LayoutTable) -> EstimateTable:
        """Time and memory of every row."""
        numbers, parts = [], []
        for rows, frame in self.slices(table):
            numbers.append(rows)
            parts.append(estimate_rows(frame))
        return EstimateTable.joined(parts, numbers)

    def estimates(self, layouts: Sequence[Layout]) -> tuple[Estimate, ...]:
        """Layouts one by one, which must have passed ``weft.layout.check`` and share their order of axes."""
        if not layouts:
            return ()
        results, error = self.evaluate(LayoutTable.of(layouts)), None
        if self.constants.shipped:
            error = widened_bar(self.job, self.cluster)
        return tuple(estimate_of(self, layout, results, i, error) for i, layout in enumerate(layouts))

    def slices(self, table: LayoutTable) -> Iterator[tuple[Index, Frame]]:
        """Numbers of some rows, and their frame, until all rows have been.

        Rows that replay some blocks of a stage, which take longer, go by themselves.
        """
        frame, partial = self.frame(table), table.recompute_layers > 0
        # Rows with partial recomputation count every kind of block twice (replayed or not): apart, the others stay
        # fast.
        groups = [rows for rows in (np.flatnonzero(~partial), np.flatnonzero(partial)) if len(rows)]
        for rows in groups or [np.arange(0)]:
            for start in range(0, max(len(rows), 1), SLICE):
                some = rows[start : start + SLICE]
                yield some, frame.take(some)

    def frames(self, table: LayoutTable) -> Iterator[Frame]:
        """The frames of ``slices``."""
        return (frame for _, frame in self.slices(table))

    def memory_bytes(self, table: LayoutTable) -> Floats:
        """Memory of the fullest stage of every row, without timing it."""
        return self.frame(table).peaks(np.arange(len(table)), {})[0]

    def frame(self, table: LayoutTable, *, ordered: bool | None = None) -> Frame:
        """All rows of a table.

        Args:
            table: the layouts.
            ordered: some rows recompute a number of layers, or will with other switches; as the table has it by
                default.
        """
        ordered = bool(table.recompute_layers.any()) if ordered is None else ordered
        return Frame.of(self, table, ordered=ordered)


# Blocks ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class BlockRow:
    """One kind of block on every row: seconds per micro-batch."""

    forward: Floats
    backward: Floats
    recompute: Floats
    weight_gradient: Floats
    tensor: Floats
    context: Floats
    expert: Floats
    weights: Floats
    forward_total: Floats
    backward_total: Floats
    flops: Floats
    replayed_flops: Floats
    math_bound: Floats
    wire_bound: Floats


def block_rows(frame: Frame) -> list[BlockRow]:
    """Each kind of block, where only some are recomputed also as it is without, the embedding and the head; as
    ``Frame.row_counts`` counts them."""
    never = frame.zeros()
    replays = [frame.repeated, never] if frame.partial else [frame.repeated]
    parts = list(zip(frame.meshes.parts, frame.meshes.shards, strict=True))
    blocks = [_block(frame, *part, replays, repeats=True) for part in parts[:-2]]
    edges = [_block(frame, *part, [never], repeats=False) for part in parts[-2:]]
    return [row for some in (*zip(*blocks, strict=True), *edges) for row in some]


def model_counts(frame: Frame) -> list[Floats]:
    """How often the whole model has what each of ``block_rows`` is."""
    if frame.partial:
        repeats = [frame.repeats(stage) for stage in frame.stage_kinds]
        every = [frame.row_counts(stage) for stage in frame.stage_kinds]
        return [weighted(list(some), repeats) for some in zip(*every, strict=True)]
    sequence = np.bincount(frame.job.model.block_sequence(), minlength=len(frame.meshes.activations))
    return [np.full(1, float(count)) for count in (*sequence, 1, 1)]


def _block(
    frame: Frame, part: PartCosts, shards: ShardCosts, replays: Sequence[Floats], *, repeats: bool
) -> list[BlockRow]:
    """One block (or the embedding or head, which recomputation never ``repeats``) per micro-batch, with what overlap
    leaves exposed, for each of ``replays``: the share of it that is recomputed."""
    # Computation, and what selective recomputation runs again of it.
    forward, weight_gradient = frame.at(part.forward_s), frame.at(part.weight_gradient_s)
    backward = frame.at(part.input_gradient_s) + weight_gradient
    cheap = frame.zeros()
    if repeats and frame.cheap.any():
        cheap = frame.cheap * frame.at(part.core_s if frame.job.recipe.attention == "unfused" else part.cheap_s)
    # Collectives inside the block, as far as nothing in it hides them.
    tensor = (part.tensor_forward_s, part.tensor_backward_s, part.tensor_hidden_s)
    tensor_forward, tensor_backward, hidden = (value[frame.table.overlap_tensor, frame.mesh] for value in tensor)
    context_forward, context_backward = _exposed(frame, part.context_forward_s, part.context_backward_s)
    expert_forward, expert_backward = _exposed(frame, part.expert_forward_s, part.expert_backward_s)
    across_forward = tensor_forward + context_forward + expert_forward
    across_backward = tensor_backward + context_backward + expert_backward
    forward_total = forward + across_forward
    flops, core_flops = frame.at(part.flops), frame.cheap * frame.at(part.core_flops)
    # Lower bounds: computation at its peak, and the busiest single axis, since axes may run at once.
    axes = (part.tensor_bound_s, part.contract_bound_s, part.context_bound_s, part.expert_bound_s)
    math_bound = frame.at(part.math_bound_s)
    wire_bound = frame.at(np.maximum(np.maximum.reduce(axes), shards.bound_s))
    skipped = (1.0 - frame.constants.recompute_share) * frame.at(part.linear_s)
    rows = []
    for replay in replays:
        recompute = replay * (forward - skipped) + cheap
        backward_total = backward + recompute + across_backward + replay * across_forward
        # Gathering and scattering of weights over z hides behind all of that; what is hidden slows it down.
        weights_forward, weights_backward, weights_hidden = _weights(
            frame, shards, replay, forward_total, backward_total
        )
        slowed = frame.constants.overlap_cost * (hidden + weights_hidden)
        rows.append(
            BlockRow(
                forward=forward,
                backward=backward + slowed,
                recompute=recompute,
                weight_gradient=weight_gradient,
                tensor=tensor_forward * (1 + replay) + tensor_backward,
                context=context_forward * (1 + replay) + context_backward,
                expert=expert_forward * (1 + replay) + expert_backward,
                weights=weights_forward + weights_backward,
                forward_total=forward_total + weights_forward,
                backward_total=backward_total + slowed + weights_backward,
                flops=flops,
                replayed_flops=replay * flops + core_flops,
                math_bound=math_bound,
                wire_bound=wire_bound,
            )
        )
    return rows


def _exposed(frame: Frame, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    if not forward.any():
        zero = frame.zeros()
        return zero, zero
    return frame.at(forward), frame.at(backward)


def _weights(
    frame: Frame, shards: ShardCosts, replay: Floats, forward: Floats, backward: Floats
) -> tuple[Floats, Floats, Floats]:
    """Gathering and scattering over z: exposed forward, exposed backward, hidden."""
    if not shards.forward_s.any():
        zero = np.zeros_like(forward)
        return zero, zero, zero
    ahead, scatter, again = frame.at(shards.forward_s), frame.at(shards.scatter_s), frame.at(shards.backward_s)
    if shards.replay_s.any():
        again = again + replay * frame.at(shards.replay_s)
    prefetch = frame.table.overlap_gather
    behind = again * prefetch + scatter * frame.table.overlap_reduce
    # With prefetch, weights of the next block come while this one computes; without, all of it is exposed.
    exposed_forward = ahead - np.minimum(ahead * prefetch, forward)
    exposed_backward = again + scatter - np.minimum(behind, backward)
    return exposed_forward, exposed_backward, ahead + again + scatter - exposed_forward - exposed_backward


# Stages and steps --------------------------------------------------------------------------------


class SlowestStage(NamedTuple):
    """The stage with the longest micro-batch: its blocks as ``Frame.row_counts`` has them; its seconds forward,
    backward and of weight gradients (``paced``), and the same of all stages together (``every``); and the largest
    lower bound of any stage."""

    counts: list[Floats]
    paced: list[Floats]
    every: list[Floats]
    bound: Floats


def slowest_stage(frame: Frame, rows: list[BlockRow]) -> SlowestStage:
    """The slowest stage of every row; ``rows`` are its ``block_rows``."""
    names = ("forward_total", "backward_total", "weight_gradient", "math_bound", "wire_bound")
    slowest: SlowestStage | None = None
    for stage in frame.stage_kinds:
        counts, repeats = frame.row_counts(stage), frame.repeats(stage)
        *passes, math_bound, wire_bound = (weighted([getattr(row, name) for row in rows], counts) for name in names)
        bound, totals = np.maximum(math_bound, wire_bound), [repeats * seconds for seconds in passes]
        if slowest is None:
            slowest = SlowestStage(counts, passes, totals, bound)
            continue
        # The stage with the longest forward and backward pass sets the pace; bounds are the largest of any stage, and
        # sums run over all stages, for the bubble.
        later = passes[0] + passes[1] > slowest.paced[0] + slowest.paced[1]
        slowest = SlowestStage(
            [np.where(later, b, a) for a, b in zip(slowest.counts, counts, strict=True)],
            [np.where(later, b, a) for a, b in zip(slowest.paced, passes, strict=True)],
            [a + b for a, b in zip(slowest.every, totals, strict=True)],
            np.maximum(slowest.bound, bound),
        )
    assert slowest is not None
    return slowest


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Seconds once per step: to reduce all bucketed gradients, and to gather all parameters, of which nothing hides
    the last bucket, a share ``last``; to sum what has separate buffers at the end of the step (``single_s``:
    vectors, loss and norm); to update a rank's parameters, and to offload that."""

    reduce_s: Floats
    gather_s: Floats
    single_s: Floats
    last: Floats
    update_s: Floats
    offload_s: Floats


def step_totals(frame: Frame) -> StepTotals:
    """Gradient reduction, optimizer and parameter gathering of every row, dense and expert gradients together."""
    place, every = frame.gradients
    reduce_s, gather_s, updated = frame.zeros(), frame.zeros(), frame.zeros()
    single_s, last = frame.at(frame.meshes.scalars_s), np.ones(len(frame))
    for reduction in every:
        # With ZeRO a bucket is scattered and its weights gathered; without, it is all-reduced.
        bucketed = reduction.by_zero[place] > 0
        sharded = (frame.table.zero > 0) & bucketed
        single_s = single_s + np.where(bucketed, 0.0, reduction.all_reduce_s[place])
        reduce_s += bucketed * np.where(sharded, reduction.scatter_s[place], reduction.all_reduce_s[place])
        gather_s += np.where(sharded, reduction.gather_s[place], 0.0)
        last = np.minimum(last, 1.0 / reduction.buckets[place])
        updated += reduction.elements[place] / np.where(sharded, reduction.replicas[place], 1.0)
    accelerator, constants, recipe = frame.model.cluster.accelerator, frame.constants, frame.job.recipe
    memory_Bps = accelerator.memory_Bps * constants.optimizer_efficiency
    host_Bps = accelerator.host_Bps * constants.host_efficiency
    offloaded = frame.table.offload_optimizer.astype(np.float64)
    width = recipe.gradient_bytes + recipe.element_bytes
    on_host = updated * (width / host_Bps + recipe.optimizer_bytes / constants.host_update_Bps)
    update_s = updated * UPDATE_BYTES / memory_Bps * (1 - offloaded)
    return StepTotals(reduce_s, gather_s, single_s, last, update_s, on_host * offloaded)


def estimate_rows(frame: Frame) -> EstimateTable:
    """Iteration time, lower bound and memory of every row of a frame."""
    rows, table, constants, steps = block_rows(frame), frame.table, frame.constants, frame.micro_batches
    # 1. The slowest stage sets the pace of a micro-batch.
    slowest = slowest_stage(frame, rows)
    forward_s, backward_s, _ = slowest.paced
    names = ("forward", "backward", "recompute", "tensor", "context", "expert", "weights")
    paced = [steps * weighted([getattr(row, name) for row in rows], slowest.counts) for name in names]
    # 2. Stage boundaries: blocking in plain 1F1B, else hidden behind the next chunk, which they slow; and once per
    # stage to fill and drain.
    hop, chunk = frame.at(frame.meshes.send_s), forward_s / frame.virtual
    hidden = np.where(table.scheduled("blocks"), 0.0, np.minimum(hop, chunk))
    steady = hop - hidden + constants.overlap_cost * hidden
    passes = 2.0 * steps * frame.virtual
    sends = np.where(frame.pipeline > 1, passes * steady + 2.0 * (frame.pipeline - 1) * hop, 0.0)
    # 3. Fill and drain, for which the slowest stage waits.
    forward, backward, weight_gradient = (a - b for a, b in zip(slowest.every, slowest.paced, strict=True))
    bubble = bubble_s(
        table, steps, forward_s=forward, input_gradient_s=backward - weight_gradient, weight_gradient_s=weight_gradient
    )
    # 4. Once per step (gradients in every micro-batch with ``zero`` = 2): all but the last bucket hides behind a pass,
    # which it slows; a tied embedding's gradient crosses the pipeline unless one stage has both ends.
    totals = step_totals(frame)
    rounds = np.where(table.zero == 2, steps, 1.0)
    early = np.minimum(totals.reduce_s * (1 - totals.last), backward_s) * table.overlap_reduce
    ahead: Floats = np.minimum(totals.gather_s * (1 - totals.last), forward_s) * table.overlap_gather
    slowed = constants.overlap_cost * (rounds * early + ahead)
    data = rounds * (totals.reduce_s - early) + totals.gather_s - ahead + slowed + totals.single_s
    data += np.where(table.scheduled("wraps"), 0.0, frame.at(frame.meshes.tied_s))
    # 5. Offloading: the optimizer's states, and activations behind what these passes leave of the host's link.
    offload = totals.offload_s + _activation_offload_s(frame, slowest, ahead, rounds * early)
    host = np.full(len(frame), constants.iteration_s)
    time = dict(zip(TIME_PARTS, (*paced, sends, bubble, data, totals.update_s, offload, host), strict=True))
    memory, memory_bytes = StageMemory(frame).fullest()
    # 6. FLOPs that all ranks run, and those of them that repeat a forward pass.
    counts, runs = model_counts(frame), steps * table.stage_ranks
    replayed = runs * sum([count * row.replayed_flops for row, count in zip(rows, counts, strict=True)])
    useful = runs * sum([count * 3.0 * row.flops for row, count in zip(rows, counts, strict=True)])
    return EstimateTable(
        iteration_s=sum(time.values(), frame.zeros()),
        memory_bytes=memory_bytes,
        lower_bound_s=steps * slowest.bound,
        executed_flops=useful + replayed,
        replayed_flops=replayed,
        **time,
        **memory,
    )


def _activation_offload_s(frame: Frame, slowest: SlowestStage, ahead_s: Floats, behind_s: Floats) -> Floats:
    """Seconds that offloading activations adds to an iteration, whose forward and backward passes also hide
    communication of ``ahead_s`` and ``behind_s``.

    A direction of the host link is busy with what moves and with the network's bytes, which cross the same lanes
    (a NIC and its accelerator share a PCIe switch, or the C2C link).  What does not fit behind the passes is
    exposed.  What does still takes memory bandwidth from them: each byte is read from, then written to, the
    accelerator's memory.
    """
    offloaded = frame.table.offload_activations
    if not offloaded.any():
        return frame.zeros()
    chip, constants, spans = frame.model.cluster.accelerator, frame.constants, frame.model.network.spans
    block_bytes = frame.kept_rows()
    block = weighted(block_bytes, slowest.counts[: len(block_bytes)])
    stays = np.where(frame.pipeline > 1, 0.0, frame.resident_bytes(block_bytes, slowest.counts, block))
    moved = frame.micro_batches * (block - stays)
    link_s = moved / (chip.host_Bps * constants.host_efficiency)
    # Where groups leave the scale-up domain, what is hidden and sharded weights also use the host link.
    network_s = [frame.zeros(), frame.zeros()]
    if len(spans) > 1:
        share = min(chip.nic_Bps / chip.host_Bps, 1.0)
        groups = [spread(frame.table, (group,), spans) for group in ("shard", "replica")]
        shards, copies = ((group.size > group.members[0]).astype(np.float64) for group in groups)
        counts, kinds = slowest.counts, len(frame.meshes.activations)
        if frame.partial:  # blocks of a kind together, replayed or not
            joined = [again + plain for again, plain in zip(counts[:kinds], counts[kinds:-2], strict=True)]
            counts = joined + counts[-2:]
        gathers, scatters = frame.zeros(), frame.zeros()
        for count, part in zip(counts, frame.meshes.shards, strict=True):
            gathers = gathers + count * frame.at(part.forward_s)
            scatters = scatters + count * frame.at(part.backward_s + part.scatter_s)
        network_s = [
            share * (copies * hidden + shards * frame.micro_batches * weights)
            for hidden, weights in ((ahead_s, gathers), (behind_s, scatters))
        ]
    exposed = frame.zeros()
    for window, busy_s in zip(slowest.paced[:2], network_s, strict=True):
        # Each direction of the link has the time of its passes, less what the network moves over it meanwhile.
        free = np.maximum(frame.micro_batches * window - busy_s, 0.0)
        exposed = exposed + np.maximum(link_s - free, 0.0)
    slowed = 2.0 * moved / (chip.memory_Bps * constants.memory_efficiency)
    added: Floats = (exposed + slowed) * offloaded
    return added


def least_s(frame: Frame, switches: Mapping[str, Ints], *, bubble: bool = True) -> Floats:
    """Seconds that no row undercuts with settings of ``switches``, whatever its ``zero`` and offload.  Shape
    (*settings, rows).

    An iteration takes at least ``m S + (A - S) / v``: ``m`` micro-batches on the slowest stage, and the bubble of
    a pipeline of ``v`` virtual stages, for which schedules that split the backward pass count nothing here.  The
    slowest of ``p`` stages has at least a ``p``-th of the work ``A`` of all, and less of ``S`` is less.  Without
    ``bubble`` it is the first part alone, that no stepping through the pipeline undercuts.
    """
    table = frame.table
    # Work depends on the mesh alone: one row of each, with every setting.
    first = np.zeros(len(frame.meshes.table), dtype=np.intp)
    first[frame.mesh] = np.arange(len(frame))
    distinct = frame.take(first, switches)
    passes = [row.forward_total + row.backward_total for row in block_rows(distinct)]
    # All work of the model, an even share of which the slowest stage has at least: m S + (A - S) / v grows with S.
    work = weighted(passes, model_counts(distinct))[..., frame.mesh]
    split = table.scheduled("splits_backward")
    filled = np.where(split | (not bubble), 0.0, 1.0 / table.virtual_stages)
    steps = (frame.micro_batches - filled) / table.pipeline + filled
    least: Floats = work * steps + frame.constants.iteration_s
    return least


def floor_s(frame: Frame, estimates: EstimateTable, *, uneven: bool = False) -> Floats:
    """Seconds that no stepping through the pipeline undercuts, of every row, of which the estimates are given.

    ``weft.simulation.iteration.stepping`` lets every stage run its passes in order.  So a stage ends no earlier than
    the first micro-batch needs to come to it, plus all of the stage's passes; behind its last backward pass, that
    micro-batch's gradients still go back through the stages before it.  The largest of these over the stages is the
    floor.  Where stages are alike it is the time itself, except for what overlaps.

    ``uneven``: a stage with less to reduce and to gather than others may take less for it, so that floors of
    pipelines count none of it.
    """
    rows = block_rows(frame)
    totals, stages, line = step_totals(frame), frame.stages, frame.line
    if uneven:
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
    cost, fewest = frame.constants.overlap_cost, stages.fewest[line]
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
    for stage in frame.stage_kinds:
        counts, index = frame.row_counts(stage), stages.last[line, stage]
        # Blocks of each kind on the way to the stage (none counts as replayed), embedding, no head.
        before = [*(blocks_before[line, stage] for blocks_before in stages.before), frame.zeros()]
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


# One layout --------------------------------------------------------------------------------------


def estimate_of(
    estimator: Estimator, layout: Layout, results: EstimateTable, row: int, error: ErrorBar | None
) -> Estimate:
    """One row of a table of estimates with totals, rates and named parts."""
    job, chip = estimator.job, estimator.cluster.accelerator
    values = {name: float(getattr(results, name)[row]) for name in EstimateTable.__slots__}
    seconds, executed, replayed = (values[name] for name in ("iteration_s", "executed_flops", "replayed_flops"))
    peak = chip.peak_flops(job.recipe.precision) * layout.world
    flops = model_flops(job.model, job.recipe)
    core = layout.recompute == "selective" and not estimator.software.by_product
    again = (CORE_REPLAY if core else 1.0) * float(replayed / (executed - replayed))
    return Estimate(
        layout=layout,
        iteration_s=seconds,
        lower_bound_s=values["lower_bound_s"],
        tokens_per_s=job.recipe.tokens / seconds,
        mfu=flops / seconds / peak,
        mfu_unmasked=model_flops(job.model, job.recipe, causal=True) / seconds / peak,
        hfu=flops * (1 + again) / seconds / peak,
        model_tflops=flops / seconds / layout.world / 1e12,
        memory_bytes=values["memory_bytes"],
        capacity_bytes=chip.memory_bytes,
        host_bytes=values["host_bytes"],
        host_capacity_bytes=None if chip.host_memory_bytes is None else pinned_capacity(chip),
        fullest_stage=int(values["fullest_stage"]),
        time=tuple([Part(name=name, value=values[name]) for name in TIME_PARTS]),
        memory=tuple([Part(name=name, value=values[name]) for name in MEMORY_PARTS]),
        provenance=estimator.constants.provenance,
        error=error,
    )


def of_runtime(constants: Calibration) -> Calibration:
    """Constants of an accelerator for ``weft.runtime``: PyTorch's own kernels, and a loss that keeps the logits and
    their gradient in the recipe's width, for it widens a few rows at a time."""
    return replace(constants, software=RUNTIME.name, gradient_dummies=0.0, loss_copies=0.5, cut_loss_copies=0.5)


def estimate(
    job: Job, cluster: Cluster, layouts: Sequence[Layout], constants: Calibration | None = None
) -> tuple[Estimate, ...]:
    """Estimates of layouts of a job on a cluster.

    Raises:
        BadInput: a layout breaks a rule of ``weft.layout.check``.
    """
    for layout in layouts:
        check_layout(job, cluster.count, layout)
    return Estimator(job, cluster, constants).estimates(layouts)
