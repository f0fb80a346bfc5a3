"""Every distinct collective of a layout on a fabric: alone, and while all groups of its axes run it.

A collective is simulated with every message of its algorithm flowing at once: the steady state of a pipeline
of small pieces.  Max-min times are proportional to bytes, so one run of one size serves all sizes; what the
fabric adds is then a number of seconds per byte, which the closed form takes up
(``weft.collectives.cost.Network.contention``) under its own launch, latency, protocol and overlap rules.

``FlowRoutes`` finds routes that were made for a job's flows again for the messages of its collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import NamedTuple

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network, Pattern, in_switch_share, link_share, slowest
from weft.collectives.messages import by_domain, expand
from weft.errors import BadInput, Unsupported
from weft.fabric.checks import components, some
from weft.fabric.paths import Paths
from weft.fabric.placement import Placement
from weft.fabric.reduction import Trees
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import Routes, joined, merged
from weft.fabric.transport import IDEAL, transport
from weft.layout.mesh import Spread, rank_groups
from weft.layout.spec import Layout
from weft.routing.traffic import JobTraffic
from weft.simulation.flows.symmetry import Transfer, transfer
from weft.simulation.iteration.demand import Key


class FlowRoutes:
    """The routes of some traffic by collective and pair of accelerators.

    A message takes the route of the flow of its collective (by name) between its two accelerators; where the
    traffic has none, the route of the first flow between them.  Parts of a flow on several queue pairs become
    one route, whose links carry their parts' shares.

    Args:
        name: who made the routes, for results and messages.
        idle: source and target of messages that carry nothing, so that they need no route.
    """

    def __init__(
        self, fabric: Fabric, traffic: JobTraffic, routes: Routes, *, name: str, idle: tuple[Ints, Ints] | None = None
    ) -> None:
        self.fabric, self.name = fabric, name
        source, target = idle or (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        self.idle = np.unique(source * fabric.accelerators + target)
        pairs = fabric.accelerators**2
        flow = traffic.collective * pairs + traffic.source * fabric.accelerators + traffic.target
        # Parts of a flow on several queue pairs have one key, and merge to one route with shares by bytes.
        flows, at = np.unique(flow, return_inverse=True)
        self.routes = merged(routes, at.reshape(-1), traffic.bytes, len(flows))
        # Of collectives with the same name, and of flows between the same pair, the first counts.
        self.number = {title: number for number, title in reversed(list(enumerate(traffic.names)))}
        named = np.array([self.number[title] for title in traffic.names], dtype=np.int64)
        self.pair, self.of_pair = np.unique(flows % pairs, return_index=True)
        key = named[flows // pairs] * pairs + flows % pairs if len(flows) else flows
        self.key, self.of_key = np.unique(key, return_index=True)

    def of(self, titles: Sequence[str], group: Ints, source: Ints, target: Ints) -> tuple[Routes, Ints]:
        """The routes of messages, message m in the collective ``titles[group[m]]``, and the numbers of those messages
        that carry nothing, which have none.
        """
        pair = source * self.fabric.accelerators + target
        numbers = np.array([self.number.get(title, -1) for title in titles], dtype=np.int64)
        result = _found(self.key, self.of_key, numbers[group] * self.fabric.accelerators**2 + pair)
        result = np.where(result < 0, _found(self.pair, self.of_pair, pair), result)
        without = np.flatnonzero(result < 0)
        missing = without[~np.isin(pair[without], self.idle)]
        if len(missing):
            names = self.fabric.names
            pairs_missing = [f"{names[source[message]]} -> {names[target[message]]}" for message in missing.tolist()]
            kinds = sorted({titles[number].partition(",")[0] for number in np.unique(group[missing]).tolist()})
            raise BadInput(
                f"{len(missing):,} of {len(pair):,} messages of {kinds[0]} have no route: {some(pairs_missing)}",
                where=self.name,
                remedy="route this layout on this fabric and placement, as weft route --plan does",
            )
        return self.routes.of(result[result >= 0]), without

    def completed(
        self, titles: Sequence[str], group: Ints, source: Ints, target: Ints, inside: Callable[[Ints, Ints], Routes]
    ) -> Routes:
        """The routes of all messages: as ``of`` between domains; what stays in one, or carries nothing, takes what
        ``inside`` gives for its source and target."""
        leaves = self.fabric.domain[source] != self.fabric.domain[target]
        away, stay = np.flatnonzero(leaves), np.flatnonzero(~leaves)
        outside, idle = self.of(titles, group[away], source[away], target[away])
        away, stay = np.delete(away, idle), np.concatenate([away[idle], stay])
        # Both kinds of messages one after another; sorting by number puts them back in their order.
        return joined([outside, inside(source[stay], target[stay])]).of(np.argsort(np.concatenate([away, stay])))


def _found(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of each wanted key among sorted ones, or -1."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], -1)


UNIT_BYTES = 1e9
"""Size at which messages are simulated; times are proportional to it."""
IN_NETWORK = "in-network"
"""The algorithm by which switches add up."""
NAMED = 3
"""Limiting links that are named."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wave:
    """Messages between accelerators that flow at once, per byte of a call, with the group of each."""

    source: Ints
    target: Ints
    bytes: Floats
    group: Ints
    routes: Routes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """One collective in all its groups: waves that follow each other.

    ``calls`` is how many calls the waves stand for: a send has one there and one back.  ``ideal`` are seconds
    per byte over the ports that the ranks have where the closed form sees them: rank r on accelerator r.
    """

    key: Key
    algorithm: str
    groups: Ints
    waves: tuple[Wave, ...]
    ideal: float
    calls: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contended:
    """Seconds per byte of one call over ports alone, in the slowest group alone, and with all groups; the numbers of
    the links that limit it."""

    ideal: float
    alone: float
    everybody: float
    bottlenecks: tuple[int, ...]

    @property
    def extra(self) -> float:
        """What the fabric adds to the closed form, in seconds per byte."""
        return self.everybody - self.ideal


def title(key: Key, group: int) -> str:
    """The name of a group's collective in traffic that is routed."""
    return f"{key[0]} over {'+'.join(key[1])}, group {group}"


def reached(fabric: Fabric, constants: Calibration) -> Fabric:
    """The fabric with what its links reach under collectives: their capacity times the calibrated efficiency."""
    return fabric.reaching(scale_up=constants.scale_up_efficiency, scale_out=constants.scale_out_efficiency)


class Wires:
    """The messages of a layout's collectives on a fabric.

    Args:
        fabric: at least as many accelerators as ranks.
        cluster: what the closed form takes for ideal.
        placement: of every rank; rank r on accelerator r by default.
        routing: a mode or a transport as ``weft.fabric.transport.transport`` reads it, with ``seed``.
        routes: what messages between domains take instead.
        in_network: where all tiers reduce, switches add up all-reduces of several domains if that is faster (without
            ``routes``).
    """

    def __init__(
        self,
        layout: Layout,
        cluster: Cluster,
        fabric: Fabric,
        constants: Calibration,
        *,
        placement: Placement | None = None,
        routing: str = "ecmp",
        routes: FlowRoutes | None = None,
        seed: int = 0,
        symmetry: bool = True,
        in_network: bool = False,
    ) -> None:
        self.layout, self.cluster, self.fabric, self.constants = layout, cluster, fabric, constants
        self.transport = transport(routing)
        self.seed, self.symmetry, self.paths, self.routes = seed, symmetry, Paths(fabric), routes
        placed = placement or Placement.in_order(layout.world)
        placed.check(layout.world, fabric)
        self.placement = placed.accelerators
        self.in_order = bool((self.placement == np.arange(layout.world)).all())
        self._extras: dict[tuple[object, ...], float] = {}
        self._leasts: dict[tuple[object, ...], float] = {}
        everywhere = all(tier.in_network_reduction for tier in cluster.tiers)
        self.in_network = in_network and routes is None and everywhere

    def of(self, layout: Layout, routes: FlowRoutes | None = None) -> Wires:
        """The wires of another layout of as many ranks on the same fabric, sharing the contention simulated so far.

        ``routes`` are those of the other layout.
        """
        wires = copy(self)
        wires.layout, wires.routes = layout, routes
        return wires

    def extra(self, key: Key) -> float:
        """What the fabric adds to the closed form of a collective, in seconds per byte, as ``contended`` has it.

        Kept by kind and groups, for all layouts that share them.
        """
        pattern = self.pattern(key)
        # Max-min times are proportional to bytes and follow from groups and routes alone, so that one run serves every
        # layout with these groups.  Routes made for a layout serve only that one, unless no message leaves its domain.
        if pattern not in self._extras:
            messages = self.messages(key)
            result = self._everybody(messages) - messages.ideal / messages.calls
            domain = self.fabric.domain
            leaves = any((domain[wave.source] != domain[wave.target]).any() for wave in messages.waves)
            if self.routes is not None and leaves:
                return result
            self._extras[pattern] = result
        return self._extras[pattern]

    def knows(self, key: Key) -> bool:
        """Whether ``extra`` is kept."""
        return self.pattern(key) in self._extras

    def least_extra(self, key: Key, cuts: Cuts) -> float:
        """What no routing can keep the fabric from adding: ``cuts`` have to let through what they let through."""
        pattern = self.pattern(key)
        # A bound under all routings: however messages go, what leaves or enters a part of the fabric crosses its
        # boundary. Steps follow each other, so that their bounds add up.
        if pattern not in self._leasts:
            laid, ideal = self._lie(key)
            passing = fsum(cuts.seconds(*step) for step in laid.steps)
            if self._may_add_up(key, laid.groups):
                passing, ideal = 0.0, min(ideal, self._in_network_ideal(rank_groups(self.layout, key[1])))
            self._leasts[pattern] = (passing - ideal) / _calls(key)
        return self._leasts[pattern]

    def pattern(self, key: Key) -> tuple[object, ...]:
        """What decides the messages of a collective on this fabric."""
        ranks = rank_groups(self.layout, key[1])
        rounds = key[0] == "send" and self.layout.schedule.rounds
        return key[0], rounds, ranks.shape, ranks.tobytes()

    @property
    def routing(self) -> str:
        """The mode or the transport, or who made the routes, and what carries it."""
        if self.routes is None:
            return self.transport.text
        return self.routes.name if self.transport.name == IDEAL else f"{self.routes.name} over {self.transport.text}"

    @cached_property
    def capacity_Bps(self) -> Floats:
        """What the links of the fabric reach."""
        return self.reached_Bps(self.fabric)

    def reached_Bps(self, fabric: Fabric) -> Floats:
        """What links reach: their capacity times the calibrated efficiency of their tier, or the transport's share
        where that is less: the calibrated one was measured over some transport, which does not count twice."""
        calibrated = reached(fabric, self.constants).capacity_Bps
        return np.minimum(calibrated, fabric.capacity_Bps * self.transport.shares(fabric))

    def messages(self, key: Key, *, algorithm: str | None = None) -> Messages:
        """The messages of a collective, by the algorithm that suits where its groups lie.

        Of messages between ranks and trees of switches that reduce, the faster with all groups at once."""
        if algorithm == IN_NETWORK:
            return self._added_up(key)
        laid, ideal = self._lie(key, algorithm)
        between = Messages(
            key=key,
            algorithm=laid.algorithm,
            groups=laid.groups,
            waves=tuple(self._wave(key, *step) for step in laid.steps),
            ideal=ideal,
            calls=_calls(key),
        )
        if algorithm is not None or not self._may_add_up(key, laid.groups):
            return between
        try:
            added = self._added_up(key)
        except (BadInput, Unsupported):
            return between
        # The closed form takes the faster of both, so that either is compared with the smaller ideal.
        best = min(between.ideal, added.ideal)
        chosen = added if self._everybody(added) < self._everybody(between) else between
        return replace(chosen, ideal=best)

    @cached_property
    def trees(self) -> Trees:
        """The trees of switches that add up."""
        return Trees(self.fabric, spread=self.transport.mode == "spray", seed=self.seed)

    def _may_add_up(self, key: Key, groups: Ints) -> bool:
        """Whether switches may take an all-reduce of several domains over from messages between ranks."""
        return self.in_network and key[0] == "all-reduce" and len(np.unique(self.fabric.domain[groups[0]])) > 1

    def _added_up(self, key: Key) -> Messages:
        """An all-reduce that switches add up."""
        ranks = rank_groups(self.layout, key[1])
        groups, domains = by_domain(self.placement[ranks], self.fabric.domain)
        result = self.trees.reductions(groups, domains)
        wave = Wave(
            source=result.source, target=result.target, bytes=result.bytes, group=result.group, routes=result.routes
        )
        ideal = self._in_network_ideal(ranks)
        return Messages(key=key, algorithm=IN_NETWORK, groups=groups, waves=(wave,), ideal=ideal)

    def _in_network_ideal(self, ranks: Ints) -> float:
        """Seconds per byte that the closed form has for an all-reduce added up by switches."""
        network = Network.of(self.cluster, self.constants)
        members = [np.array([np.bincount(ranks[0] // span).max()], dtype=np.float64) for span in network.spans]
        size = float(ranks.shape[1])
        if members[0][0] == size:
            return in_switch_share(size) / network.achieved_Bps[0]
        group = Spread(size=np.array([size]), members=tuple(members))
        return float(slowest(np.ones(1), group, network.achieved_Bps)[0])

    def _lie(self, key: Key, algorithm: str | None = None) -> tuple[_Laid, float]:
        """Messages between accelerators, and their seconds per byte over the ports that the closed form sees."""
        ranks = rank_groups(self.layout, key[1])
        laid = self._laid(key, self.placement[ranks], algorithm)
        # The closed form sees rank r on accelerator r, whatever the placement.
        nominal = laid if self.in_order else self._laid(key, ranks, algorithm)
        return laid, fsum(self._over_ports(key, nominal.groups, *step) for step in nominal.steps)

    def outlines(self, key: Key) -> Iterator[tuple[Ints, Ints, Floats, Ints]]:
        """Source, target, bytes and group of the messages of a collective, wave by wave, without their routes."""
        for source, target, bytes_ in self._lie(key)[0].steps:
            yield source.ravel(), target.ravel(), *_grouped(source, bytes_)

    def contended(self, messages: Messages) -> Contended:
        """How long a call takes over ports alone, alone, and with everybody; the mean over hashes."""
        result = [self._contended(draw) for draw in self._drawn(messages)]
        return replace(
            result[0],
            alone=float(np.mean([draw.alone for draw in result])),
            everybody=float(np.mean([draw.everybody for draw in result])),
        )

    def _drawn(self, messages: Messages) -> Iterator[Messages]:
        """The messages under every hash that counts."""
        yield messages
        for draw in range(1, self.transport.draws if self.routes is None else 1):
            seed = self.seed + draw
            waves = (
                replace(wave, routes=self.transport.routes(self.paths, wave.source, wave.target, seed=seed))
                for wave in messages.waves
            )
            yield replace(messages, waves=tuple(waves))

    def _contended(self, messages: Messages) -> Contended:
        alone = everybody = 0.0
        slowest = -1
        named: list[int] = []
        for wave in messages.waves:
            all_of_it = self._transfer(wave)
            last = int(np.argmax(all_of_it.end_s))
            everybody += float(all_of_it.end_s[last])
            slowest = int(wave.group[last]) if slowest < 0 else slowest
            late = all_of_it.end_s >= all_of_it.end_s[last] * (1 - 1e-9)
            named += np.unique(all_of_it.bottleneck[late & (all_of_it.bottleneck >= 0)]).tolist()
            alone += float(self._transfer(wave, np.flatnonzero(wave.group == slowest)).end_s.max(initial=0.0))
        per_byte = 1.0 / (UNIT_BYTES * messages.calls)
        return Contended(
            ideal=messages.ideal / messages.calls,
            alone=alone * per_byte,
            everybody=everybody * per_byte,
            bottlenecks=tuple(named[:NAMED]),
        )

    def _everybody(self, messages: Messages) -> float:
        """Seconds per byte of a call while all groups send."""
        draws = [
            fsum(float(self._transfer(wave).end_s.max()) for wave in draw.waves) for draw in self._drawn(messages)
        ]
        return float(np.mean(draws)) * (1.0 / (UNIT_BYTES * messages.calls))

    def spans_domains(self, groups: Ints) -> bool:
        """Whether a group has several ranks in a domain, and ranks in several domains."""
        domains = self.fabric.domain[groups[0]]
        return 1 < len(np.unique(domains)) < len(domains)

    def switch_reduces(self, groups: Ints) -> bool:
        """Whether the switch of their scale-up domain can add up what groups of more than two reduce."""
        inner = self.cluster.tiers[0]
        within = len(np.unique(self.fabric.domain[groups[0]])) == 1 and groups.shape[1] > 2
        return within and inner.in_network_reduction and inner.kind == "switch"

    def _algorithm(self, kind: str, groups: Ints) -> str:
        if kind == "all-to-all":
            return "direct"
        if kind == "exchange":
            return "ring"
        try:
            _, domains = by_domain(groups, self.fabric.domain)
        except BadInput:
            return "ring"
        if domains == 1 and self.cluster.tiers[0].kind == "fully-connected":
            return "direct"
        return "rings" if 1 < domains < groups.shape[1] else "ring"

    def _laid(self, key: Key, groups: Ints, algorithm: str | None) -> _Laid:
        """Who sends how much to whom when the groups are these accelerators."""
        if key[0] == "send":
            return self._sends(groups)
        chosen = algorithm or self._algorithm(key[0], groups)
        size, domains = groups.shape[1], 1
        if chosen in ("rings", "hierarchical"):
            groups, domains = by_domain(groups, self.fabric.domain)
        steps = expand(key[0], chosen, np.arange(size), 1.0, domain=np.arange(size) * domains // size)
        hop_after_hop = (key[0], chosen) == ("all-to-all", "hierarchical")
        waves = steps.one_by_one() if hop_after_hop else (steps.pipelined(),)
        return _Laid(chosen, groups, [(groups[:, wave.source], groups[:, wave.target], wave.bytes) for wave in waves])

    def _sends(self, groups: Ints) -> _Laid:
        """Activations to the next stage, then gradients back; interleaving also joins the last to the
        first."""
        size = groups.shape[1]
        joins = size if self.layout.schedule.rounds and size > 2 else size - 1
        pairs = np.stack([groups[:, :joins], np.roll(groups, -1, axis=1)[:, :joins]], axis=-1).reshape(-1, 2)
        next_stage, this_stage, byte = pairs[:, :1], pairs[:, 1:], np.ones(1)
        return _Laid("direct", pairs, [(next_stage, this_stage, byte), (this_stage, next_stage, byte)])

    def _wave(self, key: Key, source: Ints, target: Ints, bytes_: Floats) -> Wave:
        """Messages of all groups, one group a row."""
        ends = source.ravel(), target.ravel()
        each, group = _grouped(source, bytes_)
        return Wave(source=ends[0], target=ends[1], bytes=each, group=group, routes=self._routed(key, group, *ends))

    def _routed(self, key: Key, group: Ints, source: Ints, target: Ints) -> Routes:
        if self.routes is None:
            return self._hashed(source, target)
        titles = [title(key, number) for number in range(int(group.max(initial=-1)) + 1)]
        return self.routes.completed(titles, group, source, target, self._hashed)

    def _hashed(self, source: Ints, target: Ints) -> Routes:
        return self.transport.routes(self.paths, source, target, seed=self.seed)

    def _transfer(self, wave: Wave, flows: Ints | None = None) -> Transfer:
        chosen = np.arange(len(wave.source)) if flows is None else flows
        return transfer(
            self.capacity_Bps,
            wave.source[chosen],
            wave.target[chosen],
            wave.bytes[chosen] * UNIT_BYTES,
            wave.routes if flows is None else wave.routes.of(chosen),
            symmetry=self.symmetry,
        )

    def _over_ports(self, key: Key, groups: Ints, source: Ints, target: Ints, bytes_: Floats) -> float:
        """Seconds per byte over the ports of the cluster's tiers, which the closed form takes for ideal.

        Inside the domain and on the NIC the busiest accelerator counts; further out the busiest unit, whose
        accelerators share what its tier lets through.
        """
        seconds = 0.0
        pattern = _PATTERNS.get(key[0], "ring")
        source, target, weights = source.ravel(), target.ravel(), np.tile(bytes_, len(source))
        below = 1
        # Tier by tier: messages inside a domain load the accelerator's own links, messages out of it its NIC; further
        # out a unit of `below` accelerators shares what its tier lets through.
        for k, (tier, span) in enumerate(zip(self.cluster.tiers, self.cluster.spans, strict=True)):
            leaves = source // below != target // below
            if k == 0:
                leaves &= source // span == target // span
            unit = below if k > 1 else 1
            units = len(np.unique(groups[0] // below % (span // below)))
            share = link_share(tier.kind, tier.size, np.full(1, max(units, 2.0)), pattern)
            efficiency = self.constants.scale_out_efficiency if k else self.constants.scale_up_efficiency
            Bps = tier.effective_Bps * efficiency * float(np.max(share)) * unit
            for ends in (source, target):
                crossing = np.bincount(ends[leaves] // unit, weights=weights[leaves], minlength=1)
                seconds = max(seconds, float(crossing.max()) / Bps)
            below = span
        return seconds


class Cuts:
    """Parts of a fabric and what can leave and enter each, whatever the routes: accelerators, scale-up domains,
    and what hangs together up to each tier."""

    def __init__(self, fabric: Fabric, capacity_Bps: Floats) -> None:
        up = np.flatnonzero(fabric.up)
        source, target, tier = fabric.source[up], fabric.target[up], fabric.tier[up]
        parts = [np.arange(fabric.nodes, dtype=np.int64)]
        parts += [
            components(fabric.nodes, source[tier <= height], target[tier <= height]) for height in np.unique(tier)[:-1]
        ]
        self.accelerators = fabric.accelerators
        self._parts: list[tuple[Ints, Floats, Floats]] = []
        # For each part the capacity of the links across its boundary, out and in.
        for part in parts:
            across = part[source] != part[target]
            out, into = (
                np.bincount(part[ends[across]], capacity_Bps[up][across], minlength=fabric.nodes).astype(np.float64)
                for ends in (source, target)
            )
            self._parts.append((part, out, into))

    def seconds(self, source: Ints, target: Ints, bytes_: Floats) -> float:
        """Seconds that messages between accelerators need at least, a group a row, with the bytes of a row's."""
        source, target, weights = source.ravel(), target.ravel(), np.tile(bytes_, len(source))
        longest = 0.0
        # Bytes over the boundary, divided by what it carries, bound the time from below; the tightest boundary counts.
        for part, out, into in self._parts:
            across = part[source] != part[target]
            for ends, able in ((source, out), (target, into)):
                passing = np.bincount(part[ends[across]], weights[across], minlength=len(able))
                used = passing > 0
                longest = max(longest, float((passing[used] / able[used]).max(initial=0.0)))
        return longest


def _grouped(rows: Ints, bytes_: Floats) -> tuple[Floats, Ints]:
    """Bytes and group of every message, of those of a row and rows of messages."""
    return np.tile(bytes_, len(rows)), np.repeat(np.arange(len(rows)), rows.shape[1])


def _calls(key: Key) -> int:
    """How many calls the waves of a collective stand for."""
    return 2 if key[0] == "send" else 1


class _Laid(NamedTuple):
    """A collective on some accelerators: source and target of every message, one group a row, and the bytes of
    a row's messages, for each step."""

    algorithm: str
    groups: Ints
    steps: list[tuple[Ints, Ints, Floats]]


_PATTERNS: dict[str, Pattern] = {"all-to-all": "pairs", "send": "neighbour", "exchange": "neighbour"}
"""Who talks to whom, where it is not around a ring."""
