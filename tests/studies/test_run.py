"""Runs: the same bytes however many workers there are and whoever is killed; only what is missing is computed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from weft.errors import BadInput
from weft.studies.result import Sweep
from weft.studies.run import FILE, StudyRun, StudyState
from weft.studies.runners import Answer, Here, PointBatch, Processes, Runner, answer
from weft.studies.study import Points, study_from_dict

FOLDER = Path(__file__).parent


def computed(folder: Path) -> int:
    import trivial

    return trivial.counted(folder / "log")


def run_of(folder: Path, *, version: str = "1", **fields: Any) -> StudyRun:
    import trivial

    document = {"schema": "weft.study/1", "compute": "sum", "axes": {"a": [1, 2, 3], "b": [1, 2]}} | fields
    points = Points(study_from_dict(document, trivial.computation))
    kept = StudyState(folder / "state", {"study": points.study.name, "version": version})
    return StudyRun(points=points, kept=kept, compute="trivial:compute")


def ran(run: StudyRun, runner: Runner | None = None) -> list[dict[str, Any]]:
    """The rows after a run, whose state is closed."""
    chosen = runner or Here()
    try:
        run.go(chosen)
        return Sweep(run.points, run.kept, run.keys, run.counts).to_dicts()
    finally:
        chosen.close()
        run.kept.close()


def test_rows_are_those_of_the_points_in_order(tmp_path: Path) -> None:
    rows = ran(run_of(tmp_path))
    assert [(row["a"], row["b"], row["sum"]) for row in rows] == [
        (a, b, a + b) for a in (1, 2, 3) for b in (1, 2)
    ]  # fmt: skip
    assert rows[0]["failure"] is None
    assert list(rows[0]) == ["a", "b", "failure", "message", "sum", "ratio", "text", "big"]


def test_any_number_of_workers_gives_the_same(tmp_path: Path) -> None:
    axes = {"a": list(range(1, 41)), "b": [1, 2, 3]}
    rows = ran(run_of(tmp_path / "1", axes=axes, compute="fails"))
    many = ran(run_of(tmp_path / "3", axes=axes, compute="fails"), Processes(3))
    assert json.dumps(rows) == json.dumps(many)
    assert computed(tmp_path) == 240
    failed = [row for row in rows if row["failure"]]
    assert {row["failure"] for row in failed} == {"bad-input"}
    assert {row["message"] for row in failed if row["a"] == 5} == {"a: 5 is odd -- take another"}
    assert all(row["sum"] is None for row in failed)
    assert len(failed) == 39


def test_a_changed_study_computes_the_difference(tmp_path: Path) -> None:
    ran(run_of(tmp_path))
    assert computed(tmp_path) == 6
    again = run_of(tmp_path)
    assert (again.counts.known, again.counts.left) == (6, 0)
    ran(again)
    assert computed(tmp_path) == 6
    ran(run_of(tmp_path, axes={"a": [3, 2, 4], "b": [2, 1, 5]}))
    assert computed(tmp_path) == 6 + 9 - 4
    more = run_of(tmp_path, axes={"a": [1, 2, 3], "b": [1, 2]}, skip=[{"a": 1}, {"a": 2, "b": 2}])
    assert (more.counts.points, more.counts.left) == (3, 0)
    more.kept.close()


def test_a_bug_is_a_row_that_says_so(tmp_path: Path) -> None:
    rows = ran(run_of(tmp_path, compute="bug"))
    assert [row["failure"] for row in rows] == ["bug-zero-division-error"] * 2 + [None] * 4


def test_a_point_that_ends_every_worker_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, axes={"a": [1, 2, 3, 4, 5, 6]}, compute="deadly")
    with pytest.raises(BadInput, match=r'each worker died that computed .*"a": 3'):
        ran(run, Processes(2))
    kept = run_of(tmp_path, axes={"a": [1, 2, 4, 5, 6]}, compute="deadly")
    assert kept.counts.known >= 2
    kept.kept.close()


@pytest.mark.parametrize("after", [1, 3])
def test_what_starts_workers_may_die_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    from multiprocessing import forkserver

    # One of its own: other tests of this process have workers of the usual one.
    own: Any = forkserver.ForkServer()
    for name in ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload"):
        monkeypatch.setattr(forkserver, name, getattr(own, name))

    class Killing(Processes):
        submitted = 0

        def submit(self, number: int, task: PointBatch) -> None:
            self.submitted += 1
            if self.submitted == after + 1:
                os.kill(own._forkserver_pid, signal.SIGKILL)
            super().submit(number, task)

    axes = {"a": list(range(1, 60)), "b": [1, 2, 3]}
    expected = ran(run_of(tmp_path / "whole", axes=axes))
    assert ran(run_of(tmp_path / "killed", axes=axes, compute="sum"), Killing(2)) == expected


class Unreliable(Runner):
    """A runner half of whose tasks are lost, answered out of order."""

    def __init__(self, seed: int) -> None:
        self.workers, self._draw = 4, random.Random(seed)
        self._tasks: list[tuple[int, PointBatch]] = []

    def submit(self, number: int, task: PointBatch) -> None:
        self._tasks.append((number, task))

    def answers(self) -> list[tuple[int, Answer | None]]:
        self._draw.shuffle(self._tasks)
        done = [self._tasks.pop() for _ in range(self._draw.randint(1, len(self._tasks)))]
        alone = len(done) == 1
        return [(number, answer(task) if alone or self._draw.random() < 0.5 else None) for number, task in done]

    def close(self) -> None:
        self._tasks.clear()


@pytest.mark.parametrize("seed", range(5))
def test_lost_tasks_are_done_again(tmp_path: Path, seed: int) -> None:
    axes = {"a": list(range(1, 60)), "b": [1, 2, 3]}
    expected = ran(run_of(tmp_path / "whole", axes=axes, compute="fails"))
    assert ran(run_of(tmp_path / "lossy", axes=axes, compute="fails"), Unreliable(seed)) == expected


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    task = run.task([0])
    other = PointBatch(**{name: getattr(task, name) for name in task.__slots__} | {"version": "0.0"})
    assert "not 0.0" in answer(other).problem
    moved = PointBatch(**{name: getattr(task, name) for name in task.__slots__} | {"files": (("/no/such", "x"),)})
    assert "cannot read /no/such" in answer(moved).problem
    run.kept.close()


@pytest.mark.parametrize(
    ("about", "problem"),
    [({"study": "other"}, "holds the state of another study"), ({"version": "2"}, "state of another version")],
)
def test_the_state_of_another_is_refused(tmp_path: Path, about: dict[str, str], problem: str) -> None:
    StudyState(tmp_path, {"study": "mine", "version": "1"}).close()
    with pytest.raises(BadInput, match=problem):
        StudyState(tmp_path, {"study": "mine", "version": "1"} | about)


def test_a_state_in_use_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    kept = StudyState(tmp_path, {"study": "mine"})
    with pytest.raises(BadInput, match="is in use by another sweep"):
        StudyState(tmp_path, {"study": "mine"})
    kept.add([(b"0" * 16, "no JSON")])
    with pytest.raises(BadInput, match="damaged: a result is not JSON"):
        list(kept.rows(kept.keys()))
    kept.close()
    (tmp_path / FILE).write_bytes(b"something else" * 100)
    with pytest.raises(BadInput, match="cannot be used"):
        StudyState(tmp_path, {"study": "mine"})


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, axes={"a": list(range(1, 2001))})
    run.go(Here())
    pages = run.kept._state.base.execute("pragma page_count").fetchone()[0]
    run.kept._state.base.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(BadInput, match="there is no space left"):
        run.kept.add([(os.urandom(16), "x" * 5000) for _ in range(100)])
    assert len(run.kept.keys()) == 2000
    run.kept.close()


def children(process: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process:
            found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


@pytest.mark.slow_but(1)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_killed_the_bytes_are_the_same(tmp_path: Path, seed: int) -> None:
    """Parents and workers are killed at random times; the same command goes on, and nothing is computed anew that
    was kept."""
    draw, state, out = random.Random(seed), tmp_path / "state", tmp_path / "out.json"
    command = [sys.executable, str(FOLDER / "trivial.py"), str(draw.choice([1, 2, 3])), str(state), str(out), "40"]
    killed = 0
    while not out.exists():
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + draw.uniform(0.5, 3.0)
        while process.poll() is None and time.monotonic() < until and killed < 4:
            time.sleep(0.01)
        if process.poll() is None and killed < 4:
            below = children(process.pid)
            whom = draw.choice([process.pid, *below])
            os.kill(whom, signal.SIGKILL)
            killed += 1
            if whom == process.pid:
                process.wait()
                _gone(below)
                continue
        assert process.wait(timeout=60) in (0, 2)
    rows = json.loads(out.read_text())
    assert [(row["a"], row["b"], row["sum"]) for row in rows] == [
        (a, b, a + b) for a in range(1, 41) for b in (1, 2, 3)
    ]  # fmt: skip
    assert computed(tmp_path) <= 120 + 40 * killed


def _gone(processes: list[int]) -> None:
    """Wait until the workers of a killed parent have ended by themselves."""
    until = time.monotonic() + 20
    while any(
        Path(f"/proc/{one}/cmdline").exists() and Path(f"/proc/{one}/cmdline").read_bytes() for one in processes
    ):
        assert time.monotonic() < until, "workers outlive their parent"
        time.sleep(0.05)
