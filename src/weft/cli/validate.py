"""``weft validate``: predictions against published, measured runs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import click

from weft.cli.options import FORMATS, check_chart, check_folder, deliver, deliver_chart
from weft.cli.outcome import show
from weft.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.cluster import Calibration
    from weft.validation.runs import Run, Unparsed
    from weft.validation.summary import Validation


@click.command()
@click.argument("runs", metavar="RUNS.csv")
@click.option("--family", "families", metavar="F", multiple=True, help="Only this family; may be repeated.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="Output.")
@click.option("--plot", metavar="FILE", help="Also draw predicted over measured times (.svg, .png, .html).")
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
@click.option("--calibration", metavar="FILE", help="TOML file of constants, for every accelerator.")
def validate(
    runs: str, families: tuple[str, ...], form: str, plot: str | None, output: str | None, calibration: str | None
) -> None:
    """Predicted against measured iteration time, run by run and by family.

    RUNS.csv has one measured run a row: id, family, model, shape, accelerators, parallel degrees, batch, and
    iter_s, tokens_s_gpu, tflops_per_gpu or mfu.  What a row leaves out is assumed as its training software
    does by default; --format json lists every assumption.
    """
    from weft.validation.inputs import Prepared, prepare_all
    from weft.validation.predict import Predictor
    from weft.validation.runs import read_runs
    from weft.validation.summary import validation

    check_chart(plot, "--plot")
    check_folder(output, "--output")
    constants = _constants(calibration)
    rows = prepare_all(_chosen(read_runs(runs), families, runs))
    predictor = Predictor(row for row in rows if isinstance(row, Prepared))
    found = validation(rows, predictor.predict(constants))
    _report(found, form, output)
    if plot is not None:
        from weft.report.pictures.validation import validation_chart

        deliver_chart(validation_chart(found), plot)


def _constants(path: str | None) -> Callable[[str, str], Calibration]:
    """Shipped constants of an accelerator and a stack, with those of ``--calibration`` on top."""
    from weft.cluster import calibration, read_calibration

    if path is None:
        return calibration
    read_calibration(path, "")
    return cache(lambda accelerator, stack: read_calibration(path, accelerator, stack))


def _chosen(rows: tuple[Run | Unparsed, ...], families: tuple[str, ...], path: str) -> tuple[Run | Unparsed, ...]:
    """The rows of the families that were asked for."""
    known = sorted({row.family for row in rows})
    for name in families:
        if name not in known:
            raise BadInput(f"no run of family {name!r}", where=path, remedy=f"there are: {', '.join(known)}")
    return tuple(row for row in rows if not families or row.family in families)


def _report(found: Validation, form: str, output: str | None) -> None:
    from weft.report.tables.validation import validation_table, validation_to_csv, validation_to_json

    if form == "json":
        deliver(validation_to_json(found), output)
    elif form == "csv":
        deliver(validation_to_csv(found), output)
    else:
        show(lambda screen: validation_table(found, screen), output)
