"""Recomputation in plain models, as a layout asks for it: of whole blocks, or of attention cores alone.

PyTorch's checkpoints keep the state of its generators, so that dropout drops the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout

Forward = Callable[..., Any]


def blocks_of(model: nn.Module, layers: Collection[nn.Module]) -> list[nn.Module]:
    """What the outermost lists of modules hold that has some layers inside: the blocks of a model, in order."""
    return list(_blocks(model, layers))


def _blocks(module: nn.Module, layers: Collection[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if not isinstance(child, nn.ModuleList):
            yield from _blocks(child, layers)
            continue
        for one in child:
            if any(part in layers for part in one.modules() if part is not one):
                yield one


class Recomputed:
    """A block's forward pass, computed again in the backward pass: whole, or its attention cores alone.

    Attributes:
        forward: the pass itself.
    """

    def __init__(self, block: nn.Module, *, whole: bool) -> None:
        self.block, self.whole = block, whole
        self.forward: Forward = block.forward

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*given, **named)
        if self.whole:
            self._check_cache(named)
            return _again(self.forward, *given, **named)
        with _Cores() as cores:
            out = self.forward(*given, **named)
        if not cores.found:
            raise Unsupported(
                "recompute = selective: a block does not call scaled_dot_product_attention",
                where=type(self.block).__name__,
                remedy="choose attention that does (attn_implementation='sdpa'), or recompute=full",
            )
        return out

    def _check_cache(self, named: Mapping[str, Any]) -> None:
        for name, value in named.items():
            if value is not None and ("past_key_value" in name or name == "layer_past"):
                raise BadInput(
                    "a block that is computed again would write into the cache of keys and values twice",
                    where=f"{type(self.block).__name__}: {name}",
                    remedy="call the model with use_cache=False",
                )


def _again(forward: Forward, *given: Any, **named: Any) -> Any:
    """A checkpoint; what it takes is kept as it is, for its own arguments may come back as plain tensors."""
    return checkpoint(partial(forward, *given, **named), use_reentrant=False)


class _Cores(TorchFunctionMode):
    """Inside, attention cores keep no scores."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self, func: Forward, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.found = True
        return _again(func, *args, **(kwargs or {}))


def check_recomputable(blocks: Sequence[nn.Module], layout: Layout) -> None:
    """Refuse what cannot be computed again, before anything is changed.

    Raises:
        BadInput: the model has no list of blocks, or fewer than are to be recomputed.
    """
    if layout.recompute != "none" and len(blocks) < max(layout.recompute_layers, 1):
        raise BadInput(
            f"{layout.recompute_layers or 'all'} blocks are to be recomputed, the model has {len(blocks)} in lists",
            where="layout: recompute",
            remedy="keep the model's blocks in an nn.ModuleList, or set recompute=none",
        )


def recompute_blocks(blocks: Sequence[nn.Module], layout: Layout) -> None:
    """Let blocks recompute what a layout says: the first ``recompute_layers`` (0: all) whole, or all their cores."""
    if layout.recompute == "none":
        return
    whole = layout.recompute == "full"
    for block in blocks[: layout.recompute_layers or None] if whole else blocks:
        block.forward = Recomputed(block, whole=whole)
