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
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import Unsupported
from weft.layout.mesh import ROWS
from weft.runtime.core.beneath import DisableTorchFunctionSubclass, in_backward, tree_map_only
from weft.runtime.core.cuts import Lost, TensorCut, followed
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


# Draws of a pass ---------------------------------------------------------------------------------

_LARGEST = 2**62
_OUTSTANDING = 4096
"""Passes whose backward pass may be still to come."""


class Draws:
    """The draws of a model's training passes.

    Args:
        rows_over: axes whose ranks have different rows.

    Attributes:
        seed: the first rank's, on every rank.
        passes: training passes so far; to draw on as a run that was not interrupted, set it when it goes on.
        parts: values that are split are to know it: in the first pass of training and in that of evaluation, in which
            what a model does to them is checked, and in all of training where something is drawn for such.
        trains: whether the pass is one of training.
    """

    def __init__(self, machine: Machine, rows_over: tuple[str, ...]) -> None:
        self._machine, self._rows_over = machine, rows_over
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
        with self._seeded("pass", number, *(self._machine.grid.index(axis) for axis in self._rows_over)):
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
    draws = Draws(machine, rows_over)
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
