"""The same bytes on every version of Python: since 3.12 ``sum`` adds floats with compensation, before it did not."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

PROGRAM = """
import builtins, sys
from itertools import groupby
added = builtins.sum

def compensated(values, /, start=0):
    values = list(values)
    if not values or not all(type(one) is float for one in values) or type(start) not in (int, float):
        return added(values, start)
    total, lost = float(start), 0.0
    for one in values:
        both = total + one
        lost += (total - both) + one if abs(total) >= abs(one) else (one - both) + total
        total = both
    return total + lost

def plain(values, /, start=0):
    total = start
    for one in values:
        total = total + one
    return total

builtins.sum = {"compensated": compensated, "plain": plain}[sys.argv[1]]
from weft.commands.app import main
for last, words in groupby(sys.argv[2:], lambda word: word == "---"):
    if not last:
        sys.argv = ["weft", *words]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end
"""
STUDY = "llama-3.1-8b h100-64 --layout tp=8,dp=8,sp"
COMMANDS = (f"estimate {STUDY}",)
"""Those that add many floats."""
MORE = (
    "schedule all-reduce 1GiB --dims switch:16:150GiB/s:700ns,switch:64:100GiB/s:1700ns --compare",
    "estimate llama-3.1-8b h100-256 --layout tp=2,sp --tokens 15T --failures examples/failures.toml",
    "estimate llama-3.1-405b h100-16384 --layout tp=8,pp=16,sp,mbs=1,recompute=selective --tokens 7.81T",
    "plan llama-3.1-8b h100-64",
    f"simulate {STUDY} --fabric fat-tree --radix 16 --full",
    "simulate deepseek-v3 h100-1024 --layout tp=1,pp=8,ep=64,dp=128 --fabric fat-tree",
    "design llama-3.1-8b h100-64 --radix 16 --layout tp=8,dp=8,sp",
)


def outputs(sum_name: str, commands: Sequence[str]) -> str:
    words = [word for command in commands for word in (*command.split(), "--format", "json", "---")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, sum_name, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "commands", [pytest.param(COMMANDS, id="few"), pytest.param(MORE, marks=pytest.mark.slow, id="more")]
)
def test_documents_do_not_depend_on_how_sum_adds(commands: tuple[str, ...]) -> None:
    assert outputs("plain", commands) == outputs("compensated", commands)
