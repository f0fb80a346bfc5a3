"""What the tests of studies share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LOG_HERE = "trivial-log"
"""Name of a place on the search path, beside which ``trivial`` keeps its log."""


@pytest.fixture(autouse=True)
def _trivial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let this process and its workers find ``trivial``, which counts what is computed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("TRIVIAL_LOG", str(tmp_path / "log"))
    # Workers have the environment of their fork server, which an earlier test may have begun, but this search path.
    monkeypatch.syspath_prepend(str(tmp_path / LOG_HERE))
    yield
    sys.modules.pop("trivial", None)
