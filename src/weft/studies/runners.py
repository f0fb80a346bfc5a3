"""The work of a worker, and where it runs: in this process, in processes of this machine, or on a Ray cluster.

A worker takes points and returns results as canonical JSON, if its version of Weft is the same.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed
from multiprocessing import connection, resource_tracker
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import weft
from weft.errors import BadInput, MissingExtra, WeftError, printable
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


AHEAD = 2
"""Tasks in flight for each worker, so that none waits for the next."""
RETRIES = 10
"""How often Ray repeats a task whose node or worker died."""


class Runner(ABC):
    """Runs tasks; answers come in any order."""

    workers: int

    @abstractmethod
    def submit(self, number: int, task: PointBatch) -> None:
        """Begin a task, or queue it."""

    @abstractmethod
    def answers(self) -> list[tuple[int, Answer | None]]:
        """Wait for a task; the numbers and answers of finished ones, None where the worker died.

        Raises:
            BadInput: the workers are gone.
        """

    @abstractmethod
    def close(self) -> None:
        """End what still runs."""


def runner(workers: str | int | None) -> Runner:
    """The runner of ``--workers``: a number of processes (default: one per core), or Ray.

    Raises:
        BadInput: no such runner, or Ray cannot be reached.
        MissingExtra: Ray is not installed.
    """
    text = str(cores() if workers is None else workers)
    if text == "ray" or text.startswith("ray://"):
        return RayRunner("auto" if text == "ray" else text)
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 1024:
        remedy = "give 1 to 1024, ray, or ray://HOST:PORT"
        raise BadInput(f"{text[:60]!r} is not a number of workers", where="--workers", remedy=remedy)
    return Here() if int(text) == 1 else Processes(int(text))


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Here(Runner):
    """This process."""

    workers = 1

    def __init__(self) -> None:
        self._waiting: list[tuple[int, PointBatch]] = []

    def submit(self, number: int, task: PointBatch) -> None:
        self._waiting.append((number, task))

    def answers(self) -> list[tuple[int, Answer | None]]:
        number, task = self._waiting.pop(0)
        return [(number, answer(task))]

    def close(self) -> None:
        self._waiting.clear()


PAUSE_S = 0.05
"""Pause after a pool that died without an answer; twice as long after each more in a row."""


class Processes(Runner):
    """A pool of processes, replaced when one of them dies."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            self._context.set_forkserver_preload(["weft.studies.runners", "weft.commands.sweep"])
        self._losses = 0
        self._begin()

    def _begin(self) -> None:
        alive, self._alive = self._context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self.workers, mp_context=self._context, initializer=end_with_parent, initargs=(alive,)
        )
        self._running: dict[Future[Answer], int] = {}
        # All workers start before the first task: the pool of some Pythons (3.11.7) fails inside when a worker
        # dies while another starts (python/cpython issue 105829).
        with suppress(BrokenProcessPool, OSError, EOFError), starting_workers():
            for _ in range(self.workers):
                self._pool.submit(os.getpid)

    def submit(self, number: int, task: PointBatch) -> None:
        try:
            with starting_workers():
                future = self._pool.submit(answer, task)
        except (BrokenProcessPool, OSError, EOFError):  # a worker died, or what starts workers
            future = Future()
            future.set_exception(BrokenProcessPool())
        self._running[future] = number

    def answers(self) -> list[tuple[int, Answer | None]]:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        result: list[tuple[int, Answer | None]] = []
        for future in sorted(done, key=self._running.__getitem__):
            number = self._running.pop(future)
            try:
                result.append((number, future.result()))
            except (BrokenProcessPool, MemoryError):
                result.append((number, None))
        self._losses = self._losses + 1 if all(future is None for _, future in result) else 0
        if any(future is None for _, future in result):
            result += [(number, None) for number in sorted(self._running.values())]
            self.close()
            # What starts workers is not seen dead at once on a busy machine; pools begun meanwhile would die with it.
            time.sleep(PAUSE_S * (2**self._losses - 1))
            self._begin()
        return result

    def close(self) -> None:
        self._alive.close()
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start workers that do not run the script of this process again, and that Ctrl+C does not reach.

    Ctrl+C goes to all processes of a terminal.  The process that starts others ignores it only once it has loaded
    its modules, so it inherits it blocked.
    """
    blocked = None
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # it unblocks signals when it begins
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    main = sys.modules["__main__"]
    known: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    try:
        vars(main)["__spec__"] = None
        vars(main).pop("__file__", None)
        yield
    finally:
        vars(main).update(known)
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def end_with_parent(alive: connection.Connection) -> None:
    """Let this worker end when the process that gives it work closes its end or is gone, whatever ended that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        connection.wait([alive])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class RayRunner(Runner):
    """A Ray cluster: stateless tasks of batches of points; the tasks of a dead node run again elsewhere."""

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("--workers ray", "ray") from None
        self._ray: Any = ray
        self._where = f"--workers {'ray' if address == 'auto' else address}"
        self._own = not ray.is_initialized()
        try:
            if self._own:
                ray.init(address=address, logging_level="ERROR", log_to_driver=False)
            resources = ray.cluster_resources()
        except Exception as error:
            raise self._unreachable(error) from None
        self.workers = max(int(resources.get("CPU", 1)), 1)
        self._answer: Any = ray.remote(answer).options(num_cpus=1, max_retries=RETRIES)
        self._running: dict[Any, int] = {}
        known = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError")
        self._deaths = tuple(getattr(ray.exceptions, name) for name in known)

    def _unreachable(self, error: Exception) -> BadInput:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        first = f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") else lines[0]  # before a traceback
        remedy = "see that it runs (ray status, ray start --head); the same command goes on (docs/sweep.md)"
        return BadInput(f"no Ray cluster answers: {first[:200]}", where=self._where, remedy=remedy)

    def submit(self, number: int, task: PointBatch) -> None:
        try:
            self._running[self._answer.remote(task)] = number
        except Exception as error:
            raise self._unreachable(error) from None

    def answers(self) -> list[tuple[int, Answer | None]]:
        try:
            references = list(self._running)
            self._ray.wait(references, num_returns=1)
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        except Exception as error:
            raise self._unreachable(error) from None
        return [(self._running.pop(future), self._result(future)) for future in ready]

    def _result(self, reference: Any) -> Answer | None:
        failures = self._ray.exceptions
        try:
            result: Answer = self._ray.get(reference)
        except failures.RayTaskError as error:
            if isinstance(error.cause, MemoryError):
                return None
            remedy = "install the same Weft on its machines: pip install 'weft[ray]'"
            problem = f"a task failed: {type(error.cause).__name__}: {str(error.cause)[:200]}"
            raise BadInput(problem, where=self._where, remedy=remedy) from None
        except self._deaths:
            return None
        except Exception as error:
            raise self._unreachable(error) from None
        return result

    def close(self) -> None:
        for reference in self._running:
            with suppress(Exception):
                self._ray.cancel(reference, force=True)
        if self._own:
            self._ray.shutdown()
