"""Calculon (calculon-ai/calculon): a layout as its execution, a model as its application; and what an execution says.

Fields are those of ``Llm.Execution`` in its ``llm.py``; ``weft.model.calculon`` and ``weft.cluster.calculon`` read
its applications and systems.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from weft.cluster.spec import Cluster
from weft.codec import Count, Range, decode
from weft.documents import parse_json
from weft.errors import BadInput, Unsupported
from weft.interop.launch import LaunchArguments, RunConfiguration, common_reasons, refuse
from weft.layout.spec import Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.model.calculon import model_application
from weft.model.job import Job, Precision

TOOL = "calculon"
WRITTEN_FOR = "Written for Calculon of February 2024 (commit caa4b11)."
TYPES: dict[str, Precision] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8": "fp8"}
RECOMPUTE = {"full": Recompute.FULL, "attn_only": Recompute.SELECTIVE, "none": Recompute.NONE}
OVERLAP = {"none": TensorOverlap.NONE, "ring": TensorOverlap.FULL, "pipe": TensorOverlap.FULL}
COMMAND = "calculon llm application.json execution.json system.json -"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Calculon's fields, with their names; all are needed."""

    num_procs: Count
    tensor_par: Count
    pipeline_par: Count
    data_par: Count
    tensor_par_net: Annotated[int, Range(0, 100)]
    pipeline_par_net: Annotated[int, Range(0, 100)]
    data_par_net: Annotated[int, Range(0, 100)]
    batch_size: Count
    microbatch_size: Count
    datatype: Literal["float8", "float16", "float32", "bfloat16"]
    fused_activation: bool
    attention_type: Literal["multihead", "multiquery"]
    activation_recompute: Literal["full", "attn_only", "none"]
    pipeline_interleaving: Count
    optimizer_sharding: bool
    tensor_par_comm_type: Literal["ar", "p2p_rs_ag", "rs_ag"]
    tensor_par_overlap: Literal["none", "ring", "pipe"]
    seq_par_ag_redo: bool
    data_par_overlap: bool
    weight_offload: bool
    activations_offload: bool
    optimizer_offload: bool
    training: bool


SAME = {
    "tensor_par": "x",
    "pipeline_par": "pipeline",
    "data_par": "data",
    "microbatch_size": "micro_batch",
    "pipeline_interleaving": "virtual_stages",
    "activations_offload": "offload_activations",
    "optimizer_offload": "offload_optimizer",
}
"""Fields of an execution, and those of a layout that mean the same."""


def read(text: str, *, where: str, world: int | None = None) -> RunConfiguration:
    """The run that an execution states; its model is in another file.

    Raises:
        Unsupported: inference, or weights kept by the host.
    """
    execution = decode(Execution, parse_json(text, where), where)
    if not execution.training or execution.weight_offload:
        field = "weight_offload" if execution.training else "inference"
        raise Unsupported(f"{field} is not modelled", where=where, remedy="give an execution that trains without it")
    degrees = execution.tensor_par * execution.pipeline_par * execution.data_par
    if degrees != execution.num_procs:
        raise BadInput(f"the degrees make up {degrees:,}", where=f"{where}.num_procs", remedy=f"write {degrees}")
    ignored = [name for name in ("fused_activation", "seq_par_ag_redo") if getattr(execution, name)]
    notes = ["the model's attention type is that of MODEL"] if execution.attention_type == "multiquery" else []
    if world is not None and world != execution.num_procs:
        notes.append(f"data parallelism for {world} accelerators instead of {execution.num_procs}")
    return RunConfiguration(
        tool=TOOL,
        layout=_layout(execution, world or execution.num_procs, where),
        world=execution.num_procs if world is None else world,
        global_batch=execution.batch_size,
        precision=TYPES[execution.datatype],
        ignored=tuple(ignored),
        notes=tuple(notes),
    )


def _layout(execution: Execution, world: int, where: str) -> Layout:
    data, remainder = divmod(world, execution.tensor_par * execution.pipeline_par)
    if remainder or not data:
        raise BadInput(
            f"{world} accelerators are not a multiple of tensor_par x pipeline_par",
            where=where,
            remedy="give a cluster that is one",
        )
    same = {ours: getattr(execution, theirs) for theirs, ours in SAME.items()} | {"data": data}
    return Layout(
        **same,
        schedule=PipelineSchedule.INTERLEAVED if execution.pipeline_interleaving > 1 else PipelineSchedule.PLAIN,
        zero=int(execution.optimizer_sharding),
        recompute=RECOMPUTE[execution.activation_recompute],
        sequence_parallel=execution.tensor_par_comm_type == "rs_ag" and execution.tensor_par > 1,
        overlap_tensor=OVERLAP[execution.tensor_par_overlap],
        overlap_reduce=execution.data_par_overlap,
        overlap_gather=execution.data_par_overlap,
    )


def write(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """The execution of a layout."""
    refuse(TOOL, [*common_reasons(job, cluster, layout), *_reasons(job, layout)])
    notes = []
    if layout.overlap_tensor == TensorOverlap.BACKWARD:
        notes.append("tensor_par_overlap none: Calculon does not hide collectives behind the other gradient's product")
    if layout.overlap_reduce != layout.overlap_gather:
        notes.append("data_par_overlap stands for gradients and weights at once")
    if job.recipe.attention != "unfused":
        notes.append("Calculon's attention is not fused")
    return _arguments(asdict(_execution(job, cluster, layout)), "execution.json", tuple(notes))


def write_application(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """The application of a job's model."""
    try:
        document, notes = model_application(job.model, job.recipe.sequence)
    except Unsupported as error:
        refuse(TOOL, [f"{error.where}: {error.what}"])
        raise
    return _arguments(document, "application.json", notes)


def _arguments(document: dict[str, Any], file: str, notes: tuple[str, ...]) -> LaunchArguments:
    text = json.dumps(document, indent=2) + "\n"
    return LaunchArguments(tool=TOOL, written_for=WRITTEN_FOR, text=text, file=file, command=COMMAND, notes=notes)


def _reasons(job: Job, layout: Layout) -> Iterator[str]:
    for axis, name in (("z", "fsdp"), ("context", "cp"), ("expert", "ep"), ("expert_tensor", "etp")):
        if getattr(layout, axis) > 1:
            yield f"{name} is {getattr(layout, axis)}: it has tensor, pipeline and data parallelism"
    if layout.zero > 1:
        yield "it shards the optimizer only (zero 1)"
    if layout.schedule.splits_backward:
        yield "its pipelines are plain or interleaved 1F1B"
    if layout.recompute_layers:
        yield "it recomputes in all blocks or in none"
    if job.recipe.precision not in TYPES.values():
        yield f"it does not compute in {job.recipe.precision}"


def _execution(job: Job, cluster: Cluster, layout: Layout) -> Execution:
    sequence_parallel = layout.sequence_parallel and layout.x > 1
    same: dict[str, Any] = {theirs: getattr(layout, ours) for theirs, ours in SAME.items()}
    return Execution(
        **same,
        num_procs=layout.world,
        tensor_par_net=_network(cluster, layout, "x"),
        pipeline_par_net=_network(cluster, layout, "pipeline"),
        data_par_net=_network(cluster, layout, "data"),
        batch_size=job.recipe.global_batch,
        datatype=_name_of(job.recipe.precision, TYPES),
        fused_activation=True,
        attention_type="multihead",
        activation_recompute=_name_of(layout.recompute, RECOMPUTE),
        optimizer_sharding=layout.zero > 0 and layout.data > 1,
        tensor_par_comm_type="rs_ag" if sequence_parallel else "ar",
        tensor_par_overlap="ring" if layout.overlap_tensor == TensorOverlap.FULL and layout.x > 1 else "none",
        seq_par_ag_redo=sequence_parallel and layout.recompute != Recompute.FULL,
        data_par_overlap=layout.overlap_reduce and layout.data > 1,
        weight_offload=False,
        training=True,
    )


def _name_of(value: object, names: Mapping[str, object]) -> Any:
    return next(name for name, alias in names.items() if alias == value)


def _network(cluster: Cluster, layout: Layout, axis: str) -> int:
    """The innermost tier that holds an axis' groups."""
    reach = 1
    for inner in layout.order[: layout.order.index(axis) + 1]:
        reach *= getattr(layout, inner)
    fits = (i for i, span in enumerate(cluster.spans) if span >= reach)
    return next(fits, len(cluster.spans) - 1) if getattr(layout, axis) > 1 else 0
