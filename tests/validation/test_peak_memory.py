"""Peak memory beside measured peaks: those of the shipped runs, and those of the same pages that no constant saw.

torchtitan's fragmentation (7 %) was set with the seven shipped rows of its December 2024 page that have no pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from weft.validation.inputs import GIB, Prepared, prepare
from weft.validation.runs import Run, shipped_runs
from weft.validation.summary import Predictor

RUNS: Mapping[str, Run] = {run.name: run for run in shipped_runs() if isinstance(run, Run)}
TORCHTITAN = [
    ("torchtitan-8B-8-compile+fp8", {"precision": "bf16"}, 77.0),
    ("torchtitan-8B-8-eager", {"gpus": 128, "dp": 128, "global_batch": 256}, 67.0),
    ("torchtitan-8B-cp2", {"seq": 131072, "cp": 4, "dp": 2, "global_batch": 2}, 84.0),
    ("torchtitan-70B-256-asynctp", {"notes": "2D"}, 71.9),
    ("torchtitan-405B-512-1f1b", {"vpp": 2, "notes": "interleaved 1F1B"}, 72.7),
    ("torchtitan-405B-4d-cp2", {"seq": 131072, "cp": 4, "dp": 2, "global_batch": 16}, 77.1),
    ("torchtitan-8B-h200-64", {"gpus": 32, "dp": 32, "global_batch": 64}, 47.96),
]
"""Rows of torchtitan's benchmarks/llama3_h100_202412_torchtitan.md (tables 1 to 6) and
llama3-8b_h200_202506_trainy-whitefiber.md that are not shipped: the shipped row that differs least, in what, GiB."""
SIMUMAX = [
    ("simumax-b200-llama3_70b_l12_tp1_cp8_pp1_dp1_seq32768_mbc4_cef", {"tp": 2, "cp": 4}, 68.43),
    ("simumax-b200-llama3_405b_l4_tp1_cp8_pp1_dp1_seq32768_mbc4_cef", {"tp": 2, "cp": 4}, 87.03),
    ("simumax-b200-llama3_70b_l12_tp1_cp8_pp1_dp1_seq32768_mbc4_cef", {"seq": 131072}, 147.99),
    ("simumax-b200-llama3_70b_l12_tp1_cp8_pp1_dp1_seq32768_mbc4_cef", {"tp": 2, "cp": 4, "seq": 131072}, 112.67),
    ("simumax-b200-llama3_405b_l4_tp1_cp8_pp1_dp1_seq32768_mbc4_cef", {"tp": 2, "cp": 4, "seq": 131072}, 118.13),
]
"""Rows of SimuMax's docs/b200/b200_release_v1.2_summary.md, likewise."""


def errors(rows: list[tuple[Run, float]]) -> np.ndarray:
    prepared = [prepare(run) for run, _ in rows]
    known = [one for one in prepared if isinstance(one, Prepared)]
    assert len(known) == len(rows)
    measured = np.array([gib for _, gib in rows]) * GIB
    return Predictor(known).predict().memory_bytes / measured - 1


def shipped(family: str) -> list[tuple[Run, float]]:
    return [(run, run.peak_memory_gib) for run in RUNS.values() if run.family == family and run.peak_memory_gib]


@pytest.mark.parametrize(
    ("family", "rows", "mean", "worst"), [("torchtitan", 12, 0.047, 0.127), ("simumax", 22, 0.0012, 0.0083)]
)
def test_shipped_peaks(family: str, rows: int, mean: float, worst: float) -> None:
    found = errors(shipped(family))
    assert len(found) == rows
    assert np.abs(found).mean() <= mean
    assert np.abs(found).max() <= worst


@pytest.mark.parametrize(
    ("rows", "mean", "worst"), [(TORCHTITAN, 0.054, 0.08), (SIMUMAX, 0.0002, 0.0004)], ids=["torchtitan", "simumax"]
)
def test_peaks_that_no_constant_saw(
    rows: list[tuple[str, dict[str, object], float]], mean: float, worst: float
) -> None:
    found = errors([(replace(RUNS[like], **changed), gib) for like, changed, gib in rows])  # type: ignore[arg-type]
    assert np.abs(found).mean() <= mean
    assert np.abs(found).max() <= worst
