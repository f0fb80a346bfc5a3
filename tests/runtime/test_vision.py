"""The vision transformer of ``examples``: it learns, on every grid alike, in constant memory."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from weft.errors import InDoubt
from weft.runtime import AdamSettings, prepare

if find_spec("sklearn") is None:
    pytest.skip("the example reads scikit-learn's digits", allow_module_level=True)

EXAMPLES = Path(__file__).parents[2] / "examples"
LEARNT = 0.1
"""AxoNN's own bound after 10 epochs (axonn.md, 2.4)."""


def losses(layout: str, world: int) -> list[float]:
    """Mean losses of the epochs, as the example prints them."""
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(world)] if world > 1 else []
    command = [sys.executable, *start, str(EXAMPLES / "vision.py"), layout]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=one_thread)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^epoch (\d+): loss (\S+)$", done.stdout, re.M)
    assert [int(number) for number, _ in found] == list(range(1, 11))
    return [float(loss) for _, loss in found]


@pytest.mark.slow
def test_it_learns_on_one_rank_and_in_stages():
    alone = losses("tp=1", 1)
    assert alone[-1] < LEARNT < alone[0]
    found = losses("pp=2,dp=2", 4)
    assert found[-1] < LEARNT
    assert found[:3] == pytest.approx(alone[:3], rel=2e-3)


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
    vision = import_module("vision")
    sys.path.remove(str(EXAMPLES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InDoubt)  # one channel is not cut
        _, step = prepare(vision.vision(), layout, optimizer=AdamSettings(rate=3e-3))
    batches = vision.batches(0)
    found, memory = [], []
    for number in range(8):
        found.append(step(batches[number]))
        if number in (2, 7) and dist.get_rank() in (0, 7):
            memory.append(held())
    return found, memory


LAYOUTS = ("tp=2,y=2,fsdp=2", "pp=2,dp=4", "pp=2,tp=2,y=2", "pp=4,dp=2")


@pytest.mark.slow
def test_losses_are_those_of_every_grid_and_memory_is_constant(ranks):
    wanted = None
    for layout in LAYOUTS:
        for found, memory in ranks.run(train, layout):
            wanted = wanted or found
            assert found == pytest.approx(wanted, rel=1e-4)
            assert len(set(memory)) < 2, (layout, memory)
    assert wanted[-1] < wanted[0]
