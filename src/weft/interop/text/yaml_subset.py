"""The part of YAML that topology files need: nested lists and tables, and plain or quoted values.

Values stay text.  Anchors, aliases, tags, block texts, braces and several documents are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from weft.errors import BadInput

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
DEEPEST = 32
_KEY = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})\s*:(?:\s+(.*))?$")
_REFUSED = {
    "&": "an anchor",
    "*": "an alias",
    "!": "a tag",
    "|": "a block text",
    ">": "a block text",
    "{": "braces",
    "%": "a directive",
    "@": "a reserved character",
    "`": "a reserved character",
}


@dataclass(slots=True)
class _Line:
    number: int
    indent: int
    text: str


class _Parser:
    def __init__(self, lines: list[_Line], where: str, remedy: str) -> None:
        self.lines, self.where, self.remedy, self.at = lines, where, remedy, 0

    def bad(self, what: str, line: _Line) -> BadInput:
        return BadInput(what, where=f"{self.where}: line {line.number}", remedy=self.remedy)

    def block(self, indent: int, depth: int) -> Value:
        """The list or table whose lines begin at ``indent``."""
        line = self.lines[self.at]
        if depth > DEEPEST:
            raise self.bad("nested too deeply", line)
        return self.sequence(indent, depth) if _is_item(line.text) else self.table(indent, depth)

    def sequence(self, indent: int, depth: int) -> list[Value]:
        found: list[Value] = []
        while self.at < len(self.lines) and self.lines[self.at].indent == indent:
            line = self.lines[self.at]
            if not _is_item(line.text):
                break
            rest = line.text[1:].lstrip()
            if not rest:
                self.at += 1
                found.append(self.below(indent, depth, line))
            elif _is_item(rest) or _KEY.match(rest):
                line.indent, line.text = indent + len(line.text) - len(rest), rest
                found.append(self.block(line.indent, depth + 1))
            else:
                self.at += 1
                found.append(self.scalar(rest, line))
        return found

    def table(self, indent: int, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while self.at < len(self.lines) and self.lines[self.at].indent == indent:
            line = self.lines[self.at]
            match = _KEY.match(line.text)
            if match is None:
                raise self.bad(f"{line.text[:40]!r} is not 'key: value'", line)
            if match[1] in found:
                raise self.bad(f"{match[1]} is given twice", line)
            self.at += 1
            rest = match[2] or ""
            found[match[1]] = self.scalar(rest, line) if rest else self.below(indent, depth, line)
        return found

    def below(self, indent: int, depth: int, parent: _Line) -> Value:
        """What is nested under a line: deeper lines, or a list at the same indent; else an empty text."""
        if self.at >= len(self.lines):
            return ""
        line = self.lines[self.at]
        flat_list = line.indent == indent and _is_item(line.text) and not _is_item(parent.text)
        return self.block(line.indent, depth + 1) if line.indent > indent or flat_list else ""

    def scalar(self, text: str, line: _Line) -> Value:
        if text[0] in _REFUSED:
            raise self.bad(f"{_REFUSED[text[0]]} is not read: {text[:40]!r}", line)
        if text[0] == "[":
            if not text.endswith("]") or "[" in text[1:]:
                raise self.bad(f"{text[:40]!r} is not a list in one line", line)
            items = [item.strip() for item in text[1:-1].split(",")]
            return [self.scalar(item, line) for item in items if item]
        if text[0] in "\"'":
            if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:
                raise self.bad(f"{text[:40]!r} is no simple quoted text", line)
            return text[1:-1]
        return text


def parse_yaml(text: str, *, where: str, remedy: str = "keep to SLURM's own format") -> Value:
    """The value that a text in this part of YAML holds.

    Args:
        remedy: what messages tell people to do.

    Raises:
        BadInput: empty, outside this part, or badly indented, with the line.
    """
    lines = [
        _Line(number, len(raw) - len(raw.lstrip(" ")), stripped)
        for number, raw in enumerate(text.splitlines(), start=1)
        if (stripped := _without_comment(raw).strip())
    ]
    if lines and lines[0].text == "---":
        lines = lines[1:]
    if not lines:
        raise BadInput("is empty", where=where)
    parser = _Parser(lines, where, remedy)
    for line in lines:
        if line.text.startswith("\t") or line.text in ("---", "...") or "\t" in line.text:
            raise parser.bad("tabs and several documents are not read", line)
    found = parser.block(lines[0].indent, 0)
    if parser.at < len(lines):
        raise parser.bad("is indented differently from what it belongs to", lines[parser.at])
    return found


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _without_comment(line: str) -> str:
    quote = ""
    for i, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (i == 0 or line[i - 1] in " [,"):
            quote = character
        elif character == "#" and (i == 0 or line[i - 1] == " "):
            return line[:i]
    return line
