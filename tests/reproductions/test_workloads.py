"""ResNet-152 and Transformer-1T of Themis' evaluation, against their published sizes and the public inputs."""

import pytest
from workloads import IMAGES, RESNET_50, RESNET_152, WORKLOADS, Layer, _resnet_flops, training_iteration

from weft.model.workload import SCALE, Communication


def sent(name):
    return [task.communication.bytes for task in WORKLOADS[name].tasks if task.communication is not None]


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
    assert WORKLOADS["resnet-152"].compute_s == pytest.approx(1.095314e-3 * SCALE * ratio, rel=1e-3)


def test_resnet_gradients_wait_for_their_convolution_only():
    tasks = WORKLOADS["resnet-152"].tasks
    for task in tasks:
        if task.communication is None:
            assert all(tasks[other].communication is None for other in task.waits)
        else:
            (other,) = task.waits
            assert tasks[other].name == task.name.replace("weights all-reduce", "weight gradient")


def test_transformer_1t_has_its_parameters():
    """128 layers of 12 h^2 weights, h 24,576: 0.93 trillion; a rank of 128 reduces its part in 16 bits."""
    found = sent("transformer-1t")
    inside = [bytes_ for bytes_ in found if bytes_ == 805_306_368.0]
    across = [bytes_ for bytes_ in found if bytes_ != 805_306_368.0]
    assert sum(across) / 2 * 128 == 12 * 24_576**2 * 128
    assert sum(across) / 2 * 128 == pytest.approx(1e12, rel=0.08)
    assert len(inside) == 256 * 3 - 1


def test_transformer_1t_spans_1024_ranks():
    calls = [task.communication for task in WORKLOADS["transformer-1t"].tasks if task.communication]
    assert {call.factors for call in calls} == {((128, 1),), ((8, 128),)}
    assert {call.kind for call in calls} == {"all-reduce"}


def test_transformer_1t_computes_four_passes_of_each_layer():
    """Forward, again, and two gradients; without the first layer's input gradient.

    Of two layers the public input's forward passes take 56,665,038 ns; an attention has four products of
    2,343,750 ns and two of 97,656 ns.
    """
    passes = 128 * 4 * 56_665_038 / 2 - (4 * 2_343_750 + 2 * 97_656)
    assert WORKLOADS["transformer-1t"].compute_s == pytest.approx(passes * 1e-9 * SCALE, rel=1e-6)


def reduce(bytes_):
    return Communication(kind="all-reduce", bytes=bytes_)


def layer(name, forward=1.0, inputs=2.0, weights=4.0, **collectives):
    return Layer(name=name, forward_s=forward, input_gradient_s=inputs, weight_gradient_s=weights, **collectives)


def listed(workload):
    return [(task.name, task.waits) for task in workload.tasks]


def test_gradients_travel_beside_the_rest():
    found = training_iteration(
        "net", [layer("a", weight_gradient=reduce(1.0)), layer("b", weight_gradient=reduce(2.0))]
    )
    assert listed(found) == [
        ("a forward", ()),
        ("b forward", (0,)),
        ("b weight gradient", (1,)),
        ("b weights all-reduce", (2,)),
        ("b input gradient", (2,)),
        ("a weight gradient", (4,)),
        ("a weights all-reduce", (5,)),
    ]
    sent = [task.communication.bytes for task in found.tasks if task.communication]
    assert sent == [2.0, 1.0]


def test_recomputation_runs_the_forward_pass_and_its_collective_again():
    table = [Layer(name="a", forward_s=1.0, input_gradient_s=2.0, weight_gradient_s=4.0, forward=reduce(7.0))]
    once = training_iteration("net", table)
    twice = training_iteration("net", table, recompute=True)
    assert twice.compute_s == once.compute_s + 1
    assert [task.name for task in twice.tasks] == [
        "a forward",
        "a forward all-reduce",
        "a again",
        "a again all-reduce",
        "a weight gradient",
    ]
    assert [task.waits for task in twice.tasks] == [(), (0,), (1,), (2,), (3,)]
