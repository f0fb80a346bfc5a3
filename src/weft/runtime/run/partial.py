"""Training a part of a model: adapters, or all but what is frozen.

A frozen matrix is kept in the format in which it is gathered, and gives no gradient; no optimizer knows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from weft.errors import BadInput
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Holding
from weft.runtime.layers.linear import Linear4D
from weft.runtime.layers.lora import Adapter, LoRA


def add_adapters(machine: Machine, model: nn.Module, lora: LoRA) -> None:
    """Give the targets of a model their adapters and freeze all else.

    Raises:
        BadInput: no layer has such a name.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    layers = [one for one in model.modules() if isinstance(one, Linear4D)]
    chosen = [one for one in layers if one.weight.name.rpartition(".")[2] in lora.targets]
    if not chosen:
        known = sorted({one.weight.name.rpartition(".")[2] for one in layers})
        raise BadInput(f"no layer is called {lora.targets}", where="LoRA", remedy=f"choose of {', '.join(known)}")
    for layer in chosen:
        over = layer.over_in, layer.over_out
        layer.adapter = Adapter(machine, layer.weight.name, layer.inputs, layer.parts, over, lora)


def freeze(held: Sequence[Holding], patterns: Sequence[str], *, whole: bool = True) -> None:
    """Freeze the parameters in whose names one of the patterns is found.

    Args:
        whole: they are of all layers, not of a pipeline stage.

    Raises:
        BadInput: a pattern is no regular expression or is found in no name, or nothing is left to train.
    """
    for pattern in patterns:
        try:
            found = [one for one in held if re.search(pattern, one.name)]
        except re.error as error:
            raise BadInput(f"{pattern!r} is no regular expression: {error}", where="--freeze") from None
        if whole and not found:
            remedy = f"names are as {held[0].name} and {held[-1].name}"
            raise BadInput(f"{pattern!r} is found in no name", where="--freeze", remedy=remedy)
        for one in found:
            one.parameter.requires_grad_(False)
    if held and not any(one.parameter.requires_grad for one in held):
        raise BadInput("nothing is left to train on a rank", where="--freeze", remedy="freeze less, or fewer stages")


def narrow(machine: Machine, held: Sequence[Holding]) -> None:
    """Keep frozen matrices in the format in which they are gathered."""
    for one in held:
        if one.matrix and not one.parameter.requires_grad:
            one.parameter.data = one.parameter.data.to(machine.precision.gather)
