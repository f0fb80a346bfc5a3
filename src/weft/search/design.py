"""Candidate networks for a job, side by side: cost, power, speed, and what a failure does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from weft.cluster.catalogue import oversubscribed, rewired, with_domain, with_spares_used
from weft.cluster.spec import Cluster
from weft.codec import Document
from weft.errors import BadInput, WeftError
from weft.estimation.iteration import estimate
from weft.fabric.catalogue import TREES, check_kinds, for_cluster, own_routing, parse_kind
from weft.fabric.cost import PARTS, Bill, Prices, bill, scale_up_usd
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.transport import carrier
from weft.layout.spec import Layout
from weft.layout.text import format_layout
from weft.model.job import Job
from weft.reliability.job import parts_of, stranded_accelerators
from weft.results import Result
from weft.search.enumeration import STANDARD, Space
from weft.search.goodput import DegradedNetwork, FailureTerms, goodput
from weft.search.network_plan import BEGUN
from weft.search.ranking import plan
from weft.simulation.iteration.evaluator import Evaluator
from weft.simulation.iteration.simulate import simulate_iteration

# Turning points ------------------------------------------------------------------------------------------------
# What the advice of a design study depends on: where a price, an oversubscription or a routing turns it.
#
# Nothing is simulated: speeds are the study's, and the cost of a network is linear in each price, so that two
# networks cost the same at one price at most, where their lines cross.

LEAST, MOST = 0.1, 10.0
"""Factors of today's price between which turning points are told."""
MOST_USD_PER_KWH = 1.0
"""Energy is in no sum of a study, so its price starts at 0; ten times what power usually costs."""
LEVEL = 1e-9
"""Slopes closer than this, relative to the cost, are equal: the networks have the same parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Which of a study's networks."""

    kind: str
    domain: int
    global_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoint:
    """A price from which on another network is recommended: ``factor`` times today's (None where that is 0)."""

    factor: float | None
    usd: float
    to: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTurns:
    """The next turning points below and above today's price ``usd``; None where there is none from ``LEAST`` to
    ``MOST`` times it.

    ``price`` is a part of ``PARTS``; ``scale_up``, both prices of domains; ``energy``, a kWh of the scale-out network
    (0 today); or ``accelerator_hour``.  That is not in the cost of a network: below its ``lower``, which may be over
    today's price, a cheaper and slower network trains more tokens per dollar of accelerators and network.
    """

    price: str
    usd: float
    lower: TurningPoint | None
    higher: TurningPoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTurn:
    """The next oversubscription tried of the recommended kind, which is not as fast: how much longer its iteration
    takes, as a share, and what it saves."""

    to: Candidate
    longer: float
    usd_saved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTurn:
    """The network that is recommended by the times of another routing, and whether it is another one."""

    routing: str
    to: Candidate
    total_usd: float
    turns: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoints:
    """What turns the advice; ``oversubscription`` and ``routing`` are None where the study tried no other."""

    prices: tuple[PriceTurns, ...]
    oversubscription: RatioTurn | None
    routing: RoutingTurn | None


def turning_points(study: DesignStudy) -> TurningPoints:
    """What turns the advice of a study with designs."""
    return TurningPoints(
        prices=(*_part_turns(study), *_hour_turns(study)),
        oversubscription=_ratio_turn(study),
        routing=_spray_turn(study),
    )


def _candidate(design: Design) -> Candidate:
    return Candidate(kind=design.kind, domain=design.domain, global_batch=design.global_batch)


def usd_at(design: Design, price: str, factor: float) -> float:
    """Dollars of a design's networks where one price is ``factor`` times today's."""
    if price == "scale_up":
        return design.bill.usd + factor * design.scale_up_usd
    field = f"usd_per_{price}"
    scaled = replace(design.bill.prices, **{field: factor * getattr(design.bill.prices, field)})
    return replace(design.bill, prices=scaled).usd + design.scale_up_usd


def _part_turns(study: DesignStudy) -> Iterator[PriceTurns]:
    """Where another network that is as fast costs less."""
    designs = sorted(study.as_fast, key=lambda design: design is not study.recommended)
    prices = {part: getattr(study.prices, f"usd_per_{part}") for part in PARTS}
    if any(design.scale_up_usd for design in study.designs):
        prices["scale_up"] = study.prices.usd_per_scale_up_GBps
    for price, usd in prices.items():
        if usd:
            fixed = [usd_at(design, price, 0.0) for design in designs]
            lines = [(each, design.total_usd - each, design) for each, design in zip(fixed, designs, strict=True)]
            lower, higher = _crossings(lines)
            yield PriceTurns(price=price, usd=usd, lower=_told(lower, usd), higher=_told(higher, usd))
    used_kWh = study.network_s / 3600 / 1e3
    above = _crossings([(design.total_usd, design.bill.watts * used_kWh, design) for design in designs])[1]
    energy = None
    if above is not None and above[0] <= MOST_USD_PER_KWH:
        energy = TurningPoint(factor=None, usd=above[0], to=_candidate(above[1]))
    yield PriceTurns(price="energy", usd=0.0, lower=None, higher=energy)


def _hour_turns(study: DesignStudy) -> Iterator[PriceTurns]:
    """Where a cheaper, slower network trains more tokens per dollar."""
    best, usd = study.recommended, study.usd_per_hour
    cheaper = [design for design in study.designs if design.total_usd < best.total_usd]

    def per_token(design: Design) -> _Line:
        """Dollars of network, and of accelerators at today's price; of a whole run where there is one."""
        if design.after is not None:
            return design.after.network_usd, usd * design.after.accelerator_hours, design
        network_usd_per_s = (design.total_usd - study.own_domains_usd) / study.network_s
        hours_per_s = study.cluster.count / 3600
        return network_usd_per_s / design.tokens_per_s, usd * hours_per_s / design.tokens_per_s, design

    if usd and cheaper:
        below = _crossings([per_token(design) for design in (best, *cheaper)])[0]
        yield PriceTurns(price="accelerator_hour", usd=usd, lower=_told(below, usd), higher=None)


_Line = tuple[float, float, "Design"]
"""What a design costs without a price, what the price adds, and the design."""


def _crossings(lines: Sequence[_Line]) -> tuple[tuple[float, Design] | None, tuple[float, Design] | None]:
    """The largest factor of a price below which some other design costs less than the first, and the least above which
    one does, each with that design."""
    (fixed, slope, _), *rivals = lines
    below: list[tuple[float, float, float, Design]] = []
    above: list[tuple[float, float, float, Design]] = []
    for rival_fixed, rival_slope, rival in rivals:
        gain = slope - rival_slope
        if abs(gain) > LEVEL * max(slope, rival_slope):
            # A rival that the price weighs on less gets cheaper as it rises, the others as it falls.
            (above if gain > 0 else below).append(
                ((rival_fixed - fixed) / gain, rival_slope, rival.tokens_per_s, rival)
            )
    # Where several cross at one price, the steepest change wins beyond it, and among equal networks the fastest.
    lower = max(below, key=lambda each: each[:3], default=None)
    higher = min(above, key=lambda each: (*each[:2], -each[2]), default=None)
    return lower and (lower[0], lower[3]), higher and (higher[0], higher[3])


def _told(crossing: tuple[float, Design] | None, usd: float) -> TurningPoint | None:
    """A crossing, unless it is beyond what is told."""
    if crossing is None or not LEAST <= crossing[0] <= MOST:
        return None
    return TurningPoint(factor=crossing[0], usd=crossing[0] * usd, to=_candidate(crossing[1]))


def _ratio_turn(study: DesignStudy) -> RatioTurn | None:
    best = study.recommended

    def alike(design: Design) -> tuple[str, int, int]:
        return design.kind.partition(" ")[0], design.domain, design.global_batch

    # What is cheaper than the recommended network is not as fast.
    cheaper = [each for each in study.designs if alike(each) == alike(best) and each.total_usd < best.total_usd]
    if not cheaper:
        return None
    following = max(cheaper, key=lambda design: design.total_usd)
    return RatioTurn(
        to=_candidate(following),
        longer=following.iteration_s / best.iteration_s - 1,
        usd_saved=best.total_usd - following.total_usd,
    )


def _spray_turn(study: DesignStudy) -> RoutingTurn | None:
    """The choice by the times of packet spraying, which a study of hashed routes has beside."""
    sprayed = tuple(
        replace(each, simulated_s=each.sprayed_s, tokens_per_s=each.tokens_per_s * each.iteration_s / each.sprayed_s)
        for each in study.designs
        if each.sprayed_s is not None
    )
    if len(sprayed) < len(study.designs):
        return None
    choice = replace(study, designs=sprayed).recommended
    turns = _candidate(choice) != _candidate(study.recommended)
    return RoutingTurn(routing="spray", to=_candidate(choice), total_usd=choice.total_usd, turns=turns)


# Designs -------------------------------------------------------------------------------------------------------

SAME = 1 - 1e-6
"""Figures closer than this are equal."""
AS_FAST = 0.01
"""Networks this close in tokens per second are as fast as each other."""
OVERSUBSCRIPTIONS = (1.0, 2.0, 4.0, 8.0)
"""Of the outermost tier in the closed form, whose first layouts are tried on every network: the same ones whatever the
network's own is, so that a wider network is not slower for want of a layout."""
OWN = "own"
"""Routing of each network as its kind is usually routed."""
NETWORK_S = 4 * 365.25 * 86400.0
"""How long a network is written off."""
COMPONENTS = ("NIC", "leaf", "rail", "spine", "rail-spine", "core", "router")
"""What fails, one at a time: a NIC, or one switch of a role that the fabric has."""
FAILED, DRAWS = (1, 2, 4, 8), 3
"""How many parts of a kind fail at once, and in how many random sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFailure:
    """One component down.

    ``stranded`` accelerators have no way left to some others, so that the job cannot run on all (``iteration_s`` is
    then None); otherwise traffic takes a way around, and an iteration takes ``slowdown`` times as long.
    """

    component: str
    affected: int
    stranded: int
    iteration_s: float | None
    slowdown: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsFailed:
    """Several parts of a kind down at once, in sets drawn at random.

    ``total`` is how many parts there are.  Sets that cut accelerators off stop the job: ``stopped`` of ``draws``.
    ``mean`` and ``worst`` are the shares of its speed that it keeps in the others; None where there are no others.
    """

    component: str
    failed: int
    total: int
    draws: int
    stopped: int
    mean: float | None
    worst: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterFailures:
    """A whole run on one network, failures counted.

    ``network_usd`` is the share that the run uses up of the scale-out network's price, and of what the domains cost
    more than the cluster's own, which are in the price of accelerators.  ``run_usd`` is that with accelerator-hours'
    price (spares included); ``tokens_per_usd`` is None without a price of accelerators.
    """

    goodput: float
    spares: int
    expected_s: float
    accelerator_hours: float
    network_usd: float
    run_usd: float | None
    tokens_per_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One network under one job.

    ``bill`` is that of the scale-out network, ``scale_up_usd`` what the domains cost.  ``closed_form_s`` and
    ``simulated_s`` are iteration times, ``tokens_per_s`` what the latter (or else the former) makes of the batch;
    ``sprayed_s`` is the time with packet spraying where ``simulated_s`` is with ECMP (None: it is not);
    ``spine_bytes`` cross tiers above the first switch in an iteration.  ``layout`` is the job's on this network.
    ``one_domain_s`` is the iteration with all accelerators in one scale-up domain (None: not asked for).
    ``memory_bytes`` are those of its fullest accelerator, and ``fits`` whether it has them.
    """

    kind: str
    domain: int
    global_batch: int
    layout: Layout
    bill: Bill
    scale_up_usd: float
    closed_form_s: float
    simulated_s: float | None
    tokens_per_s: float
    nic_bytes: float | None
    spine_bytes: float | None
    failures: tuple[ComponentFailure, ...]
    after: AfterFailures | None
    sprayed_s: float | None = None
    one_domain_s: float | None = None
    memory_bytes: float
    fits: bool

    @property
    def iteration_s(self) -> float:
        """The simulated time, or the closed form's where nothing was simulated."""
        return self.closed_form_s if self.simulated_s is None else self.simulated_s

    @property
    def over_one_domain(self) -> float | None:
        """How much longer an iteration takes than in one domain, as a share."""
        return None if self.one_domain_s is None else self.iteration_s / self.one_domain_s - 1

    @property
    def total_usd(self) -> float:
        """Dollars of scale-out network and scale-up domains."""
        return self.bill.usd + self.scale_up_usd

    @property
    def tokens_per_s_usd(self) -> float | None:
        """Tokens per second for each dollar of ``total_usd``; None where that is 0."""
        return self.tokens_per_s / self.total_usd if self.total_usd else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedDesign(Document):
    """A design, and whether no other beats it in both dollars and tokens per second."""

    DOCUMENT = """
        design.* bill=design.bill.totals pareto total_usd=design.total_usd tokens_per_s_usd=design.tokens_per_s_usd
        over_one_domain=design.over_one_domain"""

    design: Design
    pareto: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """Savings of a network against another: parts and dollars of the scale-out network, as shares, and the time
    that an iteration takes longer, as a share.  None where the other has no such part."""

    kind: str
    domain: int
    global_batch: int
    against: str
    switches_saved: float | None
    transceivers_saved: float | None
    usd_saved: float
    usd_saved_share: float | None
    longer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate that cannot be built or cannot run the job, and why."""

    kind: str
    domain: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DesignStudy(Result):
    """All candidates for a job.

    ``pareto`` numbers the designs that no other beats in both dollars and tokens per second; ``assumptions`` are
    those of domains of other sizes than the cluster's; ``against`` is the kind that the others are held against.
    ``usd_per_hour`` is the price of an accelerator-hour (0: unknown); a network is written off over ``network_s``.
    ``parts_failed`` are those of ``with_parts_failed``.
    """

    SCHEMA = "weft.design/1"
    DOCUMENT = """
        job cluster radix routing transport prices network_s usd_per_hour designs=judged rejected assumptions against
        instead turning_points parts_failed"""

    job: Job
    cluster: Cluster
    radix: int
    routing: str
    prices: Prices
    designs: tuple[Design, ...]
    pareto: tuple[int, ...]
    rejected: tuple[Rejected, ...]
    assumptions: tuple[str, ...]
    against: str | None = None
    network_s: float = NETWORK_S
    usd_per_hour: float = 0.0
    parts_failed: tuple[PartsFailed, ...] = ()

    @property
    def fastest(self) -> Design:
        return max(self.designs, key=lambda design: design.tokens_per_s)

    @property
    def as_fast(self) -> tuple[Design, ...]:
        """The networks within ``AS_FAST`` of the fastest."""
        least = (1 - AS_FAST) * self.fastest.tokens_per_s
        return tuple(design for design in self.designs if design.tokens_per_s >= least)

    @property
    def recommended(self) -> Design:
        """The cheapest network of those as fast as the fastest."""
        return min(self.as_fast, key=lambda design: (design.total_usd, -design.tokens_per_s))

    @property
    def turning_points(self) -> TurningPoints | None:
        """The prices, oversubscription and routing that turn the advice; None where there are no two designs."""
        return turning_points(self) if len(self.designs) > 1 else None

    @property
    def own_domains_usd(self) -> float:
        """What the cluster's own domains cost, which is in the price of its accelerators."""
        return _domains_usd(self.cluster, self.prices)

    def with_parts_failed(self) -> DesignStudy:
        """The study with the speed that the recommended network keeps as more parts of it fail, simulated."""
        if not any(design.failures for design in self.designs):
            return self
        return replace(self, parts_failed=tuple(_parts_failed(_recommended_network(self))))

    @property
    def routings(self) -> tuple[str, ...]:
        """The routings of all designs, each once."""
        return tuple(dict.fromkeys(routing_on(design.kind, self.routing) for design in self.designs))

    @property
    def instead(self) -> tuple[Instead, ...]:
        """Savings of each network against the one of kind ``against`` with the same domains and batch."""
        references = {
            (design.domain, design.global_batch): design for design in self.designs if design.kind == self.against
        }
        pairs = [
            (design, references.get((design.domain, design.global_batch)))
            for design in self.designs
            if design.kind != self.against
        ]
        return tuple(_instead(design, beside) for design, beside in pairs if beside is not None)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a network: what it is, what it costs and how fast it trains, in SI units and dollars."""
        return [
            {name: getattr(design, name) for name in ("kind", "domain", "global_batch")}
            | {"layout": format_layout(design.layout)}
            | {name: getattr(design.bill, name) for name in ("switches", "transceivers", "usd", "watts")}
            | {name: getattr(design, name) for name in _FIGURES}
            | {name: getattr(design.after, name, None) for name in _AFTER}
            | {"pareto": i in self.pareto}
            for i, design in enumerate(self.designs)
        ]

    @property
    def transport(self) -> str:
        return carrier(self.routing)

    @property
    def judged(self) -> tuple[JudgedDesign, ...]:
        """The designs, each with whether no other beats it."""
        return tuple(JudgedDesign(design=design, pareto=i in self.pareto) for i, design in enumerate(self.designs))


_AFTER = tuple(field.name for field in fields(AfterFailures))
_FIGURES = (
    *("scale_up_usd", "closed_form_s", "simulated_s", "sprayed_s", "tokens_per_s", "nic_bytes", "spine_bytes"),
    *("total_usd", "tokens_per_s_usd", "over_one_domain"),
)


def _instead(design: Design, reference: Design) -> Instead:
    def saved(part: str) -> float | None:
        now, before = getattr(design.bill, part), getattr(reference.bill, part)
        return 1 - now / before if before else None

    return Instead(
        kind=design.kind,
        domain=design.domain,
        global_batch=design.global_batch,
        against=reference.kind,
        switches_saved=saved("switches"),
        transceivers_saved=saved("transceivers"),
        usd_saved=reference.bill.usd - design.bill.usd,
        usd_saved_share=saved("usd"),
        longer=design.iteration_s / reference.iteration_s - 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignTerms:
    """How candidates are built and compared.

    ``layout`` is used on every network; None takes for each the candidate that is fastest on it, or the closed form's
    first without ``simulate``.  ``routing`` is that of the simulation, or ``OWN``.  ``run`` asks for a whole run under
    failures, of which a network lasts ``network_s``.  ``against`` is the kind that the others are held against, and
    ``one_domain`` asks for the time with all accelerators in one scale-up domain.  Networks of leaves and spines are
    tried as the cluster has them, and with all ``oversubscriptions``; such a network that is the same as another is
    left out, and failures are studied on the recommended one only.
    """

    prices: Prices
    radix: int = 64
    layout: Layout | None = None
    space: Space = STANDARD
    routing: str = "ecmp"
    simulate: bool = True
    failures: bool = True
    run: FailureTerms | None = None
    network_s: float = NETWORK_S
    against: str | None = None
    one_domain: bool = False
    oversubscriptions: tuple[float, ...] = ()


def design(
    job: Job,
    cluster: Cluster,
    kinds: Sequence[str],
    options: DesignTerms,
    *,
    domains: Sequence[int] = (),
    batches: Sequence[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> DesignStudy:
    """Compare networks for a job.

    Args:
        job: model and recipe.
        cluster: accelerators; its first tier is the scale-up domain, its second gives the NIC.
        kinds: fabrics to build (``weft.fabric.catalogue.kinds``).
        options: prices, radix, layout, routing.
        domains: sizes of the scale-up domain to try; the cluster's own where empty.
        batches: global batches to try; the job's own where empty.
        progress: called with candidates done and in all.

    Raises:
        UnknownName: an unknown kind.
        BadInput: domains that do not divide the accelerators.
    """
    if options.against is not None and options.against not in kinds:
        kinds = [*kinds, options.against]
    check_kinds(kinds)
    clusters = {size: with_domain(cluster, size) for size in domains or (cluster.tiers[0].size,)}
    usual_ratio = max((tier.oversubscription for tier in cluster.tiers[1:]), default=1.0)
    # Trees come in every oversubscription beside the cluster's own; other kinds have none.
    ratios = [ratio for ratio in options.oversubscriptions if ratio != usual_ratio]
    tried = [name for kind in kinds for name in (kind, *(f"{kind} {r:g}:1" for r in ratios if kind in TREES))]
    candidates = [
        (kind, size, batch) for size in clusters for batch in (batches or (job.recipe.global_batch,)) for kind in tried
    ]
    own_usd = _domains_usd(cluster, options.prices)
    known: dict[tuple[int, int], list[Layout]] = {}
    whole_s: dict[int, float] = {}
    designs: list[Design] = []
    rejected: list[Rejected] = []
    seen: set[tuple[object, ...]] = set()
    for number, (kind, size, batch) in enumerate(candidates):
        if progress is not None:
            progress(number, len(candidates))
        sized_job = replace(job, recipe=replace(job.recipe, global_batch=batch))
        try:
            if (size, batch) not in known:
                known[size, batch] = _candidates(sized_job, clusters[size], options)
            if options.one_domain and batch not in whole_s:
                whole_s[batch] = _one_domain_s(sized_job, cluster, options)
            fabric = for_cluster(kind, clusters[size], radix=options.radix)
            # Another ratio may round to the same switches and links, which would be compared twice.
            same = parse_kind(kind)[0], size, batch, fabric.links, float(fabric.capacity_Bps.sum())
            if same in seen:
                continue
            seen.add(same)
            # Failures are studied on the networks that the user named and on the recommended one.
            how = options if kind in kinds else replace(options, failures=False)
            compared = _design(sized_job, clusters[size], kind, fabric, known[size, batch], how, own_usd)
            designs.append(replace(compared, one_domain_s=whole_s.get(batch)))
        except WeftError as error:
            rejected.append(Rejected(kind=kind, domain=size, reason=str(error)))
    study = DesignStudy(
        job=job,
        cluster=cluster,
        radix=options.radix,
        routing=options.routing,
        prices=options.prices,
        designs=tuple(designs),
        pareto=_frontier(designs),
        rejected=tuple(rejected),
        assumptions=tuple(filter(None, (rewired(cluster, variant) for variant in clusters.values()))),
        against=options.against,
        network_s=options.network_s,
        usd_per_hour=(options.run and options.run.usd_per_hour) or cluster.accelerator.usd_per_hour,
    )
    if not designs or study.recommended.failures or not (options.failures and options.simulate):
        return study
    return _with_failures(study)


def _domains_usd(cluster: Cluster, prices: Prices) -> float:
    """What a cluster's scale-up domains cost, bought whole."""
    bought = with_spares_used(cluster)
    return scale_up_usd(bought.tiers[0], bought.count, prices)


def _recommended_network(study: DesignStudy) -> DegradedNetwork:
    best, job = study.recommended, study.job
    cluster = with_domain(study.cluster, best.domain)
    return DegradedNetwork(
        job=replace(job, recipe=replace(job.recipe, global_batch=best.global_batch)),
        cluster=cluster,
        layout=best.layout,
        fabric=for_cluster(best.kind, cluster, radix=study.radix),
        routing=routing_on(best.kind, study.routing),
    )


def _with_failures(study: DesignStudy) -> DesignStudy:
    """The study with what failed parts do to the recommended network."""
    best = study.recommended
    changed = replace(best, failures=tuple(_failures(_recommended_network(study))))
    return replace(study, designs=tuple(changed if design is best else design for design in study.designs))


def _one_domain_s(job: Job, cluster: Cluster, options: DesignTerms) -> float:
    """Seconds of an iteration with all accelerators in one scale-up domain, found as those of the networks."""
    single, plain = with_domain(cluster, cluster.count), replace(options, failures=False, run=None)
    fabric, layouts = for_cluster("rail-only", single, radix=options.radix), _candidates(job, single, plain)
    return _design(job, single, "rail-only", fabric, layouts, plain, 0.0).iteration_s


def routing_on(kind: str, routing: str) -> str:
    """The routing of a network of a kind, where "own" is the kind's usual one."""
    return own_routing(kind) if routing == OWN else routing


def _design(
    job: Job,
    cluster: Cluster,
    kind: str,
    fabric: Fabric,
    layouts: Sequence[Layout],
    options: DesignTerms,
    own_usd: float,
) -> Design:
    """One network under a job; ``own_usd`` of its domains are in the price of the accelerators."""
    domains_usd = _domains_usd(cluster, options.prices)
    layout, routing = layouts[0], routing_on(kind, options.routing)
    # The closed form ranks layouts for some network, not for this one: each candidate is simulated on it.
    if len(layouts) > 1:
        layout = min(layouts, key=Evaluator(job, cluster, fabric, routing=routing).seconds)
    closed = estimate(job, cluster, [layout])[0]
    simulated = sprayed = nic_bytes = spine_bytes = None
    failures: tuple[ComponentFailure, ...] = ()
    network = DegradedNetwork(job=job, cluster=cluster, layout=layout, fabric=fabric, routing=routing)
    if options.simulate:
        run = network.healthy
        simulated = run.iteration_s
        if routing == "ecmp":
            sprayed = simulate_iteration(job, cluster, layout, fabric, routing="spray").iteration_s
        nic_bytes, spine_bytes = _crossing(fabric, run.link_bytes)
        if options.failures:
            failures = tuple(_failures(network))
    # Spare hosts stand idle, but their ports are bought.
    bought = for_cluster(kind, with_spares_used(cluster), radix=options.radix) if cluster.spares else fabric
    price = bill(bought, options.prices, radix=options.radix, kind=kind)
    return Design(
        kind=kind,
        domain=cluster.tiers[0].size,
        global_batch=job.recipe.global_batch,
        layout=layout,
        bill=price,
        scale_up_usd=domains_usd,
        closed_form_s=closed.iteration_s,
        simulated_s=simulated,
        sprayed_s=sprayed,
        tokens_per_s=job.recipe.tokens / (simulated or closed.iteration_s),
        nic_bytes=nic_bytes,
        spine_bytes=spine_bytes,
        failures=failures,
        memory_bytes=closed.memory_bytes,
        fits=closed.fits,
        after=None
        if options.run is None
        else _after(network, price.usd + domains_usd - own_usd, options.run, options.network_s),
    )


def _after(network: DegradedNetwork, total_usd: float, terms: FailureTerms, network_s: float) -> AfterFailures:
    """A whole run on a network, failures counted."""
    result = goodput(network.job, network.cluster, network.layout, network.fabric, terms, network=network)
    run, share = result.run, total_usd * result.run.expected_s / network_s
    usd = None if run.usd is None else run.usd + share
    return AfterFailures(
        goodput=result.goodput,
        spares=result.spares,
        expected_s=run.expected_s,
        accelerator_hours=run.accelerator_hours,
        network_usd=share,
        run_usd=usd,
        tokens_per_usd=None if usd is None else run.tokens / usd,
    )


def _candidates(job: Job, cluster: Cluster, options: DesignTerms) -> list[Layout]:
    """Layouts to choose from on each network: those of the closed form that is first for some oversubscription."""
    if options.layout is not None:
        return [options.layout]
    # The same candidates for all networks: where the closed form's outer tier is slow, layouts that send little come
    # first, where it is fast, others.
    tried, top = [cluster], 1
    if options.simulate:
        top = BEGUN
        if len(cluster.tiers) > 1:
            tried = [oversubscribed(cluster, ratio) for ratio in OVERSUBSCRIPTIONS]
    result = [
        candidate.layout for each in tried for candidate in plan(job, each, space=options.space, top=top).layouts
    ]
    if not result:
        raise BadInput("no layout fits", where=cluster.name, remedy="see weft plan for the reasons")
    return list(dict.fromkeys(result))


def _crossing(fabric: Fabric, link_bytes: np.ndarray) -> tuple[float, float]:
    """Bytes that leave accelerators by their NIC, and bytes that go up beyond the first switch."""
    outside = fabric.tier != SCALE_UP
    leaving = outside & (fabric.source < fabric.accelerators)
    between = outside & (fabric.source >= fabric.accelerators) & (fabric.target >= fabric.accelerators)
    return float(link_bytes[leaving].sum()), float(link_bytes[between].sum() / 2.0)


def _failures(network: DegradedNetwork) -> Sequence[ComponentFailure]:
    """One component of each kind down, one at a time."""
    fabric, result = network.fabric, []
    for component in COMPONENTS:
        if component == "NIC":  # the links of an accelerator into the scale-out network
            links = np.flatnonzero((fabric.source == 0) & (fabric.tier != SCALE_UP))
            switches, affected = np.zeros(0, dtype=np.int64), min(len(links), 1)
        else:
            links, switches = np.zeros(0, dtype=np.int64), fabric.nodes_of(component)[:1]
            affected = int(np.count_nonzero(np.isin(fabric.target, switches) & fabric.up))
        if affected:
            # Components of a kind are taken as alike: the first stands for each of them.
            left = fabric.failed(links=links, nodes=switches)
            stranded = len(stranded_accelerators(left))
            seconds = None if stranded else network.iteration_s(left)
            result.append(
                ComponentFailure(
                    component=component,
                    affected=affected,
                    stranded=stranded,
                    iteration_s=seconds,
                    slowdown=None if seconds is None else seconds / network.healthy_s,
                )
            )
    return result


def _parts_failed(network: DegradedNetwork) -> Iterator[PartsFailed]:
    """The speed left with more and more parts of each kind down."""
    spines = len(parts_of(network.fabric, "spine"))
    for component in ("spine" if spines else "leaf", "fabric-link", "access-link"):
        parts = parts_of(network.fabric, component).tolist()
        # A set of four is the set of two and two more, so that a row below another is not luckier.
        drawn = [
            random.Random(f"{component} {draw}").sample(parts, min(len(parts), max(FAILED))) for draw in range(DRAWS)
        ]
        for count in FAILED:
            if count > len(parts):
                break
            sets = [network.speed([(component, part, 0.0) for part in parts[:count]]) for parts in drawn]
            speeds = [speed for speed in sets if speed is not None]
            yield PartsFailed(
                component=component,
                failed=count,
                total=len(parts),
                draws=DRAWS,
                stopped=DRAWS - len(speeds),
                mean=math.fsum(speeds) / len(speeds) if speeds else None,
                worst=min(speeds, default=None),
            )


def _frontier(designs: Sequence[Design]) -> tuple[int, ...]:
    """Designs that no other beats in both dollars and seconds a token."""
    points = [(design.total_usd, 1.0 / design.tokens_per_s) for design in designs]
    return tuple(
        i
        # All pairs: there are few designs. One that is as good in both, within rounding, does not rule out another.
        for i, (usd, seconds) in enumerate(points)
        if not any(
            (u <= usd and s <= seconds) and (u < SAME * usd or s < SAME * seconds)
            for j, (u, s) in enumerate(points)
            if j != i
        )
    )
