"""Attention between its projections: norms of queries and keys, the core, and sequences cut over the axis of context.

In a ring (arXiv 2310.01889) a rank keeps its queries while keys and values go round; results of two blocks are merged
by their sums of exponentials.  So that causal masks leave all ranks the same work, of 2n equal parts of a sequence
rank i of n has the parts i and 2n - 1 - i (the balanced order of arXiv 2404.10830 and Llama 3's training).  Ulysses
(arXiv 2309.14509) exchanges a rank's tokens of all heads for all tokens of its heads, and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from weft.errors import Unsupported
from weft.runtime.core.collectives import moved
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Vector, share


def capped(values: Tensor, cap: float) -> Tensor:
    """Values within -cap to cap: cap tanh(values / cap)."""
    return cap * torch.tanh(values / cap)


Seen = Tensor | BlockMask
"""Which keys each query sees: of shape (queries, keys), or in blocks, as FlexAttention takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Softmax of scores times values; shapes (batch, heads, sequence, features), fewer heads of keys and values.

    A window and a cap are computed by FlexAttention on GPUs in 16 bits, which keeps no scores.  Elsewhere
    masks are whole, and a cap keeps its scores.

    A query sees no later key.

    Attributes:
        window: keys that it sees at most, counted back from its own.
        scale: of scores; None: 1 / sqrt(features).
        cap: bound of scores.
    """

    window: int | None = None
    scale: float | None = None
    cap: float | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Seen | None = None) -> Tensor:
        """``seen``: as ``self.seen`` makes it, once for all layers that are alike."""
        if seen is None:
            seen = self.seen(queries.shape[2], queries)
        if seen is None:
            grouped = queries.shape[1] != keys.shape[1]
            return functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, scale=self.scale, enable_gqa=grouped
            )
        if isinstance(seen, BlockMask):
            return self._in_blocks(queries, keys, values, seen)
        groups = queries.shape[1] // keys.shape[1]  # with a mask and fewer heads of keys PyTorch would keep all scores
        keys, values = (part.repeat_interleave(groups, 1) for part in (keys, values))
        if self.cap is None:
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=self.scale)
        return self._capped(queries, keys, values, seen, self.cap)

    def seen(self, size: int, like: Tensor) -> Seen | None:
        """Which keys each query sees; None where PyTorch's attention needs no mask.

        Args:
            size: tokens of a sequence.
            like: has the device and format of queries.
        """
        if self.window is None and self.cap is None:
            return None

        def shown(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            result = query >= key
            return result if self.window is None else result & (key > query - self.window)

        if _fused(like):
            return _compiled(create_block_mask)(shown, None, None, size, size, device=like.device)  # type: ignore[no-any-return]
        places = torch.arange(size, device=like.device)
        return shown(places, places, places.unsqueeze(1), places)

    def _in_blocks(self, queries: Tensor, keys: Tensor, values: Tensor, seen: BlockMask) -> Tensor:
        features = queries.shape[-1]
        narrow = max(LEAST_FEATURES - features, 0)
        padded = [functional.pad(part, (0, narrow)) if narrow else part for part in (queries, keys, values)]
        cap = self.cap

        def bound(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return score if cap is None else capped(score, cap)

        mixed: Tensor = _compiled(flex_attention)(
            *padded,
            score_mod=None if cap is None else bound,
            block_mask=seen,
            scale=features**-0.5 if self.scale is None else self.scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        return mixed[..., :features]

    def _capped(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, cap: float) -> Tensor:
        scale = queries.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = capped(queries @ keys.transpose(-1, -2) * scale, cap).masked_fill(~seen, -torch.inf)
        wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
        return scores.softmax(-1, dtype=wide).to(values.dtype) @ values


LEAST_FEATURES = 16
"""Of a head, for FlexAttention."""


def _fused(like: Tensor) -> bool:
    return like.is_cuda and like.dtype in (torch.bfloat16, torch.float16)


def _compiled(function: Any) -> Any:
    """FlexAttention's kernels are what ``torch.compile`` makes of it, alone or within a block."""
    return function if torch.compiler.is_compiling() else _compiled_alone(function)


@cache
def _compiled_alone(function: Any) -> Any:
    return torch.compile(function, dynamic=False)


class HeadNorms(nn.Module):
    """RMSNorm of each head of the queries and of the keys, with one gain for all heads of a kind (Qwen 3, Gemma 3)."""

    def __init__(self, machine: Machine, name: str, features: int, epsilon: float) -> None:
        super().__init__()
        self.features, self.epsilon = features, epsilon

        def gain(which: str) -> Vector:
            return Vector(machine, f"{name}.{which}.weight", shape=(features,), own_heads=True, initial=1.0)

        self.queries, self.keys = gain("q_norm"), gain("k_norm")

    def forward(self, fused: Tensor, heads: int, kv_heads: int) -> Tensor:
        """(batch, sequence, heads + 2 kv_heads, features) to the same; values are left as they are."""
        both, values = fused[:, :, : heads + kv_heads], fused[:, :, heads + kv_heads :]
        gains = torch.cat((self.queries().expand(heads, -1), self.keys().expand(kv_heads, -1)))
        normed = functional.rms_norm(both, (self.features,), None, self.epsilon) * gains
        return torch.cat((normed, values), dim=2)


# Cut sequences -----------------------------------------------------------------------------------


def own_tokens(grid: Grid, sequence: int) -> Tensor:
    """Which of the positions 0 to ``sequence`` - 1 are this rank's, int64, increasing.

    Raises:
        BadInput: the sequence cannot be divided.
    """
    size, place = grid.size("context"), grid.index("context")
    if size == 1 or grid.layout.context_method == "ulysses":
        grid.divided(sequence, "context", what="tokens of a sequence")
        return torch.arange(*share(sequence, size, place))
    half = grid.divided(sequence // 2, "context", what="half the tokens of a sequence")
    late = 2 * size - 1 - place
    return torch.cat([torch.arange(part * half, (part + 1) * half) for part in (place, late)])


def ring_attention(machine: Machine, core: Core, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks of context.

    Args:
        queries: shape (batch, heads, own tokens, features), in the order of ``own_tokens``.
        keys: shape (batch, key-value heads, own tokens, features), as ``values``.

    Returns:
        Shape of ``queries``.

    Raises:
        Unsupported: the core has a window or a soft cap.
    """
    if core.window is not None or core.cap is not None:
        raise Unsupported(
            "a ring of keys and values has no sliding windows and no soft caps of scores",
            where="layout.context_method",
            remedy="set context_method=ulysses",
        )
    if core.scale is not None:
        queries = queries * (core.scale * queries.shape[-1] ** 0.5)
    both = torch.stack((keys, values))
    return cast(Tensor, _Ring.apply(queries, both, machine))  # type: ignore[no-untyped-call]


class _Ring(Function):
    """The next keys and values are under way while a block is computed."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, own: Tensor, machine: Machine) -> Tensor:
        wide, both = machine.precision.wide, own
        mixed = torch.zeros_like(queries, dtype=wide, memory_format=torch.contiguous_format)
        sums = torch.full(queries.shape[:3], -torch.inf, dtype=wide, device=queries.device)
        size = machine.grid.size("context")
        for step in range(size):
            coming = machine.collectives.pass_on(both, "context") if step + 1 < size else None
            asking, given, masked = _meeting(machine.grid, step, queries.shape[2])
            out, weight = _block(queries[:, :, asking], both[:, :, :, given], masked)
            _merge(mixed[:, :, asking], sums[:, :, asking], out, weight)
            both = both if coming is None else coming.wait()
        result = mixed.to(queries.dtype)
        ctx.machine = machine
        ctx.save_for_backward(queries, own, result, sums)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of keys and values go round one step behind them, in fp32: each rank rounds none of the others'.
        Those of a rank's own queries stay."""
        queries, both, result, sums = ctx.saved_tensors
        machine, grid, pass_on = ctx.machine, ctx.machine.grid, ctx.machine.collectives.pass_on
        wide, size = machine.precision.wide, grid.size("context")
        slope, for_queries = gradients[0].contiguous(), torch.zeros_like(queries, dtype=wide)
        at_home, travelling = torch.zeros_like(both, dtype=wide), None
        for step in range(size):
            coming = pass_on(both, "context") if step + 1 < size else None
            asking, given, masked = _meeting(grid, step, queries.shape[2])
            asked, into, out, total = (part[:, :, asking] for part in (queries, slope, result, sums))
            for_asking, for_given = _block_backward(into, asked, both[:, :, :, given], out, total, masked)
            for_queries[:, :, asking] += for_asking
            here = at_home
            if step:
                here = torch.zeros_like(at_home) if travelling is None else travelling.wait()
            here[:, :, :, given] += for_given
            travelling = pass_on(here, "context") if step else None
            both = both if coming is None else coming.wait()
        if travelling is not None:
            at_home += travelling.wait()
        return for_queries.to(queries.dtype), at_home.to(queries.dtype), None


def _meeting(grid: Grid, step: int, tokens: int) -> tuple[slice, slice, bool]:
    """Which queries meet which keys after so many steps, and whether the causal mask is over them.

    The keys are of the rank ``step`` places before.  One from before this one has nothing late to show, to one from
    behind only late queries look.
    """
    every, place = slice(None), grid.index("context")
    if step == 0:
        return every, every, True
    before = (place - step) % grid.size("context") < place
    return (every, slice(0, tokens // 2), False) if before else (slice(tokens // 2, None), every, False)


def _merge(mixed: Tensor, sums: Tensor, out: Tensor, weight: Tensor) -> None:
    """Take a block's output into that so far; both weigh as their sums of exponentials, given as logarithms."""
    both = torch.logaddexp(sums, weight)
    mixed.mul_((sums - both).exp_().unsqueeze(-1)).add_(out * (weight - both).exp_().unsqueeze(-1))
    sums.copy_(both)


# One block ---------------------------------------------------------------------------------------


def _block(queries: Tensor, both: Tensor, masked: bool) -> tuple[Tensor, Tensor]:
    """Attention of queries (batch, heads, n, features) to keys and values (2, batch, key-value heads, m, features).

    Behind it the logarithms of the sums of exponentials, shape (batch, heads, n).
    """
    keys, values = both.repeat_interleave(queries.shape[1] // both.shape[2], 2)
    match _kernel(queries):
        case "host":
            return _ATEN._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, masked)  # type: ignore[no-any-return]
        case "device":
            parts, scale = _padded(queries, keys, values), queries.shape[-1] ** -0.5
            out, sums, *_ = _ATEN._scaled_dot_product_flash_attention(*parts, 0.0, masked, scale=scale)
            return out[..., : queries.shape[-1]], sums
    scores = _scores(queries, keys, masked)
    sums = scores.logsumexp(-1)
    return (scores - sums.unsqueeze(-1)).exp() @ values.to(scores.dtype), sums


def _block_backward(
    slope: Tensor, queries: Tensor, both: Tensor, result: Tensor, sums: Tensor, masked: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of queries, and of keys and values, where ``result`` and ``sums`` are of all blocks."""
    groups = queries.shape[1] // both.shape[2]
    keys, values = both.repeat_interleave(groups, 2)
    parts = (slope, queries, keys, values, result)
    match _kernel(queries):
        case "host":
            slopes = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(*parts, sums.contiguous(), 0.0, masked)
        case "device":
            lengths = (None, None, queries.shape[2], keys.shape[2])
            drawn = (torch.zeros(2, dtype=torch.uint64, device=queries.device), queries.new_empty(0))
            slopes = _ATEN._scaled_dot_product_flash_attention_backward(
                *_padded(*parts), sums.contiguous(), *lengths, 0.0, masked, *drawn, scale=queries.shape[-1] ** -0.5
            )
        case _:
            slopes = _plain_backward(*parts, sums, masked)
    for_queries, *for_both = (part[..., : queries.shape[-1]] for part in slopes)
    grouped = torch.stack(for_both).view(*both.shape[:3], groups, *both.shape[3:])
    return for_queries, grouped.sum(3, dtype=sums.dtype)


def _padded(*parts: Tensor) -> list[Tensor]:
    """Heads whose features 8 divides, as the device's kernel takes them; zeros change no score."""
    return [functional.pad(part, (0, -part.shape[-1] % 8)) for part in parts]


def _plain_backward(
    slope: Tensor, queries: Tensor, keys: Tensor, values: Tensor, result: Tensor, sums: Tensor, masked: bool
) -> tuple[Tensor, Tensor, Tensor]:
    chances = (_scores(queries, keys, masked) - sums.unsqueeze(-1)).exp()
    slope, queries, keys, values, result = (part.to(sums.dtype) for part in (slope, queries, keys, values, result))
    inner = slope @ values.transpose(-1, -2) - (slope * result).sum(-1, keepdim=True)
    for_scores = chances * inner * queries.shape[-1] ** -0.5
    return for_scores @ keys, for_scores.transpose(-1, -2) @ queries, chances.transpose(-1, -2) @ slope


def _scores(queries: Tensor, keys: Tensor, masked: bool) -> Tensor:
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    scores: Tensor = queries.to(wide) @ keys.to(wide).transpose(-1, -2) * queries.shape[-1] ** -0.5
    if not masked:
        return scores
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf)


def _kernel(queries: Tensor) -> str:
    """The fused attention that serves a tensor: of the ``host``, of the ``device``, or none: ``plain``."""
    if not queries.is_cuda:
        return "host"
    return "device" if queries.dtype in (torch.float16, torch.bfloat16) else "plain"


_ATEN: Any = torch.ops.aten


# Ulysses -----------------------------------------------------------------------------------------


def gather_sequence(machine: Machine, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Parts of shape (batch, heads, own tokens, features) as (batch, heads / context, all tokens, features)."""
    size = machine.grid.size("context")
    heads = [part.shape[1] // size for part in parts]
    dealt = torch.cat([torch.unflatten(part, 1, (size, -1)) for part in parts], dim=2).movedim(1, 0)
    return torch.split(_swapped(machine, dealt).permute(1, 2, 0, 3, 4).flatten(2, 3), heads, dim=1)


def gather_heads(machine: Machine, mixed: Tensor) -> Tensor:
    """The way back of one part."""
    size = machine.grid.size("context")
    dealt = torch.unflatten(mixed, 2, (size, -1)).movedim(2, 0)
    return _swapped(machine, dealt).movedim(0, 1).flatten(1, 2)


def _swapped(machine: Machine, slices: Tensor) -> Tensor:
    """Slices along the first dimension, one for each rank of context, for one from each."""

    def swap(values: Tensor) -> Tensor:
        return machine.collectives.all_to_all(values, "context").wait()

    return moved(slices, swap, swap)
