"""torchtitan: setting names, recipes that parse, round trips of job files and a published preset."""

import ast
import tomllib
from dataclasses import replace
from math import prod
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.interop.layouts import layouts

from weft.interop import torchtitan
from weft.layout.spec import Layout
from weft.layout.stages import split_layers
from weft.model import catalogue
from weft.model.settings import flatten

JOB_FILE_NAMES = frozenset(
    Path(__file__).with_name("torchtitan_job_file_settings.txt").read_text(encoding="ascii").split()
)
"""Names in torchtitan v0.2.2, config/job_config.py."""

RECIPE_NAMES = frozenset(
    Path(__file__).with_name("torchtitan_recipe_settings.txt").read_text(encoding="ascii").split()
)
"""Names in torchtitan main (commit b5bcd76c), config/configs.py and trainer.py."""

LAYOUTS = layouts(
    expert=(1, 2),
    expert_tensor=(1, 2, 8),
    virtual_stages=(1, 1, 2, 4),
    schedule=("1f1b", "1f1b", "interleaved", "zbv"),
    overlap_reduce=(True,),
    overlap_gather=(True,),
    offload_activations=(False,),
)


def canonical(layout, moe):
    """The layout without switches that have no effect, or that torchtitan decides itself."""
    alone = layout.z == 1 and layout.data > 1 and layout.zero > 0
    return replace(
        layout,
        expert=layout.expert if moe else 1,
        expert_tensor=layout.expert_tensor if moe else 1,
        schedule=layout.schedule if layout.pipeline > 1 else "1f1b",
        zero=2 if alone else 0,
        sequence_parallel=layout.x > 1,
        overlap_tensor="full" if layout.overlap_tensor == "full" and layout.x > 1 else "none",
    )


@settings(max_examples=60)
@given(layout=LAYOUTS, model=st.sampled_from(("llama-3.1-8b", "deepseek-v2-lite", "llama-3.1-405b")))
def test_written_job_file_reads_back_as_the_same_layout(layout, model, cluster, job_for, expressed):
    job = job_for(layout, model)
    written = expressed(torchtitan.write_toml, job, cluster, layout)
    if not written:
        return
    assert set(flatten(tomllib.loads(written.text))) <= JOB_FILE_NAMES
    run = torchtitan.read(written.text)
    assert run.layout == canonical(layout, moe=model.startswith("deepseek"))
    assert (run.world, run.global_batch, run.sequence) == (layout.world, job.recipe.global_batch, 8192)
    assert run.model.runs == job.model.runs
    assert not run.ignored or set(run.ignored) <= {
        "compile.enable",
        "activation_checkpoint.selective_ac_option",
        "parallelism.context_parallel_rotate_method",
        "parallelism.expert_tensor_parallel_degree",
        "parallelism.expert_parallel_degree",
        "parallelism.enable_async_tensor_parallel",
        "parallelism.pipeline_parallel_first_stage_less_layers",
        "parallelism.pipeline_parallel_last_stage_less_layers",
        "training.mixed_precision_param",
    }


def assigned(text):
    """Names that a recipe sets on its configuration, with their values where they are literals."""
    function = ast.parse(text).body[-1]
    assert isinstance(function, ast.FunctionDef)
    found = {}
    for statement in function.body[1:-1]:
        name = ast.unparse(statement.targets[0]).removeprefix("config.")
        literal = isinstance(statement.value, ast.Constant)
        found[name] = statement.value.value if literal else ast.unparse(statement.value)
    return found


@settings(max_examples=40)
@given(
    layout=LAYOUTS,
    model=st.sampled_from(("llama-3.1-8b", "deepseek-v2-lite", "llama-3.1-405b")),
    precision=st.sampled_from(("bf16", "fp8", "mxfp8", "nvfp4", "fp16", "fp32")),
)
def test_recipes_are_python_with_known_names(layout, model, precision, cluster, job_for, expressed):
    written = expressed(torchtitan.write, job_for(layout, model, precision), cluster, layout)
    if not written:
        return
    assert precision != "fp16"
    values = assigned(written.text)
    assert set(values) <= RECIPE_NAMES
    degrees = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel")
    product = prod(values[f"parallelism.{name}_degree"] for name in (*degrees, "pipeline_parallel"))
    assert product == layout.world
    per_pass = values["training.num_tokens_per_microbatch_per_dp_rank"]
    passes = values["training.num_tokens_per_train_step"] / (per_pass * layout.dp)
    assert passes == 4
    assert values.get("parallelism.num_pp_microbatches", 4) == 4


def theirs(layers, stages, first, last):
    """torchtitan's own split: effective layers dealt to stages, ends lighter by their weights."""
    base, extra = divmod(layers + first + last, stages)
    counts = [base + (stage < extra) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


@given(st.integers(2, 130), st.integers(2, 32))
def test_stage_weights_give_the_planned_split(layers, chunks):
    if layers < chunks:
        return
    first, last, each = torchtitan.stage_weights(layers, chunks)
    planned = split_layers(layers, chunks)
    assert each == max(planned)
    if (-layers) % chunks <= 1 or ((-layers) % chunks == 2 and chunks > 2):
        assert theirs(layers, chunks, first, last) == planned
    else:
        assert sorted(theirs(layers, chunks, first, last)) == sorted(planned)


def test_every_flavor_has_the_shape_of_its_catalogue_model(cluster):
    for flavor in torchtitan.FLAVORS:
        assert torchtitan.find_flavor(catalogue.load(flavor.model).model) == flavor


PRESET = """
[model]
name = "llama3"
flavor = "405B"
converters = ["float8"]

[training]
local_batch_size = 2
seq_len = 8192

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1

[activation_checkpoint]
mode = "full"

[optimizer]
lr = 8e-5
"""


def test_preset_for_llama_405b_on_128_accelerators():
    run = torchtitan.read(PRESET, world=128)
    assert run.layout == Layout(
        x=8, z=16, zero=0, micro_batch=2, recompute="full", sequence_parallel=True, overlap_tensor="full"
    )
    assert (run.global_batch, run.sequence, run.precision) == (32, 8192, "fp8")
    assert run.model.layers == 126
    assert run.ignored == ("optimizer.lr",)
