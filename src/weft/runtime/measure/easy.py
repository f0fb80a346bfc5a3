"""What a plain model will communicate in easy mode, read off one pass of it on one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor, nn

from weft.layout.easy import EasyLayer, easy_axes, easy_collectives
from weft.layout.spec import Layout
from weft.layout.step import Issue
from weft.runtime.convert.parallelize import easy_plan
from weft.runtime.convert.roles import Easy, Role
from weft.runtime.core.precision import Precision


def predict_easy(
    model: nn.Module,
    rows: Tensor,
    layout: Layout,
    *,
    plan: Mapping[str, Role] | None = None,
    precision: Precision | None = None,
    micro_batches: int = 1,
    clip: bool = True,
) -> Counter[Issue]:
    """What each rank issues in a training step of a model that ``parallelize`` converts in easy mode.

    Args:
        model: plain, on any device; the meta device asks for no memory.
        rows: what the model takes of one rank's micro-batch, on the same device.
        plan: as ``parallelize`` takes it; ``easy_plan`` by default.
        precision: as the machine's, fp32 by default.
    """
    formats, roles = precision or Precision(), easy_plan(model) if plan is None else plan
    reader = _Reader(layout, formats)
    easy = [model.get_submodule(name) for name, role in roles.items() if isinstance(role, Easy)]
    hooks = [module.register_forward_hook(reader.read) for module in easy]
    try:
        model(rows)
    finally:
        for hook in hooks:
            hook.remove()
    cut = {id(module.weight) for module in easy}
    whole = sum(one.numel() for one in model.parameters() if one.requires_grad and id(one) not in cut)
    return easy_collectives(
        reader.layers,
        layout,
        whole=whole,
        micro_batches=micro_batches,
        element_bytes=formats.compute.itemsize,
        gradient_bytes=formats.reduce.itemsize,
        clip=clip,
    )


class _Reader:
    """Notes layers as they run; knows, as ``LastTaken`` does, what is made once for the tensor that was taken last."""

    def __init__(self, layout: Layout, formats: Precision) -> None:
        self.layers: list[EasyLayer] = []
        self._layout, self._compute = layout, formats.compute
        self._taken: tuple[Tensor, int] | None = None
        self._exchanged: set[str] = set()
        self._joined: str | None = None
        self._summed: set[str] = set()

    def read(self, module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> None:
        """Note a layer that has run."""
        (taken,) = inputs
        features, weights = (int(taken.shape[-1]), int(out.shape[-1])), 1
        if isinstance(module, nn.Conv2d):
            features, weights = (module.in_channels, module.out_channels), prod(module.kernel_size)
        over_in, over_out = easy_axes(self._layout, *features)
        exchanged, summed = self._made(taken, over_in, over_out) if taken.requires_grad else (False, False)
        self.layers.append(
            EasyLayer(
                inputs=features[0],
                outputs=features[1],
                taken=taken.numel() // features[0],
                given=out.numel() // features[1],
                weights=weights,
                gradient=taken.requires_grad,
                exchanged=exchanged,
                summed=summed,
            )
        )

    def _made(self, taken: Tensor, over_in: str, over_out: str) -> tuple[bool, bool]:
        """Whether a tensor has been exchanged over an axis before, and whether its gradient is summed with others."""
        if self._taken is None or self._taken[0] is not taken or self._taken[1] != taken._version:
            self._taken, self._exchanged, self._joined = (taken, taken._version), set(), None
        exchanged, summed = over_in in self._exchanged, False
        self._exchanged.add(over_in)
        apart = getattr(self._layout, over_in) > 1 or taken.dtype != self._compute
        given = over_in if apart else ""
        if given != self._joined:
            self._joined, self._summed = given, set()
        summed = over_out in self._summed
        self._summed.add(over_out)
        return exchanged, summed
