"""Which dimension of a value is cut over ranks, followed through torch's functions or refused by name.

A value's ``dims`` are the dimensions of which one is cut: several where a reshape put a dimension of size 1 beside it.
A function is right on parts under those that remain when what it sums, sorts or compares along is taken away; where
none remains it is wrong, and so is each function that nothing here knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

_SAME = (
    "to type type_as float double half bfloat16 contiguous clone detach requires_grad data grad copy fill zero where "
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout native_dropout bernoulli rrelu "
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like normal uniform exponential random "
    "hardswish log_sigmoid softsign tanhshrink floor_divide truediv rtruediv itruediv rdiv floordiv rfloordiv mod "
    "rmod and or xor invert radd rmul rpow iadd isub imul ipow maximum minimum"
)
"""Beside what torch itself calls pointwise."""
_RESHAPES = ("view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze")
_PIECES = ("chunk", "split", "tensor_split", "narrow", "getitem")
_ALONG = {
    (1, None): "sum mean prod nansum nanmean amax amin argmax argmin any all max min std var std_mean var_mean median "
    "nanmedian count_nonzero softmax log_softmax softmin logsumexp cumsum cumprod cummax cummin logcumsumexp gather "
    "index_select narrow select flip scatter scatter_add index_add index_copy index_fill",
    (2, None): "norm linalg_norm linalg_vector_norm quantile roll take_along_dim",
    (1, -1): "sort argsort glu mode",
    (2, -1): "topk kthvalue diff",
    (2, 0): "chunk split tensor_split",
    (2, 1): "normalize cosine_similarity",
    (1, 0): "unbind",
    (4, -1): "gumbel_softmax",
    (9, (-2, -1)): "tril triu",
}
_PLACES: dict[str, tuple[int, Any]] = {name: place for place, names in _ALONG.items() for name in names.split()}
"""Where functions that are wrong along the cut dimension have their dimensions among the arguments, and the default;
None is all."""

Operands = list[tuple[Tensor, Sequence[Any]]]
"""Tensors, and what each of their dimensions is called; equal names meet."""


@dataclass(frozen=True, slots=True)
class TensorCut:
    """The dimensions of which one is cut; ``fused``: how many parts a rank has a share of each of."""

    dims: frozenset[int]
    fused: int = 1


class Lost(Exception):
    """What is known of the parts does not say what the function gives."""


def followed(
    func: Any, args: Sequence[Any], named: Mapping[str, Any], result: Any, cuts: Mapping[int, TensorCut | None]
) -> Any:
    """The cut of what a function gives, one or one for each of a tuple.

    Args:
        cuts: of the tensors that know theirs, by ``id``; None of those that fit any.

    Raises:
        Lost: it would be wrong on parts.
    """
    name = getattr(func, "__name__", "")
    name = getattr(func.__self__, "__name__", "") if name == "__get__" else name.strip("_")
    out = result[0] if isinstance(result, tuple | list) and result else result
    first = args[0] if args else next(iter(named.values()))
    if name.startswith("new_"):
        return None
    if name in _RESHAPES:
        return _reshaped(first.shape, out.shape, cuts.get(id(first)))
    if name in ("max", "min") and len(args) > 1 and isinstance(args[1], Tensor):
        name = "maximum"
    if not isinstance(first, list | tuple | str) and id(first) not in cuts and (name == "setitem" or name in _PLACES):
        raise Lost("its result is not split (make that by zeros_like, new_ones)")
    if name == "setitem":
        return _joined([(first, range(first.ndim))], _indexed(first, args[1]), cuts) and None
    cut = cuts.get(id(first))
    pieces = cut is not None and cut.fused > 1 and name in _PIECES and out.ndim == first.ndim
    if cut is not None and pieces and not cut.dims & {*_sources(name, args, named, first, out)}:
        return TensorCut(cut.dims)  # parts are taken, which the role Normal(parts=...) names
    if name in ("cat", "concat", "stack"):
        along = _dims(args, named, (1, 0), out.ndim)
        own = [dim for dim in range(out.ndim) if name != "stack" or dim not in along]
        labels = [None if dim in along else dim for dim in own]
        return _joined([(one, labels) for one in first], [None if d in along else d for d in range(out.ndim)], cuts)
    operands, given = _operands(name, args, named, first, out)
    return _joined(operands, given, cuts)


def _operands(
    name: str, args: Sequence[Any], named: Mapping[str, Any], first: Any, out: Tensor
) -> tuple[Operands, Sequence[Any]]:
    """What meets what in a function, and what the dimensions of its result are."""
    tensors = [one for one in (*args, *named.values()) if isinstance(one, Tensor)]
    if name == "scaled_dot_product_attention":
        ends = ("le", "se", "sv", "ls")
        return [(one, [*_batch(one), *end]) for one, end in zip(tensors, ends, strict=False)], [*_batch(out), *"lv"]
    if name in ("matmul", "bmm", "mm", "rmatmul"):
        one, other = reversed(tensors) if name == "rmatmul" else tensors
        left = [*_batch(one), *"mk"] if one.ndim > 1 else ["k"]
        right = [*_batch(other), *"kn"] if other.ndim > 1 else ["k"]
        batch = max(_batch(one), _batch(other), key=len)
        return [(one, left), (other, right)], [*batch, *"m"[: one.ndim - 1], *"n"[: other.ndim - 1]]
    if name == "linear":
        rows = list(range(-first.ndim, -1))
        weights = zip(tensors[1:], (["n", "k"], ["n"]), strict=False)
        return [(first, [*rows, "k"]), *weights], [*rows, "n"]
    if name == "einsum":
        return _einsum(args, out)
    if name in _SAME.split() or _is_pointwise(name):
        return [(one, range(-one.ndim, 0)) for one in tensors], range(-out.ndim, 0)
    return [(first, range(first.ndim))], _sources(name, args, named, first, out)


def _batch(values: Tensor) -> list[int]:
    return list(range(-values.ndim, -2))


def _einsum(args: Sequence[Any], out: Tensor) -> tuple[Operands, Sequence[Any]]:
    given, arrow, wanted = str(args[0]).replace(" ", "").partition("->")
    tensors = args[1] if isinstance(args[1], list | tuple) else args[1:]
    if not arrow:
        raise Lost("write what it gives behind an arrow")

    def labels(term: str, values: Tensor) -> list[Any]:
        before, dots, after = term.partition("...")
        return [*before, *range(len(before) + len(after) - values.ndim, 0)[: 99 if dots else 0], *after]

    terms = zip(given.split(","), tensors, strict=True)
    return [(one, labels(term, one)) for term, one in terms], labels(wanted, out)


@lru_cache(maxsize=1024)
def _is_pointwise(name: str) -> bool:
    """Whether torch says that a function computes each element by itself."""
    if name in _PLACES or not hasattr(torch.ops.aten, name):
        return False
    packet = getattr(torch.ops.aten, name)
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())


def _joined(operands: Operands, given: Sequence[Any], cuts: Mapping[int, TensorCut | None]) -> TensorCut | None:
    """The cut of a result, of whose dimensions each has a name of the operands' (or None: of nothing)."""
    left: set[Any] | None = None
    fused: set[int] = set()
    for values, labels in operands:
        cut = cuts.get(id(values))
        if cut is not None:
            own = {labels[dim] for dim in cut.dims} & set(given) - {None}
            if not own:
                raise Lost("it needs all of them, and a rank has a part")
            left = own if left is None else left & own
            fused.add(cut.fused)
    if left is None:
        return None
    for values, labels in operands:
        if id(values) not in cuts:  # cat takes an empty one of any shape
            left -= {label for label, size in zip(labels, values.shape, strict=False) if size > 1}
    if not left or len(fused) > 1:
        raise Lost(
            "it is given a tensor that is split in another way, or not at all (make that by zeros_like, new_ones)"
        )
    return TensorCut(frozenset(dim for dim, label in enumerate(given) if label in left), *fused)


def _dims(args: Sequence[Any], named: Mapping[str, Any], place: tuple[int, Any], ndim: int) -> set[int]:
    """The dimensions that an argument names."""
    position, default = place
    dims = args[position] if len(args) > position else default
    dims = next((named[key] for key in ("dim", "axis", "dims") if key in named), dims)
    if dims is None or dims == () or isinstance(dims, bool):
        return set(range(ndim))
    return {dim % ndim for dim in ((dims,) if isinstance(dims, int) else dims)}


def _sources(name: str, args: Sequence[Any], named: Mapping[str, Any], first: Tensor, out: Tensor) -> list[int | None]:
    """The dimension of the first argument that each one of the result is, None where it is another."""
    ndim, every = first.ndim, list(range(first.ndim))
    if name in ("expand", "expand_as", "broadcast_to", "repeat", "tile"):
        more = out.ndim - ndim
        return [None] * more + [dim if out.shape[more + dim] == first.shape[dim] else None for dim in every]
    if name in ("transpose", "swapaxes", "swapdims"):
        one, other = (args[k] if len(args) > k else named[f"dim{k - 1}"] for k in (1, 2))
        every[one], every[other] = every[other], every[one]
        return list(every)
    if name == "permute":
        dims = named.get("dims", args[1:])
        return [dim % ndim for dim in (dims[0] if isinstance(dims[0], list | tuple) else dims)]
    if name in ("t", "T", "mT"):
        return [*every[:-2], *every[:-3:-1]]
    if name in ("layer_norm", "rms_norm"):
        along = set(every[-len(args[1] if len(args) > 1 else named["normalized_shape"]) :])
    elif name == "pad":
        pads = args[1] if len(args) > 1 else named["pad"]
        along = {ndim - 1 - k // 2 for k, size in enumerate(pads) if size}
    elif name == "repeat_interleave":
        along = _dims(args, named, (2, None), ndim)
        along = set() if len(along) == 1 else along  # each element beside its copies
    elif name == "getitem":
        return _indexed(first, args[1])
    elif name in _PLACES:
        along = _dims(args, named, _PLACES[name], ndim)
    else:
        raise Lost("it is not known to be right on parts")
    if out.ndim == ndim:
        return [None if dim in along else dim for dim in every]
    return [dim for dim in every if dim not in along]


def _indexed(values: Tensor, index: Any) -> list[int | None]:
    """The dimensions that are left as they are by an index, None for others of the result."""
    items = list(index) if isinstance(index, tuple) else [index]
    used = [
        item.ndim if isinstance(item, Tensor) and item.dtype == torch.bool else int(item is not None) for item in items
    ]
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if dots:
        items[dots[0] : dots[0] + 1] = [slice(None)] * (values.ndim - sum(used) + 1)
    sources: list[int | None] = []
    dim = lists = 0
    for item in items:
        if item is None:
            sources.append(None)
            continue
        if isinstance(item, slice):
            size = values.shape[dim]
            sources.append(dim if item.indices(size) == (0, size, 1) else None)
        elif isinstance(item, Tensor | list):
            truth = isinstance(item, Tensor) and item.dtype == torch.bool
            ndim = item.ndim if isinstance(item, Tensor) else 1
            sources += [None] * (1 if truth else ndim)
            dim, lists = dim + (ndim - 1 if truth else 0), lists + 1
        dim += 1
    if lists > 1:
        raise Lost("it has more than one list of indices")
    return [*sources, *range(dim, values.ndim)]


def _reshaped(before: Sequence[int], after: Sequence[int], cut: TensorCut | None) -> TensorCut | None:
    """Dimensions that begin where the cut one begins: a rank's part stays one piece of what lies behind them."""
    if cut is None:
        return None
    dims, fused = set(), cut.fused
    for dim in cut.dims:
        alike = next((k for k in range(dim) if list(before[: k + 1]) != list(after[: k + 1])), dim)
        start, begins = prod(before[:dim]), [prod(after[:k]) for k in range(len(after))]
        if fused > 1 and before[dim] not in (
            size for size, begin in zip(after, begins, strict=True) if begin == start
        ):
            start, fused = start * fused, 1
        dims |= {k for k in range(alike, len(after)) if begins[k] == start}
    if not dims:
        raise Lost("it puts them among others")
    return TensorCut(frozenset(dims), fused)
