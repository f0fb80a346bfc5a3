"""Whether torchrun started this process, and which rank it is.  Nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import BadInput, WeftError


def launched() -> bool:
    """Whether torchrun, or what sets the same variables, started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def launched_world() -> int | None:
    """Ranks that torchrun started, None without it."""
    return variable("WORLD_SIZE", 1) if launched() else None


def speaks() -> bool:
    """Whether this process prints what all processes would print alike: the first of a machine does."""
    return not launched() or variable("LOCAL_RANK", variable("RANK", 0)) == 0


@contextmanager
def said_once() -> Iterator[None]:
    """An expected error inside, before ranks have met, is raised by the process that ``speaks``; the others
    leave with its exit code."""
    try:
        yield
    except WeftError as error:
        if speaks():
            raise
        raise SystemExit(error.exit_code) from None


def variable(name: str, default: int) -> int:
    """A whole number of the environment.

    Raises:
        BadInput: it is none.
    """
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise BadInput(f"{text[:40]!r} is no number", where=name, remedy="launch with torchrun, or unset it")
    return int(text)
