"""What ``torch.compile`` calls and does not look into: steps that communicate, as operators of PyTorch.

A graph holds tensors alone.  So an operator is given its layer as a number in a tensor on the host, one graph for all
layers that are alike.  All these operators stand in one order, that of the program, forward and backward: collectives
are issued and waited for as without compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef
from torch._library.effects import EffectType
from torch.library import custom_op

_numbers = count()
_known: WeakValueDictionary[int, Any] = WeakValueDictionary()


def number(thing: Any) -> Tensor:
    """The number of a layer, or of what else an operator needs; it is known as long as somebody keeps it."""
    result = next(_numbers)
    _known[result] = thing
    return torch.tensor(result, dtype=torch.int64, device="cpu")


def thing(key: Tensor) -> Any:
    """What has a number."""
    return _known[int(key)]


def number_layers(model: nn.Module, *kinds: type[nn.Module]) -> None:
    """Give every layer of some kinds its number, as ``key``."""
    for module in model.modules():
        if isinstance(module, kinds):
            module.key = number(module)


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Make a function an operator of PyTorch, of its own name.

    Args:
        schema: its arguments and what it gives, none of which shares memory with another.
        fake: what it gives, without values.
    """

    def made(function: Callable[..., Any]) -> CustomOpDef:
        name = f"weft::{function.__name__.strip('_')}"
        result: CustomOpDef = custom_op(name, function, mutates_args=(), schema=schema)
        result.register_fake(fake)
        result.register_effect(EffectType.ORDERED)
        return result

    return made
