"""Every benchmark runs in its tiny form and records figures; README quotes only such figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_tiny_form_records_figures(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(script), "--tiny", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / f"{script.stem}.json").read_text(encoding="utf-8"))
    assert record["figures"]
    assert all(isinstance(value, int | float) for value in record["figures"].values())


def test_every_record_has_its_script() -> None:
    made = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert made <= {path.stem for path in SCRIPTS}
