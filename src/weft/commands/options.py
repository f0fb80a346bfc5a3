"""Records of options: one a verb, from which the command line takes its options, and a call its keywords.

The kind of an option follows from its type: the first of its alternatives is what the command line gives, the
others are objects that a caller may give instead.  A ``Literal`` has the choices.
"""

from __future__ import annotations

import builtins
import inspect
import numbers
import reprlib
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from weft.errors import BadInput, UnknownName
from weft.units import parse_whole

LARGEST = 10**18
"""Numbers beyond it are refused."""
Kind = Literal["flag", "integer", "number", "text", "texts", "integers"]
_KINDS: dict[Any, Kind] = {
    bool: "flag",
    int: "integer",
    float: "number",
    str: "text",
    tuple[str, ...]: "texts",
    tuple[int, ...]: "integers",
}


class _Unloaded(dict[str, type]):
    """Types that only type checkers import: options take their objects as they are."""

    def __missing__(self, name: str) -> type:
        return object


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a verb.

    Attributes:
        name: the field of the record and the keyword of a call.
        flags: how the command line spells it; messages name the first.
        kind: what values are.
        default: the value where nobody gives one.
        help: one sentence.
        metavar: what the command line's help shows for the value.
        choices: the values that there are, where they are few.
        least: smallest number.
        most: largest number.
        above: whether numbers must be above ``least``.
        objects: whether a call may give an object instead of text.
        check: refuses a file that could not be written, before anything runs.
        group: the heading under which help lists it: that of the record which declares it.
    """

    name: str
    flags: tuple[str, ...]
    kind: Kind
    default: Any
    help: str
    metavar: str | None
    choices: tuple[str, ...]
    least: float | None
    most: float | None
    above: bool
    objects: bool
    check: Callable[[str, str], None] | None
    group: str

    def checked(self, value: Any) -> Any:
        """The value, a single one of several as a tuple."""
        if value is None and self.default is None:
            return None
        if self.kind in ("texts", "integers"):
            several = value if isinstance(value, tuple | list) else (value,)
            return tuple(self._one(item) for item in several)
        return self._one(value)

    def _one(self, value: Any) -> Any:
        if self.kind == "flag":
            if not isinstance(value, bool):
                raise BadInput(f"{reprlib.repr(value)} is neither true nor false", where=self.flags[0])
            return value
        if self.kind in ("text", "texts"):
            return self._text(value)
        whole = self.kind != "number"
        if whole and isinstance(value, str):
            value = parse_whole(value, self.flags[0])
        kind: Any = numbers.Integral if whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            wanted = "a whole number" if whole else "a number"
            raise BadInput(f"{str(value)[:40]!r} is not {wanted}", where=self.flags[0])
        self._check_range(value)
        return int(value) if whole else float(value)

    def _text(self, value: Any) -> Any:
        if not isinstance(value, str):
            if self.objects or hasattr(value, "__fspath__"):
                return value
            raise BadInput(f"{reprlib.repr(value)} is not text", where=self.flags[0])
        if self.choices and value not in self.choices:
            raise UnknownName("choice", value[:40], self.choices, where=self.flags[0])
        return value

    def _check_range(self, value: Any) -> None:
        """Refuse a number that is none, or beyond the limits."""
        low, high = self.least, LARGEST if self.most is None else self.most
        small = low is not None and not (value > low if self.above else value >= low)
        if small or not -LARGEST <= value <= high:
            bounds = [f"{'above' if self.above else 'at least'} {low:,g}"] if low is not None else []
            bounds.append(f"at most {high:,g}")
            shown = value if isinstance(value, float) or abs(value) <= LARGEST else "a huge number"
            raise BadInput(f"{shown} is out of range", where=self.flags[0], remedy=f"give {' and '.join(bounds)}")


def option(
    default: Any,
    text: str,
    *flags: str,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    above: bool = False,
    check: Callable[[str, str], None] | None = None,
) -> Any:
    """A field of an options record; without ``flags`` the command line spells it as the field."""
    known = {"help": text, "flags": flags, "metavar": metavar, "choices": choices, "check": check}
    return field(default=default, metadata=known | {"least": least, "most": most, "above": above})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """Base of the options records, which are frozen dataclasses."""

    group: ClassVar[str] = "Options"
    """The heading under which help lists the options that a record declares."""
    needs: ClassVar[Mapping[str, str]] = {}
    """Options that mean nothing without another one, and that one; records add those of their bases."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def changed(self, **changes: Any) -> Self:
        """The record with other values."""
        return replace(cast(Any, self), **changes)  # type: ignore[no-any-return]

    def __post_init__(self) -> None:
        choices = {choice.name: choice for choice in options_of(type(self))}
        for choice in choices.values():
            value = getattr(self, choice.name)
            checked = choice.checked(value)
            if checked is not value:
                object.__setattr__(self, choice.name, checked)
            if choice.check is not None and checked is not None:
                choice.check(checked, choice.flags[-1])
        for base in type(self).__mro__:
            for name, other in vars(base).get("needs", {}).items():
                choice, needed = choices[name], choices[other]
                if getattr(self, name) != choice.default and getattr(self, other) == needed.default:
                    flag = needed.flags[-1]
                    raise BadInput(
                        f"needs {flag}", where=choice.flags[-1], remedy=f"add {flag}, or drop {choice.flags[-1]}"
                    )


def options_of(record: type[Options]) -> tuple[Option, ...]:
    """The options of a record: its own, then those of its bases."""
    return _options(cast(Any, record))


@cache
def _options(record: Any) -> tuple[Option, ...]:
    owners = {name: base for base in reversed(record.__mro__) for name in inspect.get_annotations(base)}
    order = [name for base in record.__mro__ for name in inspect.get_annotations(base)]
    modules = [vars(sys.modules[base.__module__]) for base in record.__mro__]
    types = get_type_hints(record, localns=ChainMap(vars(builtins), *modules, _Unloaded()))
    result = []
    for one in sorted(fields(record), key=lambda one: order.index(one.name)):
        hint = types[one.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
        told = dict(one.metadata)
        result.append(
            Option(
                name=one.name,
                flags=told.pop("flags") or (f"--{one.name.replace('_', '-')}",),
                kind="text" if choices else _KINDS[kinds[0]],
                default=one.default,
                choices=told.pop("choices") or choices,
                objects=bool(set(kinds[1:]) - {NoneType}),
                group=owners[one.name].group,
                **told,
            )
        )
    return tuple(result)


_Record = TypeVar("_Record", bound=Options)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def given_options(
    record: type[_Record], options: _Record | None, given: Mapping[str, Any], **arguments: Any
) -> _Record:
    """The record of a call: the one given, else one of the keywords, and of those ``arguments`` that are not None."""
    given = {**given, **{name: value for name, value in arguments.items() if value is not None}}
    if options is not None:
        if given:
            raise BadInput(f"{next(iter(given))} beside options", where="options", remedy="give one of them")
        return options
    known = [one.name for one in options_of(record)]
    for name in given:
        if name not in known:
            raise UnknownName("option", name, known)
    return record(**given)


def refuse_beside(flag: str, records: Mapping[Options, tuple[str, ...]]) -> None:
    """Refuse options of records that have no effect beside ``flag``: all but those named that are set."""
    for record, taken in records.items():
        for choice in options_of(type(record)):
            if choice.name not in taken and getattr(record, choice.name) != choice.default:
                raise BadInput(f"has no effect with {flag}", where=choice.flags[-1], remedy="drop one of them")


def verb(record: type[Options]) -> Callable[[_Function], _Function]:
    """Give a function with ``options`` and ``**given`` the signature and the documentation of its record."""

    def documented(function: _Function) -> _Function:
        shown = inspect.signature(function)
        own = [
            parameter for parameter in shown.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        lines = []
        for each in options_of(record):
            lines.append(f"    {each.name}: {each.help}")
            if each.name not in shown.parameters:
                own.append(inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default))
        vars(function)["__signature__"] = shown.replace(parameters=own)
        heading = "Options, as keywords or as the record ``options``:"
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", heading, *lines])
        return function

    return documented
