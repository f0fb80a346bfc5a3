"""Kernels are compiled once, kept whole or not at all, and a damaged or stale file counts as none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.solvers import _kept, compiling
from weft.solvers._jit import Kernel
from weft.solvers._kept import SealedFiles

KEY = ((numba.types.int64,), ("x86_64", "some-cpu"), ("code", "cells"))
DATA = {"machine": b"code", "names": ["a", "b"]}


def files(folder: Path) -> SealedFiles:
    return SealedFiles(str(folder), "module.kernel-1.py3", ("1.0", ("_module.py", 1, 2)))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a listener hears."""
    lines: list[str] = []
    monkeypatch.setattr(compiling, "listener", lines.append)
    monkeypatch.setattr(compiling, "heard", set())
    return lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where kernels are kept during the test."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def twice(number: Any) -> Any:
    return 2 * number


# The files ----------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    assert files(tmp_path).load(KEY) is None
    files(tmp_path).save(KEY, DATA)
    assert files(tmp_path).load(KEY) == DATA
    assert [path.suffix for path in tmp_path.iterdir()] == [".nbc"], "no draft stays"
    files(tmp_path).flush()
    assert not list(tmp_path.iterdir())


@given(st.data())
def test_damage_is_seen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    files(folder).save(KEY, DATA)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[cut] ^= data.draw(st.integers(1, 255))
    for bad in (whole[:cut], bytes(changed), data.draw(st.binary(max_size=200))):
        path.write_bytes(bad)
        assert files(folder).load(KEY) is None
    files(folder).save(KEY, DATA)
    assert files(folder).load(KEY) == DATA


def test_data_of_other_sources_types_and_machines_count_as_none(tmp_path: Path) -> None:
    kept = files(tmp_path)
    kept.save(KEY, DATA)
    assert SealedFiles(str(tmp_path), kept.name, ("1.1", ("_module.py", 1, 2))).load(KEY) is None
    others = [((numba.types.float64,), *KEY[1:]), (KEY[0], ("x86_64", "other"), KEY[2]), (*KEY[:2], ("new", "cells"))]
    for other in others:
        kept.path(other).write_bytes(kept.path(KEY).read_bytes())
        assert kept.load(other) is None


def test_a_name_that_is_a_folder_counts_as_none(tmp_path: Path) -> None:
    files(tmp_path).path(KEY).mkdir()
    assert files(tmp_path).load(KEY) is None
    with pytest.raises(IsADirectoryError):
        files(tmp_path).save(KEY, DATA)
    assert len(list(tmp_path.iterdir())) == 1, "no draft stays"


# Kernels --------------------------------------------------------------------------------------------


def test_a_kernel_is_kept_and_said_to_be_compiled_once(folder: Path, told: list[str]) -> None:
    assert Kernel(twice)(21) == 42
    assert told == [compiling.FOR_GOOD]
    (path,) = folder.rglob("*.nbc")
    compiling.heard.clear()
    again = Kernel(twice)
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1
    assert told == [compiling.FOR_GOOD], "nothing was compiled"
    for bad in (b"", os.urandom(5000), path.read_bytes()[:-1]):
        path.write_bytes(bad)
        compiling.heard.clear()
        told.clear()
        assert Kernel(twice)(21) == 42
        assert told == [compiling.FOR_GOOD]
        assert len(list(folder.rglob("*.nbc"))) == 1


def test_nothing_is_kept_where_nothing_can_be_written(
    folder: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*unused: object) -> None:
        raise RuntimeError("no locator available")

    monkeypatch.setattr(_kept, "_Kept", refuse)
    assert Kernel(twice)(21) == 42
    assert Kernel(twice)(2.5) == 5.0
    assert told == [compiling.FOR_NOW]
    assert not list(folder.rglob("*.nbc"))


def test_a_full_disk_costs_the_file_alone(folder: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*unused: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SealedFiles, "save", full)
    assert Kernel(twice)(21) == 42
    assert told == [compiling.FOR_GOOD, compiling.NOT_KEPT.format(reason="No space left on device")]


def test_kernels_that_kernels_call_share_one_part(folder: Path) -> None:
    inner = Kernel(twice)

    def add(values: Any, number: int) -> Any:
        return values[0] + inner(number) + inner(1) + inner(2)

    outer = Kernel(add)
    assert outer(np.array([0.5]), 3) == 12.5
    assert len(inner._part.overloads) == 1
    assert not inner.overloads
    assert len(list(folder.rglob("*.nbc"))) == 1
    assert inner(8) == 16, "Python may call it too"


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
    assert (process.returncode, said) == (0, compiling.FOR_GOOD + "\n")
    for damage in (b"", os.urandom(3000)):
        kept = list(tmp_path.rglob("*.nbc"))
        assert kept
        for path in kept:
            path.write_bytes(damage)
            path.with_suffix(".nbi").write_bytes(damage)
        for expected in (compiling.FOR_GOOD + "\n", ""):
            process = start()
            assert process.communicate() == (shown, expected)
            assert process.returncode == 0


@pytest.mark.slow
def test_processes_that_compile_at_once_agree(start: Start) -> None:
    both = [start(), start()]
    found = [process.communicate() for process in both]
    assert found[0] == found[1]
    last = start()
    assert last.communicate() == (found[0][0], "")
    assert [process.returncode for process in (*both, last)] == [0, 0, 0]
