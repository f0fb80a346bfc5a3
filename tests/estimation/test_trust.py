"""The error that is stated with an estimate: of the most similar measured runs that are enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.estimation.trust import COVERED, FEWEST, Known, Traits, error_bar, runs_from_json, runs_to_json, shipped_runs

USUAL = Traits(accelerator="a100", kind="dense", width="16-bit", parameters=1e10, accelerators=64)


def known(error=0.1, **changes):
    values = {name: getattr(USUAL, name) for name in Traits.__slots__}
    return Known(traits=Traits(**values | changes), error=error)


def test_nothing_similar() -> None:
    others = [known(accelerator="h100") for _ in range(100)] + [known() for _ in range(FEWEST - 1)]
    found = error_bar(USUAL, others)
    assert found.error is None
    assert found.runs == 0


def test_the_nearest_circle_that_has_enough() -> None:
    near = [known(0.05) for _ in range(FEWEST)]
    far = [known(0.5, parameters=1e12) for _ in range(50)]
    assert error_bar(USUAL, near + far).error == 0.05
    assert error_bar(USUAL, near[1:] + far).error == 0.5
    assert error_bar(USUAL, near[1:] + far).runs == FEWEST - 1 + 50


@given(st.lists(st.floats(-0.9, 3.0), min_size=FEWEST, max_size=60))
def test_the_stated_share_is_within_it(errors) -> None:
    found = error_bar(USUAL, [known(one) for one in errors])
    assert found.runs == len(errors)
    assert np.mean(np.abs(errors) <= found.error) >= COVERED


def test_json_and_back() -> None:
    runs = (known(0.1234), known(-0.5, accelerator="h100", kind="experts", width="8-bit"))
    assert runs_from_json(runs_to_json(runs)) == runs


def test_what_is_shipped() -> None:
    runs = shipped_runs()
    assert len(runs) > 1000
    assert {one.traits.accelerator for one in runs} >= {"a100", "h100", "b200", "gb200", "gb300", "v100"}
    assert error_bar(USUAL).runs >= FEWEST


@pytest.mark.parametrize("accelerator", ["mi250x", "nobody's"])
def test_an_accelerator_without_runs(accelerator) -> None:
    assert (
        error_bar(Traits(**{n: getattr(USUAL, n) for n in Traits.__slots__} | {"accelerator": accelerator})).error
        is None
    )
