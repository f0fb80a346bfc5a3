"""Plain models on one process, and a rank's part: outputs, gradients, clipping and states to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from compare import pieces, worst
from ranks import grid_of
from torch import Tensor, nn
from torch.nn import functional

from weft.layout.spec import Layout
from weft.runtime.convert.parallelize import easy_plan, gather_state_dict, load_state_dict, parallelize
from weft.runtime.convert.roles import Normal, Transposed
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings, share
from weft.runtime.run.flat import Flat

CLIP = 1e-3
EVERY_ROW = ("x", "y", "z", "data")
Pairs = Iterator[tuple[str, Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A plain model, its plan (None: easy mode), and the axes over which it takes and gives features."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    plan: Mapping[str, Any] | None = None
    over: tuple[str, str] = ("y", "x")
    vocabulary: int = 0

    def model(self, dtype: torch.dtype, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = self.make()
            for parameter in made.parameters():
                nn.init.normal_(parameter, std=max(parameter[0].numel(), 4) ** -0.5)
        return made.to(dtype)


class Solved:
    """One process: outputs and gradients, and gradients after clipping."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(1)
        model = case.model(dtype)
        if case.vocabulary:
            self.given = torch.randint(case.vocabulary, case.shape, generator=generator)
        else:
            self.given = torch.randn(case.shape, generator=generator, dtype=dtype).requires_grad_()
        out = model(self.given)
        self.slope = torch.randn(out.shape, generator=generator, dtype=dtype)
        self.slope /= (out.numel() / out.shape[1]) ** 0.5
        out.backward(self.slope)
        self.out, self.state = out.detach(), model.state_dict()
        self.gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
        self.norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        self.clipped = {name: one.grad for name, one in model.named_parameters()}


solved = lru_cache(Solved)


class Part:
    """One rank's part of a model, with what trains it."""

    def __init__(self, layout: Layout, case: Case, precision: str = "fp64") -> None:
        self.machine = Machine.of(grid_of(layout), precision=Precision.of(precision))
        self.case, self.grid = case, self.machine.grid
        dtype = self.machine.precision.master
        self.whole = solved(case, dtype)
        plain = case.model(dtype)
        plan = easy_plan(plain) if case.plan is None else case.plan
        self.model = parallelize(plain, self.machine, plan)
        self.flat = Flat(self.machine, self.model, holdings(self.model))

    def rows_of(self, whole: Tensor, axis: str) -> Tensor:
        """This rank's rows, and its features where they are split over an axis."""
        if self.case.plan is None:
            return whole[self._own(len(whole), *EVERY_ROW)]
        own = whole[self._own(len(whole), "z", "data")]
        return own if own.ndim == 1 else own[:, self._own(whole.shape[1], axis)]

    def _own(self, size: int, *axes: str) -> slice:
        return slice(*share(size, self.grid.size(*axes), self.grid.index(*axes)))

    def step(self) -> tuple[Tensor, Tensor]:
        """Output and input gradient of a pass both ways; the parameters' gradients are in ``flat``."""
        given = self.rows_of(self.whole.given, self.case.over[0]).detach().contiguous()
        if not self.case.vocabulary:
            given.requires_grad_()
        with self.flat.step(1, loss="sum"):
            out = self.model(given)
            out.backward(self.rows_of(self.whole.slope, self.case.over[1]))
        return out.detach(), given.grad

    def gradients(self, whole: Mapping[str, Tensor]) -> Pairs:
        """This rank's gradients and the same parts of the whole ones."""
        for name, window, values in pieces(self.flat, lambda leaf: leaf.grad):
            gradient = whole[name].flatten(1) if whole[name].ndim > 2 else whole[name]
            yield name, values, gradient[window]


def compared(layout: Layout, case: Case, precision: str = "fp64") -> Pairs:
    """What this rank computes, in the second step of two, and the same part of the whole, by name."""
    part = Part(layout, case, precision)
    part.step()
    out, slope = part.step()
    whole = part.whole
    yield "output", out, part.rows_of(whole.out, case.over[1])
    if not case.vocabulary:
        yield "input", slope, part.rows_of(whole.given.grad, case.over[0])
    yield from part.gradients(whole.gradients)
    yield "norm", part.flat.clip(CLIP), whole.norm.view(1)
    for name, *pair in part.gradients(whole.clipped):
        yield f"{name}, clipped", *pair


def errors(layout: Layout, case: str | Case, precision: str = "fp64"):
    """The worst of each tensor."""
    found: dict[str, float] = {}
    for name, *pair in compared(layout, CASES[case] if isinstance(case, str) else case, precision):
        found[name] = max(found.get(name, 0.0), worst(*pair))
    return found


def assert_states(layout: Layout, case: Case) -> None:
    """Plain states come back, and others are loaded."""
    part = Part(layout, case)
    first, other = part.whole.state, case.model(torch.float64, seed=2).state_dict()
    assert_equal(gather_state_dict(part.model, part.flat), first)
    load_state_dict(part.model, other)
    assert_equal(gather_state_dict(part.model, part.flat), other)


def assert_equal(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert torch.equal(found[name], values), name


# Models --------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """A block of an encoder and its classifier, in plain modules."""

    def __init__(self, vocabulary: int = 40, hidden: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embedding, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(6, hidden)
        self.start = nn.Parameter(torch.zeros(1, 1, hidden))
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids) + self.positions.weight[: ids.shape[1]] + self.start
        heads = self.qkv(self.norm1(hidden)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(hidden + self.down(functional.gelu(self.up(self.norm2(hidden)))))


class Tied(Attention):
    """With one table for tokens and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight


def linear(inputs: int, outputs: int, *, bias: bool) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, outputs, bias=bias))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(24, 64), nn.ReLU(inplace=True), nn.LayerNorm(64), nn.Linear(64, 16), nn.Linear(16, 16)
    )


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.GELU(),
        nn.Conv2d(16, 8, 2, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(72, 8),
    )


def convolved(inputs: int, outputs: int, kernel: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(inputs, outputs, kernel, **options))


def chain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 8, 3), nn.Tanh())


def classifier() -> nn.Module:
    """A flattened image's features are split as its channels are."""
    return nn.Sequential(nn.Conv2d(8, 16, 2, stride=2), nn.Flatten(), nn.Linear(144, 24))


SKEWED = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
EASY = ("norm, easy", "mlp, easy", "attention, easy", "tied, easy", "images, easy")
CONVOLUTIONS = ("normal", "transposed, skewed", "patches, no bias", "chain", "classifier")
CASES = {
    "norm, easy": Case(make=lambda: nn.Sequential(nn.LayerNorm(24)), shape=(16, 24)),
    "mlp, easy": Case(make=mlp, shape=(16, 24)),
    "attention, easy": Case(make=Attention, shape=(16, 6), vocabulary=40),
    "tied, easy": Case(make=Tied, shape=(8, 6), vocabulary=40),
    "images, easy": Case(make=images, shape=(16, 8, 6, 6)),
    "normal": Case(make=convolved(8, 16, 3, padding=1), shape=(16, 8, 5, 7), plan={"0": Normal()}),
    "transposed, skewed": Case(
        make=convolved(16, 8, (3, 2), **SKEWED), shape=(8, 16, 6, 5), plan={"0": Transposed()}, over=("x", "y")
    ),
    "patches, no bias": Case(make=convolved(8, 16, 4, stride=4, bias=False), shape=(8, 8, 9, 8), plan={"0": Normal()}),
    "chain": Case(make=chain, shape=(8, 8, 5, 5), plan={"0": Normal(), "2": Transposed()}, over=("y", "y")),
    "classifier": Case(make=classifier, shape=(8, 8, 6, 6), plan={"0": Normal(), "2": Transposed()}, over=("y", "y")),
}
