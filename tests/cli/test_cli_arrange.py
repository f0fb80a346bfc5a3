"""``weft arrange --watch`` and ``--trace``: decisions, state that outlives a kill, replays, lines for bad input."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.arrangement.online import SiteController
from weft.arrangement.site import read_site
from weft.arrangement.site_store import SiteStore

Run = Callable[..., tuple[int, str, str]]
EXAMPLES = Path(__file__).parents[2] / "examples"
WATCH = ("arrange", "site-idle.toml", "--format", "json", "--steps", "4")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples."""
    for name in ("site-idle.toml", "site-events.jsonl", "arrivals.csv"):
        shutil.copy(EXAMPLES / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The decisions of the example without a break."""
    from weft.arrangement.site_events import read_site_event
    from weft.report.tables.site_decisions import decision_to_json

    site = read_site(EXAMPLES / "site-idle.toml", idle=True)
    controller = SiteController(site, steps=4)
    lines = (EXAMPLES / "site-events.jsonl").read_text().splitlines()
    found = [controller.apply(read_site_event(line, site, EXAMPLES, "line")) for line in lines]
    return [decision_to_json(one, site) for one in found]


def test_the_example_and_a_state_that_goes_on(weft: Run, here: Path, whole: list[str]) -> None:
    lines = Path("site-events.jsonl").read_text().splitlines(keepends=True)
    Path("part.jsonl").write_text("".join(lines[:4]) + "\n")
    code, first, err = weft(*WATCH, "--watch", "part.jsonl", "--state", "state")
    assert (code, err) == (0, "")
    code, rest, err = weft(*WATCH, "--watch", "site-events.jsonl", "--state", "state")
    assert (code, err) == (0, "")
    assert (first + rest).splitlines() == whole
    code, again, _ = weft(*WATCH, "--watch", "site-events.jsonl", "--state", "state", "--since", "8")
    assert (code, again.splitlines()) == (0, whole[7:])
    told = [json.loads(line) for line in whole]
    assert {one["schema"] for one in told} == {"weft.arrangement-decision/1"}
    assert [one["number"] for one in told] == list(range(1, len(lines) + 1))
    changes = [(one["job"], one["change"]) for decision in told for one in decision["changes"]]
    assert {what for _, what in changes} >= {"placed", "waits", "evicted", "ended", "moved"}
    code, out, err = weft(*WATCH, "--watch", "site-events.jsonl", "--state", "state", "--seed", "1")
    assert (code, out) == (2, "")
    assert err == "Error: state: holds the state of another seed -- give the same, or an empty folder\n"


def test_bad_lines_end_with_2_and_change_nothing(weft: Run, here: Path, whole: list[str]) -> None:
    lines = Path("site-events.jsonl").read_text().splitlines()
    bad = {
        lines[2][:30]: "is torn or no JSON",
        '{"time_s": 70, "event": "host-down", "host": "host-77"}': "unknown host 'host-77'",
        '{"time_s": 70, "event": "host-down"}': "host: is missing -- host-down needs it",
        '{"time_s": 70, "event": "job-ends", "job": "b", "host": "host-1"}': "host does not go with job-ends",
        '{"time_s": 70, "event": "job-ends", "job": "b", "layout": "dp=8"}': "layout does not go with job-ends",
        '{"time_s": 70, "event": "tick"}': "event",
        lines[1].replace('"time_s": 60', '"time_s": 70'): "job 'b' is there already",
        lines[0].replace('"job": "a"', '"job": "z"'): "comes after 60 s",
        lines[2].replace("llama-3.1-8b", "llama-9"): "llama-9",
        lines[2].replace('"batch"', '"bunch"'): "bunch",
    }
    for line, message in bad.items():
        Path("bad.jsonl").write_text("\n".join([*lines[:2], line]) + "\n")
        code, out, err = weft(*WATCH, "--watch", "bad.jsonl", "--state", "state")
        assert code == 2, line
        assert err.startswith("Error: bad.jsonl: line 3: "), err
        assert message in err
        assert err.count("\n") == 1
        assert "Traceback" not in err
    code, out, err = weft(*WATCH, "--watch", "site-events.jsonl", "--state", "state")
    assert (code, out.splitlines(), err) == (0, whole[2:], "")


USAGE = {
    "state alone": (("--state", "state"), "--state: goes with --watch"),
    "since alone": (("--watch", "site-events.jsonl", "--since", "1"), "--since: goes with --state"),
    "day alone": (("--day", "1"), "--day: goes with --trace"),
    "policy alone": (("--policy", "arrange"), "--policy: goes with --trace"),
    "both": (("--watch", "a", "--trace", "b"), "--trace: does not go with --watch"),
    "chart": (("--trace", "b", "--chart", "x.svg"), "--chart: does not go with --watch or --trace"),
    "output": (("--watch", "b", "-o", "x.json"), "-o: does not go with --watch"),
    "no events": (("--watch", "nothing.jsonl"), "nothing.jsonl: no such file"),
    "no trace": (("--trace", "nothing.csv"), "nothing.csv: no such file"),
    "no policy": (("--trace", "arrivals.csv", "--policy", "guess"), "guess"),
    "no jobs": ((), "site-idle.toml: jobs: a site without jobs"),
}


@pytest.mark.parametrize("name", USAGE)
def test_what_does_not_go_together(weft: Run, here: Path, name: str) -> None:
    arguments, message = USAGE[name]
    code, out, err = weft("arrange", "site-idle.toml", *arguments)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


def started(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from weft.cli import main; main()", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def kept(folder: str) -> list[str]:
    """Decisions in a state."""
    store = SiteStore(folder, SiteController(read_site("site-idle.toml", idle=True), steps=4))
    found = store.decisions()
    assert store.load() == len(found)
    store.close()
    return found


def test_a_killed_controller_goes_on(weft: Run, here: Path, whole: list[str]) -> None:
    """Killed while it waits for more: what it printed is on disk, a second is refused, a third goes on."""
    lines = Path("site-events.jsonl").read_text().splitlines(keepends=True)
    running = started(*WATCH, "--watch", "-", "--state", "state")
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        said = []
        for line in lines[:3]:
            running.stdin.write(line.encode())
            running.stdin.flush()
            said.append(running.stdout.readline().decode().rstrip("\n"))
        code, out, err = weft(*WATCH, "--watch", "site-events.jsonl", "--state", "state")
        assert (code, out) == (2, "")
        assert err == "Error: state: is in use by another controller -- give a folder of its own\n"
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.stdin.close()
        running.stdout.close()
        assert running.wait() == -signal.SIGKILL
    assert kept("state") == said == whole[:3]
    code, rest, err = weft(*WATCH, "--watch", "site-events.jsonl", "--state", "state")
    assert (code, rest.splitlines(), err) == (0, whole[3:], "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_random_moments_it_ends_the_same(here: Path, whole: list[str], seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        running = started(*WATCH, "--watch", "site-events.jsonl", "--state", "state")
        assert running.stdin is not None
        assert running.stdout is not None
        time.sleep(draw.uniform(0.3, 4.0))
        running.kill()
        running.wait()
        running.stdin.close()
        running.stdout.close()
        done = kept("state")
        assert done == whole[: len(done)]
        if len(done) == len(whole):
            return
    raise AssertionError("it came to no end")
