"""What the tests of studies share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _trivial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let this process and its workers find ``trivial``, which counts what is computed."""
    # Workers have the environment that their fork server began with: that of an earlier test, if one goes on.
    vars(forkserver)["_forkserver"]._stop()
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("TRIVIAL_LOG", str(tmp_path / "log"))
    yield
    sys.modules.pop("trivial", None)
