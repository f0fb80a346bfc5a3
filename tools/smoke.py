"""Run every command once, in a folder that is thrown away, and report those that do not end as they should.

Run: ``python tools/smoke.py`` with a Python that has Weft and its extras ``chakra``, ``page`` and ``parquet``;
it needs no test tools.  Commands that need PyTorch must say so where it is missing.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from weft.commands.app import cli

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FLOWS = ("--generate", "BLOOM:2", "--seed", "1")
COMMANDS: dict[str, Sequence[str]] = {
    "plan": ("gpt2", "a100-8", "--top", "1", "--format", "json", "-o", "plan.json", "--chart", "plan.svg"),
    "estimate": ("gpt2", "a100-8", "--layout", "tp=2,dp=4", "--tokens", "1B"),
    "tune": ("gpt2", "a100-8", "--layout", "tp=2,dp=4", "--measured", "20%"),
    "compare": ("gpt2", "a100-8", "h100-8"),
    "report": ("plan.json", "-o", "plan.html"),
    "launch": ("plan.json",),
    "sweep run": ("study.toml", "--state", "kept", "-o", "study.parquet", "--workers", "1"),
    "sweep show": ("kept",),
    "design": ("gpt2", "h100-16", "--layout", "tp=4,dp=4", "--chart", "design.svg"),
    "schedule": ("all-reduce", "1MiB", "--cluster", "h100-16"),
    "simulate": ("gpt2", "h100-16", "--layout", "tp=4,dp=4"),
    "fabric show": ("h100-16", "--export", "p2p", "-o", "cables.csv"),
    "fabric bill": ("h100-16",),
    "fabric check": ("cables.csv", "--against", "cables.csv"),
    "route plan": (*FLOWS, "--format", "json", "--paths", "-o", "routes.json"),
    "route audit": ("--routes", "routes.json", *FLOWS),
    "route export": ("nccl", *FLOWS),
    "route watch": ("--state", "state", "--events", "events.jsonl"),
    "arrange": (str(EXAMPLES / "two-jobs.toml"), "--budget", "1s"),
    "validate": (str(EXAMPLES / "my-runs.csv"),),
    "serve": ("--help",),
    "mcp": ("--help",),
    "info": ("install",),
    "train run": ("tiny-gpt", "--layout", "dp=1", "--steps", "1"),
    "train export": ("missing", "weights.safetensors"),
    "bench run": ("--ranks", "1"),
    "bench selftest": (),
}
"""Every command with arguments, after those whose files it reads."""
WITHOUT_TORCH = {
    "train run": "weft[runtime]",
    "bench run": "weft[runtime]",
    "bench selftest": "weft[runtime]",
    "train export": "not a checkpoint",
}
"""What commands say, and end with exit code 2, where there is no PyTorch."""
STUDY = """schema = "weft.study/1"
name = "smoke"
compute = "estimate"

[axes]
model = ["gpt2"]
cluster = "a100"
count = [8, 16]
layout = ["tp=2"]
"""


def names(group: click.Group = cli, above: str = "") -> Iterator[str]:
    """All commands without commands of their own, as typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from names(command, f"{above}{name} ")
        else:
            yield above + name


def main() -> int:
    """Run them; the number of commands that failed."""
    failed = sorted(set(names()).symmetric_difference(COMMANDS))
    for name in failed:
        print(f"{name}: no such command, or none of COMMANDS in {__file__}")
    torch = importlib.util.find_spec("torch") is not None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "study.toml").write_text(STUDY, encoding="utf-8")
        Path(folder, "events.jsonl").write_text("", encoding="utf-8")
        for name, arguments in COMMANDS.items():
            if torch and name in WITHOUT_TORCH:
                continue
            code = "from weft.commands.app import main; main()"
            words = [sys.executable, "-c", code, *name.split(), *arguments]
            run = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
            said = WITHOUT_TORCH.get(name, "")
            if run.returncode != (2 if said else 0) or said not in run.stderr:
                failed.append(name)
                print(f"weft {name} {' '.join(arguments)}: exit code {run.returncode}\n{run.stderr[-2000:]}")
    print(f"{len(COMMANDS)} commands, {len(failed)} failed")
    return len(failed)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
