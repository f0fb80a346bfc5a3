"""What a training run writes into its checkpoints beside the tensors, and takes back from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from weft.errors import BadInput
from weft.fabric.edge import validate
from weft.runtime.run.optimizer import AdamSettings

_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Adam(_Strict):
    rate: float
    betas: Annotated[list[float], Field(min_length=2, max_length=2)]
    epsilon: float
    weight_decay: float
    warmup: int
    steps: int
    clip: float | None


class State(_Strict):
    """A run's state: what must be the same when it goes on, but for ``step`` (steps done) and ``adam``."""

    step: _Count
    seed: int
    global_batch: _Count
    sequence: _Count
    model: str
    data: str
    details: dict[str, str | float | bool | None]
    precision: dict[str, str]
    adam: _Adam

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> State:
        """The state of a checkpoint.

        Raises:
            BadInput: a field is missing or wrong.
        """
        return validate(cls, dict(table), where)

    def check_goes_on(self, run: State, where: str) -> None:
        """Refuse to go on with another run.

        Raises:
            BadInput: a field that must be the same differs.
        """
        there, here = dict(self._fixed()), dict(run._fixed())
        for name in {**there, **here}:
            if there.get(name) != here.get(name):
                raise BadInput(
                    f"was trained with {name} = {there.get(name)!r}, this run has {here.get(name)!r}",
                    where=where,
                    remedy=f"give the same {name.partition('.')[0]}, or begin anew",
                )

    def settings(self) -> AdamSettings:
        """The optimizer's settings."""
        values = self.adam.model_dump()
        return AdamSettings(**values | {"betas": tuple(self.adam.betas)})

    def _fixed(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.model_dump(exclude={"step", "adam"}).items():
            if isinstance(value, dict):
                yield from ((f"{name}.{inner}", entry) for inner, entry in value.items())
            else:
                yield name, value
