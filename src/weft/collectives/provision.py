"""What a network's bandwidths are worth to a collective (Themis, section 6.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from weft.collectives.bound import best_shares, ideal_s
from weft.collectives.schedule import Request
from weft.fabric.spec import Floats

Verdict = Literal["just enough", "over-provisioned", "under-provisioned"]
CLOSE = 0.01
HALVINGS = 12
MOST_FACTOR = 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A dimension against the one inside it: what the baseline's order needs of it, and what it has.

    Over-provisioned: the baseline leaves bandwidth idle that other orders can use.  Under-provisioned: it is
    the slowest even where every chunk comes to it last, so that no order helps.
    """

    inner: int
    outer: int
    needed_Bps: float
    Bps: float

    @property
    def verdict(self) -> Verdict:
        if abs(self.Bps / self.needed_Bps - 1) <= CLOSE:
            return "just enough"
        return "over-provisioned" if self.Bps > self.needed_Bps else "under-provisioned"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provision:
    """Pairs of neighbouring dimensions; the split of the same total bandwidth that is just enough for the
    baseline; and, where no mix of orders can use every dimension all the time, the dimensions that are too
    slow, with the bandwidths at which one could (None where faster ones would not do)."""

    pairs: tuple[Pair, ...]
    just_enough_Bps: Floats
    slow: tuple[int, ...]
    enough_Bps: Floats | None


def provision(asked: Request) -> Provision:
    """Judge the bandwidths of a request's dimensions."""
    used = asked.used
    widths = np.array([one.bandwidth_Bps for one in asked.dimensions])
    sizes = asked.sizes
    pairs = tuple(
        Pair(inner=a, outer=b, needed_Bps=float(widths[a] / sizes[a]), Bps=float(widths[b]))
        for a, b in pairwise(used)
    )
    below = np.concatenate([[1], np.cumprod(sizes)[:-1]]).astype(np.float64)
    split = np.where(sizes > 1, 1 / below, 0.0)
    just_enough = split / split.sum() * widths.sum() if split.any() else widths
    slow = _slow(asked)
    factor = _factor(asked, slow) if slow else None
    return Provision(
        pairs=pairs,
        just_enough_Bps=just_enough,
        slow=slow,
        enough_Bps=None if factor is None else _scaled(widths, slow, factor),
    )


def _slow(asked: Request) -> tuple[int, ...]:
    """Dimensions that are busy all the time in the best mix of orders while others cannot be."""
    still = _without_latency(asked)
    shares = best_shares(still)
    if shares.bandwidth_s <= ideal_s(still) * (1 + CLOSE):
        return ()
    return tuple(
        i for i in asked.used if best_shares(_faster(still, (i,), 1 + CLOSE)).bandwidth_s < shares.bandwidth_s
    )


def _factor(asked: Request, slow: tuple[int, ...]) -> float | None:
    """How much faster the slow dimensions must be for some mix of orders to keep all busy."""
    still = _without_latency(asked)
    low, high = 1.0, 2.0
    while not _fits(_faster(still, slow, high)):
        low, high = high, high * 2
        if high > MOST_FACTOR:
            return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(_faster(still, slow, middle)) else (middle, high)
    return high


def _fits(asked: Request) -> bool:
    return best_shares(asked).bandwidth_s <= ideal_s(asked) * (1 + 1e-6)


def _faster(asked: Request, chosen: tuple[int, ...], factor: float) -> Request:
    widths = _scaled(np.array([one.bandwidth_Bps for one in asked.dimensions]), chosen, factor)
    changed = [
        replace(one, bandwidth_Bps=float(Bps)) for one, Bps in zip(asked.dimensions, widths, strict=True)
    ]
    return replace(asked, dimensions=tuple(changed))


def _scaled(widths: Floats, chosen: tuple[int, ...], factor: float) -> Floats:
    changed = widths.copy()
    changed[list(chosen)] *= factor
    return changed


def _without_latency(asked: Request) -> Request:
    return replace(asked, dimensions=tuple(replace(one, latency_s=0.0) for one in asked.dimensions))
