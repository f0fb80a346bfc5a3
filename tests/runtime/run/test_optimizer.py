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
        ({"rate": math.inf}, "rate = inf"),
        ({"rate": 0.0}, "rate = 0.0"),
        ({"rate": -1.0}, "rate = -1.0"),
        ({"betas": (0.9, 1.0)}, "betas = 1.0 is out of range -- choose at least 0 and below 1"),
        ({"betas": (math.nan, 0.9)}, "betas = nan"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1 is out of range -- choose at least 0 and finite"),
        ({"weight_decay": math.inf}, "weight_decay = inf"),
        ({"warmup": -1}, "warmup = -1"),
        ({"steps": -1}, "steps = -1"),
        ({"clip": math.nan}, "clip = nan"),
        ({"clip": math.inf}, "clip = inf"),
        ({"clip": 0.0}, "clip = 0.0"),
        ({"clip": True}, "clip = True -- give a number"),
        ({"rate": "1"}, "rate = '1' -- give a number"),
        ({"betas": (0.9,)}, r"betas = \(0\.9,\) -- give two numbers"),
        ({"betas": 0.9}, "betas = 0.9 -- give two numbers"),
        ({"betas": (0.9, "x")}, "betas = 'x' -- give a number"),
        ({"warmup": 1.5}, "warmup = 1.5 -- give a whole number"),
        ({"steps": True}, "steps = True -- give a whole number"),
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
