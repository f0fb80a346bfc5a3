"""Full evaluations per CPU-second on one core, where layouts share little work.

Search batches share the cost of a mesh among the switches; here layouts are drawn at random from the whole
space, so
that few of them do.  Sensitivities are not computed.

Run: ``python benchmarks/evaluation_rate.py``.
"""

from __future__ import annotations

import os
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np

from weft.cluster import load as load_cluster
from weft.estimation import Estimator
from weft.layout.table import COLUMNS, LayoutTable
from weft.model import resolve_job
from weft.search import FOUR_D
from weft.search.enumeration import Enumeration

ROWS = 200_000


def sample(enumeration: Enumeration, rows: int) -> LayoutTable:
    """Random layouts of a space, one per micro-batch, schedule and mesh first."""
    drawn = np.random.default_rng(0)
    frames = np.sort(drawn.permutation(len(enumeration.frames))[:rows])
    row, columns = enumeration.switches.crossed(frames)
    start = np.cumsum(enumeration.switches.width[frames]) - enumeration.switches.width[frames]
    chosen = start + (drawn.random(len(frames)) * enumeration.switches.width[frames]).astype(np.int64)
    table = enumeration.frames.take(row[chosen]).replaced({name: v[chosen] for name, v in columns.items()})
    return table.take(drawn.permutation(len(table)))


def main() -> None:
    """Time random layouts of dense and routed models."""
    for model, cluster in (
        ("megatron-1t", "a100-4096"),
        ("llama-3.1-405b", "h100-16384"),
        ("deepseek-v3", "h100-2048"),
    ):
        job, where = resolve_job(model), load_cluster(cluster)
        table = sample(Enumeration(job, where.count, FOUR_D), ROWS)
        meshes = len(np.unique(np.stack([table.column(name) for name in COLUMNS[:10]]), axis=1).T)
        estimator = Estimator(job, where)
        start = time.process_time()
        estimator.evaluate(table)
        seconds = time.process_time() - start
        print(
            f"{model:15s} {len(table):7,d} layouts on {meshes:6,d} meshes and splits: "
            f"{len(table) / seconds:9,.0f} evaluations per CPU-second"
        )


if __name__ == "__main__":
    main()
