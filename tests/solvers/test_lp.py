"""Linear and integer programs."""

import numpy as np
import pytest

from weft.solvers import lp


def test_it_prints_nothing_and_solves(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.16 prints a banner from its constructor; standard output is for results."""
    bounds = np.zeros(2), np.full(2, np.inf)
    rows = lp.Rows.of([([0, 1], [2.0, 2.0], 3.0, np.inf)])
    found = lp.least(np.array([1.0, 2.0]), bounds, rows)
    assert found.optimal
    assert (found.values.tolist(), found.objective, found.dual.tolist()) == ([1.5, 0.0], 1.5, [0.5])
    whole = lp.least(np.array([1.0, 2.0]), bounds, rows, integer=[True, False], seconds=10.0, seed=0, gap=0.0)
    assert whole.objective == whole.bound == 2.0
    assert not len(lp.least(np.ones(2), (np.zeros(2), np.ones(2)), lp.Rows.of([([0], [1.0], 2.0, 3.0)])).values)
    assert capfd.readouterr() == ("", "")
