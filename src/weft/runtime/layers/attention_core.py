"""Attention between its projections: norms of queries and keys, and the core with window and soft cap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Vector


def capped(values: Tensor, cap: float) -> Tensor:
    """Values within -cap to cap: cap tanh(values / cap)."""
    return cap * torch.tanh(values / cap)


def documents_of(ids: Tensor, end: int) -> Tensor:
    """The number of each token's document in its row, shape of ``ids``; a document ends with the token ``end``."""
    ends = ids == end
    return ends.cumsum(1) - ends.long()


def within(documents: Tensor) -> Tensor:
    """Each token's place in its document, from 0."""
    places = torch.arange(documents.shape[1], device=documents.device).expand(documents.shape)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return places - torch.where(begins, places, 0).cummax(1).values


Seen = Tensor | BlockMask
"""Which keys each query sees: of shape ([batch, 1,] queries, keys), or in blocks, as FlexAttention takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Softmax of scores times values; shapes (batch, heads, sequence, features), fewer heads of keys and values.

    A window, documents and a cap are computed by FlexAttention on GPUs in 16 bits, which keeps no scores.  Elsewhere
    masks are whole, and a cap keeps its scores.

    Attributes:
        causal: a query sees no later key.
        window: keys that it sees at most, counted back from its own.
        scale: of scores; None: 1 / sqrt(features).
        cap: bound of scores.
    """

    causal: bool = True
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
                queries, keys, values, is_causal=self.causal, scale=self.scale, enable_gqa=grouped
            )
        if isinstance(seen, BlockMask):
            return self._in_blocks(queries, keys, values, seen)
        groups = queries.shape[1] // keys.shape[1]  # with a mask and fewer heads of keys PyTorch would keep all scores
        keys, values = (part.repeat_interleave(groups, 1) for part in (keys, values))
        if self.cap is None:
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=self.scale)
        return self._capped(queries, keys, values, seen, self.cap)

    def seen(self, size: int, like: Tensor, documents: Tensor | None = None) -> Seen | None:
        """Which keys each query sees; None where PyTorch's attention needs no mask.

        Args:
            size: tokens of a sequence.
            like: has the device and format of queries.
            documents: the number of each token's document in its row, shape (batch, size); a query sees keys of its
                own document only.
        """
        if self.window is None and self.cap is None and documents is None:
            return None

        def shown(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            result = query >= key if self.causal else key >= 0
            if self.window is not None:
                result = result & (key > query - self.window)
            if documents is not None:
                result = result & (documents[batch, query] == documents[batch, key])
            return result

        rows = None if documents is None else len(documents)
        if _fused(like):
            return _compiled(create_block_mask)(shown, rows, None, size, size, device=like.device)  # type: ignore[no-any-return]
        places = torch.arange(size, device=like.device)
        batch = torch.arange(rows or 1, device=like.device).view(-1, 1, 1, 1)
        return shown(batch, places, places.unsqueeze(1), places)

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
            return Vector(
                machine,
                f"{name}.{which}.weight",
                shape=(features,),
                rows=((0, features),),
                local_shape=(features,),
                split_over=(),
                own_heads=True,
                initial=1.0,
            )

        self.queries, self.keys = gain("q_norm"), gain("k_norm")

    def forward(self, fused: Tensor, heads: int, kv_heads: int) -> Tensor:
        """(batch, sequence, heads + 2 kv_heads, features) to the same; values are left as they are."""
        both, values = fused[:, :, : heads + kv_heads], fused[:, :, heads + kv_heads :]
        gains = torch.cat((self.queries().expand(heads, -1), self.keys().expand(kv_heads, -1)))
        normed = functional.rms_norm(both, (self.features,), None, self.epsilon) * gains
        return torch.cat((normed, values), dim=2)
