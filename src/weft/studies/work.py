"""The work of a worker: it takes points and returns results as canonical JSON, if its version of Weft is the same."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import weft
from weft.errors import WeftError, printable
from weft.studies.study import Value

Compute = Callable[[str, Mapping[str, Value]], Mapping[str, Any]]
"""Takes a computation's name and the values of a point by column; gives a flat row."""
LONGEST_MESSAGE = 500
_KINDS = (".py", ".toml", ".json", ".csv", ".yaml")


@cache
def version() -> str:
    """Weft's version, and a hash of its sources and constants."""
    root = Path(weft.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in _KINDS):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{installed('weft')} ({digest.hexdigest()[:16]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointBatch:
    """Points for one worker, by the values of ``columns``.

    Attributes:
        compute: the place of the function ``Compute``, as "package.module:name".
        name: of the computation.
        version: of Weft; workers must have the same.
        files: digests of the files that values name.
    """

    compute: str
    name: str
    version: str
    columns: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    points: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A text for each point and the seconds in all, or why a worker refuses the batch."""

    texts: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: str = ""


def answer(task: PointBatch) -> Answer:
    """Compute the points of a task."""
    begin = time.perf_counter()
    if problem := _problem(task.version, task.files):
        return Answer(problem=problem)
    compute: Compute = resolve_name(task.compute)
    texts = tuple(_text(compute, task.name, dict(zip(task.columns, point, strict=True))) for point in task.points)
    return Answer(texts=texts, seconds=time.perf_counter() - begin)


@cache
def _problem(wanted: str, files: tuple[tuple[str, str], ...]) -> str:
    """Why results of this process would differ; checked once."""
    if version() != wanted:
        return f"a worker has Weft {version()}, not {wanted}"
    for name, digest in files:
        try:
            same = hashlib.sha256(Path(name).read_bytes()).hexdigest() == digest
        except OSError:
            return f"a worker cannot read {name}"
        if not same:
            return f"{name} changed, or is another file where a worker runs"
    return ""


def _text(compute: Compute, name: str, values: Mapping[str, Value]) -> str:
    """The row of a point, or its failure."""
    row: dict[str, Any] = {"failure": None, "message": None}
    try:
        row |= {key: value for key, value in compute(name, values).items() if key not in values}
    except MemoryError:
        raise
    except Exception as error:
        code = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
        code = code if isinstance(error, WeftError) else f"bug-{code}"
        row = {"failure": code, "message": printable(" ".join(str(error).split()), LONGEST_MESSAGE)}
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)
