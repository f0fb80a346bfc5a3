"""What all benchmarks share: one thread, the options, CPU seconds, and the record of the figures.

``python benchmarks/NAME.py`` prints its figures and writes them to ``benchmarks/results/NAME.json`` with commit,
machine, date and command; README and docs quote them from there (``tests/test_docs.py``).  ``--tiny`` runs a case of
seconds and writes nothing, unless ``--output`` names a folder.  Import this module before numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "numba", "highspy", "torch")
_LOAD = os.getloadavg()[0]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark; ``doc`` is the docstring of the script."""
    made = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    made.add_argument("--tiny", action="store_true", help="a case of seconds, to see that the script runs")
    made.add_argument("--output", type=Path, help="folder of the record (default: benchmarks/results)")
    return made


def record(options: argparse.Namespace, figures: Mapping[str, float | str], given: str = "") -> None:
    """Write the figures of the running script; ``given`` says which data it had that the tree does not hold."""
    folder = options.output or (None if options.tiny else RESULTS)
    if folder is None:
        return
    name = Path(sys.argv[0]).stem
    made = {
        "benchmark": name,
        "command": f"python benchmarks/{name}.py",
        "data": given,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(),
        "versions": {"python": platform.python_version()} | _versions(),
        "figures": {key: _rounded(value) for key, value in figures.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def cpu_s(action: Callable[[], object], repeat: int = 1) -> float:
    """CPU seconds of this process for a call, the least of some: what else runs on the machine counts little."""
    found = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        action()
        found = min(found, time.process_time() - begin)
    return found


def peak_GB() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _rounded(value: float | str) -> float | str:
    """Six digits: more are of no use, and make differences hard to read."""
    return value if isinstance(value, str | int) else float(f"{value:.6g}")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parents[1]), *words], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _commit() -> str:
    """The commit of this tree, with a plus where sources have changed since."""
    changed = _git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return (_git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else "")


def _machine() -> dict[str, float | str]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.system(),
        "load_at_start": round(_LOAD, 1),
    }


def _processor() -> str:
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
