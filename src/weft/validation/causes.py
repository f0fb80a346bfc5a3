"""Errors of predictions by what runs have in common: which mechanism, accelerator or statement they come with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.estimation.trust import equal_shares
from weft.validation.inputs import Prepared

SEQUENCES = (2048, 4096, 8192, 32768)
"""Tokens up to which sequences are of one class."""
MANY = 512
"""Accelerators from which a run is large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Errors of the runs that share ``value`` of ``cause``; every family weighs the same.

    ``mape`` is the mean absolute error, ``bias`` the mean signed one, ``excess`` how much larger ``mape`` is than
    that of the same families' other runs (None where a family has no others).
    """

    cause: str
    value: str
    runs: int
    families: int
    mape: float
    bias: float
    excess: float | None


def causes(runs: Iterable[tuple[Prepared, float]]) -> tuple[Cause, ...]:
    """Errors by cause and value, of runs with their relative errors; causes that all runs share are left out."""
    known = list(runs)
    errors = np.array([error for _, error in known])
    families = np.array([run.run.family for run, _ in known])
    found: list[Cause] = []
    for cause, value_of in CAUSES.items():
        values = np.array([value_of(run) for run, _ in known])
        if len(set(values)) > 1:
            found += _by_value(cause, values, errors, families)
    return tuple(found)


def _by_value(cause: str, values: np.ndarray, errors: np.ndarray, families: np.ndarray) -> Iterator[Cause]:
    for value in sorted(set(values)):
        own = values == value
        shares = equal_shares(families[own])
        yield Cause(
            cause=cause,
            value=str(value),
            runs=int(own.sum()),
            families=len(set(families[own])),
            mape=float(shares @ np.abs(errors[own])),
            bias=float(shares @ errors[own]),
            excess=_excess(own, np.abs(errors), families),
        )


def _excess(own: np.ndarray, sizes: np.ndarray, families: np.ndarray) -> float | None:
    """Mean difference over the families that have runs of both kinds."""
    both = [name for name in sorted(set(families[own])) if (families[~own] == name).any()]
    gaps = [sizes[own & (families == name)].mean() - sizes[~own & (families == name)].mean() for name in both]
    return float(np.mean(gaps)) if gaps else None


def _sequence(run: Prepared) -> str:
    tokens = run.job.recipe.sequence
    for i, most in enumerate(SEQUENCES):
        if tokens <= most:
            return f"{i + 1}: up to {most:,} tokens"
    return f"{len(SEQUENCES) + 1}: over {SEQUENCES[-1]:,} tokens"


def _size(run: Prepared) -> str:
    count, domain = run.cluster.count, run.cluster.tiers[0].size
    if count <= domain:
        return "1: one scale-up domain"
    return f"2: fewer than {MANY}" if count < MANY else f"3: {MANY} and more"


def _assumed(word: str) -> Callable[[Prepared], str]:
    def told(run: Prepared) -> str:
        return "assumed" if any(word in one and "not stated" in one for one in run.assumptions) else "stated"

    return told


CAUSES: Mapping[str, Callable[[Prepared], str]] = {
    "models": lambda run: "experts" if any(kind.moe for kind in run.job.model.kinds) else "dense",
    "accelerator": lambda run: run.cluster.accelerator.name,
    "software": lambda run: run.stack.name,
    "precision": lambda run: run.job.recipe.precision,
    "accelerators": _size,
    "sequence": _sequence,
    "tensor parallel": lambda run: "yes" if run.layout.x > 1 else "no",
    "pipeline": lambda run: run.layout.schedule if run.layout.pipeline > 1 else "none",
    "context parallel": lambda run: "yes" if run.layout.context > 1 else "no",
    "expert parallel": lambda run: "yes" if run.layout.expert > 1 else "no",
    "weights": lambda run: "sharded (FSDP)" if run.layout.z > 1 else "replicated",
    "recompute": lambda run: run.layout.recompute,
    "attention": lambda run: run.job.recipe.attention,
    "time": lambda run: "from a rate in FLOP/s" if run.derived else "stated",
    "FLOPs convention": lambda run: "not known" if run.warning else "known, or of no weight",
    "recompute policy": _assumed("recomputation"),
    "micro-batch": _assumed("micro-batch"),
    "network": _assumed("network"),
}
"""What may be behind errors, and what a run has of it."""
