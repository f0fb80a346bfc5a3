"""``weft.goodput``: what failures leave of a training run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import takes
from weft.commands.networks import ROUTING, ROUTINGS, fabric_of
from weft.commands.options import given_options, option, verb
from weft.commands.output import Progress, RowsOutput, check_chart, check_count, deliver_chart, report
from weft.commands.shared import (
    ConstantsOptions,
    RankedOptions,
    RecipeOptions,
    book_of,
    constants_of,
    numbers_of,
    subject_of,
)
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource, LayoutSource
    from weft.fabric import Fabric
    from weft.reliability.classes import FailureBook
    from weft.search.goodput import GoodputReport

USAGE = "weft goodput MODEL CLUSTER --layout tp=8,pp=16 --tokens 15T | weft goodput --plan FILE --tokens 15T"


@dataclass(frozen=True, kw_only=True)
class GoodputOptions(RankedOptions, RecipeOptions, ConstantsOptions):
    """What fails, and what the job does about it."""

    tokens: str | float | None = option(None, "Tokens to train on, as 15T.", metavar="N")
    failures: str | FailureBook = option("llama-3", "What fails: a preset or a TOML file.", metavar="NAME|FILE")
    policy: str = option(
        "restart",
        "restart, or shrink the data axis; with reroute, hot (spares), peer (checkpoints), async (saving).",
        metavar="WORD,...",
    )
    spares: int | None = option(
        None, "Spare hosts (default: as many as cost least).", metavar="N", least=0, most=10_000
    )
    fabric: str | Fabric | None = option(
        None,
        "Network whose parts fail, simulated with them failed (default: the cluster's usual one, not simulated).",
        metavar="KIND|FILE",
    )
    routing: str = option(ROUTING, "How paths are chosen in the simulation.", choices=ROUTINGS)
    simultaneous: str | tuple[int, ...] = option(
        "", "Also fail so many parts of --fabric at once, drawn at random.", metavar="K,..."
    )
    usd_per_hour: float | None = option(None, "Price of an accelerator hour.", metavar="USD")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.simultaneous and self.fabric is None:
            raise BadInput("needs --fabric", where="--simultaneous", remedy="name a kind, as --fabric rail-only")


@verb(GoodputOptions)
def goodput(
    model: JobSource | None = None,
    cluster: ClusterSource | None = None,
    layout: LayoutSource | None = None,
    options: GoodputOptions | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    **given: Any,
) -> GoodputReport:
    """What failures leave of a training run: goodput, days, dollars, energy, and which class of failures costs what.

    >>> import weft
    >>> found = weft.goodput("llama-3.1-8b", "h100-1024", "tp=2,sp", tokens="15T")
    >>> 0.9 < found.goodput < 1.0
    True

    Args:
        model: as for ``weft.plan``; left out with ``plan``.
        cluster: as for ``weft.plan``; left out with ``plan``.
        layout: as text or as a record.
        options: the options as a record instead of keywords.
        progress: called with classes of failures simulated and in all.

    Raises:
        BadInput: a name, a file or an option that cannot be used, a layout that cannot run the job, or failures that
            come too fast for any work to be saved.
    """
    options = given_options(GoodputOptions, options, given | ({} if layout is None else {"layout": layout}))
    if options.tokens is None:
        raise BadInput("is missing", where="--tokens", remedy=USAGE)
    from weft.reliability.recovery import parse_policy
    from weft.search.goodput import FailureTerms
    from weft.search.goodput import goodput as goodput_of
    from weft.units import parse_count

    policy = parse_policy(options.policy)
    subject = subject_of(model, cluster, options, options, verb="goodput", usage=USAGE)
    terms = FailureTerms(
        book=book_of(options.failures),
        policy=policy,
        tokens=parse_count(options.tokens, "--tokens"),
        spares=options.spares,
        usd_per_hour=options.usd_per_hour,
        simulate=options.fabric is not None,
        routing=options.routing,
        simultaneous=numbers_of(options.simultaneous, "--simultaneous"),
    )
    fabric = fabric_of(options.fabric, subject.cluster)
    constants = constants_of(options, subject.cluster, subject.job)
    return goodput_of(
        subject.job, subject.cluster, subject.layout, fabric, terms, constants=constants, progress=progress
    )


@dataclass(frozen=True, kw_only=True)
class GoodputOutput(RowsOutput):
    """What is made of a run under failures."""

    chart: str | None = option(None, "Also draw what each class costs (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command("goodput")
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@takes(options=GoodputOptions, out=GoodputOutput)
def goodput_command(names: tuple[str, ...], options: GoodputOptions, out: GoodputOutput) -> None:
    """What failures leave of a training run, by class of failure: goodput, days, dollars.

    MODEL and CLUSTER as for weft plan; with --plan they are those of the plan.
    """
    from weft.views.training import goodput_view

    check_chart(out.chart)
    check_count(names, 2, "goodput", USAGE)
    model, cluster = (*names, None, None)[:2]
    with Progress("simulating failures") as progress:
        result = goodput(model, cluster, options=options, progress=progress)
    report(result, out, goodput_view(result))
    if out.chart is not None:
        from weft.views.charts.goodput import goodput_chart

        deliver_chart(goodput_chart(result), out.chart)
