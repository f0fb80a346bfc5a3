"""The run of a study: missing points are computed in batches, and each batch is stored on disk when it arrives."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput
from weft.states import State
from weft.studies.runners import AHEAD, Answer, PointBatch, Runner, version
from weft.studies.study import KEY_BYTES, Points

FILE = "sweep.sqlite"
_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists results (key blob primary key, failed integer not null, result text not null)
without rowid;
"""
_AT_ONCE = 500


class StudyState:
    """A folder with the results of the studies of one name, by one version of Weft.

    Raises:
        BadInput: the folder cannot be used, is in use, or has results of another study or version.
    """

    def __init__(self, folder: str | os.PathLike[str], about: dict[str, str] | None = None) -> None:
        self.folder = os.fspath(folder)
        self._state = State(folder, file=FILE, schema=_SCHEMA, user="sweep")
        try:
            self._state.claim(about or {})
        except BaseException:
            self.close()
            raise

    def keys(self) -> NDArray[np.void]:
        """Keys of all results, sorted."""
        with self._state.readable():
            result = b"".join(key for (key,) in self._state.base.execute("select key from results order by key"))
        if len(result) % KEY_BYTES:
            raise self._state.damaged("a key has another length")
        return np.frombuffer(result, dtype=f"V{KEY_BYTES}")

    def add(self, results: Sequence[tuple[bytes, str]]) -> None:
        """Keep results; they are on the disk when this returns."""
        rows = [(key, text.startswith('{"failure":"'), text) for key, text in results]
        with self._state.transaction() as base:
            base.executemany("insert or replace into results values (?, ?, ?)", rows)

    def rows(self, keys: NDArray[np.void]) -> Iterator[dict[str, Any] | None]:
        """The row of each key, in the order of the keys; None for keys without a result."""
        for begin in range(0, len(keys), _AT_ONCE):
            wanted = [bytes(key) for key in keys[begin : begin + _AT_ONCE]]
            marks = ",".join("?" * len(wanted))
            with self._state.readable():
                query = f"select key, result from results where key in ({marks})"
                result = dict(self._state.base.execute(query, wanted))
            for key in wanted:
                try:
                    row = json.loads(result[key]) if key in result else None
                except (ValueError, TypeError, RecursionError):
                    raise self._state.damaged("a result is not JSON") from None
                if key in result and not isinstance(row, dict):
                    raise self._state.damaged("a result is not a row")
                yield row

    def note(self, name: str, value: str) -> None:
        """Keep a text under a name."""
        with self._state.transaction() as base:
            base.execute("insert or replace into about values (?, ?)", (name, value))

    def noted(self, name: str) -> str | None:
        """The text under a name."""
        with self._state.readable():
            row = self._state.base.execute("select value from about where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Release the folder."""
        self._state.close()


BATCH_S = 0.4
"""Aim for a task: long beside the cost of sending one."""
LARGEST_BATCH = 2000
ATTEMPTS = 5
"""Deaths of workers in a row after which a point that was alone is given up."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Points in all, computed in this run, known before it, failed in this run, and those left."""

    points: int
    known: int
    computed: int = 0
    failed: int = 0
    left: int = 0

    @classmethod
    def of(cls, keys: NDArray[np.void], state: StudyState) -> tuple[Counts, NDArray[np.int64]]:
        """Counts before a run, and the numbers of the missing points, the first of equal ones."""
        distinct, first = np.unique(keys, return_index=True)
        missing = np.sort(first[~np.isin(distinct, state.keys())])
        return cls(points=len(keys), known=len(distinct) - len(missing), left=len(missing)), missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run would do: points, known and missing ones, and seconds a point, measured on ``timed`` of them."""

    study: str
    points: int
    known: int
    missing: int
    timed: int
    point_s: float


@dataclass(kw_only=True)
class StudyRun:
    """A study on its way; ``progress`` is called after each batch."""

    points: Points
    kept: StudyState
    compute: str
    progress: Callable[[Counts], object] | None = None
    keys: NDArray[np.void] = field(init=False)
    counts: Counts = field(init=False)
    missing: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = self.points.keys(version())
        self.counts, self.missing = Counts.of(self.keys, self.kept)

    def task(self, numbers: Sequence[int]) -> PointBatch:
        """The task of some points."""
        return PointBatch(
            compute=self.compute,
            name=self.points.study.computation.name,
            version=version(),
            columns=self.points.columns,
            files=tuple(sorted(self.points.files.items())),
            points=tuple(self.points[number] for number in numbers),
        )

    def go(self, runner: Runner) -> None:
        """Compute what is missing.

        Raises:
            BadInput: the workers are gone or refuse, or one point ends every worker.
        """
        waiting, careful = _Waiting(self.missing, runner.workers), 0
        running: dict[int, list[int]] = {}
        number = 0
        while running or waiting:
            while waiting and len(running) < (1 if careful else AHEAD * runner.workers):
                running[number] = waiting.take(1 if careful > 1 else None)
                runner.submit(number, self.task(running[number]))
                number += 1
            done = [(running.pop(task), answer) for task, answer in runner.answers()]
            arrived = [(numbers, answer) for numbers, answer in done if answer is not None]
            lost = [numbers for numbers, answer in done if answer is None]
            self._keep(arrived, waiting)
            careful = self._careful(careful, lost, bool(arrived))
            for numbers in reversed(lost):
                waiting.again(numbers)

    def _careful(self, careful: int, lost: list[list[int]], moved: bool) -> int:
        """How few tasks to run at once after workers died: all, one, or one of one point."""
        if not lost or (moved and not careful):
            return 0
        if careful >= ATTEMPTS and len(lost[0]) == 1:
            values = json.dumps(self.points.table(lost[0][0]))
            problem = f"each worker died that computed {values[:300]}"
            raise BadInput(problem, where="sweep", remedy="give it more memory, or take the point out")
        return careful + 1

    def _keep(self, arrived: list[tuple[list[int], Answer]], waiting: _Waiting) -> None:
        results: list[tuple[bytes, str]] = []
        failed = 0
        for numbers, answer in arrived:
            if answer.problem:
                raise BadInput(answer.problem, where="sweep", remedy="let all workers have the same Weft and files")
            waiting.learn(len(numbers), answer.seconds)
            results += [(bytes(self.keys[i]), text) for i, text in zip(numbers, answer.texts, strict=True)]
            failed += sum(text.startswith('{"failure":"') for text in answer.texts)
        if not results:
            return
        self.kept.add(results)
        self.counts.computed += len(results)
        self.counts.left -= len(results)
        self.counts.failed += failed
        if self.progress is not None:
            self.progress(self.counts)


class _Waiting:
    """Points that wait, and how many make a task."""

    def __init__(self, numbers: NDArray[np.int64], workers: int) -> None:
        self._numbers, self._at, self._workers = numbers, 0, workers
        self._again: deque[list[int]] = deque()
        self._points, self._seconds = 0.0, 0.0

    def __bool__(self) -> bool:
        return bool(self._again) or self._at < len(self._numbers)

    def take(self, most: int | None) -> list[int]:
        """The points of the next task."""
        if self._again:
            numbers = self._again.popleft()
            if most is not None and len(numbers) > most:
                self._again.appendleft(numbers[most:])
            return numbers[:most]
        size = most or 1
        if most is None and self._points:
            # Long beside what sending costs, but short enough that all workers end together.
            fast = BATCH_S * self._points / max(self._seconds, 1e-9)
            fair = (len(self._numbers) - self._at) / (2 * AHEAD * self._workers)
            size = max(int(min(fast, fair, LARGEST_BATCH)), 1)
        result: list[int] = self._numbers[self._at : self._at + size].tolist()
        self._at += len(result)
        return result

    def again(self, numbers: list[int]) -> None:
        """Points whose worker died."""
        self._again.appendleft(numbers)

    def learn(self, points: int, seconds: float) -> None:
        """What a task took; the last ones count most."""
        self._points, self._seconds = 0.5 * self._points + points, 0.5 * self._seconds + seconds
