"""Attention with windows and soft caps: whole masks and FlexAttention's blocks against all scores."""

from __future__ import annotations

import pytest
import torch
from compare import worst
from torch.nn.attention.flex_attention import BlockMask

from weft.runtime.layers import attention
from weft.runtime.layers.attention import Core

TOKENS = 150
"""More than one block of FlexAttention."""


def whole(core, queries, keys, values):
    """From all scores."""
    keys, values = (part.repeat_interleave(queries.shape[1] // keys.shape[1], 1) for part in (keys, values))
    scores = queries @ keys.mT * (core.scale or queries.shape[-1] ** -0.5)
    if core.cap is not None:
        scores = core.cap * torch.tanh(scores / core.cap)
    every = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    hidden = every.triu(1)
    if core.window is not None:
        hidden = hidden | every.tril(-core.window)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values


CORES = {"window": Core(window=20, scale=0.3), "cap": Core(cap=1.5), "both": Core(window=20, cap=1.5)}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("features", [4, 16])
def test_a_core_is_a_softmax_of_all_scores(monkeypatch, name, blocks, features):
    """In blocks as GPUs compute it, not compiled."""
    core = CORES[name]
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(2, heads, TOKENS, features, dtype=torch.float64) for heads in (4, 2, 2))
    monkeypatch.setattr(attention, "_fused", lambda like: blocks)
    monkeypatch.setattr(attention, "_compiled", lambda function: function)
    seen = core.seen(TOKENS, queries)
    assert isinstance(seen, BlockMask) == blocks
    assert worst(core(queries, keys, values, seen), whole(core, queries, keys, values)) <= 1e-13


def test_a_plain_core_needs_no_mask():
    assert Core().seen(TOKENS, torch.empty(0)) is None
