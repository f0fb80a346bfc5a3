"""Megatron-LM: argument names, splits, round trips and real command lines."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.interop.layouts import layouts

import weft
from weft.errors import BadInput, Unsupported
from weft.interop import megatron
from weft.interop.launch import read_run
from weft.interop.megatron import pattern
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule
from weft.layout.stages import split_layers
from weft.model import catalogue
from weft.model.job import PRECISIONS, Job, Recipe
from weft.model.megatron_args import read_megatron_job
from weft.model.resolve import RecipeChanges

TABLE = Path(__file__).with_name("megatron_arguments.txt")
"""Argument names of Megatron-LM's main branch (commit d98e8a64), from its parsers and dataclasses."""
KNOWN = frozenset(TABLE.read_text(encoding="ascii").split())
TORCHRUN = {"--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"}

LAYOUTS = layouts(
    expert=(1, 2),
    expert_tensor=(1, 2),
    virtual_stages=(1, 1, 2, 3),
    schedule=tuple(PipelineSchedule)[:2],
    recompute_layers=(0, 6),
    context_method=tuple(ContextMethod),
    order=(AXES, megatron.PIPELINE_BEFORE_DATA),
)


def canonical(layout, moe):
    """The layout without switches that have no effect, or that Megatron-LM decides itself."""
    inner = [axis for axis in layout.order if getattr(layout, axis) > 1]
    same = [axis for axis in AXES if getattr(layout, axis) > 1] == inner
    gathers = layout.zero > 0 or layout.z > 1
    return replace(
        layout,
        expert=layout.expert if moe else 1,
        expert_tensor=layout.expert_tensor if moe else 1,
        schedule="interleaved" if layout.virtual_stages > 1 else "1f1b",
        zero=0 if layout.z > 1 and layout.data == 1 else layout.zero,
        recompute_layers=layout.recompute_layers if layout.recompute == "full" else 0,
        sequence_parallel=layout.sequence_parallel and layout.x > 1,
        context_method=layout.context_method if layout.context > 1 else "ring",
        overlap_tensor="full" if layout.overlap_tensor == "full" and layout.x > 1 else "backward",
        overlap_gather=layout.overlap_gather if gathers else True,
        order=AXES if same else megatron.PIPELINE_BEFORE_DATA,
    )


@given(layout=LAYOUTS, precision=st.sampled_from(PRECISIONS), name=st.sampled_from(catalogue.names()))
def test_every_argument_is_in_megatron(layout, precision, name, cluster, expressed):
    recipe = Recipe(global_batch=4 * layout.micro_batch * layout.dp, sequence=512, precision=precision)
    written = expressed(megatron.write, Job(model=catalogue.load(name).model, recipe=recipe), cluster, layout)
    if written:
        flags = set(re.findall(r"--[a-z][\w-]*", written.text))
        assert flags - TORCHRUN <= KNOWN
        assert flags & {"--num-layers", "--tensor-model-parallel-size"}


@pytest.mark.parametrize("name", catalogue.names())
def test_model_reads_back_equal(name, cluster, expressed):
    """Up to the vocabulary, which Megatron-LM pads to a multiple of 128, and what a note says."""
    model = catalogue.load(name).model
    job = Job(model=model, recipe=Recipe(global_batch=8, sequence=1024))
    written = expressed(megatron.write, job, cluster, Layout())
    if not written:
        assert model.state_spaces or any(attention.chunked or attention.gated for attention in model.attentions)
        return
    read = read_megatron_job(written.text).model
    padded = -(-model.vocab // 128) * 128
    assert (read.vocab, read.positions, read.tied_embeddings) == (padded, model.positions, model.tied_embeddings)
    assert (f"--rotary-base {model.rope.base:.0f}" in written.text) if model.rope else not model.attentions[0].rotary
    assert not model.rope or read.rope == model.rope
    if not any("own layer spec" in note or "no argument" in note or "window" in note for note in written.notes):
        assert read.runs == model.runs


@given(
    layout=LAYOUTS,
    name=st.sampled_from(("llama-3.1-405b", "deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-3-175b")),
    precision=st.sampled_from(("fp16", "bf16", "fp8", "mxfp8", "nvfp4")),
    attention=st.sampled_from(("flash", "unfused")),
    dropout=st.booleans(),
    narrow=st.booleans(),
)
def test_a_launch_file_reads_back_as_the_whole_plan(
    layout, name, precision, attention, dropout, narrow, cluster, expressed
):
    """Layout, shape and every field of the recipe; the vocabulary as Megatron-LM pads it."""
    model = catalogue.load(name).model
    recipe = Recipe(
        global_batch=4 * layout.micro_batch * layout.dp,
        sequence=2048,
        precision=precision,
        attention=attention,
        dropout=dropout,
        gradient_bytes=2 if narrow else 4,
    )
    written = expressed(megatron.write, Job(model=model, recipe=recipe), cluster, layout)
    if not written:
        return
    run = megatron.read(written.text)
    assert run.world == layout.world
    assert run.changes() == RecipeChanges(**{field.name: getattr(recipe, field.name) for field in fields(Recipe)})
    moe = any(kind.moe for kind in model.kinds)
    assert run.layout == canonical(layout, moe=moe)
    assert run.model.runs == model.runs
    unit = 128 * layout.x
    assert run.model.vocab == -(-model.vocab // unit) * unit
    assert written.written_for in written.text


SMALL = (
    "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --kv-channels 2 --micro-batch-size 1"
    " --global-batch-size 8 --seq-length 64 --max-position-embeddings 64 --vocab-size 512"
)


@pytest.mark.parametrize("bias", ["", " --disable-bias-linear"])
@pytest.mark.parametrize(
    "flags",
    [
        "--softmax-type learnable",
        "--qk-layernorm",
        "--qk-layernorm --softmax-type learnable",
        "--num-experts 256 --moe-shared-expert-intermediate-size 64 --moe-router-enable-expert-bias",
        "--num-experts 256 --moe-shared-expert-intermediate-size 64 --moe-shared-expert-gate",
        "--multi-latent-attention",
        "--multi-latent-attention --qk-layernorm",
    ],
)
def test_vectors_of_equal_sizes_read_back(flags, bias, cluster):
    """Sinks as large as the norms of heads, a gate as large as the balancing biases, a bias beside no norms."""
    job = read_megatron_job(f"{SMALL} {flags}{bias}")
    written = megatron.write(job, cluster, Layout())
    assert read_megatron_job(written.text).model.runs == job.model.runs


def unrolled(text):
    """Decoder layers of each chunk of a layout string, by its definition: unroll groups, then symbols."""
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    return tuple(chunk.count("t") for chunk in text.split("|")), text


@given(st.integers(1, 200), st.integers(2, 32))
def test_stage_layout_unrolls_to_the_planned_split(layers, chunks):
    counts = split_layers(layers, chunks)
    text = megatron.stage_layout(counts, prediction_layers=1)
    found, symbols = unrolled(text)
    assert found == counts
    assert symbols.startswith("E")
    assert symbols.endswith("mL")
    read = megatron.read(
        f"--pipeline-model-parallel-size {chunks} --pipeline-model-parallel-layout {text}", world=chunks
    )
    assert read.layout.virtual_stages == 1


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=70)
    | st.builds(lambda u, n: u * n, st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(1, 12))
)
def test_layer_patterns_evaluate_to_their_lists(values):
    text = pattern(values)
    assert re.fullmatch(r"[\[\]()01-9*+]+", text)
    assert eval(text, {"__builtins__": {}}) == values


def test_llama_405b_counts_embedding_and_loss_as_layers(cluster, job_for):
    """126 layers on 16 stages: 7 on the first and the last (The Llama 3 Herd of Models, section 3.3.2)."""
    layout = Layout(x=8, z=1, data=128, pipeline=16, sequence_parallel=True)
    text = megatron.write(job_for(layout, "llama-3.1-405b"), cluster, layout).text
    assert "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split" in text
    assert "torchrun --nnodes 2048 --nproc-per-node 8 " in text
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text


def test_rack_scale_domains_start_four_processes_a_host(small_cluster, job_for):
    text = megatron.write(job_for(Layout(data=72)), small_cluster(72, 72), Layout(data=72)).text
    assert "--nnodes 18 --nproc-per-node 4" in text


SCRIPT = """#!/bin/bash
# 175B, as in Narayanan et al.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-12}
TP=8
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \\
    --nnodes $NNODES
"
MODEL=(
    --num-layers 96   # layers
    --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048
)
torchrun ${DISTRIBUTED_ARGS} pretrain_gpt.py \\
    ${MODEL[@]} \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 12 \\
    --num-layers-per-virtual-pipeline-stage 2 \\
    --micro-batch-size 1 --global-batch-size 1536 --vocab-size 51200 \\
    --sequence-parallel --recompute-activations --fp16 --lr 6.0e-5 --save /checkpoints
"""


def test_a_script_with_variables_and_arrays():
    run = megatron.read(SCRIPT, where="pretrain.sh")
    assert run.layout == Layout(
        x=8,
        pipeline=12,
        virtual_stages=4,
        schedule="interleaved",
        zero=0,
        sequence_parallel=True,
        overlap_reduce=False,
    )
    assert any("core of flash attention" in note for note in run.notes)
    assert (run.world, run.global_batch, run.sequence, run.precision) == (96, 1536, 2048, "fp16")
    assert run.model.layers == 96
    assert "--lr" in run.ignored
    assert "--save" in run.ignored


@pytest.mark.parametrize(
    ("flags", "recompute"),
    [
        ("--recompute-activations", "none"),
        ("--recompute-activations --attention-backend unfused", "selective"),
        ("--recompute-granularity selective --recompute-modules layernorm moe_act", "selective"),
        ("--recompute-granularity selective --recompute-modules mla_up_proj", "selective"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
    ],
)
def test_selective_recomputation_depends_on_the_attention_kernel(flags, recompute):
    """With flash attention, recomputing its core alone frees nothing."""
    assert megatron.read(flags, world=8).layout.recompute == recompute


def test_defaults_of_variables_and_a_tokenizer_vocabulary():
    text = """torchrun --nnodes ${SLURM_NNODES:-"4"} --nproc_per_node 8 pretrain_gpt.py \\
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --global-batch-size 256 \\
    --max-position-embeddings 4096 --tokenizer-type Llama2Tokenizer --bf16
    """
    run = megatron.read(text)
    assert (run.world, run.precision, run.model) == (32, "bf16", None)
    assert "--vocab-size is not stated" in run.notes[0]
    assert megatron.read(text, vocab=32000).model.vocab == 32000
    with pytest.raises(BadInput, match="number of accelerators"):
        megatron.read("torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 pretrain_gpt.py")


def test_expert_tensor_parallelism_follows_tensor_parallelism_by_default():
    run = megatron.read("--tensor-model-parallel-size 4 --num-experts 8 --expert-model-parallel-size 2", world=8)
    assert (run.layout.expert, run.layout.expert_tensor, run.layout.data) == (2, 4, 2)


MIXTURE = """#!/bin/bash
# A mixture of experts, in the style of Megatron-LM's examples.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"2"}
CHECKPOINT_PATH=$1
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES)
MODEL_ARGS=(
    --disable-bias-linear --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --seq-length 4096 --max-position-embeddings 32768
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --position-embedding-type rope --rotary-base 1000000
)
MOE_ARGS=(--num-experts 8 --moe-router-topk 2)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 256 --bf16 --grad-reduce-in-bf16 --fp8-param-gather)
PARALLEL_ARGS=(
    --pipeline-model-parallel-size 4   # stages
    --expert-model-parallel-size 4 --use-distributed-optimizer
)
LOGGING_ARGS=(
    --save $CHECKPOINT_PATH \\
    --tensorboard-dir "${CHECKPOINT_PATH}/tensorboard" \\
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${MOE_ARGS[@]} \\
    --tokenizer-type Llama2Tokenizer --tokenizer-model $2 \\
    ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} ${LOGGING_ARGS[@]}
"""


def test_a_script_in_the_style_of_the_examples(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(MIXTURE, encoding="utf-8")
    run = read_run(path)
    assert (run.world, run.layout.pipeline, run.layout.expert, run.layout.data) == (16, 4, 4, 4)
    assert (run.global_batch, run.sequence, run.precision) == (256, 4096, "bf16")
    assert (run.dropout, run.gradient_bytes) == (True, 2)
    assert (run.model, run.problem) == (None, "--vocab-size is not stated")
    assert run.notes[-1] == "change time or memory, and are not modelled: --fp8-param-gather"
    model = catalogue.load("mixtral-8x7b").model
    whole = read_run(path, vocab=32000).model
    assert (whole.runs, whole.vocab, whole.rope) == (model.runs, model.vocab, model.rope)


def test_the_recipe_of_a_run_counts_in_its_estimate(tmp_path):
    """Dropout and the width of gradients, also where the model is named; the caller's own wishes go on top."""
    path = tmp_path / "train.sh"
    path.write_text(MIXTURE, encoding="utf-8")
    with pytest.raises(BadInput, match=r"train.sh: --vocab-size is not stated -- change it, give --vocab N, or name"):
        weft.estimate(None, "h100-16", run=str(path))
    for found in (
        weft.estimate(None, "h100-16", run=str(path), vocab=32000),
        weft.estimate("mixtral-8x7b", "h100-16", run=str(path)),
    ):
        assert found.job.model.runs == catalogue.load("mixtral-8x7b").model.runs
        recipe = found.job.recipe
        assert (recipe.global_batch, recipe.dropout, recipe.gradient_bytes, recipe.precision) == (256, True, 2, "bf16")
    mine = weft.estimate("mixtral-8x7b", "h100-16", run=str(path), batch=512, precision="fp8").job.recipe
    assert (mine.global_batch, mine.precision, mine.gradient_bytes) == (512, "fp8", 2)
    with pytest.raises(BadInput, match="needs --run"):
        weft.estimate("mixtral-8x7b", "h100-16", "pp=4", vocab=32000)


@pytest.mark.parametrize(
    "program", ["pretrain_bert.py", "pretrain_t5.py", "examples/multimodal/train.py", "train_vlm.py"]
)
def test_other_programs_are_refused(program):
    with pytest.raises(Unsupported, match=f"{program} trains something else than a decoder"):
        megatron.read(f"torchrun --nproc-per-node 8 {program} --num-layers 2", world=8)


def test_open_values_are_named():
    text = "torchrun pretrain_gpt.py --num-layers 2 --global-batch-size $GBS --seq-length 64 --micro-batch-size $MBS"
    with pytest.raises(BadInput, match=r"--micro-batch-size: is not stated: '\$MBS' has no value in the text"):
        megatron.read(text, world=8)
    run = megatron.read(text.replace("$MBS", "1"), world=8)
    assert run.global_batch is None
    assert "--global-batch-size is not stated ($GBS has no value in the text)" in run.notes
    assert run.problem == "--hidden-size, --num-attention-heads, --vocab-size are not stated"
    refused = megatron.read("python pretrain_hybrid.py --hybrid-layer-pattern M-M* --micro-batch-size 1", world=8)
    assert refused.problem.startswith("--hybrid-layer-pattern changes the model's shape")
