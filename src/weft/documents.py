"""JSON, TOML and CSV as people write them, with messages for people.

Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import reprlib
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from weft.errors import BadInput
from weft.files import CONTROLS

Found = TypeVar("Found")
_LONGEST_KEY = 64
_NAME = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = re.compile(rf"(?<![\w-]){_NAME}(?:[ \t]*\.[ \t]*{_NAME}){{{_LONGEST_KEY}}}")
"""A key of TOML with many dots, for which tomllib takes time and memory in the square of their number."""
_ODD = re.compile(r"(?<!\\)(?:\\\\)*\\(?:u00[01789]|b|u[dD][89a-fA-F])")
"""A control character or half a character as JSON writes it, whose backslash is not itself escaped."""
_MOST_DIGITS = 300
"""Of whole numbers: all of them become floats."""
_TOO_LONG = f"a number has more than {_MOST_DIGITS} digits"
_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of pairs that JSON writes for one character: alone they are not text."""


def parse_json(text: str, where: str, *, remedy: str | None = None) -> Any:
    """What a JSON text holds; keys may be given once, and every number is finite."""
    try:
        result = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once
        )
        return _usable(result) if _ODD.search(text) else result
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not valid JSON: {_problem(error)}", where=where, remedy=remedy) from None


def csv_rows(
    text: str, where: str, needed: Sequence[str], known: Sequence[str] | None = None
) -> Iterator[tuple[dict[str, str], str]]:
    """The rows of a CSV table by its heading, blank ones left out, each with its place.

    Args:
        needed: columns that there must be.
        known: columns that there may be; any by default.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        wrong = [f"lacks the column {name}" for name in needed if name not in header]
        wrong += [f"has the column {name[:40]!r}" for name in header if known is not None and name not in known]
        wrong += [f"has the column {name[:40]!r} twice" for name, times in Counter(header).items() if times > 1]
        if wrong:
            raise BadInput(wrong[0], where=f"{where}: line 1", remedy=f"columns: {', '.join(known or needed)}")
        for values in reader:
            if any(value.strip() for value in values):
                place = f"{where}: line {reader.line_num}"
                if len(values) != len(header):
                    raise BadInput(f"{len(values)} values for {len(header)} columns", where=place)
                yield dict(zip(header, (value.strip() for value in values), strict=True)), place
    except csv.Error as error:
        raise BadInput(f"is no CSV ({error})", where=f"{where}: line {reader.line_num}") from None


def parse_toml(text: str, where: str, *, remedy: str | None = None) -> dict[str, Any]:
    """The tables of a TOML text."""
    try:
        if _DOTTED.search(text):
            raise ValueError(f"a key has more than {_LONGEST_KEY} dots")
        return _usable(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not valid TOML: {_problem(error)}", where=where, remedy=remedy) from None


def _problem(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error)
    return _TOO_LONG if text.startswith("Exceeds the limit") else text


def _usable(found_type: Found) -> Found:
    """The value, all of whose names, texts and whole numbers can be shown and become floats."""
    waiting: list[Any] = [found_type]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if not item.isprintable() and (odd := CONTROLS.search(item) or _HALVES.search(item)):
                kind = "control character" if ord(odd[0]) < 256 else "half character"
                raise ValueError(f"{reprlib.repr(item)} holds the {kind} {ord(odd[0]):#04x}")
        elif isinstance(item, dict):
            waiting += item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, int) and abs(item) >= 10**_MOST_DIGITS:
            raise ValueError(_TOO_LONG)
    return found_type


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(_TOO_LONG)
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{reprlib.repr(text)} is not a finite number")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table
