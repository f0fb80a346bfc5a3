"""States of long commands: files of SQLite that are whole or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from weft.states import State

GIVEN = {"file": "state.sqlite", "schema": "create table about (name, value);create table two (a);", "user": "test"}
KILLED = """
import os, sqlite3, sys
from weft.states import State

real = sqlite3.connect

def connect(path, **options):
    base = real(path, **options)
    if path != ":memory:":
        base.set_trace_callback(lambda text: os._exit(9) if "table two" in text else None)
    return base

sqlite3.connect = connect
State(sys.argv[1], **{given})
"""


def test_killed_between_two_tables_it_can_be_begun_again(tmp_path: Path) -> None:
    program = KILLED.replace("{given}", repr(GIVEN))
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    State(tmp_path, **GIVEN).close()
