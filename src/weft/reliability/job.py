"""The process of a job: what its fabric's parts, its failure file and its policy make of each class of failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from weft.cluster.spec import Cluster
from weft.errors import BadInput, UnknownName
from weft.fabric.spec import Fabric
from weft.reliability.classes import NETWORK, FailureBook, FailureClass
from weft.reliability.parts import Census, census, hosts_taken
from weft.reliability.renewal import Pause, Process, Saving, Slow, Stop
from weft.units import format_seconds


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
