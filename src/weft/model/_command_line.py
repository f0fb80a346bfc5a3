"""Arguments of a training command, from a list, a pasted command, or the text of a shell script."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from weft.errors import BadInput

LARGEST_TEXT = 1_000_000
LARGEST_VALUE = 10**9

_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_TOKEN = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|([^\s\"']+)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(?![(])[\"']?([^\s\"'();]*)", re.MULTILINE)
_PREFIX = re.compile(r"[A-Za-z_]\w*\+?=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}$]*))?\}|(\w+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The flags of a command: each with its values joined by spaces, or "" when it stands alone.

    A flag given twice keeps its last value, as argparse does.
    """

    values: Mapping[str, str]
    where: str = "arguments"

    def has(self, flag: str) -> bool:
        return flag in self.values

    def text(self, flag: str, default: str = "") -> str:
        return self.values.get(flag) or default

    def bad(self, flag: str, problem: str, remedy: str | None = None) -> BadInput:
        """A ``BadInput`` about a flag."""
        return BadInput(problem, where=f"{self.where}: {flag}", remedy=remedy)

    def optional_integer(self, flag: str, *, least: int = 1, most: int = LARGEST_VALUE) -> int | None:
        """The whole number after a flag, or None where the flag is absent.

        Raises:
            BadInput: no whole number, or out of range.
        """
        if flag not in self.values:
            return None
        text = self.values[flag]
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            remedy = "write the number instead of the variable" if "$" in text else None
            raise self.bad(flag, f"{reprlib.repr(text)} is not a whole number", remedy)
        value = int(text)
        if not least <= value <= most:
            raise self.bad(flag, f"{value} is outside {least} to {most}")
        return value

    def integer(self, flag: str, default: int | None = None, *, least: int = 1, most: int = LARGEST_VALUE) -> int:
        """Like ``optional_integer``, with a default; without one the flag is required."""
        value = self.optional_integer(flag, least=least, most=most)
        if value is not None:
            return value
        if default is None:
            raise BadInput(f"{flag} is missing", where=self.where, remedy=f"add {flag} and its value")
        return default

    def number(self, flag: str, default: float) -> float:
        """A finite number >= 0."""
        text = self.values.get(flag)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.bad(flag, f"{reprlib.repr(text)} is not a number") from None
        if not 0 <= value < math.inf:
            raise self.bad(flag, f"{text} is not a finite number >= 0")
        return value


def parse_arguments(source: str | Sequence[str], *, where: str = "arguments") -> Arguments:
    """The flags in a list of arguments or in the text of a command or shell script.

    In text, line continuations, comments, quotes, bash arrays and variables that the text gives one value are
    understood; other variables stay as they are written.

    Raises:
        BadInput: more than ``LARGEST_TEXT`` characters, or no flag at all.
    """
    words = _words_of_text(source, where) if isinstance(source, str) else [str(word) for word in source]
    values: dict[str, str] = {}
    flag = None
    for word in words:
        name, equals, rest = word.partition("=")
        if _FLAG.fullmatch(name):
            flag = name
            values[flag] = rest if equals else ""
            if equals:
                flag = None
        elif word in _BOUNDARIES:
            flag = None
        elif flag is not None:
            values[flag] = f"{values[flag]} {word}".strip()
    if not values:
        raise BadInput("no argument such as --num-layers", where=where, remedy="give a training command")
    return Arguments(values=MappingProxyType(values), where=where)


_BOUNDARIES = frozenset({"", "(", ")", "\\", ";", "&&", "||", "|", "&"})


def _words_of_text(text: str, where: str) -> list[str]:
    if len(text) > LARGEST_TEXT:
        raise BadInput(f"longer than {LARGEST_TEXT} characters", where=where, remedy="give the command only")
    joined = re.sub(r"\\\r?\n", " ", _COMMENT.sub("", text))
    variables = _variables(joined)
    return [word for line in joined.splitlines() for word in _words_of_line(line, variables)]


def _variables(text: str) -> dict[str, str]:
    """Variables with one value in the text; those assigned differently (in branches) are left out."""
    found: dict[str, str] = {}
    ambiguous = set()
    for match in _ASSIGNMENT.finditer(text):
        value = _expand(match[2], found)
        if found.setdefault(match[1], value) != value:
            ambiguous.add(match[1])
    return {name: value for name, value in found.items() if name not in ambiguous}


def _words_of_line(line: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Words of one line, ended by an empty word: values do not continue on the next line."""
    for match in _TOKEN.finditer(line):
        quoted = match[1] if match[1] is not None else match[2]
        if quoted is None:
            plain = _PREFIX.sub("", match[3], count=1) if _PREFIX.match(match[3]) else match[3]
            yield _expand(plain, variables)
        elif "--" in quoted:
            yield from (_expand(word, variables) for word in quoted.split())
        else:
            yield _expand(quoted, variables)
    yield ""


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """Replace variables that the text assigned so far, or their ``:-`` defaults; others stay."""
    replaced = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] or m[0]), word)
    return replaced if len(replaced) <= 10_000 else word
