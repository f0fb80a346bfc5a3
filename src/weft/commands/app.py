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

from weft.errors import LONGEST_MESSAGE, BadInput, InDoubt, WeftError, printable

VERBS = {
    "plan": "Rank the layouts of MODEL on CLUSTER.",
    "estimate": "Time, memory and bounds of one layout, and what faster hardware would be worth.",
    "compare": "Hold layouts, clusters, softwares, networks or plans side by side, and say why they differ.",
    "report": "Write a plan, an arrangement or a study as a page in one file, to hand around.",
    "sweep": "Compute a study over axes, on one machine or many, and look at its results.",
    "design": "Compare networks for MODEL on CLUSTER: cost, power, speed, spine traffic, failures.",
    "schedule": "Schedule COLLECTIVE of SIZE bytes over every dimension of a network.",
    "route": "Find routes for all flows of all jobs on a fabric that do not collide, and keep them so.",
    "arrange": "Arrange the jobs of a site: hosts, layouts, routes, times and classes together, with a bound.",
    "simulate": "Simulate flows, or one iteration of MODEL on CLUSTER's network.",
    "fabric": "Show the network of CLUSTER: switches, links, cost and power.",
    "launch": "Write the launch file of a layout of PLAN.json (weft plan --format json).",
    "train": "Train MODEL on the ranks of torchrun, or on ranks that are started on this machine.",
    "bench": "Measure this machine for plans, or check the training runtime on it.",
    "validate": "Predicted against measured iteration time, run by run and by family.",
    "serve": "Plan, compare and explore on pages in your browser.",
    "info": "List models, clusters, frameworks, formats, codes or schemas, or check the installation.",
}
"""Every command with the first sentence of its help, so that ``weft --help`` loads none of them."""
MOVED = {
    "bench-comm": "bench",
    "calibrate": "validate --fit FILE.toml",
    "doctor": "info install",
    "export-checkpoint": "train export",
    "goodput": "estimate --layout ... --tokens 15T",
    "selftest": "bench selftest",
}
"""Commands of earlier versions, and what does their work."""
COMPLETION = "_WEFT_COMPLETE"
"""Set by shells that ask what can follow."""


class Verbs(click.Group):
    """The commands, each of which is loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in MOVED:
            raise BadInput(f"is now weft {MOVED[cmd_name]}", where=f"weft {cmd_name}")
        if cmd_name not in VERBS:
            return None
        module = import_module("weft.web.serve" if cmd_name == "serve" else f"weft.commands.{cmd_name}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        if COMPLETION in os.environ:
            from weft.commands.command_line import completing

            return completing(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="weft", prog_name="weft")
def cli() -> None:
    """Plan how to cut the training of a large model over a GPU cluster.

    \b
    weft plan llama-3.1-405b h100-16384      the layouts worth trying, best first
    weft estimate llama-3.1-405b h100-16384 --layout tp=8,pp=16,dp=128,sp
    weft compare llama-3.1-405b h100-8192 gb200-4096   which of two, and why
    weft sweep study.toml -o results.csv     all points of a study, on all cores or many machines
    weft design llama-3.1-405b h100-16384    which network to buy
    weft schedule all-reduce 1GiB --cluster h100-1024  chunk by chunk over its dimensions
    weft route --generate BLOOM:4,GPT_3:4    routes that do not collide, proved, exported, kept so
    weft arrange site.toml                   jobs, hosts, layouts and times together, with a bound
    weft simulate llama-3.1-8b h100-64 --layout tp=8   flow by flow
    weft train tiny-gpt --layout x=2,z=2     train it, measured beside predicted
    weft bench --ranks 2                     this machine, measured for plans
    weft validate --regret                   predictions against published, measured runs, or yours
    weft serve --open                        all of it on pages in your browser
    weft info models                         what is known by name: models, clusters, frameworks, codes, schemas

    Exit codes: 0 done, 1 not as predicted, 2 bad input, 3 nothing feasible, 130 interrupted,
    128 + N where signal N killed a rank.
    """


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
        return _tell(printable(error.format_message(), LONGEST_MESSAGE), error.exit_code)
    except WeftError as error:
        return _tell(str(error), error.exit_code)
    return 0


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
