"""The grid of ranks: the mesh axes of a layout and their process groups, as the layout places them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from weft.errors import BadInput
from weft.layout.mesh import EXPERT_GROUPS, GROUPS, coordinates, distinct_groups, groups, rank_groups, real_axes
from weft.layout.spec import AXES, Layout
from weft.layout.table import LayoutTable

GRID_AXES = AXES

SEQUENCE = ("x", "y", "context")
"""Axes whose ranks have the same sequences, over which experts are balanced."""
_WORLD, _ENDS = ("every rank",), ("both ends",)


class Grid:
    """One rank's place in the mesh, and its process groups.

    Attributes:
        layout: the layout that the grid follows.
        device: where this rank computes.
        coordinates: this rank's index on each axis.
        shard: axes over which matrices are cut at rest.
        replica: axes whose ranks hold copies of the matrices.
    """

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        world: dist.ProcessGroup | None,
        rank: int,
        timeout: timedelta | None = None,
    ) -> None:
        self.layout, self.device, self.rank, self._timeout = layout, device, rank, timeout
        self.coordinates: Mapping[str, int] = coordinates(layout, rank)
        self.shard, self.replica = (self.axes(*real_axes(layout, (group,))) for group in ("shard", "replica"))
        self._routed: dict[str, tuple[int, int]] = {}
        """Size of each of ``EXPERT_GROUPS`` and this rank's place in it, after ``join_experts``."""
        self._groups: WeakValueDictionary[tuple[str, ...], dist.ProcessGroup] = WeakValueDictionary()
        """PyTorch holds them: when it destroys them gloo's threads end, as they must before the interpreter does."""
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        if world is not None:
            self._groups[_WORLD] = world
            self._join(world)

    @classmethod
    def of(cls, layout: Layout, device: torch.device | str = "cpu", *, timeout: timedelta | None = None) -> Grid:
        """The grid of the initialized process group; one rank needs none.

        Args:
            timeout: how long a collective may take; None: as long as PyTorch has it.

        Raises:
            BadInput: the process group has another size than the layout.
        """
        where = torch.device(device)
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world != layout.world:
            sizes = " x ".join(sizes_of(layout))
            raise BadInput(
                f"the layout needs {sizes} = {layout.world} ranks, but {world} run",
                where="layout",
                remedy=f"start {layout.world} ranks, or change the layout",
            )
        if world == 1:
            return cls(layout, where, None, 0)
        assert dist.group.WORLD is not None
        return cls(layout, where, dist.group.WORLD, dist.get_rank(), timeout)

    @property
    def world(self) -> dist.ProcessGroup | None:
        """The process group of all ranks; None where no others run."""
        return self._groups.get(_WORLD)

    @property
    def ends(self) -> dist.ProcessGroup | None:
        """The first and the last stage of this rank's pipeline, after ``join_ends``."""
        return self._groups.get(_ENDS)

    @property
    def runs(self) -> bool:
        """Whether other ranks run beside this one, on devices that hold values."""
        return self.world is not None and self.device.type != "meta"

    def _join(self, world: dist.ProcessGroup) -> None:
        """Make this rank's groups of more than one rank; all take the axes in one order, so that none wait in turn."""
        for axes, made in zip(GROUPS, distinct_groups(LayoutTable.of([self.layout]), GROUPS), strict=True):
            if made[0]:
                self._join_axes(world, axes)

    def _join_axes(self, world: dist.ProcessGroup, axes: tuple[str, ...]) -> None:
        wide = self._wide(axes)
        if wide and wide not in self._groups:
            alone = self.size(*wide) == self.layout.world
            made = world if alone else self._own(world, rank_groups(self.layout, wide).tolist())
            assert made is not None
            self._groups[wide] = made

    def _own(self, world: dist.ProcessGroup, every: list[list[int]]) -> dist.ProcessGroup | None:
        """This rank's group of some that have no rank in common; it meets the ranks of that alone."""
        if world.bound_device_id is not None:  # a communicator is split by all of its ranks at once
            return dist.split_group(split_ranks=every, timeout=self._timeout)
        ranks = next((ranks for ranks in every if self.rank in ranks), None)
        if ranks is None:
            return None
        made: dist.ProcessGroup = dist.new_group(ranks, timeout=self._timeout, use_local_synchronization=True)
        return made

    def join_ends(self) -> None:
        """Make the group of the first and the last pipeline stage, which share a tied embedding.

        The stages between make one too: PyTorch names groups by how many a rank has, so that ranks that have different
        numbers of them would miss each other in the next group that they share.
        """
        both = self.group("pipeline") if self.layout.pipeline == 2 else None
        if self.layout.pipeline > 2 and self.world is not None:
            stages = groups(self.layout, "pipeline")
            made = self._own(self.world, [*stages[:, [0, -1]].tolist(), *stages[:, 1:-1].tolist()])
            both = made if self.rank in stages[:, [0, -1]] else None
        if both is not None:
            self._groups[_ENDS] = both

    def join_experts(self) -> None:
        """Make this rank's groups over which experts are dealt, balanced, cut and copied within a stage."""
        if self._routed:
            return
        if self.world is not None:
            self._join_axes(self.world, SEQUENCE)
        for axis in EXPERT_GROUPS:
            every = rank_groups(self.layout, (axis,)).tolist()
            own = next(ranks for ranks in every if self.rank in ranks)
            self._routed[axis] = len(own), own.index(self.rank)
            result = self._own(self.world, every) if len(own) > 1 and self.world is not None else None
            if result is not None:
                self._groups[axis,] = result

    @property
    def routes(self) -> bool:
        """Whether ``join_experts`` was called."""
        return bool(self._routed)

    def _wide(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes that have more than one rank, outer to inner."""
        if axes not in self._known:
            inner_first = [axis for axis in (*EXPERT_GROUPS, *self.layout.order) if axis in axes]
            self._known[axes] = tuple(axis for axis in reversed(inner_first) if self.size(axis) > 1)
        return self._known[axes]

    def axes(self, *axes: str) -> tuple[str, ...]:
        """The given axes without those of size 1, in the order of ``GRID_AXES`` and ``EXPERT_GROUPS``."""
        return tuple(axis for axis in (*GRID_AXES, *EXPERT_GROUPS) if axis in axes and self.size(axis) > 1)

    def size(self, *axes: str) -> int:
        """Ranks of a group over the axes' product."""
        size = 1
        for axis in axes:  # as torch.compile can read it
            size *= self._routed[axis][0] if axis in EXPERT_GROUPS else getattr(self.layout, axis)
        return size

    def index(self, *axes: str) -> int:
        """This rank's position in its group over the axes' product."""
        position = 0
        for axis in self._wide(axes):
            place = self._routed[axis][1] if axis in EXPERT_GROUPS else self.coordinates[axis]
            position = position * self.size(axis) + place
        return position

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """This rank's process group over the axes' product; None where it is alone in it."""
        wide = self._wide(axes)
        return self._groups[wide] if wide else None

    def divided(self, size: int, *axes: str, what: str) -> int:
        """A size divided over axes.

        Raises:
            BadInput: the size cannot be divided.
        """
        degree = self.size(*axes)
        if size % degree:
            cut = " x ".join(f"{axis}={self.size(axis)}" for axis in axes)
            raise BadInput(
                f"{what} = {size} cannot be divided over {cut}",
                where="layout",
                remedy=f"choose {' and '.join(axes)} so that their product divides {size}",
            )
        return size // degree


def sizes_of(layout: Layout) -> list[str]:
    """The axes with their sizes, as "x=2"; context where there is such."""
    return [f"{axis}={getattr(layout, axis)}" for axis in GRID_AXES if axis != "context" or layout.context > 1]
