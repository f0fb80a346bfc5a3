"""Every policy by name, under one machine model, and all of them side by side."""

from __future__ import annotations

from weft.collectives.schedules.balanced import balanced
from weft.collectives.schedules.chunks import Request
from weft.collectives.schedules.hierarchical import baseline
from weft.collectives.schedules.queues import QueueRule
from weft.collectives.schedules.themis import themis
from weft.collectives.schedules.timing import Active, Timed, default_chunks, machine, time_schedule
from weft.collectives.stages import BALANCED_KINDS
from weft.errors import BadInput, UnknownName

POLICIES = ("baseline", "themis", "weft")
ALIASES = {"blueconnect": "baseline", "multi-rail": "baseline"}
ORDERS: tuple[QueueRule, ...] = ("fifo", "scf", "astra-fifo", "astra-scf")
_DEFAULT_ORDER: dict[str, QueueRule] = {"baseline": "fifo", "themis": "scf"}


def schedule(
    asked: Request,
    policy: str = "weft",
    *,
    order: QueueRule | None = None,
    chunks: int | None = None,
    active: Active = "auto",
    independent: bool = False,
) -> Timed:
    """Schedule a collective and time it.

    Args:
        policy: one of ``POLICIES``, or a name in ``ALIASES``.
        order: within the dimensions, for baseline (default fifo) and themis (default scf); "astra-fifo" and
            "astra-scf" are ASTRA-sim's variants of policy and order, in whole nanoseconds.
        chunks: 64 by default; ``weft`` chooses.
        active: chunks that a dimension works on at a time; None lets latencies overlap without limit.
        independent: ``weft`` also tries all-gather orders that do not mirror the reduce-scatter's.

    Raises:
        UnknownName: there is no such policy or order.
        BadInput: chunks or active are out of range, or ``weft`` is given an order.
    """
    name = ALIASES.get(policy, policy)
    if name not in POLICIES:
        raise UnknownName("policy", policy, (*POLICIES, *ALIASES))
    if name == "weft":
        if order is not None:
            problem = "the policy weft finds the order within the dimensions itself"
            raise BadInput(problem, where="order", remedy="drop it, or choose baseline or themis")
        limit = machine(asked, chunks, active)
        found = balanced(asked, chunks=chunks, active=limit, independent=independent)
        return time_schedule(found, active=limit)
    rule = order or _DEFAULT_ORDER[name]
    astra, count = rule.startswith("astra"), default_chunks(asked) if chunks is None else chunks
    limit = machine(asked, count, active)
    if name == "baseline":
        return time_schedule(baseline(asked, chunks=count, fused=astra), rule=rule, active=limit)
    variant = themis(asked, chunks=count, variant="astra-sim" if astra else "published")
    return time_schedule(variant, rule=rule, active=limit)


def compare(
    asked: Request, *, chunks: int | None = None, active: Active = "auto", independent: bool = False
) -> dict[str, Timed]:
    """Every policy on one machine, by name: the baseline first, Weft's own last."""
    limit = machine(asked, chunks, active)

    def timed(policy: str, order: QueueRule | None) -> Timed:
        return schedule(asked, policy, order=order, chunks=chunks, active=limit, independent=independent)

    found = {"baseline": timed("baseline", "fifo")}
    if asked.kind in BALANCED_KINDS:
        found |= {f"themis {order}": timed("themis", order) for order in ORDERS}
    return found | {"weft": timed("weft", None)}
