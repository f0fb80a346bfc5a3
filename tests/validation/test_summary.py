from __future__ import annotations

from statistics import mean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.validation.inputs import prepare_all
from weft.validation.runs import Skipped
from weft.validation.summary import Predictions, spearman, validation


def brute_force(first: list[int], second: list[int]) -> float:
    """Pearson's correlation of mean ranks, each rank counted pair by pair."""

    def ranks(values: list[int]) -> list[float]:
        return [sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]

    a, b = ranks(first), ranks(second)
    da, db = [x - mean(a) for x in a], [y - mean(b) for y in b]
    norm = (sum(x * x for x in da) * sum(y * y for y in db)) ** 0.5
    return sum(x * y for x, y in zip(da, db, strict=True)) / norm


@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=30))
def test_spearman(pairs: list[tuple[int, int]]) -> None:
    first, second = [list(side) for side in zip(*pairs, strict=True)]
    found = spearman(np.array(first, dtype=float), np.array(second, dtype=float))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(brute_force(first, second))


@pytest.fixture
def judged(make):
    rows = [
        make(id="a", family="one", measured_iter_s=1.0),
        make(id="b", family="one", measured_iter_s=2.0),
        make(id="c", family="two", measured_iter_s=4.0, peak_memory_gib=10.0),
        make(id="d", family="two", gpu="Abacus"),
        Skipped(name="e", family="three", reason="unreadable: gpus = 'x' is not a number"),
    ]
    predicted = Predictions(seconds=np.array([1.1, 1.6, 6.0]), memory_bytes=np.array([1.0, 1.0, 11 * 2.0**30]))
    return validation(prepare_all(rows), predicted)


def test_families_and_headline(judged) -> None:
    by_name = {one.family: one for one in judged.families}
    one, two, three = by_name["one"], by_name["two"], by_name["three"]
    assert (one.mape, one.median_ape, one.bias) == pytest.approx((0.15, 0.15, -0.05))
    assert (one.max_ape, one.worst, one.spearman) == (pytest.approx(0.2), "b", pytest.approx(1.0))
    assert (two.runs, two.predicted, two.mape) == (2, 1, pytest.approx(0.5))
    assert (two.memory_runs, two.memory_mape) == (1, pytest.approx(0.1))
    assert (three.runs, three.predicted, three.mape) == (1, 0, None)
    assert judged.headline == pytest.approx((0.15 + 0.5) / 2)
    assert judged.pooled.median_ape == pytest.approx(median([0.1, 0.2, 0.5]))


@pytest.mark.parametrize(
    ("source", "seq", "doubted"),
    [
        ("Nobody's trainer", 131072, True),
        ("Nobody's trainer", 2048, False),
        ("NeMo 25.04", 131072, False),
        ("Megatron-LM v2.1, 2021", 131072, False),
    ],
)
def test_rates_at_long_sequences_are_in_doubt_without_a_convention(make, source, seq, doubted) -> None:
    row = make(source=source, family="f", seq=seq, measured_iter_s=None, tflops_per_gpu=150.0)
    found = validation(prepare_all([row]), Predictions(seconds=np.ones(1), memory_bytes=np.ones(1)))
    assert [(one.family, one.runs) for one in found.warnings] == ([("f", 1)] if doubted else [])
    stated = make(source=source, family="f", seq=seq)
    again = validation(prepare_all([stated]), Predictions(seconds=np.ones(1), memory_bytes=np.ones(1)))
    assert again.warnings == ()
