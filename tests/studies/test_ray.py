"""Sweeps on a real Ray cluster of several node processes on this machine, one of which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.errors import BadInput
from weft.studies.runners import RayRunner, runner

HERE = Path(__file__).parent
SCRIPT = """
import sys, json
import trivial
from weft.files import write_text
from weft.studies.kept import Kept
from weft.studies.points import Points
from weft.studies.result import Sweep
from weft.studies.run import Run
from weft.studies.runners import runner
from weft.studies.study import study_from_dict
if __name__ == "__main__":
    workers, state, out = sys.argv[1:]
    document = {"schema": "weft.study/1", "compute": "slow", "axes": {"a": list(range(1, 201)), "b": [1, 2, 3]}}
    points = Points(study_from_dict(document, trivial.computation))
    run = Run(points=points, kept=Kept(state), compute="trivial:compute")
    chosen = runner(workers)
    try:
        run.go(chosen)
    finally:
        chosen.close()
    write_text(out, json.dumps(Sweep(run.points, run.kept, run.keys, run.counts).to_dicts()))
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def swept(folder: Path, workers: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
    folder.mkdir(exist_ok=True)
    script, out = folder / "script.py", folder / "out.json"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), workers, str(folder / "state"), str(out)]
    return subprocess.Popen(command, env=os.environ | environment), out


def done(begun: tuple[subprocess.Popen[bytes], Path]) -> bytes:
    assert begun[0].wait(timeout=240) == 0
    return begun[1].read_bytes()


def kept(folder: Path) -> int:
    """Lines of the log of what was computed."""
    log = folder / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_is_killed_and_the_bytes_are_the_same(tmp_path: Path, cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    here = done(swept(tmp_path / "here", "1"))
    before = kept(tmp_path)
    assert before == 600
    begun = swept(tmp_path / "ray", "ray", RAY_ADDRESS=cluster.address)
    until = time.monotonic() + 120
    while kept(tmp_path) < before + 100 and time.monotonic() < until:
        time.sleep(0.05)
    assert begun[0].poll() is None, "the sweep ended before a node could be killed"
    cluster.remove_node(nodes[0], allow_graceful=False)
    assert done(begun) == here
    assert 600 <= kept(tmp_path) - before < 800
    assert len(json.loads(here)) == 600


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_whole_cluster_dies_and_the_next_run_goes_on(tmp_path: Path, cluster: Any) -> None:
    begun = swept(tmp_path / "ray", "ray", RAY_ADDRESS=cluster.address)
    until = time.monotonic() + 120
    while kept(tmp_path) < 100 and time.monotonic() < until:
        time.sleep(0.05)
    begun[0].kill()
    begun[0].wait()
    before = kept(tmp_path)
    again = done(swept(tmp_path / "ray", "2"))
    assert kept(tmp_path) - before < 600
    assert again == done(swept(tmp_path / "here", "1"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_cluster_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(BadInput, match="no Ray cluster answers"):
        runner("ray")
    with pytest.raises(BadInput, match="no Ray cluster answers"):
        RayRunner("ray://127.0.0.1:1")
