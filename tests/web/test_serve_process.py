"""``weft serve`` as a process: how it ends, and connections that break off."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("altair")
pytest.importorskip("vl_convert")
LONGEST_S = 30.0
"""Until a server that was interrupted has ended; the machine may be busy."""


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A server in a process group of its own, as a terminal starts it, that has entered the program."""
    program = f"import sys; sys.argv = ['weft', 'serve', '--port', '0', '--state', {str(folder)!r}]; "
    program += "from weft.commands.app import main; print(flush=True); main()"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-c", program], **options)
    try:
        assert process.stdout.readline() == "\n"
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def port_of(process: subprocess.Popen[str]) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
    assert found
    return int(found[1])


def interrupted(process: subprocess.Popen[str]) -> str:
    """What a server has written to standard error when it ended after Ctrl+C."""
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(LONGEST_S) in (0, 130)
    return process.stderr.read()


@pytest.mark.slow
def test_ctrl_c_ends_a_server_that_has_just_said_where_it_is(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        port_of(process)
        assert interrupted(process) == ""


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.2, 0.5, 0.8, 1.2, 1.6, 2.0])
def test_ctrl_c_ends_a_server_that_begins(tmp_path: Path, delay_s: float) -> None:
    with serving(tmp_path) as process:
        time.sleep(delay_s)
        assert interrupted(process) == ""


HEAD = "POST /plan HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
HEAD += "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nmodel="


def test_uploads_that_break_off_leave_the_terminal_alone(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        port = port_of(process)
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S) as connection:
                connection.sendall(HEAD.format(port=port).encode())
                time.sleep(0.2)
        time.sleep(0.5)
        assert interrupted(process) == ""
