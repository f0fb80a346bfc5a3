"""``weft.compare``: layouts, clusters, softwares, networks or plans side by side, and why they differ."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import GroupedCommand, takes
from weft.commands.networks import ROUTINGS, RoutingOptions
from weft.commands.options import given_options, option, verb
from weft.commands.output import RowsOutput, check_chart, deliver_chart, report
from weft.commands.shared import ConstantsOptions, RecipeOptions, cluster_of, constants_of, job_of, layout_of, stack_of
from weft.errors import BadInput, NothingFeasible

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource
    from weft.estimation.report import EstimateReport
    from weft.search import Plan
    from weft.search.comparison import Comparison, Side

USAGE = "weft compare MODEL CLUSTER [CLUSTER ...] [--layout TEXT ...] | weft compare PLAN.json PLAN.json"
MOST = 8
"""Sides of one comparison."""
LONGEST = 24
"""Characters of a layout that names its side; longer ones are numbered."""
TOKENS = "1T"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(RecipeOptions, RoutingOptions):
    """What is held side by side; what is given several times makes sides."""

    group = "Job"
    layout: tuple[str, ...] = option((), "A layout, as tp=8,pp=16 (repeats; else the best of a plan).", metavar="TEXT")
    stack: tuple[str, ...] = option((), "Training software (repeats).", metavar="NAME")
    fabric: tuple[str, ...] = option(
        (), "Network on which the layout is timed flow by flow (repeats).", metavar="KIND|FILE"
    )
    usd_per_hour: tuple[str, ...] = option(
        (), "Price of a GPU-hour in dollars, for all or for each side (repeats).", metavar="USD"
    )
    tokens: str | float = option(TOKENS, "Tokens to train on, for time, cost and energy.", metavar="N")

    needs = {"routing": "fabric"}


@verb(CompareOptions)
def compare(
    *subjects: JobSource | ClusterSource | Plan | EstimateReport, options: CompareOptions | None = None, **given: Any
) -> Comparison:
    """Hold layouts, clusters, softwares, networks or plans side by side, and say why they differ.

    >>> import weft
    >>> found = weft.compare("llama-3.1-8b", "h100-64", layout=("tp=2", "tp=8"))
    >>> found.differences[0].ratio > 1
    True

    Args:
        subjects: a model and one or more clusters, as for ``weft.plan``; or plans and estimates, or their files.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or fewer than two sides.
        NothingFeasible: nothing fits where a side's layout is to be planned.
    """
    options = given_options(CompareOptions, options, given)
    from weft.search.comparison import compare as held
    from weft.units import parse_count

    results = [_result(one) for one in subjects]
    if any(one is not None for one in results):
        sides = _of_results(subjects, results, options)
    else:
        sides = _of_names(subjects, options)
    return held(_priced(sides, options.usd_per_hour), parse_count(options.tokens, "--tokens"))


def _result(subject: Any) -> Plan | EstimateReport | None:
    """A plan or an estimate, or that of a file; None for what names a model or a cluster."""
    from weft.commands.read import read, schema_of
    from weft.estimation.report import EstimateReport
    from weft.search import Plan

    if isinstance(subject, Plan | EstimateReport):
        return subject
    if not isinstance(subject, str | os.PathLike) or Path(subject).suffix.lower() != ".json":
        return None
    if not os.path.isfile(subject) or not schema_of(subject).startswith("weft."):
        return None
    result = read(subject)
    if not isinstance(result, Plan | EstimateReport):
        raise BadInput("holds neither a plan nor an estimate", where=os.fspath(subject), remedy=USAGE)
    return result


def _of_results(
    subjects: Sequence[Any], results: Sequence[Plan | EstimateReport | None], options: CompareOptions
) -> list[Side]:
    """The first layouts of plans, and estimates."""
    kept = CompareOptions(usd_per_hour=options.usd_per_hour, tokens=options.tokens)
    if any(one is None for one in results):
        odd = next(subject for subject, one in zip(subjects, results, strict=True) if one is None)
        raise BadInput(f"{str(odd)[:60]!r} stands beside results and is none", where="compare", remedy=USAGE)
    if options != kept:
        raise BadInput("plans and estimates have all but --tokens and --usd-per-hour", where="compare", remedy=USAGE)
    _check_number(len(results))
    labels = [Path(one).stem if isinstance(one, str | os.PathLike) else "" for one in subjects]
    sides = [_of_result(one, label) for one, label in zip(results, labels, strict=True) if one is not None]
    plain = [one.label for one in sides]
    return [
        replace(one, label=f"{one.label} {number}") if plain.count(one.label) > 1 else one
        for number, one in enumerate(sides, 1)
    ]


def _of_result(result: Plan | EstimateReport, label: str) -> Side:
    from weft.estimation.report import EstimateReport
    from weft.search.comparison import Side

    label = label or result.cluster.name
    if isinstance(result, EstimateReport):
        usual = ConstantsOptions()
        return Side(
            label=label,
            job=result.job,
            cluster=result.cluster,
            estimate=result.estimate,
            constants=constants_of(usual, result.cluster, result.job),
            stack=stack_of(usual, result.job, result.cluster),
        )
    simulated = getattr(result, "simulated_s", None)
    return Side(
        label=label,
        job=result.job,
        cluster=result.cluster,
        estimate=result.best,
        constants=result.constants,
        stack=result.stack,
        fabric=getattr(result, "fabric", None),
        simulated_s=simulated[0] if simulated else None,
    )


def _of_names(subjects: Sequence[Any], options: CompareOptions) -> list[Side]:
    """The product of clusters, layouts, softwares and networks."""
    if len(subjects) < 2:
        raise BadInput("MODEL and CLUSTER are needed, or two plans", where="compare", remedy=USAGE)
    model, *clusters = subjects
    places = [cluster_of(one) for one in clusters]
    counts = {one.count for one in places}
    job = job_of(model, options, counts.pop() if len(counts) == 1 else 1)
    _check_number(len(places) * max(len(options.layout), 1) * max(len(options.stack), 1) * max(len(options.fabric), 1))
    choices = itertools.product(places, options.layout or (None,), options.stack or (None,), options.fabric or (None,))
    result = []
    for cluster, layout, stack, fabric in choices:
        cut = layout if layout is None or len(layout) <= LONGEST else f"layout {options.layout.index(layout) + 1}"
        words = [
            (cluster.name, len(places)),
            (cut, len(options.layout)),
            (stack, len(options.stack)),
            (fabric, len(options.fabric)),
        ]
        label = " ".join(str(word) for word, count in words if count > 1) or cluster.name
        try:
            result.append(_side(label, job, cluster, layout, stack, fabric, options))
        except NothingFeasible as error:
            raise NothingFeasible(f"{label}: {error}") from None
        except BadInput as error:
            error.where = f"{label}: {error.where}" if error.where else label
            raise
    return result


def _side(
    label: str, job: Any, cluster: Any, layout: str | None, stack: str | None, fabric: str | None,
    options: CompareOptions,
) -> Side:  # fmt: skip
    """One side, its layout given or planned."""
    from weft.commands.plan import plan
    from weft.commands.simulate import simulate
    from weft.estimation import estimate
    from weft.search.comparison import Side

    software = ConstantsOptions(stack=stack)
    constants = constants_of(software, cluster, job)
    if layout is not None:
        result = estimate(job, cluster, [layout_of(layout, job, cluster)], constants)[0]
    elif fabric is None:
        result = plan(job, cluster, stack=stack, top=1).best
    else:
        result = plan(job, cluster, stack=stack, top=1, fabric=fabric, routing=options.routing).best
    side = Side(
        label=label,
        job=job,
        cluster=cluster,
        estimate=result,
        constants=constants,
        stack=stack_of(software, job, cluster),
        fabric=None,
        simulated_s=None,
    )
    if fabric is None:
        return side
    run: Any = simulate(job, cluster, result.layout, fabric=fabric, routing=options.routing)
    name = fabric if options.routing in ROUTINGS else f"{fabric}, {options.routing} transport"
    return replace(side, fabric=name, simulated_s=run.iteration_s)


def _check_number(sides: int) -> None:
    if not 2 <= sides <= MOST:
        problem = f"{sides} side{'s' * (sides != 1)}"
        raise BadInput(problem, where="compare", remedy=f"name 2 to {MOST} clusters, layouts, softwares or plans")


def _priced(sides: list[Side], prices: tuple[str, ...]) -> list[Side]:
    """The sides with the prices that were given."""
    from weft.codec import positive
    from weft.units import parse_count

    if not prices:
        return sides
    if len(prices) not in (1, len(sides)):
        problem = f"{len(prices)} prices for {len(sides)} sides"
        raise BadInput(problem, where="--usd-per-hour", remedy=f"give one, or {len(sides)}")
    known = [positive(parse_count(one, "--usd-per-hour"), "--usd-per-hour") for one in prices]
    known = known * len(sides) if len(known) == 1 else known
    return [replace(one, usd_per_hour=price) for one, price in zip(sides, known, strict=True)]


@dataclass(frozen=True, kw_only=True)
class CompareOutput(RowsOutput):
    """Output options of ``weft compare``."""

    chart: str | None = option(None, "Also draw what makes the difference (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command("compare", cls=GroupedCommand)
@click.argument("names", nargs=-1, metavar="MODEL CLUSTER... | PLAN.json...")
@takes(options=CompareOptions, out=CompareOutput)
def compare_command(names: tuple[str, ...], options: CompareOptions, out: CompareOutput) -> None:
    """Hold layouts, clusters, softwares, networks or plans side by side, and say why they differ.

    MODEL and each CLUSTER as for weft plan; a side without --layout has the best one of a plan. Or plans and
    estimates that --format json wrote. The first side is the one that the others are held against.
    """
    check_chart(out.chart)
    result = compare(*names, options=options)

    from weft.views.comparison import comparison_view

    report(result, out, comparison_view(result))
    if out.chart is not None:
        from weft.views.charts.layouts import comparison_chart

        deliver_chart(comparison_chart(result), out.chart)
