"""Which of layouts with similar times comes first, and which of them cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.cluster.spec import Cluster
from weft.estimation.result import Estimate
from weft.estimation.trust import WITHIN, Contrast, shipped_contrast
from weft.layout.spec import Layout, Recompute
from weft.layout.table import Floats, Ints, LayoutTable, Mask
from weft.model.job import Job

MECHANISM = 0.01
"""Share of the time that a mechanism must gain."""
UNUSUAL = 0.1
"""Share that what hardly any published run does must gain: about the error between layouts that differ by a
doubling of a degree."""
FULL, TIGHT = 0.8, 0.01
"""Memory in use beyond the share ``FULL`` of what may be used counts up to ``TIGHT``."""
SLICE = 4096
"""Tokens of a sequence that a context-parallel rank keeps in published runs, at least."""
CHUNKS = 12
"""Virtual stages that published runs have, at most."""
EXPERTS = 64
"""Experts of a layer that a rank holds in published runs, at most."""
FULLY_SHARDED = (
    "fsdp",
    "torchtitan",
    "torchtitan-2024",
    "nemo-automodel",
    "maxtext",
    "maxtext-gpu",
    "llm-foundry",
    "axonn",
)
"""Software whose own way is to shard weights (FSDP), not to replicate them."""
ZERO_BUBBLE = ("hai-llm", "torchtitan", "torchtitan-2024")
"""Software that runs pipeline schedules with split backward passes."""


@dataclass(frozen=True, slots=True)
class Habit:
    """Something that a layout may do: ``words`` name it, ``price`` is a share of the time."""

    words: str
    price: float

    @property
    def unusual(self) -> bool:
        return self.price >= UNUSUAL


class Ease:
    """Efforts of the layouts of a job on a cluster, trained by a software.

    Args:
        capacity_bytes: memory of an accelerator that may be used.
    """

    def __init__(self, job: Job, cluster: Cluster, stack: str, capacity_bytes: float) -> None:
        self.stack, self.capacity_bytes = stack, capacity_bytes
        self.domain, self.sequence, self.layers = cluster.tiers[0].size, job.recipe.sequence, job.model.layers
        self.experts = max((kind.moe.experts for kind in job.model.kinds if kind.moe), default=0)

    def efforts(self, table: LayoutTable, memory_bytes: Floats) -> Floats:
        """Shares of their times that layouts must gain by what they do."""
        used = memory_bytes / self.capacity_bytes
        efforts: Floats = TIGHT * np.clip((used - FULL) / (1 - FULL), 0.0, 1.0)
        for _, price, does in self._habits(table):
            efforts += price * does
        return efforts

    def does(self, layout: Layout) -> tuple[Habit, ...]:
        """What a layout does of what counts."""
        habits = self._habits(LayoutTable.of([layout]))
        return tuple(Habit(words, price) for words, price, does in habits if does[0])

    def _habits(self, t: LayoutTable) -> list[tuple[str, float, Mask]]:
        """What a layout may do, the price of it, and the rows that do."""
        sharded, stack = self.stack in FULLY_SHARDED, self.stack
        replicas, pipe = t.data > 1, t.pipeline > 1
        # Stages differ, also where embedding and loss count as a layer each (Megatron-Core's
        # account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split).
        chunks = t.pipeline * t.virtual_stages
        unequal = (self.layers % chunks > 0) & ((self.layers + 1) % chunks > 0) & ((self.layers + 2) % chunks > 0)
        return [
            ("tensor parallelism", MECHANISM, t.x > 1),
            ("AxoNN's y axis", 0.0 if stack == "axonn" else UNUSUAL, t.y > 1),
            ("a pipeline", MECHANISM, pipe),
            ("interleaving", MECHANISM, t.scheduled("rounds")),
            ("context parallelism", MECHANISM, t.context > 1),
            ("expert parallelism", MECHANISM, t.expert > 1),
            ("weights sharded (FSDP)", 0.0 if sharded else MECHANISM, t.z > 1),
            (
                "FSDP together with tensor, context or pipeline parallelism",
                MECHANISM if sharded else UNUSUAL,
                (t.z > 1) & ((t.x > 1) | (t.context > 1) | pipe),
            ),
            ("FSDP within replicas (HSDP)", MECHANISM, (t.z > 1) & replicas),
            ("recomputation", MECHANISM, t.recompute != Recompute.NONE.code),
            ("recomputation of some layers", MECHANISM, t.recompute_layers > 0),
            ("optimizer offload", MECHANISM, t.offload_optimizer > 0),
            ("activation offload", MECHANISM, t.offload_activations > 0),
            ("ZeRO-2", 0.0 if stack == "deepspeed" else MECHANISM, (t.zero == 2) & (t.z == 1)),
            ("unequal pipeline stages", MECHANISM, unequal),
            ("a zero-bubble schedule", MECHANISM if stack in ZERO_BUBBLE else UNUSUAL, t.scheduled("splits_backward")),
            (f"tensor parallelism beyond the scale-up domain of {self.domain}", UNUSUAL, t.x * t.y > self.domain),
            (
                f"context parallelism with less than {SLICE:,} tokens a rank",
                UNUSUAL,
                (t.context > 1) & (self.sequence < SLICE * t.context),
            ),
            (f"more than {EXPERTS} experts a rank", UNUSUAL, t.expert * EXPERTS < self.experts),
            ("ZeRO-2 with a pipeline", UNUSUAL, (t.zero == 2) & (t.z == 1) & pipe),
            (f"more than {CHUNKS} virtual stages", UNUSUAL, t.virtual_stages > CHUNKS),
            (f"replicated weights with {stack}", UNUSUAL if sharded else 0.0, (t.z == 1) & replicas),
        ]


CANDIDATES = 300
"""Layouts that are held against each other, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A ranked layout among the others: ``group`` 1 cannot be told apart from the fastest, 2 not from the fastest
    of the rest, and so on; ``chance`` is the probability to take at most ``WITHIN`` longer than the best."""

    group: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the order of a plan is worth.

    Attributes:
        chance: probability that the first takes at most ``within`` longer than the best of ``candidates``.
        fastest_chance: that probability of the fastest predicted.
        pairs: of runs of ``jobs`` of so many ``sources``, which give the error between layouts.
        reasons: what the fastest does and the first does not, of what counts against a layout, dearest first.
        unusual: what the first does that hardly any published run does.
    """

    within: float = WITHIN
    chance: float
    fastest_chance: float
    candidates: int
    pairs: int
    jobs: int
    sources: int
    reasons: tuple[str, ...]
    unusual: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Facts):
    """``fastest`` is the layout of the least predicted time, of all that fit."""

    fastest: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Layouts held against each other: their ties, and those of the fastest."""

    contrast: Contrast
    ties: tuple[Tie, ...]
    fastest: Tie
    candidates: int


def held(ranked: Sequence[Estimate], fastest: Estimate, contrast: Contrast | None = None) -> Held | None:
    """The first ``CANDIDATES`` of ranked layouts, and the fastest, against each other; None where no error between
    layouts is known."""
    known = contrast or shipped_contrast()
    if known is None:
        return None
    compared = list(ranked[:CANDIDATES])
    places = {one.layout: i for i, one in enumerate(compared)}
    if fastest.layout not in places:
        places[fastest.layout] = len(compared)
        compared.append(fastest)
    layouts, seconds = [one.layout for one in compared], np.array([one.iteration_s for one in compared])
    numbers = groups(seconds, known.covered(layouts))
    ties = [
        Tie(group=int(group), chance=float(chance))
        for group, chance in zip(numbers, known.chances(layouts, seconds), strict=True)
    ]
    return Held(
        contrast=known,
        ties=tuple(ties[: len(ranked[:CANDIDATES])]),
        fastest=ties[places[fastest.layout]],
        candidates=len(compared),
    )


def groups(seconds: Floats, errors: Floats) -> Ints:
    """Numbers of the groups of times: the fastest of those without one leads the next, of all that its error
    against them does not tell apart from it."""
    numbers = np.zeros(len(seconds), dtype=np.int64)
    group = 0
    for leader in np.argsort(seconds, kind="stable"):
        if numbers[leader]:
            continue
        group += 1
        close = (numbers == 0) & (seconds <= (1.0 + errors[leader]) * seconds[leader])
        numbers[close] = group
    return numbers
