"""Sweeps on a real Ray cluster of several node processes on this machine, one of which is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from weft.errors import BadInput
from weft.studies.run import StudyState
from weft.studies.runners import RayRunner, Runner, runner

HERE = Path(__file__).parent
KILLS = 20


@pytest.fixture
def port() -> int:
    """One that nobody has, for the cluster's client server."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, port: int) -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


def swept(folder: Path, workers: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
    folder.mkdir(exist_ok=True)
    out = folder / "out.json"
    command = [sys.executable, str(HERE / "trivial.py"), workers, str(folder / "state"), str(out), "200"]
    return subprocess.Popen(command, env=os.environ | environment), out


def done(begun: tuple[subprocess.Popen[bytes], Path]) -> bytes:
    assert begun[0].wait(timeout=240) == 0
    return begun[1].read_bytes()


def kept(folder: Path) -> int:
    """Lines of the log of what was computed."""
    log = folder / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def bytes_of(folder: Path, chosen: Runner) -> bytes:
    """A sweep of 300 points in this process."""
    import trivial

    with closing(StudyState(folder)) as state:
        return trivial.swept(100, state, chosen).encode()


def kill(node: Any, log: Path, lines: int) -> None:
    """SIGKILL the raylet of a node and its workers when the log has so many lines, as a machine that loses power."""
    until = time.monotonic() + 120
    while kept(log) < lines and time.monotonic() < until:
        time.sleep(0.005)
    raylet = node.all_processes["raylet"][0].process.pid
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(raylet)], stdout=subprocess.PIPE, check=False, text=True)
    for one in [raylet, *map(int, found.stdout.split())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nodes_killed_at_random_change_no_byte(tmp_path: Path, cluster: Any) -> None:
    """One cluster and one connection; each sweep loses a node at a random point, and a new node comes."""
    import ray

    here, chance = bytes_of(tmp_path / "here", runner("1")), random.Random(0)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    again = 0
    try:
        for number in range(KILLS):
            before, victim = kept(tmp_path), nodes.pop(chance.randrange(2))
            lines = before + chance.randrange(1, 280)
            killer = threading.Thread(target=kill, args=(victim, tmp_path, lines))
            killer.start()
            chosen = runner("ray")
            assert chosen.workers == 3
            assert bytes_of(tmp_path / f"ray-{number}", chosen) == here
            chosen.close()
            killer.join()
            again += kept(tmp_path) - before - 300
            cluster.remove_node(victim, allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))
            cluster.wait_for_nodes()
    finally:
        ray.shutdown()
    assert again > 0, "no kill cost a point"
    print(f"{KILLS} kills, {len(here)} bytes each time, {again} of {KILLS * 300} points computed twice")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_is_reached_through_its_client_server(
    tmp_path: Path, cluster: Any, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    here = done(swept(tmp_path / "here", "1"))
    assert kept(tmp_path) == 600
    assert done(swept(tmp_path / "ray", f"ray://127.0.0.1:{port}")) == here
    assert kept(tmp_path) == 1200


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
