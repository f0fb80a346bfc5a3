"""The flows of a training run over gloo, as its operations say, show its period and its groups."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import grid_of
from test_training import session
from torch.utils._python_dispatch import TorchDispatchMode

from weft.commands.route import measured
from weft.fabric.families import clos
from weft.layout.spec import Layout

PERIOD_S = 1.0
STEPS = 18
PASSES = {"allreduce_": 2.0, "_allgather_base_": 1.0, "_reduce_scatter_base_": 1.0}
"""How often the whole buffer passes each connection of a ring, times the number of ranks over all but one."""


class Operations(TorchDispatchMode):
    """What reaches torch.distributed: source, target, bytes, begin and end, of a ring or of a send."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        begin = time.time()
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and name in (*PASSES, "send"):
            group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject))
            ranks = dist.get_process_group_ranks(group)
            buffer = args[1] if name == "_reduce_scatter_base_" else args[0]
            size = (buffer[0] if isinstance(buffer, list) else buffer).nbytes
            own = dist.get_rank()
            if name == "send":
                target = ranks[args[2]]
            else:
                target = ranks[(ranks.index(own) + 1) % len(ranks)]
                size *= PASSES[name] * (len(ranks) - 1) / len(ranks)
            self.rows.append((own, target, size, begin, time.time()))
        return result


def train(layout):
    """The flows of a rank in several steps; computing takes as long as it takes until the next begins."""
    grid = grid_of(layout)
    if grid is None:
        return []
    running = session(grid, "stages" if layout.pipeline > 1 else "gpt")
    running.step()
    dist.barrier(group=grid.group("data")) if layout.world < dist.get_world_size() else dist.barrier()
    first = time.time()
    with Operations() as operations:
        for step in range(STEPS):
            time.sleep(max(first + step * PERIOD_S - time.time(), 0.0))
            running.step()
    return operations.rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "patterns"),
    [
        (Layout(pipeline=2, data=4, micro_batch=2), {"ring of 4", "ring of 2"}),
        (Layout(data=8, micro_batch=2), {"ring of 8"}),
    ],
)
def test_a_run_over_gloo_is_recognised(ranks, tmp_path, layout, patterns):
    rows = [row for rows in ranks.run(train, layout) for row in rows]
    table = tmp_path / "flows.csv"
    lines = [f"{source},{target},{size:.0f},{begin:.6f},{end:.6f}\n" for source, target, size, begin, end in rows]
    table.write_text("source,target,bytes,start_s,end_s\n" + "".join(lines))
    demand = measured([str(table)], clos.build(8, radix=4, bandwidth_Bps=50e9))
    (job,) = demand.jobs
    assert job.accelerators == tuple(range(8))
    # Eight processes on few cores delay steps by up to half a period.
    assert job.period_s == pytest.approx(PERIOD_S, rel=0.03)
    assert patterns <= set(job.collectives)
    sent = np.array([size for _, _, size, _, _ in rows]).sum() / STEPS
    assert job.bytes == pytest.approx(sent, rel=0.2)
