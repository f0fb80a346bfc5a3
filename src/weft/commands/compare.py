"""``weft.compare``: layouts, clusters, frameworks, networks or plans side by side, and why they differ."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.commands.command_line import command
from weft.commands.networks import ROUTINGS, RoutingOptions
from weft.commands.options import given_options, option, verb
from weft.commands.output import LayoutOutput, chart_option, report
from weft.commands.shared import ConstantsOptions, RecipeOptions, cluster_of, constants_of, job_of, layout_of, stack_of
from weft.errors import BadInput, NothingFeasible
from weft.units import parse_count

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource
    from weft.estimation.report import EstimateReport
    from weft.search import Plan
    from weft.search.comparison import Comparison, Side

USAGE = "weft compare MODEL CLUSTER CLUSTER | MODEL CLUSTER --batch 256 --batch 512 | PLAN.json PLAN.json"
RECIPE = ("batch", "sequence", "precision")
REPEATED = (*RECIPE, "layout", "stack", "fabric")
"""Options that make a side for each of their values."""
MOST = 8
"""Sides of one comparison."""
TOKENS = "1T"


class CompareOptions(RoutingOptions):
    """The sides: an option that repeats makes one for each of its values."""

    group = "Job"
    batch: tuple[int, ...] = option((), "Global batch in sequences (repeats).", metavar="N")
    sequence: tuple[int, ...] = option((), "Sequence length in tokens (repeats).", metavar="N")
    precision: tuple[str, ...] = option((), "bf16, fp8 or another of weft plan (repeats).", metavar="P")
    layout: tuple[str, ...] = option((), "Layout, as tp=8,pp=16 (repeats; default: the best).", metavar="TEXT")
    stack: tuple[str, ...] = option((), "Training framework (repeats; default: the recipe's).", metavar="NAME")
    fabric: tuple[str, ...] = option((), "Simulate flow by flow on this network (repeats).", metavar="KIND|FILE")
    usd_per_hour: tuple[str, ...] = option(
        (), "Price of a GPU-hour in dollars: one, or one for each side.", metavar="USD"
    )
    tokens: str | float = option(TOKENS, "Tokens to train on, for days, cost and energy.", metavar="N")

    needs = {"routing": "fabric"}


@verb(CompareOptions)
def compare(
    *subjects: JobSource | ClusterSource | Plan | EstimateReport, options: CompareOptions | None = None, **given: Any
) -> Comparison:
    """Compare batches, layouts, clusters, frameworks, networks or plans, and say why they differ.

    >>> import weft
    >>> comparison = weft.compare("llama-3.1-8b", "h100-64", layout=("tp=2", "tp=8"))
    >>> comparison.differences[0].ratio > 1
    True

    Args:
        subjects: a model and one or more clusters, as for ``weft.plan``; or plans and estimates, or their files.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or fewer than two sides.
        NothingFeasible: nothing fits where a side's layout is to be planned.
    """
    options = given_options(CompareOptions, options, given)
    from weft.search.comparison import compare as compare_sides

    results = [_result(subject) for subject in subjects]
    if any(result is not None for result in results):
        sides = _of_results(subjects, results, options)
    else:
        sides = _of_names(subjects, options)
    return compare_sides(_priced(sides, options.usd_per_hour), parse_count(options.tokens, "--tokens"))


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
    for subject, result in zip(subjects, results, strict=True):
        if result is None:
            problem = f"{str(subject)[:60]!r} is not a plan or an estimate, but another side is"
            raise BadInput(problem, where="compare", remedy=USAGE)
    if options != CompareOptions(usd_per_hour=options.usd_per_hour, tokens=options.tokens):
        problem = "plans and estimates take only --tokens and --usd-per-hour"
        raise BadInput(problem, where="compare", remedy=USAGE)
    _check_number(len(results))
    labels = [Path(subject).stem if isinstance(subject, str | os.PathLike) else "" for subject in subjects]
    sides = [_of_result(result, label) for result, label in zip(results, labels, strict=True) if result is not None]
    plain = [side.label for side in sides]
    return [
        replace(side, label=f"{side.label} {number}") if plain.count(side.label) > 1 else side
        for number, side in enumerate(sides, 1)
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
    fabric, simulated_s = getattr(result, "fabric", None), result.ranked[0].simulated_s
    return Side.of_plan(result, label, result.best, fabric=fabric, simulated_s=simulated_s)


def _of_names(subjects: Sequence[Any], options: CompareOptions) -> list[Side]:
    """The product of clusters, recipes, layouts, frameworks and networks."""
    if len(subjects) < 2:
        raise BadInput("MODEL and CLUSTER are needed, or two plans", where="compare", remedy=USAGE)
    model, *clusters = subjects
    places = [cluster_of(cluster) for cluster in clusters]
    counts = {place.count for place in places}
    accelerators = counts.pop() if len(counts) == 1 else 1
    values = {name: getattr(options, name) or (None,) for name in REPEATED}
    _check_number(len(places) * math.prod(map(len, values.values())))
    result = []
    for cluster, *chosen in itertools.product(places, *values.values()):
        named = dict(zip(values, chosen, strict=True))
        words = [cluster.name] if len(places) > 1 else []
        words += [
            f"{name} {value}" if name in ("batch", "sequence") else str(value)
            for name, value in named.items()
            if len(values[name]) > 1
        ]
        label = " ".join(words) or cluster.name
        recipe = RecipeOptions(**{name: named.pop(name) for name in RECIPE})
        try:
            job = job_of(model, recipe, accelerators)
            result.append(_side(label, job, cluster, **named, routing=options.routing))
        except NothingFeasible as error:
            raise NothingFeasible(f"{label}: {error}") from None
        except BadInput as error:
            error.where = f"{label}: {error.where}" if error.where else label
            raise
    return result


def _side(
    label: str, job: Any, cluster: Any, *, layout: str | None, stack: str | None, fabric: str | None, routing: str
) -> Side:
    """One side, its layout given or planned."""
    from weft.commands.plan import plan
    from weft.commands.simulate import simulate
    from weft.estimation import estimate
    from weft.search.comparison import Side

    software = ConstantsOptions(stack=stack)
    constants = constants_of(software, cluster, job)
    network: dict[str, Any] = {} if fabric is None else {"fabric": fabric, "routing": routing}
    if layout is not None:
        result = estimate(job, cluster, [layout_of(layout, job, cluster)], constants)[0]
    else:
        result = plan(job, cluster, stack=stack, top=1, **network).best
    side = Side(
        label=label,
        job=job,
        cluster=cluster,
        estimate=result,
        constants=constants,
        stack=stack_of(software, job, cluster),
    )
    if fabric is None:
        return side
    run: Any = simulate(job, cluster, result.layout, **network)
    name = fabric if routing in ROUTINGS else f"{fabric}, {routing} transport"
    return replace(side, fabric=name, simulated_s=run.iteration_s)


def _check_number(sides: int) -> None:
    if not 2 <= sides <= MOST:
        problem = f"{sides} side{'s' * (sides != 1)}"
        raise BadInput(problem, where="compare", remedy=f"give 2 to {MOST}: {USAGE}")


def _priced(sides: list[Side], prices: tuple[str, ...]) -> list[Side]:
    """The sides with the prices that were given."""
    from weft.codec import positive

    if not prices:
        return sides
    if len(prices) not in (1, len(sides)):
        problem = f"{len(prices)} prices for {len(sides)} sides"
        raise BadInput(problem, where="--usd-per-hour", remedy=f"give one, or {len(sides)}")
    usd = [positive(parse_count(price, "--usd-per-hour"), "--usd-per-hour") for price in prices]
    usd = usd * len(sides) if len(usd) == 1 else usd
    return [replace(side, usd_per_hour=price) for side, price in zip(sides, usd, strict=True)]


class CompareOutput(LayoutOutput):
    """Output options of ``weft compare``."""

    verbose: bool = option(False, "Also show every part of time and memory, and why it differs.")
    chart: str | None = chart_option("what makes the difference")


@command("MODEL CLUSTER... | PLAN.json...", options=CompareOptions, out=CompareOutput)
def compare_command(names: tuple[str, ...], options: CompareOptions, out: CompareOutput) -> None:
    """Compare two or more ways to train, and say why they differ.

    \b
    weft compare llama-3.1-8b h100-64 h200-64                 two clusters
    weft compare llama-3.1-8b h100-64 --batch 256 --batch 512  two batches (or --sequence, --precision)
    weft compare llama-3.1-8b h100-64 --layout tp=2 --layout tp=8
    weft compare a.json b.json                                plans and estimates of --format json

    Without --layout each side has the best layout of a plan. The sides are A, B, C and so on; all are compared with A.
    """
    report(compare(*names, options=options), out)
