"""Calculon's three files there and back, and what they cannot say."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.interop.layouts import layouts

import weft
from weft.cluster import load, read_calibration, resolve
from weft.cluster.calculon import system_cluster
from weft.codec import decode
from weft.errors import BadInput, NothingFeasible, Unsupported
from weft.interop import calculon
from weft.interop.launch import launch_arguments
from weft.layout.spec import Layout, PipelineSchedule, TensorOverlap
from weft.model.calculon import Application, application_model, model_application
from weft.model.resolve import RecipeChanges, resolve_job

APPLICATION = {
    "hidden": 6144,
    "feedforward": 24576,
    "seq_size": 2048,
    "attn_heads": 64,
    "attn_size": 96,
    "num_blocks": 48,
}
"""models/megatron-22B.json."""
EXECUTION: dict[str, Any] = {
    "num_procs": 64,
    "tensor_par": 8,
    "pipeline_par": 4,
    "data_par": 2,
    "tensor_par_net": 0,
    "pipeline_par_net": 1,
    "data_par_net": 1,
    "batch_size": 64,
    "microbatch_size": 4,
    "datatype": "float16",
    "fused_activation": True,
    "attention_type": "multihead",
    "activation_recompute": "attn_only",
    "pipeline_interleaving": 3,
    "optimizer_sharding": True,
    "tensor_par_comm_type": "rs_ag",
    "tensor_par_overlap": "ring",
    "seq_par_ag_redo": True,
    "data_par_overlap": True,
    "weight_offload": False,
    "activations_offload": False,
    "optimizer_offload": False,
    "training": True,
}
SYSTEM: dict[str, Any] = {
    "matrix": {"float16": {"tflops": 312, "gflops_efficiency": [[128, 0.95], [0, 0.1]]}},
    "vector": {"float16": {"tflops": 78, "gflops_efficiency": [[0, 0.5]]}},
    "mem1": {"GiB": 80, "GBps": 2048, "MB_efficiency": [[100, 0.9], [0, 0.3]]},
    "mem2": {"GiB": 512, "GBps": 32, "MB_efficiency": [[0, 0.95]]},
    "processing_mode": "no_overlap",
    "networks": [
        {
            "bandwidth": 300,
            "efficiency": 0.65,
            "size": 8,
            "latency": 0.00001,
            "ops": {"p2p": [1.0, None], "reduce_scatter": [1, -1], "all_gather": [1, -1], "all_reduce": [2.0, -1]},
            "must_be_filled": True,
            "processor_usage": 0.15,
        },
        {
            "bandwidth": 25,
            "efficiency": 0.9,
            "size": 65536,
            "latency": 0.00002,
            "ops": {"p2p": [1.0, None], "reduce_scatter": [1, 0], "all_gather": [1, 0], "all_reduce": [1.0, 0]},
            "must_be_filled": False,
            "processor_usage": 0.02,
        },
    ],
}
"""With the figures of systems/a100_80g.json."""

JOB = resolve_job("megatron-1t", RecipeChanges(global_batch=64, precision="fp16"))
sizes = st.integers(1, 10**6)


@given(
    st.builds(
        Application,
        hidden=sizes,
        feedforward=sizes,
        seq_size=sizes,
        attn_heads=sizes,
        attn_size=sizes,
        num_blocks=st.integers(1, 1000),
    )
)
def test_applications_come_back(application: Application) -> None:
    model = application_model(application, "some")
    assert model_application(model, application.seq_size) == (asdict(application), ())


def test_an_application_has_calculons_parameters() -> None:
    """Its Application.num_parameters: equation 2 of arXiv 2104.04473, with 51,200 rows of the embedding."""
    a = decode(Application, APPLICATION, "here")
    width = a.attn_heads * a.attn_size
    block = 2 * a.hidden * a.feedforward + 4 * a.hidden * width + a.hidden + a.feedforward
    block += 3 * width + a.hidden + 4 * a.hidden
    tables = (51200 + a.seq_size) * a.hidden
    final_norm = 2 * a.hidden
    assert application_model(a, "some").parameters == a.num_blocks * block + tables + final_norm


def test_what_an_application_cannot_say() -> None:
    document, notes = model_application(resolve_job("llama-3.1-8b").model, 4096)
    assert document["feedforward"] == 3 * 14336 // 2
    assert len(notes) == 2
    for name in ("deepseek-v3", "mixtral-8x7b"):
        with pytest.raises(Unsupported, match="experts"):
            model_application(resolve_job(name).model, 4096)


LAYOUTS = layouts(
    z=(1,),
    data=(1, 2, 4),
    context=(1,),
    micro_batch=(1, 2, 4),
    virtual_stages=(1, 3),
    zero=(0, 1),
    overlap_tensor=(TensorOverlap.NONE, TensorOverlap.FULL),
)


@given(LAYOUTS)
def test_layouts_come_back(layout: Layout) -> None:
    """All but switches that act on axes of one rank, which Calculon refuses to hold."""
    schedule = PipelineSchedule.INTERLEAVED if layout.virtual_stages > 1 else PipelineSchedule.PLAIN
    many = layout.data > 1
    layout = replace(
        layout,
        schedule=schedule,
        zero=layout.zero if many else 0,
        sequence_parallel=layout.sequence_parallel and layout.x > 1,
        overlap_tensor=layout.overlap_tensor if layout.x > 1 else TensorOverlap.NONE,
        overlap_reduce=layout.overlap_reduce and many,
        overlap_gather=layout.overlap_reduce and many,
    )
    written = calculon.write(JOB, load("a100-80gb-128"), layout)
    read = calculon.read(written.text, where="here")
    assert (read.layout, read.world, read.global_batch, read.precision) == (layout, layout.world, 64, "fp16")


def test_an_execution_comes_back() -> None:
    read = calculon.read(json.dumps(EXECUTION), where="here")
    cluster = system_cluster(SYSTEM, 64, "a100_80g", where="here")
    written = calculon.write(JOB, cluster, read.layout)
    assert json.loads(written.text) == EXECUTION


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_procs": 63}, "make up 64"),
        ({"training": False}, "inference"),
        ({"weight_offload": True}, "weight_offload"),
        ({"datatype": "int4"}, "int4"),
        ({"tensor_par": 0}, "greater than or equal to 1"),
        ({"extra": 1}, "not a known field"),
    ],
)
def test_executions_that_mean_nothing_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        calculon.read(json.dumps(EXECUTION | change), where="here")


def test_a_system_has_calculons_figures() -> None:
    cluster = system_cluster(SYSTEM, 64, "a100_80g", where="here")
    chip = cluster.accelerator
    assert (chip.fp16_flops, chip.memory_bytes, chip.memory_Bps, chip.host_Bps) == (312e12, 80 * 2**30, 2048e9, 32e9)
    assert [tier.size for tier in cluster.tiers] == [8, 8]
    assert [tier.bandwidth_Bps for tier in cluster.tiers] == [300e9, 25e9]
    assert [tier.in_network_reduction for tier in cluster.tiers] == [False, True]


def test_the_three_files_make_an_estimate(tmp_path: Path) -> None:
    """A system's count is the execution's; its efficiencies are a calibration."""
    for name, document in (("app", APPLICATION), ("exe", EXECUTION), ("a100_80g", SYSTEM)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    system = str(tmp_path / "a100_80g.json")
    found = weft.estimate(tmp_path / "app.json", system, run=tmp_path / "exe.json", calibration=system)
    assert (found.job.recipe.sequence, found.job.recipe.global_batch, found.cluster.count) == (2048, 64, 64)
    constants = read_calibration(system, "a100-80gb")
    assert (constants.gemm_efficiency, constants.scale_up_efficiency, constants.collective_s) == (0.95, 0.65, 1e-5)
    assert resolve(f"{system}:16").tiers[1].size == 2
    for wrong, problem in ((system, "does not say how many"), (f"{system}:12", "not a multiple")):
        with pytest.raises(BadInput, match=problem):
            resolve(wrong)


def test_tools_of_launch() -> None:
    cluster, layout = load("a100-80gb-64"), Layout(x=8, data=8)
    for tool, field in (("calculon", "num_procs"), ("calculon-application", "hidden")):
        assert field in json.loads(launch_arguments(tool, JOB, cluster, layout).text)
    with pytest.raises(NothingFeasible, match="experts"):
        launch_arguments("calculon-application", resolve_job("deepseek-v3"), cluster, layout)
