"""The same decoders in plain PyTorch on one process: the oracle of everything that the grid computes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.model.spec import Model
from weft.runtime.core.parameters import Initial
from weft.runtime.layers.decoder import Details
from weft.runtime.run.data import Batches
from weft.runtime.run.optimizer import AdamSettings

Parameters = dict[str, Tensor]


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Whole parameters by Weft's names."""
    found: dict[str, tuple[int, ...]] = {"embedding.weight": (model.vocab, model.hidden)}
    if model.positions:
        found["positions"] = (model.positions, model.hidden)
    kinds, order = model.kinds, model.block_sequence()
    for index, kind in enumerate(order):
        block = kinds[kind]
        for linear in block.linears():
            found[f"blocks.{index}.{linear.name}.weight"] = (linear.copies * linear.outputs, linear.inputs)
            if linear.bias:
                found[f"blocks.{index}.{linear.name}.bias"] = (linear.outputs,)
        if block.attention.head_norms:
            found[f"blocks.{index}.q_norm.weight"] = found[f"blocks.{index}.k_norm.weight"] = (
                block.attention.head_dim,
            )
        for norm in ("norm1", "norm2", "norm3", "norm4")[: block.norms]:
            found[f"blocks.{index}.{norm}.weight"] = (block.hidden,)
            if block.norm_bias:
                found[f"blocks.{index}.{norm}.bias"] = (block.hidden,)
    if model.final_norm:
        found["norm.weight"] = (model.hidden,)
        if model.norm_bias:
            found["norm.bias"] = (model.hidden,)
    if not model.tied_embeddings:
        found["head.weight"] = (model.vocab, model.hidden)
    if model.head_bias:
        found["head.bias"] = (model.vocab,)
    return found


def random_parameters(model: Model, dtype: torch.dtype, seed: int = 0) -> Parameters:
    """Values that make every part matter."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes(model).items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        scale = 1 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.3
        offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        found[name] = (values * scale + offset).to(dtype).requires_grad_()
    return found


def logits(parameters: Parameters, model: Model, ids: Tensor, details: Details | None = None) -> Tensor:
    """Logits (batch, sequence, vocabulary)."""
    details = details or Details()
    rows = functional.embedding(ids, parameters["embedding.weight"]) * (details.embedding_scale or 1.0)
    if model.positions:
        rows = rows + parameters["positions"][: ids.shape[1]]
    kinds, order = model.kinds, model.block_sequence()
    for index, kind in enumerate(order):
        rows = block(parameters, f"blocks.{index}", kinds[kind], rows, details)
    if model.final_norm:
        rows = norm(parameters, "norm", rows, details)
    table = parameters["embedding.weight" if model.tied_embeddings else "head.weight"]
    return soft_capped(functional.linear(rows, table, parameters.get("head.bias")), details.logit_cap)


def soft_capped(values: Tensor, cap: float | None) -> Tensor:
    return values if cap is None else cap * (values / cap).tanh()


def block(parameters: Parameters, name: str, kind, rows: Tensor, details: Details) -> Tensor:
    """One block, plainly."""

    def linear(which: str, values: Tensor) -> Tensor:
        weight, bias = parameters[f"{name}.{which}.weight"], parameters.get(f"{name}.{which}.bias")
        return functional.linear(values, weight, bias)

    attention = kind.attention
    width = attention.head_dim
    batch, sequence, _ = rows.shape
    fused = linear("qkv", norm(parameters, f"{name}.norm1", rows, details))
    sizes = [attention.heads * width, attention.kv_heads * width, attention.kv_heads * width]
    queries, keys, values = (
        part.view(batch, sequence, -1, width).transpose(1, 2) for part in fused.split(sizes, dim=-1)
    )
    if attention.head_norms:
        queries, keys = (
            norm(parameters, f"{name}.{which}", heads, details)
            for which, heads in (("q_norm", queries), ("k_norm", keys))
        )
    if attention.rotary:
        queries, keys = rotate(queries, details), rotate(keys, details)
    repeats = attention.heads // attention.kv_heads
    keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
    scores = queries @ keys.transpose(-1, -2) * (details.query_scale or width**-0.5)
    apart = torch.arange(sequence)[:, None] - torch.arange(sequence)
    hidden = (apart < 0) | (apart >= (attention.window or sequence))
    mixed = soft_capped(scores, details.score_cap).masked_fill(hidden, -math.inf).softmax(-1) @ values
    added = linear("proj", mixed.transpose(1, 2).reshape(batch, sequence, -1))
    rows = rows + (added if kind.norms == 2 else norm(parameters, f"{name}.norm3", added, details))
    if kind.moe is not None:
        return rows + experts(parameters, name, kind.moe, norm(parameters, f"{name}.norm2", rows, details), details)
    up = linear("fc1", norm(parameters, f"{name}.norm2", rows, details))
    if kind.feed_forward.gated:
        gate, value = up.chunk(2, dim=-1)
        up = functional.silu(gate) * value
    else:
        up = functional.gelu(up)
    added = linear("fc2", up)
    return rows + (added if kind.norms == 2 else norm(parameters, f"{name}.norm4", added, details))


def experts(parameters: Parameters, name: str, moe, rows: Tensor, details: Details) -> Tensor:
    """Every expert on every token, those that the router does not choose with a weight of 0."""
    chances = functional.linear(rows, parameters[f"{name}.router.weight"]).softmax(-1)
    best, chosen = chances.topk(moe.top_k)
    weights = torch.zeros_like(chances).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
    load = (weights > 0).to(rows.dtype).mean(1, keepdim=True) * moe.experts / moe.top_k
    balances.append(details.balance * (load * chances).sum(-1).mean())
    first, second = (parameters[f"{name}.expert.{which}.weight"].unflatten(0, (moe.experts, -1)) for which in FC)
    mixed = torch.zeros_like(rows)
    for index in range(moe.experts):
        mixed = mixed + weights[..., index, None] * _ahead(rows, first[index], second[index])
    if moe.shared is not None:
        mixed = mixed + _ahead(rows, *(parameters[f"{name}.shared_expert.{which}.weight"] for which in FC))
    return mixed


FC = ("fc1", "fc2")
balances: list[Tensor] = []
"""Of each layer of experts in the forward passes since it was cleared."""


def _ahead(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    gate, value = functional.linear(rows, first).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate) * value, second)


def norm(parameters: Parameters, name: str, rows: Tensor, details: Details) -> Tensor:
    """LayerNorm where there is a bias, else RMSNorm."""
    gain, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    if bias is not None:
        centred = rows - rows.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + details.norm_epsilon).sqrt() * gain + bias
    return rows / (rows.square().mean(-1, keepdim=True) + details.norm_epsilon).sqrt() * gain


def rotate(heads: Tensor, details: Details) -> Tensor:
    """Rotary positions as complex numbers."""
    sequence, width = heads.shape[-2:]
    frequency = details.rotary_theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(sequence, dtype=torch.float64)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.complex(heads[..., : width // 2].double(), heads[..., width // 2 :].double()) * turn
    return torch.cat((pairs.real, pairs.imag), dim=-1).to(heads.dtype)


def loss(parameters: Parameters, model: Model, ids: Tensor, targets: Tensor, details: Details | None = None) -> Tensor:
    """Mean cross-entropy of all tokens."""
    return functional.cross_entropy(logits(parameters, model, ids, details).flatten(0, 1), targets.reshape(-1))


def initial_parameters(model: Model, seed: int) -> Parameters:
    """Those that Weft's sessions begin with, in fp64."""
    whole = Initial(model, seed)
    return {
        name: whole(name, shape, (0,) * len(shape), shape).double().requires_grad_()
        for name, shape in shapes(model).items()
    }


def trained(
    model: Model, batches: Batches, adam: AdamSettings, *, seed: int, steps: int
) -> tuple[list[tuple[float, float]], Parameters]:
    """Losses and gradient norms of steps on whole batches by PyTorch's AdamW, and the last parameters."""
    parameters = initial_parameters(model, seed)
    decayed = [name for name in parameters if parameters[name].ndim == 2]
    groups = [
        {"params": [parameters[name] for name in decayed], "weight_decay": adam.weight_decay},
        {"params": [parameters[name] for name in parameters if name not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=adam.betas, eps=adam.epsilon)
    found = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(adam, step)
        optimizer.zero_grad()
        balances.clear()
        mean = loss(parameters, model, *batches.batch(step, range(batches.rows)))
        torch.stack((mean, *balances)).sum().backward()
        assert adam.clip is not None
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), adam.clip)
        optimizer.step()
        found.append((float(mean.detach()), float(norm)))
    return found, parameters


def rate(adam: AdamSettings, step: int) -> float:
    """A line from 0 up to the rate after the warm-up, then half a cosine down to a tenth of it."""
    if step < adam.warmup:
        return float(np.interp(step + 1, [0, adam.warmup], [0.0, adam.rate]))
    if adam.steps == 0:
        return adam.rate
    turn = min(step - adam.warmup, adam.steps - adam.warmup) / (adam.steps - adam.warmup)
    return 0.1 * adam.rate + 0.9 * adam.rate * math.cos(math.pi * turn / 2) ** 2
