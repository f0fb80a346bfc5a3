"""SimAI's workload text: its form, and its sums beside the step's own list."""

from collections import Counter

import pytest

from weft.cluster import Cluster, load
from weft.estimation.iteration import Estimator
from weft.interop.training import simai
from weft.interop.training.launchers import LaunchArguments, NotExpressible
from weft.layout.mesh import degrees
from weft.layout.spec import Layout
from weft.layout.stages import HeldChunk, held_chunks
from weft.layout.step import Step
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.model.resolve import RecipeChanges, resolve_job

CLUSTER = load("h100-64")
DENSE = resolve_job("llama-2-7b", RecipeChanges(global_batch=64))
ROUTED = resolve_job("mixtral-8x7b", RecipeChanges(global_batch=64))
CASES = [
    (DENSE, Layout(x=8, data=8, sequence_parallel=True)),
    (DENSE, Layout(x=4, data=4, pipeline=4, zero=0)),
    (DENSE, Layout(x=2, data=32, zero=2, recompute="full")),  # type: ignore[arg-type]
    (ROUTED, Layout(x=2, data=16, pipeline=2, expert=8, sequence_parallel=True, recompute="selective")),  # type: ignore[arg-type]
]


def written(job: Job, layout: Layout) -> tuple[dict[str, int], list[list[str]]]:
    """The fields of the first line, and the rows."""
    found = simai.launch_arguments(job, CLUSTER, layout)
    assert isinstance(found, LaunchArguments)
    head, count, *rows = found.text.splitlines()
    policy, *fields = head.split()
    assert policy == "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
    assert len(rows) == int(count)
    values = dict(zip(fields[::2], map(int, fields[1::2]), strict=True))
    return values, [row.split("\t") for row in rows]


def slowest(job: Job, layout: Layout) -> HeldChunk:
    """The stage with the most blocks, then the one with the head."""
    chunks = held_chunks(job.model, layout)
    return max(chunks, key=lambda one: (sum(one.counts[:-2]), one.counts[-1]))


@pytest.mark.parametrize(("job", "layout"), CASES)
def test_first_line(job: Job, layout: Layout) -> None:
    values, _ = written(job, layout)
    assert values["model_parallel_NPU_group:"] == layout.x
    assert (values["ep:"], values["pp:"], values["vpp:"]) == (layout.expert, layout.pipeline, 1)
    assert values["ga:"] * layout.micro_batch * layout.data == 64
    assert values["all_gpus:"] == 64
    assert (values["pp_comm:"] > 0) == (layout.pipeline > 1)


@pytest.mark.parametrize(("job", "layout"), CASES)
def test_rows_have_simais_columns(job: Job, layout: Layout) -> None:
    """Workload.cc: a name without blanks, three times (ns, kind, bytes), and the groups that each column knows."""
    _, rows = written(job, layout)
    kinds = {"NONE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER"}
    for row in rows:
        assert len(row) == 12
        assert " " not in row[0]
        for column in (2, 5, 8):
            kind, size = row[column + 1], int(row[column + 2])
            assert int(row[column]) >= 0
            assert (size > 0) == (kind != "NONE")
            assert kind.removesuffix("_DP_EP") in kinds if column == 8 else kind in {*kinds, "ALLTOALL_EP"}


@pytest.mark.parametrize(("job", "layout"), CASES)
def test_bytes_are_those_of_the_steps_list(job: Job, layout: Layout) -> None:
    """Every micro-batch's collectives inside the stage, and once a step those over replicas."""
    values, rows = written(job, layout)
    table, stage = LayoutTable.of([layout]), slowest(job, layout)
    step = Step(job.model, job.recipe, table)
    expected: Counter[str] = Counter()
    for call in [*step.inside(stage), *step.once(stage)]:
        ranks = 1
        for axis in call.axes:
            ranks *= int(degrees(table, axis)[0])
        if ranks > 1 and call.axes != ("tied",):
            times = float(call.times[0]) * (values["ga:"] if call.when in ("forward", "backward") else 1)
            expected[call.kind.replace("-", "").upper()] += times * float(call.bytes[0])
    found: Counter[str] = Counter()
    for row in rows:
        for column in (3, 6, 9):
            found[row[column].split("_")[0]] += int(row[column + 1])
    del found["NONE"]
    assert set(found) == {kind for kind, size in expected.items() if size}
    for kind, size in found.items():
        assert size == pytest.approx(expected[kind], rel=1e-3), kind


@pytest.mark.parametrize(("job", "layout"), CASES)
def test_times_are_those_of_the_estimate(job: Job, layout: Layout) -> None:
    """Where the host keeps up, all rows take what forward, backward and recomputation do."""
    _, rows = written(job, layout)
    table = LayoutTable.of([layout])
    estimator = Estimator(job, CLUSTER)
    time = estimator.evaluate(table).time
    estimated = float((time.forward_s + time.backward_s + time.recompute_s)[0])
    total = sum(int(row[column]) for row in rows for column in (2, 5, 8)) / 1e9
    assert total == pytest.approx(estimated, rel=0.12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"z": 2}, "gather no weights"),
        ({"context": 2}, "context"),
        ({"recompute": "full", "recompute_layers": 2}, "all blocks"),
        ({"offload_optimizer": True}, "offload"),
    ],
)
def test_what_simai_cannot_say(change: dict[str, object], words: str) -> None:
    found = simai.launch_arguments(DENSE, CLUSTER, Layout(**change))  # type: ignore[arg-type]
    assert isinstance(found, NotExpressible)
    assert words in found.reason


def test_too_many_rows_are_refused() -> None:
    job = resolve_job("llama-2-7b", RecipeChanges(global_batch=100_000))
    found = simai.launch_arguments(job, CLUSTER, Layout(x=8))
    assert isinstance(found, NotExpressible)
    assert "half a million rows" in found.reason


def test_the_same_bytes_again() -> None:
    cluster: Cluster = load("h100-64")
    first, again = (simai.launch_arguments(*one) for one in ((DENSE, cluster, CASES[1][1]),) * 2)
    assert first == again
