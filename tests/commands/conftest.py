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
