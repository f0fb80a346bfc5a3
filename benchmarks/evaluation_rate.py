"""Full evaluations per CPU-second on one core, where layouts share little work.

Search batches share the cost of a mesh among the switches; here layouts are drawn at random from the whole
space, so that few of them do.  Sensitivities are not computed.

Run: ``python benchmarks/evaluation_rate.py``.
"""

from __future__ import annotations

import bench
import numpy as np

from weft.cluster import load as load_cluster
from weft.estimation import Estimator
from weft.layout.check import reject
from weft.layout.table import COLUMNS, LayoutTable
from weft.model import resolve_job
from weft.search import FOUR_D
from weft.search.enumeration import Enumeration

ROWS = 200_000
CASES = (("megatron-1t", "a100-4096"), ("llama-3.1-405b", "h100-16384"), ("deepseek-v3", "h100-2048"))


def sample(enumeration: Enumeration, rows: int) -> LayoutTable:
    """Random valid layouts of a space, of which each has another mesh, micro-batch or schedule."""
    drawn = np.random.default_rng(0)
    (frames,) = enumeration.parts(frames=10**9)
    chosen = np.sort(drawn.permutation(len(frames.frames))[:rows])
    width = frames.switches.width[chosen]
    row, columns = frames.switches.crossed(chosen)
    one = np.cumsum(width) - width + (drawn.random(len(chosen)) * width).astype(np.int64)
    table = frames.frames.take(row[one]).replaced({name: values[one] for name, values in columns.items()})
    valid = np.flatnonzero(reject(enumeration.job, enumeration.count, table) < 0)
    return table.take(drawn.permutation(valid))


def main() -> None:
    """Time random layouts of dense and routed models."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    for model, cluster in (("gpt2", "a100-8"),) if options.tiny else CASES:
        job, where = resolve_job(model), load_cluster(cluster)
        table = sample(Enumeration(job, where.count, FOUR_D), ROWS)
        meshes = len(np.unique(np.stack([table.column(name) for name in COLUMNS[:10]]), axis=1).T)
        estimator = Estimator(job, where)
        seconds = bench.cpu_s(lambda estimator=estimator, table=table: estimator.evaluate(table))
        figures[f"{model}_per_cpu_s"] = len(table) / seconds
        print(
            f"{model:15s} {len(table):7,d} layouts on {meshes:6,d} meshes and splits: "
            f"{len(table) / seconds:9,.0f} evaluations per CPU-second"
        )
    bench.record(options, figures)


if __name__ == "__main__":
    main()
