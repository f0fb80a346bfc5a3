"""Adam over what a rank owns: cut over z with the weights, and over data with ZeRO-1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from math import cos, isfinite, pi
from typing import Any

import torch
from torch import Tensor

from weft.errors import BadInput, Unsupported
from weft.runtime.checkpoints.checkpoint import MOMENTS, Piece
from weft.runtime.run.flat import WHOLE, Flat


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSettings:
    """AdamW (arXiv 1711.05101) with linear warm-up and cosine decay of the rate to a tenth.

    Weights of what is ``Holding.decayed`` decay.  ``steps`` 0 keeps the rate after warm-up; ``clip`` None
    leaves gradients as they are.

    Raises:
        BadInput: a value is not a number of its kind, out of range or not finite.
    """

    rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    warmup: int = 0
    steps: int = 0
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise BadInput(f"betas = {self.betas!r}", where="optimizer", remedy="give two numbers")
        for name in ("rate", "epsilon", "clip"):
            if name != "clip" or self.clip is not None:
                _check(name, getattr(self, name), lambda value: value > 0, "above 0 and finite")
        for beta in self.betas:
            _check("betas", beta, lambda value: 0 <= value < 1, "at least 0 and below 1")
        for name, kind in (("weight_decay", float), ("warmup", int), ("steps", int)):
            _check(name, getattr(self, name), lambda value: value >= 0, "at least 0 and finite", kind)

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if not self.steps:
            return self.rate
        gone = min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.rate * (0.55 + 0.45 * cos(pi * gone))

    def changes_from(self, before: AdamSettings) -> list[str]:
        """What differs from other settings, each as "rate 0.0003 -> 0.0001"."""
        result = []
        for name in (field.name for field in fields(self)):
            old, new = getattr(before, name), getattr(self, name)
            if old != new:
                effect = " (where the cosine ends: other rates from here on)" if name == "steps" else ""
                result.append(f"{name} {old} -> {new}{effect}")
        return result


def _check(
    name: str, value: Any, holds: Callable[[float], bool], wanted: str, kind: type[int] | type[float] = float
) -> None:
    """Refuse a setting that is not a number of its kind, not finite or out of range."""
    if not isinstance(value, int | kind) or isinstance(value, bool):
        number = "a whole number" if kind is int else "a number"
        raise BadInput(f"{name} = {value!r}", where="optimizer", remedy=f"give {number}")
    if not (isfinite(value) and holds(value)):
        raise BadInput(f"{name} = {value} is out of range", where="optimizer", remedy=f"choose {wanted}")


def check_finite(what: str, value: float, step: int) -> None:
    """Stop a run that has diverged.

    Raises:
        BadInput: the value is NaN or infinite.
    """
    if not isfinite(value):
        raise BadInput(
            f"{what} is {value}",
            where=f"step {step + 1}",
            remedy="go on from an earlier checkpoint with a lower rate or clip, a longer warmup, or in fp32",
        )


def torch_optimizer(
    flat: Flat, kind: type[torch.optim.Optimizer], *, weight_decay: float = 0.0, **settings: Any
) -> torch.optim.Optimizer:
    """An optimizer of torch over what a rank owns, with any layout, ZeRO-1 too.

    Schedulers take it as they take any other.  Its ``step`` comes after ``Flat.step``; gradients are clipped by
    ``Flat.clip``.  What got no gradient stays as it is, but steps (Adam's correction) are counted for all together.
    Weights of what is ``Holding.decayed`` decay.

    Args:
        kind: a class that updates each element by itself, as SGD and the kinds of Adam do.
        settings: further arguments of the class.

    Raises:
        Unsupported: a class of torch that needs whole parameters.
    """
    if kind.__name__ in WHOLE:
        raise Unsupported(
            "updates an element by others of its parameter, of which a rank has a part",
            where=kind.__name__,
            remedy="choose SGD, Adam, AdamW or another that updates each element by itself",
        )
    made = kind(_groups(flat, weight_decay), **settings)
    updating = ExitStack()
    made.register_step_pre_hook(lambda optimizer, *_: updating.enter_context(flat.untouched(optimizer)))

    def publish(*_: Any) -> None:
        updating.close()
        flat.publish()

    made.register_step_post_hook(publish)
    return made


def _groups(flat: Flat, weight_decay: float) -> list[dict[str, Any]]:
    """What a rank owns: what decays, and what does not."""
    result = []
    for decayed in (True, False):
        leaves = [owned.leaf for owned in flat.owned if owned.decayed == decayed]
        result.append({"params": leaves, "weight_decay": weight_decay if decayed else 0.0})
    return result


class Optimizer:
    """Updates a rank's flat parameters.

    Attributes:
        flat: what is updated.
        updates: how many updates have been made.
    """

    def __init__(self, flat: Flat, settings: AdamSettings) -> None:
        self.flat, self.settings, self.updates = flat, settings, 0
        self._adam = torch.optim.AdamW(
            _groups(flat, settings.weight_decay),
            lr=settings.rate,
            betas=settings.betas,
            eps=settings.epsilon,
            fused=True,
        )

    def step(self, loss: Tensor | None = None) -> Tensor:
        """Clip, update, and with ZeRO-1 publish; the gradients' norm before clipping, shape (1,).

        Args:
            loss: the step's, shape (1,), on ranks that know it; 0 on others.

        Raises:
            BadInput: on every rank, before anything is updated: the norm or any rank's loss is not finite.
        """
        limit = self.settings.clip
        norm = self.flat.norm(loss) if limit is None else self.flat.clip(limit, loss)
        if loss is not None:
            check_finite("the loss", float(loss), self.updates)
        check_finite("the norm of the gradients", float(norm), self.updates)
        for group in self._adam.param_groups:
            group["lr"] = self.settings.rate_at(self.updates)
        with self.flat.untouched(self._adam):
            self._adam.step()
        self.flat.publish()
        self.updates += 1
        return norm

    def pieces(self) -> list[Piece]:
        """Parameters and moments of this rank, for checkpoints."""
        for owned in self.flat.owned:  # Adam makes its moments at the first update; before that they are zero
            state = self._adam.state[owned.leaf]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=owned.leaf.device)
                for moment in MOMENTS:
                    state[moment] = torch.zeros_like(owned.leaf.detach())
        return [piece for name in ("", *MOMENTS) for piece in self._pieces(name)]

    def restored(self, updates: int) -> None:
        """The pieces have been filled from a checkpoint written after so many updates."""
        self.updates = updates
        for state in self._adam.state.values():
            state["step"].fill_(float(updates))
        self.flat.publish()

    def _pieces(self, moment: str) -> Iterator[Piece]:
        for owned in self.flat.owned:
            source = self._adam.state[owned.leaf][moment] if moment else owned.leaf.detach()
            for slot, (low, high) in owned.buffer.within(owned.start, owned.stop):
                name = slot.holding.name
                yield Piece(
                    name=f"{name}/{moment}" if moment else name,
                    values=source[low - owned.start : high - owned.start],
                    placement=slot.holding.placement.part(low - slot.start, high - slot.start),
                )
