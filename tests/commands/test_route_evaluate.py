"""``weft route evaluate``, by its command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weft.commands.route_evaluate import evaluate_command
from weft.errors import BadInput, UnknownName
from weft.interop.routing_jobs import COLUMNS

HEAD = f"#{COLUMNS}\n"
FIRST_HOST = 96


def edge(source: int, target: int, stage: int) -> str:
    """A line of a job file: 1.25 GB a round, so 0.1 s; hosts 32 a ToR; begins at 1 s, computes for 0.5 s."""
    ends = [source + FIRST_HOST, target + FIRST_HOST, source // 32, target // 32]
    return " ".join(map(str, [*ends, 1_000_000_000, 1_250_000_000, 500_000_000, stage])) + "\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """32 rings of two, which fill all uplinks of two ToRs."""
    folder = tmp_path / "set" / "small"
    folder.mkdir(parents=True)
    lines = [edge(host, 32 + host, host) + edge(32 + host, host, host) for host in range(32)]
    (folder / "job_0-TEST.txt").write_text(HEAD + "".join(lines))
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(evaluate_command, [str(one) for one in arguments])


def test_json_says_what_the_routers_reach(jobs: Path) -> None:
    result = run("--jobs", jobs, "--failed-spines", 0, "--failed-spines", 8, "--format", "json", "--epochs", 2)
    document = json.loads(result.output)
    assert document["rows"][0]["workload"] == "set/small"
    ratio = {(row["router"], row["failed_spines"]): row["ratio"] for row in document["rows"]}
    assert ratio["auto", 0] == pytest.approx(1.0)
    assert ratio["auto", 8] == pytest.approx(2.0)
    assert ratio["ecmp", 0] >= 2.0
    assert document["rows"][0]["alone_s"] == pytest.approx(0.2)
    again = run("--jobs", jobs, "--failed-spines", 8, "--failed-spines", 0, "--format", "json", "--epochs", 2)
    assert again.output == result.output


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((), BadInput, "there are no jobs"),
        (("--jobs", "nowhere"), BadInput, "cannot be read"),
        (("--jobs", "JOBS", "--jobs", "JOBS"), BadInput, "given twice"),
        (("--jobs", "JOBS", "--router", "greddy"), UnknownName, "did you mean greedy"),
        (("--jobs", "JOBS", "--failed-spines", "32"), BadInput, "32 of 32 spines"),
        (("--jobs", "JOBS", "--chart", "times.gif"), BadInput, "does not end in .svg"),
        (("--jobs", "JOBS", "-o", "no/such/folder"), BadInput, "folder does not exist"),
    ],
)
def test_refusals(jobs: Path, arguments: tuple[str, ...], error: type[Exception], words: str) -> None:
    result = run(*(jobs if one == "JOBS" else one for one in arguments))
    assert isinstance(result.exception, error)
    assert words in str(result.exception)


def test_the_papers_jobs() -> None:
    """5 jobs, rings of 2: 4.4 x alone with the hash, alone with a plan; 5.0 and 2.0 without 8 spines."""
    folder = os.environ.get("WEFT_ROUTING_JOBS")
    if not folder:
        pytest.skip("WEFT_ROUTING_JOBS is not set")
    path = Path(folder, "concurrent_jobs_5", "ring_size_2")
    result = run("--jobs", path, "--failed-spines", 0, "--failed-spines", 8, "--format", "json")
    rows = json.loads(result.output)["rows"]
    assert [round(row["ratio"], 3) for row in rows] == [4.4, 1.0, 1.0, 5.0, 2.0, 2.0]
