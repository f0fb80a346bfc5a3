"""The solver that says nothing."""

import pytest

from weft.solvers.highs import silent_highs


def test_it_prints_nothing_and_solves(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.16 prints a banner from its constructor; standard output is for results."""
    highspy, model = silent_highs()
    for cost in (1.0, 2.0):
        model.addVar(0.0, highspy.kHighsInf)
        model.changeColCost(model.getNumCol() - 1, cost)
    model.addRow(3.0, highspy.kHighsInf, 2, [0, 1], [1.0, 1.0])
    model.run()
    assert model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    assert model.getInfo().objective_function_value == 3.0
    assert model.getOptionValue("threads")[1] == 1
    assert capfd.readouterr() == ("", "")
