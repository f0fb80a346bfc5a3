from __future__ import annotations

import pytest

from weft.validation.runs import Run


def run_of(**changes: object) -> Run:
    """Korthikanti et al.'s 22B run with full recomputation (arXiv 2205.05198, table 5), changed."""
    values: dict[str, object] = {
        "line": 2,
        "id": "22b",
        "family": "korthikanti",
        "source": "Korthikanti et al. 2022, Table 5",
        "model": "GPT 22B",
        "layers": 48,
        "hidden": 6144,
        "heads": 64,
        "vocab": 51200,
        "seq": 2048,
        "gpu": "A100-80GB-SXM",
        "gpus": 8,
        "nodes_gpus": 8,
        "tp": 8,
        "pp": 1,
        "zero": 0,
        "micro_batch": 4,
        "global_batch": 4,
        "precision": "fp16",
        "recompute": "full",
        "sequence_parallel": False,
        "measured_iter_s": 1.42,
    }
    return Run(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def make():
    return run_of
