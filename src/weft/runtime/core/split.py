"""Values that are a rank's part along some axes, and know it: what is drawn for them is drawn for each part, and what
would be wrong of a part is refused.

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

from weft.errors import Unsupported
from weft.runtime.core.beneath import DisableTorchFunctionSubclass, in_backward, tree_map_only
from weft.runtime.core.cuts import Lost, TensorCut, followed

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
    """A tensor whose values differ along ``axes``, over which ``cut`` says which dimension is split; ``origin`` names
    the module that gave it."""

    draws: Draws | None = None
    axes: frozenset[str] = frozenset()
    cut: TensorCut | None = None
    origin: str = ""

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
        given = list(_given(args, named))
        draws, axes = given[0].draws if given else None, frozenset[str]().union(*(one.axes for one in given))
        drawn = draws is not None and draws.trains and axes and func in _RANDOM and _drops(func, args, named)
        apart = draws.differing(*sorted(axes)) if drawn and draws is not None else nullcontext()
        with apart, DisableTorchFunctionSubclass():
            result = tuple(args[0].unbind(0)) if func is Tensor.__iter__ else func(*args, **named)
            cuts = _cuts(func, args, named, result, given)
        made = result if draws is None else _marked(result, draws, axes, cuts, given)
        return iter(made) if func is Tensor.__iter__ else made


def _cuts(
    func: Callable[..., Any], args: Sequence[Any], named: dict[str, Any], result: Any, given: list[Split]
) -> Any:
    """The cut of what a function gives; refused where a part of the features does not say it."""
    known = [one for one in given if one.cut is not None]
    first = result[0] if isinstance(result, list | tuple) and result else result
    if not known or in_backward() or not (isinstance(first, Tensor) or func is Tensor.__setitem__):
        return None
    over = " and ".join(sorted(known[0].axes))
    problem = ""
    if len({one.axes for one in known}) > 1:
        problem = "others are split over other axes"
    else:
        try:
            return followed(func, args, named, result, {id(one): one.cut for one in given})
        except Lost as lost:
            problem = str(lost)
    raise Unsupported(
        f"{getattr(func, '__name__', func)}() would be wrong for its features, which are split over {over}: {problem}",
        where=known[0].origin,
        remedy=f"take easy mode (no plan), where ranks have all features, a layout with {over}=1, or a role for it "
        "(Norm(), Heads, Normal(parts=...), Head() and weft's cross_entropy)",
    )


def marked(values: Tensor, draws: Draws, *axes: str, cut: TensorCut | None = None, origin: str = "") -> Tensor:
    """Values that know along which axes ranks hold others, and in which dimension."""
    result = values.as_subclass(Split)
    result.draws, result.axes, result.cut, result.origin = draws, frozenset(axes), cut, origin
    return result


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


def _marked(result: Any, draws: Draws, axes: frozenset[str], cut: TensorCut | None, given: list[Split]) -> Any:
    if isinstance(result, Split):  # changed in place
        result.draws, result.axes, result.cut = draws, result.axes | axes, cut or result.cut
        return result
    if isinstance(result, Tensor):
        return marked(result, draws, *axes, cut=cut, origin=max((one.origin for one in given), key=bool))
    if isinstance(result, list | tuple) and any(isinstance(one, Tensor) for one in result):
        return type(result)([_marked(one, draws, axes, cut, given) for one in result])
    return result
