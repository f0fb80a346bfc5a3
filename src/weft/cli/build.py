"""Options records as options of commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.cli.options import tell_of_compiling
from weft.verbs.options import Option, Options, options_of

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Checked(_ParamType):
    """A value as its record takes it; the record says what is wrong with it, as it does to a caller."""

    def __init__(self, kind: str, choices: tuple[str, ...]) -> None:
        self.name, self.choices = kind, choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parse = float if self.name == "number" else str
        try:
            return parse(value)
        except ValueError:
            return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        return f"[{'|'.join(self.choices)}]" if self.choices else None


def takes(**records: type[Options]) -> Callable[[_Command], _Command]:
    """Give a command the options of records; the function gets a record under each keyword.

    An option that several records have is one option, and each gets its value.
    """

    def decorated(function: Any) -> Any:
        @wraps(function)
        def command(**values: Any) -> Any:
            names = {one.name for record in records.values() for one in options_of(record)}
            rest = {name: value for name, value in values.items() if name not in names}
            made = {
                key: record(**{one.name: values[one.name] for one in options_of(record)})
                for key, record in records.items()
            }
            tell_of_compiling()
            return function(**rest, **made)

        options = {one.name: one for record in records.values() for one in options_of(record)}
        for one in reversed(options.values()):
            command = _click_option(one)(command)
        return command

    return decorated


def _click_option(one: Option) -> Callable[[Any], Any]:
    if one.kind == "switch":
        return click.option(*one.flags, one.name, is_flag=True, help=one.help)
    several = one.kind in ("texts", "integers")
    return click.option(
        *one.flags,
        one.name,
        type=_Checked(one.kind, one.choices),
        default=None if several else one.default,
        multiple=several,
        metavar=one.metavar,
        show_default=one.default is not None and not several,
        help=one.help,
    )
