"""Hostile inputs made of good ones: the same reader and number make the same bytes, everywhere and always."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from functools import lru_cache
from random import Random
from typing import Any

import yaml

LARGEST = 400_000
"""Bytes of an input."""


class Raw(str):
    """A value as it stands in the text, which no writer would make."""


DIGITS = "9" * 4301
"""One digit more than Python turns into a number."""
HOSTILE_NUMBERS = (
    *("9" * 400, DIGITS, f"-{DIGITS}", f"{DIGITS}.5", "0x" + "f" * 5000, "1e999", "-1e999", "-0", "1e-999", "1e308"),
    *("5e-324", "NaN", "Infinity", "-Infinity", "nan", "-inf", "1979-05-27", "00", "+1", "0x7fffffff"),
)
HOSTILE_VALUES: tuple[Any, ...] = (
    *map(Raw, HOSTILE_NUMBERS),
    *(None, True, False, 0, -1, 1, 2, 3, 0.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, 10**15, 10**30, 1e-9, 1e15, 1e300),
    *("", " ", "\t", "\n", "0", "-1", "nan", "inf", "1e999", DIGITS, "\u00b2", "\u0663", "\u202e", "\ufeff", "é" * 70),
    *("\x00", "\x1b[31m", "\x07", "\x7f", "\x9b2J", "\ud800", "a\rb", "..", "/", "\\", "%s", "{0}", "*", "[", "n[0-9"),
    *("[0-999999]", "a" * 300, "a.b.c", "1 GB/s", "1e400 GB", "0.0.0.0/0", "::/0", "true", "null", "~", "#", "'", '"'),
    *([], {}, [[]], [{}], {"": None}, [None], [0], [""], {"a": {}}, [-1, -1], [0] * 300, ["a", "a"], {"kind": 0}),
)
HUGE_VALUES: tuple[Any, ...] = (
    *("a" * 140_000, "\n" * 100_000, "[" * 140_000, "0" * 140_000, "(a" * 50_000, "x 1" * 30_000),
)
HOSTILE_TEXT = (
    *("\n" * 1000, " " * 1000, "\t", "\r", "\r\n", "\x0b", "\x0c", "\x00", "\x1b]0;x\x07", "\x85", "\u2028", "\ufeff"),
    *("[" * 200, "(" * 200, "{" * 200, "<a>" * 200, "- " * 200, ".a" * 100, "a=" * 100, "," * 500, '"', "'", "\\"),
    *("#", "\ud800", "\udcff", "=", ":", "&a [*a]", "!!python/object:os.system", "%", "$(a)"),
    "<!DOCTYPE a [<!ENTITY b 'c'>]>",
)
HUGE_TEXT = (
    *("\n" * 200_000, " " * 300_000, "a" * 140_000, "[" * 140_000, "(" * 140_000, "9" * 140_000, "a," * 90_000),
)
_TOKEN = re.compile(rb"\"[^\"\n]{0,200}\"|[\w.+-]+", re.ASCII)


def mutated(draw: Random, seeds: list[bytes], form: str) -> bytes:
    """One input: a seed changed as a tree, as text, or both."""
    raw = draw.choice(seeds)
    if form not in ("text", "bytes") and draw.random() < 0.7:
        raw = as_bytes(dumped(tree_mutated(draw, loaded(raw, form), loaded(draw.choice(seeds), form)), form))
        if draw.random() < 0.9:
            return raw[:LARGEST]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        raw = draw.choice(BYTE_CHANGES)(draw, raw, seeds)
    return raw[:LARGEST]


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def hostile(draw: Random) -> Any:
    return copy.deepcopy(draw.choice(HUGE_VALUES if draw.random() < 0.02 else HOSTILE_VALUES))


# Trees of JSON, TOML and YAML


@lru_cache(maxsize=64)
def loaded(raw: bytes, form: str) -> Any:
    """The tree of a seed, of which changes take copies."""
    if form == "toml":
        return tomllib.loads(raw.decode())
    if form == "yaml":
        return yaml.load(raw, yaml.BaseLoader)
    return [json.loads(line) for line in raw.splitlines()] if form == "lines" else json.loads(raw)


def dumped(value: Any, form: str) -> str:
    """The tree as text; YAML takes JSON as it is."""
    if form == "lines":
        return "\n".join(map(_json, value)) + "\n" if isinstance(value, list) else _json(value)
    if form != "toml":
        return _json(value)
    if not isinstance(value, dict):
        return f"value = {_toml(value)}\n"
    return "".join(f"{_key(key)} = {_toml(one)}\n" for key, one in value.items())


def _json(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_json(one)}" for key, one in value.items()) + "}"
    return "[" + ", ".join(map(_json, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _toml(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    plain = value is None or isinstance(value, str | int | float)
    return json.dumps(value or "" if value is None else value, ensure_ascii=False) if plain else str(value)


def _key(key: Any) -> str:
    return str(key) if isinstance(key, Raw) else json.dumps(str(key))


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every value in a tree, as what holds it and its key or index there."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            _places(value[key], found)
    return found


def tree_mutated(draw: Random, whole: Any, other: Any) -> Any:
    top = {"": copy.deepcopy(whole)}
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = _places(top, [])
        if not places:  # the whole was taken away
            break
        holder, key = draw.choice(places[1:] or places)
        draw.choice(TREE_CHANGES)(draw, holder, key, draw.choice(_places([other], [])))
    return top.get("", {})


def _replace(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    holder[key] = hostile(draw)


def _transplant(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    holder[key] = copy.deepcopy(other[0][other[1]])


def _remove(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    del holder[key]


def _repeat(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    times = draw.choice((1, 1, 2, 40))
    if isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(times)]
    else:
        holder.update({f"{key}{i}": copy.deepcopy(holder[key]) for i in range(times)})


def _wrap(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    holder[key] = draw.choice(([holder[key]], {"a": holder[key]}, [[holder[key]]], {str(key): holder[key]}))


def _nest(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    depth = draw.choice((20, 70, 200, 2000))
    opened, closed = draw.choice((("[", "]"), ('{"a": ', "}")))
    holder[key] = Raw(opened * depth + "1" + closed * depth)


def _rename(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    if not isinstance(holder, dict) or key not in holder:
        return
    name = hostile(draw)
    name = Raw(".".join("ab" * draw.choice((2, 40, 3000)))) if draw.random() < 0.1 else str(name)
    holder[name] = holder.pop(key)


def _tweak(draw: Random, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    value = holder[key]
    if isinstance(value, str) and not isinstance(value, Raw):
        changed = draw.choice(BYTE_CHANGES)(draw, as_bytes(value), [as_bytes(value)])
        holder[key] = changed.decode("utf-8", "replace")
    elif isinstance(value, int | float):
        number = float(value) if draw.random() < 0.3 and abs(value) < 1e300 else value
        holder[key] = draw.choice((-number, number + 1, number - 1, number * 2, number * 10**9, str(number), [number]))


TREE_CHANGES = (_replace, _replace, _replace, _transplant, _remove, _repeat, _wrap, _nest, _rename, _tweak, _tweak)


# Bytes


def _span(draw: Random, raw: bytes) -> tuple[int, int]:
    start = draw.randint(0, len(raw))
    return start, min(len(raw), start + draw.choice((1, 2, 8, 64, 1000)))


def _flip(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw.choice((1, 1, 3, 10)) if raw else 0):
        changed[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    at = draw.randint(0, len(raw))
    return raw[:at] if draw.random() < 0.8 else raw[at:]


def _drop(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    start, stop = _span(draw, raw)
    return raw[:start] + raw[stop:]


def _double(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    start, stop = _span(draw, raw)
    return raw[:stop] + raw[start:stop] * draw.choice((1, 1, 3, 50)) + raw[stop:]


def _splice(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    other = draw.choice(seeds)
    return raw[: draw.randint(0, len(raw))] + other[draw.randint(0, len(other)) :]


def _insert(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    start, stop = _span(draw, raw)
    stop = start if draw.random() < 0.5 else stop
    text = draw.choice(HUGE_TEXT if draw.random() < 0.02 else HOSTILE_TEXT)
    return raw[:start] + as_bytes(text) + raw[stop:]


def _token(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    tokens = list(_TOKEN.finditer(raw))
    if not tokens:
        return raw
    one, other = draw.choice(tokens), draw.choice(tokens)
    digits = one[0].strip(b'"').isdigit()
    value = draw.choice(HOSTILE_NUMBERS) if digits and draw.random() < 0.5 else hostile(draw)
    new = other[0] if draw.random() < 0.3 else as_bytes(value if isinstance(value, str) else _json(value))
    quoted = one[0].startswith(b'"') and not new.startswith(b'"') and draw.random() < 0.7
    return raw[: one.start()] + (b'"' + new + b'"' if quoted else new) + raw[one.end() :]


def _lines(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    lines = raw.splitlines(keepends=True)
    if not lines:
        return raw
    at = draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at:at] = [lines[at]] * draw.choice((1, 1, 3, 100))
    elif kind == 2:
        draw.shuffle(lines)
    else:
        lines[at] = draw.choice(lines)
    return b"".join(lines)


def _only(draw: Random, raw: bytes, seeds: list[bytes]) -> bytes:
    return as_bytes(draw.choice((*HOSTILE_TEXT, *(str(value) for value in HOSTILE_VALUES))))


BYTE_CHANGES = (_flip, _flip, _cut, _drop, _double, _splice, _insert, _insert, *[_token] * 5, _lines, _lines, _only)
