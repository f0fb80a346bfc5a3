"""What takes the place of a plain module, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

import torch
from torch import Tensor, nn

from weft.errors import BadInput, Unsupported
from weft.runtime.machine import Machine
from weft.runtime.stored import Stored


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A module to convert.

    Attributes:
        name: in the model.
        parent: the module that holds it.
        built: what has been converted before, by name.
        dropouts: the model's dropouts, which are off.
    """

    machine: Machine
    name: str
    module: nn.Module
    parent: nn.Module
    built: Mapping[str, Converted]
    dropouts: tuple[str, ...]

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
        features_at: the dimension of features, counted from the last; earlier ones become rows.
        stored: how the plain module stores its matrix, where not as (outputs, inputs).
        tied: the module whose matrix this one shares.
    """

    def __init__(
        self,
        site: Site,
        layer: nn.Module,
        *,
        takes: int | None,
        stream: int,
        gives: int | None = None,
        features_at: int = -1,
        stored: Stored | None = None,
        tied: str | None = None,
    ) -> None:
        super().__init__()
        self.machine, self.name, self.layer = site.machine, site.name, layer
        self.takes, self.gives, self.stream = takes, gives, stream
        self.features_at, self.stored, self.tied = features_at, stored, tied
        self._dropouts = site.dropouts
        self.train(site.module.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (as plain modules call it)
        """Of ids, or of features of this rank.

        Raises:
            BadInput: the features are not this rank's share.
            Unsupported: the model has dropouts and was switched to training.
        """
        if self.training and self._dropouts:
            raise Unsupported(
                "was off when the model was converted, and would differ between replicas",
                where=self._dropouts[0],
                remedy="keep model.eval(), or set its probability to 0 before parallelize",
            )
        leading, one = input.shape, torch.Size()
        if self.takes is not None:
            leading, one = input.shape[: self.features_at], input.shape[self.features_at :]
            if one[0] != self.takes:
                raise BadInput(
                    f"got {one[0]} features, but a rank's share is {self.takes}",
                    where=self.name,
                    remedy="check the roles around it, and sizes that the model's code writes out (Heads)",
                )
        out = self.layer(input.reshape(-1, *one))[:, : self.gives]
        return cast(Tensor, out.reshape(*leading, *out.shape[1:]))

    def _save_to_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's state_dict() cannot name",
            where=self.name,
            remedy="call gather_state_dict or sharded_state_dict of weft.runtime.state_dict",
        )

    def _load_from_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's load_state_dict() cannot fill",
            where=self.name,
            remedy="call load_state_dict of weft.runtime.state_dict",
        )
