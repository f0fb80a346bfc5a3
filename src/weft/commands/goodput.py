"""``weft.goodput``: how much time failures cost a training run, class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.commands.networks import ROUTING, ROUTINGS, fabric_of
from weft.commands.options import given_options, option, verb
from weft.commands.shared import (
    ConstantsOptions,
    FailureOptions,
    RankedOptions,
    RecipeOptions,
    constants_of,
    subject_of,
)
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource, LayoutSource
    from weft.fabric import Fabric
    from weft.search.goodput import GoodputReport

USAGE = 'weft.goodput("llama-3.1-8b", "h100-64", "tp=2", tokens="15T")'


@dataclass(frozen=True, kw_only=True)
class GoodputOptions(RankedOptions, RecipeOptions, ConstantsOptions, FailureOptions):
    """What fails, where, and how many hosts stand by."""

    spares: int | None = option(
        None, "Spare hosts (default: as many as cost least).", metavar="N", least=0, most=10_000
    )
    fabric: str | Fabric | None = option(
        None,
        "Network whose parts fail, simulated with them failed (default: the cluster's usual one, not simulated).",
        metavar="KIND|FILE",
    )
    routing: str = option(ROUTING, "How paths are chosen in the simulation.", choices=ROUTINGS)


@verb(GoodputOptions)
def goodput(
    model: JobSource | None = None,
    cluster: ClusterSource | None = None,
    layout: LayoutSource | None = None,
    options: GoodputOptions | None = None,
    **given: Any,
) -> GoodputReport:
    """How much time and money failures cost a training run, and which class of failures costs what.

    >>> import weft
    >>> found = weft.goodput("llama-3.1-8b", "h100-1024", "tp=2,sp", tokens="15T")
    >>> 0.9 < found.goodput < 1.0
    True

    Args:
        model: as for ``weft.plan``; left out with ``plan``.
        cluster: as for ``weft.plan``; left out with ``plan``.
        layout: as text or as a record.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a name, a file or an option that cannot be used, a layout that cannot run the job, or failures that
            come too fast for any work to be saved.
    """
    options = given_options(GoodputOptions, options, given | ({} if layout is None else {"layout": layout}))
    if options.tokens is None:
        raise BadInput("is missing", where="--tokens", remedy=USAGE)
    from weft.search.goodput import goodput as goodput_of

    subject = subject_of(model, cluster, options, options, verb="goodput", usage=USAGE)
    terms = options.terms(
        options.tokens, spares=options.spares, simulate=options.fabric is not None, routing=options.routing
    )
    fabric = fabric_of(options.fabric, subject.cluster)
    constants = constants_of(options, subject.cluster, subject.job)
    return goodput_of(subject.job, subject.cluster, subject.layout, fabric, terms, constants=constants)
