"""Ends programs at every instant or at random ones, and says what they left.  It forks: run it without threads.

``python crashes.py lines FOLDER`` kills the writing of a file and of a folder before each line that it runs;
``python crashes.py verbs FOLDER SEED NUMBER`` kills verbs of the command line.  Both print JSON lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from weft import files
from weft.errors import WeftError

OLD, NEW = b"old" * 1000, b"new" * 2000


def state(path: Path) -> dict[str, bytes]:
    """What has a name under a path, or is the file there; names that begin with a dot are on their way."""
    if path.is_file():
        return {"": path.read_bytes()}
    found = (one for one in sorted(path.rglob("*")) if one.is_file())
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in found}


def in_child(work: Callable[[], object]) -> int:
    """Run work in a process of its own; its process id."""
    child = os.fork()
    if child:
        return child
    code = 3
    with contextlib.suppress(BaseException):
        try:
            work()
            code = 0
        except WeftError:
            code = 1
    os._exit(code)


def killed_before_line(number: int, work: Callable[[], object]) -> bool:
    """Kill work before line ``number`` that it runs of ``weft.files``; whether it came so far."""

    def watched() -> None:
        sys.settrace(_Killer(number).trace)
        work()

    _, status = os.waitpid(in_child(watched), 0)
    return os.WIFSIGNALED(status)


class _Killer:
    def __init__(self, number: int) -> None:
        self.left = number

    def trace(self, frame: FrameType, event: str, value: object) -> Any:
        if frame.f_code.co_filename != files.__file__:
            return None
        self.left -= event == "line"
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def lines(folder: Path) -> Iterator[dict[str, object]]:
    file, whole = folder / "file", folder / "folder"
    works: dict[str, tuple[Path, Callable[[bytes], None]]] = {
        "file": (file, lambda data: files.write_text(file, data.decode())),
        "folder": (whole, lambda data: files.write_folder(whole, {"a": data, "below/b": data})),
    }
    for name, (path, write) in works.items():
        write(NEW)
        new = state(path)
        write(OLD)
        old = state(path)
        number = 1
        while killed_before_line(number, partial(write, NEW)):
            found = state(path)
            yield {"what": name, "line": number, "old": found == old, "new": found == new}
            write(OLD)
            number += 1
        yield {"what": name, "line": number, "old": False, "new": state(path) == new}


SMALL = ("schedule", "all-reduce", "1GB", "--dims", "switch:4:100GB/s:1us,switch:4:50GB/s:1us")
PLANNED = ("gpt2", "a100-8", "--layout", "data=8")
SWEPT = ("--models", "gpt2", "--clusters", "a100-8", "--compute", "estimate")
VERBS: dict[str, tuple[str, ...]] = {
    "plan.json": ("plan", "gpt2", "a100-8", "--format", "json", "--top", "50", "-o"),
    "estimate.csv": ("estimate", *PLANNED, "--format", "csv", "-o"),
    "sweep.csv": ("sweep", *SWEPT, "--axis", "layout=dp=8", "--workers", "1", "-o"),
    "simulate.json": ("simulate", *PLANNED, "--format", "json", "-o"),
    "fabric.json": ("fabric", "a100-64", "--export", "json", "-o"),
    "schedule.json": (*SMALL, "--format", "json", "-o"),
    "timeline.pftrace": (*SMALL, "--timeline"),
    "fabric.svg": ("fabric", "a100-64", "--picture"),
    "traces": (*SMALL, "--export", "chakra", "-o"),
    "nccl": ("route", "export", "nccl", "--cluster", "a100-64", "--job", "gpt2 data=64", "-o"),
    "arranged.json": ("arrange", "site.toml", "-o"),
    "files": ("launch", "--arrangement", "arranged.json", "--job", "a", "--files"),
    "report.html": ("report", "plan.json", "-o"),
    "frr": ("route", "export", "frr", "--cluster", "a100-64", "--job", "gpt2 data=64", "-o"),
}
"""Command lines, without the name of what they write."""
OWN = ("report.html",)
"""Those that run in a program of their own: what draws charts has threads, so it must not be forked."""
SITE = """
schema = "weft.site/1"
name = "two"
cluster = "a100-32"
fabric = "fat-tree"
jobs = [
  {name = "a", model = "gpt2-124m", layout = "dp=16", batch = 64},
  {name = "b", model = "gpt2-124m", layout = "dp=16", batch = 64},
]
"""

MOST_LINES = 45
"""Lines of ``weft.files`` that the writing of a file runs, about."""


def verbs(folder: Path, seed: int, number: int) -> Iterator[dict[str, object]]:
    """Kill every verb ``number`` times: by turns after a random time and before a random line of ``weft.files``."""
    from weft.commands.app import cli

    draw = random.Random(seed)
    os.chdir(folder)
    Path("site.toml").write_text(SITE)

    def run(arguments: tuple[str, ...]) -> None:
        if arguments[-1] in OWN:
            os.execv(sys.executable, [sys.executable, "-c", "from weft.commands.app import main; main()", *arguments])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main(list(arguments), standalone_mode=False)

    for name, arguments in VERBS.items():
        path, work = Path(name), partial(run, (*arguments, name))
        if name not in OWN:
            work()  # imports what it needs, which children have then
        begun = time.monotonic()
        assert os.waitpid(in_child(work), 0)[1] == 0, name
        took, new = time.monotonic() - begun, state(path)
        assert new, name
        old = {one: data + b"\n" for one, data in new.items()}
        for turn in range(number):
            for one, data in old.items():
                (path / one if one else path).write_bytes(data)
            if turn % 2 and name not in OWN:
                killed_before_line(draw.randint(1, MOST_LINES), work)
            else:
                child = in_child(work)
                time.sleep(took * draw.uniform(0, 1.2))
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            found = state(path)
            yield {"what": name, "how": "killed", "old": found == old, "new": found == new}
        for one, data in old.items():
            (path / one if one else path).write_bytes(data)
        for how, bounded in (("full disk", _on_a_full_disk), ("read-only folder", _in_a_read_only_folder)):
            before = set(os.listdir())
            _, status = os.waitpid(in_child(partial(bounded, work)), 0)
            Path().chmod(0o755)
            code = os.waitstatus_to_exitcode(status)
            clean = code == (2 if name in OWN else 1) and set(os.listdir()) == before
            yield {"what": name, "how": how, "old": state(path) == old and clean, "new": False}
        for left in Path().glob(".*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _on_a_full_disk(work: Callable[[], object]) -> None:
    """Files of more than 100 bytes cannot be written."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    work()


def _in_a_read_only_folder(work: Callable[[], object]) -> None:
    """Nothing can be made in the folder, by root either: it gives up its right to pass over modes (capset(2))."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    for effective_permitted in (0, 1):
        sets[effective_permitted] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    libc.prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, so that a program that it becomes has no such right
    Path().chmod(0o555)
    work()


def main() -> None:
    kind, folder, *numbers = sys.argv[1:]
    found = lines(Path(folder)) if kind == "lines" else verbs(Path(folder), *map(int, numbers))
    for one in found:
        print(json.dumps(one))


if __name__ == "__main__":
    main()
