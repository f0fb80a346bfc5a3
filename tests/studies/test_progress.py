"""How far a study is, for those who cannot read its state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import weft
from weft.errors import BadInput
from weft.states import in_use
from weft.studies.kept import FILE, Kept
from weft.studies.progress import Progress, read_progress
from weft.verbs.sweep import open_sweep

AXES = {"model": "gpt2-124m", "cluster": "a100-8", "layout": "dp=8", "batch": [8, 16, 24]}
DIES = """
import os, signal, sys
from weft.studies.kept import Kept
kept = Kept(sys.argv[1], {"study": "killed"})
kept.note("last", "something")
print("there", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def swept(folder: Path, **axes: object) -> None:
    weft.sweep({"name": "p", "compute": "estimate", "axes": AXES | axes}, state=str(folder), workers=1).close()


def test_a_run_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.studies.run.TOLD_S", 0.0)
    monkeypatch.setattr("weft.studies.run.LARGEST_BATCH", 1)
    told = []

    def look(counts: object) -> None:
        told.append(read_progress(tmp_path))

    study = {"name": "p", "compute": "estimate", "axes": AXES}
    weft.sweep(study, state=str(tmp_path), workers=1, progress=look).close()
    told.append(read_progress(tmp_path))
    assert [(one.known, one.left) for one in told] == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert told[-1] == Progress(study="p", compute="estimate", points=3, known=3, left=0)
    assert set(asdict(told[-1])) == {"study", "compute", "points", "known", "left"}


def test_another_study_in_the_folder_is_told_of(tmp_path: Path) -> None:
    swept(tmp_path)
    swept(tmp_path, batch=[8])
    assert (read_progress(tmp_path).points, read_progress(tmp_path).left) == (1, 0)
    with open_sweep(tmp_path) as found:
        assert (found.counts.points, found.counts.known, found.counts.left) == (1, 1, 0)


def test_what_a_state_lacks_is_counted(tmp_path: Path) -> None:
    swept(tmp_path)
    kept = Kept(tmp_path)
    with kept._state.transaction() as base:
        base.execute("delete from results where key = (select min(key) from results)")
    kept.close()
    with open_sweep(tmp_path) as found:
        assert (found.counts.known, found.counts.left, len(list(found.rows()))) == (2, 1, 2)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a process is stopped")
def test_a_state_is_in_use_as_long_as_its_process_lives(tmp_path: Path) -> None:
    assert not in_use(tmp_path / FILE)
    with subprocess.Popen([sys.executable, "-c", DIES, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert in_use(tmp_path / FILE)
        before = {one.name: one.stat().st_size for one in tmp_path.iterdir()}
        assert in_use(tmp_path / FILE)
        assert {one.name: one.stat().st_size for one in tmp_path.iterdir()} == before
        os.kill(process.pid, signal.SIGKILL)
    assert not in_use(tmp_path / FILE)
    kept = Kept(tmp_path)
    assert kept.noted("last") == "something"
    kept.close()
    assert not in_use(tmp_path / FILE)


@pytest.mark.parametrize("text", ["", "[]", '{"study": "p"}', '{"study": "p", "points": -1}'])
def test_what_is_no_progress_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress.json").write_text(text)
    with pytest.raises(BadInput):
        read_progress(tmp_path)
