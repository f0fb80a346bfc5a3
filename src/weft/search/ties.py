"""Which of layouts with similar times comes first, and which of them tie with the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.cluster.spec import Cluster
from weft.estimation.result import Estimate
from weft.estimation.trust import Contrast
from weft.layout.spec import Layout, Recompute
from weft.layout.table import Floats, LayoutTable, Mask
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A layout beside the fastest of all that fit, whatever else is listed.

    Attributes:
        tied: whether ``slower`` is at most ``layout_error``.
        slower: share of the fastest layout's time that it takes longer.
        layout_error: share within which the ratio of their times is predicted for four of five such pairs.
    """

    tied: bool
    slower: float
    layout_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Why the first layout of a plan is first.

    Attributes:
        fastest: the layout of the least predicted time, of all that fit.
        pairs: of runs of ``jobs`` of so many ``sources``, which give the error between layouts.
        reasons: what the fastest does and the first does not, of what counts against a layout, dearest first.
        unusual: what the first does that hardly any published run does.
    """

    fastest: Estimate
    pairs: int
    jobs: int
    sources: int
    reasons: tuple[str, ...]
    unusual: tuple[str, ...]


def ties(layouts: Sequence[Estimate], fastest: Estimate, contrast: Contrast) -> tuple[Tie, ...]:
    """Layouts of one job, each beside the fastest."""
    result = []
    for estimate in layouts:
        error = float(contrast.covered([fastest.layout, estimate.layout])[0, 1])
        slower = estimate.iteration_s / fastest.iteration_s - 1.0
        result.append(Tie(tied=slower <= error, slower=slower, layout_error=error))
    return tuple(result)
