"""Times and bandwidths from a failure until training goes on, and what a job does about failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from weft.codec import Range
from weft.errors import BadInput, UnknownName

WORDS = ("restart", "shrink", "reroute", "hot", "peer", "async")
"""Words of ``--policy``."""


Delay = Annotated[float, Range(0, 1e9)]
Rate = Annotated[float, Range(0, 1e15, above=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from a failure until training goes on, and where checkpoints go.

    ``detect_s`` to notice and diagnose, ``swap_s`` to take in a spare that is not hot, ``start_s`` and
    ``start_s_per_1000_accelerators`` to start the processes and their communicators, ``heal_s`` until a link that
    heals by itself carries traffic again.  All accelerators together write and read ``storage_Bps``, by default
    ``storage_Bps_per_accelerator`` each: 2 TB/s over 16,384 (Llama 3, arXiv 2407.21783, section 3.3.1).
    """

    detect_s: Delay = 300.0
    swap_s: Delay = 120.0
    start_s: Delay = 180.0
    start_s_per_1000_accelerators: Delay = 0.0
    heal_s: Delay = 10.0
    storage_Bps: Rate | None = None
    storage_Bps_per_accelerator: Rate = 1.2e8
    accelerators_per_host: Annotated[int, Range(1, 1024)] | None = None

    def start(self, accelerators: int) -> float:
        """Seconds to start so many."""
        return self.start_s + self.start_s_per_1000_accelerators * accelerators / 1000.0

    def write_Bps(self, accelerators: int) -> float:
        """Bytes/s that so many write to storage together."""
        return self.storage_Bps or self.storage_Bps_per_accelerator * accelerators


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
        chosen = ((self.reroute, "reroute"), (self.hot, "hot"), (self.peer, "peer"), (self.background, "async"))
        return ",".join(["shrink" if self.shrink else "restart", *(word for on, word in chosen if on)])


def parse_policy(text: str) -> Policy:
    """A policy of words with commas between, as "shrink,peer,async".

    Raises:
        UnknownName: a word that means nothing.
        BadInput: a word twice, or both restart and shrink.
    """
    where, words = "--policy", [word.strip() for word in text.split(",")]
    for word in words:
        if word not in WORDS:
            raise UnknownName("policy", word[:40], WORDS, where=where)
    if len(set(words)) < len(words) or {"restart", "shrink"} <= set(words):
        raise BadInput(f"{text[:60]!r} says a thing twice, or both restart and shrink", where=where, remedy="drop one")
    return Policy(
        shrink="shrink" in words,
        reroute="reroute" in words,
        hot="hot" in words,
        peer="peer" in words,
        background="async" in words,
    )
