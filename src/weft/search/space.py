"""Spaces of layouts: which degrees and switches a search tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

from weft.errors import BadInput, UnknownName
from weft.layout.spec import AXES, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.table import decode, encode
from weft.layout.trainable import check_runnable
from weft.model.spec import Model
from weft.solvers.divisors import divisors

BOUNDED = (
    *("x", "y", "z", "data", "data_parallel", "pipeline", "context", "expert", "expert_tensor"),
    *("micro_batch", "virtual_stages"),
)
"""Fields that can have a maximum."""
RECOMPUTE_SHARES = (0.25, 0.5, 0.75)
"""Shares of a stage's layers that partial recomputation tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search may turn.

    Degrees run over all divisors; ``fixed`` pins a field of ``Layout`` to values, ``maximum`` bounds a degree.
    The other fields list the values of each switch.
    """

    name: str
    y: bool = False
    schedules: tuple[PipelineSchedule, ...] = (PipelineSchedule.PLAIN, PipelineSchedule.INTERLEAVED)
    zero: tuple[int, ...] = (0, 1, 2)
    zero_with_z: bool = False
    any_expert_tensor: bool = False
    recompute: tuple[Recompute, ...] = tuple(Recompute)
    partial_recompute: bool = True
    sequence_parallel: tuple[bool, ...] = (False, True)
    overlap_tensor: tuple[TensorOverlap, ...] = (TensorOverlap.BACKWARD,)
    overlap_reduce: tuple[bool, ...] = (True,)
    overlap_gather: tuple[bool, ...] = (True,)
    offload_optimizer: tuple[bool, ...] = (False,)
    offload_activations: tuple[bool, ...] = (False,)
    order: tuple[str, ...] = AXES
    fixed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    maximum: dict[str, int] = field(default_factory=dict)

    def allows(self, name: str, value: int) -> bool:
        """Whether the constraints admit a value of a field (vocabulary fields by code)."""
        if name in self.fixed and value not in self.fixed[name]:
            return False
        return value <= self.maximum.get(name, value)

    def constrained(self, fixed: Mapping[str, int | str | bool], maximum: Mapping[str, int]) -> Space:
        """This space with fields pinned (by their values in ``Layout``; ``data_parallel`` is z * data) or
        bounded."""
        for name in maximum:
            if name not in BOUNDED:
                raise BadInput(f"{name} has no maximum", where="maximum", remedy=f"bound one of {', '.join(BOUNDED)}")
        if fixed.get("recompute_layers") and fixed.get("recompute", Recompute.FULL) != Recompute.FULL:
            raise BadInput("recompute_layers needs recompute = full", where="fixed", remedy="fix recompute = full too")
        pinned = {name: (encode(name, value),) for name, value in fixed.items()}
        return replace(
            self,
            y=self.y or "y" in fixed or "y" in maximum,
            fixed=self.fixed | pinned,
            maximum=self.maximum | dict(maximum),
        )

    def bounds(self) -> dict[str, Any]:
        """What pins and bounds the fields, with vocabulary fields by name; ``of_bounds`` reads it back."""
        fixed = {name: [decode(name, value) for value in values] for name, values in self.fixed.items()}
        return {"fixed": fixed, "maximum": dict(self.maximum)}

    @staticmethod
    def of_bounds(name: object, bounds: Mapping[str, Any], *, where: str) -> Space:
        """The space of a name with ``bounds``.

        Raises:
            BadInput: there is no such space or field, or a value is none of the field's.
        """
        if not isinstance(name, str) or name not in SPACES:
            raise UnknownName("space", str(name)[:40], SPACES, where=where)
        space = SPACES[name]
        fixed, maximum = bounds.get("fixed"), bounds.get("maximum")
        if not isinstance(fixed, Mapping) or not isinstance(maximum, Mapping):
            raise BadInput("fixed and maximum are not tables of fields", where=where)
        try:
            pinned = {field: tuple(encode(field, value) for value in values) for field, values in fixed.items()}
            most = {field: int(value) for field, value in maximum.items()}
        except (TypeError, ValueError):
            raise BadInput("holds a value that its field does not take", where=where) from None
        return replace(space, y=space.y or "y" in pinned or "y" in most, fixed=pinned, maximum=most)


def runnable(space: Space, model: Model) -> Space:
    """The part of a space that ``weft.runtime`` trains, as ``weft.layout.step.check_runnable`` has it.

    Raises:
        Unsupported: the runtime does not train the model.
        BadInput: the space pins what the runtime lacks.
    """
    check_runnable(model, Layout())
    heads = gcd(*(attention.kv_heads for attention in model.attentions))
    trained: dict[str, tuple[int, ...]] = {}
    if not any(kind.moe for kind in model.kinds):
        trained |= dict.fromkeys(("expert", "expert_tensor"), (1,))
    trained |= dict.fromkeys(("offload_optimizer", "offload_activations"), (0,))
    trained["x"] = tuple(divisors(heads))
    trained["schedule"] = tuple(one.code for one in PipelineSchedule if not (one.wraps and model.tied_embeddings))
    tried = {
        "schedule": tuple(encode("schedule", one) for one in space.schedules),
        "offload_optimizer": tuple(map(int, space.offload_optimizer)),
        "offload_activations": tuple(map(int, space.offload_activations)),
    } | space.fixed
    pinned: dict[str, tuple[int, ...]] = {}
    for name, values in trained.items():
        pinned[name] = tuple(value for value in tried.get(name, values) if value in values)
        if not pinned[name]:
            raise BadInput(
                f"no value of {name} that is tried can be trained",
                where="runnable",
                remedy=f"choose {' or '.join(str(decode(name, value)) for value in values)}",
            )
    return replace(space, fixed=space.fixed | pinned)


STANDARD = Space(name="standard")
"""What Megatron-LM and torchtitan both run, with overlap on, which never loses to the same layout without."""

ZERO_BUBBLE = replace(
    STANDARD,
    name="zero-bubble",
    schedules=tuple(one for one in PipelineSchedule if one is not PipelineSchedule.INTERLEAVED),
)
"""With pipeline schedules that split the backward pass, in place of the interleaved one."""

FOUR_D = replace(STANDARD, name="4d", y=True)
"""With AxoNN's y axis, which none of the launchers runs."""

WIDE = replace(
    FOUR_D,
    name="wide",
    schedules=tuple(PipelineSchedule),
    overlap_tensor=tuple(TensorOverlap),
    overlap_reduce=(False, True),
    overlap_gather=(False, True),
    offload_optimizer=(False, True),
    offload_activations=(False, True),
    zero_with_z=True,
    any_expert_tensor=True,
)
"""Every switch that Weft models."""

SPACES = {space.name: space for space in (STANDARD, ZERO_BUBBLE, FOUR_D, WIDE)}
