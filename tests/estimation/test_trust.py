"""The error that is stated with an estimate: of the most similar measured runs that are enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.estimation.trust import (
    COVERED,
    FEWEST,
    Known,
    Traits,
    choice_error,
    covered,
    equal_shares,
    error_bar,
    runs_from_json,
    runs_to_json,
    shipped_runs,
)

USUAL = Traits(accelerator="a100", kind="dense")


def known(error=0.1, family="one", unfitted=0.3, job=0, **changes):
    return Known(run="r", family=family, job=job, traits=replace(USUAL, **changes), error=error, unfitted=unfitted)


def both(error=0.1, **changes):
    """Enough runs of two sources."""
    return [known(error, family=family, **changes) for family in ("one", "two") for _ in range(FEWEST // 2)]


def test_the_nearest_circle_that_has_enough() -> None:
    near, far = both(0.05), both(0.5, accelerator="h100")
    assert error_bar(USUAL, near + far).error == 0.05
    wider = error_bar(USUAL, near[1:] + far)
    assert (wider.error, wider.runs, wider.sources) == (0.5, 2 * FEWEST - 1, 2)
    assert "any accelerator" in wider.alike


def test_one_source_is_not_enough() -> None:
    alone = [known(0.05) for _ in range(100)]
    other = [known(0.4, family="two", accelerator="h100") for _ in range(3)]
    found = error_bar(USUAL, alone + other)
    assert (found.error, found.sources) == (0.4, 2)


def test_sources_weigh_the_same() -> None:
    many = [known(0.01) for _ in range(1000)]
    few = [known(0.2, family="two") for _ in range(4)]
    assert error_bar(USUAL, many + few).error == 0.2


def test_without_runs_on_the_accelerator_the_larger_error_counts() -> None:
    found = error_bar(replace(USUAL, accelerator="nobody's"), both(0.05) + both(0.1, kind="experts"))
    assert (found.error, found.runs) == (0.3, FEWEST)
    assert error_bar(replace(USUAL, accelerator="nobody's"), both(0.4)).error == 0.4
    assert "none of them on nobody's" in found.alike


def test_nothing_is_known() -> None:
    assert error_bar(USUAL, []).error is None


@given(st.lists(st.tuples(st.floats(-0.9, 3.0), st.sampled_from("abc")), min_size=FEWEST, max_size=60))
def test_the_stated_share_is_within_it(runs) -> None:
    errors, families = np.array([error for error, _ in runs]), np.array([family for _, family in runs])
    found = error_bar(USUAL, [known(error, family=family) for error, family in runs])
    assert found.runs == len(runs)
    inside = np.abs(errors) <= found.error
    assert equal_shares(families) @ inside >= COVERED - 1e-9
    if found.error > 0:
        assert equal_shares(families) @ (np.abs(errors) < found.error) < COVERED


def test_how_many_runs_the_bars_of_the_others_cover() -> None:
    runs = [known(0.1), known(0.3), *(known(0.2, family=name) for name in ("two", "three") for _ in range(9))]
    assert covered(runs) == {"one": 0.5, "three": 1.0, "two": 1.0}


def test_the_error_between_layouts_leaves_out_what_they_share() -> None:
    """Two families; in one, both layouts are 50 % off alike."""
    alike = [known(0.5), known(0.5)]
    apart = [known(0.0, "two", job=1), known(0.2, "two", job=1), known(9.0, "two", job=2)]
    found = choice_error(alike + apart)
    assert (found.pairs, found.sources) == (2, 2)
    assert found.error == pytest.approx(0.2)
    assert choice_error(alike).error == 0.0
    assert choice_error(apart[1:]).error is None


def test_json_and_back() -> None:
    runs = (known(0.1234), known(-0.5, "two", accelerator="h100", kind="experts"))
    assert runs_from_json(runs_to_json(runs)) == runs


def test_what_is_shipped() -> None:
    runs = shipped_runs()
    assert len(runs) > 1000
    assert len({one.run for one in runs}) == len(runs)
    assert {one.traits.accelerator for one in runs} >= {"a100", "h100", "b200", "gb200", "gb300", "v100"}
    assert error_bar(USUAL).sources > 1


@pytest.mark.parametrize("accelerator", ["mi250x", "nobody's"])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_every_estimate_has_a_bar(accelerator, kind) -> None:
    wide = error_bar(replace(USUAL, accelerator=accelerator, kind=kind)).error
    assert wide is not None
    seen = {one.traits.accelerator for one in shipped_runs()}
    assert accelerator not in seen
    assert wide == max(wide, *(error_bar(Traits(accelerator=name, kind=kind)).error for name in seen))
