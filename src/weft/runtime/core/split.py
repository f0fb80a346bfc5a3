"""Values that are a rank's part along some axes, and know it: what is drawn for them is drawn for each part.

A value that is made of others differs along their axes at most: where all that it is made of is equal, it is.  So the
axes follow values through the code of a plain model, and random functions draw alike on ranks that hold copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from weft.runtime.core.draws import Draws

_RANDOM = frozenset(
    {
        *(functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d),
        *(functional.alpha_dropout, functional.feature_alpha_dropout, functional.rrelu, functional.gumbel_softmax),
        *(functional.scaled_dot_product_attention, functional.multi_head_attention_forward),
        *(torch.dropout, torch.dropout_, torch.native_dropout, torch.bernoulli, torch.multinomial, torch.normal),
        *(torch.rand_like, torch.randn_like, torch.randint_like, Tensor.bernoulli, Tensor.bernoulli_, Tensor.random_),
        *(Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.multinomial),
    }
)
_BACKWARD = frozenset({Tensor.backward, torch.autograd.backward, torch.autograd.grad})
"""What may compute blocks again, in which values are to know their axes."""


class Split(Tensor):
    """A tensor whose values differ along ``axes``."""

    draws: Draws | None = None
    axes: frozenset[str] = frozenset()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _BACKWARD:
            with torch.enable_grad():
                args, named = plain(tuple(args)), plain(named)
            return func(*args, **named)
        draws, axes = None, frozenset[str]()
        for one in _given(args, named):
            draws, axes = draws or one.draws, axes | one.axes
        drawn = draws is not None and func in _RANDOM and _drops(func, args, named)
        apart = draws.differing(*sorted(axes)) if drawn and draws is not None else nullcontext()
        with apart, torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **named)
        return found if draws is None else _marked(found, draws, axes)


def marked(values: Tensor, draws: Draws, *axes: str) -> Tensor:
    """Values that know along which axes ranks hold others."""
    found = values.as_subclass(Split)
    found.draws, found.axes = draws, frozenset(axes)
    return found


def plain(values: Any) -> Any:
    """Tensors, or what holds them, without what they know."""
    if isinstance(values, Tensor):
        return values.as_subclass(Tensor) if isinstance(values, Split) else values
    return tree_map_only(Split, lambda one: one.as_subclass(Tensor), values)


def _given(args: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Split]:
    for one in (*args, *named.values()):
        if isinstance(one, Split):
            yield one
        elif isinstance(one, list | tuple):
            yield from (inner for inner in one if isinstance(inner, Split))


def _drops(func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a random function draws."""
    chance = named.get("dropout_p", named.get("p"))
    if func is functional.scaled_dot_product_attention and chance is None:
        chance = args[4] if len(args) > 4 else 0.0
    return chance != 0.0 and named.get("training", True) is not False


def _marked(found: Any, draws: Draws, axes: frozenset[str]) -> Any:
    if isinstance(found, Split):  # changed in place
        found.draws, found.axes = draws, found.axes | axes
        return found
    if isinstance(found, Tensor):
        return marked(found, draws, *axes)
    if type(found) in (list, tuple):
        return type(found)(_marked(one, draws, axes) for one in found)
    return found
