"""A training run in one go, or in several: after a failure that may pass it goes on from its last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from weft.checkpoints import latest
from weft.commands import train_rank
from weft.commands.train_rank import TrainingRequest
from weft.errors import WeftError
from weft.launched import launched
from weft.layout import Layout
from weft.runtime.run.ranks import run_ranks

RESTARTS = 3
"""Failures after which a run has made no new checkpoint that --restart bears."""
_OF_LAYOUT = ("layout", "device", "settings", "cluster", "calibration")
"""What a request has that follows from its layout."""


def run_attempts(request: TrainingRequest, others: Sequence[TrainingRequest]) -> Layout:
    """Train on all ranks; where that is wanted, go on from the last checkpoint after a failure that may pass.

    Args:
        others: the same with other layouts, of which each failure takes the next.

    Returns:
        The layout with which the run ended.
    """
    failures, newest, left = 0, _newest(request), list(others)
    while True:
        try:
            layout = request.layout
            run_ranks(train_rank.train_rank, (request,), layout.world, request.device, request.timeout_s, layout)
            return layout
        except (WeftError, RuntimeError) as error:
            if not request.restarts or launched() or not getattr(error, "temporary", True):
                raise
            failures = failures + 1 if _newest(request) == newest else 1
            if failures > RESTARTS:
                raise
            newest = _newest(request)
            if not request.quiet:
                reason = str(error).strip().splitlines()[-1]
                print(f"failed ({reason}); going on from {newest or 'the beginning'}", flush=True)
        request = replace(request, resume=newest is not None, resume_from=None if newest else request.resume_from)
        if left:
            other = left.pop(0)
            request = replace(request, **{name: getattr(other, name) for name in _OF_LAYOUT})


def _newest(request: TrainingRequest) -> Path | None:
    return latest(request.out) if request.out is not None else None
