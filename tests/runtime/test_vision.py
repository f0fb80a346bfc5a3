"""The vision transformer of ``examples``: it learns, on every grid alike, in constant memory."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if find_spec("sklearn") is None:
    pytest.skip("the example reads scikit-learn's digits", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from compare import worst  # noqa: E402
from ranks import grid_of  # noqa: E402
from torch.nn import functional  # noqa: E402

from weft.layout.spec import Layout  # noqa: E402
from weft.model.spec import Attention  # noqa: E402
from weft.runtime.core.machine import Machine, Precision  # noqa: E402
from weft.runtime.core.parameters import holdings, share  # noqa: E402
from weft.runtime.layers.decoder import Attention4D  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
LEARNT = 0.1
"""AxoNN's own bound after 10 epochs (axonn.md, 2.4)."""


def losses(*options: str, epochs: int) -> list[float]:
    """Mean losses of the epochs, as the example prints them."""
    command = [sys.executable, str(EXAMPLES / "vision.py"), *options, "--epochs", str(epochs)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=one_thread)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^epoch (\d+): loss (\S+)$", done.stdout, re.M)
    assert [int(number) for number, _ in found] == list(range(1, epochs + 1))
    return [float(loss) for _, loss in found]


@pytest.mark.slow
def test_it_learns_on_one_rank_and_in_stages():
    alone = losses(epochs=4)
    assert alone[-1] < LEARNT < alone[0]
    assert losses("--pipeline=2", "--data=2", epochs=4) == pytest.approx(alone, rel=2e-3, abs=1e-4)


@pytest.mark.slow
def test_stages_that_do_not_divide_the_blocks_are_one_line():
    command = [sys.executable, str(EXAMPLES / "vision.py"), "--pipeline", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert re.fullmatch(r"Error: layout: blocks = 2 cannot be divided over pipeline=3 -- .*\n", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("--pipeline=2",), ("--data=2",), ("--pipeline=2", "--data=2"), ("--data=4",), ("--z=2", "--y=2")],
    ids=str,
)
def test_it_learns_within_ten_epochs(options):
    assert losses(*options, epochs=10)[-1] < LEARNT


# Eight ranks ---------------------------------------------------------------------------------------


def held() -> int:
    """Bytes of all tensors of this process."""
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, torch.nn.Parameter) and not one.is_meta:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def train(layout):
    """Losses of eight steps, and the bytes that two ranks hold after the third one and the last."""
    sys.path.insert(0, str(EXAMPLES))
    training = import_module("vision").Training(layout)
    sys.path.remove(str(EXAMPLES))
    found, memory = [], []
    for number in range(8):
        loss = training.machine.collectives.all_reduce(training.step(number), "z", "data").wait()
        found.append(float(loss))
        if number in (2, 7) and dist.get_rank() in (0, 7):
            memory.append(held())
    return found, memory


LAYOUTS = (Layout(x=2, y=2, z=2), Layout(pipeline=2, data=4), Layout(pipeline=2, x=2, y=2))


@pytest.mark.slow
def test_losses_are_those_of_every_grid_and_memory_is_constant(ranks):
    wanted = None
    for layout in LAYOUTS:
        for found, memory in ranks.run(train, layout):
            if any(found):
                wanted = wanted or found
                assert found == pytest.approx(wanted, rel=1e-4)
            assert len(set(memory)) < 2, (layout, memory)
    assert wanted[-1] < wanted[0]


# Attention of all tokens to all --------------------------------------------------------------------


def attended(layout):
    """Errors of this rank's rows, and of their gradients."""
    machine = Machine.of(grid_of(layout), precision=Precision.of("fp64"))
    heads, width, sequence, rows = 8, 4, 6, 48
    attention = Attention(heads=heads, kv_heads=heads, head_dim=width, qkv_bias=True, out_bias=True)
    layer = Attention4D(machine, "one", 32, attention, sequence=sequence, rotary=None, causal=False)
    generator = torch.Generator().manual_seed(0)

    def values(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64) / 32**0.5

    whole = {
        "one.qkv.weight": values(96, 32),
        "one.qkv.bias": values(96),
        "one.proj.weight": values(32, 32),
        "one.proj.bias": values(32),
    }
    given, slope = values(rows, 32).requires_grad_(), values(rows, 32)
    fused = functional.linear(given, whole["one.qkv.weight"], whole["one.qkv.bias"])
    parts = fused.view(-1, sequence, 3, heads, width).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(rows, 32)
    wanted = functional.linear(mixed, whole["one.proj.weight"], whole["one.proj.bias"])
    wanted.backward(slope)
    for holding in holdings(layer):
        holding.fill(
            lambda name, _, offsets, sizes: whole[name][
                tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))
            ]
        )
    grid = machine.grid

    def part(values):
        own = slice(*share(rows, grid.size("z", "data"), grid.index("z", "data")))
        return values[own, slice(*share(32, grid.size("y"), grid.index("y")))].contiguous()

    own = part(given.detach()).requires_grad_()
    found = layer(own)
    found.backward(part(slope))
    return worst(found.detach(), part(wanted.detach())), worst(own.grad, part(given.grad))


@pytest.mark.parametrize(
    "degrees",
    [
        {"x": 2, "y": 2, "z": 2},
        *(pytest.param(degrees, marks=pytest.mark.slow) for degrees in ({"x": 8}, {"y": 2, "data": 4})),
    ],
    ids=str,
)
def test_attention_that_is_not_causal(ranks, degrees):
    assert max(max(errors) for errors in ranks.run(attended, Layout(**degrees))) <= 1e-13
