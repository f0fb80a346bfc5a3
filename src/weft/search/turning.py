"""What the advice of a design study depends on: where a price, an oversubscription or a routing turns it.

Nothing is simulated: speeds are the study's, and the cost of a network is linear in each price, so that two networks
cost the same at one price at most, where their lines cross.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.fabric.cost import PARTS

if TYPE_CHECKING:
    from weft.search.design import Design, DesignStudy

LEAST, MOST = 0.1, 10.0
"""Factors of today's price between which turning points are told."""
MOST_USD_PER_KWH = 1.0
"""Energy is in no sum of a study, so its price starts at 0; ten times what power usually costs."""
LEVEL = 1e-9
"""Slopes closer than this, relative to the cost, are equal: the networks have the same parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Which of a study's networks."""

    kind: str
    domain: int
    global_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoint:
    """A price from which on another network is recommended: ``factor`` times today's (None where that is 0)."""

    factor: float | None
    usd: float
    to: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTurns:
    """The next turning points below and above today's price ``usd``; None where there is none from ``LEAST`` to
    ``MOST`` times it.

    ``price`` is a part of ``PARTS``; ``scale_up``, both prices of domains; ``energy``, a kWh of the scale-out network
    (0 today); or ``accelerator_hour``.  That is not in the cost of a network: below its ``lower``, which may be over
    today's price, a cheaper and slower network trains more tokens per dollar of accelerators and network.
    """

    price: str
    usd: float
    lower: TurningPoint | None
    higher: TurningPoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTurn:
    """The next oversubscription tried of the recommended kind, which is not as fast: how much longer its iteration
    takes, as a share, and what it saves."""

    to: Candidate
    longer: float
    usd_saved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTurn:
    """The network that is recommended by the times of another routing, and whether it is another one."""

    routing: str
    to: Candidate
    total_usd: float
    turns: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoints:
    """What turns the advice; ``oversubscription`` and ``routing`` are None where the study tried no other."""

    prices: tuple[PriceTurns, ...]
    oversubscription: RatioTurn | None
    routing: RoutingTurn | None


def turning_points(study: DesignStudy) -> TurningPoints:
    """What turns the advice of a study with designs."""
    return TurningPoints(
        prices=(*_part_turns(study), *_hour_turns(study)),
        oversubscription=_ratio_turn(study),
        routing=_spray_turn(study),
    )


def _candidate(design: Design) -> Candidate:
    return Candidate(kind=design.kind, domain=design.domain, global_batch=design.global_batch)


def usd_at(design: Design, price: str, factor: float) -> float:
    """Dollars of a design's networks where one price is ``factor`` times today's."""
    if price == "scale_up":
        return design.bill.usd + factor * design.scale_up_usd
    field = f"usd_per_{price}"
    scaled = replace(design.bill.prices, **{field: factor * getattr(design.bill.prices, field)})
    return replace(design.bill, prices=scaled).usd + design.scale_up_usd


def _part_turns(study: DesignStudy) -> Iterator[PriceTurns]:
    """Where another network that is as fast costs less."""
    designs = sorted(study.as_fast, key=lambda design: design is not study.recommended)
    prices = {part: getattr(study.prices, f"usd_per_{part}") for part in PARTS}
    if any(design.scale_up_usd for design in study.designs):
        prices["scale_up"] = study.prices.usd_per_scale_up_GBps
    for price, usd in prices.items():
        if usd:
            fixed = [usd_at(design, price, 0.0) for design in designs]
            lines = [(each, design.total_usd - each, design) for each, design in zip(fixed, designs, strict=True)]
            lower, higher = _crossings(lines)
            yield PriceTurns(price=price, usd=usd, lower=_told(lower, usd), higher=_told(higher, usd))
    used_kWh = study.network_s / 3600 / 1e3
    above = _crossings([(design.total_usd, design.bill.watts * used_kWh, design) for design in designs])[1]
    energy = None
    if above is not None and above[0] <= MOST_USD_PER_KWH:
        energy = TurningPoint(factor=None, usd=above[0], to=_candidate(above[1]))
    yield PriceTurns(price="energy", usd=0.0, lower=None, higher=energy)


def _hour_turns(study: DesignStudy) -> Iterator[PriceTurns]:
    """Where a cheaper, slower network trains more tokens per dollar."""
    best, usd = study.recommended, study.usd_per_hour
    cheaper = [design for design in study.designs if design.total_usd < best.total_usd]

    def per_token(design: Design) -> _Line:
        """Dollars of network, and of accelerators at today's price; of a whole run where there is one."""
        if design.after is not None:
            return design.after.network_usd, usd * design.after.accelerator_hours, design
        network_usd_per_s = (design.total_usd - study.own_domains_usd) / study.network_s
        hours_per_s = study.cluster.count / 3600
        return network_usd_per_s / design.tokens_per_s, usd * hours_per_s / design.tokens_per_s, design

    if usd and cheaper:
        below = _crossings([per_token(design) for design in (best, *cheaper)])[0]
        yield PriceTurns(price="accelerator_hour", usd=usd, lower=_told(below, usd), higher=None)


_Line = tuple[float, float, "Design"]
"""What a design costs without a price, what the price adds, and the design."""


def _crossings(lines: Sequence[_Line]) -> tuple[tuple[float, Design] | None, tuple[float, Design] | None]:
    """The largest factor of a price below which some other design costs less than the first, and the least above which
    one does, each with that design."""
    (fixed, slope, _), *rivals = lines
    below: list[tuple[float, float, float, Design]] = []
    above: list[tuple[float, float, float, Design]] = []
    for rival_fixed, rival_slope, rival in rivals:
        gain = slope - rival_slope
        if abs(gain) > LEVEL * max(slope, rival_slope):
            # A rival that the price weighs on less gets cheaper as it rises, the others as it falls.
            (above if gain > 0 else below).append(
                ((rival_fixed - fixed) / gain, rival_slope, rival.tokens_per_s, rival)
            )
    # Where several cross at one price, the steepest change wins beyond it, and among equal networks the fastest.
    lower = max(below, key=lambda each: each[:3], default=None)
    higher = min(above, key=lambda each: (*each[:2], -each[2]), default=None)
    return lower and (lower[0], lower[3]), higher and (higher[0], higher[3])


def _told(crossing: tuple[float, Design] | None, usd: float) -> TurningPoint | None:
    """A crossing, unless it is beyond what is told."""
    if crossing is None or not LEAST <= crossing[0] <= MOST:
        return None
    return TurningPoint(factor=crossing[0], usd=crossing[0] * usd, to=_candidate(crossing[1]))


def _ratio_turn(study: DesignStudy) -> RatioTurn | None:
    best = study.recommended

    def alike(design: Design) -> tuple[str, int, int]:
        return design.kind.partition(" ")[0], design.domain, design.global_batch

    # What is cheaper than the recommended network is not as fast.
    cheaper = [each for each in study.designs if alike(each) == alike(best) and each.total_usd < best.total_usd]
    if not cheaper:
        return None
    following = max(cheaper, key=lambda design: design.total_usd)
    return RatioTurn(
        to=_candidate(following),
        longer=following.iteration_s / best.iteration_s - 1,
        usd_saved=best.total_usd - following.total_usd,
    )


def _spray_turn(study: DesignStudy) -> RoutingTurn | None:
    """The choice by the times of packet spraying, which a study of hashed routes has beside."""
    sprayed = tuple(
        replace(each, simulated_s=each.sprayed_s, tokens_per_s=each.tokens_per_s * each.iteration_s / each.sprayed_s)
        for each in study.designs
        if each.sprayed_s is not None
    )
    if len(sprayed) < len(study.designs):
        return None
    choice = replace(study, designs=sprayed).recommended
    turns = _candidate(choice) != _candidate(study.recommended)
    return RoutingTurn(routing="spray", to=_candidate(choice), total_usd=choice.total_usd, turns=turns)
