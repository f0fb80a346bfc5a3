"""Schedules and iterations for people and scripts: within the width, complete, to scale, inert."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from weft.collectives.schedules.bound import best_shares, ideal_s
from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.policies import compare, schedule
from weft.collectives.schedules.result import ScheduleResult, provision
from weft.errors import BadInput
from weft.fabric.dimension import Dimension
from weft.model.workload import Task, Workload, workload
from weft.simulation.workload import WorkloadResult, run_policies
from weft.views.collective import schedule_timeline, schedule_view
from weft.views.files import write_trace
from weft.views.simulation import workload_view
from weft.views.terminal import print_blocks

WIDE = (("switch", 8, 450e9), ("fully-connected", 4, 100e9), ("ring", 4, 50e9), ("switch", 16, 12.5e9))
NARROW = (("switch", 4, 150e9), ("ring", 4, 100e9))
SLOW = (("switch", 16, 100e9), ("switch", 16, 1e9))


def result(runs, dimensions, assumptions):
    return WorkloadResult(runs=runs, dimensions=tuple(dimensions), assumptions=assumptions)


def network(shape):
    return [
        Dimension(kind=kind, size=size, bandwidth_Bps=Bps, latency_s=1e-6 * (i + 1))
        for i, (kind, size, Bps) in enumerate(shape)
    ]


def outcome(shape=NARROW, kind="all-reduce", bytes_=64e6, policy="weft", chunks=None, **more):
    asked = request(kind, bytes_, network(shape))
    return ScheduleResult(
        timed=schedule(asked, policy, chunks=chunks),
        baseline=schedule(asked, "baseline", chunks=chunks),
        shares=best_shares(asked),
        ideal_s=ideal_s(asked),
        provision=provision(asked),
        **more,
    )


def printed(blocks, width=100):
    console = Console(width=width, file=io.StringIO())
    print_blocks(blocks, console)
    return console.file.getvalue()


def table(one, width=100, *, verbose=True):
    return printed(schedule_view(one, verbose=verbose), width)


@pytest.mark.slow_but(12)
@pytest.mark.parametrize("width", [80, 110, 200])
@pytest.mark.parametrize("shape", [NARROW, WIDE, SLOW], ids=["narrow", "wide", "slow"])
@pytest.mark.parametrize("bytes_", [1e3, 64e6, 1e12])
def test_a_schedule_keeps_within_the_width(width, shape, bytes_):
    one = outcome(shape, bytes_=bytes_, assumptions=("rail and spine share the NIC: one dimension",))
    asked = one.timed.schedule.request
    one = replace(one, others=compare(asked))
    lines = table(one, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_slow_dimensions_have_a_remedy():
    slow = outcome(SLOW)
    text = table(slow)
    found = json.loads(slow.to_json())["provision"]
    assert found["too_slow"] == [2]
    assert found["enough_Bps"] == pytest.approx([100e9, 6.25e9], rel=1e-4)
    assert "Bottleneck: dimension 2; every schedule leaves others idle. With 6.25 GB/s none would be." in text
    assert "Bottleneck" not in table(outcome())


def test_a_timeline_has_every_stage(tmp_path):
    one = outcome(policy="themis", chunks=4)
    path = tmp_path / "trace.pftrace"
    write_trace(str(path), schedule_timeline(one.timed))
    data = path.read_bytes()
    for chunk in range(4):
        for stage in ("reduce-scatter", "all-gather"):
            assert f"{stage} chunk {chunk}".encode() in data
    assert b"dimension 1 (switch 4)" in data
    assert b"dimension 2 (ring 4)" in data
    with pytest.raises(BadInput, match="written"):
        write_trace(str(tmp_path / "none" / "x"), schedule_timeline(one.timed))


# Iterations -------------------------------------------------------------------------------------


def runs(workload, dimensions):
    return run_policies(workload, dimensions, chunks=8)


@pytest.mark.parametrize("width", [80, 110, 200])
@pytest.mark.parametrize("shape", [NARROW, WIDE], ids=["narrow", "wide"])
def test_an_iteration_keeps_within_the_width(width, shape):
    dimensions = network(shape)
    found = runs(workload("dlrm"), dimensions)
    text = printed(workload_view(result(found, dimensions, ("a note " * 30,)), verbose=True), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_a_workload_without_work_has_a_table():
    """Nothing computes and nothing communicates: no division by zero."""
    workload = Workload(name="idle", tasks=(Task(name="nothing"),))
    dimensions = network(NARROW)
    found = runs(workload, dimensions)
    text = printed(workload_view(result(found, dimensions, ())))
    assert "idle over 4 x 4" in text
    assert json.loads(result(found, dimensions, ()).to_json())["compute_s"] == 0
