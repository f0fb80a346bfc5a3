"""The grammar of shell scripts that start runs: commands, lists, conditions, cases, loops, functions.

Nothing is expanded here: words stay as they are written, with their quotes.  Text that is no shell script is
split at blanks instead of refused, because people also paste bare arguments.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from weft.errors import BadInput

DEEPEST = 40
"""Compound commands within each other."""


@dataclass(frozen=True, slots=True)
class ArrayWord:
    """``NAME=( ... )`` or ``NAME+=( ... )``."""

    name: str
    append: bool
    words: tuple[str, ...]


@dataclass(slots=True)
class HereText:
    """The lines after ``<<WORD``; ``literal`` where the word is quoted."""

    ending: str
    indented: bool
    literal: bool
    text: str = ""


Word = str | ArrayWord | HereText


@dataclass(frozen=True, slots=True)
class Operator:
    """Everything between commands: ``;``, ``&&``, a line's end, ..."""

    text: str


Token = Word | Operator


@dataclass(frozen=True, slots=True)
class Simple:
    """A command: assignments, then a program and its arguments."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """Commands joined by ``&&``, ``||`` or ``|``; ``negated`` says of each whether a ``!`` stands before it."""

    parts: tuple[Node, ...]
    joints: tuple[str, ...]
    negated: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Branches:
    """``if``: conditions with their bodies; the body of ``else`` may be empty."""

    cases: tuple[tuple[Body, Body], ...]
    otherwise: Body


@dataclass(frozen=True, slots=True)
class Choice:
    """``case``: patterns with their bodies."""

    subject: str
    cases: tuple[tuple[tuple[str, ...], Body], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """``for`` with its variable, or ``while`` and ``until`` with a condition."""

    variable: str | None
    condition: Body
    body: Body


@dataclass(frozen=True, slots=True)
class Group:
    """``{ ... }`` or ``( ... )``, or the body of the function ``name``."""

    body: Body
    name: str | None = None


Node = Simple | Joined | Branches | Choice | Loop | Group
Body = tuple[Node, ...]

_SPACE = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|<<<|<<-|<<|&>>|&>|>&|<&|>>|[;&|()<>\n]")
_PLAIN = re.compile(r"[^\s;&|()<>\"'\\$`]+")
_INSIDE = re.compile(r"[^\"'\\$`(){}]+")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\Z")
_DIGITS = re.compile(r"\d+\Z")
_BLANK = re.compile(r"\s")
_REDIRECTIONS = frozenset({"<", ">", ">>", "<<<", "&>", "&>>", ">&", "<&"})
_JOINTS = frozenset({"&&", "||", "|"})
_OPENERS = frozenset({"if", "then", "elif", "else", "do", "while", "until", "{", "!", "time", "in"})


def tokens(text: str) -> list[Token]:
    """Words and operators; comments and redirections are left out."""
    return _Lexer(text).run()


@dataclass(slots=True)
class _Lexer:
    text: str
    at: int = 0
    found: list[Token] = field(default_factory=list)
    here: list[HereText] = field(default_factory=list)

    def run(self) -> list[Token]:
        text = self.text
        while self.at < len(text):
            if self._skip():
                continue
            if match := _OPERATOR.match(text, self.at):
                self._operator(match[0])
                continue
            end = _end_of_word(text, self.at)
            if end is None:
                self.found += _by_blanks(text[self.at :])
                break
            raw = text[self.at : end]
            self.at = end
            array = _ARRAY.match(raw) if text[end : end + 1] == "(" else None
            if array:
                self.at += 1
                self.found.append(ArrayWord(array[1], bool(array[2]), tuple(self._array())))
            else:
                self.found.append(raw)
        return self.found

    def _blank(self) -> int:
        match = _BLANK.search(self.text, self.at)
        return match.start() if match else len(self.text)

    def _skip(self) -> bool:
        match = _SPACE.match(self.text, self.at)
        if match is None and (self.at == 0 or self.text[self.at - 1] in " \t\n;&|()"):
            match = _COMMENT.match(self.text, self.at)
        if match is None:
            return False
        self.at = match.end()
        return True

    def _commands_start(self) -> bool:
        """Whether a command, not an argument, comes next."""
        last = self.found[-1] if self.found else None
        return last is None or isinstance(last, Operator) or (isinstance(last, str) and last in _OPENERS)

    def _operator(self, text: str) -> None:
        if text == "(" and not self._commands_start():
            end = self._blank()
            self.found.append(self.text[self.at : end])
            self.at = end
            return
        self.at += len(text)
        if text in ("<<", "<<-"):
            self._announce(indented=text == "<<-")
        elif text in _REDIRECTIONS:
            if self.found and isinstance(self.found[-1], str) and _DIGITS.match(self.found[-1]):
                self.found.pop()
            self._word_after()
        else:
            self.found.append(Operator(text))
            if text == "\n" and self.here:
                self._take_here_texts()

    def _word_after(self) -> str:
        while self._skip():
            pass
        end = _end_of_word(self.text, self.at)
        if end is None or end == self.at:
            return ""
        raw = self.text[self.at : end]
        self.at = end
        return raw

    def _announce(self, *, indented: bool) -> None:
        raw = self._word_after()
        ending = re.sub(r"[\\\"']", "", raw)
        if ending:
            here = HereText(ending, indented, ending != raw)
            self.here.append(here)
            self.found.append(here)

    def _take_here_texts(self) -> None:
        for here in self.here:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = end + 1
                if (line.lstrip("\t") if here.indented else line) == here.ending:
                    break
                lines.append(line)
            here.text = "\n".join(lines)
        self.here.clear()

    def _array(self) -> Iterator[str]:
        """Words up to the closing bracket."""
        while self.at < len(self.text):
            if self._skip():
                continue
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return
            if char in "\n;&|<>":
                self.at += 1
                continue
            if char == "(":
                end = self._blank()
            else:
                found = _end_of_word(self.text, self.at)
                if found is None:
                    yield from (word for word in _by_blanks(self.text[self.at :]) if isinstance(word, str))
                    self.at = len(self.text)
                    return
                end = found
            yield self.text[self.at : end]
            self.at = end


def _by_blanks(text: str) -> list[Token]:
    """What cannot be read as shell: words between blanks, without quotes; lines end commands."""
    found: list[Token] = []
    for line in text.splitlines():
        found += [word for word in re.sub(r"[\"'`()\\]", " ", line).split() if word]
        found.append(Operator("\n"))
    return found


def _end_of_word(text: str, at: int) -> int | None:
    """Where the word ends that starts here; None where a quote or bracket in it is never closed."""
    closers: list[str] = []
    while at < len(text):
        match = (_INSIDE if closers else _PLAIN).match(text, at)
        if match:
            at = match.end()
            continue
        char, top = text[at], closers[-1] if closers else ""
        if not closers and char in " \t\r\n\f\v;&|()<>":
            return at
        if char == "\\":
            at += 2
        elif char == "'" and top != '"':
            at = text.find("'", at + 1) + 1
            if not at:
                return None
        elif text.startswith(("$(", "${"), at):
            closers.append(")" if text[at + 1] == "(" else "}")
            at += 2
        else:
            if char == top:
                closers.pop()
            elif char in '"`' or (char == "(" and top == ")"):
                closers.append(")" if char == "(" else char)
            at += 1
    return None if closers else len(text)


def parse(text: str, where: str) -> Body:
    """The commands of a script.

    Raises:
        BadInput: compound commands nested deeper than ``DEEPEST``.
    """
    return _Parser(tokens(text), where).body(())


@dataclass(slots=True)
class _Parser:
    tokens: list[Token]
    where: str
    at: int = 0
    depth: int = 0

    def body(self, stops: Collection[str]) -> Body:
        """Commands up to one of the words or operators, which stays."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise BadInput("commands are nested too deeply", where=self.where, remedy="give the command only")
        found: list[Node] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if (token.text if isinstance(token, Operator) else token) in stops and not isinstance(token, ArrayWord):
                break
            if isinstance(token, Operator) and token.text != "(":
                self.at += 1
                continue
            found.append(self._joined())
        self.depth -= 1
        return tuple(found)

    def _joined(self) -> Node:
        parts, joints, negated = [], [], []
        while True:
            no = False
            while self._peek() == "!" or self._peek() == "time":
                no ^= self._peek() == "!"
                self.at += 1
            before = self.at
            parts.append(self._command())
            negated.append(no)
            self.at += self.at == before
            token = self.tokens[self.at] if self.at < len(self.tokens) else None
            if not isinstance(token, Operator) or token.text not in _JOINTS:
                break
            joints.append(token.text)
            self.at += 1
            self._lines()
            if self.at >= len(self.tokens):
                joints.pop()
                break
        if len(parts) == 1 and not negated[0]:
            return parts[0]
        return Joined(tuple(parts), tuple(joints), tuple(negated))

    def _peek(self) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        return token.text if isinstance(token, Operator) else token if isinstance(token, str) else ""

    def _lines(self) -> None:
        while self._peek() == "\n":
            self.at += 1

    def _past(self, *words: str) -> None:
        if self._peek() in words:
            self.at += 1

    def _command(self) -> Node:
        word = self._peek()
        if word == "if":
            return self._if()
        if word == "case":
            return self._case()
        if word in ("for", "select", "while", "until"):
            return self._loop(word)
        if word in ("{", "("):
            self.at += 1
            body = self.body(("}" if word == "{" else ")",))
            self._past("}", ")")
            return Group(body)
        if word == "function":
            self.at += 1
            name = self._peek()
            self.at += bool(name)
            self._past("()")
            return self._function([name])
        return self._simple()

    def _if(self) -> Branches:
        cases: list[tuple[Body, Body]] = []
        otherwise: Body = ()
        while self._peek() in ("if", "elif"):
            self.at += 1
            condition = self.body(("then", "fi"))
            self._past("then")
            cases.append((condition, self.body(("elif", "else", "fi"))))
        if self._peek() == "else":
            self.at += 1
            otherwise = self.body(("fi",))
        self._past("fi")
        return Branches(tuple(cases), otherwise)

    def _case(self) -> Choice:
        self.at += 1
        subject = self._peek()
        self.at += 1
        self._lines()
        self._past("in")
        cases = []
        while self.at < len(self.tokens) and self._peek() != "esac":
            patterns = []
            while self.at < len(self.tokens) and self._peek() not in (")", "esac"):
                token = self.tokens[self.at]
                patterns += [token] if isinstance(token, str) else []
                self.at += 1
            self._past(")")
            cases.append((tuple(patterns), self.body((";;", ";&", ";;&", "esac"))))
            self._past(";;", ";&", ";;&")
            self._lines()
        self._past("esac")
        return Choice(subject, tuple(cases))

    def _loop(self, word: str) -> Loop:
        self.at += 1
        variable: str | None = None
        condition: Body = ()
        if word in ("for", "select"):
            variable = self._peek()
            while self.at < len(self.tokens) and self._peek() != "do":
                self.at += 1
        else:
            condition = self.body(("do",))
        self._past("do")
        body = self.body(("done",))
        self._past("done")
        return Loop(variable, condition, body)

    def _simple(self) -> Node:
        words: list[Word] = []
        tests = self._peek() == "[["
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                if not tests or token.text == "\n":
                    break
                token = token.text
            self.at += 1
            words.append(token)
            if tests and token == "]]":
                break
            if words[1:] == ["()"]:
                return self._function(words)
        return Simple(tuple(words))

    def _function(self, words: list[Word]) -> Node:
        self._lines()
        group = self._command() if self._peek() in ("{", "(") else None
        if isinstance(group, Group) and isinstance(words[0], str):
            return Group(group.body, words[0])
        return Simple(tuple(words))
