"""Compare what commands answer with what they answered: exit codes, outputs, and the files that they write.

Run: ``python tools/goldens.py`` compares every command of ``tests/goldens/commands.toml`` with the text that is kept
of it beside that file, prints what differs, and exits with 1 where something does.  ``--write`` runs every command
twice, under two seeds of Python's hashes, keeps what it answers, and refuses what differs.  ``NAME ...`` chooses.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"
COMMANDS = GOLDENS / "commands.toml"
INPUTS = (GOLDENS / "inputs", ROOT / "examples")
ENVIRONMENT = {"COLUMNS": "100", "TERM": "dumb", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SHOWN_BYTES = 50_000
"""Longer files are kept as their digests, and so are those that are no text."""
DIFFERENCE_LINES = 40
WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Commands that run one after the other in a folder of their own.

    Attributes:
        run: the commands whose answers are kept.
        prepare: commands that run before, whose answers are not kept.
        files: what they read, from ``tests/goldens/inputs`` or ``examples``.
        ignore: patterns of files whose content is not kept.
    """

    name: str
    run: Sequence[str]
    prepare: Sequence[str] = ()
    files: Sequence[str] = ()
    ignore: Sequence[str] = ()


def goldens() -> dict[str, Golden]:
    """All of ``commands.toml``, by name."""
    tables = tomllib.loads(COMMANDS.read_text(encoding="utf-8"))
    return {name: Golden(name=name, **table) for name, table in tables.items()}


def commands(group: click.Group | None = None, above: str = "") -> Iterator[str]:
    """All commands without commands of their own, as typed."""
    from weft.commands.app import cli

    group = group or cli
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield above + name


def uncovered() -> list[str]:
    """Commands that no golden runs."""
    lines = [f"{line} " for golden in goldens().values() for line in golden.run]
    return [name for name in commands() if not any(line.startswith(f"{name} ") for line in lines)]


# Running ---------------------------------------------------------------------------------------------


def import_libraries() -> None:
    """Import what most commands need once, before processes part."""
    import highspy  # noqa: F401
    import numba  # noqa: F401
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import rich.console  # noqa: F401

    import weft.commands.app  # noqa: F401
    from weft import solvers

    solvers.heard.update((solvers.FOR_GOOD, solvers.FOR_NOW))


def fork(work: Callable[[], int]) -> int:
    """Do something in a process of its own; its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def weft(line: str) -> int:
    """Run the program in this process; its exit code."""
    from weft.commands.app import main

    sys.argv = ["weft", *shlex.split(line)]
    try:
        main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def output_of(line: str, streams: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the program, with files in the folder ``streams``."""
    out, err = streams / "out", streams / "err"

    def work() -> int:
        for number, path in ((0, Path(os.devnull)), (1, out), (2, err)):
            os.dup2(os.open(path, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if number else 0)), number)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), "utf-8")
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), "utf-8", line_buffering=True)
        code = weft(line)
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    _, status = os.waitpid(fork(work), 0)
    said, told = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
    return os.waitstatus_to_exitcode(status), said, told


def file_lines(golden: Golden, before: set[Path]) -> Iterator[str]:
    """The files that commands wrote into this folder."""
    for path in sorted(path for path in Path().rglob("*") if path.is_file() and path not in before):
        if any(fnmatch(path.as_posix(), pattern) for pattern in golden.ignore):
            continue
        content = path.read_bytes()
        yield f"--- {path.as_posix()}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:16]}"
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        if len(content) <= SHOWN_BYTES:
            yield text.rstrip("\n")


def answer(golden: Golden) -> str:
    """What the commands of a golden answer, as it is kept."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as streams:
        os.chdir(folder)
        for name in golden.files:
            source = next(place / name for place in INPUTS if (place / name).exists())
            shutil.copy(source, Path(folder, Path(name).name))
        for line in golden.prepare:
            code, _, err = output_of(line, Path(streams))
            if code:
                raise RuntimeError(f"{golden.name}: weft {line}: exit code {code}\n{err}")
        before = {path for path in Path().rglob("*") if path.is_file()}
        lines = []
        for line in golden.run:
            code, out, err = output_of(line, Path(streams))
            lines += [f"$ weft {line}", f"--- exit code {code}"]
            lines += [f"--- {name}\n{text.rstrip()}" for name, text in (("stdout", out), ("stderr", err)) if text]
        lines += file_lines(golden, before)
        os.chdir(ROOT)
        return "\n".join(lines).replace(os.path.realpath(folder), "FOLDER").replace(folder, "FOLDER") + "\n"


def answer_into(folder: Path, chosen: Sequence[Golden], workers: int) -> None:
    """Write what the commands of goldens answer into files of a folder, so many goldens beside each other."""

    def work(golden: Golden) -> int:
        (folder / golden.name).write_text(answer(golden), encoding="utf-8")
        return 0

    import_libraries()
    waiting: list[Golden] = list(reversed(chosen))
    running: set[int] = set()
    while waiting or running:
        while waiting and len(running) < workers:
            running.add(fork(partial(work, waiting.pop())))
        running.discard(os.wait()[0])


def answers(chosen: Sequence[Golden], workers: int = WORKERS, *, seed: int = 0) -> dict[str, str]:
    """What the commands of goldens answer, by name; ``seed`` is that of Python's hashes."""
    names = [golden.name for golden in chosen]
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--workers", str(workers), "--into", folder, *names]
        subprocess.run(words, env={**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": str(seed)}, check=True)
        paths = {name: Path(folder, name) for name in names}
        return {name: path.read_text("utf-8") if path.exists() else "it did not run\n" for name, path in paths.items()}


# Comparing -------------------------------------------------------------------------------------------


def difference(name: str, before: str, after: str) -> str:
    """The first lines of what differs."""
    lines = list(
        difflib.unified_diff(before.splitlines(), after.splitlines(), f"{name} kept", f"{name} now", "", "", 1)
    )
    more = [f"... and {len(lines) - DIFFERENCE_LINES} lines"] if len(lines) > DIFFERENCE_LINES else []
    return "\n".join([*(line.rstrip("\n") for line in lines[:DIFFERENCE_LINES]), *more])


def kept(name: str) -> str:
    """The text that is kept of a golden; empty without one."""
    path = GOLDENS / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write(chosen: Sequence[Golden], workers: int) -> int:
    """Keep what commands answer, where they answer the same again; 1 where they do not."""
    first, second = (answers(chosen, workers, seed=seed) for seed in (1, 2))
    unsteady = [name for name in first if first[name] != second[name]]
    for name in unsteady:
        print(f"{name}: answers differently when it runs again\n{difference(name, first[name], second[name])}")
    for name in first.keys() - set(unsteady):
        (GOLDENS / f"{name}.txt").write_text(first[name], encoding="utf-8")
    for path in GOLDENS.glob("*.txt"):
        if path.stem not in goldens():
            path.unlink()
    print(f"{len(first)} goldens, {len(unsteady)} of them not kept")
    return 1 if unsteady else 0


def compare(chosen: Sequence[Golden], workers: int) -> int:
    """Print where commands answer differently from what is kept; 1 where one does."""
    now = answers(chosen, workers)
    changed = [golden for golden in chosen if now[golden.name] != kept(golden.name)]
    again = answers(changed, workers, seed=1) if changed else {}
    for golden in changed:
        name = golden.name
        if now[name] != again[name]:
            print(f"{name}: answers differently when it runs again\n{difference(name, now[name], again[name])}")
        else:
            print(difference(name, kept(name), now[name]))
    stale = sorted(path.name for path in GOLDENS.glob("*.txt") if path.stem not in goldens())
    for name in stale:
        print(f"{name}: no such golden in {COMMANDS.name}")
    print(f"{len(chosen)} goldens, {len(changed)} differ")
    return 1 if changed or stale else 0


def main() -> int:
    """Compare or write the goldens; 1 where something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="goldens (default: all)")
    parser.add_argument("--write", action="store_true", help="keep the answers of today")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes beside each other (default: 2)")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="only write the answers of today there")
    options = parser.parse_args()
    known = goldens()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no golden {', '.join(unknown)} in {COMMANDS.name}")
    chosen = [golden for name, golden in known.items() if not options.names or name in options.names]
    if options.into:
        answer_into(options.into, chosen, options.workers)
        return 0
    missing = uncovered()
    for name in missing:
        print(f"weft {name}: no golden runs it")
    return max(len(missing) > 0, (write if options.write else compare)(chosen, options.workers))


if __name__ == "__main__":
    sys.exit(main())
