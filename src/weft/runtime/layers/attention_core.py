"""Attention between its projections: norms of queries and keys, and the core with window and soft cap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Softmax of scores times values; shapes (batch, heads, sequence, features), fewer heads of keys and values.

    Attributes:
        causal: a query sees no later key.
        window: keys that it sees at most, counted back from its own.
        scale: of scores; None: 1 / sqrt(features).
        cap: bound of scores; such a core is not PyTorch's fused one and keeps its scores.
    """

    causal: bool = True
    window: int | None = None
    scale: float | None = None
    cap: float | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, documents: Tensor | None = None) -> Tensor:
        """``documents``: shape (batch, sequence); a query sees keys of its own document only."""
        if self.cap is not None:
            return self._capped(queries, keys, values, documents, self.cap)
        masked = self.window is not None or documents is not None
        return functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self._seen(queries, documents) if masked else None,
            is_causal=self.causal and not masked,
            scale=self.scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )

    def _seen(self, queries: Tensor, documents: Tensor | None) -> Tensor:
        """Which keys (columns) each query sees, shape ([batch, 1,] sequence, sequence)."""
        size = queries.shape[2]
        seen = torch.ones(size, size, dtype=torch.bool, device=queries.device)
        if self.causal:
            seen = seen.tril()
        if self.window is not None:
            seen = seen.triu(1 - self.window)
        if documents is None:
            return seen
        return (seen & (documents.unsqueeze(2) == documents.unsqueeze(1))).unsqueeze(1)

    def _capped(self, queries: Tensor, keys: Tensor, values: Tensor, documents: Tensor | None, cap: float) -> Tensor:
        batch, heads, size, features = queries.shape
        grouped = queries.reshape(batch, keys.shape[1], -1, size, features)
        scale = features**-0.5 if self.scale is None else self.scale
        scores = capped(grouped @ keys.unsqueeze(2).transpose(-1, -2) * scale, cap)
        hidden = ~self._seen(queries, documents)
        scores = scores.masked_fill(hidden if documents is None else hidden.unsqueeze(1), -torch.inf)
        wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
        mixed = scores.softmax(-1, dtype=wide).to(values.dtype) @ values.unsqueeze(2)
        return mixed.reshape(batch, heads, size, features)


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
