"""States of checkpoints: fields that are wrong are refused by name."""

from __future__ import annotations

import pytest

from weft.codec import encode
from weft.errors import BadInput
from weft.runtime.run.session import RunState

TABLE = {
    "step": 3,
    "seed": -5,
    "global_batch": 8,
    "sequence": 32,
    "model": "m",
    "data": "00ff",
    "details": {"activation": None, "norm_epsilon": 1e-5},
    "precision": {"master": "float32"},
    "adam": {
        "rate": 1e-3,
        "betas": [0.9, 0.95],
        "epsilon": 1e-8,
        "weight_decay": 0.1,
        "warmup": 10,
        "steps": 100,
        "clip": None,
    },
}


def test_what_is_written_is_read():
    assert encode(RunState.read(TABLE, "here")) == TABLE
    assert RunState.read(TABLE, "here").adam.betas == (0.9, 0.95)


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"step": -1}, "step"),
        ({"step": "3"}, "step"),
        ({"step": 2**60}, "step"),
        ({"seed": None}, "seed"),
        ({"precision": {"master": 4}}, r"precision\.master"),
        ({"adam": TABLE["adam"] | {"betas": [0.9]}}, r"adam\.betas\[1\]"),
        ({"adam": {}}, r"adam\.rate"),
    ],
)
def test_fields_that_are_wrong(changed, place):
    with pytest.raises(BadInput, match=f"weft.json: {place}: "):
        RunState.read(TABLE | changed, "weft.json")


@pytest.mark.parametrize("name", TABLE)
def test_fields_that_are_missing(name):
    with pytest.raises(BadInput, match=f"{name}: is missing"):
        RunState.read({key: value for key, value in TABLE.items() if key != name}, "weft.json")


def test_settings_that_no_run_has():
    with pytest.raises(BadInput, match="rate = -1"):
        RunState.read(TABLE | {"adam": TABLE["adam"] | {"rate": -1.0}}, "weft.json")


def test_only_steps_and_the_optimizer_may_change():
    run = RunState.read(TABLE, "here")
    changed = TABLE | {"step": 0, "adam": TABLE["adam"] | {"rate": 1.0}}
    run.check_goes_on(RunState.read(changed, "here"), "there")
    more = TABLE | {"details": {"activation": None, "norm_epsilon": 1e-5, "new": 1.0}}
    with pytest.raises(BadInput, match=r"with details.new = None, this run has 1.0 -- give the same"):
        run.check_goes_on(RunState.read(more, "here"), "there")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": "another"}, r"was trained on other data \(files, weights, or what"),
        ({"precision": TABLE["precision"] | {"compute": "bfloat16"}}, "has bfloat16 -- give the same --precision"),
        ({"precision": TABLE["precision"] | {"reduce": "bfloat16"}}, "has bfloat16 -- give the same --reduce-bf16"),
    ],
)
def test_what_must_be_the_same_is_told_by_its_option(changed, message):
    with pytest.raises(BadInput, match=message):
        RunState.read(TABLE, "here").check_goes_on(RunState.read(TABLE | changed, "here"), "there")
