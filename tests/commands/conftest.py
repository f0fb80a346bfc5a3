"""The program, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest

from weft.commands.app import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def weft(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program with arguments: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        with patch.object(sys, "argv", ["weft", *arguments]):
            try:
                main()
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def refused(weft: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs what is refused: exit code 2 and one line, which is returned; where the call is wrong, below the usage."""

    def run(*arguments: str) -> str:
        code, out, err = weft(*arguments)
        assert (code, out) == (2, ""), err
        usage, error, problem = err.partition("Error: ")
        assert usage.startswith("Usage: ") or (not usage and problem.count("\n") == 1)
        return error + problem

    return run
