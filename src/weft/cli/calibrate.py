"""``weft calibrate``: constants from measured training runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import click

from weft.cli.build import takes
from weft.cli.options import check_folder, deliver
from weft.errors import BadInput
from weft.verbs.calibrate import CalibrateOptions
from weft.verbs.calibrate import calibrate as calibrated
from weft.verbs.options import Options, option


@dataclass(frozen=True, kw_only=True)
class CalibrateOutput(Options):
    """Where constants and errors go."""

    output: str | None = option(
        None, "Write the constants there, for --calibration.", "-o", "--output", metavar="FILE.toml"
    )
    errors: str | None = option(None, "Write each run's cross-validated error there.", metavar="FILE.json")


@click.command()
@click.argument("runs", metavar="[RUNS.csv]", required=False)
@takes(options=CalibrateOptions, out=CalibrateOutput)
def calibrate(runs: str | None, options: CalibrateOptions, out: CalibrateOutput) -> None:
    """Fit the constants of accelerators and training software to the measured runs of RUNS.csv.

    The columns are those of weft validate.  One set of constants serves all runs.  To
    tell what it is worth, runs are predicted by constants fitted without their source, and without their kind.
    Without RUNS.csv the published runs that Weft comes with are fitted, from what was known before any run: that
    gives Weft's own constants.

    With --trace nothing is fitted: -o writes the median time of every shape of product and of causal attention that
    the trace holds, and other verbs take them with --calibration.
    """
    for path, flag in ((out.output, "--output"), (out.errors, "--errors")):
        check_folder(path, flag)
    if options.trace is not None and out.errors is not None:
        raise BadInput("goes without --trace: a trace tells no run's error", where="--errors", remedy="leave it out")
    found = calibrated(runs, options, progress=lambda words: click.echo(words, err=True))
    from weft.estimation.trust import runs_to_json
    from weft.interop.traces.kernel_times import Traced
    from weft.views.calibration import calibration_view, fit_view, traced_view
    from weft.views.terminal import print_blocks

    if isinstance(found, Traced):
        print_blocks(traced_view(found))
        if out.output is not None:
            deliver(found.to_toml(), out.output)
        return
    print_blocks(chain(fit_view(found), calibration_view(found)))
    if out.output is not None:
        deliver(found.to_toml(), out.output)
    if out.errors is not None:
        deliver(runs_to_json(found.errors()), out.errors)
