"""What the program says and returns when its streams are closed, full, or left, and when it is interrupted."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JSON = ("plan", "gpt2", "a100-8", "--format", "json", "--top", "200")
"""A document of more than the 64 KiB that a pipe holds."""


def started(*arguments: str, shell: str = "", **options: Any) -> subprocess.Popen[bytes]:
    command = f'exec {sys.executable} -c "from weft.commands.app import main; main()" "$@" {shell}'
    return subprocess.Popen(["bash", "-c", command, "weft", *arguments], stderr=subprocess.PIPE, **options)


def ended(program: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, said = program.communicate(timeout=60)
    return program.returncode, said.decode()


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("shell", "reason"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_output_that_cannot_be_written_is_told_once(shell: str, reason: str, unbuffered: str) -> None:
    program = started("info", "models", shell=shell, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    assert ended(program) == (2, f"Error: the output cannot be written: {reason}\n")


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_fills_halfway_is_told(tmp_path: Path, unbuffered: str) -> None:
    """The largest file that the program may write stands for the room on the disk."""
    with (tmp_path / "out").open("wb") as file:
        program = started(
            *JSON,
            stdout=file,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000)),
        )
        assert ended(program) == (2, "Error: the output cannot be written: File too large\n")


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_error(unbuffered: str) -> None:
    program = started(*JSON, shell="| head -c 10 >/dev/null; exit ${PIPESTATUS[0]}", env=os.environ)
    assert ended(program) == (141, "")
    table = started("plan", "gpt2", "a100-8", shell="| true; exit ${PIPESTATUS[0]}", env=os.environ)
    assert ended(table)[1] == ""


def test_files_are_written_while_standard_output_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    code, said = ended(started(*JSON, "-o", str(path), shell=">&- <&-"))
    assert (code, said[:4]) == (0, "Use ")
    assert json.loads(path.read_text())["schema"]


def test_an_interrupted_program_returns_130() -> None:
    def heard() -> None:
        """Programs that a script starts in the background ignore the interrupt."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    watch = ("route", "watch")
    program = started(*watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=heard)
    assert program.stdout is not None
    program.stdout.readline()
    program.send_signal(signal.SIGINT)
    code, said = ended(program)
    assert (code, "Traceback" in said) == (130, False)


def test_names_do_nothing_to_a_terminal() -> None:
    code, said = ended(started("plan", "gpt\x1b[31m\x9b2" + "x" * 100_000, "a100-8"))
    assert code == 2
    assert "\x1b" not in said
    assert said.startswith("Error: ")
    assert len(said) < 2100
