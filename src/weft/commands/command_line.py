"""Options records as options of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from weft.commands.options import Option, Options, options_of
from weft.commands.output import tell_of_compiling
from weft.errors import BadInput

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType

GROUPS = ("Search", "Job", "Data", "Run", "Checkpoints", "Network", "Machine", "Output", "Options")
"""Headings of options in the help of commands, in their order."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Checked(_ParamType):
    """A value as its record takes it; the record says what is wrong with it, as it does to a caller."""

    def __init__(self, kind: str, choices: tuple[str, ...]) -> None:
        self.name, self.choices = kind, choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        given = param and ctx and ctx.get_parameter_source(str(param.name)) is not ParameterSource.DEFAULT
        if param and given and value == "":
            raise BadInput("is empty", where=max(param.opts, key=len), remedy="give a value, or leave it out")
        parse = float if self.name == "number" else str
        try:
            return parse(value)
        except ValueError:
            return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        return f"[{'|'.join(self.choices)}]" if self.choices else None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return offered(param, incomplete, self.choices)


class Once(click.Option):
    """An option whose value is refused where it is given twice, not dropped for the last.

    Args:
        group: the heading under which help lists it.
    """

    def __init__(self, *args: Any, group: str = Options.group, **options: Any) -> None:
        super().__init__(*args, **options)
        self.group = group

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if self.is_flag or self.multiple:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        values = opts.get(str(self.name))
        if isinstance(values, list) and not self.multiple:
            if len(values) > 1:
                raise BadInput("is given twice", where=max(self.opts, key=len), remedy="give it once")
            opts = {**opts, str(self.name): values[0]}
        return super().handle_parse_result(ctx, opts, args)


class _Named(click.types.StringParamType):
    """An argument, to shells that ask: what the catalogues name, or a file."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from weft.cluster import accelerator_names
        from weft.model import names

        words = (param.metavar or str(param.name)).upper()
        known = [*names()] if "MODEL" in words else []
        known += [f"{name}-8" for name in accelerator_names()] if "CLUSTER" in words else []
        return offered(param, incomplete, tuple(known), file=True)


def offered(
    param: click.Parameter, incomplete: str, known: tuple[str, ...], *, file: bool = False
) -> list[CompletionItem]:
    """Completions of a word for a shell; a file where one is meant and no name fits."""
    result = [CompletionItem(word) for word in known if word.startswith(incomplete)]
    file = file or any(word in (param.metavar or "") for word in ("FILE", "DIR", "FOLDER"))
    return result or ([CompletionItem(incomplete, type="file")] if file else [])


def completing(command: click.Command) -> click.Command:
    """A command whose arguments say what can stand there."""
    for param in command.params:
        if isinstance(param, click.Argument) and param.type is click.STRING:
            param.type = _Named()
    return command


class GroupedCommand(click.Command):
    """A command whose help lists its options by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "group", Options.group), []).append(record)
        for heading in sorted(groups, key=lambda heading: GROUPS.index(heading)):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


class DefaultGroup(click.Group):
    """A group that takes arguments, unless they begin with the name of a command, as those of ``default``."""

    command_class = GroupedCommand

    def __init__(self, *, default: str, **options: Any) -> None:
        super().__init__(**options)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in ("-h", "--help", *self.list_commands(ctx)):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def command(
    *metavars: str, into: click.Group | None = None, **records: type[Options]
) -> Callable[[Callable[..., None]], click.Command]:
    """A command of the function ``NAME_command``: the options of ``records``, each of which it gets under its keyword,
    and arguments for its other parameters, which may be left out where they may be None.

    Args:
        metavars: what help shows for the arguments, in their order, if not their names.
        into: the group that the command belongs to.
    """

    def made(function: Callable[..., None]) -> click.Command:
        result: Any = takes(**records)(function)
        given = [one for name, one in inspect.signature(function).parameters.items() if name not in records]
        for one, metavar in reversed([*zip_longest(given, metavars)]):
            several = (
                {"nargs": -1} if one.annotation.startswith("tuple") else {"required": "None" not in one.annotation}
            )
            result = click.argument(one.name, metavar=metavar, **several)(result)
        name = function.__name__.removesuffix("_command")
        return (into.command if into else click.command)(name, cls=GroupedCommand)(result)

    return made


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
                key: record(**{option.name: values[option.name] for option in options_of(record)})
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
    if one.kind == "flag":
        return click.option(*one.flags, one.name, cls=Once, group=one.group, is_flag=True, help=one.help)
    several = one.kind in ("texts", "integers")
    return click.option(
        *one.flags,
        one.name,
        cls=Once,
        group=one.group,
        type=_Checked(one.kind, one.choices),
        default=None if several else one.default,
        multiple=several,
        metavar=one.metavar,
        show_default=one.default is not None and not several,
        help=one.help,
    )
