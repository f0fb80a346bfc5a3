"""Megatron-LM: the argument list of ``pretrain_gpt.py`` for a layout.

Argument names are those of Megatron-LM's main branch of August 2026; most exist since Megatron-Core 0.8.
``megatron_script`` reads them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from weft.cluster.spec import Cluster
from weft.interop.launch import LaunchArguments, common_reasons, placed_like, refuse, torchrun, true_of
from weft.interop.megatron_model import model_arguments, model_notes, model_reasons
from weft.layout.spec import AXES, Layout
from weft.layout.stages import chunk_sizes
from weft.model.job import Job, Precision
from weft.model.spec import LatentAttention, Model

TOOL = "Megatron-LM"
WRITTEN_FOR = "Written for Megatron-LM's main branch of August 2026 (commit d98e8a64, Megatron-Core 0.20)."
PIPELINE_BEFORE_DATA = ("x", "y", "context", "pipeline", "z", "data")
"""The placement that --use-tp-pp-dp-mapping selects; without it, it is that of ``AXES``."""

PRECISION_FLAGS: dict[Precision, tuple[str, ...]] = {
    "fp32": (),
    "fp16": ("--fp16",),
    "bf16": ("--bf16",),
    "fp8": ("--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"),
    "mxfp8": ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
CONTEXT_FLAGS = {"ring": "p2p", "ulysses": "a2a"}
OFFLOADED = "attn_norm core_attn attn_proj mlp_norm"


def write(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """A torchrun command with every argument that fixes shape, layout and memory.

    Data, learning rate and checkpoints get placeholders for the user to replace.
    """
    refuse(TOOL, [*common_reasons(job, cluster, layout), *model_reasons(job.model), *_reasons(job, layout)])
    groups = map(true_of, (*model_arguments(job.model), *_arguments(job, layout)))
    text = " \\\n  ".join(
        [f"{torchrun(cluster, layout)} pretrain_gpt.py", *(" ".join(group) for group in groups if group)]
    )
    environment = {
        "export CUDA_DEVICE_MAX_CONNECTIONS=1  # required with tensor or context parallelism\n": (
            (layout.x > 1 or layout.context > 1) and not sharded_data(layout)
        ),
        "export NVTE_CPU_OFFLOAD_V1=1\n": layout.offload_activations,
    }
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=f"#!/bin/bash\n# {WRITTEN_FOR}\n{''.join(true_of(environment))}{text}\n",
        file="megatron.sh",
        command="bash megatron.sh",
        notes=tuple(_notes(job.model, layout)),
    )


def sharded_data(layout: Layout) -> bool:
    """Whether Megatron-FSDP is needed: weights (z) or gradients (zero 2) are sharded."""
    return layout.z > 1 or layout.zero == 2


def _gathers(layout: Layout) -> bool:
    """Whether updated or sharded weights are gathered at all."""
    return layout.zero > 0 or layout.z > 1


def _reasons(job: Job, layout: Layout) -> Iterator[str]:
    if layout.schedule not in ("1f1b", "interleaved"):
        yield f"it has no schedule {layout.schedule}, only 1f1b and interleaved"
    if layout.virtual_stages > 1 and (layout.schedule != "interleaved" or layout.pipeline == 1):
        yield "virtual_stages > 1 needs the interleaved schedule and a pipeline"
    if not placed_like(layout, *AXES) and not placed_like(layout, *PIPELINE_BEFORE_DATA):
        yield f"it cannot place ranks in the order {'/'.join(layout.order)}"
    if layout.z > 1 and layout.data > 1 and layout.zero == 2:
        yield "zero 2 over data is not available beside z (fully sharded groups)"
    split_tensors = layout.x > 1 and not layout.sequence_parallel
    if split_tensors and layout.overlap_tensor == "full":
        yield "--tp-comm-overlap needs sequence_parallel"
    if split_tensors and any(block.moe for block in job.model.kinds):
        yield "experts beside tensor parallelism need sequence_parallel"
    if _gathers(layout) and layout.overlap_gather and not layout.overlap_reduce:
        yield "--overlap-param-gather needs overlap_reduce"
    if layout.offload_optimizer and not _gathers(layout):
        yield "offload_optimizer needs a distributed optimizer (zero 1)"
    if layout.recompute == "full" and layout.recompute_layers % layout.virtual_stages:
        yield "recompute_layers counts whole layers per virtual stage: make it a multiple of virtual_stages"
    if job.recipe.precision not in PRECISION_FLAGS:
        yield f"it has no argument for {job.recipe.precision}"


def _notes(model: Model, layout: Layout) -> Iterator[str]:
    if layout.x > 1 and layout.overlap_tensor == "none":
        yield "Megatron-LM overlaps the input-gradient collective of tensor parallelism anyway"
    if layout.context > 1 and _gathers(layout):
        yield "Megatron-LM shards over data and context ranks together"
    if sharded_data(layout):
        yield "leave CUDA_DEVICE_MAX_CONNECTIONS unset or above 1 with Megatron-FSDP"
    yield from model_notes(model)
    padded = -(-model.vocab // (128 * layout.x)) * 128 * layout.x
    if padded != model.vocab:
        yield f"Megatron-LM pads the vocabulary of {model.vocab} to {padded}"


def _arguments(job: Job, layout: Layout) -> list[Mapping[str, object]]:
    """Groups of the arguments of recipe and layout, each with whether it is written."""
    model, recipe = job.model, job.recipe
    x, context, moe = layout.x > 1, layout.context > 1, any(block.moe for block in model.kinds)
    shards, gathers, copies = sharded_data(layout), _gathers(layout), layout.z > 1 and layout.data > 1
    training = {
        f"--seq-length {recipe.sequence}": True,
        f"--max-position-embeddings {model.positions or recipe.sequence}": True,
        f"--micro-batch-size {layout.micro_batch}": True,
        f"--global-batch-size {recipe.global_batch}": True,
        "--train-iters 100 --lr 1e-4": True,
        "--attention-dropout 0 --hidden-dropout 0": not recipe.dropout,
        "--attention-backend unfused": recipe.attention == "unfused",
    }
    numerics = dict.fromkeys(PRECISION_FLAGS[recipe.precision], True) | {
        "--grad-reduce-in-bf16": recipe.gradient_bytes == 2,
        "--accumulate-allreduce-grads-in-fp32": recipe.precision == "fp16" and recipe.gradient_bytes != 2,
    }
    parallel = {
        f"--tensor-model-parallel-size {layout.x}": True,
        f"--pipeline-model-parallel-size {layout.pipeline}": True,
        "--sequence-parallel": x and layout.sequence_parallel,
        "--tp-comm-overlap": x and layout.overlap_tensor == "full",
        f"--context-parallel-size {layout.context}": context,
        f"--cp-comm-type {CONTEXT_FLAGS[layout.context_method]}": context,
        f"--expert-model-parallel-size {layout.expert}": moe,
        f"--expert-tensor-parallel-size {layout.expert_tensor}": moe,
        "--use-tp-pp-dp-mapping": not placed_like(layout, *AXES),
    }
    data = {
        "--use-megatron-fsdp": shards,
        f"--data-parallel-sharding-strategy optim_grads{'_params' if layout.z > 1 else ''}": shards,
        f"--num-distributed-optimizer-instances {layout.data}": copies,
        f"--outer-dp-sharding-strategy {'optim' if layout.zero else 'no_shard'}": copies,
        "--ckpt-format fsdp_dtensor": shards,
        "--use-distributed-optimizer": gathers,
        "--overlap-grad-reduce": layout.overlap_reduce,
        "--overlap-param-gather": gathers and layout.overlap_gather,
    }
    latent = any(isinstance(attention, LatentAttention) for attention in model.attentions)
    selected = ["core_attn"] if recipe.attention == "unfused" else selected_modules(moe, latent)
    full, layers = layout.recompute == "full", layout.recompute_layers // layout.virtual_stages
    offloaded = OFFLOADED + (" expert_fc1 moe_act" if moe else "")
    memory = {
        f"--recompute-granularity selective --recompute-modules {' '.join(selected)}": layout.recompute == "selective",
        "--recompute-granularity full": full,
        f"--recompute-method {'block' if layers else 'uniform'} --recompute-num-layers {layers or 1}": full,
        "--optimizer-cpu-offload --use-precision-aware-optimizer": layout.offload_optimizer,
        f"--fine-grained-activation-offloading --offload-modules {offloaded}": layout.offload_activations,
    }
    return [training, numerics, parallel, _pipeline(model, layout) if layout.pipeline > 1 else {}, data, memory]


def selected_modules(moe: bool, latent: bool) -> list[str]:
    """What selective recomputation repeats beside flash attention: norms, the experts' activation and the
    up-projections of latent attention."""
    return ["layernorm", *["moe_act"] * moe, *["mla_up_proj"] * latent]


def _pipeline(model: Model, layout: Layout) -> Mapping[str, object]:
    """Virtual stages and, where layers do not divide evenly, the split that the plan assumes."""
    behind = model.prediction_layers
    counts = chunk_sizes(model.layers, layout.pipeline * layout.virtual_stages, behind)
    uneven = len(set(counts)) > 1
    # Megatron-LM can count the embedding and the loss as a layer each: then the ends have one fewer.
    both_ends = counts[0] == counts[-1] == counts[1] - 1 and len(set(counts[1:-1])) == 1
    last = len(set(counts[:-1])) == 1 and counts[-1] == counts[0] - 1
    if uneven and (behind or not (both_ends or last)):
        return {f'--pipeline-model-parallel-layout "{stage_layout(counts, behind)}"': True}
    return {
        "--account-for-embedding-in-pipeline-split": both_ends,
        "--account-for-loss-in-pipeline-split": uneven,
        f"--num-virtual-stages-per-pipeline-rank {layout.virtual_stages}": layout.virtual_stages > 1,
    }


def stage_layout(counts: tuple[int, ...], prediction_layers: int = 0) -> str:
    """Megatron's string for model chunks: embedding E, layers t, prediction layers m, loss L, | between."""
    chunks = [f"t*{count}" for count in counts]
    chunks[0] = f"E{chunks[0]}"
    chunks[-1] += ("m" * prediction_layers) + "L"
    runs = [(chunk, len(list(run))) for chunk, run in groupby(chunks)]
    text = "".join(f"({chunk}|)*{many}" if many > 1 else f"{chunk}|" for chunk, many in runs)
    return text.removesuffix("|")
