"""Ranks that compute more slowly than the others, and who waits for them within an iteration.

Ranks of one model-parallel group wait for each other in every block, so that a stage is as slow as its slowest rank.
Data-parallel replicas wait for each other once, with their gradients: the slowest replica counts.  Where experts
exchange tokens between replicas these wait in every block too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Floats
from weft.layout.spec import Layout
from weft.layout.stages import Durations, stage_of
from weft.simulation.iteration.pipeline import PhaseTimes

_FORM = re.compile(r"(rank|host)=([0-9]{1,9}):([0-9.]{1,12})|random=([0-9.]{1,12})", re.ASCII)
MOST = 1000.0
"""Times that a rank may be slower."""


def parse_slow(texts: Sequence[str], world: int, host_size: int, *, seed: int, where: str = "--slow") -> Floats:
    """How many times longer each rank computes, shape (world,).

    Args:
        texts: "rank=3:1.3", "host=2:1.1" (all ranks of a host), "random=0.02" (each rank by one plus the size of a
            normal number of that deviation); of several for a rank the slowest counts.
        host_size: ranks of a host.
        seed: of random ones.

    Raises:
        BadInput: a text that is none of these, or no such rank.
    """
    found = np.ones(world)
    for text in texts:
        match = _FORM.fullmatch(text.strip())
        try:
            factor = float((match[3] or match[4]) if match else "")
        except ValueError:
            remedy = "write rank=3:1.3, host=2:1.1 or random=0.02"
            raise BadInput(f"{text[:40]!r} says no slow rank", where=where, remedy=remedy) from None
        assert match is not None
        low, high = (0.0, 1.0) if match[4] else (1.0, MOST)
        if not low <= factor <= high:
            raise BadInput(f"{text[:40]!r} is out of range", where=where, remedy=f"give {low:g} to {high:g}")
        if match[4]:
            drawn = 1.0 + factor * np.abs(np.random.default_rng(seed).standard_normal(world))
            found = np.maximum(found, drawn)
            continue
        size = host_size if match[1] == "host" else 1
        first = int(match[2]) * size
        if first >= world:
            last = -(-world // size) - 1
            raise BadInput(f"there is no {match[1]} {match[2]}", where=where, remedy=f"give 0 to {last}")
        found[first : first + size] = np.maximum(found[first : first + size], factor)
    return found


def columns(layout: Layout, slow: Floats) -> Floats:
    """How much longer each stage computes, shape (replicas, stages).

    Replicas that another is slower than in every stage are left out.
    """
    names = list(reversed(layout.order))
    grid = slow.reshape([getattr(layout, name) for name in names])
    waiting = tuple(i for i, name in enumerate(names) if name not in ("data", "pipeline"))
    stages: Floats = grid.max(axis=waiting)
    if names.index("data") > names.index("pipeline"):
        stages = stages.T
    if layout.expert > 1:
        stages = stages.max(axis=0, keepdims=True)
    kept: list[Floats] = []
    for one in np.unique(stages, axis=0)[::-1]:  # no later one is slower in every stage
        if not any((one <= other).all() for other in kept):
            kept.append(one)
    return np.array(kept)


def slowed(layout: Layout, clock: PhaseTimes, stages: Floats) -> PhaseTimes:
    """The phases with what stages compute lasting so many times longer; what they communicate lasts as long."""
    chunks = []
    for i, (chunk, (forward, backward)) in enumerate(zip(clock.chunks, clock.exposed, strict=True)):
        factor = float(stages[stage_of(layout, i)])
        chunks.append(
            Durations(
                forward_s=factor * (chunk.forward_s - forward) + forward,
                input_gradient_s=factor * (chunk.input_gradient_s - backward) + backward,
                weight_gradient_s=factor * chunk.weight_gradient_s,
            )
        )
    return replace(clock, chunks=tuple(chunks))
