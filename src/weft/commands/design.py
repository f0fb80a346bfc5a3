"""``weft.design``: candidate networks for a job, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.codec import positive
from weft.commands.command_line import command
from weft.commands.networks import PriceOptions, RadixOptions, RoutingOptions
from weft.commands.options import given_options, option, verb
from weft.commands.output import Output, Progress, VerboseOutput, chart_option, report
from weft.commands.shared import (
    FailureOptions,
    RankedOptions,
    RecipeOptions,
    cluster_of,
    job_of,
    layout_of,
    numbers_of,
    subject_of,
)
from weft.errors import BadInput, NothingFeasible
from weft.layout import Layout
from weft.units import parse_seconds

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource
    from weft.search.design import DesignStudy

USAGE = "weft design MODEL CLUSTER [--layout tp=8,pp=4] | weft design --plan FILE [--rank N]"

OVERSUBSCRIPTIONS = (1.0, 2.0, 4.0, 7.0)
"""Tried by default, where neither sizes nor batches are."""


class DesignOptions(RankedOptions, FailureOptions, PriceOptions, RadixOptions, RoutingOptions, RecipeOptions):
    """Which networks are compared, and how."""

    group = "Search"
    more = ("own",)
    fabrics: str | tuple[str, ...] = option(
        "rail-only,rail-optimized,fat-tree", "Networks to compare, by kind.", metavar="KIND,..."
    )
    oversubscription: str | tuple[float, ...] | None = option(
        None,
        "Ports down per port up to try, or none (default: 1,2,4,7; none with --sizes or --batches).",
        metavar="R,...|none",
    )
    sizes: str | tuple[int, ...] | None = option(
        None, "Scale-up domain sizes to try (default: the cluster's own).", metavar="K,..."
    )
    batches: str | tuple[int, ...] | None = option(
        None, "Global batches to try (default: the recipe's own).", metavar="N,..."
    )
    against: str | None = option(None, "Compare cost and time of the others with this kind.", metavar="KIND")
    no_simulate: bool = option(False, "Closed form only.")
    no_failures: bool = option(False, "Leave the study of failures out.")
    network_life: str | float = option(
        "4y", "With --tokens: time over which a network is written off.", metavar="TIME"
    )

    needs = {"network_life": "tokens"}


@verb(DesignOptions)
def design(
    model: JobSource | None = None,
    cluster: ClusterSource | None = None,
    options: DesignOptions | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    **given: Any,
) -> DesignStudy:
    """Compare networks for a model on a cluster: cost, power, speed, spine traffic, failures.

    >>> import weft
    >>> found = weft.design("llama-3.1-8b", "h100-64", fabrics="rail-only,fat-tree", no_simulate=True)
    >>> [(one.kind, one.bill.switches) for one in found.designs]
    [('rail-only', 1), ('fat-tree', 1)]

    Args:
        model: as for ``weft.plan``; left out with ``plan``.
        cluster: as for ``weft.plan``; left out with ``plan``.
        options: the options as a record instead of keywords; without ``layout`` and ``plan`` each network has its
            own best layout.
        progress: called with steps done and in all, a hundred for each network.
    """
    options = given_options(DesignOptions, options, given)
    from weft.search.design import DesignTerms
    from weft.search.design import design as compare

    layout: Layout | None = None
    if options.plan is not None:
        subject = subject_of(model, cluster, options, options, verb="design", usage=USAGE)
        job, where, layout = subject.job, subject.cluster, subject.layout
    elif model is None or cluster is None:
        raise BadInput("MODEL and CLUSTER are needed, or --plan", where="design", remedy=USAGE)
    else:
        where = cluster_of(cluster)
        job = job_of(model, options, where.count)
        if options.layout is not None:
            layout = layout_of(options.layout, job, where)
    how = DesignTerms(
        prices=options.price_list(),
        radix=options.radix,
        layout=layout,
        routing=options.routing,
        simulate=not options.no_simulate,
        failures=not options.no_failures,
        run=None if options.tokens is None else options.terms(options.tokens, simulate=not options.no_simulate),
        network_s=positive(parse_seconds(options.network_life, "--network-life"), "--network-life"),
        against=options.against,
        one_domain=bool(options.sizes),
        oversubscriptions=_ratios(options),
    )
    kinds = options.fabrics.split(",") if isinstance(options.fabrics, str) else options.fabrics
    return compare(
        job,
        where,
        [kind.strip() for kind in kinds if kind.strip()],
        how,
        domains=numbers_of(options.sizes or (), "--sizes"),
        batches=numbers_of(options.batches or (), "--batches"),
        progress=progress,
    )


def _ratios(options: DesignOptions) -> tuple[float, ...]:
    """Oversubscriptions, each once."""
    given = options.oversubscription
    if given is None:
        given = () if options.sizes or options.batches or options.against else OVERSUBSCRIPTIONS
    if given == "none":
        return ()
    texts = given.split(",") if isinstance(given, str) else [str(one) for one in given]
    result: dict[float, None] = {}
    for text in filter(None, (one.strip().removesuffix(":1") for one in texts)):
        try:
            ratio = round(float(text), 3)
        except ValueError:
            ratio = 0.0
        if not 1 <= ratio < 1000:
            raise BadInput(
                f"{text[:40]!r} is not an oversubscription", where="--oversubscription", remedy="give 1 to 999"
            )
        result[ratio] = None
    return tuple(result)


class DesignOutput(VerboseOutput, Output):
    """Output options of ``weft design``."""

    chart: str | None = chart_option("cost against time")


@command(options=DesignOptions, out=DesignOutput)
def design_command(model: str | None, cluster: str | None, options: DesignOptions, out: DesignOutput) -> None:
    """Compare networks for MODEL on CLUSTER: cost, power, speed, spine traffic, failures.

    \b
    weft design llama-3.1-8b h100-64
    weft design llama-3.1-8b h100-512 --fabrics rail-only,fat-tree --oversubscription 1,3
    weft design --plan plan.json
    """
    with Progress("simulating networks") as progress:
        result = design(model, cluster, options, progress=progress)
        if out.verbose and result.designs:
            result = result.with_parts_failed()
    report(result, out, drawn=bool(result.designs))
    if not result.designs:
        raise NothingFeasible("; ".join(f"{rejection.kind}: {rejection.reason}" for rejection in result.rejected))
