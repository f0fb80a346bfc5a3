"""The workloads of Themis' evaluation, against their models' published sizes and the public inputs."""

import pytest

from weft.errors import UnknownName
from weft.model.workload import workload, workloads

SCALE = 0.26


def sent(name, kind="all-reduce"):
    tasks = [task.communication for task in workload(name).tasks]
    return [one.bytes for one in tasks if one is not None and one.kind == kind]


@pytest.mark.parametrize(
    ("name", "bytes_", "seconds"),
    [("resnet-50", 51_005_824.0, 1.095314e-3), ("gnmt", 267_788_288.0, 2 * 2.930768e-3 + 2.039233e-3 + 0.535571e-3)],
)
def test_one_all_reduce_after_all_computation_as_in_the_public_inputs(name, bytes_, seconds):
    assert sent(name) == [bytes_]
    assert workload(name).compute_s == pytest.approx(seconds * SCALE)


def test_dlrm():
    assert sent("dlrm") == [114_823_168.0]
    assert sent("dlrm", "all-to-all") == [4_194_304.0] * 2
    tasks = {task.name: task for task in workload("dlrm").tasks}
    numbers = {task.name: number for number, task in enumerate(workload("dlrm").tasks)}
    exchange = numbers["embedding all-to-all"]
    assert exchange not in tasks["bottom forward"].waits
    assert exchange in tasks["top forward"].waits


def test_names():
    for name in workloads():
        assert workload(name).name == name
        assert workload(name).assumptions
    with pytest.raises(UnknownName, match="did you mean gnmt"):
        workload("gnmd")
