"""Ranks started here or by torchrun: what they get, and how they end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from weft.errors import BadInput, NothingFeasible, UnknownName, WeftError
from weft.layout.spec import Layout
from weft.runtime.run.ranks import VISIBLE, cores, default_device, run_ranks

HERE = Path(__file__).parents[1]
PATIENCE_S = 300
"""Started programs end in seconds, but machines are shared."""


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch):
    """The workers, importable by started processes too; no launcher around the test."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(HERE))
    import ranks_at_work

    return ranks_at_work


@pytest.mark.slow
def test_every_rank_runs_in_its_group(work, tmp_path: Path) -> None:
    run_ranks(work.add_up, (str(tmp_path),), 2)
    lines = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    threads = str(max(1, cores() // 2))
    assert [line[:2] for line in lines] == [["2", threads]] * 2
    assert len({str(os.getpid()), *(line[2] for line in lines)}) == 3


def test_one_rank_runs_here_without_a_group(work, tmp_path: Path) -> None:
    run_ranks(work.add_up, (str(tmp_path),), 1)
    assert (tmp_path / "0").read_text().split()[::2] == ["1", str(os.getpid())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worker", "arguments", "error", "match", "exit_code"),
    [
        ("refuse", (1,), BadInput, "^step 3: the loss is negative -- look at the data$", 2),
        ("find_nothing", (), NothingFeasible, "nothing fits", 3),
        ("differ", (), WeftError, "not equal", 1),
        ("print_to_nobody", (1,), BrokenPipeError, os.strerror(errno.EPIPE), None),
        ("stumble", (1,), RuntimeError, r"(?s)rank 1 failed:.*in stumble.*ZeroDivisionError: a bug", None),
    ],
)
def test_what_a_rank_raises_is_raised_here(work, worker, arguments, error, match, exit_code) -> None:
    """Expected errors in their own words and with their exit code, bugs with their traceback."""
    with pytest.raises(error, match=match) as raised:
        run_ranks(getattr(work, worker), arguments, 2)
    assert getattr(raised.value, "exit_code", None) == exit_code


@pytest.mark.parametrize("by", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_others(work, by: signal.Signals) -> None:
    """Its exit code is a shell's for the signal, not that of bad input."""
    with pytest.raises(WeftError, match=f"rank 0 was killed by {by.name}") as killed:
        run_ranks(work.die, (by,), 2)
    assert (killed.value.exit_code, killed.value.temporary) == (128 + by, True)
    assert ("memory" in str(killed.value)) == (by == signal.SIGKILL)


def test_what_the_machine_has_not_is_refused(work) -> None:
    with pytest.raises(BadInput, match="ranks are too many for"):
        run_ranks(work.find_nothing, (), 100_000)
    with pytest.raises(UnknownName, match="device"):
        run_ranks(work.find_nothing, (), 2, "gpu")
    if not torch.cuda.is_available():
        assert default_device(1) == "cpu"
        with pytest.raises(BadInput, match="PyTorch sees 0"):
            run_ranks(work.find_nothing, (), 2, "cuda")


@pytest.fixture
def joined(work, monkeypatch: pytest.MonkeyPatch):
    """Rank 3 of 4 of one machine with one GPU to see; the devices that it takes."""
    devices: list[torch.device] = []
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "first"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda *_, **named: devices.append(named["device_id"])
    )
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    return devices


@pytest.mark.parametrize(
    ("visible", "seen", "taken"), [("3", 1, 0), ("0,1,2,3", 4, 3)], ids=["bound by the launcher", "all seen"]
)
def test_the_gpu_of_a_rank(joined, monkeypatch: pytest.MonkeyPatch, visible: str, seen: int, taken: int) -> None:
    """``srun --gpus-per-task=1`` makes one visible, which has the number 0; else it is that of the local rank."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    assert default_device(4) == "cuda"
    run_ranks(lambda: None, (), 4, "cuda")
    assert joined == [torch.device("cuda", taken)] * 2


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    ("layout", "device", "ordered"),
    [
        (Layout(x=4), "cuda", "1"),
        (Layout(y=2, z=2), "cuda", None),
        (Layout(x=2, data=2), "cuda", None),
        (Layout(z=4), "cuda", None),
        (Layout(x=4), "cpu", None),
    ],
    ids=["x", "y z", "x data", "z", "cpu"],
)
def test_kernels_start_in_order_where_tensor_axes_are_alone(joined, monkeypatch, layout, device, ordered) -> None:
    """With z or data, gathers and products would wait for each other.  What the user set stays."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    seen: list[str | None] = []
    for _ in range(2):
        run_ranks(lambda: seen.append(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")), (), 4, device, layout=layout)
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert seen == [ordered, "8"]


def test_one_gpu_of_a_machine_is_not_shared_by_its_ranks(joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert default_device(4) == "cpu"
    with pytest.raises(BadInput, match="4 ranks on this machine need as many GPUs, but PyTorch sees 1"):
        run_ranks(lambda: None, (), 4, "cuda")
    assert not joined


def test_a_launcher_with_another_number_of_ranks_is_refused(work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(BadInput, match="4 ranks were launched, but 2 are needed"):
        run_ranks(work.find_nothing, (), 2)
    monkeypatch.setenv("WORLD_SIZE", "four")
    with pytest.raises(BadInput, match="'four' is not a number"):
        run_ranks(work.find_nothing, (), 2)


@pytest.mark.slow
def test_one_launched_rank_says_what_all_meet(work, tmp_path: Path) -> None:
    ends = _launched("run_ranks(w.find_nothing, (), 2)", tmp_path)
    assert sorted("nothing fits" in end[0] for end in ends) == [False, True]
    assert sorted(end[1] for end in ends) == [1, 3]


def _launched(call: str, folder: Path) -> list[tuple[str, int, int]]:
    """What each of two launched ranks says on stderr, its exit code and its process."""
    code = f"import sys, ranks_at_work as w; from weft.runtime.run.ranks import run_ranks; {call}"
    base = os.environ | {"PYTHONPATH": str(HERE), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(folder)],
            env=base | {"RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    return [(one.communicate(timeout=PATIENCE_S)[1], one.returncode, one.pid) for one in started]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    "how", ["Ctrl-C", *(pytest.param(how, marks=pytest.mark.slow) for how in ("ended", "killed"))]
)
def test_no_rank_outlives_the_start(work, tmp_path: Path, how: str) -> None:
    """Ctrl-C reaches the whole group as from a terminal; a parent that is killed cannot tell its ranks."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    parent = _parent(tmp_path, temporary)
    try:
        ranks = [_number_in(tmp_path / str(rank)) for rank in range(2)]
        assert len(list(temporary.glob("weft-*"))) == 1
        if how == "Ctrl-C":
            os.killpg(parent.pid, signal.SIGINT)
        else:
            parent.send_signal(signal.SIGTERM if how == "ended" else signal.SIGKILL)
        _, said = parent.communicate(timeout=PATIENCE_S)
        _wait_until(lambda: not any(_runs(rank) for rank in ranks))
        assert said.count("Traceback") == (1 if how == "Ctrl-C" else 0)
        if how == "ended":
            assert parent.returncode == 128 + signal.SIGTERM
        assert how == "killed" or not list(temporary.glob("weft-*"))
    finally:
        parent.kill()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_while_ranks_are_started_is_not_lost(work, tmp_path: Path) -> None:
    parent = _parent(tmp_path, tmp_path, before="os.kill(os.getpid(), signal.SIGINT)")
    try:
        _, said = parent.communicate(timeout=PATIENCE_S)
        assert said.count("Traceback") == 1
        assert "KeyboardInterrupt" in said
        assert not (tmp_path / "0").exists()
    finally:
        parent.kill()


def _parent(folder: Path, temporary: Path, before: str = "pass") -> subprocess.Popen[str]:
    """A process that starts two ranks which wait, and runs ``before`` as it starts each."""
    script = folder / "start.py"
    script.write_text(
        "import multiprocessing, os, signal\nimport ranks_at_work as w\nfrom weft.runtime.run.ranks import run_ranks\n"
        "if __name__ == '__main__':\n"
        "    begin = multiprocessing.get_context\n"
        "    def begin_after(*more):\n"
        f"        {before}\n"
        "        return begin(*more)\n"
        "    multiprocessing.get_context = begin_after\n"
        f"    run_ranks(w.wait_long, ({str(folder)!r},), 2)\n"
    )
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(HERE), "TMPDIR": str(temporary)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
