"""What a choice among measured layouts costs, on jobs whose best layout is known."""

from __future__ import annotations

import pytest

from weft.validation.inputs import prepare
from weft.validation.summary import choices


@pytest.fixture
def job(make):
    """Three layouts of one job, measured to take 1, 2 and 4 s."""

    def runs(**changes):
        return [
            prepare(make(tp=tp, global_batch=8, micro_batch=1, measured_iter_s=seconds, **changes))
            for tp, seconds in ((1, 1.0), (2, 2.0), (4, 4.0))
        ]

    return runs


@pytest.mark.parametrize(
    ("predicted", "regret", "ordered"),
    [((1.0, 2.0, 3.0), 0.0, 1.0), ((2.0, 1.0, 3.0), 1.0, 2 / 3), ((3.0, 2.0, 1.0), 3.0, 0.0)],
)
def test_the_loss_of_the_layout_that_is_predicted_fastest(job, predicted, regret, ordered) -> None:
    (found,) = choices(zip(job(), predicted, strict=True))
    assert (found.jobs, found.layouts, found.pairs) == (1, 3, 3)
    assert found.regret == found.worst == pytest.approx(regret)
    assert found.random == pytest.approx((0.0 + 1.0 + 3.0) / 3)
    assert found.ordered == pytest.approx(ordered)


def test_jobs_are_apart(job) -> None:
    """Another batch is another job; families are listed apart; one layout is not a choice."""
    one, other = job(), job(family="else", layers=24)
    alone = [prepare(i) for i in [one[0].run]]
    runs = [*one, *other]
    found = choices([*zip(runs, (2.0, 1.0, 3.0, 1.0, 2.0, 3.0), strict=True), (alone[0], 5.0)])
    assert [(each.family, each.regret) for each in found] == [("else", 0.0), ("korthikanti", 1.0)]
    assert choices([(alone[0], 5.0), (alone[0], 6.0)]) == ()


def test_times_that_are_nearly_equal_have_no_order(make) -> None:
    runs = [
        prepare(make(tp=tp, global_batch=8, micro_batch=1, measured_iter_s=seconds))
        for tp, seconds in ((1, 1.0), (2, 1.04))
    ]
    (found,) = choices(zip(runs, (2.0, 1.0), strict=True))
    assert (found.pairs, found.ordered) == (0, None)
    assert found.regret == pytest.approx(0.04)


def test_level_and_ratio_of_predictions(job) -> None:
    """Twice all measured times keeps ratios; one of three layouts twice as slow doubles or halves four of six."""
    (twice,) = choices(zip(job(), (2.0, 4.0, 8.0), strict=True))
    assert (twice.level, twice.ratio_error) == (2.0, 0.0)
    (one,) = choices(zip(job(), (2.0, 2.0, 4.0), strict=True))
    assert (one.level, one.ratio_error) == (1.0, pytest.approx((2 * 1.0 + 2 * 0.5) / 6))
