"""Commands answer what they answered: ``tools/goldens.py`` on the texts in ``tests/goldens``."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from weft.cli.app import cli

ROOT = Path(__file__).parent.parent
GOLDENS = ROOT / "tests" / "goldens"


def commands(group: click.Group = cli, above: str = "") -> list[str]:
    """All commands without commands of their own, as typed."""
    context = click.Context(group)
    known = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return [
        line
        for name, command in known.items()
        for line in (commands(command, f"{above}{name} ") if isinstance(command, click.Group) else [above + name])
    ]


def test_every_command_has_a_golden() -> None:
    tables = tomllib.loads((GOLDENS / "commands.toml").read_text())
    lines = [f"{line} " for table in tables.values() for line in table["run"]]
    assert [name for name in commands() if not any(line.startswith(f"{name} ") for line in lines)] == []
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(tables)


@pytest.mark.slow
def test_commands_answer_what_they_answered() -> None:
    words = [sys.executable, "tools/goldens.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
