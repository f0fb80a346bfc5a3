"""The job files of arXiv 2503.05324 (github.com/ofircohen205/dcn-simulators), for figures of its authors' simulator.

One file a job, ``job_<id>-<MODEL>.txt``: a header, then ``src dst src_tor dst_tor start_time flow_size compute_time
stage_index`` for each edge of a ring, times in ns, sizes in bytes.  Each stage is a ring of its own.  Nodes count from
the 64 ToRs on, then 32 spines, then hosts ToR by ToR.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from weft.routing.traffic import JobTraffic, job_traffic, merged

FIRST_HOST = 64 + 32


@cache
def paper_jobs(jobs: int, ring: int) -> JobTraffic:
    """A workload of the paper, from the folder that WEFT_ROUTING_JOBS names; skips the test where there is none."""
    folder = os.environ.get("WEFT_ROUTING_JOBS") or pytest.skip("WEFT_ROUTING_JOBS is not set")
    files = Path(folder, f"concurrent_jobs_{jobs}", f"ring_size_{ring}").glob("job_*.txt")
    return merged([job_of(path) for path in sorted(files, key=lambda path: int(path.stem[4:].split("-")[0]))])


def job_of(path: Path) -> JobTraffic:
    table = np.loadtxt(path, dtype=np.int64, ndmin=2)
    stages, stage, lines = np.unique(table[:, 7], return_inverse=True, return_counts=True)
    return job_traffic(
        table[:, 0] - FIRST_HOST,
        table[:, 1] - FIRST_HOST,
        table[:, 5].astype(np.float64),
        collective=stage,
        rounds=2 * (lines - 1),
        names=[f"stage {number}" for number in stages.tolist()],
        job=np.zeros(len(stages), dtype=np.int64),
        jobs=(path.stem,),
        start_s=table[:1, 4] / 1e9,
        pause_s=table[:1, 6] / 1e9,
    )
