"""What takes the place of a plain module, and where; and how plain modules store their parameters.

Weft holds parameters as matrices of (outputs, inputs) or as vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from weft.errors import BadInput, Unsupported
from weft.runtime.core.beneath import in_backward, tree_flatten, tree_unflatten
from weft.runtime.core.collectives import moved
from weft.runtime.core.cuts import TensorCut
from weft.runtime.core.machine import Machine
from weft.runtime.core.split import Draws, Split, marked, plain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleSite:
    """A module to convert.

    Attributes:
        name: in the model.
        parent: the module that holds it.
        built: what has been converted before, by name.
    """

    machine: Machine
    name: str
    module: nn.Module
    parent: nn.Module
    built: Mapping[str, Converted]

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def refuse(self, what: str, remedy: str | None = None) -> NoReturn:
        """What cannot be converted as it is."""
        raise Unsupported(what, where=self.name, remedy=remedy)

    def mistyped(self, role: str, wanted: str) -> NoReturn:
        """The plan gives the module a role that it cannot have."""
        raise BadInput(
            f"is of class {self.kind}, which {role}() does not convert",
            where=self.name,
            remedy=f"{role}() converts {wanted}, and no subclass of these",
        )

    def parameter(self, name: str) -> nn.Parameter:
        return cast(nn.Parameter, getattr(self.module, name))


class Converted(nn.Module):
    """Stands in for a plain module: takes and gives tensors of this rank's features.

    Args:
        layer: works on rows.
        takes: features that ``layer`` takes; None where it takes ids.
        gives: features to keep of the rows that ``layer`` gives; all by default.
        stream: the whole residual stream's features, which the layer takes or gives.
        easy: it takes all features of different rows on each rank.
        features_at: the dimension of features, counted from the last; earlier ones become rows.
        stored: how the plain module stores its matrix, where not as (outputs, inputs).
        tied: the module whose matrix this one shares.
        splits: the axes over which features of its output are split.
        fused: parts of its output, each of which is split by itself.

    Attributes:
        draws: of the model, where its tensors are to know over which axes they are split; None in compiled blocks,
            which draw one mask for all ranks and check nothing.
    """

    draws: Draws | None = None

    def __init__(
        self,
        site: ModuleSite,
        layer: nn.Module,
        *,
        takes: int | None,
        stream: int,
        gives: int | None = None,
        easy: bool = False,
        features_at: int = -1,
        stored: Stored | None = None,
        tied: str | None = None,
        splits: tuple[str, ...] = (),
        fused: int = 1,
    ) -> None:
        super().__init__()
        self.machine, self.name, self.layer = site.machine, site.name, layer
        self.takes, self.gives, self.stream, self.easy = takes, gives, stream, easy
        self.features_at, self.stored, self.tied, self.splits, self.fused = features_at, stored, tied, splits, fused
        self._known = False
        self.train(site.module.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (as plain modules call it)
        """Apply the layer to ids, or to features of this rank.

        Raises:
            BadInput: the features are not this rank's share, or in easy mode not all.
        """
        return self._applied(input) if getattr(self.layer, "is_whole", False) else self._communicated(input)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _communicated(self, input: Tensor) -> Tensor:  # noqa: A002
        return self._applied(input)

    def _applied(self, input: Tensor) -> Tensor:  # noqa: A002
        leading, one = input.shape, torch.Size()
        if self.takes is not None:
            input = self._share(input)  # noqa: A001
            self._check_features(input.shape)
            self._check_cut(input)
            leading, one = input.shape[: self.features_at], input.shape[self.features_at :]
        rows = self.machine.last.made("rows", input, self.features_at, lambda: plain(input).reshape(-1, *one))
        out = self.layer(rows)[:, : self.gives]
        result = cast(Tensor, out.reshape(*leading, *out.shape[1:]))
        if self._says_axes():
            self._check_known(isinstance(input, Split))
            cut = TensorCut(frozenset({result.ndim + self.features_at}), self.fused)
            result = marked(result, cast(Draws, self.draws), *self.splits, cut=cut, origin=self.name)
        return result

    def _share(self, input: Tensor) -> Tensor:  # noqa: A002
        """This rank's features of a tensor that has all of them, as the batch has."""
        axis = "y" if self.easy else getattr(self.layer, "over_in", "y")
        size = 1 if self.easy else self.machine.grid.size(axis)
        if size == 1 or input.ndim < -self.features_at or (isinstance(input, Split) and input.cut is not None):
            return input
        if input.shape[self.features_at] != cast(int, self.takes) * size:
            return input
        return own_part(self.machine, plain(input), axis, self.features_at)

    def _says_axes(self) -> bool:
        """Whether its output is to know that it is split."""
        return self.draws is not None and self.draws.parts and self.machine.grid.size(*self.splits) > 1

    def _check_known(self, known: bool) -> None:
        """Refuse to compute again with other masks: saved by hooks, tensors forget what they know."""
        if not in_backward():
            self._known = known
        elif self._known and not known:
            raise Unsupported(
                "what it takes is not known to be split when it is computed again, so that other masks would be drawn",
                where=self.name,
                remedy="set recompute of the layout instead of checkpoints within checkpoints or within hooks",
            )

    def _check_features(self, shape: torch.Size) -> None:
        """Refuse what does not have the features that the layer takes."""
        if len(shape) < -self.features_at:
            wanted = f"(..., {self.takes}{', height, width' if self.features_at == -3 else ''})"
            raise BadInput(f"got the shape {tuple(shape)}, but it takes {wanted}", where=self.name)
        result = shape[self.features_at]
        if result == self.takes:
            return
        if self.easy:
            raise BadInput(f"got {result} features, but it takes {self.takes}", where=self.name)
        raise BadInput(
            f"got {result} features, but a rank's share is {self.takes}",
            where=self.name,
            remedy="check the roles around it, and sizes that the model's code writes out (Heads)",
        )

    def _check_cut(self, input: Tensor) -> None:  # noqa: A002
        """Refuse features that are split in another way than the layer takes them."""
        over, cut = getattr(self.layer, "over_in", "y"), input.cut if isinstance(input, Split) else None
        if not isinstance(input, Split) or cut is None:
            return
        if input.axes != {over} or input.ndim + self.features_at not in cut.dims or cut.fused > 1:
            what = f"dimension {min(cut.dims)} over {' and '.join(sorted(input.axes))}" + " in parts" * (cut.fused > 1)
            raise BadInput(
                f"takes features split over {over}, but those of {input.origin} are split along {what}",
                where=self.name,
                remedy="check the roles of both",
            )

    @property
    def weight(self) -> NoReturn:
        """No rank has the plain module's."""
        self._refuse_whole("weight")

    @property
    def bias(self) -> NoReturn:
        """No rank has it either."""
        self._refuse_whole("bias")

    def _refuse_whole(self, key: str) -> NoReturn:
        raise Unsupported(
            "is cut over the grid, and no tensor of this rank",
            where=f"{self.name}.{key}",
            remedy="read it in the state_dict() of the step that prepare returned",
        )

    def _save_to_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's state_dict() cannot name",
            where=self.name,
            remedy="call state_dict() of the step that prepare returned",
        )

    def _load_from_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's load_state_dict() cannot fill",
            where=self.name,
            remedy="call load_state_dict() of the step that prepare returned",
        )


def own_part(machine: Machine, values: Tensor, axis: str, dim: int) -> Tensor:
    """This rank's part along a dimension of what ranks along an axis hold alike; gradients are gathered."""
    return moved(
        values, lambda every: _own_part(machine, every, axis, dim), lambda part: _all_parts(machine, part, axis, dim)
    )


def all_parts(machine: Machine, values: Tensor, axis: str, dim: int) -> Tensor:
    """The inverse; ranks along the axis have the same gradient of the result."""
    return moved(
        values, lambda part: _all_parts(machine, part, axis, dim), lambda every: _own_part(machine, every, axis, dim)
    )


def _own_part(machine: Machine, values: Tensor, axis: str, dim: int) -> Tensor:
    return values.chunk(machine.grid.size(axis), dim)[machine.grid.index(axis)].contiguous()


def _all_parts(machine: Machine, values: Tensor, axis: str, dim: int) -> Tensor:
    parts = machine.collectives.all_gather(values.movedim(dim, 0), axis).wait()
    return parts.movedim(0, dim).contiguous()


class Gathered:
    """Puts together what is split over ranks; the first passes tell what is, and over which axis.

    Attributes:
        places: by whether it is a pass of training: of each tensor the axis, the dimension counted from the last, and
            the size of all parts; None of what is not split.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.places: dict[bool, list[tuple[str, int, int] | None]] = {}

    def take(self, trains: bool, values: Any) -> Any:
        """The same values, whole.

        Raises:
            Unsupported: parts that lie in more than one place.
        """
        leaves, structure = tree_flatten(values)
        if any(isinstance(leaf, Split) for leaf in leaves) or trains not in self.places:
            self.places[trains] = [self._place(leaf) for leaf in leaves]
        pairs = zip(leaves, self.places[trains], strict=True)
        whole = [leaf if at is None else all_parts(self.machine, plain(leaf), *at[:2]) for leaf, at in pairs]
        return tree_unflatten(whole, structure)

    def _place(self, leaf: Any) -> tuple[str, int, int] | None:
        if not isinstance(leaf, Split) or leaf.cut is None:
            return None
        dims = [dim for dim in leaf.cut.dims if leaf.shape[dim] > 1] or [max(leaf.cut.dims)]
        if leaf.cut.fused > 1 or len(leaf.axes) > 1 or len(dims) > 1:
            raise Unsupported(
                "gives parts of its features, which cannot be put together",
                where=leaf.origin,
                remedy="take Transposed() for the layer, Head() for logits, or easy mode",
            )
        axis = next(iter(leaf.axes))
        return axis, dims[0] - leaf.ndim, leaf.shape[dims[0]] * self.machine.grid.size(axis)


class WholeAmongParts:
    """Lets a module that stays whole take all features where others are split, and give its own where it gives as
    many."""

    def __init__(self, machine: Machine, name: str, draws: Draws) -> None:
        self._gathered, self._name, self._draws = Gathered(machine), name, draws

    def take(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        """What the module is called with."""
        given, named = self._gathered.take(module.training, (given, named))
        return given, named

    def give(self, module: nn.Module, _: Any, out: Any) -> Any:
        """What others take of it."""
        place = next((at for at in self._gathered.places[module.training] if at is not None), None)
        if place is None or not isinstance(out, Tensor) or (isinstance(out, Split) and out.cut is not None):
            return out
        axis, dim, size = place
        if out.ndim < -dim or out.shape[dim] != size:
            return out
        part = own_part(self._gathered.machine, plain(out), axis, dim)
        if not self._draws.parts:
            return part
        return marked(part, self._draws, axis, cut=TensorCut(frozenset({part.ndim + dim})), origin=self._name)


@dataclass(frozen=True, slots=True)
class Stored:
    """A plain parameter's shape; ``flipped``: it is (inputs, outputs)."""

    shape: tuple[int, ...]
    flipped: bool = False

    def whole(self, plain: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A plain parameter in the shape in which Weft holds it."""
        return (plain.t() if self.flipped else plain).reshape(shape)

    def plain(self, whole: Tensor) -> Tensor:
        """The inverse."""
        return (whole.t() if self.flipped else whole).reshape(self.shape).contiguous()
