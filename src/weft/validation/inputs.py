"""From a measured run to what an estimate needs, with every assumption; or why that cannot be.

The cluster is the accelerator that its name means, the scale-up domain and the network; the recipe is batch,
sequence, precision, attention kernel and dropout; the seconds of an iteration are stated by the source, or
follow from the rate that it states.  ``cut.py`` finds the model and the layout.
Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from itertools import chain
from operator import attrgetter
from typing import Literal

from weft.cluster import catalogue
from weft.cluster.spec import Accelerator, Cluster, TierKind
from weft.errors import BadInput
from weft.estimation.iteration import CORE_REPLAY
from weft.layout.spec import Layout
from weft.model.job import (
    AttentionKernel,
    Job,
    Precision,
    Recipe,
    attention_forward_flops,
    block_forward_flops,
    model_flops,
)
from weft.solvers import largest_divisor
from weft.validation.cut import cut, degrees, shape
from weft.validation.runs import Run, Stack, Unparsed, baseline_warning, recognise

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    name: str
    family: str
    reason: str


Setting = tuple[Stack, Job, Cluster, Layout, tuple[str, ...]]
"""What a run's columns say of it before its measured figures do, with what was assumed."""


_FIGURES = frozenset(("line", "id", "tflops_per_gpu", "mfu", "peak_memory_gib", "counts_recompute"))
_TIMES = frozenset(("measured_iter_s", "iter_s", "tokens_s_gpu"))
"""Columns that say nothing of a setting; of times and rates, where the batch is stated."""
_without_times = attrgetter(*(field.name for field in fields(Run) if field.name not in _FIGURES | _TIMES))
_with_times = attrgetter(*(field.name for field in fields(Run) if field.name not in _FIGURES))


def prepare_all(rows: Iterable[Run | Unparsed]) -> tuple[Prepared | Skipped, ...]:
    """Every row in order, prepared or skipped; rows of one setting share it."""
    known: dict[object, Setting | str] = {}
    return tuple(
        _prepared(row, known)
        if isinstance(row, Run)
        else Skipped(name=row.name, family=row.family, reason=f"unreadable: {row.reason}")
        for row in rows
    )


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
    measured, note = stated_seconds(run, job)
    derived = measured is None
    if measured is None:
        measured, note = seconds_from_rate(run, stack, job, layout, cluster.accelerator)
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
            return catalogue.load(f"{preset}-{count}")
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
    tiers = catalogue.default_tiers(chip, count, kind=kind, used_per_domain=domain)
    name, partial = f"{chip.name} x {count}", domain < min(count, chip.scale_up_size)
    return Cluster(name=name, accelerator=chip, count=count, tiers=tiers, whole_domains=partial)


def named_accelerator(text: str) -> Accelerator:
    """The accelerator of the catalogue whose name has most words in common with ``text``, all of them in it."""
    plain = text.lower()
    for pattern, put in _JOINED:
        plain = pattern.sub(put, plain)
    words = set(re.split(r"[^a-z0-9]+", plain))
    fitting = [name for name in catalogue.accelerator_names() if set(name.split("-")) <= words]
    if not fitting:
        raise BadInput(f"accelerator {text!r} is not in the catalogue")
    return catalogue.accelerator(max(fitting, key=lambda name: (len(name.split("-")), len(name), name)))


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


def stated_seconds(run: Run, job: Job) -> tuple[float | None, str]:
    """The time that a source states, directly or as tokens/s, and what was assumed."""
    seconds = run.measured_iter_s or run.iter_s
    if seconds is not None:
        return seconds, ""
    if run.tokens_s_gpu is None:
        return None, ""
    return job.recipe.tokens / (run.tokens_s_gpu * (run.gpus or 1)), "time from tokens/s"


def seconds_from_rate(run: Run, stack: Stack, job: Job, layout: Layout, chip: Accelerator) -> tuple[float | None, str]:
    """The time that follows from stated TFLOP/s or MFU, and how FLOPs were counted."""
    rate = run.tflops_per_gpu and 1e12 * run.tflops_per_gpu
    unit = "TFLOP/s"
    if rate is None and run.mfu is not None:
        rate, unit = run.mfu * chip.peak_flops(job.recipe.precision), "MFU"
    if rate is None:
        return None, ""
    counted, how = counted_flops(run, stack, job, layout)
    return counted / (rate * layout.world), f"time from stated {unit}, {how}"


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
