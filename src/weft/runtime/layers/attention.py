"""Self-attention with heads split over x: multi-head or grouped-query, with or without rotation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from weft.model.spec import Attention
from weft.runtime.core.machine import Machine
from weft.runtime.layers.fused import split_heads
from weft.runtime.layers.linear import Linear4D


class Rotary(nn.Module):
    """Cosines and sines of rotary positions (arXiv 2104.09864), shape (positions, features / 2) each."""

    def __init__(self, machine: Machine, features: int, positions: int, *, theta: float) -> None:
        super().__init__()
        half = torch.arange(0, features, 2, dtype=torch.float64) / features
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), theta**-half)
        device, compute = machine.grid.device, machine.precision.compute
        self.cosine: Tensor
        self.sine: Tensor
        self.register_buffer("cosine", angles.cos().to(device, compute), persistent=False)
        self.register_buffer("sine", angles.sin().to(device, compute), persistent=False)

    def forward(self) -> tuple[Tensor, Tensor]:
        return self.cosine, self.sine


class Attention4D(nn.Module):
    """Rows (tokens [/ x], hidden / y) to rows of the same shape; each rank computes its heads.

    Args:
        sequence: tokens of one sequence.
        rotary: positions for queries and keys, or None.
        causal: a token attends to itself and to earlier ones of its sequence, else to all.
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
        causal: bool = True,
        recompute_core: bool = False,
    ) -> None:
        super().__init__()
        grid, features = machine.grid, attention.head_dim
        self.heads = grid.divided(attention.heads, "x", what=f"{name}: heads")
        self.kv_heads = grid.divided(attention.kv_heads, "x", what=f"{name}: kv_heads")
        self.features, self.sequence, self.rotary = features, sequence, rotary
        self.causal, self.recompute_core = causal, recompute_core
        keys = attention.kv_heads * features
        self.qkv = Linear4D(
            machine, f"{name}.qkv", hidden, (attention.heads * features, keys, keys), bias=attention.qkv_bias
        )
        self.proj = Linear4D(
            machine, f"{name}.proj", attention.heads * features, hidden, kind="transposed", bias=attention.out_bias
        )

    def forward(self, rows: Tensor) -> Tensor:
        fused = self.qkv(rows).view(-1, self.sequence, self.heads + 2 * self.kv_heads, self.features)
        angles = None if self.rotary is None else self.rotary()
        queries, keys, values = split_heads(fused, self.heads, self.kv_heads, angles)
        if self.recompute_core:
            mixed = checkpoint(
                _core, queries, keys, values, self.causal, use_reentrant=False, preserve_rng_state=False
            )
        else:
            mixed = _core(queries, keys, values, self.causal)
        return self.proj(mixed.transpose(1, 2).reshape(-1, self.heads * self.features))  # type: ignore[no-any-return]


def _core(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
    grouped = queries.shape[1] != keys.shape[1]
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal, enable_gqa=grouped)
