"""``weft.validate`` and ``weft.calibrate``: predictions against measured runs, and constants fitted to them."""

from __future__ import annotations

import os
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cluster import Calibration, read_calibration
from weft.cluster.calibration import shipped_tables
from weft.commands.command_line import command
from weft.commands.options import Options, given_options, option, refuse_beside, verb
from weft.commands.output import RowsOutput, chart_option, deliver, file_option, report
from weft.commands.shared import path_of
from weft.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weft.validation.fit import Fitted
    from weft.validation.runs import Run, Skipped
    from weft.validation.summary import Validation

    RunSource = str | os.PathLike[str] | Sequence[Run | Skipped]
    "A CSV file, or what Weft makes of its rows."


class ValidateOptions(Options):
    """Which runs are predicted, and with which constants."""

    group = "Search"
    family: tuple[str, ...] = option((), "Only the runs of this family (repeats).", metavar="NAME")
    calibration: str | None = option(None, "Constants to use instead of Weft's own.", metavar="FILE.toml")


@verb(ValidateOptions)
def validate(runs: RunSource | None = None, options: ValidateOptions | None = None, **given: Any) -> Validation:
    """Compare predicted with measured iteration times, run by run and by family.

    >>> import tempfile, weft
    >>> columns = "id,family,model,seq,gpu,gpus,tp,dp,micro_batch,global_batch,precision,iter_s"
    >>> run = "one,mine,llama-2-7b,4096,a100-80gb,8,8,1,1,16,bf16,2.9"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/runs.csv", "w") as file:
    ...         print(columns, run, sep="\\n", file=file)
    ...     found = weft.validate(f"{folder}/runs.csv")
    >>> found.pooled.predicted
    1

    Args:
        runs: a CSV file with one measured run a row: id, family, model, shape, accelerators, parallel degrees,
            batch, and iter_s, tokens_s_gpu, tflops_per_gpu or mfu; or its rows (``weft.validation.runs.read_runs``);
            the published runs that Weft comes with by default.
    """
    options = given_options(ValidateOptions, options, given)
    from weft.validation.inputs import Prepared, prepare_all
    from weft.validation.summary import Predictor, validation

    constants = _constants(options.calibration)
    rows, source = rows_of(runs)
    known = sorted({row.family for row in rows})
    for name in options.family:
        if name not in known:
            raise BadInput(f"no run of family {name!r}", where=source, remedy=f"there are: {', '.join(known)}")
    prepared = prepare_all(row for row in rows if not options.family or row.family in options.family)
    predictor = Predictor(row for row in prepared if isinstance(row, Prepared))
    return validation(prepared, predictor.predict(constants))


def rows_of(runs: RunSource | None) -> tuple[tuple[Run | Skipped, ...], str]:
    """The runs of a file, as given, or Weft's own; and what they are called."""
    from weft.validation.runs import SHIPPED, Run, Skipped, read_runs, shipped_runs

    if runs is None:
        return shipped_runs(), SHIPPED
    if isinstance(runs, list | tuple) and all(isinstance(run, Run | Skipped) for run in runs):
        return tuple(runs), "runs"
    path = path_of(runs, "RUNS.csv")
    return read_runs(path), path


def _constants(path: str | None) -> Callable[[str, str], Calibration]:
    """Shipped constants of an accelerator and a stack, with those of ``calibration`` on top."""
    from weft.cluster import calibration

    if path is None:
        return calibration
    read_calibration(path, "")
    return cache(lambda accelerator, stack: read_calibration(path, accelerator, stack))


def calibrate(runs: RunSource | None = None, *, progress: Callable[[str], None] | None = None) -> Fitted:
    """Fit the constants of accelerators and training software to measured runs.

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
        progress: told each round in words.

    Raises:
        BadInput: a file or an option that cannot be used, or no run that a constant can be fitted to.
    """
    from weft.validation.fit import Fitted, fit, fitted_parameters, prior_tables
    from weft.validation.inputs import Prepared, prepare_all
    from weft.validation.summary import Predictor

    read, path = rows_of(runs)
    rows = prepare_all(read)
    predictor = Predictor(row for row in rows if isinstance(row, Prepared))
    if not predictor.runs:
        raise BadInput("has no run that can be predicted", where=path, remedy="weft validate --verbose says why")
    tables = prior_tables() if runs is None else shipped_tables()
    result = fit(predictor, tables, tuple(fitted_parameters(tables)), progress or (lambda words: None))
    if not result.values:
        raise BadInput(
            "no constant to fit: Weft has none for these accelerators and this software",
            where=path,
            remedy="give constants with --calibration",
        )
    return Fitted(source=Path(path).name, rows=rows, before=tables, fit=result)


class ValidateOutput(RowsOutput):
    """Output options of ``weft validate``."""

    regret: bool = option(False, "Also show the time lost by taking the layout ranked first.")
    verbose: bool = option(False, "Also list the largest errors and why runs were skipped.")
    chart: str | None = chart_option("predicted over measured", "--plot")
    fit: str | None = file_option("Fit constants to the runs and write them, for --calibration.", metavar="FILE.toml")
    errors: str | None = file_option("With --fit: also write every run's left-out error.", metavar="FILE.json")

    needs = {"errors": "fit"}


@command("[RUNS.csv]", options=ValidateOptions, out=ValidateOutput)
def validate_command(runs: str | None, options: ValidateOptions, out: ValidateOutput) -> None:
    """Compare predicted with measured iteration times, by source of the runs (family).

    RUNS.csv has one measured run per row (docs/measured-runs.md): id, family, model, shape, accelerators, parallel
    degrees, batch, and iter_s, tokens_s_gpu, tflops_per_gpu or mfu. Missing values take the defaults of the training
    software; --format json lists every assumption. Without RUNS.csv: the published runs that Weft comes with.

    --fit fits one set of constants to all runs and reports their error on sources and kinds left out of the fit.
    """
    if out.fit is not None:
        _fit(runs, options, out, out.fit)
        return
    from weft.views.validation import choice_view, validation_view

    result = validate(runs, options)

    shipped = runs is None and options.calibration is None
    view = validation_view(result, shipped=shipped, verbose=out.verbose)
    report(result, out, chain(view, choice_view(result) if out.regret else ()))


def _fit(runs: str | None, options: ValidateOptions, out: ValidateOutput, file: str) -> None:
    """Fit constants to runs, and write them to a file."""
    refuse_beside("--fit", {options: (), out: ("fit", "errors")})
    from weft.estimation.trust import runs_to_json
    from weft.views.terminal import print_blocks
    from weft.views.validation import calibration_view, fit_view

    result = calibrate(runs, progress=lambda words: click.echo(words, err=True))
    print_blocks(chain(fit_view(result), calibration_view(result)))
    deliver(result.to_toml(), file)
    if out.errors is not None:
        deliver(runs_to_json(result.errors()), out.errors)
