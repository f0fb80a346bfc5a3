"""A decoder of plain torch.nn modules, trained on four ranks: x = 2, z = 2.

python examples/own_model.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.layout import Layout
from weft.runtime.convert.parallelize import parallelize
from weft.runtime.convert.roles import Head, Heads, Norm, Normal, Transposed, Vocabulary
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import holdings
from weft.runtime.layers.vocabulary import cross_entropy
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer
from weft.runtime.run.ranks import run_ranks

HIDDEN, HEADS, LAYERS, VOCABULARY, SEQUENCE, BATCH = 64, 4, 2, 128, 32, 8

PLAN = {
    "embedding": Vocabulary(),
    "blocks.*.norm1": Norm(),
    "blocks.*.norm2": Norm(),
    "blocks.*": Heads("heads"),
    "blocks.*.query": Normal(),
    "blocks.*.key": Normal(),
    "blocks.*.value": Normal(),
    "blocks.*.out": Transposed(),
    "blocks.*.up": Normal(),
    "blocks.*.down": Transposed(),
    "norm": Norm(),
    "head": Head(),
}
"""The role of every module that has parameters, and the attribute that is divided over x."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.norm1(hidden)
        queries, keys, values = (
            linear(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.down(functional.gelu(self.up(self.norm2(hidden))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(ids))))


def train(layout: Layout) -> None:
    """Ten steps on one rank of the grid."""
    torch.manual_seed(0)
    grid = Grid.of(layout)
    machine = Machine.of(grid)
    model = parallelize(Decoder(), machine, PLAN)
    flat = Flat(machine, model, holdings(model))
    optimizer = Optimizer(flat, AdamSettings(rate=1e-2))
    tokens = torch.arange(SEQUENCE + 1).repeat(BATCH, 1) + torch.arange(BATCH).unsqueeze(1)
    share = BATCH // layout.data_parallel
    first = grid.index("z", "data") * share
    ids, targets = tokens[first : first + share, :-1], tokens[first : first + share, 1:]
    for step in range(10):
        with flat.step(micro_batches=1, loss="mean"):
            logits = model(ids)
            loss = cross_entropy(machine, logits.flatten(0, 1), targets.flatten(), VOCABULARY).mean()
            loss.backward()
        optimizer.step()
        total = machine.collectives.all_reduce(loss.detach().view(1), "z", "data").wait() / layout.data_parallel
        if grid.rank == 0:
            print(f"step {step + 1}: loss {total.item():.4f}", flush=True)


if __name__ == "__main__":
    run_ranks(train, (Layout(x=2, z=2),), 4)
