"""The process of a job: what its fabric's parts, its failure file and its policy make of each class of failures."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from weft.cluster.spec import Cluster
from weft.errors import BadInput, UnknownName
from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.reliability.classes import NETWORK, Component, FailureBook, FailureClass
from weft.reliability.renewal import Pause, Process, Saving, Slow, Stop
from weft.units import format_seconds

# Parts ---------------------------------------------------------------------------------------------------------

LEAVES = ("leaf", "rail")
SPINES = ("spine", "rail-spine")
LINKS = ("access-link", "fabric-link")
USUAL_HOST = 8
"""Accelerators of a host, where scale-up domains hold more and nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Components by kind of the part of a fabric that a job uses."""

    counts: dict[str, float]
    accelerators: int
    host_size: int

    def rate(self, known: FailureClass) -> float:
        """Failures of a class a second."""
        return known.rate(self.counts[known.component], self.accelerators)


def census(fabric: Fabric, accelerators: int, host_size: int | None = None) -> Census:
    """The components of a job's accelerators and of its share of the fabric, counted as a bill counts them."""
    size = host_size or min(int(np.bincount(fabric.domain).max()), USUAL_HOST)
    share = accelerators / fabric.accelerators
    counts: dict[str, float] = {"job": 1.0, "accelerator": float(accelerators), "host": -(-accelerators // size)}
    for kind in LINKS:
        counts[kind] = share * len(links_of(fabric, kind)) / 2.0
    access = links_of(fabric, "access-link")
    counts["nic"] = share * len(np.unique(fabric.source[access] * fabric.nodes + fabric.target[access])) / 2.0
    for kind in ("leaf", "spine", "core"):
        counts[kind] = share * len(switches_of(fabric, kind))
    return Census(counts=counts, accelerators=accelerators, host_size=size)


def switches_of(fabric: Fabric, kind: Component | str) -> Ints:
    """Scale-out switches of a kind: leaves, spines, and all others as cores."""
    outside = np.zeros(fabric.nodes, dtype=bool)
    beyond = fabric.tier != SCALE_UP
    outside[fabric.source[beyond]] = True
    outside[fabric.target[beyond]] = True
    outside[: fabric.accelerators] = False
    kinds = ["leaf" if role in LEAVES else "spine" if role in SPINES else "core" for role in fabric.roles]
    return np.flatnonzero(outside & (np.array(kinds)[fabric.role] == kind))


def links_of(fabric: Fabric, kind: Component | str) -> Ints:
    """Links (both directions) of cables from accelerators, or between switches."""
    at_end = (fabric.source < fabric.accelerators) | (fabric.target < fabric.accelerators)
    return np.flatnonzero((fabric.tier != SCALE_UP) & (at_end if kind == "access-link" else ~at_end))


def parts_of(fabric: Fabric, kind: Component | str) -> Ints:
    """What can fail of a kind: switches, or one link a cable."""
    if kind in LINKS:
        links = links_of(fabric, kind)
        return links[fabric.source[links] < fabric.target[links]]
    return switches_of(fabric, kind)


Failed = tuple[str, int, float]
"""A part that failed: its kind, its number (of ``parts_of``), and the share of capacity that its links keep."""


def drawn_failures(fabric: Fabric, book: FailureBook, count: int, *, seed: int, where: str) -> tuple[Failed, ...]:
    """``count`` parts that are failed at once, drawn without repetition in proportion to the rates of their classes.

    A part fails first, second, ... as the exponential times of all parts come.

    Args:
        where: the option that has ``count``.
    """
    classes = [known for known in book.classes if known.component in NETWORK and known.rate(1.0, 1.0) > 0]
    pool = [(known, int(part)) for known in classes for part in parts_of(fabric, known.component)]
    if count > len(pool):
        remedy = "give fewer, or classes of links and switches in --failures"
        problem = f"{count} parts cannot fail at once: {book.name} has classes for {len(pool)} of {fabric.name}"
        raise BadInput(problem, where=where, remedy=remedy)
    dice = random.Random(f"{seed} {count} 0")
    times = []
    for number, (known, _) in enumerate(pool):
        times.append((dice.expovariate(1.0) / known.rate(1.0, 1.0), number))
    first = sorted(number for _, number in sorted(times)[:count])
    return tuple((pool[number][0].component, pool[number][1], pool[number][0].capacity) for number in first)


def part_name(fabric: Fabric, failed: Failed) -> str:
    """What failed, in words: "fabric-link leaf-0 - spine-1", "leaf leaf-3"."""
    kind, part, _ = failed
    if kind in LINKS:
        return f"{kind} {fabric.names[fabric.source[part]]} - {fabric.names[fabric.target[part]]}"
    return f"{kind} {fabric.names[part]}"


def broken(fabric: Fabric, failed: Iterable[Failed]) -> Fabric:
    """The fabric with parts failed, each with the share of capacity that its links keep (0: they are down)."""
    reverse = fabric.reverse
    for kind, part, left in failed:
        if kind in LINKS:
            links = np.array([each for each in (part, int(reverse[part])) if each >= 0])
        else:
            links = np.flatnonzero((fabric.source == part) | (fabric.target == part))
        if left <= 0:
            fabric = fabric.failed(links=links)
            continue
        narrow = np.isin(np.arange(fabric.links), links)
        fabric = replace(fabric, capacity_Bps=np.where(narrow, fabric.capacity_Bps * left, fabric.capacity_Bps))
    return fabric


def stranded_accelerators(fabric: Fabric, among: Ints | None = None) -> Ints:
    """Accelerators (of some, or of all) that cannot reach the connected part that has the most of them."""
    part = components(fabric.nodes, fabric.source[fabric.up], fabric.target[fabric.up])
    wanted: Ints = np.arange(fabric.accelerators) if among is None else among
    largest = np.bincount(part[wanted]).argmax()
    return np.extract(part[wanted] != largest, wanted)


def hosts_taken(fabric: Fabric, known: FailureClass, host_size: int) -> int:
    """Hosts that the first component of a class takes down; 0 where the job's traffic finds another way."""
    if known.takes in ("job", "nothing"):
        return 0
    if known.takes == "host":
        return 1
    parts = parts_of(fabric, known.component if known.takes == "fabric" else "leaf")
    if not len(parts):
        return 0
    if known.takes == "fabric":
        if known.capacity > 0:
            return 0
        lost = stranded_accelerators(broken(fabric, [(known.component, int(parts[0]), 0.0)]))
    elif known.takes == "rail":
        lost = np.flatnonzero(fabric.rail == fabric.rail[0])
    else:
        ends = np.concatenate([fabric.source[fabric.target == parts[0]], fabric.target[fabric.source == parts[0]]])
        lost = np.unique(ends[ends < fabric.accelerators])
    return len(np.unique(lost // host_size))


# Processes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a job does about failures.

    After a stop it restarts from the last checkpoint on spares; without enough of them it waits for a repair, or with
    ``shrink`` goes on with fewer data-parallel replicas.  With ``reroute`` traffic finds its way around a dead link or
    switch without a stop.  ``hot`` spares hold a loaded process.  ``peer``: checkpoints in the memory of other hosts
    beside those in storage.  ``background``: storage is written while training goes on.
    """

    shrink: bool = False
    reroute: bool = False
    hot: bool = False
    peer: bool = False
    background: bool = False

    def __str__(self) -> str:
        chosen = [word for word, name in _WORDS.items() if name != "shrink" and getattr(self, name)]
        return ",".join(["shrink" if self.shrink else "restart", *chosen])


_WORDS = {"shrink": "shrink", "reroute": "reroute", "hot": "hot", "peer": "peer", "async": "background"}
"""Words of ``--policy`` beside restart, and the fields that they set."""


def parse_policy(text: str) -> Policy:
    """A policy of words with commas between, as "shrink,peer,async".

    Raises:
        UnknownName: a word that means nothing.
        BadInput: a word twice, or both restart and shrink.
    """
    where, words = "--policy", [word.strip() for word in text.split(",")]
    for word in words:
        if word not in ("restart", *_WORDS):
            raise UnknownName("policy", word[:40], ("restart", *_WORDS), where=where)
    if len(set(words)) < len(words) or {"restart", "shrink"} <= set(words):
        raise BadInput(f"{text[:60]!r} says a thing twice, or both restart and shrink", where=where, remedy="drop one")
    return Policy(**{name: word in words for word, name in _WORDS.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClass:
    """A class of failures in a job: its components, failures a second, hosts that one takes, and the job's speed while
    one lasts that it survives (None: it stops the job)."""

    known: FailureClass
    components: float
    rate: float
    hosts: int
    speed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingJob:
    """A job on a fabric under a failure file.

    ``hosts`` of ``host_size`` accelerators, and ``idle_hosts`` beside them in whole scale-up domains; ``load_s`` to
    read a checkpoint from storage, ``peer_s`` to copy one to or from a peer.
    """

    book: FailureBook
    policy: Policy
    census: Census
    classes: tuple[JobClass, ...]
    checkpoint_bytes: float
    load_s: float
    peer_s: float
    saving: Saving
    idle_hosts: int = 0

    @property
    def hosts(self) -> int:
        return int(self.census.counts["host"])

    @property
    def host_size(self) -> int:
        return self.census.host_size

    def in_repair(self) -> float:
        """Hosts in repair at a time, on average, if the job never waited."""
        rates = (
            job_class.rate * (1.0 - job_class.known.heals) * job_class.hosts * job_class.known.repair_hours
            for job_class in self.classes
        )
        return fsum(rates) * 3600.0

    def process(self, spares: int, speeds: tuple[float, ...] = (1.0,)) -> Process:
        """The process with so many spare hosts beside the idle ones, and the speeds with 0, 1, ... hosts short.

        Idle hosts count as one pool, although each can only replace a host of the same domain.
        """
        start_s = self.book.recovery.start(self.census.accelerators)
        stops: list[Stop] = []
        slows: list[Slow] = []
        pauses: list[Pause] = []
        for job_class in self.classes:
            if job_class.rate <= 0:
                continue
            if job_class.known.planned:
                pause_s = start_s + 2 * self.load_s + job_class.known.repair_hours * 3600.0
                pauses.append(Pause(name=job_class.known.name, rate=job_class.rate, pause_s=pause_s))
                continue
            if job_class.speed is not None:
                slows += self._slows(job_class, job_class.speed)
            if job_class.speed is None or not (self.policy.reroute or job_class.known.takes == "nothing"):
                stops += self._stops(job_class)
        return Process(
            stops=tuple(stops),
            slows=tuple(slows),
            pauses=tuple(pauses),
            spares=spares + self.idle_hosts,
            speeds=speeds,
            regrow_s=start_s + self.saving.stall_s + self._read_s(severe=False) if len(speeds) > 1 else 0.0,
        )

    def _read_s(self, *, severe: bool) -> float:
        return self.load_s if severe or not self.policy.peer else self.peer_s

    def _slows(self, job_class: JobClass, speed: float) -> list[Slow]:
        spells = (
            (job_class.known.heals, self.book.recovery.heal_s),
            (1 - job_class.known.heals, job_class.known.repair_hours * 3600.0),
        )
        return [
            Slow(name=job_class.known.name, rate=job_class.rate * share, duration_s=seconds, speed=speed)
            for share, seconds in spells
            if share * seconds > 0 and speed < 1
        ]

    def _stops(self, job_class: JobClass) -> list[Stop]:
        times, heals = self.book.recovery, job_class.known.heals
        severe = not self.policy.peer or job_class.hosts > 1
        restart_s = times.detect_s + times.start(self.census.accelerators) + self._read_s(severe=severe)
        swap_s = 0.0 if self.policy.hot else times.swap_s
        lasting = Stop(
            name=job_class.known.name,
            rate=job_class.rate * (1.0 - heals),
            restart_s=restart_s + (swap_s if job_class.hosts else 0.0),
            hosts=job_class.hosts,
            repair_s=job_class.known.repair_hours * 3600.0 if job_class.hosts else 0.0,
            severe=severe,
        )
        if job_class.speed is not None:  # what heals by itself does not stop the job
            return [lasting] if lasting.rate > 0 else []
        passing = Stop(
            name=job_class.known.name, rate=job_class.rate * heals, restart_s=restart_s, severe=not self.policy.peer
        )
        return [stop for stop in (lasting, passing) if stop.rate > 0]


def failing_job(
    book: FailureBook,
    policy: Policy,
    cluster: Cluster,
    fabric: Fabric,
    *,
    accelerators: int,
    checkpoint_bytes: float,
    speeds: Mapping[str, float] | None = None,
) -> FailingJob:
    """A job of ``accelerators`` on a fabric.

    Args:
        speeds: of the job while a part of a class has failed that leaves all accelerators connected, by the class's
            name; where there is none the class's own, else 1.
    """
    counted = census(fabric, accelerators, book.recovery.accelerators_per_host)
    classes = []
    for known in book.classes:
        hosts = min(hosts_taken(fabric, known, counted.host_size), int(counted.counts["host"]))
        survives = known.takes == "nothing" or (known.takes == "fabric" and hosts == 0)
        result = known.speed if known.speed is not None else (speeds or {}).get(known.name, 1.0)
        classes.append(
            JobClass(
                known=known,
                components=counted.counts[known.component],
                rate=counted.rate(known),
                hosts=0 if survives else hosts,
                speed=result if survives else None,
            )
        )
    chip = cluster.accelerator
    load_s = checkpoint_bytes / book.recovery.write_Bps(accelerators)
    peer_s, copy_s = (checkpoint_bytes / accelerators / Bps for Bps in (chip.nic_Bps, chip.host_Bps))
    saving = Saving(  # the intervals are yet to be chosen
        interval_s=1.0,
        stall_s=peer_s if policy.peer else 0.0,
        # An asynchronous save stalls for the copy to host memory; while it is written, steps are taken to slow down by
        # the share of the NIC that the writing takes, as if they did nothing but communicate.
        storage_s=copy_s + peer_s if policy.background else load_s,
        lag_s=load_s if policy.background else 0.0,
        every=2 if policy.peer else 1,
    )
    return FailingJob(
        book=book,
        policy=policy,
        census=counted,
        classes=tuple(classes),
        checkpoint_bytes=checkpoint_bytes,
        load_s=load_s,
        peer_s=peer_s,
        saving=saving,
        idle_hosts=cluster.count // cluster.tiers[0].size * (cluster.spares_per_domain // counted.host_size),
    )


def is_simulated(known: FailureClass) -> bool:
    """Whether a class's speed is the simulator's to find."""
    return known.component in NETWORK and known.takes in ("fabric", "nothing") and known.speed is None


def assumed(book: FailureBook) -> tuple[str, ...]:
    """The times of recovery in words."""
    times = book.recovery
    return (
        f"failures: {book.name} (detection {format_seconds(times.detect_s)}, a cold spare"
        f" {format_seconds(times.swap_s)}, start {format_seconds(times.start_s)} and"
        f" {format_seconds(times.start_s_per_1000_accelerators)} per 1,000 accelerators)",
    )
