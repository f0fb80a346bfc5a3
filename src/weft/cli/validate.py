"""``weft validate``: predictions against published, measured runs."""

from __future__ import annotations

from dataclasses import dataclass

import click
from rich.console import Console

from weft.cli.build import takes
from weft.cli.options import check_chart, check_folder, deliver_chart
from weft.cli.outcome import RowsOutput, report
from weft.verbs.options import option
from weft.verbs.validate import ValidateOptions
from weft.verbs.validate import validate as validated


@dataclass(frozen=True, kw_only=True)
class ValidateOutput(RowsOutput):
    """What is made of a comparison."""

    by: str = option("family", "Errors by family, or by what may be behind them.", choices=("family", "cause"))
    regret: bool = option(False, "Also show what the choice among measured layouts of one job costs.")
    plot: str | None = option(
        None, "Also draw predicted over measured times (.svg, .png, .pdf, .html).", metavar="FILE"
    )


@click.command()
@click.argument("runs", metavar="[RUNS.csv]", required=False)
@takes(options=ValidateOptions, out=ValidateOutput)
def validate(runs: str | None, options: ValidateOptions, out: ValidateOutput) -> None:
    """Predicted against measured iteration time, run by run and by family.

    RUNS.csv has one measured run a row: id, family, model, shape, accelerators, parallel degrees, batch, and
    iter_s, tokens_s_gpu, tflops_per_gpu or mfu.  What a row leaves out is assumed as its training software
    does by default; --format json lists every assumption.  Without RUNS.csv: the published runs that Weft comes
    with, which its own constants are fitted to.
    """
    from weft.report.tables.validation import cause_table, choice_table, validation_table

    check_chart(out.plot, "--plot")
    check_folder(out.output, "--output")
    found = validated(runs, options)

    def tables(screen: Console) -> None:
        (cause_table if out.by == "cause" else validation_table)(found, screen)
        if out.regret:
            choice_table(found, screen)

    report(found, out, tables)
    if out.plot is not None:
        from weft.report.pictures.validation import validation_chart

        deliver_chart(validation_chart(found), out.plot)
