"""When the scheduler starts and waits, that every mode gives the same bits, and what exceptions leave."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import models
import pytest
import torch
from compare import Run, pieces, worst
from hypothesis import given
from hypothesis import strategies as st
from models import OFF, layout_of
from ranks import grid_of
from torch import nn
from torch.nn import functional

from weft.layout.spec import Layout
from weft.layout.step import GATHERS_AHEAD, SCATTER_USES
from weft.runtime.core.collectives import Collectives
from weft.runtime.core.machine import Machine, Overlap, Precision
from weft.runtime.core.parameters import holdings
from weft.runtime.layers.linear import Linear4D
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer

MODES = {
    "off": OFF,
    "OAR": OFF | {"overlap_tensor": "backward"},
    "OAR, ORS": {"overlap_gather": False},
    "OAR, ORS, OAG": {},
    "as on a device": {},
}
ALL = ("OAR, ORS, OAG", "as on a device")


# The scheduler alone ------------------------------------------------------------------------------


class Started:
    """A collective of a played weight: its result is what was true when it was started."""

    def __init__(self, weight, what, result):
        self.weight, self.what, self.result, self.waits = weight, what, result, 0
        self.under_way, self.breaks = not weight.alone, False
        weight.events.append(f"start {what} {weight.name}")
        weight.started.append(self)

    def wait(self):
        self.waits += 1
        self.weight.events.append(f"wait {self.what} {self.weight.name}")
        if self.breaks:
            raise ConnectionError
        return self.result


class Weight:
    """What the scheduler sees of a weight; ``version`` grows with each update."""

    def __init__(self, name, events, started):
        self.name, self.events, self.started = name, events, started
        self.version, self.gradients, self.alone = 0, [], False

    def start_gather(self):
        return Started(self, "gather", self.version)

    def start_scatter(self, gradient):
        return Started(self, "scatter", gradient)

    def accumulate(self, shard):
        self.gradients.append(shard)


class Stage:
    """Some weights under one scheduler."""

    def __init__(self, count, **overlaps):
        self.events, self.started = [], []
        self.weights = [Weight(chr(ord("a") + i), self.events, self.started) for i in range(count)]
        self.overlap = Overlap(Layout(**overlaps))

    def forward(self, order):
        for index in order:
            self.events.append(f"use {self.overlap.gather(self.weights[index])}{self.weights[index].name}")

    def told(self):
        told = list(self.events)
        self.events.clear()
        return told


def test_what_needs_no_gathering_is_cast_once_a_step():
    """In micro-batches, forward and backward; anew in the next step, and ahead of its use."""
    stage = Stage(3)
    for weight in stage.weights[:2]:
        weight.alone = True
    for version in range(2):
        for weight in stage.weights:
            weight.version = version
        with stage.overlap.step():
            stage.forward([0, 1, 2, 2, 1, 0] * 2)
        told = stage.told()
        assert [told.count(f"start gather {name}") for name in "abc"] == [1, 1, 4]
        assert [event for event in told if event.startswith("use")] == [
            f"use {version}{name}" for name in "abccba" * 2
        ]
    assert told[:3] == ["start gather a", "start gather b", "start gather c"]


def test_gradients_that_nobody_else_has_are_added_at_once():
    """z = 1: buckets are summed over data as early as they can be."""
    stage = Stage(2)
    stage.weights[0].alone = True
    with stage.overlap.step():
        for weight in (stage.weights[1], stage.weights[0]):
            stage.overlap.scatter(weight, 1)
        assert [weight.gradients for weight in stage.weights] == [[1], []]
    assert [weight.gradients for weight in stage.weights] == [[1], [1]]


def test_a_weight_that_was_not_expected_ends_the_gathering_ahead():
    count = GATHERS_AHEAD + 2
    stage, last = Stage(count), count - 1
    with stage.overlap.step():
        stage.forward(range(count))
    stage.told()
    with stage.overlap.step():
        stage.forward([0, last, 1])
    first, *others, missed = (weight.name for weight in stage.weights)
    ahead = [f"start gather {name}" for name in (first, *others)]
    assert stage.told() == [
        *(*ahead, f"wait gather {first}", f"use 0{first}"),
        *(f"start gather {missed}", f"wait gather {missed}", f"use 0{missed}"),
        *(f"wait gather {others[0]}", f"use 0{others[0]}"),
        *(f"wait gather {name}" for name in others[1:]),
    ], "what is there already is used, and what nobody asked for is waited for"
    with stage.overlap.step():
        stage.forward([0])
    assert f"start gather {missed}" in stage.told(), "the order is that of the last step"


def test_outside_a_step_all_is_done_at_once():
    stage = Stage(2)
    stage.forward([0, 0])
    stage.overlap.scatter(stage.weights[1], 1)
    assert stage.weights[1].gradients == [1]
    assert stage.told() == ["start gather a", "wait gather a", "use 0a"] * 2 + ["start scatter b", "wait scatter b"]


def test_a_step_within_a_step_is_a_mistake():
    overlap = Overlap(Layout())
    with overlap.step(), pytest.raises(RuntimeError, match="twice"), overlap.step():
        pass
    with overlap.step():
        pass


def test_a_collective_that_fails_hides_no_exception_and_no_other_collective():
    stage = Stage(3)
    with stage.overlap.step():
        stage.forward([0, 1, 2])

    def broken(own):
        """A step in which every collective under way fails, and what is raised before."""
        with stage.overlap.step():
            stage.forward([0])
            for weight in stage.weights:
                stage.overlap.scatter(weight, 1)
            for started in stage.started:
                started.breaks = not started.waits
            if own is not None:
                raise own

    with pytest.raises(ZeroDivisionError):
        broken(ZeroDivisionError())
    assert all(started.waits for started in stage.started)
    with pytest.raises(ConnectionError):
        broken(None)
    assert all(started.waits for started in stage.started)
    with stage.overlap.step():
        stage.forward([0])


ACTIONS = st.lists(st.tuples(st.sampled_from(["gather", "scatter"]), st.integers(0, 4)), max_size=30)


@given(
    st.fixed_dictionaries({"overlap_reduce": st.booleans(), "overlap_gather": st.booleans()}),
    st.lists(st.tuples(ACTIONS, st.booleans()), min_size=1, max_size=4),
)
def test_any_order_gets_what_it_asks_for(overlaps, steps):
    """Weights of the present step, every gradient once and in order, and nothing under way after a step,
    also one that fails."""
    stage = Stage(5, **overlaps)
    for number, (actions, fails) in enumerate(steps):
        for weight in stage.weights:
            weight.version, weight.gradients = number, []
        stage.started.clear()
        given = [[] for _ in stage.weights]
        try:
            with stage.overlap.step():
                for position, (what, index) in enumerate(actions):
                    weight = stage.weights[index]
                    if what == "gather":
                        assert stage.overlap.gather(weight) == number
                    else:
                        stage.overlap.scatter(weight, position)
                        given[index].append(position)
                    waiting = [one for one in stage.started if one.what == "scatter" and not one.waits]
                    assert len(waiting) <= SCATTER_USES
                if fails:
                    raise KeyError
        except KeyError:
            assert fails
        else:
            assert [weight.gradients for weight in stage.weights] == given
        assert all(one.waits == 1 for one in stage.started)


# Eight ranks --------------------------------------------------------------------------------------


def digest(run):
    """Of all gradients and values that this rank owns."""
    found = sha256()
    for values_of in (lambda leaf: leaf.grad, lambda leaf: leaf.detach()):
        for name, _, values in pieces(run.flat, values_of):
            found.update(name.encode() + values.contiguous().numpy().tobytes())
    return found.hexdigest()


def trained(layout, model, modes, count):
    """Losses, and digests of gradients and of what they make of the weights, of some steps in each mode."""
    found = {}
    for mode in modes:
        run = Run(replace(layout, **MODES[mode]), model)
        if (
            mode == "as on a device"
        ):  # gradients are summed in a queue beside computation; that of the CPU does nothing
            run.machine.overlap._reducing._device = torch.cpu
        optimizer = Optimizer(run.flat, AdamSettings(rate=1e-2))
        found[mode] = []
        for step in range(count):
            loss = run.step(seed=step)
            optimizer.step()
            found[mode].append((loss, digest(run)))
    return found


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    ("model", "grid", "switches"),
    [
        (models.gpt(layers=1), (2, 2, 2, 1), {}),
        (models.gpt(layers=1), (2, 1, 2, 2), {"micro_batches": 1, "sequence_parallel": True, "recompute": "full"}),
        (models.gpt(tied=True), (1, 1, 4, 2), {"recompute": "selective", "zero": 0}),
        (models.gpt(), (1, 2, 2, 2), {"recompute": "full", "recompute_layers": 1}),
        (models.llama(), (4, 1, 2, 1), {"sequence_parallel": True}),
        (models.gpt(tied=True), (2, 2, 2, 1), {"micro_batches": 1, "recompute": "full"}),
        (models.llama(), (2, 2, 1, 2), {"micro_batches": 1}),
        (models.gpt(tied=True), (8, 1, 1, 1), {"micro_batches": 1}),
        (models.llama(), (1, 1, 8, 1), {"micro_batches": 1}),
        (models.llama(), (1, 1, 1, 8), {}),
    ],
)
def test_every_mode_gives_the_same_bits(ranks, model, grid, switches):
    """Weights change between the steps: one that was kept too long would show."""
    for told in ranks.run(trained, layout_of(grid, **switches), model, list(MODES), 3):
        assert all(steps == told["off"] for steps in told.values())
        assert len({loss for loss, _ in told["off"]}) == 3
        assert len({hashed for _, hashed in told["off"]}) == 3


class Watched(Collectives):
    """Remembers what it started."""

    def __init__(self, grid):
        super().__init__(grid)
        self.started = []

    def _issued(self, *arguments):
        self.started.append(super()._issued(*arguments))
        return self.started[-1]

    def under_way(self):
        """How many collectives nobody has waited for."""
        return sum(pending._work is not None for pending in self.started)


# Modules in another order -------------------------------------------------------------------------


class Pairs(nn.Module):
    """Pairs of a normal and a transposed layer, which run in the order that is asked for."""

    def __init__(self, machine, count, hidden):
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.Sequential(
                Linear4D(machine, f"{i}.up", hidden, 2 * hidden),
                nn.Tanh(),
                Linear4D(machine, f"{i}.down", 2 * hidden, hidden, kind="transposed"),
            )
            for i in range(count)
        )

    def forward(self, rows, order):
        for index in order:
            rows = rows + self.pairs[index](rows)
        return rows


def plain_pairs(whole, rows, order):
    """The same in one piece."""
    for i in order:
        up = functional.linear(rows, whole[f"{i}.up.weight"], whole[f"{i}.up.bias"]).tanh()
        rows = rows + functional.linear(up, whole[f"{i}.down.weight"], whole[f"{i}.down.bias"])
    return rows


def value(name, shape, offsets, sizes):
    """Any numbers, the same on every grid."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    values = torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
    return values[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))]


def wandering(layout, count, orders):
    """The worst gradient of each step, and how many collectives it left under way."""
    hidden, tokens = 16, 16
    grid = grid_of(layout)
    machine = Machine.of(grid, precision=Precision.of("fp64"))
    machine = replace(machine, collectives=Watched(grid))
    model = Pairs(machine, count, hidden)
    held = holdings(model)
    whole = {}
    for holding in held:
        holding.fill(value)
        shape = holding.placement.shape
        whole[holding.name] = value(holding.name, shape, (0,) * len(shape), shape).requires_grad_()
    flat = Flat(machine, model, held)
    rows = value("rows", (tokens, hidden), (0, 0), (tokens, hidden))
    own = rows.chunk(grid.size("z", "data"))[grid.index("z", "data")]
    own = own.chunk(grid.size("y"), dim=1)[grid.index("y")].contiguous()
    found = []
    for order in orders:
        with flat.step(1, loss="sum"):
            model(own, order).square().sum().backward()
        for parameter in whole.values():
            parameter.grad = torch.zeros_like(parameter)
        plain_pairs(whole, rows, order).square().sum().backward()
        errors = [worst(part, whole[name].grad[at]) for name, at, part in pieces(flat, lambda leaf: leaf.grad)]
        found.append((max(errors), machine.collectives.under_way()))
    return found


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("grid", [(2, 2, 2, 1), pytest.param((1, 2, 2, 2), marks=pytest.mark.slow)], ids=str)
def test_modules_in_any_order(ranks, grid, mode):
    """As declared, backwards, otherwise in each step, and leaving some out."""
    orders = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1], [2, 0], [1], [0, 1, 2]]
    found = ranks.run(wandering, layout_of(grid, **MODES[mode]), 3, orders)
    print(mode, max(error for rank in found for error, _ in rank))
    assert all(error <= 1e-12 for rank in found for error, _ in rank)
    assert not any(left for rank in found for _, left in rank)


# Exceptions ---------------------------------------------------------------------------------------


class Stumbled(Exception):
    """Raised within a step."""


def hurt(layout, places):
    """For each place where a step fails: what was under way then and what is left, and whether the next step
    is bit by bit what it would have been."""
    model = models.gpt(layers=1)
    clean = Run(layout, model)
    wanted = [(clean.step(seed=step), digest(clean)) for step in range(2)]
    run = Run(layout, model, collectives=Watched)
    assert (run.step(), digest(run)) == wanted[0]
    block, busy = run.stages[0].blocks[0], []

    def stumble(*_):
        busy.append(run.machine.collectives.under_way())
        raise Stumbled

    found = {}
    for place in places:
        if place == "forward":
            hook = block.feed_forward.register_forward_hook(stumble)
        else:
            hook = block.attention.register_forward_hook(lambda *given: given[2].register_hook(stumble) and None)
        with pytest.raises(Stumbled):
            run.step(seed=1)
        left = run.machine.collectives.under_way()
        hook.remove()
        found[place] = busy.pop(), left, (run.step(seed=1), digest(run)) == wanted[1]
    return found


@pytest.mark.parametrize("mode", [*ALL, pytest.param("off", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("grid", "switches"),
    [
        ((2, 2, 2, 1), {"micro_batches": 1}),
        ((2, 1, 2, 2), {"micro_batches": 1, "recompute": "full", "zero": 0}),
        pytest.param((1, 1, 4, 2), {"micro_batches": 2}, marks=pytest.mark.slow),
    ],
)
def test_an_exception_leaves_nothing_behind(ranks, grid, switches, mode):
    """In the forward pass weights are under way, in the backward pass gradients."""
    for rank in ranks.run(hurt, layout_of(grid, **switches, **MODES[mode]), ["forward", "backward"]):
        for busy, left, same in rank.values():
            assert (busy > 0) == (mode != "off")
            assert left == 0
            assert same
