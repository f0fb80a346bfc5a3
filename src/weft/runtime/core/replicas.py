"""Whether ranks that should hold the same values do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import BadInput
from weft.layout.mesh import ROWS
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Holding

_AXES = ("x", "y", *ROWS)


class Diverged(BadInput):
    """Copies of a parameter differ."""


def check_replicas(machine: Machine, holdings: Sequence[Holding]) -> None:
    """Compare the bits of all copies of parameters, by one number each; every rank calls it.

    With ZeRO-1 the copies of a matrix are compared in the format in which its updates are published.

    Raises:
        Diverged: on every rank: copies differ.
    """
    words = ""
    for axis in (*_AXES, *(("expert_replica",) if machine.grid.routes else ())):
        copied = {one.name: _comparable(machine, one) for one in holdings if _is_copied(one, axis)}
        different = differing(machine, copied, axis)
        if different and not words:
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            words = f"copies of {different[0]}{more} along {axis} differ"
    result: list[str] = [words]
    if machine.grid.runs:
        result = [""] * dist.get_world_size()
        dist.all_gather_object(result, words)
    rank = next((rank for rank, said in enumerate(result) if said), None)
    if rank is not None:
        raise Diverged(
            result[rank],
            where=f"rank {rank}",
            remedy="use no numbers of one process (seeds, clocks) in what ranks hold alike",
        )


def differing(machine: Machine, values: Mapping[str, Tensor], *axes: str) -> list[str]:
    """Names of what is not the same on all ranks along some axes; every rank there calls it with all names."""
    if machine.grid.size(*axes) == 1 or not values or not machine.grid.runs:
        return []
    sums = torch.tensor([_bits(one) for one in values.values()], dtype=torch.int64, device=machine.grid.device)
    ends = torch.cat([sums, -sums])
    machine.collectives.all_reduce(ends, *axes, op=dist.ReduceOp.MIN).wait()
    least, most = ends[: len(sums)], -ends[len(sums) :]
    return [name for name, differs in zip(values, (least != most).tolist(), strict=True) if differs]


def _is_copied(holding: Holding, axis: str) -> bool:
    return holding.routed if axis == "expert_replica" else axis not in holding.split_over


def _comparable(machine: Machine, holding: Holding) -> Tensor:
    values = holding.parameter.detach()
    return values.to(machine.precision.gather) if machine.shares_updates and holding.matrix else values


def _bits(values: Tensor) -> int:
    """The sum of the bits of all values, exact in any order."""
    if values.is_meta:
        return 0
    if values.is_complex():
        values = torch.view_as_real(values)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return int(values.contiguous().view(whole).sum(dtype=torch.int64))
