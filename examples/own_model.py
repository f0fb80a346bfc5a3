"""A decoder of plain torch.nn modules on four ranks: torchrun --nproc-per-node 4 examples/own_model.py"""

import torch
from torch import nn

from weft.runtime import AdamSettings, prepare


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(hidden)
        heads = (of(normed).unflatten(-1, (-1, 16)).transpose(1, 2) for of in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.down(nn.functional.gelu(self.up(self.norm2(hidden))))


def decoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(128, 64), Block(), Block(), nn.LayerNorm(64), nn.Linear(64, 128))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(33).repeat(8, 1) + torch.arange(8).unsqueeze(1)
    return tokens[:, :-1], tokens[:, 1:]


if __name__ == "__main__":
    adam = AdamSettings(rate=1e-2, weight_decay=0.0, clip=None)
    model, step = prepare(decoder(), "tp=2,dp=2", optimizer=adam)
    for number in range(10):
        loss = step(batch())
        if step.machine.grid.rank == 0:
            print(f"step {number + 1}: loss {loss:.4f}", flush=True)
