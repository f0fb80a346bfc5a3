"""What a shell script would run, found without a shell: its commands, with every word that the text gives.

The environment and the script's own arguments count as empty, so that defaults (``${TP:-8}``,
``if [ -z "$TP" ]``) hold.  What the text leaves open stays visible in the words (``weft.model._shell_words``).
Conditions that the text does not decide (files, open variables) are taken both ways: what differs afterwards is
open, and arguments that only one way has are left out, with a note.  Nothing is executed; only files that
``include`` gives are read.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from weft.errors import BadInput
from weft.files import read_text
from weft.model import _shell_syntax as syntax
from weft.model._shell_syntax import ArrayWord, HereText
from weft.model._shell_words import DEEPEST, LARGEST_TEXT, MARK, OPEN, Value, Words, mark, open_names, shown, too_long

__all__ = ["LARGEST_TEXT", "MARK", "Include", "Script", "beside", "open_names", "run", "shown", "too_long"]

MOST_NAMED = 8

Include = Callable[[str], str | None]

_CONTINUED = re.compile(r"\\\r?\n")
_ARGUMENT = re.compile(r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']|[\"'])+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})
_SHELLS = frozenset({"bash", "sh", "sbatch"})
_SILENT = frozenset({"echo", "printf", ":", "set", "mkdir", "cd", "true", "shift", "trap", "ulimit", "module"})


def beside(path: str | PathLike[str]) -> Include:
    """Gives the text of files in the folder of the script ``path`` and below it, and of no others."""
    folder = Path(path).resolve().parent

    def text_of(name: str) -> str | None:
        try:
            found = (folder / name).resolve()
            inside = found.is_relative_to(folder) and found.is_file()
            return read_text(found, largest=LARGEST_TEXT, remedy="give a script") if inside else None
        except (BadInput, OSError, ValueError):
            return None

    return text_of


@dataclass(slots=True)
class Script:
    """What ``run`` found.

    ``commands`` are the words of every program that would start, in order; ``values`` the words of variables
    that hold flags; ``notes`` tell people what was left out.
    """

    commands: list[list[str]] = field(default_factory=list)
    values: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(text: str, *, where: str, include: Include | None = None) -> Script:
    """The commands of a script; a text that begins with a flag is a list of arguments, with no other syntax than
    quotes.

    ``include`` gives the text of a file that the script sources, or None where it cannot be read.

    Raises:
        BadInput: more than ``LARGEST_TEXT`` characters, before or after expansion, or too deeply nested.
    """
    if len(text) > LARGEST_TEXT:
        raise too_long(where)
    machine = _Machine(where=where, include=include)
    text = text.replace(MARK, "")
    found = machine.found
    if text.lstrip().startswith("--"):
        words = _ARGUMENT.findall(_CONTINUED.sub(" ", text))
        found.commands.append(list(_flat([part for word in words for part in machine.fields(word)])))
        return found
    machine.script(text)
    for value in machine.variables.values():
        words = value if isinstance(value, list) else value.split()
        if any(word.startswith("--") for word in words):
            found.values.append([part for word in words for part in word.split()])
    return found


@dataclass(slots=True)
class _Machine(Words):
    include: Include | None = None
    functions: dict[str, syntax.Body] = field(default_factory=dict)
    found: Script = field(default_factory=Script)
    depth: int = 0
    stopped: str = ""
    """The word that ended the script or the function, if one did."""

    def script(self, text: str) -> None:
        if self.depth >= DEEPEST:
            raise BadInput("scripts are nested too deeply", where=self.where, remedy="give the command only")
        self.depth += 1
        self.body(syntax.parse(text, self.where))
        self.depth -= 1

    def body(self, body: syntax.Body) -> bool | None:
        """Run commands; the status of the last, None where nobody knows."""
        status: bool | None = True
        for node in body:
            if self.stopped:
                break
            status = self.node(node)
        return status

    def node(self, node: syntax.Node) -> bool | None:
        match node:
            case syntax.Simple(words):
                return self.simple(words)
            case syntax.Joined():
                return self.joined(node)
            case syntax.Branches(cases, otherwise):
                self.branches(list(cases), otherwise)
            case syntax.Choice(subject, cases):
                self.choice(subject, cases)
            case syntax.Loop(variable, condition, body):
                self.loop(variable, condition, body)
            case syntax.Group(body, None):
                return self.body(body)
            case syntax.Group(body, name):
                self.functions[str(name)] = body
        return None

    def joined(self, node: syntax.Joined) -> bool | None:
        status = self.node(node.parts[0])
        status = status if status is None or not node.negated[0] else not status
        for joint, part, no, before in zip(node.joints, node.parts[1:], node.negated[1:], node.parts, strict=False):
            if joint == "|":
                status = self.node(part)
                continue
            unknown = status is None and not _is_test(before)
            wanted = joint == "&&"
            if unknown or status is wanted:
                if unknown and not wanted:
                    continue
                after = self.node(part)
                status = after if after is None or not no else not after
            elif status is None and _is_test(part):
                after = self.node(part)
                after = after if after is None or not no else not after
                status = after if after is (not wanted) else None
            elif status is None:
                self.either([(part,), ()])
        return status

    def branches(self, cases: list[tuple[syntax.Body, syntax.Body]], otherwise: syntax.Body) -> None:
        for number, (condition, body) in enumerate(cases):
            self.assumed = False
            status = self.body(condition)
            if status is None:
                rest = (syntax.Branches(tuple(cases[number + 1 :]), otherwise),)
                self.either([body, rest if cases[number + 1 :] else otherwise])
                return
            if status and not self.leaves(body):
                return
        self.body(otherwise)

    def leaves(self, body: syntax.Body) -> bool:
        """Run a body; whether it only ends the script because something is not given (a usage message)."""
        assumed, before = self.assumed, dict(self.variables)
        self.spend(len(before))
        self.body(body)
        if not (assumed and self.stopped == "exit"):
            return False
        self.variables, self.stopped = before, ""
        return True

    def choice(self, subject: str, cases: Sequence[tuple[tuple[str, ...], syntax.Body]]) -> None:
        given = self.one(subject)
        if MARK in given:
            self.either([*(body for _, body in cases), ()])
            return
        for patterns, body in cases:
            if any(_matches(given, self.one(pattern)) for pattern in patterns):
                self.body(body)
                return

    def loop(self, variable: str | None, condition: syntax.Body, body: syntax.Body) -> None:
        """A loop over values leaves its variable open; a loop whose condition is unknown may not run."""
        if variable is not None:
            self.variables[variable] = mark(variable)
            self.body(body)
        elif self.body(condition) is None:
            self.either([body, ()])

    def either(self, bodies: Sequence[syntax.Body]) -> None:
        """Run bodies side by side, and keep what they agree on."""
        before, states = self.variables, []
        for body in bodies:
            self.spend(sum(map(len, before)) + 1)
            self.variables = {name: list(v) if isinstance(v, list) else v for name, v in before.items()}
            self.body(body)
            if not self.stopped:
                states.append(self.variables)
            self.stopped = ""
        self.stopped = "" if states else "exit"
        self.variables = self.agreed(states) if states else before

    def agreed(self, states: Sequence[dict[str, Value]]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name in dict.fromkeys(name for state in states for name in state):
            values = [state.get(name) for state in states]
            first = values[0]
            if first is not None and all(value == first for value in values[1:]):
                found[name] = first
                continue
            words = [v if isinstance(v, list) else (v or "").split() for v in values]
            if any(word.startswith("--") for some in words for word in some):
                shared = _shared(words)
                lost = sorted({w for some in words for w in some[len(shared) :] if w.startswith("--")})
                if lost:
                    more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
                    named = f"{' '.join(lost[:MOST_NAMED])}{more}"
                    self.note(f"left out, because the text does not decide a condition: {named}")
                found[name] = shared if any(isinstance(v, list) for v in values) else " ".join(shared)
            else:
                found[name] = mark(name)
        return found

    def note(self, text: str) -> None:
        if text not in self.found.notes:
            self.found.notes.append(text)

    def simple(self, words: Sequence[syntax.Word]) -> bool | None:
        number = 0
        while number < len(words) and self.assigns(words[number]):
            number += 1
        rest = words[number:]
        if not rest:
            for word in words:
                self.assign(word)
            return True
        for word in rest:
            if isinstance(word, HereText):
                self.here(word)
        plain = [word for word in rest if isinstance(word, str)]
        program = plain[0] if plain else ""
        if program in _DECLARING:
            for word in rest[1:]:
                if self.assigns(word):
                    self.assign(word)
            return True
        if program in ("[", "[[", "test"):
            return self.test(plain[1:], program)
        return self.program(program, plain)

    def program(self, program: str, plain: list[str]) -> bool | None:
        if program in ("exit", "return"):
            self.stopped = program
        elif program == "unset":
            for name in plain[1:]:
                self.variables.pop(name, None)
        elif program in ("true", "false"):
            return program == "true"
        elif program in ("source", "."):
            self.source(self.one(plain[1]) if len(plain) > 1 else "")
        elif program in self.functions:
            self.call(program)
        elif program not in _SILENT:
            self.start([part for word in plain for part in self.fields(word)])
        return True if program in _SILENT else None

    def start(self, words: list[str]) -> None:
        """A program starts; a shell that gets a script runs that."""
        self.found.commands.append(list(_flat(words)))
        if words and words[0] in _SHELLS:
            scripts = [word for word in words[1:] if word.endswith(".sh")]
            text = self.read(scripts[0]) if scripts else None
            if text is not None:
                self.script(text)
                self.stopped = ""

    def call(self, name: str) -> None:
        if self.depth >= DEEPEST:
            return
        self.depth += 1
        self.spend(1000)
        self.body(self.functions[name])
        self.depth -= 1
        self.returned()

    def returned(self) -> None:
        self.stopped = "" if self.stopped == "return" else self.stopped

    def source(self, path: str) -> None:
        text = self.read(path)
        if text is None:
            self.note(f"{shown(path) or 'a file'}, which it sources, is not read")
            return
        self.script(text)
        self.returned()

    def read(self, path: str) -> str | None:
        text = None if MARK in path or self.include is None else self.include(path)
        if text is None:
            return None
        self.spend(len(text))
        return text.replace(MARK, "")

    def here(self, here: HereText) -> None:
        text = here.text if here.literal else self.quoted(here.text)
        before = self.stopped
        self.script(text)
        self.stopped = before

    def assigns(self, word: syntax.Word) -> bool:
        return isinstance(word, ArrayWord) or (isinstance(word, str) and bool(_ASSIGNMENT.match(word)))

    def assign(self, word: syntax.Word) -> None:
        if isinstance(word, ArrayWord):
            items = [part for raw in word.words for part in self.fields(raw)]
            before = self.variables.get(word.name, [])
            kept = (before if isinstance(before, list) else [before]) if word.append else []
            self.spend(len(kept))
            self.variables[word.name] = [*kept, *items]
            return
        match = _ASSIGNMENT.match(str(word))
        if match is None:
            return
        name, index, append = match.groups()
        value = self.one(str(word)[match.end() :])
        if index:
            value = mark(name)
        held = self.variables.get(name, "") if append else ""
        if isinstance(held, list):
            held = [*held[:1], *held[1:]]
            self.variables[name] = [(held[0] if held else "") + value, *held[1:]]
        else:
            self.variables[name] = held + value

    # Tests

    def test(self, plain: list[str], program: str) -> bool | None:
        """A test's outcome, or None where it depends on files, programs or what is open."""
        closing = {"[": "]", "[[": "]]"}.get(program)
        words = plain[:-1] if plain and plain[-1] == closing else plain
        for either, every in (("||", "&&"), ("-o", "-a")):
            if either in words or every in words:
                options = [[self._term(term) for term in _split(part, every)] for part in _split(words, either)]
                return _any([_all(terms) for terms in options])
        return self._term(words)

    def _term(self, words: list[str]) -> bool | None:
        if words and words[0] == "!":
            inner = self._term(words[1:])
            return None if inner is None else not inner
        match words:
            case [("-z" | "-n") as sign, raw]:
                given = self.one(raw)
                self.assumed |= MARK in given
                return (OPEN.sub("", given) == "") is (sign == "-z")
            case ["-z" | "-n" as sign]:
                return sign == "-z"
            case ["-v", name]:
                return name in self.variables
            case [raw] if not raw.startswith("-"):
                return OPEN.sub("", self.one(raw)) != ""
            case [left, sign, right]:
                return _compare(self.one(left), sign, self.one(right))
        return None


def _flat(words: Sequence[str]) -> Iterator[str]:
    """Words; a quoted command line, which another shell would take apart, gives its own."""
    for word in words:
        if "--" in word and any(char.isspace() for char in word):
            yield from word.split()
        else:
            yield word


def _is_test(node: syntax.Node) -> bool:
    return isinstance(node, syntax.Simple) and node.words[:1] in (("[",), ("[[",), ("test",))


def _matches(text: str, pattern: str) -> bool:
    return len(pattern) < 200 and fnmatch.fnmatchcase(text, pattern)


def _compare(left: str, sign: str, right: str) -> bool | None:
    if MARK in left + right:
        return None
    if sign in ("=", "=="):
        return _matches(left, right) or left == right
    if sign == "!=":
        return not _matches(left, right) and left != right
    numbers = [int(text) for text in (left, right) if re.fullmatch(r"-?\d{1,18}", text)]
    if len(numbers) < 2:
        return None
    a, b = numbers
    outcomes = {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}
    return outcomes.get(sign)


def _split(words: list[str], at: str) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for word in words:
        if word == at:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _all(terms: Sequence[bool | None]) -> bool | None:
    return False if False in terms else None if None in terms else True


def _any(terms: Sequence[bool | None]) -> bool | None:
    return True if True in terms else None if None in terms else False


def _shared(lists: Sequence[list[str]]) -> list[str]:
    """The words that all lists begin with."""
    least = min(lists, key=len)
    for number, word in enumerate(least):
        if any(some[number] != word for some in lists):
            return least[:number]
    return least
