"""Traces of chosen steps and ranks, and what reads them."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from weft.commands.train import parse_ranks  # noqa: E402
from weft.commands.train_rank import profile_path  # noqa: E402
from weft.errors import BadInput  # noqa: E402

TRAINED = {"steps": 4, "batch": 2, "sequence": 16, "device": "cpu"}


def test_a_trace_of_chosen_steps_is_read_by_calibrate(tmp_path):
    path = tmp_path / "trace.json"
    weft.train("tiny-gpt", **TRAINED, profile=str(path), profile_steps="2..3", profile_ranks="0")
    path = tmp_path / "trace-rank0.json"
    named = {event["name"] for event in json.loads(path.read_text())["traceEvents"] if "name" in event}
    assert {one for one in named if one.startswith("ProfilerStep#")} == {"ProfilerStep#2", "ProfilerStep#3"}
    measured = weft.calibrate(trace=str(path)).measured
    assert {(one.m, one.n, one.k) for one in measured.products}
    assert all(one.seconds > 0 for one in measured.products)


@pytest.mark.slow
def test_each_chosen_rank_writes_its_trace(tmp_path):
    path = tmp_path / "trace.json.gz"
    weft.train("tiny-gpt", **{**TRAINED, "batch": 3}, layout="data=3", profile=str(path), profile_ranks="2,1")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["trace-rank1.json.gz", "trace-rank2.json.gz"]


@pytest.mark.slow
def test_a_run_that_goes_on_behind_the_steps_makes_no_trace(tmp_path):
    again = {**TRAINED, "out": str(tmp_path / "out"), "restart": "on-failure"}
    weft.train("tiny-gpt", **again)
    weft.train("tiny-gpt", **{**again, "steps": 5}, profile=str(tmp_path / "trace.json"), profile_steps="2..3")
    assert not (tmp_path / "trace.json").exists()


def test_the_files_of_ranks():
    assert profile_path("a/trace.json.gz", (1, 12), 12).name == "trace-rank12.json.gz"
    assert profile_path("a/trace.json", (), 3).name == "trace.json"
    assert parse_ranks("3,0,3", 4) == (0, 3)
    assert parse_ranks("3,0", 2, fewer=True) == (0,)


@pytest.mark.parametrize("text", ["", "a", "0,,1", "-1", "4", "1" * 40, "²"])
def test_what_is_no_rank_is_refused(text):
    with pytest.raises(BadInput, match="--profile-ranks"):
        parse_ranks(text, 4)


def test_ranks_without_a_trace_are_refused():
    with pytest.raises(BadInput, match="--profile-ranks: needs --profile"):
        weft.train("tiny-gpt", **TRAINED, profile_ranks="0")
