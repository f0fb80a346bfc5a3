"""The errors that people see.

    WeftError
    |- BadInput            exit 2: a file, field or value that cannot be used
    |  |- UnknownName      a name that is in no catalogue (with near names)
    |  `- Unsupported      understood, but outside what Weft models
    |- MissingExtra        exit 2: a feature whose optional packages are absent
    `- NothingFeasible     exit 3: the search ended with no layout; counts per reason

Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_MESSAGE = 2000
_KEPT_END = 500
"""Characters at the end of a long message that are kept: the remedy stands there."""
_NEAR, _LISTED = 3, 24
"""Most names that a message suggests, and that it lists where none is near."""


class WeftError(Exception):
    """Base of every expected error; ``exit_code`` is what the command line returns, ``temporary`` says that the same
    again may succeed.  Its text has at most ``LONGEST_MESSAGE`` characters, control characters escaped."""

    exit_code = 2
    temporary = False

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message, LONGEST_MESSAGE))


class BadInput(WeftError):
    """A value that cannot be used: what is wrong, where, why, and what to change.

    Args:
        what: the fact, with its numbers ("bandwidth is negative: -3 GB/s").
        where: file and field ("cluster.toml: tiers[1].bandwidth"), or the option's name.
        remedy: what to change.
    """

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(f"{where}: {what}" if where else what)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return printable(f"{text} -- {self.remedy}" if self.remedy else text, LONGEST_MESSAGE)


class UnknownName(BadInput):
    """A name that no catalogue holds; suggests the nearest ones, and says which command lists all.

    Args:
        kind: what it should be the name of ("model").
        name: what was given.
        known: the names that there are.
        where: as in ``BadInput``.
        listed: the command that lists them ("weft info models").
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, where: str | None = None, listed: str | None = None
    ) -> None:
        names = sorted(known)
        word = name.strip().lower()
        near = difflib.get_close_matches(word, names, n=_NEAR, cutoff=0.5)
        near += [name for name in names if len(word) > 1 and word in name.lower() and name not in near]
        if near:
            remedy = f"did you mean {' or '.join(near[:_NEAR])}?" + (f" ({listed} lists all)" if listed else "")
        else:
            left = len(names) - _LISTED
            remainder = f", and {left:,} more" + (f" ({listed} lists all)" if listed else "") if left > 0 else ""
            remedy = f"known: {', '.join(names[:_LISTED])}{remainder}"
        super().__init__(f"unknown {kind} {name!r}", where=where, remedy=remedy)


class Unsupported(BadInput):
    """Input that is well formed but changes shape or cost in a way that Weft does not model."""


class MissingExtra(WeftError):
    """A feature needs packages of an optional extra."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra weft[{extra}] -- pip install {packages_of(extra)}")


def packages_of(extra: str) -> str:
    """The packages of an extra as arguments of pip, so that it does not matter where Weft was installed from."""
    import re
    import shlex
    from importlib import metadata

    marker = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    try:
        lines = metadata.requires("weft") or []
    except metadata.PackageNotFoundError:
        lines = []
    packages = [line.partition(";")[0].strip() for line in lines if marker.search(line)]
    return " ".join(map(shlex.quote, packages or [f"weft[{extra}]"]))


class NothingFeasible(WeftError):
    """A search that found no layout; the message carries counts per reason and a remedy."""

    exit_code = 3


class InDoubt(UserWarning):
    """What a file does not say and Weft had to assume; the command line prints it to stderr.  Its text is bounded and
    escaped as a ``WeftError``'s."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, LONGEST_MESSAGE))


def printable(text: str, longest: int | None = None) -> str:
    """Text for a terminal: what is not a character to look at is escaped, and the middle of a long text left out."""
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() or character in "\n\t\u00a0" else repr(character)[1:-1]
            for character in text
        )
    if longest is None or len(text) <= longest:
        return text
    mark = f" ... ({len(text):,} characters) ... "
    return text[: longest - _KEPT_END - len(mark)] + mark + text[-_KEPT_END:]
