"""What lies in host memory instead of on the accelerator, and what moving it there costs.

Activations leave block by block behind the forward pass and return behind the backward pass; the accelerator keeps
those of two blocks, one that is computed and one that moves.  Optimizer states stay on the host, which updates
them.  Host memory that an accelerator copies to and from is pinned, and pinned memory is finite.
"""

from __future__ import annotations

import numpy as np

from weft.cluster.spec import Accelerator
from weft.estimation.frame import Frame, TimedFrame, weighted
from weft.estimation.pace import Slowest
from weft.estimation.synchronisation import Synchronisation
from weft.layout.mesh import spread
from weft.layout.table import Floats

RESIDENT_BLOCKS = 2.0
"""Blocks whose activations stay on the accelerator: one in use, one on its way (a double buffer; assumption)."""
PINNED_SHARE = 0.8
"""Share of the host's memory that can be pinned for this; the rest is the system's, the data loader's and the
checkpoint's (assumption)."""


def pinned_capacity(accelerator: Accelerator) -> float:
    """Bytes of host memory that one accelerator can pin; infinite where its host memory is not known."""
    known = accelerator.host_memory_bytes
    return np.inf if known is None else PINNED_SHARE * known


def resident_bytes(frame: Frame, kept: list[Floats], counts: list[Floats], held: Floats) -> Floats:
    """Activation bytes that stay on the accelerator, of ``held`` in all; ``kept`` are those of a block of each kind,
    ``counts`` a stage's blocks."""
    if not frame.table.offload_activations.any():
        return held
    largest = np.max([np.where(count > 0, one, 0.0) for one, count in zip(kept, counts, strict=False)], axis=0)
    offloaded = frame.table.offload_activations > 0
    return np.where(offloaded, np.minimum(RESIDENT_BLOCKS * largest, held), held)


def activation_offload_s(frame: TimedFrame, slowest: Slowest, step: Synchronisation) -> Floats:
    """Seconds that offloading activations adds to an iteration, whose passes also hide what ``step`` says.

    A direction of the host link is busy with what moves and with the network's bytes, which cross the same lanes
    (a NIC and its accelerator share a PCIe switch, or the C2C link).  What does not fit behind the passes is
    exposed.  What does still takes memory bandwidth from them: each byte is read from, then written to, the
    accelerator's memory.
    """
    offloaded = frame.table.offload_activations
    if not offloaded.any():
        return frame.zeros()
    chip, constants = frame.cluster.accelerator, frame.constants
    kept = frame.kept_rows()
    block = weighted(kept, slowest.counts[: len(kept)])
    stays = np.where(frame.pipeline > 1, 0.0, resident_bytes(frame, kept, slowest.counts, block))
    moved = frame.micro_batches * (block - stays)
    link_s = moved / (chip.host_Bps * constants.host_efficiency)
    exposed = frame.zeros()
    ahead_s, behind_s = _network_s(frame, slowest, step)
    for window, network_s in ((slowest.forward, ahead_s), (slowest.backward, behind_s)):
        free = np.maximum(frame.micro_batches * window - network_s, 0.0)
        exposed = exposed + np.maximum(link_s - free, 0.0)
    slowed = 2.0 * moved / (chip.memory_Bps * constants.memory_efficiency)
    added: Floats = (exposed + slowed) * offloaded
    return added


def _network_s(frame: TimedFrame, slowest: Slowest, step: Synchronisation) -> tuple[Floats, Floats]:
    """Seconds of an iteration's forward and backward passes in which the network uses the host link: for hidden
    gradient reduction and parameter gathering, and for sharded weights, where their groups leave the scale-up
    domain."""
    chip, spans = frame.cluster.accelerator, frame.network.spans
    if len(spans) < 2:
        return frame.zeros(), frame.zeros()
    share = min(chip.nic_Bps / chip.host_Bps, 1.0)
    shards, copies = _leaves(frame, "shard", spans), _leaves(frame, "replica", spans)
    ahead, behind = frame.zeros(), frame.zeros()
    for count, part in zip(frame.part_counts(slowest.counts), frame.costs.shards, strict=True):
        ahead = ahead + count * frame.at(part.forward_s)
        behind = behind + count * frame.at(part.backward_s + part.scatter_s)
    return (
        share * (copies * step.forward_s + shards * frame.micro_batches * ahead),
        share * (copies * step.backward_s + shards * frame.micro_batches * behind),
    )


def _leaves(frame: TimedFrame, group: str, spans: tuple[int, ...]) -> Floats:
    """1 where the groups reach beyond the scale-up domain."""
    found = spread(frame.table, (group,), spans)
    return (found.size > found.members[0]).astype(np.float64)
