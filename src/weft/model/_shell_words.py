"""Words of shell scripts: variables and their expansion, quotes, and whole-number arithmetic.

What has no value stays in a word as an ``OPEN`` mark: the name of the variable, or of the program, between two
``MARK`` characters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.errors import BadInput

LARGEST_TEXT = 1_000_000
DEEPEST = 20
"""Files, functions and here-documents within each other, and expansions within a word."""
MARK = "\0"
"""Stands before and after the name of what is open."""

Value = str | list[str]

_MOST_NUMBER = 10**18
OPEN = re.compile(f"{MARK}([^{MARK}]*){MARK}")
_SPECIAL = re.compile(r"[\\\"'`$]")
_BRACED = re.compile(r"(#?)(\w+|[@*#?$!-])(\[[^\]]*\])?(?:(:?[-+=?])(.*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WHOLE_ARRAY = re.compile(r'"\$\{(\w+)\[@\]\}"')
_FOLDER = re.compile(r"\b(?:dirname|pwd|readlink|realpath)\b")


def open_names(word: str) -> list[str]:
    """Names of what is open in a word."""
    return OPEN.findall(word)


def shown(word: str) -> str:
    """A word with what is open as a script would write it: ``$NAME``."""
    return OPEN.sub(lambda match: f"${match[1]}", word)


def too_long(where: str) -> BadInput:
    return BadInput(f"longer than {LARGEST_TEXT} characters", where=where, remedy="give the command only")


@dataclass(slots=True)
class Words:
    """Variables, and what words become with them.

    ``budget`` bounds the characters that expansion makes; ``assumed`` says that something asked what the
    environment or the script's arguments hold.
    """

    where: str
    variables: dict[str, Value] = field(default_factory=dict)
    budget: int = 4 * LARGEST_TEXT
    assumed: bool = False

    def spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise too_long(self.where)

    def one(self, raw: str) -> str:
        """A word without splitting."""
        return "".join(text if isinstance(text, str) else " ".join(text) for text, _ in self.pieces(raw))

    def quoted(self, text: str) -> str:
        """The text of a here-document or within double quotes."""
        return "".join(t if isinstance(t, str) else " ".join(t) for t, _ in self.pieces(text, quoted=True))

    def fields(self, raw: str) -> list[str]:
        """The words that a word becomes: unquoted variables split at blanks, arrays at their items."""
        whole = _WHOLE_ARRAY.fullmatch(raw)
        if whole and not self.variables.get(whole[1], [""]):
            return []
        found: list[str] = []
        current: str | None = None
        for text, splits in self.pieces(raw):
            if isinstance(text, str) and not splits:
                current = (current or "") + text
                continue
            items = text if isinstance(text, list) else [text]
            parts = [part for item in items for part in (item.split() if splits else [item])]
            for number, part in enumerate(parts):
                if number or (isinstance(text, str) and current is not None and text[:1].isspace()):
                    found += [] if current is None else [current]
                    current = None
                current = (current or "") + part
        return found if current is None else [*found, current]

    def pieces(self, raw: str, *, quoted: bool = False, depth: int = 0) -> Iterator[tuple[Value, bool]]:
        """Texts and lists that a word consists of, and whether they split at blanks."""
        at, inside = 0, quoted
        while at < len(raw):
            match = _SPECIAL.search(raw, at)
            end = match.start() if match else len(raw)
            if end > at:
                yield raw[at:end], False
                at = end
                continue
            char = raw[at]
            if char == "\\":
                follows = raw[at + 1 : at + 2]
                if follows != "\n":
                    yield (f"\\{follows}" if inside and follows not in '$`"\\' else follows), False
                at += 2
            elif char == "'":
                end = -1 if inside else raw.find("'", at + 1)
                yield (raw[at + 1 : end] if end > 0 else "" if not inside else "'"), False
                at = end + 1 if end > 0 else at + 1
            elif char == '"':
                inside = not inside if not quoted else inside
                yield ('"' if quoted else ""), False
                at += 1
            else:
                end = _closing(raw, at)
                value = self.substitute(raw[at:end], depth)
                self.spend(len(value) if isinstance(value, str) else sum(map(len, value)) + len(value))
                yield value, not inside
                at = end

    def substitute(self, text: str, depth: int) -> Value:
        """The value of ``$NAME``, ``${...}``, ``$((...))``, or a command whose output nobody knows."""
        if text == "$":
            return text
        if depth >= DEEPEST:
            return mark(text[1:40])
        if text.startswith("$(("):
            return self.arithmetic(text[3:].removesuffix("))"))
        if text[0] == "`" or text.startswith("$("):
            inner = text.strip("`").removeprefix("$(").removesuffix(")")
            return "." if _FOLDER.search(inner) else mark(f"({''.join(inner.split()[:1])})")
        if not text.startswith("${"):
            return self.value(text[1:])
        match = _BRACED.fullmatch(text[2:-1])
        if match is None:
            return mark(text[1:40].replace(MARK, ""))
        count, name, index, sign, word = match.groups()
        if count:
            held = self.variables.get(name, [])
            return str(len(held) if index or isinstance(held, str) else 0) if name in self.variables else "0"
        value = self.value(name, index)
        unset = name not in self.variables or (sign[:1] == ":" and not value) if sign else False
        if sign and sign[-1] == "+":
            return "" if unset else self._word(word, depth)
        if sign and sign[-1] in "-=" and unset:
            chosen = self._word(word, depth)
            if sign[-1] == "=":
                self.variables[name] = chosen
            return chosen
        return value

    def _word(self, raw: str, depth: int) -> str:
        pieces = self.pieces(raw, depth=depth + 1)
        return "".join(t if isinstance(t, str) else " ".join(t) for t, _ in pieces)

    def value(self, name: str, index: str | None = None) -> Value:
        if name == "#":
            self.assumed = True
            return "0"
        if name == "PWD" and name not in self.variables:
            return "."
        if name not in self.variables:
            return mark(name)
        held = self.variables[name]
        if isinstance(held, str):
            return held if index is None or index in ("[@]", "[*]", "[0]") else mark(name)
        if index in ("[@]", "[*]"):
            return held
        at = int(index[1:-1]) if index and index[1:-1].isdecimal() and len(index) < 9 else 0
        return held[at] if at < len(held) else ""

    def arithmetic(self, text: str) -> str:
        """Whole numbers with + - * / % and brackets; anything else is open."""
        plain = "".join(t if isinstance(t, str) else " ".join(t) for t, _ in self.pieces(text, quoted=True, depth=1))
        names = open_names(plain)
        if not names:
            try:
                tree = ast.parse(plain.strip(), mode="eval") if len(plain) < 1000 else None
                value = None if tree is None else self._number(tree.body)
            except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
                value = None
            if value is not None:
                return str(value)
            names = re.findall(r"[A-Za-z_]\w*", plain)[:1]
        return mark(names[0] if names else "((...))")

    def _number(self, node: ast.expr, depth: int = 0) -> int:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(node.value, bool):
                return value
            case ast.Name(id=name) if depth < DEEPEST:
                held = self.variables.get(name)
                if isinstance(held, str) and re.fullmatch(r"\d{1,18}", held):
                    return int(held)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._number(inner, depth + 1)
            case ast.BinOp(left=left, op=sign, right=right):
                a, b = self._number(left, depth + 1), self._number(right, depth + 1)
                found = _apply(sign, a, b)
                if abs(found) <= _MOST_NUMBER:
                    return found
        raise ValueError("no whole number")


def _apply(sign: ast.operator, a: int, b: int) -> int:
    match sign:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
        case ast.Mod():
            return a - b * _apply(ast.Div(), a, b)
    raise ValueError("not modelled")


def mark(name: str) -> str:
    plain = name.replace(MARK, "")
    found = None if plain.startswith("(") else _IDENTIFIER.search(plain) or _NAME.search(plain)
    return f"{MARK}{found[0] if found else plain}{MARK}"


def _closing(raw: str, at: int) -> int:
    """Where a substitution that starts at ``at`` ends."""
    if raw[at] == "`":
        end = raw.find("`", at + 1)
        return len(raw) if end < 0 else end + 1
    if raw[at + 1 : at + 2] not in ("{", "("):
        match = _NAME.match(raw, at + 1)
        return match.end() if match else at + 1
    pairs, number = {"{": "}", "(": ")"}, at + 1
    closers: list[str] = []
    while number < len(raw):
        char = raw[number]
        if char == "\\":
            number += 1
        elif char in pairs and (raw[number - 1] == "$" or (char == "(" and closers)):
            closers.append(pairs[char])
        elif closers and char == closers[-1]:
            closers.pop()
            if not closers:
                return number + 1
        number += 1
    return len(raw)
