"""The words of a shell script's commands: variables, arrays and joined lines, with the quotes of ``shlex``.

Read are ``NAME=...``, ``NAME=( ... )``, ``$NAME``, ``${NAME}``, ``${NAME:-default}`` and ``${NAME[@]}``.  What the
text does not set stays as it is written, except for defaults.  A command that needs anything else (output of another,
arithmetic, what conditions, loops and functions set or start) is refused, with its line.  Nothing is executed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.errors import BadInput

LARGEST_TEXT = 1_000_000
OPEN = re.compile(r"\$([A-Za-z_]\w*|[0-9@*])", re.ASCII)
"""What has no value in a word."""

_BRACED = r"\$\{(?>\$\{[^{}]*\}|[^{}])*+\}"
_QUOTED = rf"'[^']*'|\"(?>\\.|{_BRACED}|[^\"\\])*+\""
_WITHIN = rf"[^()'\"]|{_QUOTED}"
_OUTPUT = rf"\$\((?>{_WITHIN}|\((?>{_WITHIN}|\((?>{_WITHIN}|\((?>{_WITHIN})*+\))*+\))*+\))*+\)|`[^`]*`"
_LIST = rf"=\((?>(?<=\s)#[^\n]*|{_QUOTED}|{_OUTPUT}|{_BRACED}|\\.|[^()'\"\\])*+\)"
_WORD = rf"(?>{_LIST}|{_QUOTED}|{_OUTPUT}|{_BRACED}|\\[^\n]|[^\s;|&()<>\\])++"
_ARRAY = re.compile(_LIST, re.DOTALL)
_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t]|\\\n)++)|(?P<comment>#[^\n]*)|(?P<paren>[()])|(?P<end>&&|\|\||;+|[|\n]|&(?!>))"
    r"|(?P<here><<-? *['\"]?(?P<tag>\w+)[^\n]*(?=\n)(?P<body>.*?)(?:\n\t*(?P=tag)(?=\n|\Z)|\Z))"
    rf"|(?P<moved>[0-9&]?[<>]+(?:&[0-9-]|[ \t]*{_WORD})?)|(?P<word>{_WORD})|(?P<other>.)",
    re.DOTALL,
)
_PART = re.compile(rf"{_QUOTED}|(?>{_OUTPUT}|{_BRACED}|\\.|[^'\"\\])++|.", re.DOTALL)
_REFERENCE = re.compile(rf"\\.|{_OUTPUT}|{_BRACED}|\$(?:[A-Za-z_]\w*|[^\s'\"])?|`", re.DOTALL | re.ASCII)
_VALUE = re.compile(
    r"\$(\{)?(?P<name>[A-Za-z_]\w*|[0-9@*])(?:(?P<all>\[[@*]\])|:-(?P<default>.*))?(?(1)\})", re.DOTALL | re.ASCII
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)((?:\[[^\]]*\])?\+?)=", re.ASCII)
_DECLARING = frozenset({"export", "declare", "local", "readonly"})
_SETTING = frozenset({"for", "select", "read", "unset", "mapfile"})
_OPENED = frozenset({"if", "while", "until", "case", "{", "("})
_SHUT = frozenset({"fi", "done", "esac", "}", ")"})
_LEADING = _OPENED | {"then", "do", "else", "elif", "function", "!"}


class _RefusedError(BadInput):
    """Syntax that is not read; what does not need it is."""


@dataclass(slots=True)
class Command:
    """The words of a program that would start, or of a variable; as they are written where something is refused."""

    words: list[str]
    refused: BadInput | None = None

    @property
    def flat(self) -> list[str]:
        """The words; a quoted command line, which another shell would take apart, gives its own."""
        return [part for word in self.words for part in (word.split() if "--" in word else [word])]


@dataclass(slots=True)
class Script:
    """What starts, in order, the last value of every variable, and what people should be told."""

    where: str
    commands: list[Command] = field(default_factory=list)
    variables: dict[str, Command] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    line: int = 1
    left: int = LARGEST_TEXT
    inside: list[str] = field(default_factory=list)

    def command(self, words: list[str], joint: str) -> bool:
        """Take a command; whether it ends the script."""
        while words and (words[0] in _LEADING or (words[0] in _SHUT and self.inside)):
            if words[0] in _OPENED:
                self.inside.append(words[0])
            elif words[0] in _SHUT and (words[0] != ")" or self.inside[-1] == "("):
                self.inside.pop()
            words = words[2 if words[0] == "function" else 1 :]
        sometimes = bool(self.inside) or joint in ("&&", "||")
        number = next((n for n, word in enumerate(words) if not _ASSIGNED.match(word)), len(words))
        if not words:
            return False
        if number == len(words) or words[0] in _DECLARING:
            for match in filter(None, map(_ASSIGNED.match, words)):
                self.assign(match, sometimes)
        elif words[0] in _SETTING:
            for name in words[1:2] if words[0] in ("for", "select") else words[1:]:
                self.variables[name] = Command([], self.refused(" ".join(words)))
            self.inside += ["for"] if words[0] in ("for", "select") else []
        elif words[0] in ("source", ".", "eval"):
            self.notes.append(f"what {' '.join(words)[:60]} sets is not read")
        else:
            self.start(words[number:], self.refused(" ".join(words)) if self.inside or joint == "<<" else None)
        return words[0] == "exit" and not sometimes

    def start(self, words: list[str], refused: BadInput | None = None) -> None:
        """A program starts."""
        try:
            self.commands.append(Command([part for word in words for part in self.expanded(word)], refused))
        except _RefusedError as error:
            self.commands.append(Command(words, error))

    def assign(self, match: re.Match[str], sometimes: bool) -> None:
        """Set the variable of ``NAME=...``."""
        name, operator, raw = match[1], match[2], match.string[match.end() :]
        items = (
            [match[0] for match in _TOKEN.finditer(raw[1:-1]) if match["word"]]
            if _ARRAY.fullmatch(f"={raw}")
            else None
        )
        try:
            if sometimes or operator:
                raise self.refused(match.string)
            value = (
                [" ".join(self.expanded(raw))] if items is None else [w for item in items for w in self.expanded(item)]
            )
            self.variables[name] = Command(value)
        except _RefusedError as error:
            self.variables[name] = Command(re.findall(r"[^\s\"'()]+", raw), error)

    def refused(self, words: str) -> _RefusedError:
        words = " ".join(words.split())
        problem = f"{words if len(words) < 60 else words[:57] + '...'} is not read"
        return _RefusedError(problem, where=f"{self.where}: line {self.line}", remedy="paste the expanded arguments")

    def expanded(self, raw: str) -> list[str]:
        """The words that a word becomes."""
        try:
            return shlex.split("".join(map(self.part, _PART.findall(raw))))
        except ValueError:
            raise self.refused(raw) from None

    def part(self, text: str) -> str:
        """Quoted or plain text with values for its variables, as ``shlex`` reads it."""
        if text[0] == "'":
            return text
        quoted = text[0] == '"' and len(text) > 1
        inner = text[1:-1] if quoted else text
        if quoted and (match := _VALUE.fullmatch(inner)) and match["all"] == "[@]":
            return " ".join(map(shlex.quote, self.value(match)))
        special = r'["\\]' if quoted else r"[\"'\\]"
        filled = _REFERENCE.sub(lambda match: self.reference(match[0], special), inner)
        return f'"{filled}"' if quoted else filled

    def reference(self, text: str, special: str) -> str:
        """The value of ``$NAME`` with a backslash before each special character; an escaped character as it is."""
        if text[0] == "\\":
            return text[1:].strip() if text[1:] in ("\n", "$", "`") else text
        if (match := _VALUE.fullmatch(text)) is None:
            raise self.refused(text)
        return re.sub(special, r"\\\g<0>", " ".join(self.value(match)))

    def value(self, match: re.Match[str]) -> list[str]:
        """The items of a variable, the first alone without ``[@]``."""
        name, every, default = match.group("name", "all", "default")
        value = self.variables.get(name)
        if value and value.refused:
            raise value.refused
        words = [f"${name}"] if value is None else value.words if every else value.words[:1]
        if default is not None and ("".join(words) == "" or OPEN.fullmatch("".join(words))):
            return self.expanded(default)
        self.left -= sum(map(len, words)) + len(words)
        if self.left < 0:
            raise too_long(self.where)
        return words


def too_long(where: str) -> BadInput:
    return BadInput(f"longer than {LARGEST_TEXT} characters", where=where, remedy="give the command only")


def read(text: str, *, where: str) -> Script:
    """The commands of a script; a text that begins with a flag is a list of arguments, with quotes and variables.

    Raises:
        BadInput: more than ``LARGEST_TEXT`` characters, before or after variables have their values.
    """
    if len(text) > LARGEST_TEXT:
        raise too_long(where)
    script, text = Script(where), text.replace("\r\n", "\n")
    if text.lstrip().startswith("--"):
        script.start([text.replace("\\\n", " ")])
        return script
    for script.line, joint, words in _commands(text):
        if script.command(words, joint):
            break
    return script


def _commands(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """The line of each command, what joins it to the one before, and its words as they are written."""
    line, first, joint, words = 1, 1, "", list[str]()
    for token in _TOKEN.finditer(f"{text}\n"):
        kind, piece = token.lastgroup, token[0]
        if kind == "word":
            first = first if words else line
            words.append(piece)
        elif kind in ("end", "paren"):
            yield first, joint, words
            words, joint = [], piece
            if kind == "paren":
                yield line, "", [piece]
        elif kind == "here":
            yield line, "<<", ["<<", *token["body"].split()]
        line += piece.count("\n")
