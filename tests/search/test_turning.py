"""What turns the advice of a design study: each turning point against the study made again beside it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import weft
from weft.fabric.cost import PARTS, preset
from weft.search.design import LEAST, MOST, Candidate, Design, DesignStudy, PriceTurns
from weft.views.design import turning_words

PRICES = preset("market-2026")
BESIDE = 1e-6
HASHED = {"layout": "tp=4,dp=16", "batch": 64, "sequence": 2048, "radix": 8}


def study(**changes: object) -> DesignStudy:
    asked = HASHED | {"fabrics": "rail-only,fat-tree,torus", "no_simulate": True, "prices": PRICES}
    return weft.design("llama-3.2-1b", "h100-64", **(asked | changes))


def candidate(one: Design) -> Candidate:
    return Candidate(kind=one.kind, domain=one.domain, global_batch=one.global_batch)


def test_advice_turns_at_each_price_and_nowhere_before() -> None:
    """A torus has no switches and more optics, so that it is the choice where switches cost more."""
    found = study()
    best = candidate(found.recommended)
    told = {row.price: row for row in found.turning_points.prices}
    assert any(row.lower or row.higher for row in told.values())
    for part in PARTS:
        field, row = f"usd_per_{part}", told[part]

        def chosen(factor: float, field: str = field) -> Candidate:
            scaled = replace(PRICES, **{field: factor * getattr(PRICES, field)})
            return candidate(study(prices=scaled).recommended)

        for point, end, way in ((row.lower, LEAST, -1), (row.higher, MOST, 1)):
            if point is None:
                assert chosen(end) == best
            else:
                assert point.usd == pytest.approx(point.factor * getattr(PRICES, field))
                assert chosen(point.factor * (1 - way * BESIDE)) == best
                assert chosen(point.factor * (1 + way * BESIDE)) == point.to


def shuffled(found: DesignStudy, dice: random.Random) -> DesignStudy:
    """The study with random parts and speeds, some of them alike."""
    designs = []
    for one in found.designs:
        counts = {name: dice.randint(0, 6) * 100 for name in ("switch_ports", "transceivers", "cables", "nics")}
        rate = found.designs[0].tokens_per_s * dice.choice((0.9, 0.995, 1.0))
        scale_up = dice.choice((0.0, 1e5, 2e5))
        designs.append(replace(one, bill=replace(one.bill, **counts), tokens_per_s=rate, scale_up_usd=scale_up))
    return replace(found, designs=tuple(designs))


def repriced(found: DesignStudy, price: str, factor: float) -> Candidate:
    designs = []
    for one in found.designs:
        if price == "scale_up":
            designs.append(replace(one, scale_up_usd=factor * one.scale_up_usd))
        elif price == "energy":  # dollars a kWh, over the years that the network lasts
            designs.append(
                replace(one, scale_up_usd=one.scale_up_usd + factor * one.bill.watts / 1e3 * 4 * 365.25 * 24)
            )
        else:
            scaled = replace(PRICES, **{f"usd_per_{price}": factor * getattr(PRICES, f"usd_per_{price}")})
            designs.append(replace(one, bill=replace(one.bill, prices=scaled)))
    return candidate(replace(found, designs=tuple(designs)).recommended)


def check(found: DesignStudy, row: PriceTurns) -> int:
    """Turning points of a row that the study confirms."""
    best, turns = candidate(found.recommended), 0
    # A kWh is not in the cost today, so that its price starts at 0 and only rises.
    now, least, most = (1.0, LEAST, MOST) if row.usd else (0.0, 0.0, 1.0)
    for point, end in ((row.lower, least), (row.higher, most)):
        at = end if point is None else point.usd if point.factor is None else point.factor
        for i in range(25):  # nowhere on the way
            assert repriced(found, row.price, now + (at - now) * i / 25) == best
        if point is not None:
            turns += 1
            assert repriced(found, row.price, at + (end - now) * 1e-9) == point.to
    return turns


def test_turning_points_of_random_networks_are_where_the_study_turns() -> None:
    found, turns = study(oversubscription="2,4,7"), {}
    for seed in range(20):
        mixed = shuffled(found, random.Random(seed))
        for row in mixed.turning_points.prices:
            if row.price != "accelerator_hour":
                turns[row.price] = turns.get(row.price, 0) + check(mixed, row)
    assert turns.keys() == {*PARTS, "scale_up", "energy"}
    assert all(turns.values())


def test_a_gpu_hour_turns_tokens_per_dollar() -> None:
    """The runs of both networks cost the same at the price told, with failures counted."""
    asked = {
        "layout": "tp=8,pp=4,vpp=5,sp",
        "batch": 2048,
        "sizes": "8,32",
        "fabrics": "rail-only",
        "no_simulate": True,
    }
    small, large = (found := weft.design("llama-3.1-70b", "h100-2048", **asked)).designs
    (row,) = [row for row in found.turning_points.prices if row.price == "accelerator_hour"]
    assert row.usd == found.cluster.accelerator.usd_per_hour
    assert row.lower is not None
    assert (found.recommended, row.lower.to) == (large, candidate(small))

    def usd_per_token(one: Design, hour_usd: float) -> float:
        hours_s, years_s = 2048 / 3600, 4 * 365.25 * 86400.0
        return (hours_s * hour_usd + one.total_usd / years_s) / one.tokens_per_s

    assert usd_per_token(small, row.lower.usd) == pytest.approx(usd_per_token(large, row.lower.usd), rel=1e-12)
    assert usd_per_token(small, row.lower.usd * 0.999) < usd_per_token(large, row.lower.usd * 0.999)
    run = weft.design("llama-3.1-70b", "h100-2048", tokens="1T", **asked)
    (with_failures,) = [row for row in run.turning_points.prices if row.price == "accelerator_hour"]
    for share, best in ((1 - BESIDE, 0), (1 + BESIDE, 1)):
        hour_usd = with_failures.lower.usd * share
        priced = weft.design("llama-3.1-70b", "h100-2048", tokens="1T", usd_per_hour=hour_usd, **asked)
        tokens = [one.after.tokens_per_usd for one in priced.designs]
        assert tokens.index(max(tokens)) == best


def test_spraying_and_oversubscription_are_those_of_the_study_made_so() -> None:
    hashed = study(fabrics="fat-tree", no_simulate=False, no_failures=True)
    sprayed = study(fabrics="fat-tree", no_simulate=False, no_failures=True, routing="spray")
    routing = hashed.turning_points.routing
    assert (routing.to, routing.turns) == (
        candidate(sprayed.recommended),
        sprayed.recommended.kind != hashed.recommended.kind,
    )
    assert sprayed.turning_points.routing is None
    for found in (hashed, sprayed):
        kinds = [one.kind for one in found.designs]
        ratio, at = found.turning_points.oversubscription, kinds.index(found.recommended.kind)
        assert (ratio and ratio.to.kind) == (kinds[at + 1] if at + 1 < len(kinds) else None)
        if ratio is not None:
            slower = found.designs[at + 1]
            assert ratio.longer == slower.simulated_s / found.recommended.simulated_s - 1 > 0.01
            assert ratio.usd_saved == found.recommended.total_usd - slower.total_usd > 0


def test_speed_left_with_parts_failed() -> None:
    found = study(fabrics="rail-only", no_simulate=False).with_parts_failed()
    rows = {(row.component, row.failed): row for row in found.parts_failed}
    # One part of each kind is the failure that the study has.
    for component, alone in (("leaf", "rail"), ("access-link", "NIC")):
        (failure,) = [one for one in found.recommended.failures if one.component == alone]
        assert rows[component, 1].mean == pytest.approx(1 / failure.slowdown)
        assert rows[component, 1].worst <= rows[component, 1].mean
    # All rails down leave no way between domains.
    leaves = {row.total for row in found.parts_failed if row.component == "leaf"}
    assert leaves == {8}
    assert (rows["leaf", 8].stopped, rows["leaf", 8].mean, rows["leaf", 8].worst) == (3, None, None)
    for component in ("leaf", "access-link"):
        speeds = [rows[component, count].worst for count in (1, 2, 4)]
        assert speeds == sorted(speeds, reverse=True)
    assert study(fabrics="rail-only").with_parts_failed().parts_failed == ()


def test_words_name_the_network_and_the_price() -> None:
    found = study(fabrics="rail-only,torus")
    assert turning_words(found) == []  # prices only
    simulated = tuple(replace(one, simulated_s=one.closed_form_s) for one in found.designs)
    (line,) = turning_words(replace(found, designs=simulated))
    assert line.startswith("The advice turns to ")
    assert "0.1x to 10x of market-2026" in line
    assert turning_words(study(fabrics="fat-tree", oversubscription="none")) == []
