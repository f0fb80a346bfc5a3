"""Bad values of every option of commands that have many: one line and exit code 2, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from weft.commands.app import cli

SITE = """
schema = "weft.site/1"
name = "small"
cluster = "a100-16"
fabric = "fat-tree"
[[jobs]]
name = "a"
model = "gpt2-124m"
layout = "dp=16"
batch = 64
"""
RUNS = "id,family,model,gpu,gpus,tp,dp,global_batch,iter_s\na,f,gpt2-124m,a100,8,1,8,64,1.0\n"
BEGINS = {
    "arrange": ("site.toml", "--budget", "1s"),
    "simulate": ("gpt2", "a100-8", "--layout", "data=8"),
    "fabric show": ("a100-16",),
    "fabric bill": ("a100-16",),
    "launch": ("plan.json",),
    "validate": ("runs.csv",),
    "train run": ("gpt2", "--layout", "dp=2", "--device", "cuda"),
}
"""Command lines that are good, but for training, which has no GPUs here."""
NUMBERS = ("zzz", "", "nan", "1e400", "-1e400", "0x10", "1 2", "\N{ARABIC-INDIC DIGIT TWO}" * 5000)
TEXTS = ("", "zzz", "no/such/file", "\x1b[31m", "-1", "\N{COLLISION SYMBOL}" * 5000)
NUMERIC = ("integer", "number")


def options(name: str) -> list[tuple[str, str]]:
    """Option and kind of value, of those that take values."""
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    takers = (one for one in command.params if isinstance(one, click.Option) and not one.is_flag)
    return [(one.opts[-1], one.type.name) for one in takers]


@pytest.fixture
def here(weft: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("site.toml").write_text(SITE)
    Path("runs.csv").write_text(RUNS)
    assert weft("plan", "gpt2", "a100-8", "--format", "json", "--top", "3", "-o", "plan.json")[0] == 0


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("texts", [TEXTS[-1:], pytest.param(TEXTS, marks=pytest.mark.slow)], ids=["long", "all"])
@pytest.mark.parametrize("name", BEGINS)
def test_bad_values_are_told_in_one_line(
    weft: Callable[..., tuple[int, str, str]], name: str, texts: tuple[str, ...]
) -> None:
    wrong = []
    for option, kind in options(name):
        for value in NUMBERS if kind in NUMERIC else texts:
            code, _, err = weft(*name.split(), *BEGINS[name], option, value)
            told = code == 2 and err.startswith("Error: ") and err.count("\n") == 1
            fine = kind not in NUMERIC and code in (0, 3) and "Traceback" not in err
            if not (told or fine):
                wrong.append((option, value[:20], code, err[:200]))
    assert wrong == []
