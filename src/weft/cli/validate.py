"""``weft validate``: predictions against published, measured runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import click

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
    from weft.views.validation import cause_view, choice_view, validation_view

    check_chart(out.plot, "--plot")
    check_folder(out.output, "--output")
    found = validated(runs, options)

    shown = cause_view(found) if out.by == "cause" else validation_view(found)
    report(found, out, chain(shown, choice_view(found) if out.regret else ()))
    if out.plot is not None:
        from weft.views.charts.validation import validation_chart

        deliver_chart(validation_chart(found), out.plot)
