"""The compiled loop that steps through the orders of all stages."""

from __future__ import annotations

from typing import NamedTuple

from weft.fabric.spec import Floats, Ints, Mask
from weft.solvers._jit import jit

FORWARD, BACKWARD = 0, 1


class Passes(NamedTuple):
    """The passes of all stages, one stage behind the other: those of stage s are ``first[s] .. first[s+1]``.

    ``edge`` marks the first forward and the last backward pass of each chunk; ``stage_of`` is the stage of a chunk,
    ``seconds`` (pass, chunk, edge) what a pass lasts.
    """

    first: Ints
    what: Ints
    chunk: Ints
    micro_batch: Ints
    edge: Mask
    stage_of: Ints
    seconds: Floats


class Delays(NamedTuple):
    """Seconds of a send; of parameters gathered before the first and the second pass, and before the first of each
    further chunk; of a chunk's gradients reduced beside its backward pass and behind it."""

    hop: float
    first_gather: float
    second_gather: float
    next_gather: float
    beside: float
    behind: float


class Rules(NamedTuple):
    """Whether a stage waits for its sends, gathers, reduces, reduces beside the backward pass, and after every
    backward pass."""

    blocks: bool
    gathers: bool
    reduces: bool
    overlaps: bool
    every: bool


class PassTimes(NamedTuple):
    """What is found: begin and end of each pass, end of its send, begin and end of the reduction behind it; for each
    stage the end of its last pass, of its reductions and of its gathering."""

    begin: Floats
    end: Floats
    sent: Floats
    reduce_begin: Floats
    reduce_end: Floats
    free: Floats
    reduced: Floats
    gathered: Floats


class PassState(NamedTuple):
    """Room: when the input of a (pass, chunk, micro-batch) is there (below 0: not yet), the next pass of each stage,
    how many chunks it has gathered, stages to look at."""

    ready: Floats
    place: Ints
    chunks: Ints
    pending: Ints


@jit
def step(passes: Passes, delays: Delays, rules: Rules, times: PassTimes, work: PassState) -> int:
    """Step until all passes have run; returns how many have."""
    last, done, waiting = len(passes.stage_of) - 1, 0, 0
    # A stage runs its passes in order until one lacks its input, and is looked at again when that comes.  When a pass
    # begins depends on its input and on earlier passes of its stage only, so that it does not matter in which order
    # stages are looked at.
    for stage in range(len(passes.first) - 1):
        work.pending[waiting] = len(passes.first) - 2 - stage
        waiting += 1
    while waiting:
        waiting -= 1
        stage = work.pending[waiting]
        while work.place[stage] < passes.first[stage + 1]:
            k = work.place[stage]
            kind, chunk, i, edge = passes.what[k], passes.chunk[k], passes.micro_batch[k], passes.edge[k]
            # The first chunk reads its own data; a weight gradient follows its backward pass on the same stage.
            arrived = 0.0
            if kind <= BACKWARD and not (kind == FORWARD and chunk == 0):
                arrived = work.ready[kind, chunk, i]
                if arrived < 0.0:
                    break
            work.place[stage] += 1
            done += 1
            free = times.free[stage]
            # A pass begins when its stage is free, its parameters are gathered and its input has come.
            possible = max(free, _gathered(stage, k, kind == FORWARD and edge, passes, delays, rules, times, work))
            begin = max(possible, arrived)
            end = begin + passes.seconds[kind, chunk, 1 if edge else 0]
            times.begin[k], times.end[k] = begin, end
            free = end
            # Forward passes feed the next chunk, that of the last chunk its own backward pass, backward passes the
            # chunk before.
            to = -1
            if kind == FORWARD:
                to = chunk if chunk == last else chunk + 1
            elif kind == BACKWARD:
                to = chunk - 1
            if to >= 0:
                turned = kind == BACKWARD or chunk == last
                receiver = passes.stage_of[to]
                arrival = end
                if receiver != stage:
                    arrival = end + delays.hop
                    times.sent[k] = arrival
                    work.pending[waiting] = receiver
                    waiting += 1
                    if rules.blocks:
                        free = arrival
                work.ready[BACKWARD if turned else FORWARD, to, i] = arrival
            if kind == BACKWARD and (rules.every or edge):
                # What a later stage hands back was wired after this: the reduction does not wait for it.
                if chunk == last or passes.stage_of[chunk + 1] <= stage:
                    possible = begin
                reduced = _reduced(
                    k, possible, free, 0.0 if rules.every else times.reduced[stage], delays, rules, times
                )
                if rules.every:
                    free = reduced
                else:
                    times.reduced[stage] = reduced
            times.free[stage] = free
    return done


@jit
def _gathered(
    stage: int, k: int, fresh: bool, passes: Passes, delays: Delays, rules: Rules, times: PassTimes, work: PassState
) -> float:
    """When the parameters of a pass have been gathered."""
    if not rules.gathers:
        return 0.0
    place, count = k - passes.first[stage], passes.first[stage + 1] - passes.first[stage]
    result = 0.0
    # The first bucket comes before the first pass and the rest before the second, behind it; the parameters of each
    # further chunk follow on the same link before the chunk's first forward pass.
    if place == 0:
        result = delays.first_gather
        times.gathered[stage] = result + delays.second_gather
    if place == min(1, count - 1):
        result = times.gathered[stage]
    if fresh:
        work.chunks[stage] += 1
        if work.chunks[stage] > 1:
            times.gathered[stage] += delays.next_gather
            result = max(result, times.gathered[stage])
    return result


@jit
def _reduced(
    k: int, backward_begin: float, free: float, earlier: float, delays: Delays, rules: Rules, times: PassTimes
) -> float:
    """When a chunk's gradients are reduced."""
    if not rules.reduces:
        return max(free, earlier)
    # With overlap all but the last bucket runs beside the backward pass, the last behind it; reductions of a stage
    # follow each other.
    begin = max(backward_begin if rules.overlaps else free, earlier)
    end = begin + delays.beside
    if rules.overlaps:
        end = max(end, free) + delays.behind
    times.reduce_begin[k], times.reduce_end[k] = begin, end
    return end
