"""Causal self-attention with heads split over x: multi-head or grouped-query, with or without rotation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from weft.model.spec import Attention
from weft.runtime.linear import Linear4D
from weft.runtime.machine import Machine


class Rotary(nn.Module):
    """Rotary positions (arXiv 2104.09864), halves rotated against each other as in Hugging Face's Llama."""

    def __init__(self, machine: Machine, features: int, positions: int, *, theta: float) -> None:
        super().__init__()
        half = torch.arange(0, features, 2, dtype=torch.float64) / features
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), theta**-half)
        both = torch.cat((angles, angles), dim=1).to(machine.grid.device)
        self.cosine: Tensor
        self.sine: Tensor
        self.register_buffer("cosine", both.cos().to(machine.precision.compute), persistent=False)
        self.register_buffer("sine", both.sin().to(machine.precision.compute), persistent=False)

    def forward(self, heads: Tensor) -> Tensor:
        """Rotate (batch, heads, sequence, features)."""
        first, second = heads.chunk(2, dim=-1)
        sequence = heads.shape[-2]
        turned = torch.cat((-second, first), dim=-1)
        return heads * self.cosine[:sequence] + turned * self.sine[:sequence]


class Attention4D(nn.Module):
    """Rows (tokens [/ x], hidden / y) to rows of the same shape; each rank computes its heads.

    Args:
        sequence: tokens of one sequence.
        rotary: positions for queries and keys, or None.
        recompute_core: scores are computed again in the backward pass instead of kept.

    Raises:
        BadInput: heads or key-value heads cannot be divided over x.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        hidden: int,
        attention: Attention,
        *,
        sequence: int,
        rotary: Rotary | None,
        recompute_core: bool = False,
    ) -> None:
        super().__init__()
        grid, features = machine.grid, attention.head_dim
        self.heads = grid.divided(attention.heads, "x", what=f"{name}: heads")
        self.kv_heads = grid.divided(attention.kv_heads, "x", what=f"{name}: kv_heads")
        self.features, self.sequence, self.rotary = features, sequence, rotary
        self.recompute_core = recompute_core
        keys = attention.kv_heads * features
        self.qkv = Linear4D(
            machine,
            f"{name}.qkv",
            hidden,
            (attention.heads * features, keys, keys),
            bias=attention.qkv_bias,
        )
        self.proj = Linear4D(
            machine,
            f"{name}.proj",
            attention.heads * features,
            hidden,
            kind="transposed",
            bias=attention.out_bias,
        )

    def forward(self, rows: Tensor) -> Tensor:
        fused = self.qkv(rows).view(-1, self.sequence, self.heads + 2 * self.kv_heads, self.features)
        queries, keys, values = fused.transpose(1, 2).split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.rotary is not None:
            queries, keys = self.rotary(queries), self.rotary(keys)
        if self.recompute_core:
            mixed = checkpoint(_core, queries, keys, values, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = _core(queries, keys, values)
        return self.proj(mixed.transpose(1, 2).reshape(-1, self.heads * self.features))  # type: ignore[no-any-return]


def _core(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    grouped = queries.shape[1] != keys.shape[1]
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
