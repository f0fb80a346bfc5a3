"""Settings of Adam: what is no setting is refused."""

from __future__ import annotations

import math

import pytest

from weft.errors import BadInput
from weft.runtime.run.optimizer import AdamSettings, check_finite


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": math.nan}, "rate = nan is out of range -- choose above 0 and finite"),
        ({"rate": 0.0}, "rate = 0.0"),
        ({"betas": (0.9, 1.0)}, "betas = 1.0 is out of range -- choose at least 0 and below 1"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1 is out of range -- choose at least 0 and finite"),
        ({"warmup": -1}, "warmup = -1"),
        ({"steps": -1}, "steps = -1"),
        ({"clip": math.nan}, "clip = nan"),
        ({"clip": 0.0}, "clip = 0.0"),
        ({"rate": "1"}, "rate = '1' -- give a number"),
        ({"betas": (0.9,)}, r"betas = \(0\.9,\) -- give two numbers"),
        ({"betas": (0.9, "x")}, "betas = 'x' -- give a number"),
        ({"warmup": 1.5}, "warmup = 1.5 -- give a whole number"),
    ],
)
def test_settings_that_are_none(values, message):
    with pytest.raises(BadInput, match=message):
        AdamSettings(**values)


def test_limits_are_settings():
    AdamSettings(betas=(0.0, 0.0), weight_decay=0.0, clip=None, warmup=0, steps=0)


def test_what_has_changed_is_told_once():
    assert AdamSettings().changes_from(AdamSettings()) == []
    changed = AdamSettings(clip=None, warmup=3)
    assert changed.changes_from(AdamSettings()) == ["warmup 0 -> 3", "clip 1.0 -> None"]


def test_diverged_runs_are_told_what_to_change():
    check_finite("the loss", 1e30, 4)
    with pytest.raises(BadInput, match=r"step 5: the loss is inf -- .* rate .* clip, .* in fp32"):
        check_finite("the loss", math.inf, 4)
