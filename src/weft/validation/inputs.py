"""From a measured run to what an estimate needs, with every assumption; or why that cannot be.

The cluster is the accelerator that its name means, the scale-up domain and the network; the recipe is batch,
sequence, precision, attention kernel and dropout; the seconds of an iteration are stated by the source, or
follow from the rate that it states.
Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from math import gcd
from operator import attrgetter
from typing import Any, Literal

from weft.cluster import catalogue as machines
from weft.cluster.spec import Accelerator, Cluster, TierKind
from weft.errors import BadInput, UnknownName
from weft.estimation.iteration import CORE_REPLAY, Estimator
from weft.layout.check import explain
from weft.layout.spec import Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.table import LayoutTable
from weft.model import catalogue as models
from weft.model.job import (
    AttentionKernel,
    Job,
    Precision,
    Recipe,
    attention_forward_flops,
    block_forward_flops,
    model_flops,
)
from weft.model.spec import Attention, Block, BlockRun, FeedForward, MixtureOfExperts, Model
from weft.solvers import divisors, largest_divisor
from weft.validation.runs import Run, Skipped, Stack, baseline_warning, recognise

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run as Weft estimates it.

    ``measured_s`` is the iteration's time, ``derived`` whether it follows from a rate in FLOP/s;
    ``measured_bytes`` is the peak per accelerator, None where not stated.  ``assumptions`` are sentences, and so is
    ``warning``, of a measured time that may be wrong; empty where it is not.
    """

    run: Run
    stack: Stack
    job: Job
    cluster: Cluster
    layout: Layout
    measured_s: float
    derived: bool
    measured_bytes: float | None
    assumptions: tuple[str, ...]
    warning: str = ""

    @property
    def counted(self) -> Literal["allocated", "reserved", "used"]:
        """What the stated peak counts: what its software reports, or all that nvidia-smi sees."""
        return "used" if "nvidia-smi" in self.run.notes.lower() else self.stack.memory

    @property
    def same_job(self) -> tuple[object, ...]:
        """What runs have in common that differ in their layouts alone."""
        return (self.job.model, self.job.recipe, self.cluster, self.stack.name, self.stack.stated)


Setting = tuple[Stack, Job, Cluster, Layout, tuple[str, ...]]
"""What a run's columns say of it before its measured figures do, with what was assumed."""


_FIGURES = frozenset(("line", "id", "tflops_per_gpu", "mfu", "peak_memory_gib", "counts_recompute"))
_TIMES = frozenset(("measured_iter_s", "iter_s", "tokens_s_gpu"))
"""Columns that say nothing of a setting; of times and rates, where the batch is stated."""
_without_times = attrgetter(*(field.name for field in fields(Run) if field.name not in _FIGURES | _TIMES))
_with_times = attrgetter(*(field.name for field in fields(Run) if field.name not in _FIGURES))


def prepare_all(rows: Iterable[Run | Skipped]) -> tuple[Prepared | Skipped, ...]:
    """Every row in order, prepared or skipped; rows of one setting share it."""
    known: dict[object, Setting | str] = {}
    return tuple(_prepared(row, known) if isinstance(row, Run) else row for row in rows)


def prepare(run: Run) -> Prepared | Skipped:
    """One run with the defaults of its software; skipped with a reason where something does not fit."""
    return _prepared(run, {})


def _prepared(run: Run, known: dict[object, Setting | str]) -> Prepared | Skipped:
    key = _with_times(run) if run.global_batch is None else _without_times(run)
    if key not in known:
        try:
            known[key] = _setting(run)
        except BadInput as error:
            known[key] = error.what
    result = known[key]
    if isinstance(result, str):
        return Skipped(name=run.name, family=run.family, reason=result)
    stack, job, cluster, layout, assumptions = result
    measured, note, derived = measured_seconds(run, stack, job, layout, cluster.accelerator)
    if measured is None:
        return Skipped(name=run.name, family=run.family, reason="no time, rate or MFU is stated")
    return Prepared(
        run=run,
        stack=stack,
        job=job,
        cluster=cluster,
        layout=layout,
        measured_s=measured,
        derived=derived,
        measured_bytes=None if run.peak_memory_gib is None else run.peak_memory_gib * GIB,
        assumptions=(*assumptions, note) if note else assumptions,
        warning=baseline_warning(run) or (convention_warning(stack, job) if derived else ""),
    )


def _setting(run: Run) -> Setting:
    stack = recognise(run)
    assumed = [list[str]() for _ in range(5)]
    of_model, of_recipe, of_cluster, of_mesh, of_layout = assumed
    cluster = machine(run, of_cluster)
    model = shape(run, of_model, prediction=stack.prediction)
    mesh = degrees(run, model, cluster, of_mesh)
    job = Job(model=model, recipe=training(run, stack, cluster.accelerator, mesh.data, of_recipe))
    layout = cut(run, stack, job, cluster, mesh, of_layout)
    return stack, job, cluster, layout, tuple(chain.from_iterable(assumed))


SITES = {"perlmutter": ("perlmutter-80gb", 4), "frontier": ("frontier", 8), "alps": ("alps", 4)}
"""Machines of the catalogue that a table may name, and the accelerators of their nodes."""

_JOINED = (
    (re.compile(r"\b\d+\s*x\s*"), ""),
    (re.compile(r"(?<!\d)(\d+)\s*(gi?b)\b"), r"\1gb"),
    (re.compile(r"\b(tpu|gaudi|rtx|dgx|hgx)[\s_-]*(v?\d)"), r"\1-\2"),
    (re.compile(r"\bgaudi-(\d)"), r"gaudi\1"),
    (re.compile(r"v5[\s_-]*lite(pod)?"), "v5e"),
    (re.compile(r"\btrillium\b"), "tpu-v6e"),
    (re.compile(r"\bironwood\b|\btpu-v?7x?\b"), "tpu-7x"),
)
_GIGABYTES = re.compile(r"(?<![\d.])(\d{2,3})\s*gi?b\b(?!/s)", re.I)
_MEMORY_SPEED = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*TB/s", re.I)
_POWER = re.compile(r"(\d{2,4})\s*W\b")
_NETWORK = re.compile(
    r"(?:(?<!\d)(\d+)\s*[x×]\s*)?(?<![\d.])(\d+(?:\.\d+)?)\s*(Gb/s|Gbps|Gbit/s|GB/s)[^;,.)]{0,20}?"  # noqa: RUF001
    r"(?:per|/|a)\s*(node|server|host|gpu|accelerator|gcd|chip)",
    re.I,
)
USABLE = 0.98
"""Share of the memory on the label that an application sees, where only that is known."""
SAME = 0.08
"""Relative difference up to which a stated memory is the catalogue's."""


def machine(run: Run, assumed: list[str]) -> Cluster:
    """The cluster of a run; what is not stated is told to ``assumed``."""
    count = run.gpus or 1
    words = f"{run.gpu} {run.source}".lower()
    for site, (preset, node) in SITES.items():
        if re.search(rf"\b{site}\b", words) and count % node == 0:
            assumed.append(f"network of {preset}")
            return machines.load(f"{preset}-{count}")
    chip = _stated(run, named_accelerator(run.gpu), assumed)
    size = run.nodes_gpus or chip.scale_up_size
    chip = replace(chip, scale_up_size=size)
    if run.nodes_gpus is None:
        assumed.append(f"scale-up domains of {size} (not stated)")
    domain = largest_divisor(count, size)  # the most that fill domains evenly
    if domain < min(size, count):
        assumed.append(f"{domain} accelerators used of each scale-up domain of {size}")
    chip = replace(chip, nic_Bps=_nic(run, chip, assumed))
    kind: TierKind | None = "switch" if "dgx-2" in run.gpu.lower() else None
    tiers = machines.default_tiers(chip, count, kind=kind, used_per_domain=domain)
    name, partial = f"{chip.name} x {count}", domain < min(count, chip.scale_up_size)
    return Cluster(name=name, accelerator=chip, count=count, tiers=tiers, whole_domains=partial)


def named_accelerator(text: str) -> Accelerator:
    """The accelerator of the catalogue whose name has most words in common with ``text``, all of them in it."""
    plain = text.lower()
    for pattern, put in _JOINED:
        plain = pattern.sub(put, plain)
    words = set(re.split(r"[^a-z0-9]+", plain))
    fitting = [name for name in machines.accelerator_names() if set(name.split("-")) <= words]
    if not fitting:
        raise BadInput(f"accelerator {text!r} is not in the catalogue")
    return machines.accelerator(max(fitting, key=lambda name: (len(name.split("-")), len(name), name)))


def _stated(run: Run, chip: Accelerator, assumed: list[str]) -> Accelerator:
    """The accelerator with the memory, its bandwidth and the power that the name states."""
    stated = chip
    if result := _GIGABYTES.search(run.gpu):
        memory = float(result[1]) * 1e9
        if abs(memory / chip.memory_bytes - 1) > SAME:
            stated = replace(stated, memory_bytes=USABLE * memory)
    if result := _MEMORY_SPEED.search(run.gpu):
        stated = replace(stated, memory_Bps=float(result[1]) * 1e12)
    if result := _POWER.search(run.gpu):
        stated = replace(stated, power_w=float(result[1]))
    if stated != chip:
        assumed.append(f"{chip.name} except the memory and power that the accelerator's name states")
    return stated


def _nic(run: Run, chip: Accelerator, assumed: list[str]) -> float:
    """Bytes/s per accelerator and direction between domains."""
    node = chip.scale_up_size
    if (run.gpus or 1) <= node:
        return chip.nic_Bps
    result = _NETWORK.search(f"{run.notes}; {run.gpu}")
    if result is None:
        assumed.append(f"network of {chip.nic_Bps * 8e-9:g} Gb/s an accelerator (as {chip.name}; not stated)")
        return chip.nic_Bps
    links, speed, unit, owner = result.groups()
    Bps = float(links or 1) * float(speed) * (1e9 if unit[1] == "B" else 1.25e8)
    return Bps / (node if owner.lower() in ("node", "server", "host") else 1)


def measured_seconds(
    run: Run, stack: Stack, job: Job, layout: Layout, chip: Accelerator
) -> tuple[float | None, str, bool]:
    """The time that a source states, directly, as tokens/s, or by a rate in FLOP/s; what was assumed for it, and
    whether it follows from such a rate."""
    seconds = run.measured_iter_s or run.iter_s
    if seconds is not None:
        return seconds, "", False
    if run.tokens_s_gpu is not None:
        return job.recipe.tokens / (run.tokens_s_gpu * (run.gpus or 1)), "time from tokens/s", False
    rate = run.tflops_per_gpu and 1e12 * run.tflops_per_gpu
    unit = "TFLOP/s"
    if rate is None and run.mfu is not None:
        rate, unit = run.mfu * chip.peak_flops(job.recipe.precision), "MFU"
    if rate is None:
        return None, "", False
    counted, how = counted_flops(run, stack, job, layout)
    return counted / (rate * layout.world), f"time from stated {unit}, {how}", True


def convention_warning(stack: Stack, job: Job) -> str:
    """Why a time that follows from a rate is in doubt: attention is much of the FLOPs, and how the software counts it
    is not documented.  Empty where it is not in doubt."""
    full, causal = (model_flops(job.model, job.recipe, causal=flag) for flag in (False, True))
    if stack.flops_stated or full <= (1.0 + DOUBT) * causal:
        return ""
    wrong = full / causal - 1.0
    return (
        f"time from a rate at {job.recipe.sequence:,} tokens: {stack.title} may count attention full or causal,"
        f" {stack.flops} assumed; a factor of {1.0 + wrong:.2f}"
    )


def counted_flops(run: Run, stack: Stack, job: Job, layout: Layout) -> tuple[float, str]:
    """FLOPs of an iteration as the source counts them, and how that is.

    With recomputation (arXiv 2104.04473, eq. 3; 2205.05198, appendix A): the blocks' forward pass once more,
    or, selective, their attention as often as the core itself.
    """
    flops = model_flops(job.model, job.recipe, causal=stack.flops == "causal")
    attention = f"attention counted {stack.flops}"
    if not run.counts_recompute or layout.recompute == "none":
        return flops, f"model FLOPs, {attention}"
    replayed = 0.0
    for kind in job.model.runs:
        if layout.recompute == "full":
            replayed += kind.count * block_forward_flops(kind.block, job.recipe)
        else:
            replayed += CORE_REPLAY * kind.count * attention_forward_flops(kind.block, job.recipe)
    return flops + replayed, f"FLOPs with recomputation, {attention}"


DOUBT = 0.05
"""Share of the FLOPs by which conventions of counting must differ to matter."""
PRECISIONS: tuple[tuple[str, Precision], ...] = (
    (r"^(nv|mx)?fp4", "nvfp4"),
    (r"^mx", "mxfp8"),
    (r"^int8|^aqt", "int8"),
    (r"^(fp|float)8[ _-]?row", "fp8-rowwise"),
    (r"^(fp|float)8", "fp8"),
    (r"^b(f|float)16", "bf16"),
    (r"^(fp|float)16|^half|^amp", "fp16"),
    (r"^tf32$", "tf32"),
    (r"^(fp|float)32$|^full$|^single$", "fp32"),
)
"""What tables call precisions, by how the name begins."""
SEQUENCE = 2048
"""Tokens of a sequence where none is stated."""
_PURE = re.compile(r"mp_mode PURE|reduc\w* in (bf16|fp16)|(bf16|fp16) (gradient )?reduc", re.I)
_ACCUMULATION = re.compile(r"grad(?:ient)?[ _-]?acc\w{0,20}(?:[ _-]steps)?\s*[=:]?\s*(\d{1,9})", re.I)
_BY_ROW = re.compile(r"\b(fp|float)8[ _-]?row|row-?wise (scal\w+|fp8|float8)", re.I)
_FLASH = re.compile(r"flash[ -]?att|\bsdpa\b|cudnn attention", re.I)
_UNFUSED = re.compile(r"unfused|(no|without) flash|naive attention|eager attention|kernels?: (torch|fused)\b", re.I)


def training(run: Run, stack: Stack, chip: Accelerator, replicas: int, assumed: list[str]) -> Recipe:
    """The recipe of a run; ``replicas`` see different sequences."""
    sequence = run.seq or SEQUENCE
    if run.seq is None:
        assumed.append(f"sequences of {sequence} tokens")
    precision = _precision(run, stack, chip, assumed)
    attention: AttentionKernel = stack.attention
    if _UNFUSED.search(run.remarks):
        attention = "unfused"
    elif _FLASH.search(run.remarks):
        attention = "flash"
    dropped = "with" if stack.dropout else "without"
    assumed.append(f"{attention} attention, {dropped} dropout ({stack.title})")
    recipe = Recipe(
        global_batch=run.global_batch or _batch(run, replicas, sequence, assumed),
        sequence=sequence,
        precision=precision,
        attention=attention,
        dropout=stack.dropout,
        gradient_bytes=2 if _PURE.search(run.notes) else stack.gradient_bytes.get(precision, 4),
    )
    chip.peak_flops(precision)  # refuses a precision that the accelerator does not have
    return recipe


def _precision(run: Run, stack: Stack, chip: Accelerator, assumed: list[str]) -> Precision:
    if not run.precision:
        precision: Precision = stack.precision if chip.bf16_flops else "fp16"
        assumed.append(f"precision {precision} (not stated)")
        return precision
    for pattern, precision in PRECISIONS:
        if re.search(pattern, run.precision, re.I):
            return "fp8-rowwise" if precision == "fp8" and _BY_ROW.search(run.remarks) else precision
    raise BadInput(f"precision {run.precision!r} is not modelled")


def _batch(run: Run, replicas: int, sequence: int, assumed: list[str]) -> int:
    """Sequences of a global batch: from its time and rate, else from the micro-batches that are stated."""
    seconds = run.measured_iter_s or run.iter_s
    if seconds and run.tokens_s_gpu and run.gpus:
        batch = max(round(seconds * run.tokens_s_gpu * run.gpus / sequence / replicas), 1) * replicas
        assumed.append(f"global batch {batch} (from time and tokens/s)")
        return batch
    result = _ACCUMULATION.search(run.notes)
    steps = int(result[1]) if result else 4 * (run.pp or 1) if (run.pp or 1) > 1 else 1
    batch = (run.micro_batch or 1) * replicas * steps
    why = "stated" if result else "assumed"
    assumed.append(f"global batch {batch} ({steps} micro-batches a rank, {why})")
    return batch


# The layout of a run, as its columns and its software cut the job ----------------------------------

LARGEST_MICRO_BATCH = 4
MOST_VIRTUAL_STAGES = 3
"""Chunks a stage of interleaved pipelines where their number is not stated, as in arXiv 2205.05198."""
_ASYNC_TP = re.compile(r"async[ -]?tp|tp[ -]?(comm)?[ -]?overlap|userbuffers|TP/PP overlap on", re.I)
_KEPT = re.compile(r"without reshard|no reshard|SHARD_GRAD_OP|zero[ -]?2\b", re.I)
_HYBRID = re.compile(r"\bHSDP\b|HYBRID_SHARD|over DCN by data parallelism", re.I)
_OTHER_POLICY = re.compile(r"remat_policy\W+(?!full\b)\w", re.I)
"""MaxText keeps, or moves to the host, what another policy names."""
_WAVE = re.compile(r"dualpipe|zb-?v\b", re.I)
_ZERO_BUBBLE = re.compile(r"zero[ -]?bubble|zb-?(1p|h1)\b", re.I)
_INTERLEAVED = re.compile(r"interleaved|PP overlap on", re.I)
"""Megatron-LM overlaps pipeline sends in interleaved schedules only."""


def degrees(run: Run, model: Model, cluster: Cluster, assumed: list[str]) -> Layout:
    """The mesh that the columns state, or a documented choice where they do not.

    Without tensor or pipeline parallelism: the first of tensor parallelism up to a node of 8, then pipelines
    whose stages divide the layers, that leaves at most 70 % of the memory to weights, gradients and states.
    """
    context = run.cp or 1
    if run.tp is None and run.pp is None and run.dp is not None:
        model_ranks = max(cluster.count // (run.dp * context), 1)
        tensor = gcd(model_ranks, cluster.tiers[0].size)
        pipeline = model_ranks // tensor
        assumed.append(f"tensor parallelism {tensor} and {pipeline} stages (from the data parallelism)")
    elif run.tp is None and run.pp is None and run.zero != 3:
        room_bytes = 0.7 * cluster.accelerator.memory_bytes
        choices = list(_model_parallel(model, cluster, context))
        fitting = (pair for pair in choices if 18.0 * model.parameters / (pair[0] * pair[1]) <= room_bytes)
        tensor, pipeline = next(fitting, choices[-1])
        assumed.append(f"tensor parallelism {tensor} and {pipeline} stages, the least that fits (not stated)")
    else:
        tensor, pipeline = run.tp or 1, run.pp or 1
        if run.tp is not None and run.pp is None and run.dp is not None:
            pipeline = max(cluster.count // (run.dp * tensor * context), 1)
            if model.layers < pipeline:
                pipeline = 1
    ranks = tensor * pipeline * context
    data, remainder = divmod(cluster.count, ranks)
    if remainder:
        raise BadInput(f"{tensor} x {pipeline} x {context} ranks do not divide {cluster.count} accelerators")
    if run.dp not in (None, data):
        assumed.append(f"data parallelism {data} = GPUs / (TP PP CP), not the {run.dp} stated")
    return Layout(x=tensor, pipeline=pipeline, context=context, data=data)


def _model_parallel(model: Model, cluster: Cluster, context: int) -> Iterator[tuple[int, int]]:
    """Tensor and pipeline degrees by their product."""
    heads = gcd(
        *(gcd(attention.heads, attention.kv_heads) for attention in model.attentions),
        *(state.groups for state in model.state_spaces),
    )
    ranks = cluster.count // context
    node = gcd(cluster.tiers[0].size, 8)
    tensors = [n for n in (1, 2, 4, 8) if node % n == 0 and heads % n == 0 and ranks % n == 0]
    yield from ((n, 1) for n in tensors)
    widest = tensors[-1]
    yield from ((widest, n) for n in divisors(model.layers)[1:] if ranks // widest % n == 0)


def cut(run: Run, stack: Stack, job: Job, cluster: Cluster, mesh: Layout, assumed: list[str]) -> Layout:
    """The layout of a run."""
    layout = replace(
        mesh,
        overlap_tensor=TensorOverlap.FULL if _ASYNC_TP.search(run.remarks) else stack.overlap_tensor,
        overlap_reduce=stack.overlap_reduce,
        overlap_gather=stack.overlap_gather,
    )
    layout = _sequence_parallel(run, stack, job.model, layout, assumed)
    layout = _experts(run, stack, job.model, layout, assumed)
    layout = _sharded(run, stack, layout, assumed)
    layout = _scheduled(run, stack, job.model, layout, assumed)
    layout = _micro_batched(run, stack, job, layout, assumed)
    layout = _rounds(job, layout, assumed)
    layout = _recomputing(run, stack, job, cluster, layout, assumed)
    rejection = explain(job, cluster.count, layout)
    if rejection is not None:
        raise BadInput(f"{rejection.code}: {rejection.reason}")
    return layout


def _sequence_parallel(run: Run, stack: Stack, model: Model, layout: Layout, assumed: list[str]) -> Layout:
    if layout.x == 1:
        return layout
    on = run.sequence_parallel
    if on is None:
        on = stack.sequence_parallel
        assumed.append(f"{'with' if on else 'without'} sequence parallelism (not stated)")
    if not on and any(kind.moe for kind in model.kinds):
        on = True
        assumed.append("sequence parallelism, which experts need")
    return replace(layout, sequence_parallel=on)


def _experts(run: Run, stack: Stack, model: Model, layout: Layout, assumed: list[str]) -> Layout:
    counts = [kind.moe.experts for kind in model.kinds if kind.moe]
    if not counts:
        return layout
    experts, ranks = gcd(*counts), layout.stage_ranks
    tensor = run.etp or (layout.x if stack.expert_tensor else 1)
    if run.ep is not None:
        return replace(layout, expert=run.ep, expert_tensor=tensor if ranks % (run.ep * tensor) == 0 else 1)
    expert = gcd(experts, ranks // tensor)
    assumed.append(f"expert parallelism {expert} (not stated)")
    return replace(layout, expert=expert, expert_tensor=tensor)


def _sharded(run: Run, stack: Stack, layout: Layout, assumed: list[str]) -> Layout:
    zero = 2 if _KEPT.search(run.remarks) else run.zero
    if zero is None:
        zero = stack.zero
        assumed.append(f"ZeRO {zero} ({stack.title}; not stated)")
    gathered_once = zero == 3 and not stack.reshard
    if layout.pipeline > 1 and (gathered_once or zero == 2):
        assumed.append("weights are gathered and gradients scattered once a step, since stages keep them")
        return replace(layout, zero=1)
    if zero < 3:
        return replace(layout, zero=zero)
    if _HYBRID.search(run.remarks) and run.nodes_gpus:
        shard = gcd(layout.data, run.nodes_gpus)
        assumed.append(f"sharded over {shard} ranks, replicated over the others")
        return replace(layout, z=shard, data=layout.data // shard)
    return replace(layout, z=layout.data, data=1)


def _scheduled(run: Run, stack: Stack, model: Model, layout: Layout, assumed: list[str]) -> Layout:
    if layout.pipeline == 1:
        return layout
    if _WAVE.search(run.remarks) and 2 * layout.pipeline <= model.layers:
        assumed.append("schedule ZB-V, for DualPipe or its like")
        return replace(layout, schedule=PipelineSchedule.ZBV, virtual_stages=2)
    if _ZERO_BUBBLE.search(run.remarks):
        return replace(layout, schedule=PipelineSchedule.ZB1P)
    virtual = run.vpp or 1
    if run.vpp is None and (stack.interleaved or _INTERLEAVED.search(run.notes)):
        virtual = largest_divisor(-(-model.layers // layout.pipeline), MOST_VIRTUAL_STAGES)
        assumed.append(f"{virtual} chunks a stage, interleaved ({stack.title}; not stated)")
    if virtual * layout.pipeline > model.layers:
        fewer = largest_divisor(virtual, max(model.layers // layout.pipeline, 1))
        assumed.append(f"{fewer} chunks a stage, not {virtual}, which would be more than layers")
        virtual = fewer
    schedule = PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.PLAIN
    return replace(layout, virtual_stages=virtual, schedule=schedule)


def _micro_batched(run: Run, stack: Stack, job: Job, layout: Layout, assumed: list[str]) -> Layout:
    """The stated micro-batch; else 1 in pipelines, and else the largest power of two up to 4 that divides."""
    share, remainder = divmod(job.recipe.global_batch, layout.dp)
    if remainder or not share:
        problem = f"global batch {job.recipe.global_batch} on {layout.dp} data-parallel ranks"
        raise BadInput(f"{problem} leaves a remainder")
    wanted = run.micro_batch
    if wanted is None:
        wanted = 1 if layout.pipeline > 1 else gcd(share, LARGEST_MICRO_BATCH)
        assumed.append(f"micro-batch {wanted} (not stated)")
    if stack.micro_batch == "stages" and layout.pipeline > 1 and wanted == share:
        wanted = max(share // (layout.pipeline * layout.virtual_stages), 1)
        assumed.append(f"a rank's batch in micro-batches of {wanted}, as many as chunks ({stack.title})")
    size = largest_divisor(share, wanted)
    if size != wanted:
        assumed.append(f"micro-batch {size}, since {wanted} does not divide a rank's {share} sequences")
    return replace(layout, micro_batch=size)


def _rounds(job: Job, layout: Layout, assumed: list[str]) -> Layout:
    """Plain 1F1B where micro-batches do not come in rounds of the stages."""
    steps = job.recipe.global_batch // (layout.micro_batch * layout.dp)
    if layout.schedule.rounds and steps % layout.pipeline:
        assumed.append(f"plain 1F1B, since {steps} micro-batches are not a multiple of {layout.pipeline} stages")
    elif layout.schedule.splits_backward and steps < layout.pipeline:
        assumed.append(f"plain 1F1B, since there are fewer micro-batches than {layout.pipeline} stages")
    else:
        return layout
    return replace(layout, schedule=PipelineSchedule.PLAIN, virtual_stages=1)


def _recomputing(run: Run, stack: Stack, job: Job, cluster: Cluster, layout: Layout, assumed: list[str]) -> Layout:
    stated = run.recompute.lower()
    for choice in (Recompute.SELECTIVE, Recompute.FULL, Recompute.NONE):
        if choice in stated:
            return replace(layout, recompute=choice)
    if stack.recompute != "fit" and not _OTHER_POLICY.search(run.notes):
        assumed.append(f"recomputation {stack.recompute} ({stack.title}; not stated)")
        return replace(layout, recompute=Recompute(stack.recompute))
    if explain(job, cluster.count, layout) is not None:
        return layout
    choices = [replace(layout, recompute=choice) for choice in Recompute]
    needed = Estimator(job, cluster).memory_bytes(LayoutTable.of(choices))
    fits = [choice for choice, needs in zip(choices, needed, strict=True) if needs <= cluster.accelerator.memory_bytes]
    chosen = (fits or choices[-1:])[0]
    assumed.append(f"recomputation {chosen.recompute}, the least that fits (not stated)")
    return chosen


Style = Literal["plain", "unbiased", "gated"]
STYLES: tuple[Style, ...] = ("gated", "plain")
"""Between which the number of parameters decides."""

_ASIDE = re.compile(
    r"\([^()]*\)|\[[^\[\]]*\]|\b(cut|reduced) to .*|\b(instruct|base|chat|hf|pretrain|dense|moe)\b", re.I
)
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*b\b", re.I)
_NO_PREDICTION = re.compile(r"(w/o|without|no)\s+mtp", re.I)
HEAD_FEATURES = 128
"""Features of a head where heads are not stated."""


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(files("weft.validation").joinpath("data", "models.toml").read_text(encoding="utf-8"))


def shape(run: Run, assumed: list[str], *, prediction: bool) -> Model:
    """The model of a run; ``prediction``: the software trains multi-token-prediction modules."""
    known = _catalogued(run.model)
    if known is not None and _agrees(run, known):
        return _from_catalogue(run, known, assumed, prediction=prediction)
    for pattern, reason in _data()["unsupported"].items():
        if re.search(pattern, run.model, re.I):
            raise BadInput(f"{run.model}: {reason}")
    if run.layers is None or run.hidden is None:
        raise BadInput(f"{run.model or 'model'}: neither its shape nor a model of the catalogue")
    return _from_columns(run, run.layers, run.hidden, assumed)


@cache
def _catalogued(model: str) -> Model | None:
    for name in _spellings(model):
        try:
            return models.load(name).model
        except UnknownName:
            continue
    return None


def _spellings(name: str) -> Iterator[str]:
    """The name as catalogues may write it: without remarks, points or the publisher."""
    bare = _ASIDE.sub(" ", name).strip(" -_,;:")
    yield bare
    yield bare.replace(".", "")
    yield re.sub(r"(?<=\d)\.0\b", "", bare)
    yield re.sub(r"^(meta|nvidia|mistralai|google|openai)[\s_/-]+", "", bare, flags=re.I)


def _agrees(run: Run, model: Model) -> bool:
    """Whether the columns state the same width and heads as the model."""
    pairs = [(run.hidden, model.hidden)]
    for attention in model.attentions[:1]:
        pairs += [(run.heads, attention.heads), (run.kv_heads, attention.kv_heads)]
    return all(stated in (None, value) for stated, value in pairs)


def _from_catalogue(run: Run, known: Model, assumed: list[str], *, prediction: bool) -> Model:
    model = known
    assumed.append(f"what the columns leave out of the shape as {known.name} in the catalogue")
    if run.layers is not None and run.layers != known.layers:
        model = replace(_with_layers(known, run.layers), prediction_layers=0)
        assumed.append(f"{run.layers} layers in the proportions of the {known.layers} of {known.name}")
    if run.vocab is not None:
        model = replace(model, vocab=run.vocab)
    if run.experts:
        model = _with_experts(model, run.experts, run.topk)
    if model.prediction_layers and (not prediction or _NO_PREDICTION.search(run.remarks)):
        model = replace(model, prediction_layers=0)
        assumed.append("no multi-token-prediction module trained")
    if model.positions and run.seq:
        model = replace(model, positions=max(model.positions, run.seq))
    return model


def _with_layers(model: Model, layers: int) -> Model:
    """Another number of layers, at least one of each kind, else in the model's proportions."""
    counts = {kind: sum(run.count for run in model.runs if run.block == kind) for kind in model.kinds}
    least = min(len(counts), layers)
    shares = [max(1, round(layers * count / model.layers)) for count in counts.values()][:least]
    shares[shares.index(max(shares))] += layers - sum(shares)
    runs = tuple(BlockRun(block=kind, count=count) for kind, count in zip(list(counts)[:least], shares, strict=True))
    return replace(model, runs=runs)


def _with_experts(model: Model, experts: int, top_k: int | None) -> Model:
    runs = []
    for run in model.runs:
        moe = run.block.moe
        changed = moe and replace(moe, experts=experts, top_k=min(top_k or moe.top_k, experts))
        block = replace(run.block, feed_forward=changed) if changed else run.block
        runs.append(replace(run, block=block))
    return replace(model, runs=tuple(runs))


def _from_columns(run: Run, layers: int, hidden: int, assumed: list[str]) -> Model:
    heads = run.heads or max(hidden // HEAD_FEATURES, 1)
    if run.heads is None:
        assumed.append(f"{heads} heads of {HEAD_FEATURES} features")
    kv_heads = run.kv_heads or heads
    if run.kv_heads is None:
        assumed.append("as many key-value heads as heads")
    if heads % kv_heads or hidden < heads:
        raise BadInput(f"{heads} heads, {kv_heads} key-value heads and {hidden} features contradict each other")
    size = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads}
    style, why = _style(run, size)
    assumed.append(f"{style} block ({why})")
    if run.vocab is None:
        default = _data()["vocabulary"][style]
        assumed.append(f"vocabulary {default['tokens']:,} ({default['source']}; not stated)")
    # Four times the width; gated, a multiple of 256 that holds as many parameters.
    ffn = run.ffn or (4 * hidden if style != "gated" else -(-8 * hidden // 3 // 256) * 256)
    if run.ffn is None:
        assumed.append(f"feed-forward width {ffn:,}")
    model = _build(run, style, ffn=ffn, **size)
    if run.experts and run.experts > 1 and run.topk is None:
        assumed.append("2 experts a token")
    if run.params_b is not None and model.tied_embeddings:
        untied = replace(model, tied_embeddings=False)
        if abs(untied.parameters / 1e9 - run.params_b) < abs(model.parameters / 1e9 - run.params_b):
            assumed.append("embeddings not tied (by the number of parameters)")
            model = untied
    return model


def _style(run: Run, size: dict[str, int]) -> tuple[Style, str]:
    """The family of the block: by name, else by the number of parameters, else by its proportions."""
    for style, pattern in _data()["families"].items():
        if re.search(pattern, run.model, re.I):
            return style, "by the model's name"
    named = _SIZE.findall(run.model)
    stated = run.params_b or (float(named[0]) if len(named) == 1 else None)
    if stated is not None and run.ffn is not None and not run.experts:
        gated, plain = (_build(run, style, ffn=run.ffn, **size).parameters / 1e9 / stated - 1 for style in STYLES)
        return "gated" if abs(gated) <= abs(plain) else "plain", "by the number of parameters"
    plain_size = run.ffn in (None, 4 * size["hidden"]) and size["kv_heads"] == size["heads"]
    return "plain" if plain_size else "gated", "by its proportions"


def _build(run: Run, style: Style, *, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> Model:
    plain, gated = style == "plain", style == "gated"
    attention = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, qkv_bias=plain, out_bias=plain, rotary=gated
    )
    layer = FeedForward(intermediate=ffn, gated=gated, bias=plain)
    feed: FeedForward | MixtureOfExperts = layer
    if run.experts and run.experts > 1:
        feed = MixtureOfExperts(experts=run.experts, top_k=min(run.topk or 2, run.experts), expert=layer)
    block = Block(hidden=hidden, attention=attention, feed_forward=feed, norm_bias=plain)
    return Model(
        name=run.model or "unnamed",
        hidden=hidden,
        vocab=run.vocab or _data()["vocabulary"][style]["tokens"],
        runs=(BlockRun(block=block, count=layers),),
        tied_embeddings=not gated,
        positions=0 if gated else run.seq or 2048,
        norm_bias=plain,
    )
