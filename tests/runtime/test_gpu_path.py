"""The code that GPUs run, on a device that is no CPU and that nobody has (``fake_gpu``)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

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


@pytest.fixture(scope="module")
def found():
    asked = "".join(json.dumps(one) + "\n" for one in STEPS.values())
    program = Path(__file__).with_name("fake_gpu.py")
    done = subprocess.run([sys.executable, program], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(STEPS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_stays_on_its_device_and_waits_for_no_value(found, name):
    assert found[name]["on_cpu"] == []


@pytest.mark.parametrize("name", STEPS)
def test_products_and_collectives_are_in_their_formats(found, name):
    half = STEPS[name]["precision"] == "bf16"
    router = {"float32"} if name.startswith("experts") else set()
    assert set(found[name]["products"]) == {"bfloat16" if half else "float32"} | router
    wide = {"LayerNorm over y": {"float64"}, "experts cut": {"int32", "int64"}}.get(name, set())
    assert set(found[name]["collectives"]) == ({"bfloat16", "float32"} if half else {"float32"}) | wide


@pytest.mark.parametrize("name", STEPS)
def test_fp64_is_for_a_number_a_token_alone(found, name):
    computed = {one for one in found[name]["wide"] if not one.startswith(("device", "allreduce", "div", "select"))}
    assert all(one.endswith("of 1 dimensions") for one in computed)
    assert bool(computed) == (name == "LayerNorm over y")
