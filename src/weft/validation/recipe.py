"""How a run trains: batch, sequence, precision, attention kernel and dropout."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.cluster.spec import Accelerator
from weft.errors import BadInput
from weft.model.job import AttentionKernel, Precision, Recipe
from weft.model.spec import Model
from weft.validation.runs import Run
from weft.validation.stack import Stack

PRECISIONS: tuple[tuple[str, Precision], ...] = (
    (r"^(nv|mx)?fp4", "nvfp4"),
    (r"^mx", "mxfp8"),
    (r"^(fp|float)8", "fp8"),
    (r"^b(f|float)16", "bf16"),
    (r"^(fp|float)16|^half|^amp", "fp16"),
    (r"^(fp|float)32$|^full$|^single$", "fp32"),
)
"""What tables call precisions, by how the name begins."""
SEQUENCE = 2048
"""Tokens of a sequence where none is stated."""
_PURE = re.compile(r"mp_mode PURE|reduc\w* in (bf16|fp16)|(bf16|fp16) (gradient )?reduc", re.I)
_ACCUMULATION = re.compile(r"grad(?:ient)?[ _-]?acc\w*(?:[ _-]steps)?\s*[=:]?\s*(\d+)", re.I)
_FLASH = re.compile(r"flash[ -]?att|\bsdpa\b|cudnn attention", re.I)
_UNFUSED = re.compile(r"unfused|(no|without) flash|naive attention|eager attention", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A recipe and what was assumed of it."""

    recipe: Recipe
    assumptions: tuple[str, ...]


def training(run: Run, stack: Stack, model: Model, chip: Accelerator, replicas: int) -> Training:
    """The recipe of a run; ``replicas`` see different sequences.

    Raises:
        BadInput: a precision that Weft does not know, or that the accelerator lacks.
    """
    assumed: list[str] = []
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
    chip.peak_flops(precision)
    return Training(recipe=recipe, assumptions=tuple(assumed))


def _precision(run: Run, stack: Stack, chip: Accelerator, assumed: list[str]) -> Precision:
    if not run.precision:
        precision: Precision = stack.precision if chip.bf16_flops else "fp16"
        assumed.append(f"precision {precision} (not stated)")
        return precision
    for pattern, precision in PRECISIONS:
        if re.search(pattern, run.precision, re.I):
            return precision
    raise BadInput(f"precision {run.precision!r} is not modelled")


def _batch(run: Run, replicas: int, sequence: int, assumed: list[str]) -> int:
    """Sequences of a global batch: from its time and rate, else from the micro-batches that are stated."""
    seconds = run.measured_iter_s or run.iter_s
    if seconds and run.tokens_s_gpu and run.gpus:
        batch = max(round(seconds * run.tokens_s_gpu * run.gpus / sequence / replicas), 1) * replicas
        assumed.append(f"global batch {batch} (from time and tokens/s)")
        return batch
    found = _ACCUMULATION.search(run.notes)
    steps = int(found[1]) if found else 4 * (run.pp or 1) if (run.pp or 1) > 1 else 1
    batch = (run.micro_batch or 1) * replicas * steps
    why = "stated" if found else "assumed"
    assumed.append(f"global batch {batch} ({steps} micro-batches a rank, {why})")
    return batch
