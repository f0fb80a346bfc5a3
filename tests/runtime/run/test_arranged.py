"""Jobs of an arrangement that are trained: where their ranks are, when they begin, and what each of them sees."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
import weft.commands.app
from weft.arrangement.bundle import read_bundle
from weft.errors import BadInput
from weft.runtime.run.ranks import JobStart, environment
from weft.units import parse_moment

SITE = Path(__file__).parents[3] / "examples" / "two-jobs.toml"
COMMAND = [sys.executable, "-c", "from weft.commands.app import main; main()"]


def start(**given):
    usual = {
        "arrangement": "arranged.json",
        "job": "one",
        "hosts": ("a", "a", "b", "b"),
        "site_hosts": frozenset("abc"),
        "traffic_class": 0,
        "offset_s": 0.25,
        "period_s": 1.5,
        "start_at_s": 1000.0,
    }
    return JobStart(**(usual | given))


@given(st.floats(0.0, 2e9), st.floats(0.0, 2e9), st.floats(0.0, 100.0), st.floats(1e-3, 1e3))
def test_a_late_job_begins_whole_iterations_later(ready_s, start_at_s, offset_s, period_s):
    one = start(start_at_s=start_at_s, offset_s=offset_s, period_s=period_s)
    begins_s = one.begins_s(ready_s)
    first_s = start_at_s + offset_s
    assert begins_s >= max(first_s, ready_s) - 1e-5
    assert begins_s <= max(first_s, ready_s + period_s) + 1e-5
    iterations = (begins_s - first_s) / period_s
    assert abs(iterations - round(iterations)) * period_s < 1e-5


def test_jobs_begin_at_one_time_and_their_offsets():
    assert start().begins_s(0.0) == 1000.25
    assert start(offset_s=0.0).begins_s(1000.0) == 1000.0
    assert start(start_at_s=None).begins_s(5.0) == 5.0


def test_a_rank_on_another_host_of_the_site_is_refused(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "b.cluster")
    start().check_host(2)
    with pytest.raises(BadInput, match=r"rank 0 runs on b, but .* puts it on a"):
        start().check_host(0)
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop")
    start().check_host(0)


def test_settings_last_as_long_as_the_run(monkeypatch):
    monkeypatch.setenv("NCCL_IB_TC", "7")
    monkeypatch.delenv("NCCL_IB_SL", raising=False)
    with environment({"NCCL_IB_SL": "1", "NCCL_IB_TC": "32"}):
        assert (os.environ["NCCL_IB_SL"], os.environ["NCCL_IB_TC"]) == ("1", "7")
    assert "NCCL_IB_SL" not in os.environ


@pytest.fixture(scope="module")
def arranged(tmp_path_factory):
    path = tmp_path_factory.mktemp("arranged") / "arranged.json"
    weft.arrange(SITE).save(path)
    return path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tiny-gpt"], "already has a model"),
        (["--layout", "x=2"], "--layout is already in the arrangement"),
        (["--batch", "4"], "--batch is already in the arrangement"),
        (["--job", "third"], "unknown job 'third'"),
        (["--start-at", "soon"], "'soon' is not a quantity"),
    ],
)
def test_what_the_arrangement_has_is_not_asked_for(arranged_site, tmp_path, monkeypatch, capsys, words, told):
    path = tmp_path / "arranged.json"
    path.write_text(arranged_site.to_json())
    job = [] if "--job" in words else ["--job", "running"]
    monkeypatch.setattr("sys.argv", ["weft", "train", "--arrangement", str(path), *job, *words])
    with pytest.raises(SystemExit) as stop:
        weft.commands.app.main()
    assert stop.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_two_jobs_begin_from_one_arrangement_where_and_when_it_says(arranged, tmp_path):
    """Both run beside each other on this machine; what every rank saw is what the file has."""
    document, bundle = json.loads(arranged.read_text()), read_bundle(arranged)
    assert document["router"] == "planned"
    assert max(row["offset_s"] for row in document["jobs"]) > 0
    at = f"{time.time():.3f}"
    running = {}
    for row in document["jobs"]:
        words = ["train", "--arrangement", str(arranged), "--job", row["name"], "--start-at", at, "--steps", "3"]
        running[row["name"]] = subprocess.Popen(
            [*COMMAND, *words, "--out", str(tmp_path / row["name"])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    told = {name: process.communicate(timeout=900) for name, process in running.items()}
    for number, row in enumerate(document["jobs"]):
        assert running[row["name"]].returncode == 0, told[row["name"]]
        seen = json.loads((tmp_path / row["name"] / "arranged.json").read_text())["ranks"]
        assert [one["rank"] for one in seen] == list(range(len(seen)))
        assert len({one["process"] for one in seen}) == len(seen)
        assert [one["host"] for one in seen] == row["slurm"]["SLURM_HOSTFILE"].split()
        assert {(one["offset_s"], one["class"]) for one in seen} == {(row["offset_s"], row["class"])}
        assert all(one["settings"] == bundle.settings(number) for one in seen)
        routes = [flow for flow in document["routes"]["flows"] if flow["job"] == row["name"]]
        found = [flow for one in seen for flow in one["routes"]]
        assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, routes))
        assert routes
        begins = {one["begins_s"] for one in seen}
        assert len(begins) == 1
        iterations = (begins.pop() - parse_moment(at) - row["offset_s"]) / row["iteration_s"]
        assert iterations == pytest.approx(round(iterations), abs=1e-4)
        assert all(one["began_s"] >= one["begins_s"] for one in seen)
        metrics = (tmp_path / row["name"] / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in metrics] == [1, 2, 3]
