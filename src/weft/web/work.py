"""Work of pages in separate processes, with progress, cancel and limits; equal questions share an answer.

A question is a function of a module and hashable arguments.  Processes stay warm from one question to the next; one
that is cancelled, takes too long or dies is replaced.  Tabs wait for tickets: a question whose last ticket is let go
is cancelled.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import signal
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from weft.errors import NothingFeasible, WeftError, printable
from weft.studies.runners import end_with_parent, starting_workers

_TURN_S = 0.05
"""How often a thread looks whether its question is still wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What work may take.

    Attributes:
        workers: processes.  One of them never takes long questions.
        time_s: of a question; that of a long one is its own.
        memory_bytes: that a process may have beside what is shared.
        answers: kept at most.
        queue: questions that may wait.
    """

    workers: int = 2
    time_s: float = 60.0
    memory_bytes: int = 4_000_000_000
    answers: int = 64
    queue: int = 256


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        function: of a module, called with the arguments; one that takes ``progress`` gets it by that keyword.
        arguments: hashable; equal questions share one answer.
        progress: whether the function takes ``progress(done, total)``.
        time_s: the limit; None: that of the pool.
        long: may run for minutes, so that one process is left for others.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    progress: bool = False
    time_s: float | None = None
    long: bool = False


class Failure(Exception):
    """A question without an answer.

    Attributes:
        code: "bad-input", "infeasible", "cancelled", "time", "memory", "busy" or "bug".
        text: why, for people.
        detail: where a bug was.
    """

    def __init__(self, code: str, text: str, detail: str = "") -> None:
        super().__init__(code, text, detail)
        self.code, self.text, self.detail = code, text, detail


class _Job:
    """A question under way or answered, for all who ask it."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.future: Future[Any] = Future()
        self.tickets = 0
        self.progress: tuple[int, int] | None = None
        self.cancelled = False

    @property
    def wanted(self) -> bool:
        return not self.cancelled and self.tickets > 0

    def fail(self, code: str, text: str, detail: str = "") -> None:
        self.future.set_exception(Failure(code, text, detail))


class Ticket:
    """One asker's hold on a question."""

    def __init__(self, pool: Pool, job: _Job) -> None:
        self._pool, self._job = pool, job
        self.number = secrets.token_urlsafe(12)
        self._ended: asyncio.Event | None = None

    @property
    def progress(self) -> tuple[int, int] | None:
        """Steps done and in all, where the question tells."""
        return self._job.progress

    @property
    def done(self) -> bool:
        return self._job.future.done()

    def result(self) -> Any:
        """The answer of a question that is done."""
        return self._job.future.result(timeout=0)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the question, at most so long; whether it ended."""
        if self._ended is None:
            self._ended = asyncio.Event()
            ring = partial(_ring, asyncio.get_running_loop(), self._ended)
            self._job.future.add_done_callback(ring)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self.done

    def cancel(self) -> None:
        """End the question for all who wait for it."""
        self._job.cancelled = True
        self._pool.drop(self)

    def close(self) -> None:
        """Wait no longer."""
        self._pool.drop(self)


def _ring(loop: asyncio.AbstractEventLoop, ended: asyncio.Event, _: Future[Any]) -> None:
    """Wake who waits in a loop, unless the loop is gone."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(ended.set)


class Pool:
    """Processes that answer questions, and the answers they gave."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._jobs: OrderedDict[Question, _Job] = OrderedDict()
        self._tickets: dict[str, Ticket] = {}
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"worker {number}", daemon=True)
            for number in range(self.limits.workers)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, question: Question) -> Ticket:
        """Begin a question, or share it with who asked it before."""
        with self._changed:
            job = self._jobs.get(question)
            if job is None or job.cancelled or _failed_by_chance(job.future):
                if len(self._waiting) >= self.limits.queue:
                    raise Failure("busy", "Too many questions wait. Try again in a moment.")
                job = self._jobs[question] = _Job(question)
                self._waiting.append(job)
            self._jobs.move_to_end(question)
            done = [each for each, held in self._jobs.items() if held.future.done() and not held.tickets]
            for old in done[: max(0, len(self._jobs) - self.limits.answers)]:
                del self._jobs[old]
            self._changed.notify_all()
            job.tickets += 1
            ticket = Ticket(self, job)
            self._tickets[ticket.number] = ticket
            return ticket

    def ticket(self, number: str) -> Ticket | None:
        """The open ticket of a number."""
        return self._tickets.get(number)

    def drop(self, ticket: Ticket) -> None:
        """Take a ticket back."""
        with self._changed:
            if self._tickets.pop(ticket.number, None) is not None:
                ticket._job.tickets -= 1
            if not ticket._job.wanted and ticket._job in self._waiting:
                self._waiting.remove(ticket._job)
                ticket._job.fail("cancelled", "It was cancelled.")

    def close(self) -> None:
        """End all processes."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.fail("cancelled", "The server ends.")
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _next(self, number: int) -> _Job | None:
        """The first waiting job that a process may take; process 0 takes no long ones."""
        for job in self._waiting:
            if number > 0 or not job.question.long:
                self._waiting.remove(job)
                return job
        return None

    def _unwanted(self, job: _Job) -> bool:
        """Whether nobody waits for a job any more; who asks now starts a new one."""
        with self._changed:
            unwanted = self._closed or not job.wanted
            if unwanted and self._jobs.get(job.question) is job:
                del self._jobs[job.question]
        return unwanted

    def _serve(self, number: int) -> None:
        """A thread's life: give one process questions, and replace it where needed."""
        worker = _Worker(self.limits.memory_bytes)
        while True:
            with self._changed:
                while not self._closed and (job := self._next(number)) is None:
                    self._changed.wait()
                if self._closed:
                    break
            assert job is not None
            if not self._answer(worker, job):
                worker.end()
                worker = _Worker(self.limits.memory_bytes)
        worker.end()

    def _answer(self, worker: _Worker, job: _Job) -> bool:
        """Have one question answered; whether the process is as good as before."""
        question = job.question
        limit_s = question.time_s or self.limits.time_s
        try:
            worker.connection.send((question.function, question.arguments, question.progress))
            ends = time.monotonic() + limit_s
            while True:
                if worker.connection.poll(_TURN_S):
                    word, value = worker.connection.recv()
                    if word == "answer":
                        job.future.set_result(value)
                        return True
                    if word == "failure":
                        job.fail(*value)
                        return bool(value[0] != "memory")
                    job.progress = value
                elif self._unwanted(job):
                    job.fail("cancelled", "It was cancelled.")
                    return False
                elif time.monotonic() > ends:
                    job.fail("time", f"It took longer than {limit_s:g} s, the limit of one request.")
                    return False
        except (EOFError, OSError):
            job.fail("memory", "Its process ended, as it does where memory runs out.")
            return False


def _failed_by_chance(future: Future[Any]) -> bool:
    """Whether a question ended without an answer that would be the same the next time."""
    failure = future.exception() if future.done() else None
    return isinstance(failure, Failure) and failure.code not in ("bad-input", "infeasible")


class _Worker:
    """A process that answers one question after another."""

    def __init__(self, memory_bytes: int) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload(["weft.web.pages"])
        self.connection, theirs = context.Pipe()
        alive, self._alive = context.Pipe(duplex=False)
        self._process = context.Process(target=_live, args=(theirs, alive, memory_bytes))
        with _STARTING, starting_workers():
            self._process.start()
        theirs.close()
        alive.close()

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.connection.close()
        self._alive.close()


_STARTING = threading.Lock()


def _live(connection: Connection, alive: Connection, memory_bytes: int) -> None:
    """A process's life: questions in, progress and answers out."""
    from weft.commands.plan import plan

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all processes of a terminal; the pool ends them
    end_with_parent(alive)
    plan("gpt2", "a100-8", top=1)  # loads what the first question needs
    _limit_memory(memory_bytes)
    while True:
        try:
            function, arguments, progress = connection.recv()
        except EOFError:
            return
        try:
            told = {"progress": _teller(connection)} if progress else {}
            connection.send(("answer", function(*arguments, **told)))
        except MemoryError:
            connection.send(("failure", ("memory", f"It needs more than {memory_bytes / 1e9:g} GB of memory.", "")))
        except NothingFeasible as error:
            connection.send(("failure", ("infeasible", str(error), "")))
        except WeftError as error:
            connection.send(("failure", ("bad-input", str(error), "")))
        except Exception as error:
            text = f"{type(error).__name__}: {printable(str(error), 200)}"
            connection.send(("failure", ("bug", text, "".join(traceback.format_exception(error)))))


def _limit_memory(memory_bytes: int) -> None:
    """Let allocations beyond the limit fail, where the system can: those of data, not of reserved addresses."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _teller(connection: Connection) -> Callable[[int, int], None]:
    """Tells progress, ten times a second at most."""
    next_s = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s or done >= total:
            next_s = time.monotonic() + 0.1
            connection.send(("progress", (done, total)))

    return tell
