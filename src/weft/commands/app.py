"""The program: verbs, and how expected errors leave it."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from importlib import import_module
from typing import TextIO

import click

from weft.errors import LONGEST_MESSAGE, InDoubt, WeftError, printable

EXAMPLES = {
    "plan": ("llama-3.1-405b h100-16384", "rank the layouts worth trying"),
    "estimate": ("gpt2 a100-8 --layout tp=2", "time and memory of one layout"),
    "tune": ("h100-64 --run run.sh --measured 31%", "what to change in a slow run"),
    "compare": ("llama-3.1-8b h100-64 h200-64", "which of two, and why"),
    "design": ("llama-3.1-70b h100-1024", "which network to buy"),
    "simulate": ("gpt2 a100-16 --layout tp=4", "one iteration, flow by flow"),
    "train": ("tiny-gpt --layout tp=2", "train, measured beside predicted"),
    "serve": ("--open", "the same on pages in a browser"),
}
"""Commands that ``weft --help`` shows with arguments, and what they do."""
OTHERS = {
    "Networks": ("fabric", "schedule", "route", "arrange"),
    "Many settings": ("sweep",),
    "Plans to files": ("launch", "report"),
    "Measurements": ("bench", "validate"),
    "Names, agents": ("info", "mcp"),
}
"""The other commands, by group."""
VERBS = (*EXAMPLES, *(name for names in OTHERS.values() for name in names))
COMPLETION = "_WEFT_COMPLETE"
"""Set by shells that ask what can follow."""


class Verbs(click.Group):
    """The commands, each of which is loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module("weft.web.serve" if cmd_name == "serve" else f"weft.commands.{cmd_name}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        if COMPLETION in os.environ:
            from weft.commands.command_line import completing

            return completing(command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl([(f"weft {name} {words}", text) for name, (words, text) in EXAMPLES.items()], 50)
        with formatter.section("Other commands (weft help COMMAND shows the options of any)"):
            formatter.write_dl([(group, ", ".join(names)) for group, names in OTHERS.items()])


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 not as predicted, 2 bad input, 3 nothing feasible, 130 interrupted, 128 + N killed.",
)
@click.version_option(package_name="weft", prog_name="weft")
def cli() -> None:
    """Plan, simulate, route and train large models on GPU clusters."""


def main() -> None:
    """Run the command line; expected errors print one message and set the exit code."""
    _prepare_streams()
    _tell_of_doubts()
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        code = _no_more_output(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG):
            raise
        click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        code = _no_more_output(2)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _run() -> int:
    """Run the verb that the arguments name; the exit code."""
    if COMPLETION in os.environ:
        cli()
    try:
        with cli.make_context("weft", sys.argv[1:]) as context:
            cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())) and error.ctx is not None:
            click.echo(error.ctx.get_help())
            return 0
        if error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n", err=True)
        return _tell(printable(_advised(error), LONGEST_MESSAGE), error.exit_code)
    except WeftError as error:
        return _tell(str(error), error.exit_code)
    return 0


DEGREES = ("tp", "cp", "pp", "dp", "fsdp", "ep", "vpp", "sp", "zero", "mbs")
COUNTS = ("nodes", "gpus", "num-gpus", "num-nodes", "world-size")


def _advised(error: click.UsageError) -> str:
    """What is wrong with a command line, and what to write instead."""
    command = error.ctx.command if error.ctx is not None else cli
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.lstrip("-")
        flags = {flag for param in command.params for flag in param.opts}
        if name in DEGREES and flags & {"--fix", "--layout"}:
            return (
                f"No such option '{error.option_name}'. Write {'--fix' if '--fix' in flags else '--layout'} {name}=4."
            )
        if name == "layout" and "--fix" in flags:
            return "No such option '--layout'. Pin what is fixed with --fix tp=8; weft estimate takes one --layout."
        arguments = [param.name for param in command.params if isinstance(param, click.Argument)]
        if error.ctx is not None and name in arguments:
            usage = " ".join(command.collect_usage_pieces(error.ctx)[1:])
            return f"No such option '{error.option_name}': it goes without a flag, weft {command.name} {usage}"
        if name in COUNTS:
            return f"No such option '{error.option_name}'. The cluster's name has the number of GPUs, as h100-64."
    if isinstance(error, click.MissingParameter):
        lines = [line.strip().partition("  ")[0] for line in (command.help or "").splitlines()]
        examples = [line for line in lines if line.startswith("weft ") and not line.endswith(".")]
        if command.name in EXAMPLES:
            examples = [f"weft {command.name} {EXAMPLES[command.name][0]}"]
        if examples:
            missing = " ".join(error.format_message().split()).removesuffix(".")
            return f"{missing}. For example: {examples[0]}"
    return error.format_message()


def _tell_of_doubts() -> None:
    """Print what Weft had to assume as a line; leave other warnings to Python."""
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, InDoubt):
            click.echo(f"Warning: {message}", err=True)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    warnings.simplefilter("always", InDoubt)


def _tell(problem: str, code: int) -> int:
    click.echo(f"Error: {problem}", err=True)
    return code


def _prepare_streams() -> None:
    """Make writing to a closed stream an error, and a write whole where Python would not buffer it.

    A file that is opened while standard output is closed would take its number, and our output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None or isinstance(getattr(sys.stdout, "buffer", None), io.FileIO):
        encoding = None if sys.stdout is None else sys.stdout.encoding
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding, "replace")
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), errors="replace")


def _no_more_output(code: int) -> int:
    """Let what was not written go: the interpreter would try again, and complain, when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return code
