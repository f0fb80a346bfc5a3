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
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from weft.errors import NothingFeasible, WeftError, printable
from weft.studies.runners import end_with_parent, starting_workers

_TURN_S = 0.02
"""How often it is looked whether a process tells something."""
MEMORY_BYTES = 4_000_000_000
"""That a process may have beside what is shared."""
ANSWERS, QUEUE = 64, 256
"""Most answers that are kept, and most questions that wait."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        function: of a module, called with the arguments; one that takes ``progress`` gets it by that keyword.
        arguments: hashable; equal questions share one answer.
        progress: whether the function takes ``progress(done, total)``.
        time_s: the limit of one that may run for minutes, so that one process is left for others; None: the pool's.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    progress: bool = False
    time_s: float | None = None


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

    def __init__(self, pool: Pool, question: Question) -> None:
        self.question, self.tickets = question, 0
        self.progress: tuple[int, int] | None = None
        self.task = asyncio.create_task(pool.answered(self))
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # who left does not ask why

    @property
    def failed_by_chance(self) -> bool:
        """Whether it ended without an answer that would be the same the next time."""
        failure = self.task.exception() if self.task.done() else None
        return failure is not None and getattr(failure, "code", "") not in ("bad-input", "infeasible")


class Ticket:
    """One asker's hold on a question."""

    def __init__(self, pool: Pool, job: _Job) -> None:
        self._pool, self._job = pool, job
        self.number = secrets.token_urlsafe(12)

    @property
    def progress(self) -> tuple[int, int] | None:
        """Steps done and in all, where the question tells."""
        return self._job.progress

    @property
    def done(self) -> bool:
        return self._job.task.done()

    def result(self) -> Any:
        """The answer of a question that is done.

        Raises:
            Failure: there is none.
        """
        if self._job.task.cancelled():
            raise Failure("cancelled", "It was cancelled.")
        return self._job.task.result()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the question, at most so long; whether it ended."""
        await asyncio.wait({self._job.task}, timeout=seconds)
        return self.done

    def cancel(self) -> None:
        """End the question for all who wait for it."""
        self._pool.cancel(self._job)

    def close(self) -> None:
        """Wait no longer."""
        self._pool.drop(self, self._job)


class Pool:
    """Processes that answer questions, and the answers they gave; all in one event loop.

    Args:
        workers: processes.  One of them never takes long questions.
        time_s: limit of a question that is not long.
    """

    def __init__(self, workers: int = 2, time_s: float = 60.0) -> None:
        self.workers, self.time_s = workers, time_s
        self._jobs: OrderedDict[Question, _Job] = OrderedDict()
        self._tickets: dict[str, Ticket] = {}
        self._processes: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._any, self._long = asyncio.Semaphore(0), asyncio.Semaphore(workers - 1)

    async def start(self) -> None:
        """Begin the processes; what is asked meanwhile waits for the first."""
        for _ in range(self.workers):
            await asyncio.to_thread(self._begin)
            self._any.release()

    def _begin(self) -> None:
        self._idle.append(_Worker())
        self._processes.add(self._idle[-1])

    def ask(self, question: Question) -> Ticket:
        """Begin a question, or share it with who asked it before."""
        job = self._jobs.get(question)
        if job is None or job.failed_by_chance:
            if sum(not each.task.done() for each in self._jobs.values()) >= QUEUE:
                raise Failure("busy", "Too many questions wait. Try again in a moment.")
            job = self._jobs[question] = _Job(self, question)
        self._jobs.move_to_end(question)
        done = [each for each, held in self._jobs.items() if held.task.done() and not held.tickets]
        for old in done[: max(0, len(self._jobs) - ANSWERS)]:
            del self._jobs[old]
        job.tickets += 1
        ticket = Ticket(self, job)
        self._tickets[ticket.number] = ticket
        return ticket

    def ticket(self, number: str) -> Ticket | None:
        """The open ticket of a number."""
        return self._tickets.get(number)

    def drop(self, ticket: Ticket, job: _Job) -> None:
        """Take a ticket of a question back."""
        if self._tickets.pop(ticket.number, None) is not None:
            job.tickets -= 1
        if not job.tickets:
            self.cancel(job)

    def cancel(self, job: _Job) -> None:
        """End a question that is under way; who asks it from now on starts a new one."""
        if job.task.cancel() and self._jobs.get(job.question) is job:
            del self._jobs[job.question]

    def close(self) -> None:
        """End all processes."""
        while self._processes:
            self._processes.pop().end()

    async def answered(self, job: _Job) -> Any:
        """The answer of a question.

        Raises:
            Failure: there is none.
        """
        limit_s, usable = job.question.time_s or self.time_s, False
        async with nullcontext() if job.question.time_s is None else self._long, self._any:
            worker = self._idle.pop()
            try:
                async with asyncio.timeout(limit_s):
                    answer = await worker.answer(job)
                usable = True
                return answer
            except Failure as failure:
                usable = failure.code != "memory"
                raise
            except TimeoutError:
                raise Failure("time", f"It took longer than {limit_s:g} s, the limit of one request.") from None
            except (EOFError, OSError):
                raise Failure("memory", "Its process ended, as it does where memory runs out.") from None
            finally:
                if usable:
                    self._idle.append(worker)
                elif worker in self._processes:  # not where the pool has ended
                    self._processes.remove(worker)
                    worker.end()
                    self._begin()


class _Worker:
    """A process that answers one question after another."""

    def __init__(self) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload(["weft.web.pages"])
        self.connection, theirs = context.Pipe()
        alive, self._alive = context.Pipe(duplex=False)
        self._process = context.Process(target=_live, args=(theirs, alive))
        with _STARTING, starting_workers():
            self._process.start()
        theirs.close()
        alive.close()

    async def answer(self, job: _Job) -> Any:
        """The answer of the process to a question."""
        question = job.question
        await asyncio.to_thread(self.connection.send, (question.function, question.arguments, question.progress))
        while True:
            while not self.connection.poll():
                await asyncio.sleep(_TURN_S)
            word, value = self.connection.recv()
            if word == "answer":
                return value
            if word == "failure":
                raise Failure(*value)
            job.progress = value

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.connection.close()
        self._alive.close()


_STARTING = threading.Lock()


def _live(connection: Connection, alive: Connection) -> None:
    """A process's life: questions in, progress and answers out."""
    from weft.commands.plan import plan

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all processes of a terminal; the pool ends them
    end_with_parent(alive)
    plan("gpt2", "a100-8", top=1)  # loads what the first question needs
    _limit_memory()
    while True:
        try:
            function, arguments, progress = connection.recv()
        except EOFError:
            return
        try:
            told = {"progress": _teller(connection)} if progress else {}
            connection.send(("answer", function(*arguments, **told)))
        except MemoryError:
            connection.send(("failure", ("memory", f"It needs more than {MEMORY_BYTES / 1e9:g} GB of memory.", "")))
        except NothingFeasible as error:
            connection.send(("failure", ("infeasible", str(error), "")))
        except WeftError as error:
            connection.send(("failure", ("bad-input", str(error), "")))
        except Exception as error:
            text = f"{type(error).__name__}: {printable(str(error), 200)}"
            connection.send(("failure", ("bug", text, "".join(traceback.format_exception(error)))))


def _limit_memory() -> None:
    """Let allocations beyond the limit fail, where the system can: those of data, not of reserved addresses."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def _teller(connection: Connection) -> Callable[[int, int], None]:
    """Tells progress, ten times a second at most."""
    next_s = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s or done >= total:
            next_s = time.monotonic() + 0.1
            connection.send(("progress", (done, total)))

    return tell
