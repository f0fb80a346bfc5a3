"""When the scheduler starts and waits, that every mode gives the same bits, and what exceptions leave."""

from __future__ import annotations

from hashlib import sha256

import models
import pytest
import torch
from compare import Run, pieces
from hypothesis import given
from hypothesis import strategies as st
from models import OFF, layout_of
from ranks import on_ranks

from weft.layout.spec import Layout
from weft.layout.step import SCATTER_USES
from weft.runtime.core.collectives import Collectives
from weft.runtime.core.machine import Overlap
from weft.runtime.run.optimizer import AdamSettings, Optimizer

MODES = {
    "off": OFF,
    "OAR": OFF | {"overlap_tensor": "backward"},
    "OAR, ORS": {"overlap_gather": False},
    "OAR, ORS, OAG": {},
    "as on a device": {},
}


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
@on_ranks
def test_every_mode_gives_the_same_bits(model, grid, switches):
    """Weights change between the steps: one that was kept too long would show."""
    found = {}
    for mode, overlap in MODES.items():
        run = Run(layout_of(grid, **switches, **overlap), model)
        if (
            mode == "as on a device"
        ):  # gradients are summed in a queue beside computation; that of the CPU does nothing
            run.machine.overlap._reducing._device = torch.cpu
        optimizer = Optimizer(run.flat, AdamSettings(rate=1e-2))
        found[mode] = []
        for step in range(3):
            loss = run.step(seed=step)
            optimizer.step()
            found[mode].append((loss, digest(run)))
        assert found[mode] == found["off"]
    assert len({loss for loss, _ in found["off"]}) == 3
    assert len({hashed for _, hashed in found["off"]}) == 3


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


# Exceptions ---------------------------------------------------------------------------------------


class Stumbled(Exception):
    """Raised within a step."""


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("mode", ["OAR, ORS, OAG", "as on a device", "off"])
@pytest.mark.parametrize(
    ("grid", "switches"),
    [
        ((2, 2, 2, 1), {"micro_batches": 1}),
        ((2, 1, 2, 2), {"micro_batches": 1, "recompute": "full", "zero": 0}),
        ((1, 1, 4, 2), {"micro_batches": 2}),
    ],
)
@on_ranks
def test_an_exception_leaves_nothing_behind(grid, switches, mode):
    """In the forward pass weights are under way, in the backward pass gradients; the next step is bit by bit what it
    would have been."""
    layout, model = layout_of(grid, **switches, **MODES[mode]), models.gpt(layers=1)
    clean = Run(layout, model)
    wanted = [(clean.step(seed=step), digest(clean)) for step in range(2)]
    run = Run(layout, model, collectives=Watched)
    assert (run.step(), digest(run)) == wanted[0]
    block, busy = run.stages[0].blocks[0], []

    def stumble(*_):
        busy.append(run.machine.collectives.under_way())
        raise Stumbled

    for place in ("forward", "backward"):
        if place == "forward":
            hook = block.feed_forward.register_forward_hook(stumble)
        else:
            hook = block.attention.register_forward_hook(lambda *given: given[2].register_hook(stumble) and None)
        with pytest.raises(Stumbled):
            run.step(seed=1)
        hook.remove()
        assert (busy.pop() > 0) == (mode != "off")
        assert run.machine.collectives.under_way() == 0
        assert (run.step(seed=1), digest(run)) == wanted[1]
