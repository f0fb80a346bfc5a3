"""AxoNN's claims beside Weft's figures, and what measured runs say about the cost of hidden collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import axonn
from weft.cluster.calibration import calibration
from weft.validation.inputs import Prepared, prepare_all
from weft.validation.runs import shipped_runs
from weft.validation.summary import Predictor


@pytest.mark.slow
def test_the_gain_over_megatron_is_one_over_its_past() -> None:
    """+26 % (AxoNN) is reproduced against 1F1B at a batch of 2,048, and not against what Megatron-LM has now."""
    rows = axonn.claims((2048,))
    own, plain, *_, now = ratios = [ratio for *_, ratio in rows]
    assert own == 1
    assert plain == pytest.approx(1.26, abs=0.08)
    assert now < 1.1
    assert ratios[1:] == sorted(ratios[1:], reverse=True)
    assert 0.57 < rows[0][2].hfu < 0.72
    half_s, none_s = axonn.overlap_s(rows[0][2], 2048)
    assert rows[0][2].iteration_s < half_s < none_s


@pytest.mark.slow
def test_weak_scaling_loses_little_and_ranks_agree() -> None:
    weak = axonn.weak_scaling()
    assert 0.85 < weak[-1][2].hfu / weak[0][2].hfu < 1
    corrected = [(correlation, first) for *_, script_form, correlation, first in axonn.rankings() if not script_form]
    assert min(correlation for correlation, _ in corrected) > 0.85
    assert max(first for _, first in corrected) > 0.1


@pytest.mark.slow
def test_measured_runs_do_not_tell_how_much_hidden_collectives_cost() -> None:
    """The one constant, 0.10 s a hidden second, against 0.18 (20 of 132 SMs, arXiv 2412.19437, section 3.2) and more:
    the mean error over families moves by less than 0.1 points, so that no further term is warranted."""
    runs = [one for one in prepare_all(shipped_runs()) if isinstance(one, Prepared)]
    predictor, measured = Predictor(runs), np.array([one.measured_s for one in runs])
    families = np.array([one.run.family for one in runs])
    errors = {}
    for cost in (0.0, 0.1, 0.18, 0.3, 0.5):

        def constants(accelerator: str, stack: str, cost: float = cost) -> object:
            return replace(calibration(accelerator, stack), overlap_cost=cost)

        off = np.abs(predictor.predict(constants).seconds / measured - 1)
        errors[cost] = 100 * np.mean([off[families == one].mean() for one in set(families)])
    assert abs(errors[0.1] - errors[0.18]) < 0.1
    assert errors[0.1] < errors[0.0]
    assert errors[0.1] < errors[0.3] < errors[0.5]
