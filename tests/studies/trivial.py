"""Computations for tests of the machinery, found by their names in worker processes.

As a script (``WORKERS STATE OUT POINTS``) it sweeps points of ``slow`` and writes their rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.errors import BadInput
from weft.files import write_text
from weft.studies.result import Sweep
from weft.studies.run import StudyRun, StudyState
from weft.studies.runners import Runner, runner
from weft.studies.study import AxisKind, Computation, Points, study_from_dict
from weft.units import parse_whole


def compute(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A figure of two numbers: it fails, waits or dies where the numbers say so."""
    a, b = values["a"], values.get("b", 0)
    if log := log_path():
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{a} {b}\n")
    if name == "slow":
        time.sleep(0.02)
    if name == "deadly" and a == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "fails" and a % 3 == 2:
        raise BadInput(f"{a} is odd", where="a", remedy="take another")
    if name == "bug" and a == 1:
        raise ZeroDivisionError("a bug")
    return {"sum": a + b, "ratio": a / (b + 1), "text": f"={a}", "big": a > 2}


def log_path() -> str | None:
    """Where to count: beside the place on the search path that the tests put there, or as the environment says."""
    here = next((place for place in sys.path if Path(place).name == "trivial-log"), None)
    return str(Path(here).with_name("log")) if here else os.environ.get("TRIVIAL_LOG")


def computation(name: str, where: str = "compute") -> Computation:
    kind = {axis: AxisKind(axis, parse_whole) for axis in ("a", "b", "c")}
    return Computation(name=name, axes=kind, needed=("a",))


def counted(log: Path) -> int:
    return len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0


def swept(points: int, state: StudyState, chosen: Runner) -> str:
    """The rows of three times as many ``slow`` points, as JSON."""
    axes = {"a": list(range(1, points + 1)), "b": [1, 2, 3]}
    study = study_from_dict({"schema": "weft.study/1", "compute": "slow", "axes": axes}, computation)
    run = StudyRun(points=Points(study), kept=state, compute="trivial:compute")
    run.go(chosen)
    return json.dumps(Sweep(run.points, run.kept, run.keys, run.counts).to_dicts())


if __name__ == "__main__":
    own = runner(sys.argv[1])
    try:
        rows = swept(int(sys.argv[4]), StudyState(sys.argv[2]), own)
    finally:
        own.close()
    write_text(sys.argv[3], rows)
