"""Every command has a kept answer.  ``python tools/goldens.py`` compares them, to the last digit, before and after a
change on one machine; another machine may add up in another order."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("goldens", Path(__file__).parents[1] / "tools" / "goldens.py")
assert SPEC is not None
assert SPEC.loader is not None
goldens = sys.modules["goldens"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(goldens)
KNOWN = goldens.goldens()


def test_every_command_has_a_golden() -> None:
    assert goldens.uncovered() == []
    assert {path.stem for path in goldens.GOLDENS.glob("*.txt")} == set(KNOWN)
