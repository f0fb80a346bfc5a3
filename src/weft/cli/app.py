"""The program: verbs, and how expected errors leave it."""

from __future__ import annotations

import errno
import sys

import click

from weft.cli.bench_comm import bench_comm
from weft.cli.calibrate import calibrate
from weft.cli.design import design
from weft.cli.estimate import estimate
from weft.cli.export_checkpoint import export_checkpoint
from weft.cli.fabric import fabric
from weft.cli.launch import launch
from weft.cli.lists import clusters, explain, models
from weft.cli.plan import plan
from weft.cli.route import route
from weft.cli.schedule import schedule
from weft.cli.simulate import simulate
from weft.cli.train import train
from weft.cli.validate import validate
from weft.errors import WeftError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="weft", prog_name="weft")
def cli() -> None:
    """Plan how to cut the training of a large model over a GPU cluster.

    \b
    weft plan llama-3.1-405b h100-16384      the layouts worth trying, best first
    weft estimate llama-3.1-405b h100-16384 --layout tp=8,pp=16,dp=128,sp
    weft design llama-3.1-405b h100-16384    which network to buy
    weft schedule all-reduce 1GiB --cluster h100-1024  chunk by chunk over its dimensions
    weft route --generate BLOOM:4,GPT_3:4    routes that do not collide, proved, exported, kept so
    weft simulate llama-3.1-8b h100-64 --layout tp=8   flow by flow
    weft train tiny-gpt --layout x=2,z=2     train it, measured beside predicted
    weft bench-comm --ranks 2                this machine, measured for plans
    weft validate runs.csv                   predictions against measured runs
    weft calibrate runs.csv                  constants from measured runs
    weft models, weft clusters               what is known by name

    Exit codes: 0 done, 1 not as predicted, 2 bad input, 3 nothing feasible.
    """


VERBS = (
    *(plan, estimate, design, schedule, route, simulate, fabric, launch),
    *(train, export_checkpoint, bench_comm, validate, calibrate, models, clusters, explain),
)
for verb in VERBS:
    cli.add_command(verb)


def main() -> None:
    """Run the command line; expected errors print one line and set the exit code."""
    try:
        cli()
    except WeftError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        sys.exit(2)
