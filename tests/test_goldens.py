"""Commands answer what they answered: ``tools/goldens.py`` on the texts in ``tests/goldens``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("goldens", Path(__file__).parents[1] / "tools" / "goldens.py")
assert SPEC is not None
assert SPEC.loader is not None
goldens = sys.modules["goldens"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(goldens)
KNOWN = goldens.goldens()


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """What all commands answer now."""
    return goldens.answers(list(KNOWN.values()))


def test_every_command_has_a_golden() -> None:
    assert goldens.uncovered() == []
    assert {path.stem for path in goldens.GOLDENS.glob("*.txt")} == set(KNOWN)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_commands_answer_what_they_answered(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == goldens.kept(name)
