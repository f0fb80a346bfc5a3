"""``weft.plan``: the layouts of a model on a cluster, ranked."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from weft.commands.command_line import command
from weft.commands.networks import RadixOptions, RoutingOptions, fabric_of, placement_of
from weft.commands.options import given_options, option, options_of, verb
from weft.commands.output import LayoutOutput, Progress, nothing_fits, report
from weft.commands.shared import (
    ConstantsOptions,
    ModelOptions,
    RunOptions,
    cluster_of,
    constants_of,
    job_of,
    share_of,
    stack_of,
)
from weft.errors import BadInput, UnknownName
from weft.layout.spec import AXES, word_of
from weft.layout.text import parse_layout
from weft.units import counted, format_seconds, parse_seconds

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource
    from weft.fabric import Fabric
    from weft.fabric.placement import Placement
    from weft.search import Plan, Space

POOL = 100
"""Meshes searched for, at least, of which the fastest that differ are shown."""
SPARE = 10
"""Meshes searched for per layout shown, of which near-equal ones are left out."""
EASY = 15
"""Odd factor that pipeline stages and the like take without harm."""
WORTHWHILE = 0.1
"""Time that fewer accelerators must save to be named."""
DOUBLINGS = 10
"""Larger clusters that are tried where nothing fits."""


class NetworkOptions(RadixOptions, RoutingOptions):
    """The network for which layouts are searched."""

    group = "Network"
    more = ("planned",)
    fabric: str | Fabric | None = option(None, "Search flow by flow on this network.", metavar="KIND|FILE")
    placement: str | Placement | None = option(
        None, "With --fabric: hosts in rank order, as CSV or a hostfile.", metavar="FILE"
    )
    axis_order: Literal["any", "usual"] = option(
        "any", "With --fabric: orders of the axes to try (usual: that of launchers)."
    )
    budget: str | float | None = option(None, "With --fabric: time limit, as 60s.", metavar="TIME")

    needs = dict.fromkeys(("placement", "axis_order", "budget", "radix", "routing"), "fabric")


class PlanOptions(ModelOptions, RunOptions, ConstantsOptions, NetworkOptions):
    """What is searched, and how the result is ranked."""

    group = "Search"
    space: Literal["standard", "zero-bubble", "4d", "wide"] | None = option(
        None, "Layouts to try: of Megatron-LM, zero-bubble, AxoNN's or all (default: the recipe's)."
    )
    order: Literal["ease", "time"] = option(
        "ease", "Rank by time and by what a layout needs to run, or by time alone."
    )
    fix: tuple[str, ...] = option((), "Pin a key of the layout, as tp=8 (repeats).", metavar="NAME=VALUE")
    max: tuple[str, ...] = option((), "Bound a degree, as pp=16 (repeats).", metavar="NAME=N")
    runnable: bool = option(False, "Only layouts that weft train runs.")
    memory_margin: str | float = option("5%", "Memory to leave free.", metavar="SHARE")
    top: int = option(10, "Layouts to show.", least=1, most=10_000)
    variants: bool = option(False, "Rank every layout, also near-equal ones.")


@verb(PlanOptions)
def plan(
    model: JobSource,
    cluster: ClusterSource,
    options: PlanOptions | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    **given: Any,
) -> Plan:
    """Rank the layouts of a model on a cluster.

    >>> import weft
    >>> found = weft.plan("llama-3.1-8b", "h100-64", top=3, fix="tp=1")
    >>> [layout.layout.x for layout in found.layouts]
    [1, 1, 1]

    Args:
        model: a name, a Hugging Face config.json, a Megatron-LM script, a model or a job.
        cluster: a name such as h100-1024, a TOML file, or a cluster.
        progress: called with meshes done and in all.
    """
    options = given_options(PlanOptions, options, given)
    from weft.search import SPACES, STANDARD, distinct, runnable
    from weft.search import plan as search

    where = cluster_of(cluster)
    job = job_of(model, options, where.count)
    name = options.space or job.space or STANDARD.name
    if name not in SPACES:
        raise UnknownName("space", name, SPACES, where=f"recipe of {job.model.name}")
    space = _constrain(SPACES[name], where.count, options)
    fabric = None if options.fabric is None else fabric_of(options.fabric, where, options.radix)
    placement = None if fabric is None else placement_of(options.placement, fabric, where.count)
    budget_s = None if options.budget is None else parse_seconds(options.budget, "--budget")
    if options.runnable:
        space = runnable(space, job.model)
    result = search(
        job,
        where,
        space=space,
        top=options.top if options.variants else max(POOL, SPARE * options.top),
        per_mesh=not options.variants,
        memory_margin=share_of(options.memory_margin, "--memory-margin"),
        constants=constants_of(options, where, job),
        stack=stack_of(options, job, where),
        order=options.order,
        progress=progress,
    )
    if not result.considered:
        pinned = max(space.fixed.get("expert", (1,)) + space.fixed.get("expert_tensor", (1,)))
        dense = pinned > 1 and not any(kind.moe for kind in job.model.kinds)
        raise BadInput(
            f"{job.model.name} has no experts" if dense else "the constraints exclude every layout",
            where=" and ".join(name for name, used in (("--fix", options.fix), ("--max", options.max)) if used)
            or None,
            remedy="leave out ep and etp" if dense else "drop or loosen one",
        )
    if fabric is not None and result.layouts:
        from weft.search.network_plan import plan_on_fabric

        kept: Plan = plan_on_fabric(
            result,
            fabric,
            routing=options.routing,
            placement=placement,
            orders=options.axis_order == "any",
            top=options.top,
            per_mesh=not options.variants,
            budget_s=budget_s,
        )
    else:
        kept = result if options.variants else distinct(result, options.top)
    constants = constants_of(options, where, job)
    ranked = [replace(row, run=options.training(row.estimate, job, where, constants)) for row in kept.ranked]
    return replace(kept, ranked=tuple(ranked))


def _constrain(space: Space, count: int, options: PlanOptions) -> Space:
    """The space with ``fix`` and ``max`` applied."""
    fixed: dict[str, Any] = {}
    for text in options.fix:
        part = parse_layout(text, where="--fix")
        if twice := sorted(set(fixed) & set(part.values)):
            raise BadInput(f"{word_of(twice[0])} is fixed twice", where="--fix", remedy="give it once")
        fixed |= dict(part.values)
        if part.data_parallel is not None:
            fixed["data_parallel"] = part.data_parallel
    for name in (*AXES, "data_parallel"):
        if count % fixed.get(name, 1):
            raise BadInput(
                f"{word_of(name)}={fixed[name]} does not divide {counted(count, 'accelerator')}",
                where="--fix",
                remedy="choose a divisor of the number of accelerators",
            )
    maximum: dict[str, int] = {}
    for text in options.max:
        part = parse_layout(text, where="--max")
        bounds = dict(part.values) | ({"data_parallel": part.data_parallel} if part.data_parallel else {})
        for name, value in bounds.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise BadInput(f"{word_of(name)} has no maximum", where="--max", remedy="use --fix for options")
            maximum[name] = value
    return space.constrained(fixed, maximum)


@command(options=PlanOptions, out=LayoutOutput)
def plan_command(model: str, cluster: str, options: PlanOptions, out: LayoutOutput) -> None:
    """Rank the layouts of MODEL on CLUSTER.

    MODEL is a name (weft info models), a Hugging Face config.json, a Megatron-LM script or an application of Calculon;
    CLUSTER an accelerator's name and a count, as a100-512, h100-1024, h800-2048, b200-256, gb200-256, mi300x-64
    or tpu-v5p-512 (weft info clusters lists all), a TOML file or a system of Calculon (system.json:1024).

    The first layout is the fastest, except that simpler layouts win near-ties: each mechanism must gain 1 % of the
    time, and one that hardly any published run uses 10 %.

    \b
    What if? Two batches:      weft compare MODEL CLUSTER --batch 256 --batch 512
    Two clusters:              weft compare MODEL h100-64 h200-64
    A second NIC for each GPU: weft sweep --models MODEL --clusters CLUSTER --axis nic_bandwidth=400Gb/s,800Gb/s
    """
    with Progress("evaluating layouts") as progress:
        result = plan(model, cluster, options, progress=progress)
    network = "simulated_s" in result.COLUMNS
    if result.layouts:
        size = "" if network else _smaller(result, options)
    else:
        size = "" if result.batch_that_runs else _enough(result, options)
    words: dict[str, Any] = {} if network else {"command": _command(model, cluster, options), "size": size}
    report(result, out, drawn=bool(result.layouts), **words)
    if not result.layouts:
        from weft.views.words import plan_verdict

        nothing_fits(". ".join(filter(None, [f"{result.shortage} -- {plan_verdict(result)}", size])), out)


def _command(model: str, cluster: str, options: PlanOptions) -> str:
    """The command that shows a layout of the plan in full, without the layout."""
    from weft.commands.estimate import EstimateOptions

    words, known = ["weft", "estimate", model, cluster], {known.name for known in options_of(EstimateOptions)}
    for named in options_of(PlanOptions):
        value = getattr(options, named.name)
        if named.name in known and value != named.default:
            words += [named.flags[0]] if value is True else [named.flags[0], str(value)]
    return shlex.join(words)


def _enough(result: Plan, options: PlanOptions) -> str:
    """How many accelerators of the same kind, by doublings, the job needs; empty where no such cluster is named."""
    from weft.cluster import load

    family, _, count = result.cluster.name.rpartition("-")
    less = int(count) if count.isdecimal() else result.cluster.count
    for _ in range(DOUBLINGS):
        try:
            if plan(result.job, load(f"{family}-{2 * less}"), options.changed(top=1)).layouts:
                return f"It fits on {family}-{2 * less}, not on {family}-{less}."
        except BadInput:
            return ""
        less *= 2
    return ""


def _smaller(result: Plan, options: PlanOptions) -> str:
    """The part of the cluster that is faster than the whole; empty where the axes can share the whole well.

    What of the number of accelerators does not divide the batch cannot be data parallel: where that has a large odd
    factor, as 1,000 beside a batch of 2,048, pipelines of 125 stages remain.
    """
    from weft.cluster.catalogue import resized
    from weft.model.resolve import even_batch

    cluster, batch = result.cluster, result.job.recipe.global_batch
    unit = cluster.spans[-1] // cluster.tiers[-1].size
    odd, best, fastest_s = _odd_rest(cluster.count, batch), "", (1 - WORTHWHILE) * result.best.iteration_s
    if odd <= EASY:
        return ""
    for count in range(cluster.count - unit, 3 * cluster.count // 4, -unit):
        if _odd_rest(count, batch) > odd // 2:
            continue
        odd = _odd_rest(count, batch)
        try:
            ranked = plan(result.job, resized(cluster, count), options.changed(top=1)).layouts
        except BadInput:
            continue
        if ranked and ranked[0].iteration_s < fastest_s:
            fastest_s = ranked[0].iteration_s
            best = f"{count:,} of the {cluster.count:,} accelerators are faster: {format_seconds(fastest_s)} per step"
    more = f"more with --batch {even_batch(batch, cluster.count)}"
    return f"{best} ({cluster.count:,} shares few factors with a batch of {batch:,}; {more})" if best else ""


def _odd_rest(count: int, batch: int) -> int:
    """The odd part of what of ``count`` does not divide ``batch``."""
    rest = count // math.gcd(count, batch)
    return rest // (rest & -rest)
