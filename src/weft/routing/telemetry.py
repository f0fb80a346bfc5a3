"""What links are measured to carry and to lose, and what the controller makes of it.

A link that loses packets is avoided as long as something else joins what it joins; what it carries beyond the known
flows is taken off its capacity.  Both with hysteresis, so that figures that waver move no flow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints, Mask
from weft.fabric.traffic import spans

PACKET_BYTES = 4096.0
"""Of a packet, where only bytes are counted: the largest InfiniBand and RoCE payload."""
LOSSY = 1e-4
"""A link that loses this share of its packets is avoided ..."""
CLEAN = 1e-6
"""... until it loses at most this share ..."""
HOLD_S = 300.0
"""... for so long, twice as long after each relapse: an idle link loses nothing, only use shows that it is well."""
MOST_DOUBLED = 6
"""How often the time that a link has to be clean is doubled."""
BEYOND = 0.1
"""Load beyond the known flows' counts from this share of capacity on, until it is below half of that, and is followed
in steps of half of that."""
LEAST_LEFT = 0.05
"""Share of a link's capacity that always counts as free, however much others send."""

COUNTERS = ("sent_bytes", "packets", "lost", "received", "damaged")
FIGURES = (*COUNTERS, "rate_Bps", "load", "loss")
"""What a sample may tell of a link."""
Ends = tuple[int, int]
"""Source and target node: all links from one to the other count as one."""
Kind = Literal["avoided", "kept", "back", "beyond", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSample:
    """What was read of the links from one node to another.

    ``sent_bytes``, ``packets`` and ``lost`` are the sender's counters, ``received`` (packets) and ``damaged`` the
    receiver's; two samples make a figure.  ``load`` and ``loss`` are shares of capacity and of packets, ``rate_Bps`` a
    rate.
    """

    ends: Ends
    load: float | None = None
    rate_Bps: float | None = None
    sent_bytes: float | None = None
    packets: float | None = None
    lost: float | None = None
    received: float | None = None
    damaged: float | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is known of the links between two nodes, and what of it counts.

    ``load``, ``lost_share`` (at the sender) and ``damaged_share`` are the last figures, the counters those that they
    are made of; ``sending`` is the load that counts (-1: none yet), ``beyond`` the
    share of capacity that others have, ``lossy`` whether the links are avoided where they can be, ``clean_s`` since
    when they have been clean (-1: they are not), ``times`` how often they became lossy.
    """

    time_s: float
    sent_bytes: float = -1.0
    packets: float = -1.0
    lost: float = -1.0
    received: float = -1.0
    damaged: float = -1.0
    load: float = -1.0
    lost_share: float = -1.0
    damaged_share: float = -1.0
    sending: float = -1.0
    beyond: float = 0.0
    lossy: bool = False
    clean_s: float = -1.0
    times: int = 0

    @property
    def loss(self) -> float:
        """The share of packets that do not arrive; -1 where nothing is known."""
        return max(self.lost_share, self.damaged_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """What a measurement changed: links between ``ends`` are ``kind``, for their ``value``.

    "avoided" and "kept" (nothing else leads there) for a share of lost packets, "back"; "beyond" for the share of
    capacity that others have, "released".
    """

    ends: Ends
    kind: Kind
    value: float


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """The health of a fabric's links, by their ends."""

    whole: Fabric
    health: Mapping[Ends, Health] = field(default_factory=dict)

    @cached_property
    def _by_ends(self) -> tuple[Ints, Ints]:
        """All links by their ends, and the ends as one number."""
        key = self.whole.source * self.whole.nodes + self.whole.target
        order = np.argsort(key, kind="stable")
        return order, key[order]

    def _between(self, *pairs: Ends) -> tuple[Ints, Ints]:
        """The links from one node to another, of several pairs, and how many of each."""
        order, key = self._by_ends
        wanted = np.array([a * self.whole.nodes + b for a, b in pairs], dtype=np.int64)
        first = np.searchsorted(key, wanted)
        count = np.searchsorted(key, wanted, side="right") - first
        return order[spans(first, count)], count

    def after(
        self, samples: tuple[LinkSample, ...], time_s: float, known_Bps: Floats
    ) -> tuple[Telemetry, list[LinkChange]]:
        """The health after some samples, and what that changes, except routes around lossy links.

        Args:
            known_Bps: what the known flows send over each link.
        """
        health = dict(self.health)
        changes: list[LinkChange] = []
        for sample in samples:
            links, _ = self._between(sample.ends)
            capacity = float(self.whole.capacity_Bps[links].sum())
            now = _measured(health.get(sample.ends), sample, time_s, capacity)
            now = self._loss_counted(now, time_s)
            if now.load >= 0:
                now, change = self._load_counted(now, sample.ends, float(known_Bps[links].sum()) / capacity)
                changes += change
            health[sample.ends] = now
        result = replace(self, health=health)
        result.__dict__["_by_ends"] = self._by_ends  # of the same fabric: kept, as it takes longer than the rest
        return result, changes

    @staticmethod
    def _loss_counted(now: Health, time_s: float) -> Health:
        if now.loss >= LOSSY:
            return replace(now, lossy=True, clean_s=-1.0, times=now.times + (not now.lossy))
        if now.loss < 0 or now.loss > CLEAN:
            return replace(now, clean_s=-1.0)
        # Links come back after a time without loss that doubles each time they became lossy: one that flaps stays out.
        since = now.clean_s if now.clean_s >= 0 else time_s
        hold_s = HOLD_S * 2 ** min(max(now.times - 1, 0), MOST_DOUBLED)
        return replace(now, clean_s=since, lossy=now.lossy and time_s - since < hold_s)

    @staticmethod
    def _load_counted(now: Health, ends: Ends, known: float) -> tuple[Health, list[LinkChange]]:
        # Hysteresis: a load that counts changes by half the threshold at least, so that noise moves no route.
        step = BEYOND / 2
        if now.sending < 0 or abs(now.load - now.sending) >= step:
            now = replace(now, sending=now.load)
        beyond = max(0.0, now.load - known)
        if beyond < step:
            value = 0.0
        elif now.beyond or beyond >= BEYOND:
            value = beyond if abs(beyond - now.beyond) >= step else now.beyond
        else:
            value = 0.0
        if value == now.beyond:
            return now, []
        kind: Kind = "beyond" if value else "released"
        return replace(now, beyond=value), [LinkChange(ends=ends, kind=kind, value=value)]

    def lossy(self) -> dict[Ends, float]:
        """The ends (lower first) of links that lose packets in either direction, and the share that they lose."""
        result: dict[Ends, float] = {}
        for (a, b), state in self.health.items():
            if state.lossy:
                ends = min(a, b), max(a, b)
                result[ends] = max(result.get(ends, 0.0), state.loss)
        return result

    def avoided(self, fabric: Fabric) -> frozenset[Ends]:
        """The ends (lower first) of lossy links that nothing needs: the worst first, never the last that joins."""
        lossy = self.lossy()
        if not lossy:
            return frozenset()
        live = fabric.up & (fabric.tier > SCALE_UP)
        clean = live & ~self._on(lossy)
        part = components(fabric.nodes, fabric.source[clean], fabric.target[clean])
        parent = {each: each for ends in lossy for each in part[list(ends)].tolist()}

        def root(each: int) -> int:
            while parent[each] != each:
                each = parent[each]
            return each

        unneeded = set()
        # Kruskal's algorithm over the parts that clean links join: of lossy links those with the least loss are kept
        # first, each only where it joins two parts, so that the sum of losses kept is least.
        for (a, b), _ in sorted(lossy.items(), key=lambda item: (item[1], item[0])):
            roots = root(int(part[a])), root(int(part[b]))
            if roots[0] == roots[1]:
                unneeded.add((a, b))
            elif bool(live[self._between((a, b))[0]].any()):
                parent[roots[0]] = roots[1]
        return frozenset(unneeded)

    def _on(self, pairs: Mapping[Ends, float] | frozenset[Ends]) -> Mask:
        """The links between pairs of nodes, both ways."""
        result = np.zeros(self.whole.links, dtype=bool)
        result[self._between(*pairs, *((b, a) for a, b in pairs))[0]] = True
        return result

    def applied(self, fabric: Fabric, avoided: frozenset[Ends]) -> Fabric:
        """The fabric without what is ``avoided``, with the capacity that others leave."""
        if not self.health:
            return fabric
        capacity = fabric.capacity_Bps.copy()
        beyond = {ends: state.beyond for ends, state in self.health.items() if state.beyond}
        links, count = self._between(*beyond)
        capacity[links] *= np.repeat(np.maximum(LEAST_LEFT, 1.0 - np.array([*beyond.values()])), count)
        return replace(fabric, up=fabric.up & ~self._on(avoided), capacity_Bps=capacity)


def _measured(old: Health | None, sample: LinkSample, time_s: float, capacity: float) -> Health:
    """The figures of a sample; counters that went back begin again."""
    before = old or Health(time_s=time_s)
    counters = {name: getattr(sample, name) for name in COUNTERS}
    # A counter below the last one was reset: nothing is known of the time between.
    more = {
        name: -1.0 if now is None or not 0 <= getattr(before, name) <= now else now - getattr(before, name)
        for name, now in counters.items()
    }
    figures = {name: now for name, now in counters.items() if now is not None}
    if sample.load is not None:
        figures["load"] = sample.load
    elif sample.rate_Bps is not None:
        figures["load"] = sample.rate_Bps / capacity
    elif more["sent_bytes"] >= 0 and time_s > before.time_s:
        figures["load"] = more["sent_bytes"] / (time_s - before.time_s) / capacity
    # Losses are shares of packets; where only bytes are counted, of the fewest packets that these can be.
    packets = more["packets"] if more["packets"] >= 0 else more["sent_bytes"] / PACKET_BYTES
    for name, bad, good in (
        ("lost_share", more["lost"], packets),
        ("damaged_share", more["damaged"], more["received"]),
    ):
        if bad >= 0 and good >= 0:
            figures[name] = bad / max(bad + good, 1.0)
    if sample.loss is not None:
        figures["lost_share"] = sample.loss
    time = {"time_s": time_s} if "load" in figures or sample.sent_bytes is not None else {}
    result: Health = replace(before, **figures, **time)  # type: ignore[arg-type]
    return result
