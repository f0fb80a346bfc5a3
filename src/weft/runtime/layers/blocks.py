"""Blocks of a model: recomputed as a layout asks for it, and compiled, with graphs that all blocks of a kind share.

Graphs break where a layer communicates, so that collectives are issued and waited for as without compilation; norms,
activations, residuals and attention between such layers are compiled.  Where no layer does, a block is one graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout
from weft.runtime.core.machine import Machine
from weft.runtime.core.split import plain
from weft.runtime.layers.decoder import Decoder4D
from weft.runtime.layers.experts import Experts4D
from weft.runtime.layers.linear import Conv4D, Layer4D, Linear4D

BACKEND = "inductor"
"""Of ``torch.compile``."""


def compile_blocks(model: nn.Module, machine: Machine, backend: str = BACKEND) -> None:
    """Compile every block of a model of 4D layers or of a converted one.

    Sizes are constants: another micro-batch or sequence compiles again.

    Args:
        backend: of ``torch.compile``; "aot_eager" needs no compiler and gains nothing.

    Raises:
        Unsupported: a block has what no graph can hold, or this machine has no compiler; the model is as before.
    """
    blocks = blocks_of(model, {part for part in model.modules() if isinstance(part, Layer4D)})
    if not blocks:
        raise Unsupported("has no list of blocks to compile", where=type(model).__name__, remedy="leave compile out")
    _check(machine.grid.layout, model)
    own = [vars(block).get("forward") for block in blocks]
    if any(one is not None and not isinstance(one, Recomputed) for one in own):
        raise Unsupported(
            "blocks whose instance has another forward are not compiled",
            where=type(model).__name__,
            remedy="leave compile out",
        )
    if backend == BACKEND:
        _check_compiler(machine.grid.device)
    _lock_progress_within()
    compiled = torch.compile(_passed, backend=backend, dynamic=False)
    for block, recomputed in zip(blocks, own, strict=True):
        (block if recomputed is None else recomputed).forward = _Compiled(block, machine, compiled)
    if isinstance(model, Decoder4D) and machine.grid.size("x", "y") == 1:
        model.losses = torch.compile(model.losses, backend=backend, dynamic=False)  # type: ignore[method-assign]


def _check(layout: Layout, model: nn.Module) -> None:
    parts = list(model.modules())
    limits = (
        (any(isinstance(part, Experts4D) for part in parts), "model", "experts (shapes depend on data)"),
        (any(isinstance(part, Conv4D) for part in parts), "model", "convolutions"),
        (layout.context > 1, "layout.context", f"context = {layout.context}"),
        (layout.schedule.splits_backward, "layout.schedule", f"schedule = {layout.schedule}"),
    )
    for result, where, what in limits:
        if result:
            raise Unsupported(f"blocks with {what} are not compiled", where=where, remedy="leave compile out")


def _check_compiler(device: torch.device) -> None:
    """Refuse machines on which Inductor finds what it calls missing only in the first step."""
    if device.type != "cpu":
        if find_spec("triton") is None:
            raise Unsupported("Triton is not installed", where="compile", remedy="pip install triton")
        return
    known = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++"]
    if not any(map(which, known)):
        raise Unsupported(
            f"no C++ compiler ({', '.join(known)}) is installed", where="compile", remedy="install g++, or set CXX"
        )


def _lock_progress_within() -> None:
    """Let PyTorch's bars of progress, which nobody sees, make no semaphore: ranks that end at once would leave it."""
    with suppress(ImportError):
        import_module("tqdm").tqdm.set_lock(RLock())


class _Compiled:
    """A block's forward pass; what stands outside of blocks is forgotten before it.

    Matrices of which no other rank has a part are inputs of the graph, which then has PyTorch's operators alone.
    """

    def __init__(self, block: nn.Module, machine: Machine, compiled: Any) -> None:
        self._block, self._machine, self._compiled = block, machine, compiled
        for part in block.modules():
            if hasattr(part, "draws"):  # a converted layer: graphs take plain tensors
                setattr(part, "draws", None)  # noqa: B010 (no class of this package has it)
        self._matrices = [layer.weight for layer in block.modules() if isinstance(layer, Linear4D) and layer.is_whole]

    def __call__(self, *given: Any, **named: Any) -> Any:
        self._machine.last.forget()
        for matrix in self._matrices:
            matrix.input = matrix.as_leaf()
        try:
            return self._compiled(self._block, self._machine, *plain(given), **plain(named))
        finally:
            for matrix in self._matrices:
                matrix.input = None


def _passed(block: nn.Module, machine: Machine, *given: Any, **named: Any) -> Any:
    out = type(block).forward(block, *given, **named)
    machine.last.forget()
    return out


# Blocks, and recomputation -----------------------------------------------------------------------


def blocks_of(module: nn.Module, layers: Collection[nn.Module]) -> list[nn.Module]:
    """The blocks of a model, in order: what the outermost lists of modules hold that has some layers inside, or
    where there are none what the outermost sequences of modules hold."""
    return _listed(module, layers, nn.ModuleList) or _listed(module, layers, nn.Sequential)


def _listed(module: nn.Module, layers: Collection[nn.Module], kind: type[nn.Module]) -> list[nn.Module]:
    if isinstance(module, kind):
        return [one for one in module.children() if any(part in layers for part in one.modules() if part is not one)]
    return [block for child in module.children() for block in _listed(child, layers, kind)]


class Recomputed:
    """A block's forward pass, computed again in the backward pass.

    Attributes:
        forward: the pass itself.
    """

    def __init__(self, block: nn.Module) -> None:
        self.block = block
        self.forward: Callable[..., Any] = block.forward

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*given, **named)
        for name, value in named.items():
            if value is not None and ("past_key_value" in name or name == "layer_past"):
                raise BadInput(
                    "a block that is computed again would write into the cache of keys and values twice",
                    where=f"{type(self.block).__name__}: {name}",
                    remedy="call the model with use_cache=False",
                )
        # What it takes is kept as it is: the checkpoint's own arguments may come back as plain tensors.
        return checkpoint(partial(self.forward, *given, **named), use_reentrant=False)


def check_recomputable(blocks: Sequence[nn.Module], layout: Layout) -> None:
    """Refuse what cannot be computed again, before anything is changed.

    Raises:
        BadInput: the model has no list of blocks, or fewer than are to be recomputed.
    """
    if layout.recompute != "none" and len(blocks) < max(layout.recompute_layers, 1):
        raise BadInput(
            f"{layout.recompute_layers or 'all'} blocks are to be recomputed, the model has {len(blocks)} in lists",
            where="layout: recompute",
            remedy="keep the model's blocks in an nn.ModuleList or nn.Sequential, or set recompute=none",
        )


def recompute_blocks(blocks: Sequence[nn.Module], layout: Layout) -> None:
    """Let the first ``recompute_layers`` blocks (0: all) be computed again, where a layout says so."""
    if layout.recompute == "full":
        for block in blocks[: layout.recompute_layers or None]:
            block.forward = Recomputed(block)
