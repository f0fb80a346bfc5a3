"""``weft calibrate``: constants from measured training runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.cli.options import check_folder, console, deliver
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.cluster.calibration import Tables
    from weft.validation.fit import Fit
    from weft.validation.inputs import Prepared, Skipped
    from weft.validation.predict import Predictor


@click.command()
@click.argument("runs", metavar="RUNS.csv")
@click.option(
    "--start",
    type=click.Choice(["shipped", "prior"]),
    default="shipped",
    show_default=True,
    help="Constants to begin with, and to stay near: Weft's own, or what was known before any run.",
)
@click.option("-o", "--output", metavar="FILE.toml", help="Write the constants there, for --calibration.")
@click.option("--errors", metavar="FILE.json", help="Write each run's cross-validated error there.")
def calibrate(runs: str, start: str, output: str | None, errors: str | None) -> None:
    """Fit the constants of accelerators and training software to the measured runs of RUNS.csv.

    The columns are those of weft validate.  One set of constants serves all runs.  What it is worth is
    told by predicting each model's, and each family's, runs with constants fitted to the others.
    """
    for path, option in ((output, "--output"), (errors, "--errors")):
        check_folder(path, option)
    from weft.cluster.calibration import shipped_tables
    from weft.validation.fit import fit, fitted_parameters, prior_tables
    from weft.validation.inputs import Prepared, prepare_all
    from weft.validation.predict import Predictor
    from weft.validation.runs import read_runs

    rows = prepare_all(read_runs(runs))
    predictor = Predictor(row for row in rows if isinstance(row, Prepared))
    if not predictor.runs:
        raise BadInput("has no run that can be predicted", where=runs, remedy="weft validate says why")
    tables = prior_tables() if start == "prior" else shipped_tables()
    found = fit(predictor, tables, tuple(fitted_parameters(tables)), _say)
    if not found.values:
        raise BadInput(
            "no constant to fit: none is known of these accelerators and this software",
            where=runs,
            remedy="give constants with --calibration",
        )
    _report(rows, found, tables)
    if output is not None:
        deliver(_toml(tables, found, runs), output)
    if errors is not None:
        deliver(_errors(predictor, found), errors)


def _say(words: str) -> None:
    click.echo(words, err=True)


def _report(rows: tuple[Prepared | Skipped, ...], found: Fit, tables: Tables) -> None:
    from weft.report.tables.calibration import calibration_table, fit_table
    from weft.validation.summary import spread_errors

    screen = console()
    fit_table(
        spread_errors(rows, found.seconds),
        spread_errors(rows, found.without_model),
        spread_errors(rows, found.without_family),
        screen,
    )
    calibration_table(found.entries(), tables, screen)


def _toml(tables: Tables, found: Fit, runs: str) -> str:
    from pathlib import Path

    from weft.cluster.calibration import tables_to_toml

    changed = {one.table for one in found.values}
    filled = tables.replaced(found.entries())
    marked = filled.replaced((name, "provenance", "calibrated") for name in sorted(changed))
    comment = f"Constants by accelerator and training software, fitted by weft calibrate {Path(runs).name}"
    return tables_to_toml(marked, comment=comment)


def _errors(predictor: Predictor, found: Fit) -> str:
    from weft.estimation.trust import Known, Traits, runs_to_json

    known = [
        Known(traits=Traits.of(run.job, run.cluster, run.layout), error=float(seconds / run.measured_s - 1.0))
        for run, seconds in zip(predictor.runs, found.without_model, strict=True)
    ]
    return runs_to_json(known)
