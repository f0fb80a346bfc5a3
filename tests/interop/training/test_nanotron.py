"""nanotron: setting names and the configuration's arithmetic."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.interop.training import nanotron
from weft.interop.training.launchers import LaunchArguments, NotExpressible
from weft.layout.spec import Layout, PipelineSchedule, Recompute, TensorOverlap

NAMES = frozenset(Path(__file__).with_name("nanotron_settings.txt").read_text(encoding="ascii").split())
"""Names in nanotron (commit 2411b022): src/nanotron/config."""

layouts = st.builds(
    Layout,
    x=st.sampled_from((1, 2, 8, 16)),
    z=st.sampled_from((1, 1, 1, 4)),
    data=st.sampled_from((1, 2, 6)),
    pipeline=st.sampled_from((1, 2, 4)),
    context=st.sampled_from((1, 2)),
    micro_batch=st.integers(1, 4),
    schedule=st.sampled_from(PipelineSchedule),
    zero=st.integers(0, 2),
    recompute=st.sampled_from(Recompute),
    sequence_parallel=st.booleans(),
    overlap_tensor=st.sampled_from(TensorOverlap),
)


def scalars(text):
    """Dotted names and texts of block-style YAML with two blanks of indentation."""
    found, path = {}, []
    for line in text.splitlines()[1:]:
        plain = line.replace("- ", "  ", 1) if line.lstrip().startswith("- ") else line
        depth = (len(plain) - len(plain.lstrip())) // 2
        name, colon, value = plain.strip().partition(":")
        assert colon
        path = [*path[:depth], name]
        if value:
            found[".".join(path)] = value.strip()
    return found


@given(layout=layouts)
def test_configuration_says_what_the_layout_says(layout, cluster, job_for):
    job = job_for(layout)
    written = nanotron.launch_arguments(job, cluster, layout)
    if isinstance(written, NotExpressible):
        assert written.reasons
        return
    values = scalars(written.text)
    assert set(values) == NAMES
    product = 1
    for axis in ("dp", "pp", "tp", "context_parallel_size"):
        product *= int(values[f"parallelism.{axis}"])
    assert product == layout.world
    share = int(values["tokens.micro_batch_size"]) * int(values["tokens.batch_accumulation_per_replica"])
    assert share * int(values["parallelism.dp"]) == job.recipe.global_batch
    assert values["optimizer.zero_stage"] == str(layout.zero)
    assert (values["parallelism.tp_mode"] == "REDUCE_SCATTER") == layout.sequence_parallel
    assert float(values["optimizer.optimizer_factory.adam_eps"]) == 1e-8


@pytest.mark.parametrize(
    ("layout", "model", "reason"),
    [
        (Layout(y=2), "llama-3.1-8b", "no launcher splits"),
        (Layout(z=2), "llama-3.1-8b", "shards the optimizer only"),
        (Layout(data=2, zero=2), "llama-3.1-8b", "shards the optimizer only"),
        (Layout(x=16), "llama-3.1-8b", "8 key-value heads"),
        (Layout(offload_activations=True), "llama-3.1-8b", "does not offload"),
        (Layout(context=2, context_method="ulysses"), "llama-3.1-8b", "ulysses"),
        (Layout(data=2), "deepseek-v2-lite", "one kind of block"),
    ],
)
def test_layouts_that_nanotron_cannot_run(layout, model, reason, cluster, job_for):
    refused = nanotron.launch_arguments(job_for(layout, model), cluster, layout)
    assert isinstance(refused, NotExpressible)
    assert reason in refused.reason


def test_command_sets_the_required_environment(cluster, job_for):
    layout = Layout(x=8, data=2, sequence_parallel=True)
    written = nanotron.launch_arguments(job_for(layout), cluster, layout)
    assert isinstance(written, LaunchArguments)
    assert written.command.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 2 --nproc-per-node 8 ")
