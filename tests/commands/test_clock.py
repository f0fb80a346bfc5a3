"""The wall clock is set back between runs and goes back while one runs: results and states stay as they are."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

Weft = Callable[..., tuple[int, str, str]]
NET = ("fabric", "a100-64", "--radix", "8", "--export", "json", "-o", "net.json")
WATCH = ("route", "watch", "--fabric", "net.json", "--format", "json", "--state", "watched")
SWEEP = ("sweep", "--models", "gpt2", "--clusters", "a100-8", "--compute", "estimate")
SWEEP += ("--workers", "1", "--state", "swept")
PLAN = ("plan", "gpt2", "a100-8", "--format", "json", "-o", "plan.json")


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Sets the clock back: it is 2001 and goes back by an hour whenever it is read."""

    def back() -> None:
        turns = count()
        monkeypatch.setattr(time, "time", lambda: 1e9 - 3600.0 * next(turns))
        monkeypatch.setattr(time, "time_ns", lambda: 10**18 - 3600 * 10**9 * next(turns))

    return back


def test_states_go_on_and_files_are_replaced(
    weft: Weft, set_back: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert weft(*NET)[0] == 0
    flows = [{"source": number, "target": number + 32, "bytes": 1e9} for number in range(8)]
    events = [
        {"time_s": 0, "event": "job-arrives", "job": "a", "flows": flows},
        {"time_s": 5, "event": "switch-down", "switch": "spine-0"},
        {"time_s": 9, "event": "job-ends", "job": "a"},
    ]
    lines = [json.dumps(event) for event in events]
    Path("events.jsonl").write_text("\n".join(lines[:2]) + "\n")
    axis = ("--axis", "batch=8,16", "-o", "points.csv")
    assert weft(*SWEEP[:-2], *axis)[0] == 0
    points = Path("points.csv").read_bytes()
    early = weft(*WATCH, "--events", "events.jsonl")
    assert weft(*SWEEP, "--axis", "batch=8")[0] == weft(*PLAN)[0] == early[0] == 0
    plan = Path("plan.json").read_bytes()
    set_back()
    Path("events.jsonl").write_text("\n".join(lines) + "\n")
    late = weft(*WATCH, "--events", "events.jsonl")
    assert [json.loads(line)["number"] for line in (early[1] + late[1]).splitlines()] == [1, 2, 3]
    assert weft(*SWEEP, *axis)[0] == weft(*PLAN)[0] == 0
    assert (Path("points.csv").read_bytes(), Path("plan.json").read_bytes()) == (points, plan)
    for path in tmp_path.rglob("*"):  # times of files lie in the future, as seen by the clock
        os.utime(path, (4e9, 4e9))
    assert weft(*SWEEP, *axis)[0] == 0
    assert Path("points.csv").read_bytes() == points
