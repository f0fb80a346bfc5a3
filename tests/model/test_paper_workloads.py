"""The workloads of Themis' evaluation, against their models' published sizes and the public inputs."""

import pytest

from weft.errors import UnknownName
from weft.model.workload import IMAGES, RESNET_50, RESNET_152, WORKLOADS, _resnet_flops, workload

SCALE = 0.26


def sent(name, kind="all-reduce"):
    tasks = [task.communication for task in workload(name).tasks]
    return [one.bytes for one in tasks if one is not None and one.kind == kind]


def test_resnet_152_reduces_every_parameter_in_16_bits():
    """torchvision's ``resnet152`` has 60,192,808 parameters: convolutions without biases, each with a scale
    and a shift of its batch norm (the running averages are no parameters), and a head with biases."""
    assert sum(sent("resnet-152")) == 2 * 60_192_808
    assert len(sent("resnet-152")) == 1 + 3 * 50 + 4 + 1


def test_resnet_flops_are_those_published():
    """torchvision lists 4.09 and 11.51 billion multiply-adds an image of 224 x 224."""
    for blocks, multiply_adds in ((RESNET_50, 4.09e9), (RESNET_152, 11.51e9)):
        forward = _resnet_flops(blocks) / 3 / IMAGES
        assert forward == pytest.approx(2 * multiply_adds, rel=2e-3)


def test_resnet_152_computes_at_the_speed_of_the_public_resnet_50():
    """All but the first convolution's input gradient, which nobody needs: a third of its 118 million."""
    ratio = (11.514e9 - 64 * 3 * 7 * 7 * 112 * 112 / 3) / 4.089e9
    assert workload("resnet-152").compute_s == pytest.approx(1.095314e-3 * SCALE * ratio, rel=1e-3)


def test_resnet_gradients_wait_for_their_convolution_only():
    tasks = workload("resnet-152").tasks
    for task in tasks:
        if task.communication is None:
            assert all(tasks[other].communication is None for other in task.waits)
        else:
            (other,) = task.waits
            assert tasks[other].name == task.name.replace("weights all-reduce", "weight gradient")


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


def test_transformer_1t_has_its_parameters():
    """128 layers of 12 h^2 weights, h 24,576: 0.93 trillion; a rank of 128 reduces its part in 16 bits."""
    found = sent("transformer-1t")
    inside = [bytes_ for bytes_ in found if bytes_ == 805_306_368.0]
    across = [bytes_ for bytes_ in found if bytes_ != 805_306_368.0]
    assert sum(across) / 2 * 128 == 12 * 24_576**2 * 128
    assert sum(across) / 2 * 128 == pytest.approx(1e12, rel=0.08)
    assert len(inside) == 256 * 3 - 1


def test_transformer_1t_spans_1024_ranks():
    calls = [task.communication for task in workload("transformer-1t").tasks if task.communication]
    assert {call.factors for call in calls} == {((128, 1),), ((8, 128),)}
    assert {call.kind for call in calls} == {"all-reduce"}


def test_transformer_1t_computes_four_passes_of_each_layer():
    """Forward, again, and two gradients; without the first layer's input gradient.

    Of two layers the public input's forward passes take 56,665,038 ns; an attention has four products of
    2,343,750 ns and two of 97,656 ns.
    """
    passes = 128 * 4 * 56_665_038 / 2 - (4 * 2_343_750 + 2 * 97_656)
    assert workload("transformer-1t").compute_s == pytest.approx(passes * 1e-9 * SCALE, rel=1e-6)


def test_names():
    for name in WORKLOADS:
        assert workload(name).name == name
        assert workload(name).assumptions
    with pytest.raises(UnknownName, match="did you mean gnmt"):
        workload("gnmd")
