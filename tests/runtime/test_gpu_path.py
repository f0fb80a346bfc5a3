"""The code that GPUs run, on a device that is no CPU and that nobody has (``fake_gpu``)."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

STEPS = {
    "x, z and ZeRO-1": {"layout": "x=2,z=2,data=2,zero=1", "precision": "bf16", "model": "llama"},
    "LayerNorm over y": {"layout": "x=2,y=2", "precision": "bf16", "model": "gpt"},
    "tokens split": {"layout": "x=2,data=2,sequence_parallel=true", "precision": "fp32", "model": "gpt"},
    "sequences split": {"layout": "context=2,x=2", "precision": "bf16", "model": "llama"},
    "heads for tokens": {"layout": "context=2,data=2,context_method=ulysses", "precision": "bf16", "model": "llama"},
    "experts": {"layout": "z=2,data=2,expert=2", "precision": "bf16", "model": "mixture"},
    "experts cut": {"layout": "x=2,y=2,expert=2,expert_tensor=2", "precision": "bf16", "model": "mixture"},
    "no bubbles": {"layout": "pipeline=2,x=2,micro_batch=2,schedule=zb1p", "precision": "bf16", "model": "llama"},
    "a pipeline": {"layout": "pipeline=2,x=2,micro_batch=2", "precision": "bf16", "model": "llama"},
}


GATHERED = {"layout": "z=2,data=2,zero=1,micro_batch=2", "precision": "bf16", "model": "llama"}
CAST = {"layout": "x=2,data=2,micro_batch=2", "precision": "bf16", "model": "llama"}
QUEUES = {
    "gathered": GATHERED | {"forgets": None},
    "cast": CAST | {"forgets": None},
    "gathered before parameters are updated": GATHERED | {"forgets": "stream"},
    "gathered before it was cast": GATHERED | {"forgets": "begin"},
    "used before it is gathered": GATHERED | {"forgets": "collective"},
    "cast before parameters are updated": CAST | {"forgets": "stream"},
    "used before it is cast": CAST | {"forgets": "event"},
}
SLOW = {
    *("LayerNorm over y", "tokens split", "sequences split", "heads for tokens"),
    *("experts", "experts cut", "no bubbles", "a pipeline"),
    *(name for name, asked in QUEUES.items() if asked["forgets"] not in (None, "collective")),
}


def told(asked):
    """What the program says, by name."""
    lines = "".join(json.dumps(one) + "\n" for one in asked.values())
    program = Path(__file__).with_name("fake_gpu.py")
    done = subprocess.run([sys.executable, program], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(asked, map(json.loads, done.stdout.splitlines()), strict=True))


@cache
def said(slow):
    """What it says of the slow cases, or of the others."""
    return told({name: asked for name, asked in (STEPS | QUEUES).items() if (name in SLOW) == slow})


def of(name):
    return said(name in SLOW)[name]


def cases(names):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]


@pytest.mark.parametrize("name", cases(STEPS))
def test_a_step_stays_on_its_device_and_waits_for_no_value(name):
    assert of(name)["on_cpu"] == []


@pytest.mark.parametrize("name", cases(STEPS))
def test_products_and_collectives_are_in_their_formats(name):
    half = STEPS[name]["precision"] == "bf16"
    router = {"float32"} if name.startswith("experts") else set()
    assert set(of(name)["products"]) == {"bfloat16" if half else "float32"} | router
    wide = {"LayerNorm over y": {"float64"}, "experts cut": {"int32", "int64"}}.get(name, set())
    assert set(of(name)["collectives"]) == ({"bfloat16", "float32"} if half else {"float32"}) | wide


@pytest.mark.parametrize("name", cases(STEPS))
def test_fp64_is_for_a_number_a_token_alone(name):
    computed = {one for one in of(name)["wide"] if not one.startswith(("device", "allreduce", "div", "select"))}
    assert all(one.endswith("of 1 dimensions") for one in computed)
    assert bool(computed) == (name == "LayerNorm over y")


@pytest.mark.parametrize("name", cases(QUEUES))
def test_each_use_is_behind_what_it_needs(name):
    """Also memory that is given out again; and where one kind of wait is left out, the checker sees it."""
    races = of(name)["races"]
    assert bool(races) == (QUEUES[name]["forgets"] is not None), races


def test_weights_are_cast_beside_computation():
    """Two blocks of four matrices, embedding and head: once a step where nothing is gathered, else at each gather."""
    steps, matrices, micro_batches = 2, 10, 2
    assert of("cast")["ran"]["stream 1"] == steps * matrices
    gathers = matrices * 2 - 1
    both = 2  # the cast, and the buffer that is gathered into
    assert of("gathered")["ran"]["stream 1"] == steps * micro_batches * gathers * both
