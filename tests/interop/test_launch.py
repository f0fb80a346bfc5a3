"""Which reader a file gets, files that no reader can use, and layouts that no tool runs."""

import pytest

from weft.errors import BadInput, NothingFeasible
from weft.interop.formats import formats_of
from weft.interop.launch import TOOLS, launch_arguments, read_run
from weft.layout.spec import Layout

MEGATRON = "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --bf16\n"
TITAN = "[parallelism]\ntensor_parallel_degree = 4\n"
DEEPSPEED = '{"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 4}}\n'


@pytest.mark.parametrize(
    ("name", "text", "tool"),
    [
        ("run.sh", MEGATRON, "Megatron-LM"),
        ("arguments.txt", MEGATRON, "Megatron-LM"),
        ("job.toml", TITAN, "torchtitan (TOML)"),
        ("ds.json", DEEPSPEED, "DeepSpeed"),
    ],
)
def test_format_follows_from_name_or_content(tmp_path, name, text, tool):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    run = read_run(path, world=16)
    assert run.tool == tool
    assert (run.layout.x, run.layout.dp, run.world) == (4, 4, 16)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.sh", b"", "no argument"),
        ("binary.sh", b"\xff\xfe\x00\x81" * 50, "is not a text file"),
        ("config.yaml", b"parallelism:\n  dp: 2\n", "in Python and YAML are not read"),
        ("big.sh", b"#" * 10_000_001, "larger than 10 MB"),
        ("broken.toml", b"[", "not valid TOML"),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message) as caught:
        read_run(path, world=8)
    assert name in str(caught.value)


LLAMA, MOE = "llama-3.1-8b", "deepseek-v2-lite"
DATA_FIRST = ("data", "x", "y", "z", "context", "pipeline")


@pytest.mark.parametrize(
    ("tools", "layout", "model", "reason"),
    [
        ("megatron torchtitan torchtitan-toml deepspeed calculon", Layout(y=2), LLAMA, "no launcher splits"),
        ("megatron", Layout(pipeline=2, schedule="zb1p"), LLAMA, "no schedule zb1p"),
        ("megatron", Layout(pipeline=2, schedule="zbv", virtual_stages=2), LLAMA, "no schedule zbv"),
        ("megatron torchtitan deepspeed", Layout(x=2, data=2, order=DATA_FIRST), LLAMA, "data/x/y"),
        ("megatron", Layout(z=2, data=2, zero=2), LLAMA, "zero 2 over data"),
        ("megatron", Layout(x=2, overlap_tensor="full"), LLAMA, "--tp-comm-overlap needs sequence_parallel"),
        ("megatron", Layout(zero=0, offload_optimizer=True), LLAMA, "zero 1"),
        ("megatron", Layout(virtual_stages=2, pipeline=2), LLAMA, "interleaved"),
        ("torchtitan torchtitan-toml deepspeed", Layout(z=2, data=2, zero=1), LLAMA, "use zero=0"),
        ("torchtitan", Layout(context=2, context_method="ulysses"), LLAMA, "ring"),
        ("torchtitan", Layout(recompute="full", recompute_layers=2), LLAMA, "recompute_layers"),
        ("torchtitan", Layout(pipeline=2, schedule="zb1p"), LLAMA, "no schedule zb1p"),
        ("torchtitan", Layout(x=2, data=2, expert=2, expert_tensor=2, sequence_parallel=True), MOE, "expert_tensor 2"),
        ("torchtitan", Layout(data=4, zero=0, expert=4), MOE, "expert 4 must divide"),
        ("torchtitan", Layout(x=2, data=2, sequence_parallel=True), MOE, "cuts the experts"),
        ("torchtitan", Layout(offload_activations=True), LLAMA, "offload_activations"),
        ("deepspeed", Layout(x=2, sequence_parallel=True), LLAMA, "no sequence_parallel"),
        ("deepspeed", Layout(context=2), LLAMA, "ulysses"),
        ("deepspeed", Layout(pipeline=2, x=2), LLAMA, "does not combine with x"),
        ("deepspeed", Layout(context=2, x=2, context_method="ulysses"), LLAMA, "does not combine with sequence"),
        ("deepspeed", Layout(pipeline=2, zero=2), LLAMA, "zero 2 or z"),
        ("deepspeed", Layout(pipeline=2, schedule="interleaved", virtual_stages=2), LLAMA, "1f1b schedule only"),
        ("deepspeed", Layout(recompute="selective"), LLAMA, "whole layers"),
        ("deepspeed", Layout(x=2, data=2, expert=2), MOE, "AutoEP"),
        ("deepspeed", Layout(x=2, expert_tensor=1), MOE, "expert_tensor = x"),
        ("calculon", Layout(z=2), LLAMA, "fsdp is 2"),
        ("calculon", Layout(context=2), LLAMA, "cp is 2"),
        ("calculon", Layout(zero=2), LLAMA, "zero 1"),
        ("calculon", Layout(pipeline=2, schedule="zb1p"), LLAMA, "1F1B"),
        ("calculon", Layout(recompute="full", recompute_layers=2), LLAMA, "all blocks"),
        ("slurm", Layout(x=32), LLAMA, "of 16"),
    ],
)
def test_layouts_that_a_tool_cannot_run(tools, layout, model, reason, small_cluster, job_for):
    for tool in tools.split():
        with pytest.raises(NothingFeasible, match=f"cannot run this layout: .*{reason}"):
            launch_arguments(tool, job_for(layout, model), small_cluster(16), layout)


def test_every_reason_is_told(small_cluster, job_for):
    """Too large and uneven for any launcher; a precision that one does not have."""
    for tool in TOOLS[:5]:
        with pytest.raises(NothingFeasible, match=r"16 accelerators of 8; .* micro_batch 1 [*] z 1 [*] data 16 = 16"):
            launch_arguments(tool, job_for(Layout(micro_batch=3)), small_cluster(8), Layout(data=16))
    for tool, precision in (
        ("deepspeed", "fp8"),
        ("slurm", "fp8"),
        ("megatron", "int8"),
        ("torchtitan-toml", "nvfp4"),
    ):
        with pytest.raises(NothingFeasible, match=f" {precision}"):
            launch_arguments(tool, job_for(precision=precision), small_cluster(8), Layout())


BAD = {
    "megatron": [
        ("", 8, "no argument"),
        ("--tensor-model-parallel-size 2", None, "number of accelerators"),
        ("--tensor-model-parallel-size 3", 8, "tensor 3 .* does not divide 8"),
        ("--tensor-model-parallel-size $TP", 8, "write the number instead of the variable"),
        ("--tensor-model-parallel-size 0", 8, "outside 1"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|L", 8, "3 chunks"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|Q", 8, "cannot be read"),
        ("--num-layers 7 --num-layers-per-virtual-pipeline-stage 2", 8, "do not split"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy all", 8, "not known"),
        ("--use-megatron-fsdp --num-distributed-optimizer-instances 3", 8, "do not divide 8"),
        ("--cp-comm-type --context-parallel-size 1x", 8, "not a whole number"),
    ],
    "torchtitan": [
        ("[parallelism\n", 8, "not valid TOML"),
        ("[parallelism]\ntensor_parallel_degree = 8", None, "number of accelerators"),
        ("[parallelism]\ntensor_parallel_degree = 3", 8, "tensor 3 .* does not divide 8"),
        ("[parallelism]\ntensor_parallel_degree = '8'", 8, "not a whole number"),
        ("[parallelism]\ntensor_parallel_degree = nan", 8, "not a whole number"),
        ("parallelism = 3\n[training]\nseq_len = 0", 8, "is outside 1 to"),
        ("[parallelism]\ndata_parallel_shard_degree = 0", 8, "write -1"),
        ("[parallelism]\ndata_parallel_shard_degree = 2", 8, "make 2 accelerators, not 8"),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'GPipe'", 8, "not modelled"),
        ("[model]\nconverters = 'float8'", 8, "not a list"),
        ("[activation_checkpoint]\nmode = 1", 8, "is not text"),
    ],
    "deepspeed": [
        ("{", 8, "not valid JSON"),
        ("[1]", 8, "is an object"),
        ('{"hidden_size": 4}', 8, "not a DeepSpeed configuration"),
        ('{"train_batch_size": NaN}', 8, "NaN is not a number"),
        ('{"train_batch_size": -8}', 8, "is outside"),
        ('{"train_batch_size": 1e999}', 8, "not a finite number"),
        ('{"zero_optimization": {"stage": 4}}', 8, "is outside 0 to 3"),
        ('{"zero_optimization": {"stage": 3, "mics_shard_size": 3}}', 8, "do not divide 8"),
        ('{"zero_optimization": {"overlap_comm": 1}}', 8, "neither true nor false"),
        ('{"train_batch_size": 4}', 8, "data-parallel ranks 8 = 8 does not divide 4 sequences"),
        ('{"train_batch_size": 8, "tensor_parallel": {"autotp_size": 3}}', 8, "tensor 3 .* does not divide 8"),
        ('{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}', 16, "hpZ"),
    ],
}


@pytest.mark.parametrize(("tool", "text", "world", "message"), [(tool, *row) for tool in BAD for row in BAD[tool]])
def test_what_cannot_be_used_is_named(tool, text, world, message):
    with pytest.raises(BadInput, match=message):
        formats_of("layout")[tool].read(text, where="given", world=world)
