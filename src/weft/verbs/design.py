"""``weft.design``: candidate networks for a job, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput
from weft.verbs.networks import ROUTINGS, PriceOptions, RadixOptions
from weft.verbs.options import given_options, option, verb
from weft.verbs.shared import PlannedOptions, RecipeOptions, cluster_of, job_of, layout_of, numbers_of, subject_of

if TYPE_CHECKING:
    from weft.layout import Layout
    from weft.search.design import DesignStudy
    from weft.verbs.shared import ClusterSource, JobSource

USAGE = "weft design MODEL CLUSTER [--layout tp=8,pp=4] | weft design --plan FILE [--rank N]"


@dataclass(frozen=True, kw_only=True)
class DesignOptions(PlannedOptions, PriceOptions, RadixOptions, RecipeOptions):
    """Which networks are compared, and how."""

    fabrics: str | tuple[str, ...] = option(
        "rail-only,rail-optimized,fat-tree", "Networks to compare, by kind.", metavar="KIND,..."
    )
    sizes: str | tuple[int, ...] = option(
        "", "Scale-up domain sizes to try (default: the cluster's own).", metavar="K,..."
    )
    batches: str | tuple[int, ...] = option("", "Global batches to try (default: the recipe's own).", metavar="N,...")
    routing: str = option("spray", "How paths are chosen in the simulation.", choices=ROUTINGS)
    seed: int = option(0, "Seed of hashed and random paths.", metavar="N")
    no_simulate: bool = option(False, "Closed form only.")
    no_failures: bool = option(False, "Leave the study of failures out.")


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
        progress: called with networks done and in all.

    Raises:
        BadInput: a name, a file or an option that cannot be used.
    """
    asked = given_options(DesignOptions, options, given)
    from weft.search.design import Terms
    from weft.search.design import design as compare

    layout: Layout | None = None
    if asked.plan is not None:
        subject = subject_of(model, cluster, asked, asked, verb="design", usage=USAGE)
        job, where, layout = subject.job, subject.cluster, subject.layout
    elif model is None or cluster is None:
        raise BadInput("MODEL and CLUSTER are needed, or --plan", where="design", remedy=USAGE)
    else:
        job, where = job_of(model, asked), cluster_of(cluster)
        if asked.layout is not None:
            layout = layout_of(asked.layout, job, where)
    how = Terms(
        prices=asked.price_list(),
        radix=asked.radix,
        layout=layout,
        routing=asked.routing,
        seed=asked.seed,
        simulate=not asked.no_simulate,
        failures=not asked.no_failures,
    )
    kinds = asked.fabrics.split(",") if isinstance(asked.fabrics, str) else asked.fabrics
    return compare(
        job,
        where,
        [kind.strip() for kind in kinds if kind.strip()],
        how,
        domains=numbers_of(asked.sizes, "--sizes"),
        batches=numbers_of(asked.batches, "--batches"),
        progress=progress,
    )
