from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cluster.calibration import calibration
from weft.estimation import estimate
from weft.validation.inputs import prepare
from weft.validation.summary import Predictor


@pytest.fixture
def several(make):
    return [
        prepare(make(**changes))
        for changes in (
            {},
            {"recompute": "selective", "sequence_parallel": True},
            {"gpus": 16, "tp": 8, "global_batch": 8},
            {"source": "torchtitan", "tp": 1, "zero": 3, "global_batch": 32},
        )
    ]


def test_as_single_estimates(several) -> None:
    found = Predictor(several).predict()
    for run, seconds in zip(several, found.seconds, strict=True):
        own = calibration(run.cluster.accelerator.name, run.stack.name)
        alone = estimate(run.job, run.cluster, [run.layout], own)[0]
        assert seconds == pytest.approx(alone.iteration_s)


def test_constants_by_accelerator_and_stack(several) -> None:
    asked = set()

    def slower(accelerator: str, stack: str):
        asked.add((accelerator, stack))
        return replace(calibration(accelerator, stack), gemm_efficiency=0.4)

    predictor = Predictor(several)
    assert (predictor.predict(slower).seconds > predictor.predict().seconds).all()
    assert asked == {("a100-80gb", "megatron-lm-2022"), ("a100-80gb", "torchtitan")}


def test_memory_as_the_run_states_it(several, make) -> None:
    several.append(prepare(make(notes="peak memory by nvidia-smi")))
    found = Predictor(several).predict()
    allocated, reserved, used = (
        estimate(run.job, run.cluster, [run.layout], calibration("a100-80gb", run.stack.name))[0]
        for run in (several[0], several[3], several[4])
    )
    parts, others = ({part.name: part.value for part in one.memory} for one in (allocated, reserved))
    reserve, outside = parts["reserve_bytes"], parts["communicators_bytes"]
    assert found.memory_bytes[0] == pytest.approx(allocated.memory_bytes - reserve - outside)
    assert found.memory_bytes[0] == pytest.approx(allocated.allocated_bytes)
    whole = reserved.memory_bytes - others["communicators_bytes"]
    assert found.memory_bytes[3] == pytest.approx(whole - calibration("a100-80gb").reserved_bytes)
    assert found.memory_bytes[4] == pytest.approx(used.memory_bytes)


def test_what_a_run_states_counts_over_the_software(make) -> None:
    """Graphs leave the host less to launch; runs that state it are not grouped with those that do not."""
    plain = {"source": "NVIDIA NeMo 26.02", "gpu": "DGX-B200", "model": "Qwen3_30B_a3B", "seq": 4096}
    shape = {"layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "ffn": 768, "vocab": None, "ep": 8}
    run = plain | shape | {"tp": 1, "zero": None, "micro_batch": 1, "global_batch": 64, "precision": "bf16"}
    words = ("no CUDA graphs", "CUDA graphs of whole iterations", "no CUDA graphs")
    eager, graphs, again = Predictor([prepare(make(**run, notes=one)) for one in words]).predict().seconds
    assert graphs < 0.99 * eager
    assert again == eager
