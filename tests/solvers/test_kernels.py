"""Kernels: machine code and Python give the same bytes; code is kept; a damaged file counts as none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from weft import solvers
from weft.fabric.traffic import Phases, Routes, Traffic
from weft.simulation.flows.engine import Simulation, run
from weft.solvers import _jit
from weft.solvers._jit import Kernel


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a listener hears."""
    lines: list[str] = []
    monkeypatch.setattr(solvers, "listener", lines.append)
    monkeypatch.setattr(solvers, "heard", set())
    return lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where kernels are kept during the test."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    _jit.cache_folder.cache_clear()
    yield tmp_path
    _jit.cache_folder.cache_clear()


def twice(number: Any) -> Any:
    return 2 * number


inner = Kernel(twice)


def add(values: Any, number: int) -> Any:
    return values[0] + inner(number) + inner(1) + inner(2)


# Kernels --------------------------------------------------------------------------------------------


def test_a_kernel_is_kept_and_said_to_be_compiled_once(folder: Path, told: list[str]) -> None:
    assert Kernel(twice)(21) == 42
    assert told == [solvers.FOR_GOOD]
    solvers.heard.clear()
    again = Kernel(twice)
    assert again(4) == 8
    assert sum(again._compiled.stats.cache_hits.values()) == 1
    assert told == [solvers.FOR_GOOD], "nothing was compiled"
    assert str(folder) == numba.config.CACHE_DIR


@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
def test_damaged_files_are_made_anew(folder: Path, told: list[str], pattern: str) -> None:
    assert Kernel(twice)(21) == 42
    (path,) = folder.rglob(pattern)
    for bad in (b"", b"\0" * 5000, path.read_bytes()[: path.stat().st_size // 2]):
        path.write_bytes(bad)
        solvers.heard.clear()
        told.clear()
        assert Kernel(twice)(21) == 42
        assert told == [solvers.FOR_GOOD]
        again = Kernel(twice)
        assert again(21) == 42
        assert sum(again._compiled.stats.cache_hits.values()) == 1


def test_nothing_is_kept_where_nothing_can_be_written(
    folder: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*unused: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert Kernel(twice)(21) == 42
    assert Kernel(twice)(2.5) == 5.0
    assert told == [solvers.FOR_NOW]
    assert not list(folder.rglob("*.nbc"))


def test_a_full_disk_costs_the_file_alone(folder: Path, told: list[str]) -> None:
    kernel, calls = Kernel(twice), []

    def full(*arguments: object) -> None:
        calls.append(arguments)
        raise OSError(28, "No space left on device")

    kernel._compiled = full
    assert kernel(21) == 42
    assert calls == [(21,)]
    assert told == [solvers.NOT_KEPT.format(reason="No space left on device")]
    assert not list(folder.rglob("*.nbc"))


def test_a_kernel_is_kept_with_those_that_it_calls(folder: Path) -> None:
    outer = Kernel(add)
    assert outer(np.array([0.5]), 3) == outer.interpret(np.array([0.5]), 3) == 12.5
    assert len(list(folder.rglob("*.nbc"))) == 1
    assert inner(8) == 16, "Python may call it too"


def test_small_problems_are_interpreted_until_they_add_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "steps", 0)
    kernel = Kernel(twice)
    for _ in range(2):
        assert kernel.sized(_jit.MOST_STEPS // 2)(21) == 42
    assert "_compiled" not in vars(kernel)
    assert kernel.sized(1)(21) == 42
    assert "_compiled" in vars(kernel)
    monkeypatch.setattr(Kernel, "steps", 0)
    assert kernel.sized(1) is kernel, "what is compiled already stays so"


# Machine code and Python ----------------------------------------------------------------------------


def simulation(seed: int) -> Simulation:
    """A random network with phases, latencies, caps, weights and split flows."""
    dice = np.random.default_rng(seed)
    flows, links, phases = int(dice.integers(1, 25)), int(dice.integers(2, 12)), int(dice.integers(1, 4))
    even = seed % 2 == 0
    hops = dice.integers(1, min(4, links) + 1, flows)
    caps = np.where(dice.random(flows) < 0.3, dice.uniform(1e8, 1e9, flows), np.inf)
    traffic = Traffic(
        source=np.zeros(flows, dtype=np.int64),
        target=np.ones(flows, dtype=np.int64),
        bytes=dice.integers(0, 5, flows) * 1e6,
        phase=np.sort(dice.integers(0, phases, flows)),
        weight=np.ones(flows) if even else dice.uniform(0.5, 2.0, flows),
        cap_Bps=caps,
        phases=Phases(
            delay_s=np.full(phases, 1e-5),
            start_s=np.zeros(phases),
            indptr=np.concatenate([[0], np.arange(phases)]).astype(np.int64),
            waits=np.arange(phases - 1),
            label=np.zeros(0, dtype=np.int64),
            labels=(),
            job=np.zeros(0, dtype=np.int64),
        ),
    )
    routes = Routes(
        indptr=np.concatenate([[0], np.cumsum(hops)]).astype(np.int64),
        links=np.concatenate([dice.choice(links, count, replace=False) for count in hops]),
        usage=np.ones(hops.sum()) if even else dice.choice([0.5, 1.0], hops.sum()),
        latency_s=dice.choice([0.0, 1e-6], flows),
    )
    capacity = dice.uniform(1e8, 2e9, links)
    return run(capacity, traffic, routes, sample=seed % 3 == 0)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("seeds", [range(8), range(8, 30)], ids=["few", "more"])
def test_machine_code_and_python_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    for seed in seeds:
        answers = []
        for sized in (lambda kernel, steps: kernel.interpret, lambda kernel, steps: kernel):
            monkeypatch.setattr(Kernel, "sized", sized)
            answers.append(simulation(seed))
        python, machine = answers
        for name in ("completion_s", "begin_s", "phase_begin_s", "phase_end_s", "link_bytes", "bottleneck"):
            assert getattr(python, name).tobytes() == getattr(machine, name).tobytes(), (seed, name)
        assert (python.makespan_s, python.solutions) == (machine.makespan_s, machine.solutions)
        if python.rates is not None and machine.rates is not None:
            assert python.rates.rate_Bps.tobytes() == machine.rates.rate_Bps.tobytes()


COMMANDS = (
    "simulate llama-3.1-8b h100-64 --layout tp=8,pp=2",
    "simulate gpt2-124m a100-8 --layout dp=8",
    "schedule all-reduce 1MiB --cluster h100-64 --chunks 8",
)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_the_same_bytes_either_way(command: str) -> None:
    shown = []
    for limit in (0, 10**12):
        script = f"import weft.solvers._jit as j; j.MOST_STEPS = {limit}; from weft.commands.app import main; main()"
        words = [sys.executable, "-c", script, *command.split(), "--format", "json"]
        shown.append(subprocess.run(words, capture_output=True, check=True).stdout)
    assert shown[0] == shown[1]


# The program ----------------------------------------------------------------------------------------

COMMAND = ("schedule", "all-reduce", "1MiB", "--cluster", "h100-64")
Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start the program with its kernels in a folder of the test."""
    command = [sys.executable, "-c", "from weft.commands.app import main; main()", *COMMAND]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def started() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    return started


@pytest.mark.slow
def test_a_damaged_folder_of_kernels_is_made_anew(start: Start, tmp_path: Path) -> None:
    process = start()
    shown, said = process.communicate()
    assert (process.returncode, said) == (0, solvers.FOR_GOOD + "\n")
    for damage in (b"", os.urandom(3000)):
        kept = list(tmp_path.rglob("*.nb?"))
        assert kept
        for path in kept:
            path.write_bytes(damage)
        for expected in (solvers.FOR_GOOD + "\n", ""):
            process = start()
            assert process.communicate() == (shown, expected)
            assert process.returncode == 0
