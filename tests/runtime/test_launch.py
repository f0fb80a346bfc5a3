"""Ranks started here or by torchrun: what they get, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from weft.errors import BadInput, NothingFeasible, UnknownName  # noqa: E402
from weft.runtime.launch import cores, default_device, run_ranks  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch):
    """The workers, importable by started processes too; no launcher around the test."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(HERE))
    import ranks_at_work

    return ranks_at_work


def test_every_rank_runs_in_its_group(work, tmp_path: Path) -> None:
    run_ranks(work.add_up, (str(tmp_path),), 2)
    lines = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    threads = str(max(1, cores() // 2))
    assert [line[:2] for line in lines] == [["2", threads]] * 2
    assert len({str(os.getpid()), *(line[2] for line in lines)}) == 3


def test_one_rank_runs_here_without_a_group(work, tmp_path: Path) -> None:
    run_ranks(work.add_up, (str(tmp_path),), 1)
    assert (tmp_path / "0").read_text().split()[::2] == ["1", str(os.getpid())]


def test_the_errors_of_ranks_are_for_people(work) -> None:
    with pytest.raises(BadInput) as refused:
        run_ranks(work.refuse, (1,), 2)
    assert str(refused.value) == "step 3: the loss is negative -- look at the data"


@pytest.mark.slow
def test_an_empty_search_keeps_its_exit_code(work) -> None:
    with pytest.raises(NothingFeasible, match="nothing fits"):
        run_ranks(work.find_nothing, (), 2)


def test_bugs_keep_their_traceback(work) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)rank 1 failed:.*in stumble.*ZeroDivisionError: a bug"):
        run_ranks(work.stumble, (1,), 2)


def test_a_killed_rank_ends_the_others(work) -> None:
    with pytest.raises(BadInput, match="rank 0 was killed"):
        run_ranks(work.run_out_of_memory, (), 2)


def test_what_the_machine_has_not_is_refused(work) -> None:
    with pytest.raises(BadInput, match="ranks are too many for"):
        run_ranks(work.find_nothing, (), 100_000)
    with pytest.raises(UnknownName, match="device"):
        run_ranks(work.find_nothing, (), 2, "gpu")
    if not torch.cuda.is_available():
        assert default_device(1) == "cpu"
        with pytest.raises(BadInput, match="PyTorch sees 0"):
            run_ranks(work.find_nothing, (), 2, "cuda")


def test_a_launcher_with_another_number_of_ranks_is_refused(work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(BadInput, match="4 ranks were launched, but 2 are needed"):
        run_ranks(work.find_nothing, (), 2)
    monkeypatch.setenv("WORLD_SIZE", "four")
    with pytest.raises(BadInput, match="'four' is no number"):
        run_ranks(work.find_nothing, (), 2)


def test_launched_ranks_run_in_their_own_processes(work, tmp_path: Path) -> None:
    code = "import sys, ranks_at_work as w; from weft.runtime.launch import run_ranks"
    code += "; run_ranks(w.add_up, (sys.argv[1],), 2)"
    base = os.environ | {"PYTHONPATH": str(HERE), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
            env=base | {"RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    ends = [(one.communicate(timeout=60)[1], one.returncode, one.pid) for one in started]
    assert [end[:2] for end in ends] == [("", 0)] * 2
    for rank, end in enumerate(ends):
        assert (tmp_path / str(rank)).read_text() == f"2 1 {end[2]}"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("how", ["Ctrl-C", pytest.param("killed", marks=pytest.mark.slow)])
def test_no_rank_outlives_the_start(work, tmp_path: Path, how: str) -> None:
    """Ctrl-C reaches the whole group as from a terminal; a parent that is killed cannot tell its ranks."""
    script = tmp_path / "start.py"
    script.write_text(
        "import ranks_at_work as w\nfrom weft.runtime.launch import run_ranks\n"
        f"if __name__ == '__main__':\n    run_ranks(w.wait_long, ({str(tmp_path)!r},), 2)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ranks = [_number_in(tmp_path / str(rank)) for rank in range(2)]
        if how == "Ctrl-C":
            os.killpg(parent.pid, signal.SIGINT)
        else:
            parent.kill()
        _, said = parent.communicate(timeout=60)
        _wait_until(lambda: not any(_runs(rank) for rank in ranks))
        assert said.count("Traceback") == (1 if how == "Ctrl-C" else 0)
    finally:
        parent.kill()


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _number_in(path: Path) -> int:
    _wait_until(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


def _runs(process: int) -> bool:
    """Whether a process is there and has not ended (one that nobody waits for stays as a zombie)."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def _wait_until(true) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
