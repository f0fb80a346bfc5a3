"""Values that are a rank's part along some axes, and know it: what is drawn for them is drawn for each part, and what
would be wrong of a part is refused.

A value that is made of others differs along their axes at most: where all that it is made of is equal, it is.  So the
axes follow values through the code of a plain model, and random functions draw alike on ranks that hold copies.

A pass does not draw from what each process was seeded with, or replicas would part in silence.  Its seed is a function
of the first rank's, of the number of passes before, and of this rank's place on the axes whose ranks have different
rows; for values that are split over more axes, of its place on these too.  PyTorch's own generators hold it, so that
activation checkpointing draws the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import Unsupported
from weft.layout.mesh import ROWS
from weft.runtime.core.beneath import DisableTorchFunctionSubclass, in_backward, tree_map_only
from weft.runtime.core.machine import Machine

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
    if len({cut.axes for cut in known}) > 1:
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


# Which dimension is cut --------------------------------------------------------------------------


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
    """The dimensions of which one is cut: several where a reshape put a dimension of size 1 beside it.

    ``fused``: how many parts a rank has a share of each of.
    """

    dims: frozenset[int]
    fused: int = 1


class Lost(Exception):
    """What is known of the parts does not say what the function gives."""


def followed(
    func: Any, args: Sequence[Any], named: Mapping[str, Any], result: Any, cuts: Mapping[int, TensorCut | None]
) -> Any:
    """The cut of what a function gives, one or one for each of a tuple.

    A function is right on parts under the dimensions that remain when what it sums, sorts or compares along is taken
    away; where none remains it is wrong, and so is each function that nothing here knows.

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
        return [(tensor, range(-tensor.ndim, 0)) for tensor in tensors], range(-out.ndim, 0)
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


# Draws of a pass ---------------------------------------------------------------------------------

_LARGEST = 2**62
_OUTSTANDING = 4096
"""Passes whose backward pass may be still to come."""


class Draws:
    """The draws of a model's training passes.

    Args:
        rows_over: axes whose ranks have different rows.
        name: what tells stages of a model apart.

    Attributes:
        seed: the first rank's, on every rank.
        passes: training passes so far; to draw on as a run that was not interrupted, set it when it goes on.
        parts: values that are split are to know it: in the first pass of training and in that of evaluation, in which
            what a model does to them is checked, and in all of training where something is drawn for such.
        trains: whether the pass is one of training.
    """

    def __init__(self, machine: Machine, rows_over: tuple[str, ...], name: str) -> None:
        self._machine, self._rows_over, self._name = machine, rows_over, name
        self.passes = 0
        self.parts, self._drawn, self.trains = True, False, True
        self._seen: set[bool] = set()
        """Whether passes of evaluation, and of training, have been checked."""
        self._made: dict[int, int] = {}
        first = machine.grid.rank == 0
        seed = torch.tensor([torch.initial_seed() % _LARGEST if first else 0], device=machine.grid.device)
        every = ("x", "y", *ROWS)
        self.seed = int(machine.collectives.all_reduce(seed, *every, op=dist.ReduceOp.MAX).wait())

    @contextmanager
    def alike(self) -> Iterator[None]:
        """One forward pass: inside, ranks that have the same rows draw the same.

        It takes one number of the process's generator, by which a pass that activation checkpointing makes again is
        known.
        """
        mark = int(torch.randint(_LARGEST, (), device="cpu"))
        again = in_backward()
        number = self._made.get(mark, self.passes) if again else self.passes
        if not again:
            self.passes += 1
            self._made[mark] = number
            if len(self._made) > _OUTSTANDING:
                del self._made[next(iter(self._made))]
        with self._seeded(self._name, number, *(self._machine.grid.index(axis) for axis in self._rows_over)):
            yield

    def enter(self, trains: bool) -> bool:
        """A pass begins; whether its values are to know that they are split."""
        self.trains, self.parts = trains, trains not in self._seen or (trains and self._drawn)
        return self.parts

    def leave(self, done: bool) -> None:
        """It ends; what is computed again in the backward pass is of training."""
        if done:
            self._seen.add(self.trains)
        self.trains, self.parts = True, self._drawn

    @contextmanager
    def differing(self, *axes: str) -> Iterator[None]:
        """Within ``alike``: ranks along some axes draw different numbers, for values that are split over them."""
        self._drawn = True
        number = int(torch.randint(_LARGEST, (), device="cpu"))
        with self._seeded("differing", number, *(self._machine.grid.index(axis) for axis in axes)):
            yield

    @contextmanager
    def _seeded(self, *words: int | str) -> Iterator[None]:
        device = self._machine.grid.device
        text = ":".join(map(str, (self.seed, *words)))
        number = int.from_bytes(blake2b(text.encode(), digest_size=7).digest())
        if device.type == "cpu":
            with torch.random.fork_rng([]):
                torch.default_generator.manual_seed(number)
                yield
            return
        with torch.random.fork_rng([device], device_type=device.type):
            torch.default_generator.manual_seed(number)
            torch.get_device_module(device).manual_seed(number)
            yield


def share_draws(model: nn.Module, machine: Machine, rows_over: tuple[str, ...]) -> Draws | None:
    """Make every training pass of a model one of ``Draws.alike``; None where one rank is alone."""
    if not machine.grid.runs:
        return None
    draws = Draws(machine, rows_over, next(iter(model._modules), ""))
    passes: list[ExitStack] = []

    def enter(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        passes.append(ExitStack())
        if module.training:
            passes[-1].enter_context(draws.alike())
        if draws.enter(module.training):
            return tree_map_only(
                Tensor, lambda one: marked(one, draws) if one.is_floating_point() else one, (given, named)
            )
        return None

    def leave(module: nn.Module, _: Any, out: Any) -> Any:
        result = plain(out) if draws.parts else None
        draws.leave(out is not None)
        passes.pop().close()
        return result

    model.register_forward_pre_hook(enter, with_kwargs=True)
    model.register_forward_hook(leave, always_call=True)
    return draws
