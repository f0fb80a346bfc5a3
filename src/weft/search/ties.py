"""Which of ranked layouts cannot be told apart, and how probably each is as good as the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.estimation.contrast import WITHIN, Contrast, shipped_contrast
from weft.estimation.result import Estimate
from weft.layout.table import Floats, Ints

CANDIDATES = 300
"""Layouts that are held against each other, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A ranked layout among the others: ``group`` 1 cannot be told apart from the fastest, 2 not from the fastest
    of the rest, and so on; ``chance`` is the probability to take at most ``WITHIN`` longer than the best."""

    group: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the order of a plan is worth.

    Attributes:
        chance: probability that the first takes at most ``within`` longer than the best of ``candidates``.
        fastest_chance: that probability of the fastest predicted.
        pairs: of runs of ``jobs`` of so many ``sources``, which give the error between layouts.
        reasons: what the fastest does and the first does not, of what counts against a layout, dearest first.
        unusual: what the first does that hardly any published run does.
    """

    within: float = WITHIN
    chance: float
    fastest_chance: float
    candidates: int
    pairs: int
    jobs: int
    sources: int
    reasons: tuple[str, ...]
    unusual: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Facts):
    """``fastest`` is the layout of the least predicted time, of all that fit."""

    fastest: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Layouts held against each other: their ties, and those of the fastest."""

    contrast: Contrast
    ties: tuple[Tie, ...]
    fastest: Tie
    candidates: int


def held(ranked: Sequence[Estimate], fastest: Estimate, contrast: Contrast | None = None) -> Held | None:
    """The first ``CANDIDATES`` of ranked layouts, and the fastest, against each other; None where no error between
    layouts is known."""
    known = contrast or shipped_contrast()
    if known is None:
        return None
    compared = list(ranked[:CANDIDATES])
    places = {one.layout: i for i, one in enumerate(compared)}
    if fastest.layout not in places:
        places[fastest.layout] = len(compared)
        compared.append(fastest)
    layouts, seconds = [one.layout for one in compared], np.array([one.iteration_s for one in compared])
    numbers = groups(seconds, known.covered(layouts))
    ties = [
        Tie(group=int(group), chance=float(chance))
        for group, chance in zip(numbers, known.chances(layouts, seconds), strict=True)
    ]
    return Held(
        contrast=known,
        ties=tuple(ties[: len(ranked[:CANDIDATES])]),
        fastest=ties[places[fastest.layout]],
        candidates=len(compared),
    )


def groups(seconds: Floats, errors: Floats) -> Ints:
    """Numbers of the groups of times: the fastest of those without one leads the next, of all that its error
    against them does not tell apart from it."""
    numbers = np.zeros(len(seconds), dtype=np.int64)
    group = 0
    for leader in np.argsort(seconds, kind="stable"):
        if numbers[leader]:
            continue
        group += 1
        close = (numbers == 0) & (seconds <= (1.0 + errors[leader]) * seconds[leader])
        numbers[close] = group
    return numbers
