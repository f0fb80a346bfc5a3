"""What ranks do in ``test_peer_suite``: importable in processes of any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import ranks
import torch
import torch.distributed as dist
from cases import CASES, CLIP, CONVOLUTIONS, EASY, Case, Part, assert_states, compared, linear
from models import OFF
from torch import nn
from torch.nn import functional

from weft.layout.spec import Layout
from weft.runtime.checkpoints import checkpoint
from weft.runtime.convert.parallelize import gather_state_dict
from weft.runtime.convert.roles import Normal, Transposed, Vocabulary
from weft.runtime.run.optimizer import AdamSettings, Optimizer

SIZES = [(32, 64), (16, 128), (2, 256)]
"""Rows and features; two rows are two for each rank that has rows of its own."""
ADAM = AdamSettings(rate=1e-2, clip=CLIP)
STEPS, MICRO_BATCHES, BATCH = 3, 2, 16


def grids(world: int) -> list[tuple[int, int, int, int]]:
    """All (x, y, z, data) of a number of ranks."""
    degrees = [degree for degree in (1, 2, 4, 8) if degree <= world]
    return [grid for grid in product(degrees, repeat=4) if grid[0] * grid[1] * grid[2] * grid[3] == world]


def layouts(some: list[tuple[int, int, int, int]]) -> list[Layout]:
    return [Layout(x=x, y=y, z=z, data=data) for x, y, z, data in some]


def linears(layout: Layout) -> Iterator[Case]:
    """Normal, transposed and easy layers of all sizes, with bias and without."""
    for (rows, hidden), bias in product(SIZES, (True, False)):
        make = linear(hidden, 2 * hidden, bias=bias)
        for plan, over, apart in (
            ({"0": Normal()}, ("y", "x"), layout.dp),
            ({"0": Transposed()}, ("x", "y"), layout.dp),
            (None, ("y", "x"), layout.world),
        ):
            count = rows if rows % apart == 0 else rows * apart
            yield Case(make=make, shape=(count, hidden), plan=plan, over=over)


def check_linears(some: list[tuple[int, int, int, int]]) -> None:
    """Items 1 to 4 and 8: outputs, states, gradients, clipping; overlaps off and on."""
    for layout in layouts(some):
        for index, case in enumerate(linears(layout)):
            for one in (replace(layout, **OFF), layout):
                for _, found, want in compared(one, case, "fp32"):
                    torch.testing.assert_close(found, want)
            if index < 3:
                assert_states(layout, case)


def check_convolutions(some: list[tuple[int, int, int, int]]) -> None:
    """Item 6; gradients that sum over thousands of pixels are compared by their size where it is above 1."""
    for layout, case in product(layouts(some), CONVOLUTIONS):
        for one in (replace(layout, **OFF), layout):
            for name, found, want in compared(one, CASES[case], "fp32"):
                if name != "norm" and found.numel():
                    size = max(float(want.square().mean().sqrt()), 1.0)
                    assert float((found - want).square().mean().sqrt()) < 1e-6 * size, (layout, case, name)
        assert_states(layout, CASES[case])


def check_models(some: list[tuple[int, int, int, int]]) -> None:
    """Items 1 to 4 of whole models in easy mode."""
    for layout, case, overlaps in product(layouts(some), EASY, (OFF, {})):
        for _, found, want in compared(replace(layout, **overlaps), CASES[case], "fp32"):
            torch.testing.assert_close(found, want)


def check_words(grid: tuple[int, int, int, int], vocabulary: int) -> None:
    """Item 5."""
    case = Case(
        make=lambda: nn.Sequential(nn.Embedding(vocabulary, 8, padding_idx=1)),
        shape=(64,),
        plan={"0": Vocabulary()},
        over=("", "y"),
        vocabulary=4,
    )
    (layout,) = layouts([grid])
    for _, found, want in compared(layout, case, "fp32"):
        torch.testing.assert_close(found, want)
    assert_states(layout, case)


def everything(world: int, some: list[tuple[int, int, int, int]]) -> None:
    """On a machine of ``world`` ranks."""
    assert dist.get_world_size() == world
    torch.set_num_threads(1)
    ranks._share_groups()
    check_linears(some)
    check_convolutions(some)
    check_models(some)


# Training in easy mode ------------------------------------------------------------------------------


def words() -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(40, (STEPS, BATCH, 7), generator=generator)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A share of the mean loss over the global batch."""
    losses = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    return losses * len(batch) / BATCH


def train_serially() -> tuple[list[float], dict[str, torch.Tensor]]:
    model = CASES["attention, easy"].model(torch.float64)
    groups = [
        {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": ADAM.weight_decay},
        {"params": [one for one in model.parameters() if one.ndim < 2], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=ADAM.rate, betas=ADAM.betas, eps=ADAM.epsilon)
    found = []
    for batch in words():
        adam.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        adam.step()
        found.append(loss.item())
    return found, model.state_dict()


def step(part: Part, optimizer: Optimizer, batch: torch.Tensor) -> float:
    """In micro-batches, with the weight cache."""
    total = torch.zeros(1, dtype=torch.float64)
    own = part.rows_of(batch, "")
    with part.flat.step(MICRO_BATCHES, loss="sum"):
        for rows in own.chunk(MICRO_BATCHES):
            loss = loss_of(part.model, rows)
            loss.backward()
            total += loss.detach()
    optimizer.step()
    return float(part.machine.collectives.all_reduce(total, "x", "y", "z", "data").wait())


def train_easily(folder: str) -> None:
    """Item 8: accumulation, fresh weights in the cache, a checkpoint that goes on on another grid."""
    wanted, state = train_serially()
    one, other = layouts([(2, 2, 1, 2), (1, 2, 4, 1)])
    part = Part(one, CASES["attention, easy"])
    optimizer = Optimizer(part.flat, ADAM)
    for number in range(STEPS):
        if number == STEPS - 1:
            checkpoint.save(f"{folder}/easy", optimizer.pieces(), {"updates": optimizer.updates})
            part = Part(other, CASES["attention, easy"])
            optimizer = Optimizer(part.flat, ADAM)
            optimizer.restored(checkpoint.load(f"{folder}/easy", optimizer.pieces())["updates"])
        assert abs(step(part, optimizer, words()[number]) - wanted[number]) < 1e-10
    found = gather_state_dict(part.model, part.flat)
    for name, values in state.items():
        torch.testing.assert_close(found[name], values, rtol=1e-8, atol=1e-8)
