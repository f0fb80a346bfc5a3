"""The software that ran a training run: recognised from words, with what it does where a table is silent."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from weft.layout.spec import TensorOverlap
from weft.model.job import AttentionKernel, Precision
from weft.validation.runs import Run

UNKNOWN = "unknown"
STATED: tuple[tuple[str, str, float], ...] = (
    (r"\b(hybrid|deep)-?ep\b", "dispatch_once", 1.0),
    (r"\bnccl all-to-alls?\b", "dispatch_once", 0.0),
    (r"\bdispatch not overlapped\b", "expert_overlap", 0.0),
    (r"\brms[ -]?(norm )?kernel\b|\bfused (rms|layer) ?norms?\b", "norm_overhead", 1.0),
    (r"\bflash[ _-]?attention[ _-]?v?1(\.\d+)*\b", "attention_share", 0.55),
    (r"\bbalanced\b", "expert_spread", 0.0),
    (r"\bno cuda graphs\b", "launches_per_step", 3.0),
    (r"\bcuda graphs of routing\b", "launches_per_step", 2.25),
    (r"\bcuda graphs of attention and routing\b", "launches_per_step", 1.5),
    (r"\bcuda graphs of whole (layers|iterations)\b", "launches_per_step", 0.3),
)
"""What words of a table say of constants: a pattern, the constant and its value.  Launches are those of modules of
Transformer Engine started from Python, of which graphs leave the rest, as in ``data/prior.toml``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Training software and its documented defaults; ``data/stacks.toml`` says what each field means.

    ``source`` says where the defaults are from; ``gradient_bytes`` is keyed by precision, other precisions
    have 4.  ``stated`` are constants that the words of a run state, which count over those of the software's table.
    ``flops_stated`` says whether the counting of FLOPs is the software's own, not taken from one that it is
    like.
    """

    name: str
    title: str
    source: str
    precision: Precision
    attention: AttentionKernel
    dropout: bool
    recompute: Literal["none", "selective", "full", "fit"]
    zero: int
    sequence_parallel: bool
    overlap_tensor: TensorOverlap
    overlap_reduce: bool
    overlap_gather: bool
    gradient_bytes: Mapping[str, int]
    interleaved: bool
    expert_tensor: bool
    prediction: bool
    micro_batch: Literal["of", "stages"]
    reshard: bool
    flops: Literal["full", "causal"]
    flops_stated: bool
    memory: Literal["allocated", "reserved"]
    pattern: str = ""
    sharded_by: str = ""
    stated: tuple[tuple[str, float], ...] = ()


@cache
def stacks() -> Mapping[str, Stack]:
    """All stacks by name, in the order in which they are recognised."""
    text = files("weft.validation").joinpath("data", "stacks.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    return {name: Stack(name=name, flops_stated=_states(raw, name, "flops"), **_whole(raw, name)) for name in raw}


def _states(raw: Mapping[str, dict[str, Any]], name: str, key: str) -> bool:
    """Whether a stack, or an older or newer one of the same name, gives a value itself."""
    base = raw[name].get("like", "")
    return key in raw[name] or (base.split("-")[0] == name.split("-")[0] and _states(raw, base, key))


def _whole(raw: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """The table of a stack with what it takes from others; patterns are its own."""
    own = raw[name]
    base = _whole(raw, own["like"]) if "like" in own else {}
    merged = {key: value for key, value in base.items() if key != "pattern"} | own
    return {key: value for key, value in merged.items() if key != "like"}


def recognise(run: Run) -> Stack:
    """The stack that a run's software names, else its other words; ``unknown`` where none does."""
    known = stacks()
    source = f"{run.source}; {run.family}; on {run.gpu}"
    places = [source, run.notes, f"{run.source_url} {run.model}"]
    if run.software:
        places.insert(0, f"{run.software}; on {run.gpu}")
    elif _is_baseline(run):
        places.insert(0, run.notes)
    stack = next((found for place in places if (found := _named(place))), known[UNKNOWN])
    ran = known[stack.sharded_by] if run.zero == 3 and stack.sharded_by else stack
    words = f"{run.kernels}; {run.notes}"
    stated = {name: value for pattern, name, value in STATED if _found(pattern, words)}
    return replace(ran, stated=tuple(stated.items())) if stated else ran


def baseline_warning(run: Run) -> str:
    """A warning of a run that another system's paper compares with, and whose software only its notes name; else
    empty."""
    if not _is_baseline(run):
        return ""
    return f"a baseline, by its notes: taken for {recognise(run).title}; the column software would decide"


def _is_baseline(run: Run) -> bool:
    return not run.software and _found(r"\bbaseline\b", run.notes) and _named(run.notes) is not None


def _named(text: str) -> Stack | None:
    return next((one for one in stacks().values() if one.pattern and _found(one.pattern, text)), None)


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None
