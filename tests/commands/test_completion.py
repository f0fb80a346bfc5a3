"""Shell completion as docs/install.md has it: a script for each shell, and what it asks the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "install.md").read_text("utf-8")
SCRIPTS = {"bash": "complete -o nosort -F", "zsh": "#compdef weft", "fish": "complete --no-files --command weft"}


def asked(**variables: str) -> str:
    """What the program prints to a shell that asks."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'weft'; from weft.commands.app import main; main()"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_shell_gets_its_script(shell: str) -> None:
    assert f"_WEFT_COMPLETE={shell}_source weft" in PAGE
    script = asked(_WEFT_COMPLETE=f"{shell}_source")
    assert SCRIPTS[shell] in script
    assert f"_WEFT_COMPLETE={shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:
        read = ["--no-execute"] if shell == "fish" else ["-n"]
        assert subprocess.run([program, *read], input=script, text=True, check=False).returncode == 0


@pytest.mark.slow_but(3)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("weft route e", {"export"}),
        ("weft launch --tool deep", {"deepspeed"}),
        ("weft plan gpt2-124m gb3", {"gb300-8"}),
        ("weft pl", {"plan"}),
        ("weft plan --form", {"--format"}),
        ("weft plan llama-3.1-4", {"llama-3.1-405b"}),
    ],
)
def test_verbs_options_choices_and_names_are_offered(line: str, offered: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    found = asked(_WEFT_COMPLETE="bash_complete", **words)
    assert {one.partition(",")[2] for one in found.split()} == offered


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("line", ["weft plan conf", "weft plan gpt2 a100-8 --calibration meas", "weft arrange si"])
def test_files_are_offered_where_one_is_meant(line: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert asked(_WEFT_COMPLETE="bash_complete", **words).split() == [f"file,{line.split()[-1]}"]
