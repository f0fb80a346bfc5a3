"""Host lists as SLURM writes them: ``node[01-04,07],gpu[1-2]x[0-3]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from weft.errors import BadInput

MOST_NAMES = 1_000_000
_LONGEST = 1_000_000
_PART = re.compile(r"[^\[\],\s]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")


def expand(text: str, *, where: str, most: int = MOST_NAMES) -> list[str]:
    """The names of a host list, in its order.

    Raises:
        BadInput: malformed, or more than ``most`` names.
    """
    if len(text) > _LONGEST:
        raise BadInput("the host list is too long", where=where)
    found: list[str] = []
    for item in _items(text, where):
        names = [""]
        for part in _parts(item, where):
            ends = list(_ranged(part[1:-1], where, most)) if part.startswith("[") else [part]
            if len(names) * len(ends) + len(found) > most:
                raise BadInput(f"{item[:40]!r} stands for more than {most} names", where=where)
            names = [name + end for name in names for end in ends]
        found += names
    return found


def compress(names: Iterable[str]) -> str:
    """A host list of some names: runs of numbers with the same prefix and width become ranges."""
    runs: list[tuple[str, int, list[list[int]]]] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            runs.append((name, 0, []))
            continue
        prefix, width, number = match[1], len(match[2]), int(match[2])
        if runs and runs[-1][:2] == (prefix, width):
            ranges = runs[-1][2]
            if ranges[-1][1] + 1 == number:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        else:
            runs.append((prefix, width, [[number, number]]))
    return ",".join(_written(*run) for run in runs)


def _written(prefix: str, width: int, ranges: list[list[int]]) -> str:
    if not ranges:
        return prefix
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f"{prefix}{ranges[0][0]:0{width}}"
    shown = (f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in ranges)
    return f"{prefix}[{','.join(shown)}]"


def _items(text: str, where: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
        if depth not in (0, 1):
            break
    if depth:
        raise BadInput(f"{text[:60]!r} has unbalanced brackets", where=where, remedy="write it like node[01-04]")
    yield text[start:].strip()


def _parts(item: str, where: str) -> list[str]:
    parts = _PART.findall(item)
    if not item or "".join(parts) != item or not item.isprintable():
        raise BadInput(f"{item[:60]!r} is not a host name", where=where, remedy="write it like node[01-04]")
    return parts


def _ranged(text: str, where: str, most: int) -> Iterator[str]:
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(high) < int(low):
            remedy = "write it like [01-04,7]"
            raise BadInput(f"{piece[:40]!r} is not a range of numbers", where=where, remedy=remedy)
        if int(high) - int(low) >= most:
            raise BadInput(f"[{piece[:40]}] stands for more than {most} names", where=where)
        yield from (f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1))
