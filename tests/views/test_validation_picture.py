"""Predicted over measured: every run in its place, every family's errors beside."""

from math import log

import numpy as np
import pytest

pytest.importorskip("altair")

import weft
from weft.views.charts import COLOURS
from weft.views.validation import validation_chart


@pytest.fixture(scope="module")
def found():
    return weft.validate(family=("korthikanti", "megatron-sc21"))


def test_runs_and_families_stand_where_their_errors_say(found, drawn):
    items = drawn(validation_chart(found))
    families = [one for one in found.families if one.mape is not None]
    symbols = [item for item in items if item.kind == "symbol" and item.role == "mark"]
    points, medians = symbols[: len(found.outcomes)], symbols[len(found.outcomes) :]
    assert len(found.outcomes) > 3
    assert len(medians) == len(families)
    values = [value for one in found.outcomes for value in (one.prepared.measured_s, one.predicted_s)]
    scale = 500 / log(1.25 * max(values) / (0.8 * min(values)))
    first, one = points[0], found.outcomes[0]
    for point, other in zip(points, found.outcomes, strict=True):
        assert point.x - first.x == pytest.approx(scale * log(other.prepared.measured_s / one.prepared.measured_s))
        assert first.y - point.y == pytest.approx(scale * log(other.predicted_s / one.predicted_s))
    bars = [item for item in items if item.kind == "rule" and item.look.get("stroke") in COLOURS]
    assert len(bars) == len(families)
    errors = [
        np.quantile([one.error for one in found.outcomes if one.prepared.run.family == each.family], (0.1, 0.5, 0.9))
        for each in families
    ]
    most = 1.05 * max(0.10, *(abs(end) for low, _, high in errors for end in (low, high)))
    for bar, median, (low, middle, high) in zip(bars, medians, errors, strict=True):
        assert abs(bar.look["x2"] - bar.look["x"]) == pytest.approx((high - low) / (2 * most) * 300, abs=1e-6)
        begin = bar.x - bar.look["x"] + min(bar.look["x"], bar.look["x2"])
        assert median.x - begin == pytest.approx((middle - low) / (2 * most) * 300, abs=1e-6)
