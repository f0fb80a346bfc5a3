"""``weft.calibrate``: constants from measured training runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import takes
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import check_folder, deliver
from weft.commands.shared import path_of
from weft.commands.validate import rows_of
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.commands.validate import RunSource
    from weft.interop.kernel_times import Traced
    from weft.validation.fit import Fitted


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """What the fit begins with, or what stands in place of runs."""

    start: str | None = option(
        None,
        "Constants to begin with, and to stay near: Weft's own (for runs that are given), or what was known before"
        " any run (for Weft's runs).",
        choices=("shipped", "prior"),
    )
    trace: str | None = option(
        None,
        "Instead of runs, a trace of torch.profiler with record_shapes=True: times of products and attention.",
        metavar="FILE",
    )


@verb(CalibrateOptions)
def calibrate(
    runs: RunSource | None = None,
    options: CalibrateOptions | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    **given: Any,
) -> Fitted | Traced:
    """Fit the constants of accelerators and training software to measured runs, or read times out of a trace.

    >>> import tempfile, weft
    >>> columns = "id,family,model,seq,gpu,gpus,tp,dp,micro_batch,global_batch,precision,iter_s"
    >>> run = "one,mine,llama-2-7b,4096,a100-80gb,8,8,1,1,16,bf16,2.9"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/runs.csv", "w") as file:
    ...         print(columns, run, sep="\\n", file=file)
    ...     found = weft.calibrate(f"{folder}/runs.csv")
    >>> found.to_dicts()[0]["constant"]
    'attention_efficiency'

    Args:
        runs: as for ``weft.validate``; one set of constants serves all runs.
        options: the options as a record instead of keywords.
        progress: told each round in words.

    Raises:
        BadInput: a file or an option that cannot be used, or no run that tells anything.
    """
    options = given_options(CalibrateOptions, options, given)
    if options.trace is not None:
        return _traced(options, runs)
    from weft.cluster.calibration import shipped_tables
    from weft.validation.fit import Fitted, fit, fitted_parameters, prior_tables
    from weft.validation.inputs import Prepared, prepare_all
    from weft.validation.predict import Predictor

    read, path = rows_of(runs)
    rows = prepare_all(read)
    predictor = Predictor(row for row in rows if isinstance(row, Prepared))
    if not predictor.runs:
        raise BadInput("has no run that can be predicted", where=path, remedy="weft validate says why")
    start = options.start or ("prior" if runs is None else "shipped")
    tables = prior_tables() if start == "prior" else shipped_tables()
    result = fit(predictor, tables, tuple(fitted_parameters(tables)), progress or (lambda words: None))
    if not result.values:
        raise BadInput(
            "no constant to fit: none is known of these accelerators and this software",
            where=path,
            remedy="give constants with --calibration",
        )
    return Fitted(source=Path(path).name, rows=rows, before=tables, fit=result)


def _traced(options: CalibrateOptions, runs: RunSource | None) -> Traced:
    if runs is not None or options.start is not None:
        other = "RUNS.csv" if runs is not None else "--start"
        raise BadInput(f"goes without {other}: a trace is not fitted", where="--trace", remedy="leave one out")
    from weft.interop.kernel_times import read_kernel_times

    return read_kernel_times(path_of(options.trace, "--trace"))


@dataclass(frozen=True, kw_only=True)
class CalibrateOutput(Options):
    """Where constants and errors go."""

    output: str | None = option(
        None, "Write the constants there, for --calibration.", "-o", "--output", metavar="FILE.toml"
    )
    errors: str | None = option(None, "Write each run's cross-validated error there.", metavar="FILE.json")


@click.command("calibrate")
@click.argument("runs", metavar="[RUNS.csv]", required=False)
@takes(options=CalibrateOptions, out=CalibrateOutput)
def calibrate_command(runs: str | None, options: CalibrateOptions, out: CalibrateOutput) -> None:
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
    result = calibrate(runs, options, progress=lambda words: click.echo(words, err=True))
    from weft.estimation.trust import runs_to_json
    from weft.interop.kernel_times import Traced
    from weft.views.terminal import print_blocks
    from weft.views.validation import calibration_view, fit_view, traced_view

    if isinstance(result, Traced):
        print_blocks(traced_view(result))
        if out.output is not None:
            deliver(result.to_toml(), out.output)
        return
    print_blocks(chain(fit_view(result), calibration_view(result)))
    if out.output is not None:
        deliver(result.to_toml(), out.output)
    if out.errors is not None:
        deliver(runs_to_json(result.errors()), out.errors)
